"""The known facts of each job in the queue: its directive and its own size, read once, when it is first seen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from synergy_core.errors import UsageError
from synergy_core.records import Directive, JobState
from synergy_core.wire import admin_comment

from synergyd.slurm.client import DeniedError, SlurmError, SlurmWriter
from synergyd.slurm.directives.directive import parse_script, read_stamp
from synergyd.slurm.directives.second_run import second_run_problem
from synergyd.slurm.parsed.het_jobs import group_components, is_resized, resize_obstacle
from synergyd.slurm.parsed.job_forms import (
    is_pending_array_remainder,
    read_throttle,
    slurm_name,
    slurm_name_of_whole_job,
)
from synergyd.slurm.parsed.needs import placement_obstacle
from synergyd.slurm.parsed.rows import JobRow
from synergyd.slurm.parsed.snapshot import SubmittedJob, shape_from_row, size_obstacle, state_from_row

log = logging.getLogger("synergyd.registry")
SCRIPTS_AN_EPOCH = 200  # each is one RPC
READING_S = 10.0  # an epoch, whatever slurmctld and the scripts are like; the others come at the next
EXCLUSIONS_EPOCHS = 20  # until the excluded nodes of jobs that wait are read again
AGAIN_S = 600.0  # until a script is tried again that could not be read for a reason that is not known to pass


class JobRegistry:
    """The registry of the queue's jobs.

    `submitted` by job id holds Synergy's jobs only; the others are remembered as plain, by job id and submit time.
    """

    def __init__(self, slurm: SlurmWriter, report_grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._slurm = slurm
        self._clock = clock
        self._again_s: dict[tuple[int, float], float] = {}
        self._grace_s = report_grace_s
        self.submitted: dict[int, SubmittedJob] = {}
        self.kept: Collection[int] = ()  # jobs that may come back into the queue after they have left it
        self._looked_at: set[int] = set()  # whose scripts were looked at for what ends a second run
        self._stamped: set[int] = set()  # had been parked by a daemon before when they were first seen
        self.plain: set[tuple[int, float]] = set()
        self._excluded_read: set[int] = set()
        self._reads = 0
        self.names: dict[int, int | str] = {}  # the name of a job for Slurm, if it is not its id
        self.throttles: dict[int, int] = {}  # by array id
        self.topology = False  # the nodes' leaf switches are known
        self.parts: dict[int, tuple[JobRow, ...]] = {}  # parts of heterogeneous jobs, by the leader's id

    def learn(self, rows: Iterable[JobRow], gpu_type_of_node: Mapping[str, str]) -> set[tuple[int, float]]:
        """Read the directives of jobs seen for the first time, at most SCRIPTS_AN_EPOCH scripts a call.

        Return the (job id, submit time) that turned out to have none. Raises SlurmError only if nothing could be read.
        """
        rows = list(rows)
        here = {r.job_id for r in rows}
        self._learn_arrays(rows)
        self.parts = group_components(rows)
        for absent_id in [i for i in self.submitted if i not in here and i not in self.kept]:
            del self.submitted[absent_id]
            self._stamped.discard(absent_id)
            self._looked_at.discard(absent_id)
        present = {(r.job_id, r.submit_s) for r in rows}
        began_s = self._clock()
        self.plain -= {key for key, again_s in self._again_s.items() if began_s >= again_s}
        self._again_s = {k: s for k, s in self._again_s.items() if k in present and began_s < s}
        self.plain &= present
        fresh = [r for r in rows if r.job_id not in self.submitted and (r.job_id, r.submit_s) not in self.plain]
        comments = self._slurm.admin_comments([r.job_id for r in fresh])
        newly_plain: set[tuple[int, float]] = set()
        budget = SCRIPTS_AN_EPOCH
        for row in fresh:
            if row.het and not is_resized(row, self.parts[row.het_job_id]):
                newly_plain.add((row.job_id, row.submit_s))
                continue
            stamp = admin_comment.decode(comments.get(row.job_id, ""))
            # a heterogeneous job is put off as a whole: its first component's stamp tells
            first = admin_comment.decode(comments.get(row.het_job_id, "")) if row.het else stamp
            if stamp is None:
                if not row.batch:
                    newly_plain.add((row.job_id, row.submit_s))
                    continue
                if budget == 0 or self._clock() - began_s > READING_S:
                    continue
                budget -= 1
            try:
                submitted_job = self._read(row, stamp, gpu_type_of_node)
            except SlurmError as problem:
                log.warning("job %d: its script could not be read: %s", row.job_id, problem)
                if not problem.transient:
                    # not for ever: it can be read once the rights or another cause are mended
                    self.plain.add((row.job_id, row.submit_s))
                    self._again_s[row.job_id, row.submit_s] = self._clock() + AGAIN_S
                continue  # else tried again at the next epoch
            if submitted_job is None:
                newly_plain.add((row.job_id, row.submit_s))
                continue
            if first is not None and first.requested_shape is None and (stamp is None or stamp.requested_shape is None):
                submitted_job = replace(submitted_job, put_off_s=float(first.begin_s or 0))
            self.submitted[row.job_id] = submitted_job
            if submitted_job.throttle:
                self.throttles.setdefault(row.array_job_id, submitted_job.throttle)
            for mistake in stamp.mistakes.values() if stamp is not None else ():
                log.warning("job %d: AdminComment: %s", row.job_id, mistake)
            if stamp is not None and stamp.requested_shape is not None:
                self._stamped.add(row.job_id)
        self.plain |= newly_plain
        self._look_at_scripts(rows, budget, began_s)
        self._read_exclusions(rows)
        return newly_plain

    def begin_s(self, row: JobRow) -> float | None:
        """Return the start time that the user of a pending job has set, for a job that no daemon has written to; else None."""
        if row.eligible_s is None or row.job_id in self._stamped or row.restarts:
            return None
        if row.eligible_s > row.submit_s + self._grace_s + 5:
            return row.eligible_s
        submitted_job = self.submitted.get(row.job_id)
        return (submitted_job.put_off_s or None) if submitted_job is not None else None

    def is_held_by_grace_alone(self, row: JobRow, now_s: float) -> bool:
        """Return whether only the plugin's grace, which a decision would have ended, keeps this pending job from starting."""
        submitted_job = self.submitted[row.job_id]
        if submitted_job.put_off_s is None or submitted_job.put_off_s > now_s or row.restarts or row.eligible_s is None:
            return False
        return now_s + 1 < row.eligible_s <= row.submit_s + self._grace_s + 5

    def parked_outside(self, rows: Iterable[JobRow], managed: Collection[int], now_s: float) -> tuple[int | str, ...]:
        """Return Slurm's names of the pending jobs that are not `managed`, yet wait for the plugin's grace to end."""
        waiting = [
            r
            for r in rows
            if r.job_id not in managed
            and state_from_row(r) is JobState.PENDING
            and not r.restarts
            and r.eligible_s is not None
            and now_s + 1 < r.eligible_s <= r.submit_s + self._grace_s + 5
        ]
        comments = self._slurm.admin_comments([r.job_id for r in waiting]) if waiting else {}
        stamps = {r.job_id: admin_comment.decode(comments.get(r.job_id, "")) for r in waiting}
        return tuple(
            slurm_name_of_whole_job(r)
            for r in waiting
            if (stamp := stamps[r.job_id]) is not None and stamp.requested_shape is None and stamp.begin_s is None
        )

    def _read_exclusions(self, rows: Iterable[JobRow]) -> None:
        """Read --exclude of new jobs, and now and then of all that wait, since their users may change it. One call, most often none."""
        self._excluded_read &= self.submitted.keys()
        self._reads += 1
        if self._reads % EXCLUSIONS_EPOCHS == 0:
            self._excluded_read -= {r.job_id for r in rows if r.state == "PENDING"}
        ours = [
            i
            for i, submitted_job in self.submitted.items()
            if submitted_job.directive is not None and i not in self._excluded_read
        ]
        if not ours:
            return
        try:
            lists = self._slurm.node_lists(ours)
        except SlurmError as problem:
            log.warning("excluded nodes are not known: %s", problem)
            return  # tried again at the next epoch
        for job_id in ours:
            excluded = lists.get(job_id, ((), ()))[1]
            self.submitted[job_id] = replace(self.submitted[job_id], excluded=excluded)
            self._excluded_read.add(job_id)

    def _look_at_scripts(self, rows: Iterable[JobRow], budget: int, began_s: float) -> None:
        """Find the scripts that would not survive a requeue: `budget` of those that were not looked at, within READING_S."""
        for row in rows:
            submitted_job = self.submitted.get(row.job_id)
            if submitted_job is None or submitted_job.directive is None or row.job_id in self._looked_at:
                continue
            if size_obstacle(row, submitted_job):
                self._looked_at.add(row.job_id)
                continue
            if budget == 0 or self._clock() - began_s > READING_S:
                return
            budget -= 1
            try:
                script = self._slurm.batch_script(row.het_job_id or row.job_id) or ""
            except SlurmError as problem:
                if problem.transient:
                    return  # tried again at the next epoch
                script = ""
            self._looked_at.add(row.job_id)
            self.submitted[row.job_id] = replace(submitted_job, second_run=_beyond_second_run(script))

    def _learn_arrays(self, rows: list[JobRow]) -> None:
        """Read each array's throttle.

        Only the record of several pending tasks says it, so it is kept until the last task is gone: each task's stamp
        has it too, for the next daemon.
        """
        tasks = [r for r in rows if r.array]
        self.names.clear()
        self.names.update({r.job_id: slurm_name(r) for r in tasks})
        throttles = {r.array_job_id: read_throttle(r) for r in tasks if is_pending_array_remainder(r) and not r.merged}
        arrays = {r.array_job_id for r in tasks}
        self.throttles = {i: t for i, t in (self.throttles | throttles).items() if i in arrays}
        for r in tasks:
            submitted_job, throttle = self.submitted.get(r.job_id), self.throttles.get(r.array_job_id, 0)
            if submitted_job is not None and submitted_job.throttle != throttle:
                self.submitted[r.job_id] = replace(submitted_job, throttle=throttle)

    def _read(
        self, row: JobRow, stamp: admin_comment.AdminCommentStamp | None, gpu_type_of_node: Mapping[str, str]
    ) -> SubmittedJob | None:
        error = second_run = ""
        directive: Directive | None = None
        try:
            if stamp is not None:
                directive = read_stamp(stamp.directive)
            else:
                script = self._slurm.batch_script(row.het_job_id or row.job_id)
                if script is None:
                    raise SlurmError("scontrol write batch_script", "Slurm gives no script", transient=False)
                directive = parse_script(script)
                if directive is None:
                    return None
                second_run = _beyond_second_run(script)
                self._looked_at.add(row.job_id)
        except DeniedError:
            raise
        except UsageError as problem:
            error = str(problem)
        except SlurmError:
            raise
        except Exception as problem:  # a fault of ours: it costs this job alone
            log.error("job %d: its directive can't be read", row.job_id, exc_info=problem)
            error = f"its directive can't be read ({type(problem).__name__}): Synergy leaves the job to Slurm"
        beyond = resize_obstacle(self.parts.get(row.het_job_id, ())) if row.het else ""
        if directive is not None and (beyond := beyond or placement_obstacle(row, self.topology)):
            directive, error = None, f"Synergy leaves the job to Slurm: {beyond}"
        own_tasks = row.num_tasks if row.num_tasks > row.num_nodes else None
        requested_shape, cpus, note, nodelist = None, None, "", row.req_nodes
        time_limit_s, continued = row.time_limit_s, 0
        if stamp is not None:
            requested_shape, cpus, note = stamp.requested_shape, stamp.cpus_per_node, stamp.note
            own_tasks = stamp.own_tasks if stamp.requested_shape else own_tasks
            time_limit_s, continued = stamp.time_limit_s or time_limit_s, stamp.continuations
            nodelist = stamp.nodelist if stamp.requested_shape else nodelist
        if (
            row.cpus_per_gpu
        ):  # Slurm counts its CPUs anew when it starts; those that it holds belong to its present GPUs
            cpus = cpus or max(row.min_cpus, row.tasks_per_node * row.cpus_per_task)
        return SubmittedJob(
            directive,
            error,
            requested_shape or shape_from_row(row, gpu_type_of_node if row.node_names else {}),
            cpus or max(1, row.num_cpus // max(1, row.num_nodes)),
            own_tasks,
            note,
            nodelist,
            time_limit_s=time_limit_s,
            continuations=continued,
            throttle=(self.throttles.get(row.array_job_id) or (stamp.throttle if stamp else 0)) if row.array else 0,
            leader=row.het_job_id,
            mail=stamp.mail if stamp is not None else "",
            second_run=second_run,
            uid=row.uid,
        )


def _beyond_second_run(script: str) -> str:
    """Return why the script would not reach its training again, or "" if no reason is seen."""
    try:
        obstacle = second_run_problem(script)
    except Exception as problem:  # a fault of ours must not keep all other jobs from being read
        log.error("a script can't be looked at for a second run", exc_info=problem)
        obstacle = None
    return (
        ""
        if obstacle is None
        else f"its script would not survive the restart that a resize is: line {obstacle[0]}: {obstacle[1]}"
    )
