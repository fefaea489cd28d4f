"""Which jobs an epoch may resize."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.job_report import Report
from synergy_core.records import Job, Plan, Profile

from synergyd.control.decidable import FIRST_UNMEASURED_S, UNMEASURED_S, decidable_job
from synergyd.control.resize.lifecycle import JobLifecycle
from synergyd.control.tracked import TrackedJob
from tests.unit.scheduler.builders import NOW, job

RESTARTED = job(1, nodes=("n0",), gpus=4, restarts=1, start_s=NOW - 60)
SILENT = Report(1, 1, 100, plan=Plan())  # of this incarnation, without a step's seconds
KNOWN = Profile(samples=5)


def fixed(seen: Job, report: Report = SILENT, profile: Profile | None = KNOWN, before: Job | None = None) -> str:
    tracked = TrackedJob(lifecycle=JobLifecycle(1, 0.0), report=report, profile=profile, job=before)
    return decidable_job(seen, tracked, NOW).fixed


def test_a_restarted_job_keeps_its_size_until_it_was_measured_there() -> None:
    assert fixed(RESTARTED) == "it has not been measured since its restart"
    assert fixed(RESTARTED, replace(SILENT, step_s=0.5)) == ""
    assert fixed(replace(RESTARTED, start_s=NOW - UNMEASURED_S)) == ""


@pytest.mark.parametrize("profile", [None, Profile(), KNOWN])
def test_guesses_do_not_resize_a_job_before_its_first_steps(profile: Profile | None) -> None:
    started, silent = replace(RESTARTED, restarts=0), Report(1, 0, 1, plan=Plan())
    assert fixed(started, silent, profile) == "it has not been measured since its start"
    assert fixed(started, replace(silent, step_s=0.5), profile) == ""
    assert fixed(replace(started, start_s=NOW - FIRST_UNMEASURED_S), silent, profile) == ""


@pytest.mark.parametrize("profile", [None, Profile()])
def test_one_that_never_said_how_long_a_step_takes_is_not_waited_for(profile: Profile | None) -> None:
    assert fixed(RESTARTED, profile=profile) == ""


def test_one_that_has_to_change_is_not_kept() -> None:
    for must in ({"gives_back": "plain jobs wait"}, {"cut_s": NOW + 300}):
        changed = job(1, nodes=("n0",), gpus=4, restarts=1, start_s=NOW - 60, **must)
        assert fixed(changed) == "" == fixed(RESTARTED, before=changed)
    assert fixed(replace(RESTARTED, cut_s=NOW + 2 * UNMEASURED_S)) != ""


@pytest.mark.parametrize(
    ("reason", "words"),
    [("Priority", "waits in Slurm's queue as it was submitted"), ("BadConstraints", "did not start it with any size")],
)
def test_explain_tells_how_a_job_was_left_to_slurm(reason: str, words: str) -> None:
    seen = decidable_job(job(1), TrackedJob(lifecycle=JobLifecycle(1, 0.0, left_to_slurm_reason=reason)), NOW)
    assert seen.directive is None and words in seen.directive_error and reason in seen.directive_error
