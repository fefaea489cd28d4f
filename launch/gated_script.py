"""Runs a Megatron-LM script as it is, with its gradient all-reduces gated: `python -m launch.gated_script SCRIPT ...` (or `-m MODULE ...`).

The launcher puts it before the script where the job has a link arbiter to ask and spans nodes. As soon as Megatron's
DistributedDataParallel is imported, each one that is made is gated (launch.link_hooks). What goes wrong there costs the gating only.

It may be run by its path, too, as the launcher does: `-m launch...` would find a `launch.py` of the script's own. To what runs from
here Synergy's `launch` is as if it had not been imported: `import launch` finds the script's, where it has one.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "megatron.core.distributed.distributed_data_parallel"


class Watch(importlib.abc.MetaPathFinder):
    """Calls `then` with a module right after its first import. It finds nothing itself."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run, then = loader.exec_module, self._then

            def run_and_tell(module: ModuleType) -> None:
                run(module)
                try:
                    then(module)
                except Exception as error:  # the import itself went well
                    _say(error)

            loader.exec_module = run_and_tell
        return spec


class Ours:
    """Synergy's own modules, kept from the script: in sys.modules only while Synergy needs them."""

    def __init__(self) -> None:
        self._root = str(Path(__file__).resolve().parent.parent)
        self._kept = _take_out()  # what `python -m` has imported

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Within, `launch` is Synergy's; afterwards it is the script's again, or nobody's."""
        theirs = _take_out()
        sys.modules.update(self._kept)
        sys.path.insert(0, self._root)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                sys.path.remove(self._root)
            self._kept = _take_out()
            sys.modules.update(theirs)


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == "launch" or name.startswith("launch.")]
    return {name: sys.modules.pop(name) for name in names}


def install(shown: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext) -> None:
    """Gates every Megatron DDP that this process makes from now on. `shown`: around each import of Synergy's."""

    def then(module: ModuleType) -> None:
        _gate_class(module, shown)

    if MODULE in sys.modules:
        then(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, Watch(MODULE, then))


def _gate_class(module: ModuleType, shown: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    made: Any = module.DistributedDataParallel
    gates: list[Any] = []  # one of this process, for all its chunks
    failed = False

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal failed
        original(self, *args, **kwargs)
        if failed:
            return
        try:
            with shown():
                _gate(self, gates)
        except Exception as error:  # Megatron's inside may be another one than was known here
            failed = True
            _say(error)

    original, made.__init__ = made.__init__, init


def _gate(chunk: Any, gates: list[Any]) -> None:
    from megatron.core import parallel_state

    from launch.link_hooks import gate_megatron

    if gates:
        if gates[0] is not None:
            gates[0].add(chunk)
        return
    gates.append(None)
    copies = int(parallel_state.get_tensor_model_parallel_world_size())
    gates[0] = gate_megatron([chunk], chunk.dp_cp_group, copies)


def _say(error: Exception) -> None:
    words = f"synergy: all-reduces are not gated: {type(error).__name__}: {error}"
    print(" ".join(words.split())[:200], file=sys.stderr, flush=True)


def main() -> None:
    """As python itself runs a script or a module."""
    sys.argv = sys.argv[1:]
    install(Ours().shown)
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
