"""Megatron-core on machines without a GPU: what it expects of torch.cuda, provided on the CPU.

No arithmetic, schedule or collective is replaced: only where tensors live, and names that need a CUDA driver. Used
where `torch.cuda.is_available()` is False and nowhere else; each interception is counted by name.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_installed: CpuInPlaceOfCuda | None = None  # one per process: it changes names of the torch module


class CpuInPlaceOfCuda(TorchFunctionMode):
    """A context in which device "cuda" means the CPU. `intercepted` counts by name."""

    def __init__(self) -> None:
        super().__init__()
        self.intercepted: Counter[str] = Counter()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            self.intercepted["Tensor.cuda"] += 1
            return args[0]
        if func is torch.Tensor.to and any(_is_cuda(arg) for arg in args[1:]):
            self.intercepted["Tensor.to"] += 1
            args = (args[0], *(torch.device("cpu") if _is_cuda(arg) else arg for arg in args[1:]))
        if _is_cuda(kwargs.get("device")):
            self.intercepted[f"{getattr(func, '__name__', func)}(device=)"] += 1
            kwargs["device"] = torch.device("cpu")
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # Megatron sorts gradients into buckets by these names, and asserts that they are CUDA's.
            self.intercepted["Tensor.type"] += 1
            return str(func(*args)).replace("torch.", "torch.cuda.", 1)
        return func(*args, **kwargs)


def install() -> CpuInPlaceOfCuda | None:
    """Make megatron-core importable and runnable on the CPU; call it before its first import. Return None where there is a GPU.

    Calling it again returns the same object.
    """
    global _installed
    if torch.cuda.is_available():
        return None
    if _installed is None:
        mode = CpuInPlaceOfCuda()
        _replace_names(mode.intercepted)
        mode.__enter__()  # type: ignore[no-untyped-call]
        _installed = mode
    return _installed


def _replace_names(intercepted: Counter[str]) -> None:
    def count_calls(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            intercepted[name] += 1
            return answer(*args, **kwargs)

        return call

    nothing = contextlib.nullcontext
    answers: dict[str, Callable[..., Any]] = {
        "current_device": lambda: torch.device("cpu"),
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "Stream": lambda *args, **kwargs: _Stream(),
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
        "stream": lambda stream=None: nothing(),
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, count_calls(f"torch.cuda.{name}", answer))

    # Compiling small fused functions takes longer than they do on a CPU, and importing the compiler is half of the
    # import time (6.3 s against 2.9 s): the functions run as they are written.
    def compile_nothing(model: Any = None, **kwargs: Any) -> Any:
        intercepted["torch.compile"] += 1
        return (lambda function: function) if model is None else model

    setattr(torch, "compile", compile_nothing)  # noqa: B010 (mypy has its own mind about overloads)

    import megatron.core.tensor_parallel.random as megatron_random

    megatron_random._get_cuda_rng_state = count_calls(
        "_get_cuda_rng_state", lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    )
    megatron_random._set_cuda_rng_state = count_calls(
        "_set_cuda_rng_state", lambda state, device=-1, graph_safe=False: torch.set_rng_state(state)
    )


class _Stream:
    """A CUDA stream's methods, for a device that runs everything in order."""

    def wait_stream(self, other: object) -> None:
        return None

    def wait_event(self, event: object) -> None:
        return None

    def record_event(self, event: object = None) -> None:
        return None

    def synchronize(self) -> None:
        return None


def _is_cuda(device: object) -> bool:
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, torch.device) and device.type == "cuda"
