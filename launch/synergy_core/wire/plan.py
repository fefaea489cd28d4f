"""A plan between daemon and job: its checks and its short text."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from synergy_core.errors import UsageError, format_value
from synergy_core.exchange import parse_exchange
from synergy_core.recompute import FULL, MODULES, is_recompute
from synergy_core.records import CP_COMMS, MAY_BE_0, Plan
from synergy_core.wire.codec import Checks, decode

MAX_NUMBER = 100_000_000  # the largest number in a plan: far above any real one, and within what databases hold
PRECISIONS = ("bf16", "fp16", "fp32", "fp8")
_SHORT = {
    "tp": "tp", "pp": "pp", "dp": "dp", "mb": "micro_batch", "gb": "global_batch", "rc": "recompute",
    "sp": "sequence_parallel", "zs": "zero_stage", "vp": "vpp", "cp": "cp", "ep": "ep", "pr": "precision",
    "ex": "exchange", "rl": "recompute_layers", "sh": "shard", "cc": "cp_comm",
}  # fmt: skip
_RARE = frozenset(("vp", "cp", "ep", "pr", "ex", "rl", "sh", "cc"))  # said only where they are not the default
_FLAGS = {"0": False, "1": True}
_WHOLE = re.compile(r"[0-9]{1,9}\Z")


def plan_problem(plan: Plan) -> str:
    """Return what is wrong with a plan, "" if nothing is: a check for codec.decode."""
    for field in dataclasses.fields(Plan):
        value, least = getattr(plan, field.name), 0 if field.name in MAY_BE_0 else 1
        if type(field.default) is int and not least <= value <= MAX_NUMBER:
            return f"{field.name} is {format_value(value)}; expected a whole number from {least} to {MAX_NUMBER}"
    if plan.cp_comm not in CP_COMMS:
        return f"cp_comm is {format_value(plan.cp_comm)}; expected {', '.join(CP_COMMS)}"
    if plan.precision not in PRECISIONS:
        return f"precision is {format_value(plan.precision)}; expected {', '.join(PRECISIONS)}"
    if not is_recompute(plan.recompute):
        right = f"none, selective, full, or of {'+'.join(MODULES)} some in this order"
        return f"recompute is {format_value(plan.recompute)}; expected {right}"
    if plan.recompute_layers and plan.recompute != FULL:
        return f"recompute_layers is {plan.recompute_layers} with recompute {plan.recompute}; expected full"
    if plan.shard and (not plan.zero_stage or plan.dp * plan.cp % plan.shard):
        return f"shard is {plan.shard}; expected 0 or a divisor of dp {plan.dp} x cp {plan.cp}, with a zero_stage of 1 to 3"
    try:
        parse_exchange(plan.exchange, "exchange")
    except UsageError as error:
        return str(error)
    if plan.global_batch % (plan.dp * plan.micro_batch):
        return f"global_batch {plan.global_batch} is no multiple of dp {plan.dp} x micro_batch {plan.micro_batch}"
    return ""


PLAN_CHECKS: Checks = {Plan: plan_problem}


def plan_text(plan: Plan) -> str:
    """Return a text such as `tp:2,pp:1,dp:4,mb:1,gb:32,rc:none,sp:1,zs:1`, and what else is not as usual."""
    return ",".join(
        f"{s}:{int(v) if isinstance(v, bool) else v}"
        for s, f in _SHORT.items()
        for v in [getattr(plan, f)]
        if s not in _RARE or v != getattr(Plan(), f)
    )


def plan_from_text(text: str, where: str = "plan") -> Plan:
    """Return the plan that `plan_text` wrote. Raises UsageError naming the field."""
    data: dict[str, Any] = {}
    for item in text.split(","):
        key, _, value = item.partition(":")
        name = _SHORT.get(key)
        if name is None:
            raise UsageError(where, f"unknown field {format_value(key)}", f"expected {', '.join(_SHORT)}")
        if key == "sp":
            data[name] = _FLAGS.get(value, value)
        else:
            data[name] = int(value) if key not in ("rc", "pr", "ex", "cc") and _WHOLE.match(value) else value
    return decode(Plan, data, where, PLAN_CHECKS)
