"""Faults of nodes and runs, as reports and Slurm show them, and what is done about them. Pure, over node_health and hangs.

A run whose steps have stopped is started again on other nodes. One whose GPUs do nothing, before its first step or after any, is told
so; with IdleReclaim it is restarted on its smallest size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from synergy_core.formatting import format_duration
from synergy_core.job_report import Report
from synergy_core.node_check import NodeCheck
from synergy_core.reasons import format_reasons
from synergy_core.records import Cell, Job, JobState, Node

from synergyd.control.resize.events import Hung, Wanted
from synergyd.control.resize.hangs import MAX_HANGS, Hangs, after_report, hung_s, is_common_stall
from synergyd.control.resize.instructions import Target
from synergyd.control.resize.lifecycle import ResizeState, ResizeTimes
from synergyd.control.state.node_health import (
    HUNG,
    MARKS_OF_FAULTS,
    SLOW,
    DrainNode,
    NodeHealth,
    NodeRecord,
    RememberNodes,
    shortfall_reason,
)
from synergyd.control.state.node_paces import NodePaces
from synergyd.control.tracked import Output, Remember, TrackedJob
from synergyd.jobmodel.shared_profiles import program
from synergyd.scheduler.problem.utility import smallest

_PROGRAMS = 10_000
# A run that has used CPUs for longer than this since its start may have done all of its work, without a word to its launcher.
_BEGINS_S = 300.0
IDLE = "its GPUs do nothing"  # in the story, and what makes it a notice
_NAMED = 4  # nodes named in a sentence


@dataclass
class FaultMonitor:
    """The monitor of all jobs. `pauses`: the longest healthy ones, seconds, by program."""

    nodes: NodeHealth = field(default_factory=NodeHealth)
    paces: NodePaces = field(default_factory=NodePaces)
    pauses: dict[str, float] = field(default_factory=dict)

    def take_report(self, tracked: TrackedJob, before: Report | None, heard_s: float, now_s: float) -> list[Output]:
        """Take in a report that the job has just made. `before`: its previous report, heard at `heard_s`."""
        report, job, life = tracked.report, tracked.job, tracked.lifecycle
        if report is None or job is None or job.state is not JobState.RUNNING or job.restarts != report.restarts:
            return []
        outputs: list[Output] = [*_tell_spike(tracked, before, report)]
        hangs = after_report(life.hangs, before, heard_s, report, now_s)
        if hangs != life.hangs:
            outputs += self._learn(tracked, job, hangs.pause_s)
        changed: list[NodeRecord] = []
        if len(job.node_names) > 1:
            for name in set(report.slow_nodes) & set(job.node_names):
                changed += self.nodes.mark(SLOW, name, job.uid, job.job_id, now_s)
        elif (
            tracked.first_report is not None
            and report.step_s is not None
            and report.stalled_s is None
            and job.node_names
        ):
            run = (
                _program(job),
                replace(report.plan, recompute="", recompute_layers=0) if report.plan else None,
                job.shape,
            )
            step_s = tracked.without_contention(report).step_s or 0.0
            slow = self.paces.add(run, job.node_names[0], step_s, report.step - tracked.first_report[2])
            if slow:
                changed += self.nodes.mark(SLOW, job.node_names[0], job.uid, job.job_id, now_s)
            elif slow is False:
                changed += self.nodes.clear_marks(SLOW, job.node_names[0])
        return outputs + _remember_nodes(changed)

    def take_fault(self, tracked: TrackedJob, report: Report, now_s: float) -> list[Output]:
        """Take in what ended a run of the job, where its launcher knows: once, for the job's story and its node's record."""
        fault, job, before = report.fault, tracked.job, tracked.report
        last_fault = tracked.last_fault or (before and before.fault and (before.restarts, before.fault))
        if fault is None or last_fault == (report.restarts, fault):
            return []
        tracked.last_fault = (report.restarts, fault)
        life = tracked.lifecycle
        outputs: list[Output] = [Remember(life, life.state, "Fault", (fault.describe(),))]
        mark = MARKS_OF_FAULTS.get(fault.kind)
        if mark is not None and job is not None and fault.node in job.node_names:
            outputs += _remember_nodes(self.nodes.mark(mark, fault.node, job.uid, job.job_id, now_s))
        return outputs

    def take_checks(self, tracked: TrackedJob, checks: Sequence[NodeCheck], now_s: float) -> list[Output]:
        """Take in `checks` of the job's nodes before its run; its story says which nodes fall short."""
        job, life = tracked.job, tracked.lifecycle
        if not checks or job is None or job.state is not JobState.RUNNING:
            return []
        changed, shortest = self.nodes.take_checks(checks, job, now_s)
        throttled = {check.node for check in checks if check.throttled}
        outputs = _remember_nodes(changed)
        for name, shortfall in shortest.items():
            text = f"{name}: {format_reasons((shortfall_reason(shortfall, [job.job_id]),))}"
            text += ", and its driver has slowed a GPU down" if name in throttled else ""
            outputs.append(Remember(life, life.state, "Check", (text,)))
        return outputs

    def note_lost_nodes(self, tracked: TrackedJob, up: frozenset[str], now_s: float) -> list[Output]:
        """Note the nodes that Slurm took the job off just now because they can't take jobs any more. `up`: the nodes that can."""
        outputs = tracked.lose_nodes(up, now_s)
        names = tracked.node_loss[1] if outputs and tracked.node_loss is not None else ()
        return [*outputs, *_remember_nodes(self.nodes.lose(names, tracked.lifecycle.job_id, now_s))]

    def look(self, nodes: Iterable[Node], now_s: float) -> list[Output]:
        """Look at the nodes as Slurm shows them now."""
        return _remember_nodes(self.nodes.look(nodes, now_s))

    def review(
        self, tracked: TrackedJob, now_s: float, times: ResizeTimes, *, together: bool = False
    ) -> list[Output | Wanted | Hung]:
        """Check at the end of an epoch whether the job has hung or does nothing. `together`: as is_stall_common says."""
        job, report, life = tracked.job, tracked.report, tracked.lifecycle
        if job is not None and job.state is JobState.SUSPENDED:
            tracked.suspended_s = now_s
        if job is None or life.state is not ResizeState.RUNNING or job.state is not JobState.RUNNING:
            return []
        # its launcher's clock went on meanwhile
        if tracked.suspended_s and now_s - tracked.suspended_s < max(times.hang_s, times.idle_s):
            return []
        hangs = replace(life.hangs, pause_s=max(life.hangs.pause_s, self.pauses.get(_program(job), 0.0)))
        if report is not None and report.restarts == job.restarts:
            stalled_s = hung_s(hangs, report, times.hang_s)
            if stalled_s is not None and together:
                text = f"no step for {format_duration(stalled_s)}: left as it is, since other jobs stall too (a file system?)"
                return _warn_once(tracked, job, "together", text)
            if stalled_s is not None:
                return self._take_in_hang(tracked, job, report, hangs, stalled_s, now_s)
        idle_s = idle_seconds(tracked, job, now_s)
        if idle_s is None:
            return []
        return self._take_in_idleness(tracked, job, idle_s, now_s, times, together=together)

    def _take_in_hang(
        self, tracked: TrackedJob, job: Job, report: Report, hangs: Hangs, stalled_s: float, now_s: float
    ) -> list[Output | Wanted | Hung]:
        elsewhere = bool(hangs.count) and not set(hangs.nodes) & set(job.node_names)
        began = tracked.first_report
        # before its first step the place is that of the checkpoint, whatever the fault
        moved = began is not None and began[0] == job.restarts and report.step > began[2]
        if hangs.count and report.step == hangs.step and (elsewhere or moved):
            outputs = [*_remember_nodes(self.nodes.take_back(job.job_id)), *self._learn(tracked, job, stalled_s)]
            text = f"no step for {format_duration(stalled_s)}, after step {report.step} as before: its own script's, so it goes on"
            return [*outputs, *_warn_once(tracked, job, "left alone", text)]
        if elsewhere:
            changed = self.nodes.take_back(job.job_id)
        else:
            changed = [
                r
                for name in job.node_names
                for r in self.nodes.mark(HUNG, name, job.uid, job.job_id, now_s, 1.0 / len(job.node_names))
            ]
        if hangs.count >= MAX_HANGS:
            text = f"it hung {MAX_HANGS} times before: it is not started again once more"
            return [*_remember_nodes(changed), *_warn_once(tracked, job, "left alone", text)]
        if why := _restart_obstacle(tracked, job):
            return [
                *_remember_nodes(changed),
                *_warn_once(tracked, job, "hung", f"it hangs, and is not started again: {why}"),
            ]
        where = ", ".join(job.node_names[:_NAMED]) + (" and more" if len(job.node_names) > _NAMED else "")
        text = f"no step for {format_duration(stalled_s)}: started again from its last checkpoint, on other nodes than {where} if it can be"
        return [
            *_remember_nodes(changed),
            Hung(job.node_names, report.step, f"{text} ({hangs.count + 1} of {MAX_HANGS})"),
        ]

    def _learn(self, tracked: TrackedJob, job: Job, pause_s: float) -> list[Output]:
        """Remember that the job paused for `pause_s` seconds and was well."""
        life = tracked.lifecycle
        tracked.lifecycle = replace(life, hangs=replace(life.hangs, pause_s=max(life.hangs.pause_s, pause_s)))
        self.pauses[_program(job)] = max(pause_s, self.pauses.get(_program(job), 0.0))
        if len(self.pauses) > _PROGRAMS:
            del self.pauses[next(iter(self.pauses))]
        return [Remember(tracked.lifecycle, life.state, "Paused")]

    def drains(self, now_s: float, may_drain: bool) -> list[Output]:
        """Return the nodes to be drained, or none unless draining is allowed (`may_drain`)."""
        self.nodes.forget_weak_records(now_s)
        outputs: list[RememberNodes | DrainNode] = self.nodes.drains(now_s) if may_drain else []
        return [*outputs]

    def _take_in_idleness(
        self, tracked: TrackedJob, job: Job, idle_s: float, now_s: float, times: ResizeTimes, *, together: bool
    ) -> list[Output | Wanted | Hung]:
        report, stepped = tracked.report, has_stepped(tracked, job)
        since = f"step {report.step}" if report is not None and stepped else "its start"
        text = f"no CPU time and no GPU used for {format_duration(idle_s)}, and no step since {since}: {IDLE}"
        outputs = _warn_once(tracked, job, "idle", text)
        least = tracked.smallest
        reclaims = (
            times.idle_s and idle_s >= times.idle_s and not job.paused and not (tracked.form or tracked.keeps_size)
        )
        # it would lose all of its steps, its script does what comes after training, or a file system is out
        if report is not None and stepped and (report.checkpoint_step is None or tracked.is_training_over or together):
            return outputs
        silent = tracked.report is None or tracked.report.restarts != job.restarts
        begun = silent and job.start_s is not None and now_s - job.start_s - idle_s > _BEGINS_S
        if not reclaims or begun or least is None or least.shape.gpus >= job.shape.gpus:
            return outputs
        present = Target(job.shape, job.node_names, tracked.lifecycle.plan)
        cause = f"its GPUs did nothing for {format_duration(idle_s)}, so it goes on with its smallest size"
        return [*outputs, Wanted(least, cause, tracked.checkpoints_taken, present, Target(job.asked))]


