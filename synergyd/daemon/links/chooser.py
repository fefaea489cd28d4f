"""The look-ahead beside the link arbiter: what has been seen of each job, and a thread that chooses each group's discipline from it.

No question waits for a choice: the arbiter answers by the one in force, and lets all go at once until there is one. The thread takes at
most SHARE of a core. An error in it ends the choosing, not the arbiter.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from synergy_core.wire.link_protocol import LEAST_OF, Question

from synergyd.links.arbiter import (
    ArbiterState,
    ArbiterTerms,
    Event,
    JobLeft,
    SendAsked,
    SendDone,
    link_share,
    measured_mb,
    shares_links,
)
from synergyd.links.disciplines import Discipline, Srsf
from synergyd.links.guard import BARRED_S, KEPT_STEPS, Guards, Steps, takes_turns
from synergyd.links.lookahead import Sender, chosen_disciplines

log = logging.getLogger("synergyd.links")
SHARE = 0.05
# between two choices: doubled while the same is chosen, from the first again when a job joins, leaves or pauses
FIRST_S, LAST_S = 1.0, 30.0
# a job that asks nothing for so long, and for so many times its compute, is idle: it evaluates, or saves
_IDLE_S, _IDLE_STEPS = 2.0, 5
_UNSEEN_S = 10.0  # from a job's first message, if it asks no more, until others are chosen for without it
_LOOKS = 3  # steps
ALONE = Discipline(Srsf(1))  # for jobs that are to take turns, until it is known how long their messages take alone
_WINDOW = 9  # steps whose median compute counts


@dataclass
class JobObservation:
    """The arbiter's observations of one job.

    `steps`: from one question to the next. `ended_s`: when its last message arrived, None if it need not ask after that
    one. `reported_mb`, `alone_mb`: a message by its bytes, and by the least time that one took (0: not known); `messages_alone`:
    messages since one last went beside others; `untimed_questions`: questions since it last told times.
    """

    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    message_mb: float = 0.0
    share: float = 1.0
    reported_mb: float = 0.0
    alone_mb: float = 0.0
    messages_alone: int = 0
    untimed_questions: int = 0
    asked_s: float = -math.inf
    ended_s: float | None = None
    asks: bool = True
    fresh: int = 0  # steps seen since it was let go


class JobObservations:
    """The observations of all jobs, kept by the arbiter's thread, event by event."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobObservation] = {}
        #: jobs whose every step is to be seen; set by the thread that chooses
        self.on_trial: frozenset[int] = frozenset()

    def note(self, event: Event, now_s: float) -> None:
        if isinstance(event, JobLeft):
            # it may only have lost its connection, as on a loaded node: what is known of it holds until `forget`
            if event.job_id in self.jobs:
                self.jobs[event.job_id].ended_s = None
        elif isinstance(event, SendDone):
            observation = self.jobs.setdefault(event.job_id, JobObservation())
            observation.ended_s = now_s if observation.asks else None
        elif isinstance(event, SendAsked):
            observation = self.jobs.setdefault(event.job_id, JobObservation())
            observation.message_mb, observation.share, observation.asks = event.size_mb, event.share, True
            if observation.ended_s is not None:
                observation.compute_s.append(now_s - observation.ended_s)
                observation.steps.append((observation.asked_s, now_s))
                observation.fresh += 1
                observation.ended_s = None
            observation.asked_s = now_s

    def forget(self, job_id: int) -> None:
        """Forget a job that has ended, or runs on other nodes."""
        self.jobs.pop(job_id, None)

    def question(self, job_id: int, job_question: Question, state: ArbiterState, terms: ArbiterTerms) -> SendAsked:
        """Return the event that a job's question is."""
        size_mb = measured_mb(job_question.size_mb, job_question.exposed_s, state.links.get(job_id, ()), terms.topology)
        member = state.members.get(job_id)
        if not terms.look_ahead or member is None:
            return SendAsked(job_id, size_mb)  # the papers' rules take a link as full
        alone = terms.disciplines.get(job_id, terms.discipline).rule.most == 1 or not shares_links(state, job_id)
        alone_mb = self.least_mb(job_id, job_question.size_mb, size_mb if job_question.exposed_s > 0 else 0.0, alone)
        return SendAsked(job_id, alone_mb, link_share(job_question.size_mb, alone_mb, len(set(member.nodes))))

    def least_mb(self, job_id: int, told_mb: float, size_mb: float, alone: bool) -> float:
        """Return the size of a message of `told_mb` by its time alone, or by its bytes until that time is known.

        `size_mb` is its size by the least time that the latest ones took, as the job reports it, or 0 if it does not.
        If these did not go `alone`, all of them may have shared their links: then only a value below the known one is
        news.
        """
        observation = self.jobs.setdefault(job_id, JobObservation())
        observation.messages_alone = observation.messages_alone + 1 if alone else 0
        observation.untimed_questions = 0 if size_mb > 0 else observation.untimed_questions + 1
        is_known = observation.alone_mb > 0 and observation.reported_mb == told_mb
        if size_mb > 0 and (is_known or observation.messages_alone > 1):  # beside the first some are under way
            keeps_least = is_known and observation.messages_alone < LEAST_OF
            observation.reported_mb, observation.alone_mb = (
                told_mb,
                min(observation.alone_mb, size_mb) if keeps_least else size_mb,
            )
        return observation.alone_mb if observation.alone_mb > 0 and observation.reported_mb == told_mb else told_mb

    def can_be_dismissed(self, job_id: int, shares: bool) -> bool:
        """Return whether a job that asks in vain may be told so.

        Nothing is seen of it until its next question, so a job that `shares` links is looked at for some steps first.
        """
        observation = self.jobs.setdefault(job_id, JobObservation())
        if job_id in self.on_trial or (shares and observation.fresh < _LOOKS):
            return False
        observation.asks, observation.fresh = False, 0
        return True

    def senders(self, now_s: float) -> dict[int, Sender]:
        """Return the senders by job id, for the jobs whose compute is known. Called from the thread that chooses."""
        sender_by_id = {}
        for job_id, observation in list(self.jobs.items()):
            took, ended_s = list(observation.compute_s), observation.ended_s
            if took and observation.message_mb > 0:
                compute_s = statistics.median(took)
                due_s = max(now_s, (now_s if ended_s is None else ended_s) + compute_s)
                sender_by_id[job_id] = Sender(job_id, compute_s, observation.message_mb, due_s, observation.share)
        return sender_by_id

    def is_time_unknown(self, jobs: Iterable[int]) -> bool:
        """Return whether it is not known yet how long messages of one of these jobs take alone. Called from the thread that chooses."""
        observations = [self.jobs.get(j, JobObservation()) for j in jobs]
        return any(x.alone_mb <= 0 and x.untimed_questions <= _LOOKS for x in observations)

    def steps(self) -> Steps:
        """Return the steps by job id. Called from the thread that chooses."""
        return {job_id: list(observation.steps) for job_id, observation in list(self.jobs.items())}

    def idle_jobs(self, joined: Iterable[int], now_s: float) -> set[int]:
        """Return those of the jobs `joined` that have not asked for much longer than a step computes, or never.

        Called from the thread that chooses.
        """
        return {job_id for job_id in joined if self._is_idle(self.jobs.get(job_id, JobObservation()), now_s)}

    @staticmethod
    def _is_idle(observation: JobObservation, now_s: float) -> bool:
        took, ended_s = list(observation.compute_s), observation.ended_s
        if not took:  # its second question tells what it is: until then turns, but not for long
            return observation.asked_s == -math.inf or (ended_s is not None and now_s - ended_s > _UNSEEN_S)
        return ended_s is not None and now_s - ended_s > max(_IDLE_S, _IDLE_STEPS * statistics.median(took))


