"""synergy-launch with Megatron-LM's own pretrain_gpt.py, unchanged, on gloo: reports, checkpoints on request, resharding.

$MEGATRON_LM names a checkout (core_v0.16.1 was tried). Besides megatron-core it needs six, regex, pyyaml and pydantic,
here or in a folder that $PYTHONPATH names. tests/throwaway/megatron_lm_cpu stands for the GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Plan
from synergy_core.wire import plan_file
from synergy_core.wire.plan_file import PlanFile

from tests.demo.story import faults, legs
from tests.paths import ROOT, python_path
from tests.throwaway.slurm import NodeGroup, missing_programs
from tests.throwaway.synergy import explain, make_cluster, synergyd

MEGATRON = Path(os.environ.get("MEGATRON_LM", ""))
MISSING = [name for name in ("six", "regex", "yaml", "pydantic") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.training,
    pytest.mark.skipif(
        not os.environ.get("MEGATRON_LM"), reason="MEGATRON_LM names no checkout of Megatron-LM (core_v0.16.1)"
    ),
    pytest.mark.skipif(
        bool(os.environ.get("MEGATRON_LM")) and not (MEGATRON / "pretrain_gpt.py").is_file(),
        reason=f"MEGATRON_LM: {MEGATRON} has no pretrain_gpt.py",
    ),
    pytest.mark.skipif(bool(MISSING), reason=f"Megatron-LM needs {', '.join(MISSING)}"),
]
LAST = 30
# What a user would write for a small GPT, and what a CPU needs.
USER = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 1 --global-batch-size 8 --lr 3e-3 --min-lr 3e-4 --lr-warmup-iters 2 --attention-dropout 0 "
    f"--hidden-dropout 0 --train-iters {LAST} --log-interval 1 --eval-iters 0 --eval-interval 1000 --save-interval 10 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 200 --distributed-backend gloo --use-cpu-initialization "
    "--transformer-impl local --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-persist-layer-norm"
).split()
SLOWLY = ["--train-iters", "50000", "--lr", "2e-4", "--min-lr", "2e-5", "--save-interval", "1000"]
BIGGER = ["--hidden-size", "128", "--seq-length", "128", "--max-position-embeddings", "128"]
FIGURES = "#SYNERGY GpuType=cpu peak_tflops=0.002 memory_gib=4 bandwidth_gbs=10 intra_gbs=1 inter_gbs=1"
RIVAL = (
    "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:2 -o /dev/null\n"
    "#SYNERGY model=gpt-mini min_gpus=2 max_gpus=2 global_batch=8 weight=8 resize=no\nexec sleep 3600\n"
)
# synergy-launch, but that its reports go into a file: job 9 has no daemon
LAUNCH = """
import sys
from synergy_launch.launcher import command
from synergy_core.wire import report
reports = sys.argv.pop(1)
def send(said, address, by=None, timeout_s=5.0, line=None):
    with open(reports, "ab") as file:
        file.write(report.to_json(said) + b"\\n")
report.send = send
command.main()
"""


def _paths() -> str:
    """Synergy's own first: the checkout has a folder `tests` too."""
    return python_path(ROOT / "tests/throwaway/megatron_lm_cpu", MEGATRON)


