"""The mails that Slurm sends of a job (MailType), and those of them that a resize would send. Pure."""

from __future__ import annotations

#: types for a requeue and for the start that follows it
RESTART_TYPES = ("BEGIN", "REQUEUE")
# Slurm takes them away by itself when it has sent them
_SENT_ONCE = ("TIME_LIMIT", "TIME_LIMIT_50", "TIME_LIMIT_80", "TIME_LIMIT_90")
# Slurm hides MailUser of a job that wants no mail at all; a job that has run has no dependency left to be invalid
_NO_MAIL = "INVALID_DEPEND"


def without_restarts(types: str) -> str:
    """Return the MailType `types` without the mails that a resize would send."""
    other_types = [word for word in types.split(",") if word and word not in RESTART_TYPES]
    return ",".join(other_types) if other_types or not types else _NO_MAIL


def with_restarts(types: str, own: str) -> str:
    """Return the MailType that gives a job with `types` back the mails that its user asked for as `own`.

    It is `types` if somebody has set another MailType since the resize began.
    """

    def lasting(text: str) -> set[str]:
        return {word for word in text.split(",") if word and word not in _SENT_ONCE}

    if lasting(types) not in (lasting(without_restarts(own)), {_NO_MAIL}):
        return types
    words = [word for word in types.split(",") if word in own.split(",")]
    return ",".join([*words, *(word for word in RESTART_TYPES if word in own.split(","))])
