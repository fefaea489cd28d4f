"""The interfaces that Synergy needs to Slurm: a reader (any backend) and a writer (the command line only)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from synergy_core.errors import UnavailableError, UsageError

from synergyd.control.arrivals import JobCounts
from synergyd.slurm.parsed.associations import AccountingRules
from synergyd.slurm.parsed.rows import JobRow, PartitionRow, SlurmNodeRow


class SlurmError(UnavailableError):
    """A refusal of Slurm, or no answer. `transient` says whether the same call may succeed a little later."""

    def __init__(self, where: str, what: str, *, transient: bool) -> None:
        super().__init__(where, what)
        self.transient = transient


class DeniedError(UsageError):
    """A refusal of Slurm to let this user change jobs: trying again, or with another job, can't help."""


class SlurmReader(Protocol):
    """Bulk reads: one call each an epoch."""

    name: str

    def version(self) -> str:
        """Return Slurm's release, such as `22.05.8`."""
        ...

    def jobs(self) -> tuple[JobRow, ...]:
        """Return all jobs that are pending, running, suspended or completing."""
        ...

    def nodes(self) -> tuple[SlurmNodeRow, ...]:
        """Return all nodes, one row each."""
        ...


class SlurmWriter(Protocol):
    """Reads and writes of single jobs. Reads take job ids; writes what names the job alone, see `job_forms.slurm_name`."""

    def jobs_of_user(self, uid: int) -> tuple[JobRow, ...]:
        """Return all jobs of a user in the queue. Raises SlurmError."""
        ...

    def leaf_switches(self) -> dict[str, str]:
        """Return the leaf switch by node name, from Slurm's topology; empty if it knows of none. Raises SlurmError."""
        ...

    def partitions(self, *, again: bool = True) -> tuple[PartitionRow, ...]:
        """Return all partitions, with their limits and defaults.

        Without `again` the cluster's own defaults, which change with slurm.conf alone, are those of the last call.
        Raises SlurmError.
        """
        ...

    def node_lists(self, job_ids: Sequence[int]) -> Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return (ReqNodeList, ExcNodeList) by job id, for those that are in the queue. Raises SlurmError."""

    def accounting_rules(self) -> AccountingRules:
        """Return what Slurm enforces of accounting; nothing if it has none. Raises SlurmError."""
        ...

    def associations(self) -> str:
        """Return the output of `scontrol show assoc_mgr`, in one call. Raises SlurmError."""
        ...

    def reservations(self) -> str:
        """Return all reservations, as `scontrol show reservation --oneliner` prints them with times in seconds since 1970.

        Return "" if there are none. Raises SlurmError.
        """
        ...

    def job_counts(self) -> JobCounts:
        """Return how many jobs were submitted and have ended. Raises SlurmError."""
        ...

    def job(self, job_id: int, *, ended: bool = False) -> JobRow | None:
        """Return one job now, or None when it has left the queue. `ended`: as long as Slurm knows it (MinJobAge)."""
        ...

    def required_nodes(self, job_id: int) -> tuple[str, ...]:
        """Return a pending job's ReqNodeList."""
        ...

    def admin_comments(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        """Return the AdminComment by job id, for those jobs that have one."""
        ...

    def admin_comment(self, job_id: int) -> str:
        """Return one job's AdminComment now, or "" if it has none."""
        ...

    def read_mail(self, job: int | str) -> tuple[str, str]:
        """Return (MailUser, MailType); empty if the job wants no mail. Raise SlurmError."""
        ...

    def batch_script(self, job_id: int) -> str | None:
        """Return the job's script, or None if Slurm has none to give."""
        ...

    def update(self, job: int | str, fields: Mapping[str, str], *, within_s: float = math.inf) -> None:
        """Run `scontrol update`, for `within_s` at most. It is not atomic: read back."""
        ...

    @property
    def acts_as_owner(self) -> bool:
        """Return whether `update_size` writes as the job's owner where Slurm holds jobs to limits."""
        ...

    def update_size(self, job: int | str, uid: int, fields: Mapping[str, str]) -> None:
        """Run `update` on a job of user `uid` so that the limits of its association stay in force, if this user can do that."""
        ...

    def delay(self, jobs: Sequence[int | str], seconds: int) -> None:
        """Put off the start of pending jobs until `seconds` from now; jobs that are no longer pending are passed over."""
        ...

    def release(self, job: int | str) -> None:
        """End a pending job's hold, whoever set it."""
        ...

    def requeue(self, job: int | str, *, failed: bool = False) -> None:
        """End the running job and put it back into the queue. `failed`: a job that has ended, instead."""
        ...

    @property
    def private(self) -> frozenset[str]:
        """Return what PrivateData hides from users, or ALL_PRIVATE if Slurm was not asked yet."""
        ...

    def unheard(self, nodes: Sequence[str]) -> frozenset[str]:
        """Return which of `nodes` (none: all) have not registered yet with a slurmctld that may have just taken over. Raises SlurmError."""
        ...

    def reserve(self, name: str, nodes: Sequence[str], user: str) -> None:
        """Make a shield (parsed/reservations.py) of this name. Raises SlurmError."""
        ...

    def unreserve(self, name: str) -> None:
        """Delete the reservation of this name. Raises SlurmError."""
        ...

    def step_wait_s(self) -> float:
        """Return WaitTime: for how many seconds srun waits for a step's other tasks after the first has ended; 0: for ever."""
        ...

    def keep_nodes(self, job: int | str, nodes: Sequence[str]) -> None:
        """Give all other nodes of a running job back. Raises SlurmError, DeniedError."""
        ...

    def power_up(self, nodes: Sequence[str]) -> None:
        """Have Slurm power up nodes that are powered down."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """Let no new job start on a node. Raises SlurmError, DeniedError."""
        ...

    def end_allocation(self, job: int | str) -> None:
        """End a job that has no batch script. Raises SlurmError, DeniedError."""
        ...

    def signal_launchers(self, job: int | str, name: str) -> None:
        """Send a signal to the processes of the steps in which the job's launchers run, and to no other step."""
        ...