class Run:
    """One start of synergy-launch in a folder of its own."""

    def __init__(self, folder: Path, plan: Plan, **more: str) -> None:
        self.save, self.reports_file, self.output_file = folder / "save", folder / "reports.jsonl", folder / "out"
        self.save.mkdir(parents=True, exist_ok=True)
        path = plan_file.write(PlanFile(9, plan, "nobody:1", str(self.save)), folder)
        job = {"JOB_ID": 9, "JOB_NODELIST": "here", "STEP_ID": 0, "PROCID": 0, "NODEID": 0, "STEP_NUM_NODES": 1}
        job |= {"STEP_NUM_TASKS": 1, "GPUS_ON_NODE": plan.gpus}
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_"))},
            **{f"SLURM_{name}": str(value) for name, value in job.items()},
            "PYTHONPATH": _paths(),
            "SYNERGY_PLAN": str(path), "SYNERGY_HOLD_S": "0.5", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder),
            **more,
        }  # fmt: skip
        command = [sys.executable, "-c", LAUNCH, str(self.reports_file), str(MEGATRON / "pretrain_gpt.py"), *USER]
        with self.output_file.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(70)  # torchrun kills what does not go
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self, limit_s: float = 150.0) -> int:
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"no end after {limit_s} s: {self.tail()}")

    def until_step(self, step: int, starts: int = 1) -> None:
        deadline = time.monotonic() + 120
        while not (self.starts() >= starts and max(self.steps(), default=0) >= step):
            assert self.process.poll() is None and time.monotonic() < deadline, self.tail()
            time.sleep(0.05)

    def starts(self) -> int:
        return self.output_file.read_text(errors="replace").count("> initializing torch distributed")

    def steps(self) -> dict[int, dict[str, Any]]:
        log = self.save / "steps.jsonl"
        entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        assert len({x["step"] for x in entries}) == len(entries)  # none is made twice
        return {x["step"]: x for x in entries}

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.reports_file.read_text().splitlines()]

    def tail(self) -> str:
        return self.output_file.read_text(errors="replace")[-4000:]


def saved(save: Path) -> int:
    return int((save / "latest_checkpointed_iteration.txt").read_text())


@pytest.mark.timeout(600)
def test_reports_requests_and_resharding(tmp_path: Path) -> None:
    """tp 2 x dp 2 to the end; the same from its 10th iteration with pp 2, asked for a checkpoint, then ended; then dp 2."""
    with Run(tmp_path / "whole", Plan(tp=2, dp=2, micro_batch=1, global_batch=8)) as whole:
        assert whole.wait() == 0, whole.tail()
    truth = whole.steps()
    assert list(truth) == list(range(1, LAST + 1)) and truth[LAST]["loss"] < truth[1]["loss"] - 1
    assert {(x["tp"], x["pp"], x["dp"], x["global_batch"]) for x in truth.values()} == {(2, 1, 2, 8)}
    last = whole.reports()[-1]
    assert (last["step"], last["checkpoint_step"], last["tokens"]) == (LAST, LAST, LAST * 8 * 32)
    assert (last["done"], last["total"], last["resharding"]) == (LAST * 8, LAST * 8, True)
    assert last["loss"] == truth[LAST]["loss"] and last["step_s"] > 0 and last["peak_memory_bytes"] is None
    early = [r for r in whole.reports() if r["step"] in (1, 2)]
    assert early and all(r["step_s"] is None for r in early)  # the first two lines tell no steady time

    shutil.copytree(whole.save / "iter_0000010", tmp_path / "other/save/iter_0000010")
    (tmp_path / "other/save/latest_checkpointed_iteration.txt").write_text("10")
    with Run(tmp_path / "other", Plan(pp=2, micro_batch=1, global_batch=8)) as second:
        second.until_step(13)
        second.process.send_signal(signal.SIGUSR2)
        second.until_step(17, starts=2)  # it has saved, nobody has ended it, it goes on
        os.killpg(second.process.pid, signal.SIGTERM)
        assert second.wait() != 0
    stopped = saved(second.save)
    assert 17 <= stopped < LAST, second.tail()
    told = second.reports()
    met = next(r for r in told if r["checkpoint_requests"] == 1)
    assert 13 <= met["step"] == met["checkpoint_step"] < 17
    assert (told[-1]["step"], told[-1]["checkpoint_step"]) == (stopped, stopped)

    with Run(tmp_path / "other", Plan(dp=2, micro_batch=2, global_batch=8)) as third:
        assert third.wait() == 0, third.tail()
    steps = third.steps()
    assert list(steps) == list(range(11, LAST + 1))  # no iteration is lost, none made twice
    assert {(x["pp"], x["dp"]) for n, x in steps.items() if n <= stopped} == {(2, 1)}
    assert {(x["pp"], x["dp"]) for n, x in steps.items() if n > stopped} == {(1, 2)}
    for number, entry in steps.items():
        assert entry["loss"] == pytest.approx(truth[number]["loss"], abs=1e-5), number
        assert entry["grad_norm"] == pytest.approx(truth[number]["grad_norm"], abs=5e-3), number
    assert saved(third.save) == LAST == third.reports()[-1]["checkpoint_step"]


