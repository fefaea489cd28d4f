"""The only writer: it carries out the lifecycle's instructions through Slurm, and reads back what was written."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from synergy_core.errors import UsageError, one_line
from synergy_core.records import Directive, JobState, Plan, Shape
from synergy_core.wire import admin_comment, plan_file
from synergy_launch.launcher.commands.batch_script import ScriptRequest, find_command, render

from synergyd.control.resize.events import CarriedOut, Refused
from synergyd.control.resize.instructions import (
    AskCheckpoint,
    Instruction,
    JoinNodes,
    LiftHold,
    LowerShield,
    Park,
    Release,
    Requeue,
    Restart,
    RestoreNice,
    ReturnNodes,
    Split,
    Target,
    Update,
    Wake,
)
from synergyd.control.resize.walltime import TimeGrant
from synergyd.slurm.client import DeniedError, SlurmError, SlurmWriter
from synergyd.slurm.directives.directive import directive_key_values
from synergyd.slurm.mail_types import with_restarts, without_restarts
from synergyd.slurm.node_return import obstacle_to_leaving, return_nodes
from synergyd.slurm.owner_file import allow_user, write_for_user
from synergyd.slurm.parsed.job_forms import is_pending_array_remainder, slurm_name, slurm_name_of_whole_job
from synergyd.slurm.parsed.rows import JobRow, gpu_items, gres_items, parse_gpus
from synergyd.slurm.parsed.snapshot import SubmittedJob, has_launch_failed, size_obstacle, state_from_row
from synergyd.slurm.shields import Shields

log = logging.getLogger("synergyd")
#: Slurm 22.05 without slurmdbd refuses each update of a job for a minute after nodes have left it, and scontrol asks for 5 s
STAMP_WITHIN_S, STAMP_AGAIN_S = 1.0, 60.0
CHECKPOINT_SIGNAL = "USR2"  # NCCL may catch USR1
# above all priorities that Slurm's plugins give, whose first is 0xffff0000 (priority/basic), and within its 32 bits
_FIRST_PRIORITY = 4_294_960_000
_LEAST_NICE = -2_147_483_000  # Slurm's own bound is -2147483645


class NoPlaceError(SlurmError):
    """A job that would not start again at once, so it is not requeued."""


class UnansweredError(SlurmError):
    """A requeue without an answer: Slurm may have ended the job's processes."""


class PlaceCheck:
    """The check just before a requeue that a job can do without. This one knows of no obstacle."""

    def conflict(self, requeue: Requeue) -> str:
        """Return why the job has to wait until another one has started again, or "" if it has not."""
        return ""

    def obstacle(self, requeue: Requeue, row: JobRow, why_unshielded: str) -> str:
        """Return why the job would not start again at once, or "" if it would.

        `why_unshielded`: why its nodes can't be kept for it, "" if they are. Raises SlurmError.
        """
        return ""


