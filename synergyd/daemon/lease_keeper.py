"""The renewal of this daemon's lease, from a thread of its own, whatever an epoch takes, as long as epochs are completed."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from synergy_core.errors import UsageError

from synergyd.slurm.client import SlurmError
from synergyd.store.leader import Leader, elapsed_s

log = logging.getLogger("synergyd")
LEAST_S = 0.5  # a write is not begun with less of the lease left: a process must be started within it


class LeaseKeeper:
    """The keeper of this daemon's lease.

    `grace_s`: a daemon that has completed no epoch for so long leaves the lease to one that does. `waited_s`: for how
    many seconds it has waited in all for its turn with Slurm, which does not count as silence.

    The loop calls `begin_turn` before each epoch or tick: leadership may end at any moment, but begins between two turns only. An
    epoch that began as a stand-by's, or in an earlier term, never acts.
    """

    def __init__(
        self,
        leader: Leader,
        grace_s: float,
        clock: Callable[[], float] = elapsed_s,
        waited_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._leader, self._grace_s, self._clock, self._waited_s = leader, grace_s, clock, waited_s
        self._completed_s = clock()  # without the waits: none up to now
        self._turn: tuple[bool, int | None] = False, None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fault: UsageError | None = None
        self._fit = True

    @property
    def problem(self) -> str:
        """Return why the database could not be asked, or "" if it could."""
        return self._leader.problem

    @property
    def term(self) -> int:
        """Return the term in which this daemon led last, or 0 if it never did, or did so without the database."""
        return self._leader.term or 0

    def start(self) -> None:
        """Ask once, then go on in the thread. Raises UsageError if leading is not possible."""
        self._leader.try_lead()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def begin_turn(self) -> bool:
        """Return whether this turn of the loop may act. Raises UsageError if leading turned out to be impossible."""
        if self._fault is not None:
            raise self._fault
        self._turn = self._leader.is_leading, self._leader.term
        return self._turn[0]

    def leads(self) -> bool:
        """Return whether this daemon may act, now and in this turn."""
        return self._turn[0] and self._leader.is_leading and self._leader.term == self._turn[1]

    def note_completed_epoch(self) -> None:
        self._completed_s = self._clock() - self._waited_s()

    @contextmanager
    def guard_write(self) -> Iterator[None]:
        """Guard the start of a call that changes jobs. Raises SlurmError if this daemon does not lead.

        A process that is stopped (SIGSTOP, a debugger) between the look at the lease and the call would make it when it goes on,
        however late. So the kernel is told first to end the process when the lease ends: a stopped process gets that signal
        before it runs one more instruction. The `with` block holds no more than the start of a program, so this never happens otherwise.
        """
        left_s = self._leader.time_left_s
        before = signal.setitimer(signal.ITIMER_REAL, max(left_s, LEAST_S))
        try:
            if not self.leads() or self._leader.time_left_s < LEAST_S:
                raise SlurmError("lease", "another synergyd may lead by now", transient=True)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, *before)

    def close(self) -> None:
        """Give the lease back."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._leader.release()

    def _run(self) -> None:
        while not self._stop.wait(self._leader.wait_s):
            try:
                fit = self._clock() - self._waited_s() <= self._completed_s + self._grace_s
                if fit != self._fit:
                    self._fit = fit
                    log.warning(
                        "lease: %s",
                        "epochs are completed again" if fit else f"no epoch for {self._grace_s:.0f} s: left to others",
                    )
                if fit:
                    self._leader.try_lead()
                else:
                    self._leader.step_back()
            except UsageError as error:
                self._fault = error
                return
            except Exception:  # a fault of ours: the lease then ends by itself
                log.exception("the lease could not be looked after")
