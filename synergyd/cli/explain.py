"""synergyctl explain: what was decided for a job, why, what else was possible, and the story so far."""

from __future__ import annotations

import json
import time

import click
from synergy_core.achieved import achieved_message, activity_message
from synergy_core.errors import one_line
from synergy_core.job_end import format_end
from synergy_core.wire.codec import encode

from synergyd.cli.shared.clock import expected_lines
from synergyd.cli.shared.context import Context, pass_context
from synergyd.cli.shared.job_names import JOB_NAME
from synergyd.views.json_records import ExplainJson


@click.command()
@click.argument("job", type=JOB_NAME)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@pass_context
def explain(context: Context, job: str, as_json: bool) -> None:
    """Tell when JOB starts and ends, and why it got what it got: the decision, its reason, alternatives with their goodput, the story."""
    with context.backend() as backend:
        data = backend.explain(backend.job_id(job))
    click.echo(json.dumps(encode(data), indent=1) if as_json else "\n".join(lines(data)))


def lines(data: ExplainJson) -> list[str]:
    """Return the text that `explain` prints."""
    out = [
        f"job {data.job_id}" + (f", {data.lifecycle}" if data.lifecycle else "") + (", paused" if data.paused else "")
    ]
    if data.end is not None:
        when = time.strftime("%F %T", time.localtime(data.end.end_s)) if data.end.end_s is not None else ""
        out.append(f"{when} ended: {one_line(format_end(data.end))}".lstrip())
    decision = data.decision
    if data.expected is not None:
        out += [f"  {one_line(text, 2000)}" for text in expected_lines(data.expected, time.time())]
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
    if data.achieved is not None:
        out.append(f"  achieved  {achieved_message(data.achieved)}")
    if data.kernels:
        out.append(f"  kernels   {one_line(data.kernels)}")
    activity = data.report.gpu_activity if data.report is not None else None
    if activity is not None and (activity_text := activity_message(activity, whole_run=data.achieved is None)):
        out.append(f"  on a node {activity_text}")
    if data.alternatives:
        out.append("alternatives")
        out += [f"  {one_line(text)}" for text in data.alternatives]
    out += [f"warning: {one_line(text)}" for text in data.warnings]
    if data.note:
        out.append(f"the job says: {one_line(data.note)}")
    if data.story or decision:
        out.append("story" if data.story else "story: none yet")
    for event in data.story:
        when = time.strftime("%F %T", time.localtime(event.at_s))
        out.append(f"  {when}  {event.state:<13} {one_line(event.detail)}")
    return out
