"""The look-ahead beside the link arbiter: what has been seen of each job, and a thread that chooses each group's discipline from it.

No question waits for a choice: the arbiter answers by the one in force, SRSF(1) until there is one. The thread takes at most
SHARE of a core. An error in it ends the choosing, not the arbiter.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from synergyd.links.arbiter import ArbiterState, ArbiterTerms, Event, JobLeft, SendAsked, SendDone
from synergyd.links.disciplines import Discipline
from synergyd.links.lookahead import Sender, chosen_disciplines

log = logging.getLogger("synergyd.links")
SHARE = 0.05
# between two choices: doubled while the same is chosen, from the first again when a job joins, leaves or pauses
FIRST_S, LAST_S = 1.0, 30.0
# a job that does not ask for so long, and for so many times its compute, is idle: it evaluates, or saves
_IDLE_S, _IDLE_STEPS = 2.0, 5
_LOOKS = 3  # steps
_WINDOW = 9  # steps whose median compute counts


@dataclass
class Seen:
    """What the arbiter has seen of one job. `ended_s`: when its last message arrived, None if it need not ask after that one."""

    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    message_mb: float = 0.0
    ended_s: float | None = None
    asks: bool = True
    fresh: int = 0  # steps seen since it was let go


class SeenJobs:
    """Kept by the arbiter's thread, event by event."""

    def __init__(self) -> None:
        self.jobs: dict[int, Seen] = {}

    def note(self, event: Event, now_s: float) -> None:
        if isinstance(event, JobLeft):
            self.jobs.pop(event.job_id, None)
        elif isinstance(event, SendDone):
            seen = self.jobs.setdefault(event.job_id, Seen())
            seen.ended_s = now_s if seen.asks else None
        elif isinstance(event, SendAsked):
            seen = self.jobs.setdefault(event.job_id, Seen())
            seen.message_mb, seen.asks = event.size_mb, True
            if seen.ended_s is not None:
                seen.compute_s.append(now_s - seen.ended_s)
                seen.fresh += 1
                seen.ended_s = None

    def let_go(self, job_id: int, shares: bool) -> bool:
        """Whether a job that asks in vain may be told so. Until its next question nothing is seen of it, so one that `shares` links is
        looked at for some steps first."""
        seen = self.jobs.setdefault(job_id, Seen())
        if shares and seen.fresh < _LOOKS:
            return False
        seen.asks, seen.fresh = False, 0
        return True

    def senders(self, now_s: float) -> dict[int, Sender]:
        """By job id, of those whose compute is known. Called from the thread that chooses."""
        found = {}
        for job_id, seen in list(self.jobs.items()):
            took, ended_s = list(seen.compute_s), seen.ended_s
            if took and seen.message_mb > 0:
                compute_s = statistics.median(took)
                due_s = max(now_s, (now_s if ended_s is None else ended_s) + compute_s)
                found[job_id] = Sender(job_id, compute_s, seen.message_mb, due_s)
        return found

    def idle(self, now_s: float) -> set[int]:
        """Jobs that have not asked for much longer than a step computes. Called from the thread that chooses."""
        return {
            job_id
            for job_id, seen in list(self.jobs.items())
            if (took := list(seen.compute_s))
            and (ended_s := seen.ended_s) is not None
            and now_s - ended_s > max(_IDLE_S, _IDLE_STEPS * statistics.median(took))
        }


class Pace:
    """When the next choice is due."""

    def __init__(self) -> None:
        self._wait_s = FIRST_S
        self._due_s = self._rested_s = 0.0

    def changed(self) -> None:
        """Who shares links is not as it was: a choice is due as soon as the last one's time allows."""
        self._wait_s, self._due_s = FIRST_S, 0.0

    def due(self, now_s: float) -> bool:
        return now_s >= max(self._due_s, self._rested_s)

    def chosen(self, now_s: float, spent_s: float, same: bool) -> None:
        """A choice has been made, in `spent_s` of processor time; `same`: as before."""
        self._wait_s = min(LAST_S, 2 * self._wait_s) if same else FIRST_S
        self._due_s, self._rested_s = now_s + self._wait_s, now_s + spent_s / SHARE


class LinkChooser:
    """The thread. `look` gives the arbiter's present state and terms, `put` gets each group's choice; both may be called from it."""

    def __init__(
        self,
        look: Callable[[], tuple[ArbiterState, ArbiterTerms]],
        seen: SeenJobs,
        put: Callable[[Mapping[int, Discipline]], None],
        clock: Callable[[], float],
    ) -> None:
        self._look, self._seen, self._put, self._clock = look, seen, put, clock
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._live, name="link-arbiter-look-ahead", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Never waits: a choice under way is not put any more."""
        self._closing.set()

    def _live(self) -> None:
        try:
            self._choose()
        except Exception:
            terms = self._look()[1]
            log.exception("the look-ahead ended by a fault; the rule is %s", terms.discipline.name)
            if terms.chosen:
                self._put({})

    def _choose(self) -> None:
        pace = Pace()
        links: Mapping[int, Sequence[str]] = {}
        were_idle: set[int] = set()
        while not self._closing.wait(FIRST_S):
            state, terms = self._look()
            now_s = self._clock()
            idle = self._seen.idle(now_s)
            # by value: links are made anew when a job's remaining time changes, too
            if state.links != links or idle != were_idle:
                pace.changed()
                links, were_idle = state.links, idle
            if not terms.look_ahead or not pace.due(now_s):
                continue
            begun = time.thread_time()
            found: dict[int, Discipline] = {}
            for group in chosen_disciplines(state, self._seen.senders(now_s), now_s, terms, idle=idle):
                found |= group
            if self._closing.is_set():
                return
            same = found == dict(terms.chosen)
            pace.chosen(self._clock(), time.thread_time() - begun, same)
            if not same:
                self._put(found)
