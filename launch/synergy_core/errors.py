"""The one exception type that a user's or admin's mistake becomes: one line with where, what, and what would be right."""

from __future__ import annotations

_MAX_BITS = 13_288  # 4000 digits; Python refuses to write out more than 4300


class SynergyError(Exception):
    """An error to be shown as one line, never as a traceback.

    `where` names the place (file:line, option, job), `what` the mistake, `right` what would be right.
    """

    def __init__(self, where: str, what: str, right: str = "") -> None:
        self.where, self.what, self.right = (one_line(where), one_line(what), one_line(right))
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.right}" if self.right else text


class UsageError(SynergyError):
    """A wrong command line, directive, setting, plan or file: exit code 2."""


class SetupError(UsageError):
    """A part of the set-up that only an admin can put right: `right` is of no use to other users."""


class NoSchemaError(SetupError):
    """A database that is not made or not upgraded yet."""


class NoDatabaseError(NoSchemaError):
    """An SQLite database whose file is not there: not made yet, or on a disk that is not mounted yet."""


class UnavailableError(SynergyError):
    """The error where something outside (Slurm, database, munge) did not answer; trying again may help: exit code 1."""


def one_line(text: str, limit: int = 500) -> str:
    """Return `text` with control characters shown as escapes, cut to `limit` characters: safe for a terminal and a log line."""
    begin = text[: limit + 1]  # the part that is cut away is not walked through
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in begin)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


def format_value(value: object) -> str:
    """Return a wrong value as text for an error: its beginning, without walking through what a stranger nested."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return "a number of over 4000 digits"
    if isinstance(value, str | int | float | None):
        return repr(value[:40] if isinstance(value, str) else value)[:40]
    return (
        "a list" if isinstance(value, list | tuple) else "a table" if isinstance(value, dict) else type(value).__name__
    )
