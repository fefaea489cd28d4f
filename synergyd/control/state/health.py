"""Faults of a running job by its reports: steps that have stopped, nodes that are slow, silence; and what holds its steps up. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from synergy_core.achieved import Achieved, tolerance
from synergy_core.formatting import format_duration
from synergy_core.job_report import SPIKE_WINDOW, Report
from synergy_core.reasons import Reason, Reasons

SILENT_S = 300.0
_LEAST_SAMPLES = 6  # of GPUs, a minute: one sample sees the last second alone
_BOUND = 0.5  # share of a step that one resource takes alone: the others together take less
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
    health_warnings = []
    if report.stalled_s is not None:
        usual = f"; a step usually takes {report.step_s:.3g} s" if report.step_s else ""
        text = f"no step since step {report.step}, for {format_duration(report.stalled_s)}{usual}: it may hang"
        health_warnings.append(HealthWarning("stalled", text))
    for node in report.slow_nodes:
        health_warnings.append(
            HealthWarning(f"slow {node}", f"its other nodes wait for {node}, which is slower at the same work")
        )
    silent = now_s - received_s
    if report.stalled_s is None and silent > max(SILENT_S, _SILENT_STEPS * (report.step_s or 0.0)):
        text = f"no report for {format_duration(silent)}: its launcher or its node may be gone"
        health_warnings.append(HealthWarning("silent", text))
    return tuple(health_warnings)


def loss_reasons(report: Report) -> Reasons:
    """Return the latest loss spike and what follows from it, if it is recent."""
    spike = report.spike
    return (spike.reason(),) if spike is not None and report.step - spike.step < SPIKE_WINDOW else ()


def diagnose(report: Report, achieved: Achieved | None) -> Reasons:
    """Return what holds the job's steps up, with the evidence in numbers; nothing where the evidence does not decide.

    A kernel that waits for other ranks counts as busy. So GPUs that are idle do not wait for communication, and those of a job that
    is bound by communication are busy.
    """
    slow = dict(zip(report.slow_nodes, report.slow_times, strict=False))
    if slow:
        return tuple(Reason("slow-rank", {"node": node, "times": times}) for node, times in slow.items())
    activity = report.gpu_activity
    if report.slow_nodes or report.stalled_s is not None or activity is None or activity.samples < _LEAST_SAMPLES:
        return ()
    if achieved is None or achieved.mfu is None or not achieved.predicted_step_s or activity.utilisation is None:
        return ()
    step_s, predicted_s, error = achieved.step_s, achieved.predicted_step_s, tolerance(achieved)
    idle_s = (1.0 - activity.utilisation) * step_s
    # what is idle is more than the model may be wrong by, and what is busy is no more than it predicts
    if step_s > (1.0 + error) * predicted_s and idle_s > error * predicted_s:
        if step_s - idle_s > (1.0 + error) * predicted_s:
            return ()
        fields = {"step_s": step_s, "predicted_s": predicted_s, "idle_s": idle_s, "samples": activity.samples}
        return (Reason("waits-for-data", fields),)
    share = achieved.communication_share
    if share is None or share <= _BOUND or activity.utilisation < 1.0 - error:
        return ()
    # what the step takes beside computation is as long as the predicted communication
    if abs(step_s - predicted_s) > error * predicted_s or (
        activity.sm is not None and activity.sm > 1.0 - share + error
    ):
        return ()
    sm = f"; {activity.sm:.0%} of the SMs are active" if activity.sm is not None else ""
    return (
        Reason(
            "communication-bound",
            {"share": share, "step_s": step_s, "residue": 1.0 - (1.0 - share) * predicted_s / step_s, "sm": sm},
        ),
    )
