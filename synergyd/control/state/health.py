"""Faults of a running job by its reports: steps that have stopped, nodes that are slow, silence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from synergy_core.formatting import format_duration
from synergy_core.job_report import Report

SILENT_S = 300.0
_SILENT_STEPS = 20.0


@dataclass(frozen=True)
class HealthWarning:
    """One warning. `kind` stays the same as long as it lasts; `text` is for explain."""

    kind: str
    text: str


def warnings(report: Report, received_s: float, now_s: float) -> tuple[HealthWarning, ...]:
    """Return the warnings about the job's health; there are none if all is well.

    `received_s`: when the job's latest report came. A job reports when something has changed, and every 10 s while
    steps run. Silence for longer than SILENT_S and many steps is the fault of its launcher or its node.
    """
    found = []
    if report.stalled_s is not None:
        usual = f"; a step usually takes {report.step_s:.3g} s" if report.step_s else ""
        text = f"no step since step {report.step}, for {format_duration(report.stalled_s)}{usual}: it may hang"
        found.append(HealthWarning("stalled", text))
    for node in report.slow_nodes:
        found.append(
            HealthWarning(f"slow {node}", f"its other nodes wait for {node}, which is slower at the same work")
        )
    silent = now_s - received_s
    if report.stalled_s is None and silent > max(SILENT_S, _SILENT_STEPS * (report.step_s or 0.0)):
        text = f"no report for {format_duration(silent)}: its launcher or its node may be gone"
        found.append(HealthWarning("silent", text))
    return tuple(found)
