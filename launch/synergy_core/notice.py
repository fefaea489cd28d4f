"""A notice: something happened to a job that its owner or the admin may want to hear of."""

from __future__ import annotations

from dataclasses import dataclass

#: the events that there are notices of, as `notify=` and NoticeEvents name them
EVENTS = ("resize", "hold", "ban", "deadline", "idle")
#: the event of a dry run's daily account, which is of no job and goes to the daemon's own user
DRY_RUN = "dry-run"
#: the event of a week's idle GPU hours, which is of no job and goes to the user who held them
IDLE_WEEK = "idle-week"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """The notice that is sent; the webhook's JSON has these fields."""

    #: identifies the event, however often it is sent
    key: str
    #: `resize`, `hold`, `ban`, `deadline`, `idle`, `dry-run` (daily summary of a dry run) or `idle-week` (a user's week)
    event: str
    #: Slurm's job id; 0 for `dry-run` and `idle-week`
    job_id: int
    #: its name in squeue, if not its id
    slurm_name: str = ""
    #: the job's name
    name: str = ""
    #: its owner's login name
    user: str = ""
    #: its Slurm account
    account: str = ""
    #: seconds since 1970
    at_s: float = 0.0
    #: the event in words; several lines for `dry-run`
    text: str = ""
    #: the events of `#SYNERGY notify=`
    notify: tuple[str, ...] = ()
