"""Bytes that unfused operators move, for the constants of model/hardware.py: `python -m tests.benchmarks.kernel_traffic`.

A step of megatron-core's local layers, as Synergy's adapter builds them (no Apex, no Transformer Engine, torch's AdamW, softmax in fp32),
runs on this CPU. Each operator counts what it reads and writes; GEMMs count only for the scores. Differences between steps of 1 and 2
layers and sequences leave a layer's bytes a token; other widths tell hidden, MLP and scores apart. Beside each count is what the model
has for fused kernels (layer_time.py, step_time.py), forward and backward. A GPU's element-wise kernels are limited by these bytes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
import torch
from synergy_core.records import ModelSpec, Plan
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_GEMMS = frozenset(("mm", "addmm", "bmm", "baddbmm"))
_NEW = frozenset(
    (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty_strided",
        "detach",
        "_reshape_alias",
        "_unsafe_view",
        "is_same_size",
    )
)
_ONLY_WRITES = frozenset(("copy_", "zero_", "fill_"))
#: bytes a score: written by one GEMM and read by one forward, one and three backward, 2 bytes each
_SCORES_IN_GEMMS = 12.0
_HIDDEN, _HEADS, _SEQ, _VOCAB = 64, 4, 64, 128
_MLP = 4 * _HIDDEN
_MODEL_HIDDEN, _MODEL_NORMS, _MODEL_SCORES, _MODEL_OPTIMIZER = 3 * 32.0, 3 * 8.0, 30.0, 30.0  # bytes
_OF_ACCUMULATION = 10.0  # bytes a parameter: an addition of a bf16 gradient to an fp32 sum


class _Traffic(TorchDispatchMode):
    """Bytes by operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and name not in _NEW | _GEMMS:
            moved = [_size(t) for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)]
            self.bytes[name] += sum(moved) - (_size(args[0]) if name in _ONLY_WRITES else 0)
        return result


def _size(tensor: torch.Tensor) -> int:
    """Return a tensor's bytes; a dimension that is repeated counts once."""
    elements = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= length if stride else 1
    return elements


def _layer(gated: bool, mlp: int = _MLP, heads: int = _HEADS) -> tuple[float, float]:
    """Return the bytes of one layer: (a token, all that no token changes)."""
    steps = {(layers, micro): _step(layers, micro, mlp, heads, gated) for layers in (1, 2) for micro in (1, 2)}
    one, two = (steps[2, micro] - steps[1, micro] for micro in (1, 2))
    return (two - one) / _SEQ, 2 * one - two


def _step(layers: int, micro: int, mlp: int, heads: int, gated: bool) -> int:
    from megatron.core import parallel_state
    from synergy_launch.megatron_core.training import MegatronRun, start_process_group

    ranks = start_process_group()
    parallel_state.destroy_model_parallel()
    spec = ModelSpec("", layers, _HIDDEN, heads, heads, mlp, _VOCAB, _SEQ, gated=gated)
    tokens = torch.randint(0, _VOCAB, (_SEQ + 1,), device="cpu").tolist()
    plan = Plan(micro_batch=micro, global_batch=micro)
    run = MegatronRun(spec, plan, ranks, lambda _: tokens, bf16=True, noise=False)
    run.train_step()  # makes the optimizer's state
    with _Traffic() as traffic:
        run.train_step()
    return sum(traffic.bytes.values())


def rows() -> Iterator[tuple[str, float, float]]:
    """Yield (what, counted bytes, the model's for fused kernels)."""
    for gated in (False, True):
        norm = "RMSNorm" if gated else "LayerNorm"
        whole, constant = _layer(gated)
        score = (_layer(gated, heads=2 * _HEADS)[0] - whole) / (_HEADS * _SEQ)
        wide = (_layer(gated, mlp=2 * _MLP)[0] - whole) / _MLP
        hidden = (whole - score * _HEADS * _SEQ - wide * _MLP) / _HIDDEN
        norms = _norms(gated)
        other = hidden - norms + wide * _MLP / _HIDDEN
        model = _MODEL_HIDDEN - _MODEL_NORMS + 3 * 4 * (1 + gated) * _MLP / _HIDDEN
        yield f"{norm}: two norms, a hidden element", norms, _MODEL_NORMS
        yield f"{norm}: other element-wise work, a hidden element", other, model
        yield f"{norm}: a score", score + _SCORES_IN_GEMMS, _MODEL_SCORES
        parameters = 4 * _HIDDEN**2 + (3 if gated else 2) * _HIDDEN * _MLP
        yield f"{norm}: optimizer, a parameter", constant / parameters - _OF_ACCUMULATION, _MODEL_OPTIMIZER


def _norms(gated: bool) -> float:
    """Return the bytes of two norms forward and backward for each hidden element."""
    kind: Callable[..., torch.nn.Module] = torch.nn.RMSNorm if gated else torch.nn.LayerNorm
    norm = kind(_HIDDEN, dtype=torch.bfloat16, device="cpu")
    x = torch.randn(64 * _SEQ, _HIDDEN, dtype=torch.bfloat16, device="cpu", requires_grad=True)
    gradient = torch.ones_like(x)
    with _Traffic() as traffic:
        norm(x).backward(gradient)
    return float(2 * sum(traffic.bytes.values()) / x.numel())


@click.command()
def main() -> None:
    """Count the bytes that unfused operators of megatron-core's local layers move."""
    warnings.simplefilter("ignore")
    click.echo(f"{'':50}{'counted':>9}{'model':>9}{'ratio':>7}")
    for what, counted, model in rows():
        click.echo(f"{what:50}{counted:9.1f}{model:9.1f}{counted / model:7.2f}")


if __name__ == "__main__":
    main()
