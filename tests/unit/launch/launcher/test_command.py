"""synergy-launch: the plan it takes, the command it makes of it, and a node's run from start to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from synergy_launch.agent import run_folder
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.launcher import command
from synergy_launch.launcher.allocation import JobAllocation
from synergy_launch.launcher.command import Start, find_handover, fit, run_node, start_of

from synergyd.errors import UnavailableError, UsageError
from synergyd.records import Plan, Report
from synergyd.wire import plan_file
from synergyd.wire.plan_file import PlanFile

PLAN = Plan(tp=2, pp=2, dp=2, micro_batch=4, global_batch=16)
NODES = JobAllocation(9, 1, ("n1", "n2"), 1, 4, True, False)
COMMENT = "synergy:1 checkpoint=/a%20b%C3%A9 | plan=tp:1,pp:1,dp:2,mb:1,gb:4 report=ctl:7321"


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_fit_keeps_a_plan_that_fits() -> None:
    assert fit(PLAN, 8) == (PLAN, "") and fit(None, 8) == (None, "")


@pytest.mark.parametrize(("world", "dp", "micro"), [(4, 1, 4), (16, 4, 4), (32, 8, 2), (64, 16, 1)])
def test_fit_changes_dp_alone(world: int, dp: int, micro: int) -> None:
    plan, remark = fit(PLAN, world)
    assert plan == replace(PLAN, dp=dp, micro_batch=micro) and plan.gpus == world
    assert plan.global_batch % (plan.dp * plan.micro_batch) == 0 and f"there are {world}" in remark


def test_fit_keeps_virtual_stages_and_experts_whole() -> None:
    plan = Plan(tp=2, pp=2, vpp=2, cp=2, dp=4, ep=2, micro_batch=2, global_batch=32)
    smaller, remark = fit(plan, 16)
    assert smaller == replace(plan, dp=2) and "dp is 2" in remark
    # one replica is no multiple of ep
    assert fit(plan, 8)[0] is None
    # 16 micro-batches of 2, but 64 replicas would leave less than one for each pair of stages
    assert fit(plan, 8 * 64)[0] is None


@pytest.mark.parametrize("world", [1, 2, 6, 12, 128])
def test_fit_gives_up_rather_than_changing_the_batch(world: int) -> None:
    plan, remark = fit(PLAN, world)
    assert plan is None and "own degrees" in remark


def scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    program = folder / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_the_daemons_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, f"echo '   AdminComment={COMMENT}'")
    written = PlanFile(9, PLAN, "ctl:1", "/ckpt", 64030)
    path = plan_file.write(written, tmp_path)
    assert find_handover(9, {"SYNERGY_STATE_DIR": str(tmp_path)}) == (written, "")
    assert find_handover(9, {"SYNERGY_PLAN": str(path), "SYNERGY_STATE_DIR": "/nowhere"}) == (written, "")


def test_admin_comment_where_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(
        tmp_path,
        monkeypatch,
        "echo 'JobId=9 JobName=x'; echo ' AdminComment=synergy:1 | report=evil:1'\n"
        f"echo '   AdminComment={COMMENT}'; echo '   Comment=x'",
    )
    found, remark = find_handover(9, {"SYNERGY_STATE_DIR": str(tmp_path)})
    assert found == PlanFile(9, Plan(dp=2, global_batch=4), "ctl:7321", "/a bé") and remark == ""


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1, "job_id": 8}', '{"format": 1, "job_id": 9, "plan": {"tp": 0}}']
)
def test_an_unusable_file_is_told_of_and_admin_comment_taken(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol(tmp_path, monkeypatch, f"echo 'AdminComment={COMMENT}'")
    path = plan_file.plan_path(tmp_path, 9)
    path.parent.mkdir()
    path.write_text(content)
    found, remark = find_handover(9, {"SYNERGY_STATE_DIR": str(tmp_path)})
    assert found is not None and found.report == "ctl:7321" and str(path) in remark


@pytest.mark.parametrize(
    "body",
    ["exit 1", "echo 'AdminComment=(null)'", "echo 'AdminComment=other 1'", "echo 'AdminComment=synergy:1 tp=2'"],
)
def test_no_plan_anywhere(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, body)
    assert find_handover(9, {"SYNERGY_STATE_DIR": str(tmp_path)}) == (None, "")


def test_a_wrong_stamp_and_a_path_that_can_not_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, "echo 'AdminComment=synergy:1 | plan=tp:x'")
    found, remark = find_handover(9, {"SYNERGY_STATE_DIR": str(tmp_path)})
    assert found is None and "AdminComment of job 9" in remark
    found, remark = find_handover(9, {"SYNERGY_PLAN": "x" * 5000})
    assert found is None and remark


def test_outside_slurm_only_a_named_plan(tmp_path: Path) -> None:
    assert find_handover(None, {"SYNERGY_STATE_DIR": str(tmp_path)}) == (None, "")
    path = plan_file.write(PlanFile(0, PLAN), tmp_path)
    assert find_handover(None, {"SYNERGY_PLAN": str(path)})[0] == PlanFile(0, PLAN)
    with pytest.raises(UsageError, match="missing"):
        find_handover(None, {"SYNERGY_PLAN": str(tmp_path / "missing")})


# -- the command -------------------------------------------------------------------------------------------------------


def start(script: list[str], where: JobAllocation = NODES, given: PlanFile | None = None, **more: str) -> Start:
    settings = {"checkpoint": "", "runner": "torchrun", "master": "n1", **more}
    return start_of(script, where, given, run_dir=Path("/run/x"), **settings)  # type: ignore[arg-type]


def test_start_on_several_nodes_without_plan() -> None:
    made = start(["train.py", "--a b", "$(x)"])
    assert made.command == (
        sys.executable, "-P", "-m", "synergy_launch.launcher.torchrun", "--nnodes", "2", "--nproc-per-node", "4", "--node-rank", "1",
        "--master-addr", "n1", "--master-port", "15073", "train.py", "--a b", "$(x)",
    )  # fmt: skip
    assert made.environment["SYNERGY_RUN_DIR"] == "/run/x" and made.environment["SYNERGY_RESTARTS"] == "1"
    assert "SYNERGY_PLAN_JSON" not in made.environment and "SYNERGY_CHECKPOINT_DIR" not in made.environment
    assert made.remarks == ()


def test_start_alone_and_by_module() -> None:
    made = start(["module:pkg.train", "-x"], JobAllocation(None, 0, ("here",), 0, 0, True, True))
    assert made.command[4:] == ("--nnodes", "1", "--nproc-per-node", "1", "--standalone", "-m", "pkg.train", "-x")
    assert start(["t.py", "-x"], runner="python").command == (sys.executable, "t.py", "-x")


def test_start_with_a_plan() -> None:
    made = start(["t.py"], given=PlanFile(9, PLAN, "", "/given"))
    assert json.loads(made.environment["SYNERGY_PLAN_JSON"])["tp"] == 2
    assert (
        made.environment["SYNERGY_CHECKPOINT_DIR"] == "/given"
        and made.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    )
    assert made.environment["SYNERGY_STEP_LOG"] == "/given/steps.jsonl" and made.environment["OMP_NUM_THREADS"] == "1"
    own = start(["t.py"], given=PlanFile(9, PLAN, "", "/given"), checkpoint="/own", threads="6")
    assert own.environment["SYNERGY_CHECKPOINT_DIR"] == "/own" and own.environment["OMP_NUM_THREADS"] == "6"


def test_what_a_megatron_script_accepts_reaches_its_agent() -> None:
    options = ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--micro-batch-size")
    words = [*(f"{option}=4" for option in options), "--bf16"]
    told = start(["pretrain_gpt.py", *words]).environment["SYNERGY_ACCEPTS_JSON"]
    assert json.loads(told) == {"vpp": True, "cp": True, "ep": False, "precision": "bf16"}
    assert AgentSettings.from_environment({"SYNERGY_ACCEPTS_JSON": told}).accepts == json.loads(told)
    assert "SYNERGY_ACCEPTS_JSON" not in start(["train.py", *words[1:]]).environment
    assert AgentSettings.from_environment({"SYNERGY_ACCEPTS_JSON": "[1"}).accepts is None


def test_start_of_megatron_by_its_arguments_or_by_word() -> None:
    megatron = ["t.py", "--num-layers", "2", "--micro-batch-size", "1"]
    given = PlanFile(9, PLAN)
    assert "--pipeline-model-parallel-size" in start(megatron, given=given).command
    assert "--pipeline-model-parallel-size" not in start(megatron, given=given, style="env").command
    assert "--pipeline-model-parallel-size" in start(["t.py"], given=given, style="megatron").command
    misfit = start(megatron, given=PlanFile(9, replace(PLAN, tp=3, dp=1)))
    assert misfit.command[-5:] == tuple(megatron) and "own degrees" in misfit.remarks[0]


# -- the run -----------------------------------------------------------------------------------------------------------

CHILD = """
import json, os, signal, sys, time
from pathlib import Path
run = Path(os.environ["SYNERGY_RUN_DIR"])
signal.signal(signal.SIGUSR2, lambda *_: None)
def status(**what):
    (run / "new").write_text(json.dumps(what)); (run / "new").replace(run / "status.json")
