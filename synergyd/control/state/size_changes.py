"""Which programs have reported that they can change size. Pure.

A job keeps the size that it asked for until an agent of its program has said that it can go on at another one. Nobody could ask a
script without an agent for a checkpoint, and another number of processes changes its global batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from synergy_core.accepts import Accepts
from synergy_core.job_report import Report, is_by_agent
from synergy_core.records import Job, Profile

from synergyd.jobmodel.shared_profiles import program_mark

PREFIX = "resizes:"  # starts each key in the store: `resizes:PROGRAM`
#: a run that is over sooner says nothing of what its script has
LEAST_S = 60.0
_PROGRAMS = 10_000
_AT_ONE_SIZE = Accepts(own_size=True)


class CanChangeSize(StrEnum):
    """The knowledge of whether a program can go on at another size."""

    UNKNOWN = "unknown"  # no agent of it has reported
    YES = "yes"
    NO = "no"  # its agent says that it can't


#: why a job keeps the size that it asked for
REASONS = {
    CanChangeSize.UNKNOWN: "no run of this program has reported that it can change size",
    CanChangeSize.YES: "",
    CanChangeSize.NO: "runs of this program have reported that they can't change size",
}


class SizeChanges:
    """The reports of each program's agents, by key of the store.

    `assumed`: every program can change size (in a simulation).

    `learn` and `note_end` return what to store.
    """

    def __init__(self, *, assumed: bool = False) -> None:
        self._assumed = assumed
        self._known: dict[str, CanChangeSize] = {}
        self._stored: set[int] = set()  # jobs whose reports count already, so that what is in use is not pruned

    def load(self, profiles: Mapping[str, Profile]) -> None:
        """Take over what an earlier daemon has stored."""
        for key, profile in profiles.items():
            if key.startswith(PREFIX):
                self._keep(key, _read(profile))

    def find_answer(self, job: Job, report: Report | None) -> CanChangeSize:
        """Return what `job`'s latest `report` says, else what other runs of its program have."""
        if self._assumed:
            return CanChangeSize.YES
        if report is not None and is_by_agent(report):
            return _read_answer(report)
        return self._known.get(PREFIX + program_mark(job), CanChangeSize.UNKNOWN)

    def learn(self, job: Job, report: Report) -> dict[str, Profile]:
        """Take in a report of `job`."""
        key, now = PREFIX + program_mark(job), _read_answer(report)
        if self._assumed or not is_by_agent(report):
            return {}
        if self._known.get(key) is now and job.job_id in self._stored:
            return {}
        self._stored.add(job.job_id)
        self._keep(key, now)
        return {key: Profile(samples=1, accepts=_AT_ONE_SIZE if now is CanChangeSize.NO else Accepts())}

    def note_end(self, job: Job, report: Report | None, ran_s: float) -> dict[str, Profile]:
        """Forget a program if a run of it ended after `ran_s` seconds without a report by an agent: another script bears its name."""
        self._stored.discard(job.job_id)
        key = PREFIX + program_mark(job)
        if ran_s < LEAST_S or (report is not None and is_by_agent(report)) or key not in self._known:
            return {}
        del self._known[key]
        return {key: Profile()}

    def _keep(self, key: str, now: CanChangeSize) -> None:
        self._known.pop(key, None)  # the latest last
        if now is not CanChangeSize.UNKNOWN:
            self._known[key] = now
        while len(self._known) > _PROGRAMS:
            del self._known[next(iter(self._known))]


def _read_answer(report: Report) -> CanChangeSize:
    return CanChangeSize.NO if report.accepts.own_size else CanChangeSize.YES


def _read(profile: Profile) -> CanChangeSize:
    if not profile.samples:
        return CanChangeSize.UNKNOWN
    return CanChangeSize.NO if profile.accepts.own_size else CanChangeSize.YES
