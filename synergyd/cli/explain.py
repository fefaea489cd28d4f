"""synergyctl explain: what was decided for a job, why, what else was possible, and the story so far."""

from __future__ import annotations

import json
import time

import click

from synergyd.cli.context import JOB_ID, Context, pass_context
from synergyd.cli.json_records import ExplainJson, StoryLine
from synergyd.control.health import warnings
from synergyd.errors import UsageError, one_line
from synergyd.links.sharing import lines as lines_of
from synergyd.records import Cell, Decision
from synergyd.store.store import Store
from synergyd.wire.codec import encode
from synergyd.words import plan_words, shape_words, size_words


@click.command()
@click.argument("job", type=JOB_ID)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@pass_context
def explain(context: Context, job: int, as_json: bool) -> None:
    """Tell why JOB got what it got: the decision, its reason, the alternatives with their predicted goodput, the story."""
    with context.store() as store:
        data = collect(store, job)
    click.echo(json.dumps(encode(data), indent=1) if as_json else "\n".join(lines(data)))


def collect(store: Store, job_id: int) -> ExplainJson:
    """All that is stored of one job. Raises UsageError if it was never seen."""
    decisions, story = store.decisions_of(job_id, 1), store.story(job_id)
    if not decisions and not story:
        raise UsageError(
            f"job {job_id}", "was never seen by the daemon", "it needs a #SYNERGY line; is synergyd running?"
        )
    stored, life = store.report(job_id), store.lifecycles().get(job_id)
    last = decisions[0] if decisions else None
    decision = last.decision if last else None
    report = stored.report if stored else None
    runs = stored is not None and life is not None and life.state == "RUNNING"
    return ExplainJson(
        job_id=job_id,
        decided_s=last.at_s if last else None,
        dry_run=last.dry_run if last else None,
        decision=decision,
        lines=_decision_lines(decision.cell, decision.node_names) if decision else (),
        links=_links(decision) if decision else (),
        alternatives=tuple(
            f"{size_words(a.cell.shape, a.cell.plan)}, goodput {a.cell.goodput:.3g}: {a.why_not}"
            for a in (decision.alternatives if decision else ())
        ),
        lifecycle=life.state if life else None,
        report=report,
        note=report.note if report else "",
        warnings=tuple(w.text for w in warnings(stored.report, stored.received_s, time.time()))
        if stored and runs
        else (),
        paused=job_id in store.paused(),
        story=tuple(StoryLine(at_s=e.at_s, state=e.state, event=e.event, detail=e.detail) for e in story),
    )


def _decision_lines(cell: Cell | None, nodes: tuple[str, ...]) -> tuple[str, ...]:
    if cell is None:
        return ()
    return (
        f"size      {shape_words(cell.shape, nodes)}",
        f"plan      {plan_words(cell.plan)}, recompute {cell.plan.recompute}",
        f"predicted {cell.step_s:.3g} s a step, {cell.throughput:.3g} sequences/s x {cell.efficiency:.2f} efficiency = "
        f"goodput {cell.goodput:.3g}, {cell.memory_bytes / 2**30:.1f} GiB a GPU (+- {cell.uncertainty:.0%})",
    )


def _links(decision: Decision) -> tuple[str, ...]:
    if decision.sharing is None:
        return ()
    goodput = decision.cell.goodput if decision.cell is not None else 0.0
    return tuple(
        f"{'links     ' if n == 0 else '          '}{text}"
        for n, text in enumerate(lines_of(decision.sharing, goodput))
    )


def lines(data: ExplainJson) -> list[str]:
    """The text that `explain` prints."""
    out = [
        f"job {data.job_id}" + (f", {data.lifecycle}" if data.lifecycle else "") + (", paused" if data.paused else "")
    ]
    decision = data.decision
    if decision:
        when = time.strftime("%F %T", time.localtime(data.decided_s))
        out.append(f"{when}{' (dry run)' if data.dry_run else ''}: {decision.action}")
        out.append(f"  {one_line(decision.why, 2000)}")
        out += [f"  {one_line(text)}" for text in (*data.lines, *data.links)]
        if decision.relative_goodput is not None:
            out.append(f"  {decision.relative_goodput:.2f} times the goodput of the size asked for")
        if decision.fairness is not None:
            out.append(f"  finish-time fairness {decision.fairness:.2f} (1: as soon as on an equal share of the GPUs)")
        if decision.worth:
            worth = ", ".join(f"{name} {value:+.3g}" for name, value in decision.worth)
            out.append(f"  worth to the objective: {worth}")
    if data.alternatives:
        out.append("alternatives")
        out += [f"  {one_line(text)}" for text in data.alternatives]
    out += [f"warning: {one_line(text)}" for text in data.warnings]
    if data.note:
        out.append(f"the job says: {one_line(data.note)}")
    out.append("story" if data.story else "story: none yet")
    for event in data.story:
        when = time.strftime("%F %T", time.localtime(event.at_s))
        out.append(f"  {when}  {event.state:<13} {one_line(event.detail)}")
    return out
