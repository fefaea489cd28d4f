"""A Megatron-LM script run as it is, with its gradient all-reduces gated.

    python -m synergy_launch.links.gated_script SCRIPT ...      (or -m MODULE ...)

The launcher puts it before the script where the job has a link arbiter to ask and spans nodes. As soon as Megatron's
DistributedDataParallel is imported, each one that is made is gated (hooks.py). An error there turns gating off; the script runs on.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "megatron.core.distributed.distributed_data_parallel"
FSDP_MODULE = "megatron.core.distributed.torch_fully_sharded_data_parallel"


class ImportWatch(importlib.abc.MetaPathFinder):
    """A finder that calls `then` with a module right after its first import, and `complain` where that fails.

    It finds no modules itself.
    """

    def __init__(
        self, name: str, then: Callable[[ModuleType], None], complain: Callable[[Exception], None] | None = None
    ) -> None:
        self._name, self._then, self._complain = name, then, complain or _say

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run, then, complain = loader.exec_module, self._then, self._complain

            def run_and_tell(module: ModuleType) -> None:
                run(module)
                try:
                    then(module)
                except Exception as error:  # the import itself went well
                    complain(error)

            loader.exec_module = run_and_tell
        return spec


def install() -> None:
    """Gate every Megatron DDP, and what it shards by FSDP2, that this process makes from now on."""
    for name, gate_class in ((MODULE, _gate_class), (FSDP_MODULE, _gate_fsdp_class)):
        if name in sys.modules:
            gate_class(sys.modules[name])
        else:
            sys.meta_path.insert(0, ImportWatch(name, gate_class))


def _gate_fsdp_class(module: ModuleType) -> None:
    fsdp_class: Any = module.TorchFullyShardedDataParallel

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            from synergy_launch.links.fsdp_gate import gate_fsdp

            gate_fsdp(self.module)
        except Exception as error:  # as below
            _say(error)

    original, fsdp_class.__init__ = fsdp_class.__init__, init


def _gate_class(module: ModuleType) -> None:
    ddp_class: Any = module.DistributedDataParallel
    gates: list[Any] = []  # one of this process, for all its chunks
    failed = False

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal failed
        original(self, *args, **kwargs)
        if failed:
            return
        try:
            _gate(self, gates)
        except Exception as error:  # this Megatron may differ inside from the known ones
            failed = True
            _say(error)

    original, ddp_class.__init__ = ddp_class.__init__, init


def _gate(chunk: Any, gates: list[Any]) -> None:
    from megatron.core import parallel_state

    from synergy_launch.links.hooks import gate_megatron

    if gates:
        if gates[0] is not None:
            gates[0].add(chunk)
        return
    gates.append(None)
    copies = int(parallel_state.get_tensor_model_parallel_world_size())
    gates[0] = gate_megatron([chunk], chunk.dp_cp_group, copies)


def say(what: str, error: Exception, limit: int = 300) -> None:
    """Print one line, of at most `limit` characters, on what a fault in a hook ends."""
    words = f"synergy: {what}: {type(error).__name__}: {error}"
    print(" ".join(words.split())[:limit], file=sys.stderr, flush=True)


def _say(error: Exception) -> None:
    say("all-reduces are not gated", error, limit=200)


def main() -> None:
    """Install the gates, and run the script."""
    install()
    run_script()


def run_script() -> None:
    """Run what the rest of the command line names, as python itself runs a script or a module."""
    sys.argv = sys.argv[1:]
    is_module = sys.argv[0] == "-m"
    if not sys.flags.safe_path:  # else python has put nothing there
        sys.path[0] = str(Path.cwd() if is_module else Path(sys.argv[0]).resolve().parent)
    if is_module:
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
