"""Tokens and credentials: forged, expired, for another request, from the network."""

from __future__ import annotations

import base64
import getpass
import json
import time
from collections.abc import Callable
from pathlib import Path

import jwt
import pytest
from synergy_core.errors import UsageError

from synergyd.rest.identity import Identity, UnknownCallerError
from synergyd.rest.slurm_rights import jwt_key

KEY = b"k" * 32
ME = getpass.getuser()


def token(key: bytes = KEY, **claims: object) -> str:
    full = {"sun": ME, "iat": int(time.time()), "exp": int(time.time()) + 60, **claims}
    return jwt.encode({k: v for k, v in full.items() if v is not None}, key, "HS256")


def caller(headers: dict[str, str], *, key: bytes = KEY, near: bool = True, slurm_user: str = "slurm") -> str:
    return Identity(key, slurm_user).caller("GET", "/v1/status", headers, b"", near=near)


def test_slurms_own_token_says_who_it_is() -> None:
    assert caller({"x-slurm-user-token": token()}) == caller({"authorization": f"Bearer {token()}"}) == ME
    assert caller({"x-slurm-user-token": token(), "x-slurm-user-name": ME}) == ME


def unsigned() -> str:
    parts = [{"alg": "none", "typ": "JWT"}, {"sun": "root", "exp": int(time.time()) + 60}]
    return ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts) + "."


WRONG: dict[str, Callable[[], str]] = {
    "another key": lambda: token(b"x" * 32),
    "expired": lambda: token(exp=int(time.time()) - 5),
    "without an end": lambda: token(exp=None),
    "nobody's": lambda: token(sun=None),
    "a number's": lambda: token(sun=7),
    "the empty name's": lambda: token(sun=""),
    "a stranger's": lambda: token(sun="no-such-user-here"),
    "with a NUL": lambda: token(sun="a\x00b"),
    "not yet valid": lambda: token(nbf=int(time.time()) + 600),
    "unsigned": unsigned,
    "cut": lambda: token()[:-4],
    "empty": lambda: "",
    "no token": lambda: "a.b.c",
    "long": lambda: "x" * 9000,
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_token_is_nobody(kind: str) -> None:
    with pytest.raises(UnknownCallerError):
        caller({"authorization": f"Bearer {WRONG[kind]()}"})


def test_only_the_controllers_own_users_speak_for_others() -> None:
    other = {"x-slurm-user-name": "nobody"}
    assert caller({"x-slurm-user-token": token(sun="root"), **other}) == "nobody"
    assert caller({"x-slurm-user-token": token(), **other}, slurm_user=ME) == "nobody"
    with pytest.raises(UnknownCallerError, match="another user"):
        caller({"x-slurm-user-token": token(sun="nobody"), "x-slurm-user-name": "root"})


def test_tokens_in_clear_over_the_network_and_without_a_key_are_refused() -> None:
    with pytest.raises(UnknownCallerError, match="in clear"):
        caller({"x-slurm-user-token": token()}, near=False)
    with pytest.raises(UnknownCallerError, match="not taken here"):
        caller({"x-slurm-user-token": token()}, key=b"")
    with pytest.raises(UnknownCallerError, match="says not who"):
        caller({})


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "jwt_hs256.key"
    key.write_bytes(KEY)
    config = {"AuthAltTypes": "auth/jwt", "StateSaveLocation": str(tmp_path)}
    key.chmod(0o600)
    assert jwt_key(config) == jwt_key({**config, "AuthAltParameters": f"jwt_key={key}"}) == KEY
    assert jwt_key({}) == b""
    key.chmod(0o640)
    with pytest.raises(UsageError, match="others than its owner"):
        jwt_key(config)
    with pytest.raises(UsageError, match="can't be read"):
        jwt_key({**config, "AuthAltParameters": f"jwt_key={tmp_path}/none"})