@dataclass(frozen=True)
class Actuator:
    """The writer that carries out instructions through Slurm.

    `report` is the address jobs report to ("" = none); `submissions` tells each job's own size; `links` is the link
    arbiter's address. `put_off(row)`: whether somebody else has put off the start of this pending job.
    `request_of(job id)`: the checkpoint request that the job's launchers are told in the answers to their reports;
    0: they take a signal alone.
    """

    slurm: SlurmWriter
    state_dir: Path
    report: str
    submissions: dict[int, SubmittedJob]
    links: str = ""
    is_postponed: Callable[[JobRow], bool] = lambda _: False
    checkpoint_request: Callable[[int], int] = lambda _: 0
    names: Mapping[int, int | str] = field(default_factory=dict)  # a job's name to Slurm, if that is not its id
    check: PlaceCheck = field(default_factory=PlaceCheck)
    only_reports: bool = False  # a dry run: jobs are handed where to report, in a file, and Slurm is not written to
    # (incarnation, plan, time of the next try) of running jobs whose plan has changed since AdminComment was written
    _unstamped: dict[int, tuple[int, Plan, float]] = field(default_factory=dict)

    @cached_property
    def shields(self) -> Shields:
        return Shields(self.slurm)

    def carry_out(self, instruction: Instruction) -> CarriedOut | Refused:
        """Carry out the instruction.

        Only DeniedError is raised of all that Slurm or the file system raise. Only jobs with a directive are ever
        written to.
        """
        job_id = instruction.job_id
        if isinstance(instruction, LowerShield):  # also for a job that has left the queue
            try:
                self.shields.take_down(job_id)
            except SlurmError as problem:
                return Refused(instruction, str(problem), problem.transient)
            return CarriedOut(instruction)
        submission = self.submissions.get(job_id)
        if submission is None or submission.directive is None:
            return Refused(instruction, f"job {job_id} has no directive: it is not Synergy's", transient=False)
        try:
            error = self._do(instruction, submission)
        except SlurmError as problem:
            final = isinstance(problem, NoPlaceError) and not problem.transient
            return Refused(instruction, str(problem), problem.transient, final, isinstance(problem, UnansweredError))
        except OSError as problem:
            # a full or read-only folder may last: called transient, it would park the job again and again
            return Refused(instruction, f"{problem.filename or self.state_dir}: {problem.strerror}", transient=False)
        except DeniedError:
            raise
        except Exception as problem:  # a fault of ours: it costs this job's resize alone
            log.error("job %d: %s failed", job_id, type(instruction).__name__, exc_info=problem)
            return Refused(instruction, f"{type(problem).__name__}: {one_line(str(problem), 200)}", transient=False)
        return Refused(instruction, *error) if error else CarriedOut(instruction)

    def stamp_running_jobs(self, now_s: float) -> None:
        """Write into AdminComment which plans running jobs have got. Raises DeniedError.

        Their launchers have heard it already, and the plan's file has it: they do not wait for this. What is refused ends this round.
        """
        for job_id, (restarts, plan, from_s) in list(self._unstamped.items()):
            if now_s < from_s:
                continue
            del self._unstamped[job_id]
            try:
                row, submission = self.slurm.job(job_id), self.submissions.get(job_id)
                if row is None or submission is None or row.restarts != restarts:
                    continue
                stamp = self._stamp(self._with_present_note(job_id, submission), plan)
                self.slurm.update(slurm_name(row), {"AdminComment": stamp}, within_s=STAMP_WITHIN_S)
            except SlurmError as problem:
                if problem.transient:
                    self._unstamped[job_id] = restarts, plan, now_s + STAMP_AGAIN_S
                log.info("job %d: its AdminComment has its former plan: %s", job_id, one_line(str(problem), 200))
                return

    def forget_running_jobs(self) -> None:
        """Leave the plans of running jobs to a daemon that has led meanwhile."""
        self._unstamped.clear()

    def adopt(self, job_id: int, plan: Plan | None) -> None:
        """Tell a job that Synergy does not start where to report. Raise SlurmError, OSError."""
        submission = self.submissions[job_id]
        if submission.directive is None:
            return
        self._hand_over(job_id, submission, plan)
        if self.only_reports:
            return
        if name := self.names.get(job_id, job_id):
            self.slurm.update(name, {"AdminComment": self._stamp(self._with_present_note(job_id, submission), plan)})

    def renew_parking(self, job_ids: Sequence[int], park_s: float) -> str:
        """Put off the start of jobs that have been parked and stamped before. Return what went wrong, "" if nothing did."""
        ours = [
            i
            for i in job_ids
            if (submission := self.submissions.get(i)) is not None and submission.directive is not None
        ]
        try:
            names = dict.fromkeys(self.submissions[i].leader or self.names.get(i, i) for i in ours)
            self.slurm.delay([name for name in names if name], int(park_s))
        except SlurmError as problem:
            return str(problem)
        return ""

    def end_plugin_grace(self, job_ids: Sequence[int], outside: Sequence[int | str] = ()) -> str:
        """End what puts off the start of jobs that are Slurm's to start: the plugin's grace, or an earlier Park.

        `outside`: Slurm's names of such jobs that the settings leave out. Return what went wrong, "" if nothing did.
        """
        with_submission = [(i, k) for i in job_ids if (k := self.submissions.get(i)) is not None]
        ours = [i for i, k in with_submission if k.directive is not None or k.put_off_s is not None]
        names = dict.fromkeys(self.submissions[i].leader or self.names.get(i, i) for i in ours)
        try:
            self.slurm.delay([name for name in (*names, *outside) if name], 0)
        except SlurmError as problem:
            return str(problem)
        return ""

    def _hush_mail(self, name: int | str, submission: SubmittedJob, job_id: int) -> None:
        """Keep Slurm from mailing that the job was requeued and began: to its user a resize is neither.

        No resize fails for want of it.
        """
        try:
            own = self.slurm.read_mail(_mail_name(name, submission))[1]
            types = without_restarts(own)
            if types != own:
                self._set_mail(name, submission, job_id, types, own)
        except SlurmError as problem:
            log.warning("job %d: Slurm may mail its requeue: %s", job_id, one_line(str(problem), 200))

    def restore_mail(self, job_id: int) -> None:
        """Let Slurm mail all that the job's user asked for, once a resized job runs. Raise SlurmError, DeniedError."""
        submission, name = self.submissions[job_id], self.names.get(job_id, job_id)
        if submission.mail and name:
            types = self.slurm.read_mail(_mail_name(name, submission))[1]
            self._set_mail(name, submission, job_id, with_restarts(types, submission.mail), "")

    def _set_mail(self, name: int | str, submission: SubmittedJob, job_id: int, types: str, own: str) -> None:
        """Set MailType, and note in AdminComment what its user asked for (`own`; "": just that)."""
        stamp = admin_comment.decode(self.slurm.admin_comment(job_id))
        comment = {} if stamp is None else {"AdminComment": admin_comment.encode(replace(stamp, mail=own))}
        mails = {"MailType": types} if types else {}
        if _mail_name(name, submission) == name:
            self.slurm.update(name, {**mails, **comment})
        else:
            self.slurm.update(_mail_name(name, submission), mails)
            self.slurm.update(name, comment)
        self.submissions[job_id] = replace(submission, mail=own)

    def _show_script(self, row: JobRow, submission: SubmittedJob, target: Target) -> None:
        """Write the same plan as a readable script beside the hand-over, for the job's owner to read: no start fails for want of it."""
        try:
            self._write_script(row, submission, target, self.slurm.batch_script(row.het_job_id or row.job_id) or "")
        except (SlurmError, OSError) as problem:
            log.warning("job %d: its plan can't be shown as a script: %s", row.job_id, one_line(str(problem), 200))

    def _write_script(self, row: JobRow, submission: SubmittedJob, target: Target, text: str) -> None:
        folder = (submission.directive.checkpoint if submission.directive else None) or ""
        path = plan_file.plan_path(self.state_dir, row.job_id).with_suffix(".sh")
        try:
            request = ScriptRequest(
                job_name=row.name,
                command=find_command(text),
                shape=target.shape,
                plan=target.plan,
                nodes=target.nodes,
                checkpoint=folder,
                own_batch=submission.keeps_batch(target.plan),
                requested_shape=submission.requested_shape,
            )
            shown_text = render(request)
        except UsageError:
            return  # no synergy-launch line, or more than is rendered
        write_for_user(path, shown_text, row.uid)

    def _hand_over(self, job_id: int, submission: SubmittedJob, plan: Plan | None) -> None:
        plan_file.write(self._plan_file(job_id, submission, plan), self.state_dir, self._show_to(submission.uid))

    def _reserve(self, job_id: int, submission: SubmittedJob) -> None:
        """Reserve room for the hand-over before a job is stopped or changed: a full disk shows now, not when it is to be written."""
        plan_file.reserve(self._plan_file(job_id, submission, Plan()), self.state_dir, self._show_to(submission.uid))

    def _show_to(self, uid: int) -> Callable[[int], None]:
        return lambda file: allow_user(file, uid, is_secret="jobs" in self.slurm.private)

    def _plan_file(self, job_id: int, submission: SubmittedJob, plan: Plan | None) -> plan_file.PlanFile:
        folder = (submission.directive.checkpoint if submission.directive else None) or ""
        loop = submission.directive.loop if submission.directive else ""
        own_batch = submission.keeps_batch(plan)
        return plan_file.PlanFile(
            job_id,
            plan,
            self.report,
            folder,
            os.getuid(),
            self.links,
            submission.requested_shape,
            own_batch,
            loop,
            self.only_reports,
            submission.directive is not None and submission.directive.skip_spikes,
        )

    def _do(self, instruction: Instruction, submission: SubmittedJob) -> tuple[str, bool] | None:
        """Return None when the instruction is done, else (why not, transient)."""
        job_id = instruction.job_id
        row = self.slurm.job(job_id, ended=isinstance(instruction, Requeue) and instruction.failed)
        if row is None:
            return "it has left the queue", True  # the next observation says so too, and ends the story
        name, whole = slurm_name(row), slurm_name_of_whole_job(row)
        if not name or (is_pending_array_remainder(row) and not isinstance(instruction, Park | Split)):
            return "its id names several jobs", False
        state = state_from_row(row)
        if isinstance(instruction, Park | Update | Release) and state is JobState.PENDING and self.is_postponed(row):
            return "its start was put off meanwhile", True  # the next observation says so too
        if isinstance(instruction, AskCheckpoint | Restart | JoinNodes | ReturnNodes) and (
            state is not JobState.RUNNING or row.restarts != instruction.restarts
        ):
            return f"it is {row.state}, restart {row.restarts}", True
        changes_nodes = isinstance(instruction, Restart | JoinNodes) and bool(instruction.nodes)
        changes_nodes |= isinstance(instruction, ReturnNodes)  # lost nodes leave without an order
        if changes_nodes and (why := obstacle_to_leaving(self.slurm, row)):
            raise NoPlaceError(f"job {job_id}", why, transient=False)
        match instruction:  # nothing for JoinNodes: the job's launchers ask for the nodes, as its user
            case AskCheckpoint():
                self._reserve(job_id, submission)
                if not self.checkpoint_request(job_id):
                    self.slurm.signal_launchers(name, CHECKPOINT_SIGNAL)
            case Requeue():
                return self._requeue(instruction, row, submission)
            case Restart(plan=plan):
                # an incarnation that Slurm starts by itself finds this, such as after a node's failure
                self._hand_over(job_id, submission, plan)
                self._unstamped[job_id] = row.restarts, plan, 0.0
            case ReturnNodes(kept_nodes=kept, joined_nodes=joined):
                return return_nodes(self.slurm, row, kept, joined)
            case Park(park_s=park_s, time=time):
                if state is not JobState.PENDING:
                    return f"it is {row.state}", True
                stamp = self._stamp(self._with_present_note(job_id, _with_time_grant(submission, time)), None)
                self._put_off_start(
                    row, {"StartTime": f"now+{int(park_s)}", **_time_limit(row, submission, time)}, stamp
                )
                self.submissions[job_id] = _with_time_grant(submission, time)
            case Split(task=task, park_s=park_s):
                if state is not JobState.PENDING or not is_pending_array_remainder(row):
                    return f"it is {row.state} {row.array_task}", True
                stamp = self._stamp(self._with_present_note(job_id, submission), None)
                fields = {"StartTime": f"now+{int(park_s)}", "AdminComment": stamp}
                self.slurm.update(f"{row.array_job_id}_{int(task)}", fields)
            case Update():
                return self._update(instruction, row, submission)
            case Release():
                return self._release(instruction, row)
            case RestoreNice(nice=nice):
                if row.nice != nice:
                    self.slurm.update(whole, {"Nice": str(nice)})
            case Wake(nodes=nodes):
                self.slurm.power_up(nodes)
            case LiftHold(restarts=restarts, park_s=park_s):
                if row.restarts == restarts and has_launch_failed(row):
                    # parked first: without its hold it would start by itself, on the same nodes
                    self.slurm.update(whole, {"StartTime": f"now+{int(park_s)}"})
                    self.slurm.release(whole)
        return None

    def _update(self, update: Update, row: JobRow, submission: SubmittedJob) -> tuple[str, bool] | None:
        """Give a waiting job its size, nodes and plan. Return as `_do` does."""
        job_id, target = update.job_id, update.target
        if state_from_row(row) is not JobState.PENDING:
            return f"it is {row.state}", True
        size = _size(target.shape, row, submission)
        if isinstance(size, str):
            return size, False
        self._reserve(job_id, submission)
        # parked first, without the size: a refused update may set some fields and not the start time, and then the job
        # would start half-changed. Stamped with its own size: a daemon that finds it half-changed knows that
        limit = _time_limit(row, submission, update.time)
        submission = _with_time_grant(submission, update.time)
        after_writes = self._with_present_note(job_id, submission)
        stamp = self._stamp(after_writes, None)
        self._put_off_start(row, {"StartTime": f"now+{int(update.park_s)}", **limit}, stamp)
        self.submissions[job_id] = submission
        self.slurm.update_size(slurm_name(row), row.uid, {**size, **self._fields(target, after_writes)})
        if difference := self._difference(job_id, target):
            return difference
        # last, so that a refused size leaves the plan of the size the job has
        self._hand_over(job_id, submission, target.plan)
        self._show_script(row, submission, target)
        return None

    def _requeue(self, requeue: Requeue, row: JobRow, submission: SubmittedJob) -> tuple[str, bool] | None:
        """Requeue the job. Return as `_do` does."""
        state, same = state_from_row(row), row.restarts == requeue.restarts
        if same and state is JobState.SUSPENDED:
            return "it is suspended", True
        if same and state is JobState.RUNNING:
            self._reserve(row.job_id, submission)
            self._keep_place(requeue, row)
            self._hush_mail(slurm_name(row), submission, row.job_id)
            try:
                self.slurm.requeue(slurm_name_of_whole_job(row))
            except SlurmError as problem:
                if not problem.transient:
                    raise
                raise UnansweredError(problem.where, problem.what, transient=True) from None
        if same and requeue.failed and row.state == "FAILED":
            self.slurm.requeue(slurm_name_of_whole_job(row), failed=True)
        return None

    def _release(self, release: Release, row: JobRow) -> tuple[str, bool] | None:
        """Release the job. Return as `_do` does."""
        if state_from_row(row) is JobState.PENDING:
            if silent := self.slurm.unheard(row.req_nodes):
                return f"slurmctld waits for {', '.join(sorted(silent)[:3])} to register", True
            nice = {"Nice": str(_first_nice(row))} if release.first and row.priority else {}
            self.slurm.update(slurm_name_of_whole_job(row), {**nice, "StartTime": "now"})
        if release.first:
            # after the release: whoever waits for these nodes comes after this job in Slurm's very next look
            self.shields.take_down(row.job_id)
        return None

    def _keep_place(self, requeue: Requeue, row: JobRow) -> None:
        """Have the job's nodes kept for it.

        Raises NoPlaceError if it can stay and would not start again at once, SlurmError.
        """
        where = "its place"
        if requeue.may_stay and (why := self.check.conflict(requeue)):
            raise NoPlaceError(where, why, transient=True)
        why_unshielded = (
            self.shields.put_up(row.job_id, requeue.shield) if requeue.shield else "Slurm chooses its nodes"
        )
        try:
            if requeue.may_stay and (why := self.check.obstacle(requeue, row, why_unshielded)):
                raise NoPlaceError(where, why, transient=False)
        except SlurmError:
            if not why_unshielded:
                self.shields.take_down(row.job_id)
            raise

    def _put_off_start(self, row: JobRow, times: Mapping[str, str], stamp: str) -> None:
        """Put off the start, in one update if one name will do: a component's stamp is its own, its times are its whole job's."""
        name, whole = slurm_name(row), slurm_name_of_whole_job(row)
        if whole == name:
            self.slurm.update(name, {**times, "AdminComment": stamp})
        else:
            self.slurm.update(whole, times)
            self.slurm.update(name, {"AdminComment": stamp})

    def _fields(self, target: Target, submission: SubmittedJob) -> dict[str, str]:
        # without nodes of ours its user's own --nodelist stands again
        return {
            "ReqNodeList": ",".join(target.nodes or submission.nodelist),
            "AdminComment": self._stamp(submission, target.plan),
        }

    def _with_present_note(self, job_id: int, submission: SubmittedJob) -> SubmittedJob:
        """Return `submission` with the note that AdminComment has now: an operator may have written there since. Raises SlurmError."""
        note = admin_comment.read_note(self.slurm.admin_comment(job_id))
        return submission if note is None else replace(submission, note=note)

    def _stamp(self, submission: SubmittedJob, plan: Plan | None) -> str:
        stamp = admin_comment.AdminCommentStamp(
            directive_key_values(submission.directive or Directive()),
            requested_shape=submission.requested_shape,
            cpus_per_node=submission.cpus_per_node,
            own_tasks=submission.own_tasks,
            nodelist=submission.nodelist,
            plan=plan,
            own_batch=submission.keeps_batch(plan),
            note=submission.note,
            report=self.report,
            daemon_uid=os.getuid(),
            links=self.links,
            time_limit_s=None if submission.time_limit_s is None else int(submission.time_limit_s),
            continuations=submission.continuations,
            throttle=submission.throttle,
            mail=submission.mail,
        )
        return admin_comment.encode(stamp)

    def _difference(self, job_id: int, target: Target) -> tuple[str, bool] | None:
        """Read the job back and return how it differs from `target`: an update is not atomic, and some fields are ignored in silence."""
        row = self.slurm.job(job_id)
        if row is None or state_from_row(row) is not JobState.PENDING:
            return "it was no longer pending when it was read back", True
        shape, gpus = target.shape, parse_gpus(row.tres_per_node)[1]
        if (row.num_nodes, gpus) != (shape.nodes, shape.gpus_per_node):
            return f"read back {row.num_nodes} nodes x {gpus} GPUs, wanted {shape.nodes} x {shape.gpus_per_node}", False
        if target.nodes:
            nodes = self.slurm.required_nodes(job_id)
            if set(nodes) != set(target.nodes):
                return f"read back ReqNodeList {','.join(nodes) or 'empty'}, wanted {','.join(target.nodes)}", False
        return None