def is_stall_common(jobs: Iterable[TrackedJob]) -> bool:
    """Return whether so many of the running jobs stall at once that the fault is none of theirs."""
    running = ((t.job, t.report) for t in jobs if t.job is not None and t.job.state is JobState.RUNNING)
    return is_common_stall(report for job, report in running if report and report.restarts == job.restarts)


def idle_seconds(tracked: TrackedJob, job: Job, now_s: float) -> float | None:
    """Return the seconds for which the running job has made no step and used no GPU and next to no CPU time, or None if it works."""
    if tracked.idle is None or tracked.idle[0] != job.restarts or job.state is not JobState.RUNNING:
        return None
    _, idle_s, heard_s = tracked.idle
    return idle_s + max(0.0, now_s - heard_s)


def has_stepped(tracked: TrackedJob, job: Job) -> bool:
    """Return whether the job has made a step since its present incarnation began."""
    report, began = tracked.report, tracked.first_report
    if report is None or report.restarts != job.restarts:
        return False
    return report.step_s is not None or bool(began and began[0] == job.restarts and report.step > began[2])


def smallest_target(cells: Sequence[Cell]) -> Target | None:
    """Return the size with the fewest GPUs, with its best plan, or None if there is none."""
    if not cells:
        return None
    cell = cells[smallest(cells)]
    return Target(cell.shape, (), cell.plan)