def until(true):
    end = time.monotonic() + 15
    while not true():
        if time.monotonic() > end: sys.exit(99)
        time.sleep(0.01)
"""


class Bench:
    """Runs `run_node` here, with signals sent to this very process, as Slurm does."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        self.where = JobAllocation(None, 0, ("here",), 0, 0, True, True)

    def run(self, body: str, given: PlanFile | None = None, then: Callable[[], None] | None = None) -> int:
        made = Start((sys.executable, "-c", CHILD + textwrap.dedent(body)), {"SYNERGY_RUN_DIR": str(self.run_dir)})
        thread = threading.Thread(target=then or (lambda: None))
        thread.start()
        try:
            return run_node(made, self.where, given, self.run_dir)
        finally:
            thread.join()

    def when(self, file: str, *numbers: int) -> Callable[[], None]:
        def wait() -> None:
            end = time.monotonic() + 15
            while not (self.run_dir / file).exists() and time.monotonic() < end:
                time.sleep(0.01)
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(0.05)

        return wait


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(command, "POLL_S", 0.01)
    kept = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)}
    yield Bench(tmp_path)
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), 9)", 137),
        ("status(state='done'); sys.exit(3)", 3),  # what fails after the last step has failed all the same
        ("status(state='done')", 0),
        ("status(state='failed', failed=True); sys.exit(1)", 1),
    ],
)
def test_exit_codes_and_no_folder_left(bench: Bench, body: str, code: int) -> None:
    assert bench.run(body) == code
    assert not bench.run_dir.exists()


