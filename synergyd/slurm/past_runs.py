"""Slurm's memory of jobs for people: incarnations that have ended, and where a job's owner wants mail."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator

from synergy_core.usage import PastRun
from synergy_core.wire.expander import job_of_expander

from synergyd.slurm.client import SlurmError

_COLUMNS = "JobIDRaw,User,Account,Start,ElapsedRaw,AllocTRES,Submit,NodeList,State,TimelimitRaw,JobName"
# every state in which an incarnation is over, or goes on with other GPUs
_ENDED = "CD,F,CA,TO,NF,PR,RQ,OOM,DL,BF,RS"
# problems that last: no accounts, no sacct; any other, such as a deadlock in slurmdbd's database, may pass
_LASTS = re.compile(r"storage is disabled|can't be run")
_GPUS = re.compile(r"(?:^|,)gres/gpu=([0-9]{1,9})(?=,|$)")
_MAIL = re.compile(r"^   MailUser=(.*?) MailType=(\S*)\s*$", re.MULTILINE)


def read_past_runs(run: Callable[..., bytes], from_s: float, to_s: float) -> Iterator[PastRun]:
    """Yield the runs with GPUs that ended within the span, each incarnation separately.

    Raises SlurmError, which is not transient if Slurm keeps no accounts.
    """
    # uts: seconds since 1970, whatever time zone and format sacct works in
    span = (f"--starttime=uts{max(1, int(from_s))}", f"--endtime=uts{max(1, int(to_s))}")
    # nobody's job name can have it, and with a line end look like another job's line
    between = f"|{secrets.token_hex(8)}|"
    shape = ("-n", "-P", f"--delimiter={between}", f"--state={_ENDED}", *span, f"--format={_COLUMNS}")
    argv = ("sacct", "-a", "-D", "-X", *shape)
    try:
        text = run(*argv).decode(errors="replace")
    except SlurmError as error:
        raise SlurmError(error.where, error.what, transient=not _LASTS.search(error.what)) from None
    for line in text.splitlines():
        words = line.split(between)
        if len(words) != 11 or not (words[0].isdecimal() and words[3].isdecimal() and words[4].isdecimal()):
            continue  # one that never began
        gpus, beside = _GPUS.search(words[5]), job_of_expander(words[10])
        start_s = float(words[3])
        yield PastRun(
            job_id=int(words[0]),
            user=words[1],
            account=words[2],
            start_s=start_s,
            to_s=start_s + float(words[4]),
            gpus=int(gpus[1]) if gpus else 0,
            waited_s=max(0.0, start_s - float(words[6])) if words[6].isdecimal() else 0.0,
            nodes="" if words[7] == "None assigned" else words[7],
            state=words[8].partition(" ")[0],  # "CANCELLED by 1000"
            of_job=beside[0] if beside is not None else 0,
            name=words[10],
            limit_s=60.0 * int(words[9]) if words[9].isdecimal() else None,
        )


def read_mail(run: Callable[..., bytes], job: int | str) -> tuple[str, str]:
    """Return (MailUser, MailType) of a job in the queue; empty if it wants none. Raise SlurmError."""
    text = run("scontrol", "show", "job", str(job)).decode(errors="replace")
    # a job's name or comment with a line end in it may make such a line: then nobody is written to
    records, mail_types = text.count("\nJobId=") + text.startswith("JobId="), _MAIL.findall(text)
    if records != 1 or len(mail_types) > 1:
        raise SlurmError(f"scontrol show job {job}", "its MailUser is not told apart", transient=False)
    return (mail_types[0][0], mail_types[0][1]) if mail_types else ("", "")
