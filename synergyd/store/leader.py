"""The rule of one writer: if several daemons use one database, the one that holds its lease leads.

A lease is a row. Its holder renews it, which changes its beat. A stand-by watches that beat with a clock of its own, and
takes the lease when the beat has not changed for TERM_S. The holder acts for TERM_S - MARGIN_S after it *asked* for the
renewal that was granted last, by its own clock. It asked before the row was written, and the row was written before
another could read it: so it stops MARGIN_S before another starts. No time of day is compared, neither a machine's nor the
database's: a clock that jumps changes nothing. The clock used counts on while a machine is suspended.

A database that is away for everybody must not stop a leader that nobody could follow. So a stand-by takes a lease from a
silent holder only if that holder has *acknowledged* it: the renewal that says so is the holder's own. A holder that has
acknowledged nobody goes on without the database; one that has stops in time. A daemon that was not acknowledged (it came
while the holder was silent) waits until the holder is gone for certain (given back; a process of this machine that has
ended), or until the row and a second `witness` (the heartbeat in StateDir) have been silent for ORPHAN_S.

Each change of holder has a number, its term. It keeps an earlier holder from overwriting the next one's state in the store
(synergyd/store/records.py, Changes.term).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from synergy_core.errors import SynergyError, UsageError

from synergyd.store import lease
from synergyd.store.connect import make_engine, parse_url, plain_errors, show, sqlite_path
from synergyd.store.process import has_ended, this_process

# A take-over takes TERM_S, and the time between two looks of a stand-by (RENEW_S at most), and the loop's turn: below 10 s.
TERM_S = 6.0
MARGIN_S = 1.0  # for the last call's way to Slurm, and for clocks of two machines that do not run alike
RENEW_S = 1.0  # four renewals in a row may fail
ASK_S = 3.0  # longest that one answer of the database is waited for
ORPHAN_S = 60.0  # four heartbeats of a living daemon (synergyd/daemon/heartbeat.py)
# A leader that nobody follows and that has not even tried to renew for so long was stopped itself: it asks first. Longer than
# an attempt takes, and ORPHAN_S less a heartbeat's time at the most.
ALONE_S = 30.0
CLAIM_S = 5.0  # between the claim to lead without the database and the look whether another has claimed it since


def elapsed_s() -> float:
    """Return the seconds since boot, including the time for which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Witness(Protocol):
    """The signs that daemons see of one another outside the database."""

    def read_sign(self) -> str:
        """Return a value that changes as long as another daemon acts."""

    def claim(self, holder: str) -> None:
        """Announce that `holder` is about to lead without the database. The last claim counts."""

    def read_claimant(self) -> str:
        """Return the holder that made the last claim."""


class Nobody:
    """The witness of a daemon that can see no other."""

    def __init__(self) -> None:
        self._claimed = ""

    def read_sign(self) -> str:
        return ""

    def claim(self, holder: str) -> None:
        self._claimed = holder

    def read_claimant(self) -> str:
        return self._claimed


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The lease that this daemon holds. `is_followed`: another may take it over. Times are by the daemon's own clock."""

    is_followed: bool
    from_s: float
    until_s: float


