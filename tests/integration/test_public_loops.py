"""Public training loops, as they are at the named commits, resized at their own checkpoints by one directive key.

SYNERGY_TEST_SCRIPTS names a folder with checkouts: nanoGPT (karpathy/nanoGPT, 3adf61e1) and examples (pytorch/examples, 77f55b9).
Their text changes only where it names CUDA, since this machine has none.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.integration.hooked_run import JOB, launched, run_to_end
from tests.integration.test_training_pytorch import wait_for

SCRIPTS = Path(os.environ.get("SYNERGY_TEST_SCRIPTS", "") or "/nonexistent")
pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (SCRIPTS / name).is_dir(), reason=f"no {name} in a folder of SYNERGY_TEST_SCRIPTS")


def on_cpu(source: Path, target: Path, *changes: tuple[str, str]) -> None:
    """Copy the scripts of a folder, with `changes` of what names CUDA in the first one that has it."""
    target.mkdir()
    for path in source.glob("*.py"):
        text = path.read_text()
        for before, after in changes:
            text = text.replace(before, after)
        (target / path.name).write_text(text)


def until_request(
    folder: Path, argv: list[str], gpus: int, restarts: int, is_due: Callable[[], bool], **more: Any
) -> dict[str, Any]:
    """Run, ask for a checkpoint when it `is_due`, and end the job with the script's next one. Return the status at that moment."""
    with launched(folder, argv, gpus, restarts, **more) as process:
        wait_for(lambda: process.poll() is not None or is_due(), "the request", 240)
        run_dir = next(folder.glob(f"synergy-*{JOB}*"))
        (run_dir / "checkpoint-request").write_text("1")

        def status() -> dict[str, Any]:
            content: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
            return content

        wait_for(
            lambda: process.poll() is not None or status()["checkpoint_requests"] == 1,
            "the script's next checkpoint",
            240,
        )
        assert process.poll() is None, (folder / "out").read_text()[-3000:]
        found = status()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=120)
    shutil.rmtree(run_dir, ignore_errors=True)
    return found


