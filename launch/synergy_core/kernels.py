"""The kernels of a run, as its launcher or agent knows them. Needs only the standard library, so that a compute node can load it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Which parts of a step run in fused kernels; null: not known."""

    #: layers by Transformer Engine
    transformer_engine: bool | None = None
    #: attention that stores no scores
    attention: bool | None = None
    #: where scores are stored: their scale, mask and softmax in one kernel, or all in half precision
    softmax: bool | None = None
    #: LayerNorm or RMSNorm
    norm: bool | None = None
    #: bias and activation function, dropout and residual
    pointwise: bool | None = None
    #: gradients are added up by the GEMMs that compute them
    accumulation: bool | None = None
    #: Adam
    optimizer: bool | None = None
    #: tensor-parallel traffic behind GEMMs (Megatron-LM's --tp-comm-overlap)
    tp_overlap: bool | None = None
    #: the model is compiled by torch.compile
    compiled: bool | None = None
    #: GEMMs in fp8
    fp8: bool | None = None


UNKNOWN = Kernels()
#: torch (major, minor) that has a kernel for RMSNorm (pytorch/pytorch#153666); LayerNorm's is older than Megatron
TORCH_RMS_NORM = (2, 9)
#: Megatron-LM's `--transformer-impl local` where Apex is not installed either
LOCAL = Kernels(
    transformer_engine=False,
    attention=False,
    softmax=True,
    norm=True,
    pointwise=True,
    accumulation=False,
    optimizer=False,
)
_FUSED = {
    "attention": "attention",
    "softmax": "softmax",
    "norm": "norms",
    "pointwise": "activations",
    "accumulation": "gradient sums",
    "optimizer": "optimizer",
}
_OTHERS = {
    "transformer_engine": "Transformer Engine",
    "compiled": "torch.compile",
    "fp8": "fp8",
    "tp_overlap": "overlapped tp",
}


def kernels_message(kernels: Kernels, source: str = "detected") -> str:
    """Return which kernels are known from `source`, and which the model assumes, such as `detected: unfused attention; assumed: ...`."""
    known_texts = [
        what if getattr(kernels, name) else f"no {what}"
        for name, what in _OTHERS.items()
        if _is_mentioned(kernels, name)
    ]
    for value, word in ((True, "fused"), (False, "unfused")):
        if names := [
            what for name, what in _FUSED.items() if getattr(kernels, name) is value and _matters(kernels, name)
        ]:
            known_texts.append(f"{word} {', '.join(names)}")
    assumed_texts = [
        what for name, what in _FUSED.items() if getattr(kernels, name) is None and _matters(kernels, name)
    ]
    texts = ((f"{source}: ", "; ".join(known_texts)), ("assumed: fused ", ", ".join(assumed_texts)))
    return "; ".join(start + text for start, text in texts if text)


def _is_mentioned(kernels: Kernels, name: str) -> bool:
    """Return whether a kernel of `_OTHERS` is worth a word: all that are there, and Transformer Engine where it is known not to be."""
    value = getattr(kernels, name)
    return value is True or (value is False and name == "transformer_engine")


def _matters(kernels: Kernels, name: str) -> bool:
    """Return whether it matters if this part is fused: the softmax only where attention is known not to be."""
    return name != "softmax" or kernels.attention is False


def is_changed(before: Kernels, now: Kernels) -> bool:
    """Return whether a part that both know is done otherwise `now` than `before`."""
    pairs = ((getattr(before, f.name), getattr(now, f.name)) for f in fields(Kernels))
    return any(was is not None and is_now is not None and was != is_now for was, is_now in pairs)
