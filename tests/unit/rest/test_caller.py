"""Who may see and change what, as Slurm has it."""

from __future__ import annotations

import pytest

from synergyd.rest.caller import Owner, SlurmRights, commands, sees, sees_all
from synergyd.rest.slurm_rights import parse_rights
from synergyd.slurm.parsed.rows import config_values

CONFIG = """
AccountingStorageType   = accounting_storage/slurmdbd
PrivateData             = {private}
SlurmUser               = slurm(64030)
"""
# sacctmgr -nP show user withcoord format=user,adminlevel,coordinators
USERS = "ann|None|\nbob|None|chem\nop|Operator|\nroot|Administrator|\n"


def rights(private: str) -> SlurmRights:
    return parse_rights(config_values(CONFIG.format(private=private)), USERS)


@pytest.mark.parametrize(
    ("user", "account", "changes", "sees_private"),
    [
        ("ann", "chem", True, True),
        ("bob", "chem", True, True),  # its coordinator
        ("bob", "physics", False, False),
        ("eve", "chem", False, False),
        ("op", "physics", True, True),
        ("slurm", "physics", True, True),
        ("root", "physics", True, True),
        ("", "", False, False),
    ],
)
def test_rights_are_slurms(user: str, account: str, changes: bool, sees_private: bool) -> None:
    owner = Owner(user="ann", account=account)
    for private in ("none", "jobs,usage", "all"):
        known = rights(private)
        assert commands(user, owner, known) == changes
        assert sees(user, owner, known) == (sees_private or private == "none")
    assert sees_all(user, rights("jobs")) == (user in ("op", "slurm", "root"))


def test_a_job_of_unknown_owner_is_seen_by_those_who_see_all() -> None:
    assert (
        not sees("ann", None, rights("jobs")) and sees("op", None, rights("jobs")) and sees("ann", None, rights("none"))
    )
    assert not commands("ann", None, rights("none"))


def test_without_accounting_only_root_and_slurm_user_command() -> None:
    known = parse_rights(config_values(CONFIG.format(private="jobs")), "")
    assert [u for u in ("root", "slurm", "op", "bob") if sees_all(u, known)] == ["root", "slurm"]
