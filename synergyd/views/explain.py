"""Everything that is stored of one job: the decision, why, what else was possible, the story."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from synergy_core.achieved import Achieved, wrong_model_message
from synergy_core.errors import UsageError
from synergy_core.formatting import format_plan, format_shape, format_size
from synergy_core.job_report import Report
from synergy_core.kernels import UNKNOWN, kernels_message
from synergy_core.reasons import Reasons, format_reasons
from synergy_core.recompute import format_recompute
from synergy_core.records import Cell, Decision
from synergy_core.wire.codec import decode

from synergyd.control.decision_log import JobStatus
from synergyd.control.state.health import diagnose, loss_reasons, warnings
from synergyd.links.sharing import lines as lines_of
from synergyd.store.records import StoredReport
from synergyd.store.store import Store
from synergyd.views.expected import collect as expected_jobs
from synergyd.views.json_records import ExplainJson, StoryLine, decision_json

_CERTAIN = 0.995  # a probability from which on two digits show 1.00


def collect(store: Store, job_id: int) -> ExplainJson:
    """Return everything that is stored of one job. Raises UsageError if it was never seen."""
    decisions, story = store.decisions_of(job_id, 1), store.story(job_id)
    expected = expected_jobs(store).get(job_id)
    if not decisions and not story and expected is None:
        raise UsageError(
            f"job {job_id}", "was never seen by the daemon", "is it in the queue, and is synergyd running?"
        )
    stored, life = store.report(job_id), store.lifecycle(job_id)
    last = decisions[0] if decisions else None
    decision = last.decision if last else None
    report = stored.report if stored else None
    achieved = _achieved(store, job_id)
    runs = stored is not None and life is not None and life.state == "RUNNING"
    diagnoses = diagnose(stored.report, achieved) if stored and runs else ()
    return ExplainJson(
        job_id=job_id,
        decided_s=last.at_s if last else None,
        dry_run=last.dry_run if last else None,
        decision=decision_json(_without_foreign_plans(decision)) if decision else None,
        lines=_decision_lines(decision.cell, decision.node_names) if decision else (),
        links=_links(decision) if decision else (),
        alternatives=tuple(
            f"{format_size(a.cell.shape, a.cell.plan)}, goodput {a.cell.goodput:.3g}: {a.why_not}"
            for a in (decision.alternatives if decision else ())
            if a.cell.goodput > 0
        ),
        lifecycle=life.state if life else None,
        report=report,
        note=report.note if report else "",
        warnings=_warnings(stored, achieved, diagnoses) if stored and runs else (),
        diagnoses=(*diagnoses, *loss_reasons(stored.report)) if stored and runs else (),
        achieved=achieved if runs else None,
        paused=job_id in store.paused_jobs(),
        story=tuple(StoryLine(at_s=e.at_s, state=e.state, event=e.event, detail=e.detail) for e in story),
        expected=expected,
        kernels=_kernels(report, achieved),
    )


def _kernels(report: Report | None, achieved: Achieved | None) -> str:
    """Return which kernels a job's report names, or that all are assumed; "" where no prediction goes by them."""
    if report is not None and report.kernels is not None:
        return kernels_message(report.kernels)
    return kernels_message(UNKNOWN) if achieved is not None and achieved.mfu is not None else ""


def _achieved(store: Store, job_id: int) -> Achieved | None:
    """Return the job's speed as the last epoch saw it."""
    epoch = store.latest_epoch()
    rows = epoch.present if epoch is not None else ()
    row = next((row for row in rows if isinstance(row, Mapping) and row.get("job_id") == job_id), None)
    return None if row is None else decode(JobStatus, row, "stored status").achieved


def _warnings(stored: StoredReport, achieved: Achieved | None, diagnoses: Reasons) -> tuple[str, ...]:
    slow = any(reason.code == "slow-rank" for reason in diagnoses)
    health_warnings = warnings(stored.report, stored.received_s, time.time())
    texts = [w.text for w in health_warnings if not (slow and w.kind.startswith("slow "))]
    texts += [format_reasons((reason,)) for reason in diagnoses]
    if not diagnoses and achieved is not None and (wrong := wrong_model_message(achieved)):
        texts.append(wrong)
    texts += [format_reasons((reason,)) for reason in loss_reasons(stored.report)]
    return tuple(texts)


def _without_foreign_plans(decision: Decision) -> Decision:
    """Return the decision without Cells that have no plan of Synergy's: `lines` names their size."""
    cell = decision.cell if decision.cell is not None and decision.cell.goodput > 0 else None
    return replace(decision, cell=cell, alternatives=tuple(a for a in decision.alternatives if a.cell.goodput > 0))


def _decision_lines(cell: Cell | None, nodes: tuple[str, ...]) -> tuple[str, ...]:
    if cell is None:
        return ()
    if cell.goodput <= 0:
        return f"size      {format_shape(cell.shape, nodes)}", "plan      its script's own"
    planned_goodput = cell.throughput * cell.efficiency
    fits = cell.goodput / planned_goodput if planned_goodput > 0 else 1.0
    risky = f" x {fits:.2f} that the memory suffices" if fits < _CERTAIN else ""
    return (
        f"size      {format_shape(cell.shape, nodes)}",
        f"plan      {format_plan(cell.plan)}, recompute {format_recompute(cell.plan.recompute, cell.plan.recompute_layers)}",
        f"predicted {cell.step_s:.3g} s a step (+- {cell.uncertainty:.0%}), {cell.throughput:.3g} sequences/s x "
        f"{cell.efficiency:.2f} efficiency{risky} = goodput {cell.goodput:.3g}, {cell.memory_bytes / 2**30:.1f} GiB a GPU",
    )


def _links(decision: Decision) -> tuple[str, ...]:
    if decision.sharing is None:
        return ()
    goodput = decision.cell.goodput if decision.cell is not None else 0.0
    return tuple(
        f"{'links     ' if n == 0 else '          '}{text}"
        for n, text in enumerate(lines_of(decision.sharing, goodput))
    )
