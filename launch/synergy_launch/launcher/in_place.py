"""Restarts of a job's processes inside its allocation: the daemon's orders, and crashes of a run that had trained.

An order comes in the answer to a report, after the checkpoint that it builds on. A run that had got past its first steps and
ends with an error is started again from its last checkpoint, at most CRASHES times in WINDOW_S, and each time only where it has
come further than at the crash before: a script that fails at the same step again ends with its own exit code. Where a node is lost
the run goes on with those that are left, as far as its plan can be cut down to them.

On several nodes the first one decides for all (crew.py); without a connection to each of them nothing is restarted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from synergy_launch.launcher import run_history
from synergy_launch.launcher.allocation import JobAllocation
from synergy_launch.launcher.crew import Crew, NextRun
from synergy_launch.launcher.plan_guard import HOLD_S, PlanGuard
from synergy_launch.launcher.run_history import Crash
from synergy_launch.launcher.start import fit_plan
from synergyd.job_report import InPlace
from synergyd.records import Plan
from synergyd.wire.report import Told

CRASHES, WINDOW_S = 3, 3600.0
#: for the end of a run that has its checkpoint; torchrun gives its workers 60 s (TORCH_ELASTIC_SHUTDOWN_TIMEOUT)
LEAVE_S = 75.0
#: Slurm ends or requeues a job that has lost a node when its SlurmdTimeout (300 s unless an admin sets it) is over
LOST_HOLD_S = 900.0
_TELL_S = 0.5  # before the first node ends its run: the others must know that it is to end
_CAUSE_S = 1.0  # in which nodes that failed together say why
_POLL_S = 0.1
_USAGE = 2  # a user's mistake by the house's convention and argparse's: another try says the same
_ENDED_WELL = (0, _USAGE, 130, 143)  # SIGINT, SIGTERM


def may_go_on(crashes: tuple[Crash, ...], step: int, now_s: float, most: int = CRASHES) -> bool:
    """Is a run that crashed at `step` started again? `crashes`: those before, of all incarnations."""
    late = [c for c in crashes if abs(now_s - c.at_s) < WINDOW_S]  # whichever way a clock was set
    return len(late) < most and all(step > c.step for c in crashes)


class Restarts:
    """Of one node of one incarnation. `folder`: the checkpoints'; None where there are none. `crashes`: the most in WINDOW_S.
    `able` False: no run is started again for an order or a crash.

    `hear` what the daemon says, `look` at the run's status, `poll` often; where `leaves` is true the run is to end. `goes_on` says
    whether another follows, on `allocation`.
    """

    def __init__(
        self,
        allocation: JobAllocation,
        folder: Path | None,
        *,
        crashes: int = CRASHES,
        crew: Crew | None = None,
        able: bool = True,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.told = InPlace()
        self.allocation, self.crew = allocation, crew
        self._folder, self._most, self._clock, self._monotonic = folder, crashes, clock, monotonic
        self._all, self._able = allocation.nodes, able
        self._order: Told | None = None  # heard, and not followed yet; set by the reporter's thread
        self._said_at: float | None = None  # when the other nodes were told of it
        self._acknowledged = self._present = 0  # checkpoints on request: of former runs, of this one
        self._step = 0
        self._saved: int | None = None
        self._crashes: tuple[Crash, ...] = ()  # of this incarnation: the file may not take them
        self._state: object = None  # of the run, as it said last
        self.left = False  # the launcher has ended the run
        self._gone: set[int] = set()  # nodes whose loss has been answered
        self.words = ""

    @property
    def possible(self) -> bool:
        """Can this launcher restart the job's processes?"""
        alone = len(self._all) == 1 or (self.crew is not None and self.crew.connected)
        return self._able and self.allocation.job_id is not None and alone

    @property
    def follows(self) -> bool:
        """Another node decides."""
        return self.crew is not None and not self.crew.first and self.crew.connected

    @property
    def decided(self) -> bool:
        """The run is to end, and what follows is known."""
        if self._order is not None:
            return self.crew is None or (self._said_at is not None and self._monotonic() >= self._said_at + _TELL_S)
        return self._word is not None or bool(self.code)

    @property
    def code(self) -> int:
        """The exit code with which the first node has ended the job; 0: it has not, or ended well."""
        return self.crew.word.code if self.crew is not None and self.crew.word is not None else 0

    @property
    def broken(self) -> bool:
        """The run has ended on another node, whose end is not known to this one's processes."""
        crew = self.crew
        if crew is None or not crew.first:
            return False
        return self.bereft or any(code not in (0, 130, 143) for _, code, _ in self._ends(crew))

    @property
    def bereft(self) -> bool:
        """A node is lost, and nothing has followed from it yet."""
        return self.crew is not None and self.crew.first and bool(self.crew.lost - self._gone)

    @property
    def hurries(self) -> bool:
        """The run is over: its processes, which may wait for others for ever, are not asked first."""
        return self.broken or bool(self.code) or (self._word is not None and self._word.order == self.told.order)

    @property
    def acknowledged(self) -> int:
        """Checkpoints on request that runs before this one have completed: the incarnation's count goes on."""
        return self._acknowledged

    def hear(self, told: Told) -> None:
        """The daemon's order; one that was followed already is none."""
        if self.possible and not self.follows and told.order > self.told.order:
            self._order = told

    def poll(self) -> None:
        """Takes in what other nodes say, and tells them of an order."""
        if self.crew is None:
            return
        self.crew.poll()
        if self._order is not None and self._said_at is None:
            self._said_at = self._monotonic()
            self._tell(self._order.order, self._order.plan)

    def look(self, status: Mapping[str, Any] | None) -> None:
        """The run's status as it is now."""
        if status is None:
            return
        self._state = status.get("state")
        step, saved, requests = (status.get(name) for name in ("step", "checkpoint_step", "checkpoint_requests"))
        self._step = step if isinstance(step, int) else self._step
        self._saved = saved if isinstance(saved, int) else self._saved
        self._present = requests if isinstance(requests, int) else self._present

    def ended(self) -> None:
        """The run is over: an order that has not ended it has come too late."""
        if self._order is not None and not self.left and self._state != "waiting":
            self._order = self._said_at = None

    def cause(self, code: int, *, own: bool) -> tuple[int, str]:
        """(exit code, kind) of what ended the run on the nodes. `own`: this node's processes ended by themselves, with `code`; what
        another says counts where it says more. Waits for their words."""
        crew, until = self.crew, self._monotonic() + _CAUSE_S
        if crew is None or not crew.first or code in (0, 130, 143):
            return code, ""
        while self._monotonic() < until and not self.broken:
            time.sleep(_POLL_S)
            crew.poll()
        for _, other, kind in self._ends(crew):
            if other not in (0, 130, 143) and (kind != "exit" or not own):
                return other, kind
        return code, ""

    def goes_on(self, code: int, guard: PlanGuard) -> bool:
        """The run has ended with `code`: does another follow in the same allocation? Tells the other nodes."""
        if self.follows:
            return self._follow(code, guard)
        self.words = ""
        if (order := self._order) is not None:
            if self._said_at is None:  # it came as the run ended
                self._tell(order.order, order.plan)
            self._again(replace(self.told, order=order.order))
            self._order = self._said_at = None  # last: the reporter's thread may hear the same order again
            guard.follow(order.plan)
            self.words = f"started again in place with another plan, by the daemon's order {order.order}"
            return True
        plan = guard.plan_file.plan if guard.plan_file else None
        if self.bereft:
            return self._without_lost(guard)
        if guard.again or (guard.past and self._crashed(code)):
            self._tell(self.told.order, plan)
            self._again(self.told)
            return True
        if self.crew is not None and self.crew.first:
            self.crew.tell(NextRun(0, holds=guard.waits, code=min(code, 255)))
        return False

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _word(self) -> NextRun | None:
        """The first node's, where it is of a later run than the present one."""
        word = self.crew.word if self.crew is not None else None
        return word if word is not None and word.number > self.told.number else None

    def _ends(self, crew: Crew) -> list[tuple[int, int, str]]:
        return [end for end in crew.ended.values() if end[0] == self.told.number]

    def _crashed(self, code: int) -> bool:
        """A run past its first steps has ended by itself with `code`: is it started again?"""
        if not self.possible or code in _ENDED_WELL or self._saved is None:
            return False
        history, now_s = run_history.read(self._folder, self.allocation.job_id or 0), self._clock()
        if not may_go_on((*history.crashes, *self._crashes), self._step, now_s, self._most):
            return False
        if len(self._crashes) >= self._most:
            return False
        self._crashes = (*self._crashes, Crash(self._step, now_s))
        run_history.write(self._folder, history.with_crash(Crash(self._step, now_s)))
        self.words = (
            f"ended with exit code {code} at step {self._step}: "
            f"started again in place from its checkpoint of step {self._saved}"
        )
        self.told = replace(self.told, crashes=self.told.crashes + 1, code=min(code, 255), step=self._step)
        return True

    def _without_lost(self, guard: PlanGuard) -> bool:
        """A node is lost: the largest plan on those that are left, else nothing until Slurm sees the loss too."""
        crew = self.crew
        assert crew is not None
        self._gone |= crew.lost
        names = {self._all[rank] for rank in self._gone}
        left, plan = tuple(n for n in self._all if n not in names), guard.plan
        lost = ", ".join(sorted(names))
        for count in range(len(left), 0, -1):
            fits = fit_plan(plan, self.allocation.processes * count)[0]
            if fits is None or plan is None or self._saved is None or self._most == 0:
                continue
            self.told = replace(self.told, crashes=self.told.crashes + 1, code=0, step=self._step)
            self.allocation = replace(self.allocation, nodes=left[:count], node_rank=0)
            self._tell(self.told.order, fits)
            self._again(self.told)
            guard.follow(fits, self.allocation)
            self.words = f"{lost} lost: started again in place on {', '.join(left[:count])}"
            return True
        crew.tell(NextRun(0, holds=True))
        guard.waits, guard.tells = True, False
        self.words = f"{lost} lost: waits for Slurm"
        return False

    def _follow(self, code: int, guard: PlanGuard) -> bool:
        """Another node decides: waits for its word."""
        crew = self.crew
        assert crew is not None
        if self._word is None:
            crew.say_ended(self.told.number, min(code, 255), guard.kind(code))
        well = code in (0, 130, 143)  # others may go on for long
        until, name = self._monotonic() + (float("inf") if well else HOLD_S), self._all[crew.allocation.node_rank]
        while not guard.ending and crew.connected:
            word = self._word
            if word is not None:
                self.told = replace(self.told, number=word.number, order=word.order)
                if name in word.nodes:
                    self.allocation = replace(self.allocation, nodes=word.nodes, node_rank=word.nodes.index(name))
                    guard.follow(word.plan, self.allocation)
                    self.words = ""
                    return True
                until = float("inf")  # left out: its GPUs wait for a later run
            elif crew.word is not None and not crew.word.number:
                guard.waits, guard.tells = crew.word.holds, False
                return False
            if self._monotonic() >= until:
                return False
            time.sleep(_POLL_S)
            crew.poll()
        return False

    def _tell(self, order: int, plan: Plan | None) -> None:
        if self.crew is not None and self.crew.first:
            self.crew.tell(NextRun(self.told.number + 1, order, self.allocation.nodes, plan))

    def _again(self, told: InPlace) -> None:
        self.told = replace(told, number=told.number + 1)
        self._acknowledged, self._present = self._acknowledged + self._present, 0
        self._saved, self._state, self.left = None, None, False