@pytest.mark.timeout(600)
def test_a_checkpoint_in_the_older_format_loads_with_the_scripts_own_degrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a plan of pp 2, Megatron-LM would miss a part of it, and end with code 0 before its first iteration."""
    save = tmp_path / "save"
    own = [
        *USER,
        "--tensor-model-parallel-size",
        "2",
        "--ckpt-format",
        "torch",
        "--save",
        str(save),
        "--load",
        str(save),
    ]
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # as a script with tp has it
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    alone = [*command, str(MEGATRON / "pretrain_gpt.py"), *own, "--exit-interval", "10"]
    user = {**os.environ, **environment, "PYTHONPATH": _paths(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(alone, env=user, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and (save / "iter_0000010/mp_rank_01").is_dir(), done.stderr[-2000:]

    monkeypatch.setattr(sys.modules[__name__], "USER", own)
    with Run(tmp_path, Plan(pp=2, micro_batch=1, global_batch=8), **environment) as run:
        assert run.wait() == 0, run.tail()
    assert list(run.steps()) == list(range(11, LAST + 1)) and saved(save) == LAST
    assert {(x["tp"], x["pp"], x["dp"]) for x in run.steps().values()} == {(2, 1, 1)}
    assert "older format" in run.output_file.read_text(errors="replace")


@pytest.mark.slurm
@pytest.mark.skipif(bool(missing_programs()), reason="Slurm or munge is not installed")
@pytest.mark.timeout(1200)
def test_a_daemon_resizes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on four GPUs gives two to a rival and gets them back, tp and batch change: no iteration is lost, the loss goes on."""
    monkeypatch.setenv("PYTHONPATH", _paths())
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with make_cluster([NodeGroup("cpu", 1, 4)], epoch_s=3, settings=[FIGURES]) as cluster, synergyd(cluster) as daemon:
        cluster.wait_for((cluster.state_dir / "heartbeat").exists, 90, "the daemon's first epoch")
        folder = cluster.folder / "jobs"
        save, log, output = folder / "save", folder / "save/steps.jsonl", folder / "output"
        save.mkdir(parents=True)
        sizes = {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 128, "vocab_size": 256}
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
        script = (
            "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:4 --open-mode=append\n"
            f"#SYNERGY model={folder / 'config.json'} min_gpus=1 max_gpus=4 global_batch=2 micro_batch=1 checkpoint={save}\n"
            f"srun synergy-launch {MEGATRON / 'pretrain_gpt.py'} {shlex.join([*USER, *SLOWLY, *BIGGER])}\n"
        )
        job = cluster.sbatch(script, "-o", str(output))

        def trained_on(gpus: int, legs_made: int) -> bool:
            run = legs(log)
            return len(run) >= legs_made and run[-1].gpus == gpus and run[-1].last_step - run[-1].first_step >= 8

        def wait(gpus: int, legs_made: int) -> None:
            deadline = time.monotonic() + 400  # it grows again once its RestartShare pays for that
            while not trained_on(gpus, legs_made):
                text = output.read_text(errors="replace")[-3000:] if output.exists() else ""
                assert time.monotonic() < deadline, f"{legs(log)}\n{text}\n{daemon.tail()}"
                time.sleep(0.5)

        wait(4, 1)
        rival = cluster.sbatch(RIVAL)
        wait(2, 2)
        cluster.run("scancel", str(rival))
        wait(4, 3)
        run, told = legs(log), explain(cluster, job)["story"]
    print(*map(repr, run), sep="\n")
    assert [leg.gpus for leg in run[:3]] == [4, 2, 4]
    assert len({(leg.tp, leg.pp) for leg in run}) > 1
    assert faults("megatron", run, 0.3) == []
    assert not any("no checkpoint acknowledged" in entry["detail"] for entry in told)