@needs("nanoGPT")
@pytest.mark.parametrize("imports", [False, True], ids=["no line", "one import"])
def test_nanogpt(tmp_path: Path, imports: bool) -> None:
    """4 passes of accumulation on 2 processes, then on 1, then on 4. With the import, its random batches differ after a restart."""
    cpu = [
        ("f'cuda:{ddp_local_rank}'", "'cpu'"),
        ("torch.cuda.set_device(device)", "pass"),
        (", device_ids=[ddp_local_rank]", ""),
    ]
    on_cpu(SCRIPTS / "nanoGPT", tmp_path / "nanoGPT", *cpu)
    script = tmp_path / "nanoGPT" / "train.py"
    seed = "torch.manual_seed(1337 + seed_offset"
    noted = "X, Y = get_batch('train') # fetch the very first batch\nprint('first batch', ddp_rank, int(X.sum()), flush=True)"
    text = script.read_text().replace("X, Y = get_batch('train') # fetch the very first batch", noted)
    if imports:
        text = f"import synergy_launch.auto\n{text}".replace(
            seed, f"{seed} + ddp_world_size * synergy_launch.auto.steps_done()"
        )
    script.write_text(text)
    data = tmp_path / "data" / "random"
    data.mkdir(parents=True)
    for name in ("train.bin", "val.bin"):
        numpy.random.default_rng(0).integers(0, 65, 20_000, dtype=numpy.uint16).tofile(data / name)
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))
    shutil.copy(tmp_path / "nanoGPT" / "configurator.py", tmp_path)
    output = tmp_path / "out-gpt"
    argv = [
        str(script), "--dataset=random", f"--out_dir={output}", "--backend=gloo", "--device=cpu", "--compile=False", "--dtype=float32",
        "--gradient_accumulation_steps=4", "--batch_size=4", "--block_size=16", "--n_layer=1", "--n_head=2", "--n_embd=16",
        "--eval_interval=5", "--eval_iters=1", "--max_iters=24", "--lr_decay_iters=24", "--warmup_iters=2", "--learning_rate=1e-2",
    ]  # fmt: skip
    more: dict[str, Any] = {"checkpoint": str(output), "loop": "global:4,resume:--init_from=resume", "asked": 2}

    def iterations() -> list[int]:
        shown = (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""
        return [int(n) for n in re.findall(r"^iter (\d+): loss", shown, re.MULTILINE)]

    first = until_request(tmp_path, argv, 2, 0, lambda: len(iterations()) >= 2, **more)
    second = until_request(tmp_path, argv, 1, 1, lambda: len(iterations()) >= first["step"] + 2, **more)
    with launched(tmp_path, argv, 4, 2, **more) as process:
        code = process.wait(timeout=240)
    text = (tmp_path / "out").read_text()
    # torch 2.13's gloo ends one of five such runs so, under plain torchrun too
    assert code == 0 or (code == 134 and "terminate called without an active exception" in text), text[-3000:]
    # the iteration after a checkpoint has computed its gradients when the job ends, and is not printed
    assert iterations() == list(range(25)), iterations()
    assert first["step"] % 5 == second["step"] % 5 == 0 < first["step"] < second["step"] < 25
    assert first["plan"]["global_batch"] == second["plan"]["global_batch"] == 4
    assert text.count("tokens per iteration will be: 256") == 2 + 1 + 4
    batches = re.findall(r"first batch 0 (\d+)", text)
    assert len(batches) == 3 and len(set(batches)) == (3 if imports else 1)
    assert (
        imports
        or f"if it starts there again, the {4 * second['step']} parts of its batch of 4 trained so far are seen twice"
        in text
    )


@needs("examples")
def test_ddp_tutorial(tmp_path: Path) -> None:
    """32 examples on each of 2 processes, then 64 on 1, then 16 on 4; the script itself repeats the epoch that it saved last."""
    cpu = [
        ('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', "pass"), ('"nccl"', '"gloo"'), (".to(self.gpu_id)", '.to("cpu")'),
        (", device_ids=[self.gpu_id]", ""), ('f"cuda:{self.gpu_id}"', '"cpu"'), ("pin_memory=True", "pin_memory=False"),
    ]  # fmt: skip
    on_cpu(SCRIPTS / "examples" / "distributed" / "ddp-tutorial-series", tmp_path / "ddp", *cpu)
    argv = [str(tmp_path / "ddp" / "multigpu_torchrun.py"), "40", "2"]
    more: dict[str, Any] = {"checkpoint": str(tmp_path), "loop": "gpu:--batch_size", "asked": 2}

    def epochs() -> list[tuple[int, int, int]]:
        shown = (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""
        found = re.findall(r"\[GPU0\] Epoch (\d+) \| Batchsize: (\d+) \| Steps: (\d+)", shown)
        return [(int(epoch), int(batch), int(steps)) for epoch, batch, steps in found]

    argv += ["--batch_size", "32"]
    first = until_request(tmp_path, argv, 2, 0, lambda: len(epochs()) >= 2, **more)
    second = until_request(tmp_path, argv, 1, 1, lambda: len(epochs()) >= 40 or epochs()[-1][1] == 64, **more)
    run_to_end(tmp_path, argv, 4, 2, **more)
    by_size = {size: [epoch for epoch, batch, _ in epochs() if batch == size] for size in (32, 64, 16)}
    assert {steps for *_, steps in epochs()} == {32}  # 2048 examples in batches of 64
    assert first["step"] % 32 == second["step"] % 32 == 0 and second["step"] > first["step"]
    saved = first["step"] // 32 - 1  # the epoch that the script saved last
    assert by_size[64][0] == saved and by_size[16][-1] == 39, by_size