def _mail_name(name: int | str, submission: SubmittedJob) -> int | str:
    """Return what names the job whose MailType counts: for a heterogeneous job, its first component."""
    return f"{submission.leader}+0" if submission.leader else name


def _first_nice(row: JobRow) -> int:
    """Return the Nice with which a pending job comes before all others; Slurm adds its change to the job's priority."""
    return max(_LEAST_NICE, row.nice - max(0, _FIRST_PRIORITY - row.priority))


def _with_time_grant(submission: SubmittedJob, time: TimeGrant | None) -> SubmittedJob:
    """Return the submission with what its next incarnation is granted."""
    return (
        submission if time is None else replace(submission, time_limit_s=time.asked_s, continuations=time.continuations)
    )


def _time_limit(row: JobRow, submission: SubmittedJob, time: TimeGrant | None) -> dict[str, str]:
    """Return the field that gives the job what is left of its time limit.

    The limit is raised only if it begins anew, to what was asked for.
    """
    if time is None or row.time_limit_s == 60 * time.minutes:
        return {}
    anew = time.continuations > submission.continuations or time.limit_s == time.asked_s
    if not anew and row.time_limit_s is not None and row.time_limit_s <= 60 * time.minutes:
        return {}
    # Slurm refuses a limit below its --time-min
    least = {"TimeMin": str(time.minutes)} if row.min_time_s > 60 * time.minutes else {}
    return {**least, "TimeLimit": str(time.minutes)}


