"""Mail for notices, sent by a program that is called as Slurm calls its MailProg: -s SUBJECT ADDRESS, the text on standard input."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from synergy_core.errors import one_line
from synergy_core.notice import DRY_RUN, EVENTS, IDLE_WEEK, Notice

from synergyd.daemon.notices.webhook import NotSentError

TIMEOUT_S = 30.0
SUBJECT = 200  # characters
#: one login name or address; never a list, an option, a pipe or a file as some mail programs take them
ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,63}(@[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)?")
#: Slurm's --mail-type of an owner who wants to hear of these (ALL shows as a list with REQUEUE in it)
_BY_TYPE = frozenset(EVENTS)
_WANTED_TYPES = frozenset({"ALL", "REQUEUE"})


@dataclass(frozen=True)
class Mail:
    """The way by mail. `program` is the admin's; no shell is between it and this process."""

    program: Path

    def send(self, notice: Notice, address: str) -> None:
        """Send the notice to `address`. Raises NotSentError."""
        subject, body = letter(notice)
        subject = "".join(c if c.isascii() and c.isprintable() else "?" for c in one_line(subject, SUBJECT))
        environment = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LC_ALL", "SLURM_CONF")}
        try:
            with tempfile.TemporaryFile() as said_wrong:  # no pipe: an MTA in the background would hold it open
                code = subprocess.run(
                    [str(self.program), "-s", subject, address],
                    input=body.encode(errors="replace"),
                    stdout=subprocess.DEVNULL,
                    stderr=said_wrong,
                    timeout=TIMEOUT_S,
                    env={**environment, "SLURM_JOB_ID": str(notice.job_id)},
                    cwd="/",
                    check=False,
                ).returncode
                said_wrong.seek(0)
                problem = one_line(said_wrong.read(1000).decode(errors="replace"), 200)
        except OSError as error:
            raise NotSentError(f"{self.program} can't be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise NotSentError(f"{self.program} did not end within {TIMEOUT_S:.0f} s") from None
        if code:
            raise NotSentError(f"{self.program} ended with {code}: {problem}")


def letter(notice: Notice) -> tuple[str, str]:
    """Return the subject and the text of a mail."""
    if notice.event == DRY_RUN:
        lines = [one_line(line, 200) for line in notice.text.split("\n")]
        return f"Synergy dry run: {lines[0]}", "\n".join([*lines, "", "synergyctl usage --would-have tells more.", ""])
    if notice.event == IDLE_WEEK:
        return "Synergy: GPUs that did nothing", f"{one_line(notice.text, 2000)}\n\nsynergyctl usage JOB tells more.\n"
    name, job_name = one_line(notice.name, 64), notice.slurm_name or str(notice.job_id)
    text = f"Job {job_name} ({name}) of {notice.user}: {one_line(notice.text, 2000)}"
    return (
        f"Slurm Job_id={job_name} Name={name} Synergy {notice.event}",
        f"{text}\n\nsynergyctl explain {job_name} tells more.\n",
    )


def recipient(notice: Notice, mail_user: str, mail_type: str) -> str:
    """Return the address to mail: by `notify=` of the job's directive if it names any, else by its --mail-type; "" for nobody.

    `mail_user`, `mail_type`: as Slurm shows them, or "" if it shows none. They may be anything that a user has written.
    """
    if notice.event in (DRY_RUN, IDLE_WEEK):
        return notice.user if ADDRESS.fullmatch(notice.user) else ""
    by_type = notice.event in _BY_TYPE and not _WANTED_TYPES.isdisjoint(mail_type.upper().split(","))
    if not (notice.event in notice.notify if notice.notify else by_type):
        return ""
    address = mail_user or notice.user
    return address if ADDRESS.fullmatch(address) else ""
