"""Which training loop a script has, by its text and that of the modules beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
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