def _tell_spike(tracked: TrackedJob, before: Report | None, report: Report) -> list[Output]:
    """Return a line for the job's story if a loss spike has been answered since `before`. One that ended a run is a fault of it."""
    spike, life = report.spike, tracked.lifecycle
    if spike is None or spike.answer in ("new", "skipped") or (before is not None and before.spike == spike):
        return []
    return [Remember(life, life.state, "Spike", (spike.describe().removesuffix("."),))]


def _restart_obstacle(tracked: TrackedJob, job: Job) -> str:
    """Return why the job is not started again although it hangs, or "" if it is."""
    if job.paused:
        return "it is paused"
    if tracked.lifecycle.left_to_slurm_reason:
        return "it is left to Slurm, which started it with no size or nodes that Synergy chose"
    return tracked.form or (job.fixed if job.reservation else "")


def _warn_once(tracked: TrackedJob, job: Job, kind: str, text: str) -> list[Output | Wanted | Hung]:
    """Return a line for the job's story, once for each incarnation."""
    if tracked.last_warning == (job.restarts, kind):
        return []
    tracked.last_warning = (job.restarts, kind)
    return [Remember(tracked.lifecycle, tracked.lifecycle.state, "Warning", (text,))]


def _remember_nodes(records: Iterable[NodeRecord]) -> list[Output]:
    last = {record.name: record for record in records}
    return [RememberNodes(tuple(last.values()))] if last else []


def _program(job: Job) -> str:
    return program(job.uid, job.name)