def test_usr2_becomes_a_request_with_its_number(bench: Bench) -> None:
    body = """
    status(state="training")
    until(lambda: (run / "checkpoint-request").exists())
    until(lambda: (run / "checkpoint-request").read_text() == "2\\n")
    """
    assert bench.run(body, then=bench.when("status.json", signal.SIGUSR2, signal.SIGUSR2)) == 0


def test_a_folder_that_is_cleaned_away_ends_no_training(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    def clean_and_ask() -> None:
        bench.when("status.json")()
        for path in bench.run_dir.iterdir():
            path.unlink()
        bench.run_dir.rmdir()
        os.kill(os.getpid(), signal.SIGUSR2)

    assert bench.run("status(state='training'); time.sleep(0.8); sys.exit(5)", then=clean_and_ask) == 5
    assert "checkpoint can't be asked for" in capfd.readouterr().err


ENDS = """
def end(*_):
    global over
    over = True
over = False
signal.signal(signal.SIGTERM, end)
status(state="training")
until(lambda: over)
"""


@pytest.mark.parametrize(("last", "code"), [("status(state='done'); sys.exit(1)", 0), ("sys.exit(1)", 1),
                                            ("status(state='done', failed=True); sys.exit(1)", 1)])  # fmt: skip
def test_sigterm_reaches_the_child_and_a_clean_end_is_one(bench: Bench, last: str, code: int) -> None:
    assert bench.run(ENDS + last, then=bench.when("status.json", signal.SIGTERM)) == code
    assert not bench.run_dir.exists()


def test_in_a_job_slurm_itself_signals_the_child(bench: Bench) -> None:
    bench.where = replace(bench.where, job_id=9, node_rank=1)
    body = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(50))\nstatus(state='training'); time.sleep(0.5); sys.exit(4)"
    )
    assert bench.run(body, then=bench.when("status.json", signal.SIGTERM)) == 4


