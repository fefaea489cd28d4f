"""What a job is offered, and how much of an epoch that may take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.achieved import achieved_message, wrong_model_message
from synergy_core.job_report import GpuActivity, Report
from synergy_core.records import Cluster, Directive, Job, JobState, Measurement, Node, Plan, Profile, Shape

from synergyd.daemon import forecast
from synergyd.daemon.forecast import Forecast
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model import throughput
from synergyd.settings import Settings

SHAPE = Shape("a100", 2, 8)
CLUSTER = Cluster(tuple(Node(f"n{i}", "a100", 8) for i in range(4)))
JOB = Job(
    1, "j", "u", 1, "gpu", JobState.RUNNING, "", 0.0, 0.0, None, 0, shape=SHAPE, asked=SHAPE,
    node_names=("n0", "n1"), directive=Directive(model="gpt3-1.3b"),
)  # fmt: skip


def test_what_a_job_makes_of_its_gpus() -> None:
    """GPT-3 1.3B: about 6 x 1.3e9 FLOPs a token and its attention's; an A100 has 312 TFLOP/s."""
    plan, speeds = Plan(dp=16, micro_batch=4, global_batch=64), Forecast(Settings())
    report = Report(1, 0, 10, step_s=2.0, plan=plan)
    told = speeds.achieved(report, JOB, Profile(speed=1.6, samples=3))
    assert told is not None and told.tokens_per_s == 64 * 2048 / 2.0 and told.predicted_step_s == 1.25
    assert told.mfu == pytest.approx(64 * 2048 / 2.0 * 6 * 1.3e9 / (16 * 312e12), rel=0.25)
    assert "its steps take 1.60 times as long as the model predicts" in wrong_model_message(told)
    unknown = speeds.achieved(report, replace(JOB, directive=Directive()), Profile())
    assert unknown is not None and (unknown.step_s, unknown.mfu, unknown.predicted_step_s) == (2.0, None, None)
    assert wrong_model_message(unknown) == "" and achieved_message(unknown) == "2 s a step"
    assert speeds.achieved(replace(report, step_s=None), JOB, Profile()) is None
    assert speeds.achieved(replace(report, restarts=1), JOB, Profile()) is None
    assert achieved_message(told).startswith("2 s a step (1.25 s predicted), 65536 tokens/s, MFU ")
    assert told.communication_share is None, "nobody samples its GPUs"
    sampled = replace(report, gpu_activity=GpuActivity(gpus=8, samples=30))
    share = (speeds.achieved(sampled, JOB, Profile(speed=1.6, samples=3)) or told).communication_share
    whole = speeds.achieved(replace(sampled, plan=replace(plan, global_batch=1024)), JOB, Profile(speed=1.6, samples=3))
    assert share is not None and whole is not None and whole.communication_share is not None
    assert 0.0 < whole.communication_share < share, "more computation for the same gradients"


def test_few_jobs_an_epoch_are_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def count(task: JobPlanner) -> None:
        asked.append(task.job.job_id)

    monkeypatch.setattr(forecast, "advise", count)
    monkeypatch.setattr(forecast, "_ADVISED", 2)
    offers, plan = Forecast(Settings()), Plan(dp=16, micro_batch=4, global_batch=64)
    per_epoch = []
    for _ in range(4):
        offers.begin_epoch()
        before = len(asked)
        for i in range(5):
            profile = Profile(noise_scale=100.0 * 2**i, global_batch=64, samples=1)
            assert offers.cells(replace(JOB, job_id=i), profile, plan, CLUSTER).cells
        per_epoch.append(len(asked) - before)
    assert per_epoch == [2, 2, 1, 0] and sorted(asked) == [0, 1, 2, 3, 4]
    # who has no noise scale costs nothing, and takes nobody's turn
    assert offers.cells(replace(JOB, job_id=9), Profile(samples=1), plan, CLUSTER).advice == ""


def test_what_is_expected_is_fitted_once_for_all_and_changes_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain jobs that have measured something; one whose model is known, and one that has measured nothing, are left out."""
    calls: list[int] = []
    real = vars(throughput)["most_probable"]

    def count(*given: Any) -> Any:
        calls.append(len(given[0]))
        return real(*given)

    monkeypatch.setattr(throughput, "most_probable", count)
    monkeypatch.setattr(throughput, "_fits", {})
    plain = replace(JOB, directive=Directive(global_batch=(64, 512)))
    jobs = [replace(plain, job_id=i) for i in range(4)] + [replace(JOB, job_id=4)]
    plan = Plan(dp=16, micro_batch=4, global_batch=64, zero_stage=0)
    measured = {i: (Measurement(plan, SHAPE, 0.3 * (i + 1), 4),) for i in (0, 1, 2, 4)}
    profiles = {i: Profile(samples=4, measured=measured.get(i, ())) for i in range(5)}
    offers, alone = Forecast(Settings()), Forecast(Settings())
    offers.fit_changed_jobs(jobs, profiles, CLUSTER)
    assert calls == [3]
    together = [offers.cells(job, profiles[job.job_id], plan, CLUSTER) for job in jobs]
    offers.fit_changed_jobs(jobs, profiles, CLUSTER)  # nothing has changed
    assert calls == [3] or calls == [3, 0]
    monkeypatch.setattr(throughput, "_fits", {})
    assert together == [alone.cells(job, profiles[job.job_id], plan, CLUSTER) for job in jobs]
    assert all(found.cells for found in together)
