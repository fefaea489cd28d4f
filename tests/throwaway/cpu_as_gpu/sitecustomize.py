"""Training scripts that name CUDA, unchanged on a machine without a GPU: put this folder on PYTHONPATH.

In training processes (RANK is set) device "cuda" means the CPU and NCCL means gloo. No arithmetic changes. CPU_AS_GPU=cuda: the CPU is
eight GPUs also to scripts that count them; =cpu: eight devices of torch.accelerator.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any


def _is_cuda(device: Any) -> bool:
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    named = isinstance(device, str) or type(device).__name__ == "device"
    return named and str(device).startswith(("cuda", "cpu:"))


def _pretend() -> None:
    import torch
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        """A context in which tensors never leave the CPU."""

        def __torch_function__(
            self, func: Callable[..., Any], kinds: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if func is torch.Tensor.cuda:
                return args[0]
            if func is torch.Tensor.pin_memory:
                return args[0]
            if func is torch.Tensor.to:
                args = (args[0], *("cpu" if _is_cuda(arg) else arg for arg in args[1:]))
            if "device" in kwargs and _is_cuda(kwargs["device"]):
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)

    Mode().__enter__()  # type: ignore[no-untyped-call]
    modules: Any = torch.nn.Module
    to = modules.to
    modules.to = lambda self, *args, **kwargs: to(
        self, *("cpu" if _is_cuda(a) else a for a in args), **{k: "cpu" if k == "device" and _is_cuda(v) else v for k, v in kwargs.items()}
    )  # fmt: skip
    modules.cuda = lambda self, device=None: self
    load = torch.load
    torch.load = functools.wraps(load)(lambda *args, **kwargs: load(*args, **{**kwargs, "map_location": "cpu"}))
    cuda: Any = torch.cuda
    for name in (
        "set_device",
        "synchronize",
        "empty_cache",
        "manual_seed_all",
        "manual_seed",
        "reset_peak_memory_stats",
    ):
        setattr(cuda, name, lambda *args, **kwargs: None)
    for name in ("max_memory_allocated", "memory_allocated", "max_memory_reserved", "memory_reserved"):
        setattr(cuda, name, lambda *args, **kwargs: 0)
    cuda.current_device = lambda: 0
    if kind := os.environ.get("CPU_AS_GPU"):
        accelerator: Any = torch.accelerator
        if kind == "cuda":
            cuda.is_available, cuda.device_count = (lambda: True), (lambda: 8)
            cuda.is_bf16_supported = lambda *_, **__: True  # autocast asks
        accelerator.is_available, accelerator.device_count = (lambda: True), (lambda: 8)
        accelerator.current_accelerator = lambda *_, **__: torch.device(kind)
        accelerator.set_device_index = lambda *_: None
        accelerator.current_device_index = lambda: 0
        accelerator.current_stream = lambda *_: types.SimpleNamespace(is_capturing=lambda: False)
        accelerator.device_index = lambda *_: contextlib.nullcontext()
    _without_nccl()


def _without_nccl() -> None:
    """NCCL is gloo, meshes are the CPU's, and DistributedDataParallel gets no device numbers."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    begin = dist.init_process_group

    def init_process_group(*_: Any, **kwargs: Any) -> Any:
        kept = {name: kwargs[name] for name in ("init_method", "timeout", "rank", "world_size") if name in kwargs}
        return begin("gloo", **kept)

    places: list[Any] = [dist, dist.distributed_c10d]
    for place in places:
        place.init_process_group = init_process_group
    init: Any = DistributedDataParallel.__init__

    def construct(self: Any, module: Any, *_: Any, **kwargs: Any) -> None:
        init(self, module, **{k: v for k, v in kwargs.items() if k not in ("device_ids", "output_device")})

    parallel: Any = DistributedDataParallel
    parallel.__init__ = construct
    import torch.distributed.device_mesh as meshes

    mesh = meshes.init_device_mesh
    places = [meshes, dist]
    for place in places:
        place.init_device_mesh = lambda device, *args, **kwargs: mesh("cpu", *args, **kwargs)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)  # tensors that are shared out have no rule for the CPU's
    loader: Any = torch.utils.data.DataLoader
    make = loader.__init__
    loader.__init__ = lambda self, *args, **kwargs: make(self, *args, **{**kwargs, "pin_memory": False})


if "RANK" in os.environ and not any("multiprocessing" in word for word in sys.orig_argv):
    _pretend()
