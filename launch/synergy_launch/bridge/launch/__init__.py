"""`launch`, as release 0.1.0 called what is now `synergy_launch`: for scripts that still say so, until release 0.3.0.

This folder is no package of Synergy's: synergy-launch appends the folder around it to PYTHONPATH of what it starts
(synergy_launch/launcher/node_run.py). A `launch` of the user's own comes first. One beside the script is found before this
one; one in site-packages, which Python searches after PYTHONPATH, is taken in place of this one below.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_BRIDGE = ("synergy_launch", "bridge")


def _other_launch() -> ModuleSpec | None:
    """Return what `import launch` would find without any bridge: a module, a package, or a folder without __init__.py."""
    everything = sys.path[:]
    sys.path[:] = [p for p in everything if Path(os.path.realpath(p)).parts[-2:] != _BRIDGE]
    try:
        return next((spec for f in sys.meta_path if (spec := f.find_spec("launch", None))), None)
    finally:
        sys.path[:] = everything


@functools.cache
def warn() -> None:
    """Print one line, on rank 0. Python's own warnings module would hide it from whoever imports this in a second file."""
    if (os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0") == "0":
        text = "`launch` is called `synergy_launch` since release 0.2.0: the name `launch` ends with 0.3.0"
        print(f"synergy: DeprecationWarning: {text}", file=sys.stderr, flush=True)


def __getattr__(name: str) -> Any:
    if name != "SynergyTask":
        raise AttributeError(f"module 'launch' has no attribute {name!r}")
    from synergy_launch import SynergyTask

    warn()
    return SynergyTask


_spec = _other_launch()
if _spec is not None and _spec.loader is not None and _spec.origin is not None:
    # Python takes what stands in sys.modules after this file has run
    _module = sys.modules["launch"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
elif _spec is not None:
    # a folder without __init__.py: its modules first, then the ones below
    __path__ = [*(_spec.submodule_search_locations or ()), *__path__]
