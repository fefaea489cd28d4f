"""A notice: something happened to a job that its owner or the admin may want to hear of."""

from __future__ import annotations

from dataclasses import dataclass

#: what there are notices of, as `notify=` and NoticeEvents name it
EVENTS = ("resize", "hold", "ban", "deadline")


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What is sent; the webhook's JSON has these fields."""

    #: the same for the same happening, however often it is sent
    key: str
    #: one of `resize`, `hold`, `ban`, `deadline`
    event: str
    #: Slurm's job id
    job_id: int
    #: as squeue calls it where that is not its id
    slurm_name: str = ""
    #: the job's name
    name: str = ""
    #: its owner's login name
    user: str = ""
    #: its Slurm account
    account: str = ""
    #: seconds since 1970
    at_s: float = 0.0
    #: what happened, in words
    text: str = ""
    #: of `#SYNERGY notify=`; empty: it says nothing
    notify: tuple[str, ...] = ()
