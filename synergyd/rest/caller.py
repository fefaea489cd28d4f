"""The caller, and what Slurm lets them see and change. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class SlurmRights:
    """The rights of everybody, as Slurm's configuration and accounts state them."""

    #: PrivateData=jobs: others' jobs are hidden
    private_jobs: bool = False
    #: PrivateData=usage: others' hours are hidden
    private_usage: bool = False
    #: PrivateData=nodes: nodes are for those who command all
    private_nodes: bool = False
    #: the login name of SlurmUser, who may all that root may
    slurm_user: str = "root"
    #: users with AdminLevel=Operator or Admin
    operators: frozenset[str] = frozenset()
    #: by user, the accounts that it coordinates
    accounts_of: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of a job."""

    user: str
    account: str


def commands_all(user: str, rights: SlurmRights) -> bool:
    """Return whether the user may see and change every job: root, SlurmUser and operators, as with scancel and `scontrol update`."""
    return user in ("root", rights.slurm_user) or user in rights.operators


def commands(user: str, owner: Owner | None, rights: SlurmRights) -> bool:
    """Return whether the user may change this job: its owner, those who command all, and coordinators of its account.

    `owner` None: not known.
    """
    if commands_all(user, rights):
        return True
    if owner is None:
        return False
    return user == owner.user or owner.account in rights.accounts_of.get(user, frozenset())


def sees(user: str, owner: Owner | None, rights: SlurmRights) -> bool:
    """Return whether the user may know of this job. Everybody may if PrivateData does not hide jobs."""
    return not rights.private_jobs or commands(user, owner, rights)


def sees_all(user: str, rights: SlurmRights) -> bool:
    return not rights.private_jobs or commands_all(user, rights)


def sees_nodes(user: str, rights: SlurmRights) -> bool:
    return not rights.private_nodes or commands_all(user, rights)
