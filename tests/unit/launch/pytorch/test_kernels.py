"""Which kernels a PyTorch model and its optimizer show."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from synergy_core.kernels import Kernels
from synergy_launch.pytorch.kernels import detect_kernels
from torch import nn


class LlamaRMSNorm(nn.Module):
    """A norm written in a script, of several kernels."""


def made(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), *modules)


def test_a_plain_model_tells_little() -> None:
    assert detect_kernels(made()) == Kernels(transformer_engine=False, compiled=False)


@pytest.mark.parametrize(("norm", "fused"), [(nn.LayerNorm(2), True), (LlamaRMSNorm(), False)])
def test_norms_are_known_by_their_class(norm: nn.Module, fused: bool) -> None:
    assert detect_kernels(made(norm)).norm is fused
    assert detect_kernels(made(norm, LlamaRMSNorm())).norm is False
    assert detect_kernels(made(nn.BatchNorm1d(2))).norm is None


def test_modules_of_libraries_are_known_by_their_package() -> None:
    engine = type("TransformerLayer", (nn.Module,), {"__module__": "transformer_engine.pytorch.transformer"})
    norm = type("LigerRMSNorm", (nn.Module,), {"__module__": "liger_kernel.transformers.rms_norm"})
    found = detect_kernels(made(engine(), norm()))
    assert found.transformer_engine and found.attention and found.norm
    other = type("Mine", (nn.Module,), {"__module__": "transformer_engineering"})
    assert detect_kernels(made(other())).transformer_engine is False


def test_adam_is_fused_where_it_says_so() -> None:
    model = made()
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        assert detect_kernels(model, kind(model.parameters(), fused=True)).optimizer is True
        assert detect_kernels(model, kind(model.parameters())).optimizer is False
    wrapped = SimpleNamespace(optimizer=torch.optim.AdamW(model.parameters(), fused=True))
    assert detect_kernels(model, wrapped).optimizer is True
    assert detect_kernels(model, torch.optim.SGD(model.parameters())).optimizer is None


@pytest.mark.parametrize(
    ("name", "fused"),
    [("sdpa", True), ("flash_attention_2", True), ("eager", False), ("another", None), (None, None), (7, None)],
)
def test_a_hugging_face_model_says_its_attention(name: object, fused: bool | None) -> None:
    model = made()
    model.config = SimpleNamespace(_attn_implementation=name)  # type: ignore[assignment]
    assert detect_kernels(model).attention is fused


def test_a_compiled_model_is_known() -> None:
    whole, inside = made(), made(nn.Linear(2, 2))
    inside[1].compile(backend="eager")  # type: ignore[index]
    assert detect_kernels(torch.compile(whole, backend="eager")).compiled is True  # type: ignore[arg-type]
    assert detect_kernels(inside).compiled is True


def test_a_model_whose_attributes_fail_tells_nothing_and_trains() -> None:
    class Lazy(torch.nn.Module):
        @property
        def config(self) -> object:
            raise ValueError("not loaded yet")

    assert detect_kernels(Lazy()) == Kernels()
