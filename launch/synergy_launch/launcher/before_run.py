"""What happens on a node before its training processes start: their imports in a process that waits, and the check of the node."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

import click
from synergy_core.node_check import MEASURES

from synergy_launch.agent import host_memory
from synergy_launch.agent.settings import TRY
from synergy_launch.launcher.failures.plan_guard import PlanGuard
from synergy_launch.launcher.in_place import Restarts
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.node_run import python_path
from synergy_launch.node_check.check import READY_S, check_node
from synergy_launch.node_check.recent_check import RecentCheck
from synergy_launch.warm_start.starter import FREE_BYTES, IMPORT_S, Starter

#: jobs with a shorter time limit are not checked: a check of 3 s would be 0.5 % of it and more
SHORT_JOB_S = 600.0
#: seconds for the imports on a node that joins, and else for a check's own, of the 60 in which its launcher must be there
#: (more_nodes.JOIN_S)
JOIN_IMPORT_S, JOIN_READY_S = 30.0, 15.0
_POLL_S = 0.1
#: kinds of a failure that a broken GPU or link may be the cause of; a killed process or the script's own error says nothing of them
SUSPICIOUS = frozenset({"nccl", "cuda", "hang", "gpu"})


def compute_threads(environment: Mapping[str, str]) -> str:
    """Return OMP_NUM_THREADS of a rank: one unless the user asks for more, which is torchrun's own default, without its warning."""
    return environment.get("OMP_NUM_THREADS", "1")


def environment_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the ranks' imports will see, as far as it is known before the run's plan."""
    return {**environment, **python_path(environment), "OMP_NUM_THREADS": compute_threads(environment)}


def read_time_limit_s(environment: Mapping[str, str]) -> float:
    """Return the job's time limit in seconds, or infinity if Slurm says none."""
    start, end = (environment.get(f"SLURM_JOB_{name}_TIME", "") for name in ("START", "END"))
    return float(int(end) - int(start)) if start.isdecimal() and end.isdecimal() else float("inf")


class NodeChecker:
    """The checks of this node in one incarnation, of which `restarts` is told. `enabled`: this kind of job is checked at all.

    A node is not checked where it was healthy lately, where the job runs on one node or has a short time limit, and where the host
    has no memory to spare.
    """

    def __init__(
        self,
        allocation: JobAllocation,
        environment: Mapping[str, str],
        guard: PlanGuard,
        restarts: Restarts,
        starter: Starter,
        *,
        enabled: bool,
    ) -> None:
        self._node = "".join(allocation.nodes[allocation.node_rank :][:1])
        is_trial = bool(environment.get(TRY))
        self._enabled = enabled and bool(self._node) and not is_trial and read_time_limit_s(environment) >= SHORT_JOB_S
        self._environment, self._guard, self._restarts, self._starter = environment, guard, restarts, starter
        self._recent = RecentCheck(self._node)

    def check_first(self, *, joins: bool = False) -> None:
        """Check the node before its first run. `joins`: it comes to a run on other nodes, which trains on meanwhile.

        The check is a fork of the process that makes the ranks' imports. No rank is there yet, so neither disturbs the other.
        """
        if not self._is_due(joins=joins):
            return
        if joins:  # without a word to the run, which would wait for a node that connects
            self._check(lambda: None, JOIN_IMPORT_S, JOIN_READY_S)
        else:
            self._check(self._restarts.poll)

    def check_after_failure(self, code: int) -> None:
        """Check the node before the next run if the last one, which ended with `code`, failed here as a broken GPU or link would have it.

        Call it before the guard begins the next run.
        """
        fault = self._guard.fault
        failed_elsewhere = fault is not None and fault.node != self._node
        if self._guard.kind(code) in SUSPICIOUS and not failed_elsewhere:
            self._recent.forget()
            if self._is_due():
                self._check(self._restarts.poll)

    def _is_due(self, *, joins: bool = False) -> bool:
        several = joins or len(self._restarts.allocation.nodes) > 1
        if not (self._enabled and several) or self._recent.is_recent(time.time()):
            return False
        free = host_memory.read_free_bytes()
        return free is None or free >= FREE_BYTES

    def _check(self, poll: Callable[[], None], import_s: float = IMPORT_S, ready_s: float = READY_S) -> None:
        """Check the node. `poll` is called meanwhile."""
        # until the run is there nobody could save
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            environment = environment_at_import(self._environment)
            self._starter.prepare(environment)
            if not self._await_imports(poll, import_s):
                return
            check = check_node(
                self._node,
                environment,
                start=lambda argv, values: self._starter.start(argv, values, output=True, errors=False),
                is_ending=lambda: self._guard.ending,
                poll=poll,
                ready_s=ready_s,
            )
        finally:
            signal.signal(signal.SIGUSR2, before)
        if check is None:
            return
        self._restarts.note_check(check)
        if check.hung_at:
            what = MEASURES[check.hung_at]
            click.echo(f"synergy-launch: {self._node}: measuring its {what} did not end in time", err=True)
        else:
            self._recent.note()

    def _await_imports(self, poll: Callable[[], None], within_s: float) -> bool:
        """Return whether the waiting process has made its imports, or failed, within so many seconds."""
        until_s = time.monotonic() + within_s
        while self._starter.is_importing:
            if self._guard.ending or time.monotonic() >= until_s:
                return False
            poll()
            self._starter.await_ready(_POLL_S)
        return True
