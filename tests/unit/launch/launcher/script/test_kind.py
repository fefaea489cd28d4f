"""Which training loop a script has, by its text and that of the modules beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from synergy_launch.launcher.script.detection import detect
from synergy_launch.launcher.script.kind import (
    ACCELERATE,
    DEEPSPEED,
    LIGHTNING,
    MEGATRON,
    TORCH,
    TORCHTITAN,
    TRAINER,
    UNKNOWN,
    classify_script,
    heavy_imports,
    is_hooked,
)


@pytest.mark.parametrize(
    ("files", "trainer", "where"),
    [
        ({"t.py": "import os, torch\n"}, TORCH, "t.py"),
        ({"t.py": "from transformers import Trainer\nTrainer(model).train()\n"}, TRAINER, "t.py"),
        ({"t.py": "from trl import SFTTrainer\n"}, TRAINER, "t.py"),
        ({"t.py": "from transformers import AutoModel\nimport torch\n"}, TORCH, "t.py"),  # a loop of its own
        ({"t.py": "import transformers, accelerate, torch\n"}, ACCELERATE, "t.py"),
        ({"t.py": "import model\n", "model.py": "import torch.nn as nn\n"}, TORCH, "model.py"),
        ({"t.py": "from src.loop import run\n", "src/loop.py": "import pytorch_lightning as pl\n"}, LIGHTNING, "src/loop.py"),
        ({"t.py": "from src import run\n", "src/__init__.py": "from .a import b\n", "src/a.py": "import deepspeed"}, DEEPSPEED, "src/a.py"),
        ({"t.py": "import torchtitan.train\nimport torch\n"}, TORCHTITAN, "t.py"),
        ({"t.py": "# import torch\nprint('import torch')\n"}, UNKNOWN, "t.py"),
        ({}, UNKNOWN, ""),
    ],
)  # fmt: skip
def test_the_imports_say_it(tmp_path: Path, files: dict[str, str], trainer: str, where: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    kind = classify_script(str(tmp_path / "t.py"))
    assert (kind.trainer, kind.has_adapter) == (trainer, False)
    assert kind.where == (str(tmp_path / where) if where else "")


def test_megatron_is_known_by_its_arguments() -> None:
    assert classify_script("pretrain_gpt.py", ("--num-layers", "2", "--micro-batch-size", "1")).trainer == MEGATRON
    assert classify_script("x.py", (), "megatron").trainer == MEGATRON


def test_what_is_hooked_from_outside(tmp_path: Path) -> None:
    def script(text: str) -> list[str]:
        (tmp_path / "t.py").write_text(text)
        return [str(tmp_path / "t.py")]

    assert is_hooked(script("from trl import SFTTrainer\n"), "auto", "")
    assert is_hooked(script("import lightning\n"), "auto", "")
    assert not is_hooked(script("import torch\n"), "auto", "")
    assert is_hooked(script("import torch\n"), "auto", "gpu:--batch_size")
    assert not is_hooked(script("import torch\nimport synergy_launch.auto\n"), "auto", "gpu:--batch_size")
    assert not is_hooked(
        script("from trl import SFTTrainer\nfrom synergy_launch.huggingface import SynergyCallback\n"), "auto", ""
    )
    assert not is_hooked(["pretrain_gpt.py", "--num-layers", "2", "--micro-batch-size", "1"], "auto", "global:4")


def test_imports_that_may_come_before_the_script(tmp_path: Path) -> None:
    def imports(text: str, *arguments: str) -> tuple[str, ...]:
        (tmp_path / "t.py").write_text(text)
        return heavy_imports(str(tmp_path / "t.py"), arguments)

    plain = ("numpy", "torch", "torch.distributed.run")
    assert imports("import torch\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\n# OMP_NUM_THREADS\n") == plain
    assert imports("from megatron.core import mpu\n") == (*plain, "megatron.core")
    assert imports("import torch\n", "--num-layers", "2", "--micro-batch-size", "1") == (*plain, "megatron.core")
    ours = "synergy_launch.pytorch.training"
    assert heavy_imports("module:synergy_launch.examples.gpt") == (*plain, "megatron.core", ours)
    assert heavy_imports("module:no_such_module") == plain
    for line in (
        "os.environ['OMP_NUM_THREADS'] = '8'",
        'os.environ.setdefault("MKL_NUM_THREADS", "8")',
        "os.putenv('TORCH_LOGS', 'dynamo')",
    ):
        assert imports(f"import os\n{line}\nimport torch\n") == (), "torch reads it as it is imported"
    (tmp_path / "beside.py").write_text("import os\nos.environ['KMP_AFFINITY'] = 'x'\n")
    assert imports("import beside\nimport torch\n") == ()


DDP = "import torch\ntorch.distributed.init_process_group()\n"


@pytest.mark.parametrize(
    ("text", "obstacle"),
    [
        ("import torch\ntorch.save(x, p)\ntorch.load(p)\n", "it trains on one GPU (no init_process_group)"),
        (f"{DDP}loss.backward()\n", "it saves no checkpoint"),
        (f"{DDP}torch.save(x, p)\n", "it never loads what it saves"),
        (f"{DDP}mp.spawn(main)\n", "it starts its processes itself (mp.spawn)"),
        (f"{DDP}mp.spawn(main) if spawn else main(os.environ['RANK'])\ntorch.save(x, p)\ntorch.load(p)\n", ""),
        (f"{DDP}save_checkpoint(x)\nresume_checkpoint(x)\n", ""),
        (f"from synergy_launch import SynergyTask\n{DDP}", ""),
    ],
)
def test_why_a_loop_can_not_be_resized_at_its_own_checkpoints(tmp_path: Path, text: str, obstacle: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert classify_script(str(script)).obstacle == obstacle
    detected = detect((str(script),), gpus=2)
    assert not obstacle or (
        detected.can_change == f"nothing: {obstacle}, so the job keeps its size" and "loop=" not in detected.to_do
    )


def test_a_loops_arguments_suggest_its_directive(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{DDP}p.add_argument('-b', '--batch-size')\np.add_argument('--resume')\ntorch.save(x, p)\ntorch.load(p)\n"
    )
    found = detect((str(script),), gpus=2).to_do
    assert found.startswith("loop=gpu:--batch-size,resume:--resume if that is the batch of one GPU, or SynergyTask")
