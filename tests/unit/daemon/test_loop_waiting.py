"""The daemon's loop: jobs that wait, are parked, make way, or are told where to report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Action, Plan
from synergy_core.wire import plan_file

from synergyd.control.resize.lifecycle import ResizeState
from synergyd.daemon.adoption import Adoption
from tests.unit.daemon.daemon_world import SCRIPT, Site, grow


def test_a_plain_job_is_told_where_to_report_once(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.runs(1, "n1")
    site.epoch()
    assert "report=ctl:7321" in site.slurm.comments[1]
    assert plan_file.read(plan_file.plan_path(site.folder, 1), 1).plan is None
    assert "not reported yet" in site.epoch(60)[1].why
    site.start()
    site.epoch(60)
    assert sum("AdminComment" in " ".join(c) for c in site.slurm.calls) == 1


def test_a_daemon_at_another_address_tells_running_jobs(site: Site) -> None:
    """A stand-by on another host takes over: jobs must find it, with the plan they run by."""
    grow(site)
    site.report(1, checkpoint_requests=1)
    for _ in range(10):
        site.tick()
    before = plan_file.read(plan_file.plan_path(site.folder, 1), 1)
    assert site.life(1).state is ResizeState.RUNNING and before.plan is not None and before.report == "ctl:7321"
    here = site.daemon
    there = site.start()
    there.actuator = replace(there.actuator, report="ctl2:7321")
    there.adoption = Adoption(there.actuator, there.settings.state_dir, "ctl2:7321", "")
    site.epoch(60)
    assert plan_file.read(plan_file.plan_path(site.folder, 1), 1) == replace(before, report="ctl2:7321")
    assert "report=ctl2:7321" in site.slurm.comments[1] and "plan=tp:" in site.slurm.comments[1]
    calls = len(site.slurm.calls)
    site.epoch(60)
    assert len(site.slurm.calls) == calls
    site.leads, site.daemon = False, here
    site.epoch(60)
    site.leads = True
    site.epoch(60)  # and back
    assert plan_file.read(plan_file.plan_path(site.folder, 1), 1) == before


@pytest.mark.parametrize(("hides_jobs", "mode"), [(True, 0o640), (False, 0o644)])
def test_a_plan_that_an_earlier_version_left_open_is_closed_where_slurm_hides_jobs(
    site: Site, hides_jobs: bool, mode: int
) -> None:
    site.running(1, "n1")
    path = plan_file.plan_path(site.folder, 1)
    site.start()
    path.chmod(0o644)
    site.slurm.private = frozenset(("jobs",) if hides_jobs else ())
    site.epoch(60)
    assert path.stat().st_mode & 0o777 == mode and plan_file.read(path, 1).report == "ctl:7321"


def test_a_job_that_has_to_wait_is_parked_and_parked_again(site: Site) -> None:
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, SCRIPT.replace("gpt2", "gpt2 resize=no"), tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")
    site.slurm.submit(2)
    assert site.epoch()[2].action is Action.WAIT
    parked = site.slurm.jobs[2].eligible_s
    assert parked == site.slurm.now_s + 900
    calls = len(site.slurm.calls)
    site.epoch(600)
    assert len(site.slurm.calls) == calls  # far enough away
    site.epoch(200)
    assert site.slurm.jobs[2].eligible_s == site.slurm.now_s + 900
    assert site.slurm.jobs[2].state == "PENDING" and site.slurm.written_to() <= {1, 2}


def make_way(site: Site) -> None:
    """Job 1, which can't shrink, has been asked for its last checkpoint: job 2 shall have its GPUs."""
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, SCRIPT.replace("gpt2", "gpt2 min_gpus=4"), tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")
    site.epoch()
    site.report(1, plan=Plan(dp=4, micro_batch=8, global_batch=256))
    site.slurm.submit(2, SCRIPT.replace("gpt2", "gpt2 min_gpus=4 weight=50"), tres_per_node="gres:gpu:4")
    assert site.epoch(3600)[2].action is Action.START
    assert site.life(1).stopping and site.slurm.signals and site.slurm.jobs[2].state == "PENDING"