class ChoiceTimer:
    """The time when the next choice is due."""

    def __init__(self) -> None:
        self._wait_s = FIRST_S
        self._due_s = self._rested_s = 0.0

    def choose_soon(self) -> None:
        """Make a choice due as soon as the last one's time allows, because the jobs that share links have changed."""
        self._wait_s, self._due_s = FIRST_S, 0.0

    def is_due(self, now_s: float) -> bool:
        return now_s >= max(self._due_s, self._rested_s)

    def note_choice(self, now_s: float, spent_s: float, same: bool) -> None:
        """Note that a choice has been made, in `spent_s` seconds of processor time; `same`: as before."""
        self._wait_s = min(LAST_S, 2 * self._wait_s) if same else FIRST_S
        self._due_s, self._rested_s = now_s + self._wait_s, now_s + spent_s / SHARE


class Choices:
    """The disciplines in force for each job, look by look: the forecast's choice of each group, and what the guard makes of it."""

    def __init__(self, observations: JobObservations, spent: Callable[[], float] = time.thread_time) -> None:
        """Store the inputs; `spent` returns the processor seconds so far."""
        self._seen, self._spent = observations, spent
        self._timer, self._guards = ChoiceTimer(), Guards()
        self._links: Mapping[int, Sequence[str]] = {}
        self._idle: set[int] = set()
        self._wanted: list[dict[int, Discipline]] = []
        self._found: dict[int, Discipline] = {}

    def look(self, state: ArbiterState, terms: ArbiterTerms, now_s: float) -> dict[int, Discipline]:
        """Return each job's discipline from now."""
        idle = self._seen.idle_jobs(state.links, now_s)
        # by value: links are made anew when a job's remaining time changes, too
        if state.links != self._links or idle != self._idle:
            self._timer.choose_soon()
            self._links, self._idle = state.links, idle
        if self._timer.is_due(now_s):
            begun = self._spent()
            before = dict(ChainMap(*self._wanted))
            past = replace(terms, disciplines=before)
            self._wanted = list(chosen_disciplines(state, self._seen.senders(now_s), now_s, past, idle=idle))
            self._timer.note_choice(now_s, self._spent() - begun, same=before == ChainMap(*self._wanted))
        proposals = [
            dict.fromkeys(x, ALONE) if takes_turns(x.values()) and self._seen.is_time_unknown(x) else x
            for x in self._wanted
        ]
        disciplines, barred = self._guards.in_force(proposals, state.links, self._seen.steps(), now_s)
        if disciplines != self._found:
            self._timer.choose_soon()  # the time that messages take alone is seen in turns only
            self._found = disciplines
        self._seen.on_trial = self._guards.on_trial
        for jobs, watch in barred:
            words = ", ".join(map(str, jobs))
            effect = f"{100 * watch.slower:.0f} % less steps" if watch.slower else "no more steps"
            level = logging.WARNING if watch.slower else logging.INFO
            log.log(
                level,
                "jobs %s made %s in turns on their links than left alone: they are not gated for %.0f s",
                words, effect, BARRED_S,
            )  # fmt: skip
        return disciplines


class LinkChooser:
    """The thread that chooses.

    `look` gives the arbiter's present state and terms, `put` gets each group's choice; both may be called from it.
    """

    def __init__(
        self,
        look: Callable[[], tuple[ArbiterState, ArbiterTerms]],
        observations: JobObservations,
        put: Callable[[Mapping[int, Discipline]], None],
        clock: Callable[[], float],
    ) -> None:
        self._look, self._seen, self._put, self._clock = look, observations, put, clock
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, name="link-arbiter-look-ahead", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop choosing. Never waits: a choice under way is not put any more."""
        self._closing.set()

    def _live(self) -> None:
        try:
            self._choose()
        except Exception:
            terms = self._look()[1]
            log.exception("the look-ahead ended by a fault; nobody waits")
            if terms.disciplines:
                self._put({})

    def _choose(self) -> None:
        choices = Choices(self._seen)
        while not self._closing.wait(FIRST_S):
            state, terms = self._look()
            if not terms.look_ahead:
                continue
            disciplines = choices.look(state, terms, self._clock())
            if self._closing.is_set():
                return
            if disciplines != dict(terms.disciplines):
                self._put(disciplines)
