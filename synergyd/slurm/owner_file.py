"""A file that one user beside its writer may read, whoever the writer is."""

from __future__ import annotations

import os
import struct
from pathlib import Path

# acl(5) as linux/posix_acl_xattr.h lays it out: the version, then (tag, permissions, id) of each entry
_VERSION, _NO_ID, _READ = 2, 0xFFFFFFFF, 4
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20


def write_for(path: Path, text: str, uid: int) -> None:
    """Writes the file anew for user `uid`'s eyes: as root it becomes theirs, else they are named in its ACL. Raises OSError, and
    leaves no file then (on a file system without ACLs, for example)."""
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


def _acl(uid: int) -> bytes:
    entries = (
        (_OWNER, _READ, _NO_ID),
        (_USER, _READ, uid),
        (_GROUP, 0, _NO_ID),
        (_MASK, _READ, _NO_ID),
        (_OTHER, 0, _NO_ID),
    )
    return struct.pack("<I", _VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