def _size(shape: Shape, row: JobRow, submission: SubmittedJob) -> dict[str, str] | str:
    """Return the fields that give `row` this size, or why it can't have it.

    There are none if its size is its user's own and right already. Otherwise all of them are returned, even those
    that look right: a refused update leaves some behind that only a whole one mends.
    """
    kind, gpus = parse_gpus(row.tres_per_node)
    if why_fixed := size_obstacle(row, submission):
        return (
            {} if (row.num_nodes, gpus) == (shape.nodes, shape.gpus_per_node) else f"it may not be resized: {why_fixed}"
        )
    if kind and shape.gpu_type and kind != shape.gpu_type:
        return f"it asks for {kind} GPUs by name and can't have {shape.gpu_type}"
    others = [item for item in gres_items(row.tres_per_node) if not gpu_items(item)]
    # Slurm 22.05 goes by NumCPUs after an update, and no more by --cpus-per-gpu
    cpus = max(submission.cpus_per_node, row.cpus_per_gpu * shape.gpus_per_node)
    least: dict[str, str] = {}
    if not row.cpus_per_gpu and row.min_cpus > 1:
        cpus = max(cpus, row.min_cpus)
        # once NumTasks is written it gives a node no more CPUs than its tasks have, and with --mincpus then starts the job nowhere
        least = {"CPUsPerTask": str(row.min_cpus)} if row.min_cpus > row.cpus_per_task else {}
    type_text = f":{kind}" if kind else ""
    return {
        **least,
        # Slurm refuses a node count that the present task count does not allow: both in one update
        "NumTasks": str(shape.nodes),
        "NumNodes": f"{shape.nodes}-{shape.nodes}",
        "NumCPUs": str(shape.nodes * cpus),
        "TresPerNode": ",".join([f"gres:gpu{type_text}:{shape.gpus_per_node}", *others]),
    }
