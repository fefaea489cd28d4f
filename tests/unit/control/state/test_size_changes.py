"""What programs have reported of their ability to change size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.accepts import Accepts
from synergy_core.job_report import Report
from synergy_core.records import Directive, Plan

from synergyd.control.state.size_changes import LEAST_S, CanChangeSize, SizeChanges
from tests.unit.scheduler.builders import job

JOB = replace(job(1), name="train-7", directive=Directive(global_batch=(8, 8)))
AGENT = Report(1, 0, 5, plan=Plan())
UNABLE = replace(AGENT, accepts=Accepts(own_size=True))


def known(report: Report) -> SizeChanges:
    changes = SizeChanges()
    assert changes.learn(JOB, report)
    return changes


@pytest.mark.parametrize(
    ("other", "same"),
    [({"name": "train-8", "job_id": 2}, True), ({"name": "eval"}, False), ({"uid": 7}, False),
     ({"directive": Directive(global_batch=(8, 16))}, False), ({"directive": Directive(model="gpt2", global_batch=(8, 8))}, False)],
)  # fmt: skip
def test_it_is_known_of_runs_of_one_program_of_one_user(other: dict[str, object], same: bool) -> None:
    wanted = CanChangeSize.YES if same else CanChangeSize.UNKNOWN
    assert known(AGENT).find_answer(replace(JOB, **other), None) is wanted  # type: ignore[arg-type]


@pytest.mark.parametrize("report", [replace(AGENT, plan=None), replace(AGENT, silent=True)])
def test_a_launcher_alone_teaches_nothing(report: Report) -> None:
    changes = SizeChanges()
    assert changes.learn(JOB, report) == {} and changes.find_answer(JOB, report) is CanChangeSize.UNKNOWN


def test_what_is_stored_is_read_back_and_the_latest_word_counts() -> None:
    changes, after = known(AGENT), SizeChanges()
    stored = changes.learn(JOB, UNABLE)
    assert changes.learn(JOB, UNABLE) == {}, "it is stored once"
    after.load(stored)
    assert after.find_answer(JOB, None) is CanChangeSize.NO is changes.find_answer(JOB, None)
    assert after.find_answer(JOB, AGENT) is CanChangeSize.YES, "the job's own word comes first"


def test_a_run_without_an_agent_ends_what_is_known() -> None:
    changes, after = known(AGENT), SizeChanges()
    assert changes.note_end(JOB, None, LEAST_S - 1) == {} == changes.note_end(JOB, AGENT, 1000.0)
    assert changes.find_answer(JOB, None) is CanChangeSize.YES
    after.load({**known(AGENT).learn(replace(JOB, job_id=3), AGENT), **changes.note_end(JOB, None, LEAST_S)})
    assert changes.find_answer(JOB, None) is CanChangeSize.UNKNOWN is after.find_answer(JOB, None)
