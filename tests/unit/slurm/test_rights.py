"""Whether this process may do what the daemon does, by Slurm's own words (22.05)."""

from __future__ import annotations

import os
import pwd

import pytest

from synergyd.slurm.client import DeniedError, SlurmError
from synergyd.slurm.rights import admin_level, demand_rights, may, slurm_user

CONFIG = "SlurmctldHost[0] = head\nSlurmUser               = slurm(64030)\nSlurmdUser              = root(0)\n"
USERS = """Current Association Manager state

User Records

UserName=nobody(65534) DefAccount=chem DefWckey=(null) AdminLevel={}
UserName=root(0) DefAccount=root DefWckey= AdminLevel=Administrator
"""
NONE = "Current Association Manager state\n\nNo users currently cached in Slurm.\n\n"


@pytest.mark.parametrize(
    ("uid", "level", "writes", "says"),
    [
        (0, "None", True, ""),
        (64030, "None", True, ""),
        (65534, "Administrator", True, ""),
        (65534, "Operator", False, ""),
        (65534, "Operator", True, "may not write to jobs: .*AdminLevel=Operator"),
        (65534, "None", False, "nor read their scripts: .*AdminLevel=None"),
        (65534, "Not Set", True, "AdminLevel=None"),
        (4_000_000, "Administrator", True, "user 4000000: .*AdminLevel=None"),
    ],
)
def test_who_may(monkeypatch: pytest.MonkeyPatch, uid: int, level: str, writes: bool, says: str) -> None:
    if uid == 65534 and pwd.getpwuid(uid).pw_name != "nobody":
        pytest.skip("no user nobody here")
    monkeypatch.setattr(os, "geteuid", lambda: uid)

    def run(*argv: str) -> bytes:
        return (CONFIG if "config" in argv else USERS.format(level)).encode()

    if not says:
        demand_rights(run, writes=writes)
        return
    with pytest.raises(DeniedError, match=says) as error:
        demand_rights(run, writes=writes)
    assert str(error.value).endswith("run synergyd as root, SlurmUser, or with AdminLevel=Admin")


def test_before_slurmdbd_has_told_slurmctld_of_its_users_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    config = CONFIG + "AccountingStorageType   = accounting_storage/slurmdbd\n"
    with pytest.raises(SlurmError) as error:
        demand_rights(lambda *argv: (config if "config" in argv else NONE).encode(), writes=True)
    assert error.value.transient
    with pytest.raises(DeniedError):
        demand_rights(lambda *argv: (CONFIG if "config" in argv else NONE).encode(), writes=True)


def test_slurms_words() -> None:
    assert slurm_user(CONFIG) == ("slurm", 64030) and slurm_user("") == ("root", 0)
    assert (
        admin_level(NONE, 0) == admin_level(USERS.format("None"), 65534) == admin_level(USERS.format("Admin"), 5) == ""
    )
    assert admin_level(USERS.format("Operator"), 65534) == "Operator" and admin_level(USERS, 0) == "Administrator"
    assert not may("", writes=False)