class Sent:
    """Stands for `report.send`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: int = 0) -> None:
        self.reports: list[tuple[Report, str]] = []
        self.fails = fails
        monkeypatch.setattr("synergyd.wire.report.send", self)

    def __call__(self, report: Report, address: str, by: int | None) -> None:
        if self.fails:
            self.fails -= 1
            raise UnavailableError("daemon", "away")
        self.reports.append((report, address))


TRAINS = """
status(state="training", step=1, step_s=0.5, checkpoint_requests=0)
time.sleep(0.1)
status(state="training", step=2, step_s=0.5, checkpoint_requests=1)
time.sleep(0.1)
status(state="done", step=3, step_s=0.5, checkpoint_requests=1, loss=float("1.5"), note="bye\\x1b[31m")
"""


def test_the_first_node_of_a_job_reports(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    bench.where = replace(bench.where, job_id=9, restarts=2)
    assert bench.run(TRAINS, PlanFile(9, None, "ctl:1")) == 0
    assert {a for _, a in sent.reports} == {"ctl:1"} and {(r.job_id, r.restarts) for r, _ in sent.reports} == {(9, 2)}
    assert any(r.checkpoint_requests == 1 and r.step == 2 for r, _ in sent.reports)  # an acknowledgement goes at once
    last = sent.reports[-1][0]
    assert (last.step, last.loss, last.note) == (3, 1.5, "bye\\x1b[31m")


@pytest.mark.parametrize("where", [{"job_id": 9, "node_rank": 1}, {"job_id": None}])
def test_nobody_else_does(bench: Bench, monkeypatch: pytest.MonkeyPatch, where: dict[str, int | None]) -> None:
    sent = Sent(monkeypatch)
    bench.where = replace(bench.where, **where)  # type: ignore[arg-type]
    assert bench.run(TRAINS, PlanFile(9, None, "ctl:1")) == 0 and sent.reports == []


def test_a_daemon_that_comes_later_is_reported_to(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent(monkeypatch)
    monkeypatch.setattr(command, "ASK_AGAIN_S", 0.05)
    monkeypatch.setenv("SYNERGY_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(command, "_admin_comment", lambda job_id: "")
    bench.where = replace(bench.where, job_id=9)

    def daemon_comes() -> None:
        bench.when("status.json")()
        plan_file.write(PlanFile(9, None, "late:1"), tmp_path)

    assert bench.run("status(state='training', step=5); time.sleep(0.5)", then=daemon_comes) == 0
    assert {(r.step, a) for r, a in sent.reports} == {(5, "late:1")}


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SYNERGY_", "CUDA_")):
            monkeypatch.delenv(name)


def test_dry_run_prints_and_leaves_a_running_jobs_folder_alone(
    outside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, value in (("SLURM_JOB_ID", "9"), ("SLURM_JOB_NODELIST", "n1"), ("SYNERGY_STATE_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    running = run_folder.make(9, 0, 0)
    (running / "status.json").write_text("{}")
    done = CliRunner().invoke(command.command, ["--dry-run", "--checkpoint", "/a b", "train.py", "it's"])
    assert done.exit_code == 0 and "SYNERGY_CHECKPOINT_DIR='/a b'" in done.output and """'it'"'"'s'""" in done.output
    assert (running / "status.json").exists()


def test_runs_a_script_end_to_end(outside: None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys; print(sys.argv[1:], os.environ['SYNERGY_RESTARTS']); sys.exit(6)\n")
    done = subprocess.run([sys.executable, "-m", "synergy_launch.launcher.command", "--runner", "python", str(script), "--help", "$(x)"],
                          env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=30)  # fmt: skip
    assert (done.returncode, done.stdout) == (6, "['--help', '$(x)'] 0\n")
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("words", "says"),
    [(["missing.py"], "missing.py"), (["x" * 5000], "xxx"), ([], "SCRIPT"), (["--nope", "a"], "nope")],
)
def test_mistakes_are_one_line_and_exit_code_two(outside: None, words: list[str], says: str) -> None:
    done = CliRunner().invoke(command.command, words)
    assert done.exit_code != 0
    shown = done.output + str(done.exception)
    assert says in shown and "Traceback" not in shown


def test_a_task_too_many_leaves_and_the_leader_starts_a_step(
    outside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "N=${SLURM_NTASKS-none}" > "$OUT"; exit 9\n')
    srun.chmod(0o755)
    (tmp_path / "t.py").write_text("")
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path / "out"), "SLURM_JOB_ID": "9", "SLURM_NTASKS": "8",
        "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NODEID": "0",
    }  # fmt: skip
    argv = [sys.executable, "-m", "synergy_launch.launcher.command", str(tmp_path / "t.py"), "a b"]
    extra = subprocess.run(argv, env={**environment, "SLURM_PROCID": "3"}, capture_output=True, timeout=30)
    assert (extra.returncode, (tmp_path / "out").exists()) == (0, False)
    leader = subprocess.run(argv, env={**environment, "SLURM_PROCID": "0"}, capture_output=True, timeout=30)
    words = (tmp_path / "out").read_text().splitlines()
    assert leader.returncode == 9 and {"--nodes=2", "--ntasks=2"} <= set(words) and words[-2:] == ["a b", "N=none"]
