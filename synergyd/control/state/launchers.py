"""The launchers of a job's present incarnation: which of them train, and whether they can be asked for a checkpoint. Pure.

A script may start several, one after another or at once, each in a step of its own; of one step on several nodes two may report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from synergy_core.job_report import Report

MAX_LAUNCHERS = 64  # per incarnation; a script that starts more is asked by its latest ones


@dataclass(frozen=True)
class Launchers:
    """The latest report of each launcher of incarnation `restarts`, by its name."""

    restarts: int = -1
    reports: Mapping[str, Report] = field(default_factory=dict)

    def with_report(self, report: Report) -> Launchers:
        """Return a copy that knows `report`. A launcher that has only said that it is there trains nothing yet."""
        reports = dict(self.reports) if report.restarts == self.restarts else {}
        last = reports.pop(report.launcher, None)
        if not report.silent or (report.ended and last is not None):
            reports[report.launcher] = report
        elif last is not None:
            reports[report.launcher] = last
        while len(reports) > MAX_LAUNCHERS:
            del reports[next(iter(reports))]
        return Launchers(report.restarts, reports)

    @property
    def training(self) -> list[list[Report]]:
        """Return the reports of each step whose run is not over."""
        steps: dict[str, list[Report]] = {}
        for name, report in self.reports.items():
            steps.setdefault(name.partition(".")[0], []).append(report)
        return [step for step in steps.values() if not all(report.ended for report in step)]

    @property
    def have_ended(self) -> bool:
        """Return whether there were launchers and the runs of all of them are over."""
        return bool(self.reports) and not self.training

    @property
    def take_requests(self) -> bool:
        """Return whether the launchers that train take requests from the answers to their reports."""
        training = self.training
        return bool(training) and all(any(r.listens for r in step) for step in training)

    @property
    def checkpoints_taken(self) -> int:
        """Return the number of requested checkpoints that all steps that train have taken."""
        return min((max(r.checkpoint_requests for r in step) for step in self.training), default=0)

    @property
    def most_checkpoints_taken(self) -> int:
        """Return the highest number of requested checkpoints taken by any launcher that trains. The next request has a higher number."""
        return max((r.checkpoint_requests for step in self.training for r in step), default=0)

    @property
    def latest_request(self) -> int:
        """Return the number of the latest request that all steps that train have passed on to their processes."""
        return min((max(r.requested for r in step) for step in self.training), default=0)


NO_LAUNCHERS = Launchers()
