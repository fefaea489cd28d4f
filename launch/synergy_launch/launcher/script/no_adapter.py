"""Scripts of frameworks without an adapter, or without a use of it: they run as plain jobs, and the user is told what can't be done."""

from __future__ import annotations

import re
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.records import Plan

from synergy_launch.launcher.script.kind import ScriptKind

_READ_BYTES = 1 << 18
_IMPORTS = re.compile(
    rb"^[ \t]*(?:import|from)[ \t]+(deepspeed|lightning|pytorch_lightning|torchtitan)\b", re.MULTILINE
)
# the adapters to use, for the frameworks that have one
_ADAPTERS = {
    "deepspeed": "DeepSpeedTask of synergy_launch.deepspeed",
    **dict.fromkeys(("lightning", "pytorch_lightning"), "SynergyCallback of synergy_launch.lightning"),
}
_OURS = re.compile(rb"^[ \t]*(?:import|from)[ \t]+synergy_launch\b", re.MULTILINE)


def find_framework(script: str) -> str:
    """Return the framework that the file `script` imports without Synergy's adapter for it, or that has no adapter.

    Returns "" for other scripts and modules.
    """
    if script.startswith("module:"):
        return "torchtitan" if script.startswith("module:torchtitan.") else ""
    try:
        with Path(script).open("rb") as file:
            text = file.read(_READ_BYTES)
    except OSError:
        return ""
    match = _IMPORTS.search(text)
    return match[1].decode() if match and not _OURS.search(text) else ""


def check(script: str, plan: Plan | None, batch_limits: str, kind: ScriptKind | None = None) -> str:
    """Return what the user should know, or "" if nothing. `kind`: the script's, where it is known.

    Raises UsageError where a batch range was asked for that the script can't follow.
    """
    framework = find_framework(script)
    if not framework:
        why = kind.obstacle if kind is not None else ""
        return f"{script}: {why}: the job keeps its size and its batch" if why else ""
    if batch_limits:
        what = f"{batch_limits}: {script} imports {framework}, whose batch Synergy can't move"
        raise UsageError("--global-batch", what, f"leave it out, or use {_ADAPTERS.get(framework, 'SynergyTask')}")
    has = f"and not {_ADAPTERS[framework]}" if framework in _ADAPTERS else "which has no adapter"
    message = f"{script} imports {framework}, {has}: the job keeps its size and its batch"
    degrees = [f"{name}={getattr(plan, name)}" for name in ("tp", "pp", "cp", "ep") if plan and getattr(plan, name) > 1]
    degrees += [f"exchange {plan.exchange}"] if plan and plan.exchange != "exact" else []
    return f"{message}; {' '.join(degrees)} of its plan is not applied" if degrees else message