class Leader:
    """The daemon's bid for leadership. Call `try_lead` from one thread, every `wait_s` seconds; any thread may read the properties.

    `clock` is the time of day, for show; `elapsed` is the clock that counts.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float],
        host: str = "",
        pid: int | None = None,
        elapsed: Callable[[], float] = elapsed_s,
        witness: Witness | None = None,
        cluster: str = "",
    ) -> None:
        self._url = parse_url(url)
        path = sqlite_path(self._url)
        if self._url.drivername == "sqlite" and path is None:
            raise UsageError(show(self._url), "a database in memory has no leader", "name a file")
        self._engine = None if path else make_engine(self._url, answer_s=ASK_S)
        self._clock, self._elapsed, self._witness = clock, elapsed, witness or Nobody()
        process = "" if pid is not None else this_process()
        self._me = lease.LeaseRow(
            holder=uuid.uuid4().hex,
            host=host or socket.gethostname(),
            pid=os.getpid() if pid is None else pid,
            process=process,
            cluster=cluster,
        )
        self._lease: Lease | None = None
        self._term: int | None = None
        self._beat = 0
        self._problem = ""
        self._answered = False  # the database, ever
        self._registered = False  # as a stand-by
        self._tried_s = elapsed()  # the last attempt's end
        self._silent_s = 0.0  # the other leader
        self._row, self._seen = lease.UnchangedSince(), lease.UnchangedSince()
        self._standbys: dict[str, lease.UnchangedSince] = {}
        self._away = lease.UnchangedSince()
        self._claimed_s: float | None = None

    @property
    def time_left_s(self) -> float:
        """Return for how many seconds from now this daemon may surely act, or 0 if it may not."""
        lease_row, now_s = self._lease, self._elapsed()
        if lease_row is None or now_s < lease_row.from_s:
            return 0.0
        return max(0.0, (lease_row.until_s if lease_row.is_followed else self._tried_s + ALONE_S) - now_s)

    @property
    def is_leading(self) -> bool:
        """Return whether this daemon leads now, without asking the database."""
        return self.time_left_s > 0

    @property
    def is_database_away(self) -> bool:
        """Return whether the database could not be asked at the last `try_lead`."""
        return bool(self._problem)

    @property
    def problem(self) -> str:
        """Return why the database could not be asked, in one line ("" if it could)."""
        return self._problem

    @property
    def term(self) -> int | None:
        """Return the term in which this daemon led last, or None if it never led or did so without the database."""
        return self._term

    @property
    def is_followed(self) -> bool:
        """Return whether another daemon stands by for this one."""
        return self._lease is not None and self._lease.is_followed

    @property
    def wait_s(self) -> float:
        """Return the seconds until `try_lead` should be called next."""
        left_s = TERM_S - self._silent_s
        return left_s if self._lease is None and 0.02 < left_s < RENEW_S else RENEW_S

    def try_lead(self) -> bool:
        """Renew this daemon's lease, or take it if nobody else can hold it any more. Return whether this daemon leads now.

        Raises UsageError if leading was never possible here (no permission, schema missing). An absent database sets
        `is_database_away`, and so does any fault of a database that has answered before: whoever mends it need not start the daemon
        again.
        """
        problem, asked_s = "", self._elapsed()
        try:
            with plain_errors(self._url):
                self._ask(asked_s)
            self._answered, self._away, self._claimed_s = True, lease.UnchangedSince(), None
        except SynergyError as error:
            if self._engine is not None:
                self._engine.dispose()  # a session may keep an old setting
            if isinstance(error, UsageError) and not self._answered:
                raise
            problem = str(error)
            self._lead_without(self._elapsed())
        self._problem, self._tried_s = problem, self._elapsed()
        return self.is_leading

    def step_back(self) -> None:
        """Stop leading at once and do not stand by either.

        A daemon that is not fit to lead calls this in place of `try_lead`. A leader that nobody follows goes on trying.
        """
        if self._lease is not None and not self._lease.is_followed:
            self.try_lead()
            return
        self._lease = None
        if self._registered:
            self._leave(give_back=False)

    def release(self) -> None:
        """Give the lease back, so that another daemon leads at its next try."""
        had, self._lease = self._lease, None
        self._leave(give_back=had is not None)
        if self._engine is not None:
            self._engine.dispose()

    # -- one transaction -----------------------------------------------------------------------------------------------

    def _ask(self, asked_s: float) -> None:
        before = self._lease
        engine = self._engine or make_engine(self._url, answer_s=ASK_S)
        with engine.execution_options(writes=True).begin() as connection:
            row = lease.lock_row(connection)
            lease.demand_own(self._url, row.cluster, self._me.cluster)
            self._beat += 1
            known_term = lease.read_acknowledged_term(connection, self._me.holder)
            leads = self._may_take(row, known_term)
            if leads:
                same = row.holder == self._me.holder
                term = max(row.term, self._term or 0) + (not same or not row.term)
                mine = replace(self._me, term=term, beat=row.beat + 1, cluster=self._me.cluster or row.cluster)
                lease.write(connection, mine, self._clock())
                lease.unregister(connection, self._me.holder)
                is_followed = bool(lease.acknowledge(connection, term, self._is_forgotten))
                if is_followed and before is not None:
                    self._lease = replace(before, is_followed=True)  # before the commit, whose answer may be lost
            else:
                lease.register(connection, replace(self._me, beat=self._beat))
                self._registered = True
        if leads:
            # its own row again after another was seen: the database lost its last seconds, or this daemon stepped back
            again = same and row.pid != 0 and before is None and self._term is not None
            has_lapsed = before is not None and before.is_followed and asked_s - before.until_s > ORPHAN_S / 2
            # then a daemon that has yet to see this row may lead: it gets the time
            from_s = self._elapsed() + TERM_S if again or has_lapsed else asked_s
            from_s = max(from_s, before.from_s if before is not None else from_s)
            self._term = term
            self._lease = Lease(is_followed=is_followed, from_s=from_s, until_s=asked_s + TERM_S - MARGIN_S)
        else:
            self._lease = None

    def _may_take(self, row: lease.LeaseRow, known_term: int | None) -> bool:
        now_s = self._elapsed()
        self._silent_s = self._row.silent_s((row.holder, row.term, row.beat), now_s)
        seen_s = self._seen.silent_s(self._witness.read_sign(), now_s)
        if row.holder == self._me.holder or row.pid == 0 or has_ended(row.process):
            return True
        if known_term == row.term:
            return self._silent_s >= TERM_S
        return min(self._silent_s, seen_s) >= ORPHAN_S

    def _is_forgotten(self, holder: str, beat: int) -> bool:
        """Return whether a stand-by has been silent for ORPHAN_S and can be forgotten.

        If it comes back, it asks to be acknowledged again.
        """
        watch = self._standbys.setdefault(holder, lease.UnchangedSince())
        return watch.silent_s(beat, self._elapsed()) >= ORPHAN_S

    def _lead_without(self, now_s: float) -> None:
        """Lead when nobody else has shown up for ORPHAN_S.

        Only a daemon that has never reached the database may, or one of a SQLite file that somebody keeps locked: all its daemons run
        on one host and see each other's heartbeat.
        """
        row = self._lease
        if (self._answered and self._engine is not None) or (row and (not row.is_followed or now_s < row.until_s)):
            return
        silent_s = min(self._away.silent_s("away", now_s), self._seen.silent_s(self._witness.read_sign(), now_s))
        if self._claimed_s is None:
            if silent_s >= ORPHAN_S:
                self._witness.claim(self._me.holder)
                self._claimed_s = now_s
        elif self._witness.read_claimant() != self._me.holder:
            self._claimed_s = None  # one leads if several were started together
        elif now_s >= self._claimed_s + CLAIM_S:
            self._lease = Lease(is_followed=False, from_s=now_s, until_s=now_s)

    def _leave(self, *, give_back: bool) -> None:
        if not self._answered:
            return
        # a row that stays costs the next leader a wait, nothing else
        with contextlib.suppress(SynergyError), plain_errors(self._url):
            engine = self._engine or make_engine(self._url, answer_s=ASK_S)
            with engine.execution_options(writes=True).begin() as connection:
                row = lease.lock_row(connection)
                if give_back and row.holder == self._me.holder:
                    lease.write(connection, replace(row, pid=0), self._clock())
                lease.unregister(connection, self._me.holder)
            self._registered = False
