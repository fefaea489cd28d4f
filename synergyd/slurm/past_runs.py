"""What Slurm remembers of jobs for people: incarnations that have ended, and where its owner wants mail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from synergyd.slurm.client import SlurmError
from synergyd.usage import PastRun

_COLUMNS = "JobIDRaw,User,Account,Start,ElapsedRaw,AllocTRES,Submit,NodeList,State"
# every state in which an incarnation is over
_ENDED = "CD,F,CA,TO,NF,PR,RQ,OOM,DL,BF"
# what lasts: no accounts, no sacct; all else, such as a deadlock in slurmdbd's database, may pass
_LASTS = re.compile(r"storage is disabled|can't be run")
_GPUS = re.compile(r"(?:^|,)gres/gpu=([0-9]{1,9})(?=,|$)")
_MAIL = re.compile(r"^   MailUser=(.*?) MailType=(\S*)\s*$", re.MULTILINE)


def read_past_runs(run: Callable[..., bytes], from_s: float, to_s: float) -> Iterator[PastRun]:
    """Runs with GPUs that ended within the span, each incarnation of its own. Raises SlurmError, not transient where Slurm keeps no
    accounts."""
    # uts: seconds since 1970, whatever time zone and format sacct works in
    span = (f"--starttime=uts{max(1, int(from_s))}", f"--endtime=uts{max(1, int(to_s))}")
    argv = ("sacct", "-a", "-D", "-X", "-n", "-P", f"--state={_ENDED}", *span, f"--format={_COLUMNS}")
    try:
        text = run(*argv).decode(errors="replace")
    except SlurmError as error:
        raise SlurmError(error.where, error.what, transient=not _LASTS.search(error.what)) from None
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != 9 or not (words[0].isdecimal() and words[3].isdecimal() and words[4].isdecimal()):
            continue  # one that never began
        gpus = _GPUS.search(words[5])
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
        )


def read_mail(run: Callable[..., bytes], job: int | str) -> tuple[str, str]:
    """Return (MailUser, MailType) of a job in the queue; empty where it wants none. Raise SlurmError."""
    text = run("scontrol", "show", "job", str(job)).decode(errors="replace")
    # a job's name or comment with a line end in it may make such a line: then nobody is written to
    records, found = text.count("\nJobId=") + text.startswith("JobId="), _MAIL.findall(text)
    if records != 1 or len(found) > 1:
        raise SlurmError(f"scontrol show job {job}", "its MailUser is not told apart", transient=False)
    return (found[0][0], found[0][1]) if found else ("", "")
