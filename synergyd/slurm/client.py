"""What Synergy needs of Slurm: a reader (any backend) and a writer (the command line only)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from synergyd.control.arrivals import JobCounts
from synergyd.errors import UnavailableError, UsageError
from synergyd.slurm.parsed.associations import AccountingRules
from synergyd.slurm.parsed.rows import JobRow, NodeRow, PartitionRow


class SlurmError(UnavailableError):
    """Slurm refused or did not answer. `transient` says whether the same call may succeed a little later."""

    def __init__(self, where: str, what: str, *, transient: bool) -> None:
        super().__init__(where, what)
        self.transient = transient


class DeniedError(UsageError):
    """Slurm does not let this user change jobs: trying again, or with another job, can't help."""


class SlurmReader(Protocol):
    """Bulk reads: one call each an epoch."""

    name: str

    def version(self) -> str:
        """Slurm's release, such as `22.05.8`."""
        ...

    def jobs(self) -> tuple[JobRow, ...]:
        """All jobs that are pending, running, suspended or completing."""
        ...

    def nodes(self) -> tuple[NodeRow, ...]:
        """All nodes, one row each."""
        ...


class SlurmWriter(Protocol):
    """Reads and writes of single jobs. Reads take job ids; writes what names the job alone, see `job_forms.name_of`."""

    def leaf_switches(self) -> dict[str, str]:
        """Node name -> its leaf switch, from Slurm's topology; empty where it knows of none. Raises SlurmError."""
        ...

    def partitions(self, *, again: bool = True) -> tuple[PartitionRow, ...]:
        """All partitions, with their limits and defaults. Without `again` the cluster's own defaults, which change with slurm.conf
        alone, are those of the last call. Raises SlurmError."""
        ...

    def node_lists(self, job_ids: Sequence[int]) -> Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]:
        """(ReqNodeList, ExcNodeList) by job id, of those that are in the queue. Raises SlurmError."""

    def accounting_rules(self) -> AccountingRules:
        """What Slurm enforces of accounting; nothing where it has none. Raises SlurmError."""
        ...

    def associations(self) -> str:
        """`scontrol show assoc_mgr`, in one call. Raises SlurmError."""
        ...

    def reservations(self) -> str:
        """All reservations, as `scontrol show reservation --oneliner` prints them with times in seconds since 1970; "" where there
        are none. Raises SlurmError."""
        ...

    def job_counts(self) -> JobCounts:
        """Return how many jobs were submitted and have ended. Raises SlurmError."""
        ...

    def job(self, job_id: int, *, ended: bool = False) -> JobRow | None:
        """One job now; None when it has left the queue. `ended`: as long as Slurm knows it (MinJobAge)."""
        ...

    def required_nodes(self, job_id: int) -> tuple[str, ...]:
        """A pending job's ReqNodeList."""
        ...

    def admin_comments(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        """AdminComment by job id, of those that have one."""
        ...

    def admin_comment(self, job_id: int) -> str:
        """One job's AdminComment now; "" where it has none."""
        ...

    def mail_of(self, job: int | str) -> tuple[str, str]:
        """Return (MailUser, MailType); empty where the job wants no mail. Raise SlurmError."""
        ...

    def batch_script(self, job_id: int) -> str | None:
        """The job's script; None where Slurm has none to give."""
        ...

    def update(self, job: int | str, fields: Mapping[str, str]) -> None:
        """`scontrol update`. Not atomic: read back."""
        ...

    @property
    def acts_as_owner(self) -> bool:
        """Does `update_size` write as the job's owner where Slurm holds jobs to limits?"""
        ...

    def update_size(self, job: int | str, uid: int, fields: Mapping[str, str]) -> None:
        """`update` of a job of user `uid` that leaves the limits of its association in force, where this user can."""
        ...

    def delay(self, jobs: Sequence[int | str], seconds: int) -> None:
        """Puts the start of pending jobs off until `seconds` from now; jobs that are pending no more are passed over."""
        ...

    def release(self, job: int | str) -> None:
        """Ends a pending job's hold, whoever set it."""
        ...

    def requeue(self, job: int | str, *, failed: bool = False) -> None:
        """Ends the running job and puts it back into the queue. `failed`: one that has ended, instead."""
        ...

    @property
    def private(self) -> frozenset[str]:
        """What PrivateData hides from users; ALL_PRIVATE where Slurm was not asked yet."""
        ...

    def unheard(self, nodes: Sequence[str]) -> frozenset[str]:
        """Which of `nodes` (none: all) have not registered yet with a slurmctld that may have just taken over. Raises SlurmError."""
        ...

    def reserve(self, name: str, nodes: Sequence[str], user: str) -> None:
        """Makes a shield (parsed/reservations.py) of this name. Raises SlurmError."""
        ...

    def unreserve(self, name: str) -> None:
        """Deletes the reservation of this name. Raises SlurmError."""
        ...

    def power_up(self, nodes: Sequence[str]) -> None:
        """Has Slurm power up nodes that are powered down."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """Lets no new job start on a node. Raises SlurmError, DeniedError."""
        ...

    def signal_launchers(self, job: int | str, name: str) -> None:
        """Send a signal to the processes of the steps in which the job's launchers run, and to no other step."""
        ...
