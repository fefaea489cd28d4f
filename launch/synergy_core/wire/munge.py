"""munge credentials through libmunge: they prove who sent a message, that it is unaltered, and that it was sent once."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
import os
from dataclasses import dataclass

from synergy_core.errors import UnavailableError

_OPT_SOCKET, _OPT_UID = 8, 9  # MUNGE_OPT_SOCKET, MUNGE_OPT_UID_RESTRICTION of munge.h
_NO_SOCKET = 6  # EMUNGE_SOCKET


@dataclass(frozen=True)
class Credential:
    """A decoded credential: its payload, and the uid and gid that munged vouches for."""

    payload: bytes
    uid: int
    gid: int


@functools.cache
def _library() -> ctypes.CDLL:
    name = ctypes.util.find_library("munge") or "libmunge.so.2"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        raise UnavailableError("munge", "libmunge is not installed", "install munge (Debian: libmunge2)") from None
    library.munge_strerror.restype = ctypes.c_char_p
    library.munge_ctx_create.restype = ctypes.c_void_p
    library.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    library.munge_ctx_set.argtypes = [ctypes.c_void_p, ctypes.c_int]  # variadic: the socket's path follows
    return library


class _Context:
    """A munge context with the socket that $MUNGE_SOCKET (or `socket`) names; munged's default otherwise."""

    def __init__(self, socket: str, for_uid: int | None = None) -> None:
        self._library = _library()
        self.handle = self._library.munge_ctx_create()
        if socket:
            self._library.munge_ctx_set(self.handle, _OPT_SOCKET, ctypes.c_char_p(os.fsencode(socket)))
        if for_uid is not None:
            self._library.munge_ctx_set(self.handle, _OPT_UID, ctypes.c_uint32(for_uid))

    def __enter__(self) -> _Context:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.munge_ctx_destroy(self.handle)


def encode(payload: bytes, socket: str = "", for_uid: int | None = None) -> str:
    """Return a credential for `payload` in the name of this process's user. Raises UnavailableError when munged does not answer.

    `for_uid`: only this user can open it; munged encrypts it.
    """
    library = _library()
    out = ctypes.c_void_p()
    with _Context(socket or os.environ.get("MUNGE_SOCKET", ""), for_uid) as context:
        code = library.munge_encode(ctypes.byref(out), ctypes.c_void_p(context.handle), payload, len(payload))
    if code or not out.value:
        raise _error(library, code)
    try:
        return ctypes.string_at(out.value).decode("ascii")
    finally:
        _free(out)


def decode(credential: str, socket: str = "") -> Credential:
    """Check and open a credential. Raises UnavailableError with munge's reason (expired, replayed, forged, no munged)."""
    library = _library()
    out, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    with _Context(socket or os.environ.get("MUNGE_SOCKET", "")) as context:
        code = library.munge_decode(
            credential.encode("ascii", "replace"), ctypes.c_void_p(context.handle), ctypes.byref(out), ctypes.byref(length),
            ctypes.byref(uid), ctypes.byref(gid),
        )  # fmt: skip
    try:
        if code:
            raise _error(library, code)
        return Credential(ctypes.string_at(out.value, length.value) if out.value else b"", uid.value, gid.value)
    finally:
        _free(out)


def _error(library: ctypes.CDLL, code: int) -> UnavailableError:
    text: bytes = library.munge_strerror(code)
    right = "is munged running? (service munge start)" if code == _NO_SOCKET else ""
    return UnavailableError("munge", text.decode(errors="replace"), right)


def _free(pointer: ctypes.c_void_p) -> None:
    if pointer.value:
        libc = ctypes.CDLL(None)
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(pointer)


def request_digest(method: str, target: str, body: bytes) -> bytes:
    """Return the request's digest: a credential that was seen on its way serves for nothing else. `target`: path with its query."""
    digest = hashlib.sha256(f"{method} {target}\n".encode() + body).hexdigest()
    return f"synergy-rest-1 {digest}".encode()
