"""Megatron-LM's pretrain_gpt.py on a machine without a GPU: put this folder and the checkout on PYTHONPATH.

Acts in training processes and those they start (RANK is set); the script itself stays as it is.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any


def _stand_in_for_triton() -> None:
    """Megatron-LM imports triton for kernels of inference; decorating them is all that happens here."""
    from torch.utils._triton import has_triton_package

    has_triton_package()  # torch remembers that there is none

    def jit(function: Any = None, **_options: Any) -> Any:
        return (lambda f: f) if function is None else function

    language = types.ModuleType("triton.language")
    language.constexpr = lambda value: value  # type: ignore[attr-defined]
    language.__getattr__ = lambda name: None  # type: ignore[method-assign]  # types in annotations
    triton = types.ModuleType("triton")
    triton.jit, triton.language, triton.__version__ = jit, language, "0"  # type: ignore[attr-defined]
    sys.modules.update({"triton": triton, "triton.language": language})


def _pretend() -> None:
    import torch
    from synergy_launch.megatron_core import cpu_backend

    if cpu_backend.install() is None:
        return  # there is a real one
    properties = types.SimpleNamespace(
        major=9, minor=0, name="CPU", total_memory=1 << 34, multi_processor_count=1, warp_size=32
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 8,  # 0 would skip Megatron-LM's initialize_model_parallel
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: "CPU",
        "max_memory_reserved": lambda device=None: 0,
        "memory_stats": lambda device=None: {},
        "reset_peak_memory_stats": lambda device=None: None,
        "device_memory_used": lambda device=None: 0,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)

    from megatron.legacy import fused_kernels

    fused_kernels.load = lambda args: None
    _built_elsewhere()
    _torch_adam()


def _torch_adam() -> None:
    """Its distributed optimizer loads no state into torch's Adam: synergy_launch.megatron_core.optimizer_state tells why."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from synergy_launch.megatron_core import optimizer_state as repairs

    described, load = DistributedOptimizer.sharded_state_dict, DistributedOptimizer.load_state_dict

    def sharded_state_dict(self: Any, model: Any, is_loading: bool = False, metadata: Any = None) -> Any:
        if is_loading:
            repairs._make_state(self)
        return described(self, model, is_loading, metadata=metadata)

    def load_state_dict(self: Any, state: Any) -> None:
        repairs._keep_step(self)
        load(self, state)
        repairs._own_steps(self)

    DistributedOptimizer.sharded_state_dict = sharded_state_dict
    DistributedOptimizer.load_state_dict = load_state_dict


def _built_elsewhere() -> None:
    """The data sets' C++ helpers: those of the installed megatron-core, in place of what the checkout would build."""
    from megatron.core.datasets import utils

    for folder in sys.path:
        for built in Path(folder, "megatron/core/datasets").glob("helpers_cpp.*.so"):
            spec = importlib.util.spec_from_file_location("megatron.core.datasets.helpers_cpp", built)
            assert spec is not None and spec.loader is not None
            helpers = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(helpers)
            sys.modules[spec.name] = helpers
            utils.compile_helpers = lambda: None
            return


if any("multiprocessing" in word for word in sys.orig_argv):
    # the queue that a checkpoint's writers report to: it needs nothing of the training script, whose import takes 9 s
    import multiprocessing.spawn

    multiprocessing.spawn._fixup_main_from_path = lambda path: None  # type: ignore[attr-defined]
elif "RANK" in os.environ:
    if importlib.util.find_spec("triton") is None:
        _stand_in_for_triton()
    _pretend()
