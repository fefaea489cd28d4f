"""A file that one user beside its writer may read, whoever the writer is."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

# acl(5) as linux/posix_acl_xattr.h lays it out: the version, then (tag, permissions, id) of each entry
_VERSION, _NO_ID, _READ, _WRITE = 2, 0xFFFFFFFF, 4, 2
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20


# from a file system without ACLs, or one of another host, whose root this host's is not
_CANNOT_SHOW = (errno.ENOTSUP, errno.EPERM, errno.EINVAL)


def allow_user(file: int, uid: int, *, is_secret: bool) -> None:
    """Let user `uid` read the open file `file`, and nobody else but its owner.

    This is done by an ACL or, if root writes on a file system without ACLs, by making `uid` the file's owner. If
    neither can be had, all users may read it, or none if it `is_secret`. Raises OSError.
    """
    os.fchmod(file, 0o600)
    if uid == os.fstat(file).st_uid:
        return
    try:
        os.setxattr(file, "system.posix_acl_access", _acl(uid, owner=_READ | _WRITE))
    except OSError as error:
        if error.errno not in _CANNOT_SHOW:
            raise
        if not _give(file, uid) and not is_secret:
            os.fchmod(file, 0o644)


def _give(file: int, uid: int) -> bool:
    """Return whether the open file is now user `uid`'s, which takes a daemon that is root here and on the file's host."""
    try:
        os.fchown(file, uid, -1)
        os.fchmod(file, 0o400)
    except OSError as error:
        if error.errno not in _CANNOT_SHOW:
            raise
        return False
    return True


def write_for_user(path: Path, text: str, uid: int) -> None:
    """Write the file anew so that user `uid` can read it: as root it becomes theirs, else they are named in its ACL.

    Raises OSError, and then leaves no file (on a file system without ACLs, for example).
    """
    path.unlink(missing_ok=True)
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w")
    try:
        with file:  # its end writes what is left, which a full disk refuses
            file.write(text)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), uid, -1)
            elif uid != os.geteuid():
                os.setxattr(file.fileno(), "system.posix_acl_access", _acl(uid))
    except OSError as error:
        path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None


def _acl(uid: int, owner: int = _READ) -> bytes:
    entries = (
        (_OWNER, owner, _NO_ID),
        (_USER, _READ, uid),
        (_GROUP, 0, _NO_ID),
        (_MASK, _READ, _NO_ID),
        (_OTHER, 0, _NO_ID),
    )
    return struct.pack("<I", _VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
