"""Groups of users, from this machine's own files."""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from synergyd.daemon.user_groups import UserGroups


def test_groups_of_users() -> None:
    groups = UserGroups()
    mine = groups.groups_of(os.getuid())
    assert mine is not None and grp.getgrgid(pwd.getpwuid(os.getuid()).pw_gid).gr_name in mine
    assert groups.groups_of(2**31 - 7) is None


def test_a_user_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, asked = UserGroups(), []

    def getpwuid(uid: int) -> None:
        asked.append(uid)
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    assert [groups.groups_of(7), groups.groups_of(7)] == [None, None] and asked == [7]
    groups.forget()
    assert groups.groups_of(7) is None and asked == [7, 7]
