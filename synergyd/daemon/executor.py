"""The execution of what the controller gives back: lifecycles and stories into the store, instructions to Slurm, plans to jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from synergy_core.records import Job, Plan
from synergy_core.wire.codec import encode
from synergy_core.wire.report import ReportAnswer

from synergyd.control.notices import make_notice
from synergyd.control.resize.events import InstructionAnswered, Refused
from synergyd.control.resize.instructions import AskCheckpoint, JoinNodes, Park, Restart, Split, Update
from synergyd.control.resize.lifecycle import ResizeState
from synergyd.control.state.node_health import DrainNode, RememberNodes
from synergyd.control.tracked import KeepReport, Output, ParkAgain, Remember, TellBatch
from synergyd.daemon.adoption import remove_plan
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.client import DeniedError, SlurmError
from synergyd.slurm.parsed.job_forms import Forms
from synergyd.slurm.parsed.rows import JobRow
from synergyd.store.buffer import BufferedStore
from synergyd.store.records import StoredEvent, StoredLifecycle, StoredNode, StoredReport

log = logging.getLogger("synergyd")


@dataclass
class Executor:
    """The executor of the controller's outputs.

    `do` takes one at a time, in order. `batches`, `orders`: what jobs are told in the answer to a report, by (job,
    incarnation): another batch, a restart in place. `requests` likewise: a checkpoint.
    """

    store: BufferedStore
    actuator: Actuator
    state_dir: Path
    clock: Callable[[], float]
    find_lifted_limit: Callable[[Update], str] = lambda _: (
        ""
    )  # which of Slurm's limits such a write would lift, "" for none
    job: Callable[[int], Job | None] = lambda _: None  # as it was seen last
    notifies: bool = False  # somebody is told of what happens to jobs
    batches: dict[tuple[int, int], ReportAnswer] = field(default_factory=dict)
    orders: dict[tuple[int, int], ReportAnswer] = field(default_factory=dict)
    requests: dict[tuple[int, int], ReportAnswer] = field(default_factory=dict)
    _to_park: dict[float, list[int]] = field(default_factory=dict)  # to be put off once more, by seconds
    _grace_ended: set[int | str] = field(default_factory=set)  # jobs of the last epoch
    _parked: set[int] = field(default_factory=set)  # array tasks that wait for others, and bear our stamp
    _problem: str = ""  # with keeping jobs from starting: told once, not for every job at every epoch

    def begin(self) -> None:
        """Discard what an earlier epoch left undone: a new epoch's outputs follow."""
        self.batches, self._to_park = {}, {}

    def do(self, output: Output) -> InstructionAnswered | None:
        """Carry out `output`.

        Return the answer to an instruction, or None if there is none. Raises DeniedError if this daemon may not write
        to jobs.
        """
        match output:
            case Remember():
                self._remember(output)
            case KeepReport(report=report, heard_s=heard_s, profiles=profiles):
                if report is not None:
                    self.store.put_reports([StoredReport(report, heard_s)])
                self.store.put_profiles(profiles, heard_s)
            case TellBatch(job_id=job_id, restarts=restarts, plan=plan):
                self.batches[job_id, restarts] = ReportAnswer(plan)
            case ParkAgain(job_id=job_id, park_s=park_s):
                self._to_park.setdefault(park_s, []).append(job_id)
            case RememberNodes(records=records):
                now_s = self.clock()
                self.store.put_nodes([StoredNode(r.name, encode(r), now_s) for r in records])
            case DrainNode():
                self._drain(output)
            case _:
                self.store.flush()  # what is intended is stored before it is done
                lifts = self.find_lifted_limit(output) if isinstance(output, Update) else ""
                # other jobs of the account may be on their way out: ask a few times more, then decide anew
                answer = Refused(output, lifts, transient=False) if lifts else self.actuator.carry_out(output)
                if isinstance(output, AskCheckpoint) and not isinstance(answer, Refused):
                    number = self.actuator.checkpoint_request(output.job_id)
                    if number:  # it counts as asked when its launcher says that it has heard
                        self.requests[output.job_id, output.restarts] = ReportAnswer(Plan(), request=number)
                        return None
                if isinstance(output, Restart) and not isinstance(answer, Refused):
                    self.orders[output.job_id, output.restarts] = ReportAnswer(
                        output.plan, output.number, nodes=output.nodes
                    )
                if isinstance(output, JoinNodes) and not isinstance(answer, Refused):
                    order = ReportAnswer(output.plan, output.number, nodes=output.nodes, joins=True)
                    self.orders[output.job_id, output.restarts] = order
                if isinstance(output, Park):
                    self._tell(output.job_id, answer.error if isinstance(answer, Refused) else "")
                return InstructionAnswered(answer)
        return None

    def keep_forms(
        self, forms: Forms, rows: Mapping[int, JobRow], park_s: float, note_postponed_start: Callable[[int], None]
    ) -> None:
        """Keep array tasks that are to wait from starting, and make jobs of the next ones, which the next epoch sees.

        Call `note_postponed_start` with each job before its start time is written. Raise DeniedError.
        """
        soon_s = self.clock() + park_s / 2
        self._parked &= rows.keys()
        for job_id in forms.park:
            if job_id not in self._parked:
                note_postponed_start(job_id)
                answer = self.actuator.carry_out(Park(job_id, park_s))
                self._tell(job_id, answer.error if isinstance(answer, Refused) else "")
                self._parked |= set() if isinstance(answer, Refused) else {job_id}
            elif (eligible_s := rows[job_id].eligible_s) is None or eligible_s < soon_s:
                note_postponed_start(job_id)
                self._to_park.setdefault(park_s, []).append(job_id)
        for job_id, task in forms.split:
            answer = self.actuator.carry_out(Split(job_id, task, park_s))
            if isinstance(answer, Refused):
                log.warning("task %d of array %d could not be made a job of its own: %s", task, job_id, answer.error)

    def end_plugin_grace(self, job_ids: Sequence[int], outside: Sequence[int | str] = ()) -> None:
        """Let the jobs that are left to Slurm start at once, because nobody will decide about them. Asks Slurm once a job.

        `outside`: Slurm's names of jobs that the settings leave out.
        """
        fresh = [i for i in job_ids if i not in self._grace_ended]
        names = [name for name in outside if name and name not in self._grace_ended]
        self._grace_ended = {*job_ids, *outside}
        if (fresh or names) and (problem := self.actuator.end_plugin_grace(fresh, names)):
            self._grace_ended -= {*fresh, *names}
            log.warning("jobs left to Slurm wait for the plugin's grace to end: %s", problem)

    def restore_mails(self, job_ids: Iterable[int]) -> None:
        """Give resized jobs that run the mails back that their users asked for. Raise DeniedError."""
        for job_id in job_ids:
            try:
                self.actuator.restore_mail(job_id)
            except SlurmError as problem:  # tried again at the next epoch
                log.warning("job %d: its MailType could not be restored: %s", job_id, problem)

    def renew_parking(self) -> None:
        """Postpone again the jobs that were parked before, in one call for all with the same `park_s`."""
        again, self._to_park = self._to_park, {}
        for park_s, job_ids in again.items():
            self._tell(job_ids[0], self.actuator.renew_parking(job_ids, park_s))

    def _remember(self, step: Remember) -> None:
        lifecycle, now_s = step.lifecycle, self.clock()
        job_id, state = lifecycle.job_id, lifecycle.state.value
        if step.was is ResizeState.CHECKPOINTING is not lifecycle.state or lifecycle.state is ResizeState.GONE:
            self.requests = {key: request for key, request in self.requests.items() if key[0] != job_id}
        if self.orders and lifecycle.state not in (ResizeState.RESTARTING, ResizeState.JOINING):
            self.orders = {key: order for key, order in self.orders.items() if key[0] != job_id}
        for text in step.story:
            log.info("job %d %s: %s", job_id, state, text)
        self.store.append_events([StoredEvent(job_id, now_s, state, step.event, text) for text in step.story])
        if self.notifies and (notice := make_notice(step, self.job(job_id), now_s)) is not None:
            self.store.put_notices([notice])
        if lifecycle.state is ResizeState.GONE:
            self.store.delete_lifecycles([job_id])
            remove_plan(self.state_dir, job_id)
            return
        self.store.put_lifecycles([StoredLifecycle(job_id, lifecycle.submit_s, state, encode(lifecycle), now_s)])

    def _drain(self, output: DrainNode) -> None:
        """Drain a node. No job depends on it: a daemon that may not write to nodes goes on without."""
        self.store.flush()  # what is intended is stored before it is done
        try:
            self.actuator.slurm.drain(output.name, output.reason)
        except (SlurmError, DeniedError) as error:
            log.warning("node %s could not be drained: %s", output.name, error)
        else:
            log.warning("node %s drained: %s", output.name, output.reason)

    def _tell(self, job_id: int, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("job %d could not be kept waiting: %s", job_id, problem)
        self._problem = problem