def test_a_job_that_can_not_shrink_is_stopped_for_a_weightier_one_and_starts_again(site: Site) -> None:
    make_way(site)
    site.report(1, checkpoint_requests=1)
    for _ in range(8):
        site.tick(2)
    # what was decided for job 2 is done as soon as job 1 has left, before another epoch
    assert site.slurm.requeued == [(1, 0)] and site.life(1).state is ResizeState.QUEUED
    assert site.slurm.jobs[2].state == "RUNNING" and site.life(2).plan is not None
    assert site.epoch(60)[1].action is Action.WAIT
    assert (site.slurm.jobs[1].state, site.slurm.jobs[2].state) == ("PENDING", "RUNNING")
    assert site.slurm.jobs[1].eligible_s is not None and site.slurm.jobs[1].eligible_s > site.slurm.now_s + 60
    site.slurm.cancel(2)
    site.tick(10)  # it completes
    site.epoch(60)
    for _ in range(3):
        site.tick(2)
    assert site.slurm.jobs[1].state == "RUNNING" and site.life(1).plan is not None
    assert "preemption decided: 4 a100 GPUs" in site.story(1)


@pytest.mark.parametrize("why", ["paused", "gone"])
def test_a_job_that_need_not_make_way_any_more_goes_on(site: Site, why: str) -> None:
    make_way(site)
    if why == "paused":
        with site.store() as store:
            store.set_paused(1, True, 0.0)
    else:
        site.slurm.cancel(2)
        site.tick(1)
    site.epoch(10)
    assert site.life(1).state is ResizeState.RUNNING and not site.life(1).stopping
    site.report(1, checkpoint_requests=1)
    for _ in range(5):
        site.tick(2)
    assert site.slurm.requeued == [] and "resize given up" in site.story(1)


@pytest.mark.parametrize("change", [{"priority": 0}, {"restarts": 1}, None])
def test_what_waits_for_gpus_is_not_started_once_its_user_has_changed_it(
    site: Site, change: dict[str, int] | None
) -> None:
    make_way(site)
    if change is None:
        site.slurm.cancel(2)
    else:
        site.slurm.set(2, **change)
    site.report(1, checkpoint_requests=1)
    calls = len(site.slurm.calls)
    for _ in range(8):
        site.tick(2)
    assert site.life(1).state is ResizeState.QUEUED and site.slurm.requeued == [(1, 0)]
    assert not [c for c in site.slurm.calls[calls:] if any("2" in word.split(",") for word in c)]
    assert 2 not in site.slurm.jobs or site.slurm.jobs[2].state == "PENDING"


def test_many_are_parked_again_with_one_call(site: Site) -> None:
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, SCRIPT.replace("gpt2", "gpt2 resize=no"), tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")
    for job_id in (2, 3, 4):
        site.slurm.submit(job_id)
    site.epoch()
    before = len(site.slurm.calls)
    site.slurm.cancel(3)
    site.epoch(850)
    assert site.slurm.calls[before:] == [["update", "2,4", "StartTime=now+900"]]
    assert {site.slurm.jobs[i].eligible_s for i in (2, 4)} == {site.slurm.now_s + 900}
    site.start()  # the next daemon stamps each once more
    site.epoch(850)
    assert all("AdminComment" in " ".join(c) for c in site.slurm.calls[before + 1 :])


def test_one_that_can_never_be_scheduled_is_left_to_slurm(site: Site) -> None:
    site.slurm.submit(1, SCRIPT.replace("max_gpus=4", "min_gpus=64 max_gpus=64"))
    decided = site.epoch()[1]
    assert decided.action is Action.WAIT and "64" in decided.why
    assert site.slurm.calls == []


def test_refused_writes_are_told_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, SCRIPT.replace("gpt2", "gpt2 resize=no"), tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")
    site.slurm.submit(2)
    site.slurm.submit(3)
    site.slurm.refuse = {"update": ("Access/permission denied", False)}
    site.epoch()
    site.epoch(60)
    assert caplog.text.count("could not be kept waiting") == 1 and "permission denied" in caplog.text
