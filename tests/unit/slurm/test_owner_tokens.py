"""Updates in a job owner's name by a token of Slurm's, for a daemon that runs as SlurmUser."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from subprocess import CompletedProcess
from typing import Any

import pytest

from synergyd.slurm import accounting
from synergyd.slurm.client import SlurmError
from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.parsed.associations import takes_tokens

CONFIG = "AccountingStorageEnforce = associations,limits\nAuthAltTypes            = {}\n"


class Scripted(CommandLine):
    """`scontrol` as far as it is needed; `said`: (words, SLURM_JWT) of each call."""

    def __init__(self, types: str = "auth/jwt", token: bytes = b"SLURM_JWT=abc.def\n", error: str = "") -> None:
        super().__init__()
        self.said: list[tuple[list[str], str]] = []
        self._types, self._made, self._error = types, token, error

    def _answer(
        self, argv: Sequence[str], timeout_s: float, start: Any, token: str, folder: str | None
    ) -> CompletedProcess[bytes]:
        self.said.append((list(argv), token))
        if argv[1:3] == ("show", "config"):
            return CompletedProcess(argv, 0, CONFIG.format(self._types).encode(), b"")
        if argv[1] == "token":
            return CompletedProcess(argv, int(bool(self._error)), self._made, self._error.encode())
        return CompletedProcess(argv, 0, b"", b"")


@pytest.fixture(autouse=True)
def as_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 64030)


SIZE = {"NumNodes": "2-2", "AdminComment": "synergy:1"}


def test_the_size_is_the_owners_write_and_the_stamp_is_not() -> None:
    slurm = Scripted()
    slurm.accounting_rules()
    assert slurm.acts_as_owner
    slurm.update_size(7, os.getuid() or 1, SIZE)
    assert slurm.said[-3:] == [
        (["scontrol", "token", f"username={pwd.getpwuid(os.getuid() or 1).pw_name}", "lifespan=60"], ""),
        (["scontrol", "update", "JobId=7", "NumNodes=2-2"], "abc.def"),
        (["scontrol", "update", "JobId=7", "AdminComment=synergy:1"], ""),
    ]


@pytest.mark.parametrize("types", ["(null)", "auth/slurm"])
def test_without_tokens_limits_are_checked_before(types: str) -> None:
    slurm = Scripted(types)
    assert not slurm.accounting_rules().tokens and not slurm.acts_as_owner
    slurm.update_size(7, 1, SIZE)
    assert [words for words, _ in slurm.said if words[1] == "token"] == []


@pytest.mark.parametrize(
    ("token", "error"), [(b"", "Error requesting token: Invalid user"), (b"nonsense\n", ""), (b"SLURM_JWT=\n", "")]
)
def test_a_daemon_that_gets_no_token_checks_before_from_then_on(token: bytes, error: str) -> None:
    slurm = Scripted(token=token, error=error)
    slurm.accounting_rules()
    with pytest.raises(SlurmError, match="checked before updates") as refused:
        slurm.update_size(7, 1, SIZE)
    assert refused.value.transient and not slurm.acts_as_owner
    slurm.accounting_rules()
    assert not slurm.acts_as_owner
    slurm.update_size(7, 1, SIZE)
    assert slurm.said[-1] == (["scontrol", "update", "JobId=7", "NumNodes=2-2", "AdminComment=synergy:1"], "")


def test_a_slurm_that_is_busy_is_asked_again() -> None:
    slurm = Scripted(error="Unable to contact slurm controller")
    slurm.accounting_rules()
    with pytest.raises(SlurmError) as refused:
        slurm.update_size(7, 1, SIZE)
    assert refused.value.transient and slurm.acts_as_owner


def test_a_user_that_this_host_does_not_know_gets_no_token() -> None:
    with pytest.raises(SlurmError, match="knows no user"):
        accounting.owners_token(lambda *_: b"", 2**31 - 7)


def test_the_token_is_in_that_commands_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = CommandLine({"PATH": os.environ["PATH"]})
    assert slurm.run("printenv", "SLURM_JWT", token="abc") == b"abc\n"
    assert "SLURM_JWT" not in slurm._environment


def test_what_slurm_conf_says_of_tokens() -> None:
    assert takes_tokens("AuthAltTypes = auth/jwt") and takes_tokens(
        "X = 1\nAuthAltTypes            = auth/slurm,auth/jwt\n"
    )
    assert not takes_tokens("AuthAltTypes = (null)") and not takes_tokens("AuthAltParameters = auth/jwt")
