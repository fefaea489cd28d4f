"""The groups of jobs' users, as this machine knows them: slurmctld asks the same for a partition's AllowGroups."""

from __future__ import annotations

import grp
import os
import pwd


class UserGroups:
    """The groups, asked for once for each user until `forget`: a directory service may answer slowly."""

    def __init__(self) -> None:
        self._known: dict[int, frozenset[str] | None] = {}

    def groups_of(self, uid: int) -> frozenset[str] | None:
        """Return the names of the user's groups, or None if this machine does not know the user."""
        if uid not in self._known:
            self._known[uid] = _groups(uid)
        return self._known[uid]

    def forget(self) -> None:
        self._known.clear()


def _groups(uid: int) -> frozenset[str] | None:
    try:
        user = pwd.getpwuid(uid)
        gids = os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError):
        return None
    names = set()
    for gid in gids:
        try:
            names.add(grp.getgrgid(gid).gr_name)
        except (KeyError, OSError):
            continue
    return frozenset(names)
