"""An array's tasks through the daemon's loop. The cluster in memory fails a test that writes to an array's bare id."""

from __future__ import annotations

from synergyd.control.resize.lifecycle import ResizeState
from tests.unit.daemon.daemon_world import SCRIPT, Site

ARRAY = {"array": True, "array_job_id": 1, "array_task": "1,2,3%1"}


def pending(site: Site) -> dict[str, float]:
    """Seconds until each pending record may start, by its tasks."""
    jobs = site.slurm.jobs.values()
    return {j.array_task: (j.eligible_s or 0.0) - site.slurm.now_s for j in jobs if j.state == "PENDING"}


def test_the_tasks_of_a_chain_start_one_after_the_other(site: Site) -> None:
    site.slurm.submit(1, SCRIPT, **ARRAY)
    site.epoch()
    assert sorted(site.slurm.jobs) == [1, 2, 3]
    assert all(wait_s > 800 for wait_s in pending(site).values())
    for job_id, others in ((2, {"2", "3"}), (3, {"3"}), (1, set())):
        site.epoch(60)
        assert site.life(job_id).state is ResizeState.RELEASED
        site.tick()
        assert site.slurm.jobs[job_id].state == "RUNNING"
        site.epoch(60)
        assert set(pending(site)) == others
        assert all(wait_s > 400 for wait_s in pending(site).values())
        site.slurm.end(job_id, again=False)
        site.slurm.pass_time(10)
    assert site.slurm.jobs == {}


def test_a_task_that_is_resized_is_not_overtaken(site: Site) -> None:
    site.slurm.submit(1, SCRIPT, **{**ARRAY, "array_task": "1,2%1"})
    site.epoch()
    site.epoch(60)
    site.tick()
    assert site.slurm.jobs[2].state == "RUNNING"
    site.slurm.end(2, again=True)
    site.slurm.pass_time(10)
    for _ in range(30):
        waits = pending(site)
        if "1" not in waits:
            break
        assert waits["2"] > 0
        site.epoch(60)
        site.tick()
    assert site.slurm.jobs[2].state == "RUNNING" and site.slurm.jobs[1].state == "PENDING"


def test_the_next_daemon_goes_on_with_an_array(site: Site) -> None:
    site.slurm.submit(1, SCRIPT, **ARRAY)
    site.epoch()
    site.start()
    site.epoch(60)
    assert site.life(2).state is ResizeState.RELEASED
    begin = [t.begin_s for t in site.daemon.controller.jobs.values()]
    assert begin and not any(begin), "its own parking is no user's begin time"


def test_the_next_daemon_keeps_the_throttle(site: Site) -> None:
    """Once only one task is left in the array's record, Slurm does not say it any more."""
    site.slurm.submit(1, SCRIPT, **ARRAY)
    site.epoch()
    assert "%" not in site.slurm.jobs[1].array_task
    for job_id in (2, 3, 1):
        site.start()  # a daemon that has seen nothing
        site.epoch(60)
        site.tick()
        assert [j.job_id for j in site.slurm.jobs.values() if j.state == "RUNNING"] == [job_id]
        site.epoch(60)
        assert all(wait_s > 400 for wait_s in pending(site).values())
        site.slurm.end(job_id, again=False)
        site.slurm.pass_time(10)


def test_a_throttle_that_is_changed_is_kept_too(site: Site) -> None:
    site.slurm.submit(1, SCRIPT, **{**ARRAY, "array_task": "1,2,3,4,5%1"})
    site.epoch()
    (rest,) = (j for j in site.slurm.jobs.values() if "," in j.array_task)
    site.slurm.set(rest.job_id, array_task=rest.array_task.replace("%1", "%2"))
    site.epoch(60)
    site.tick()
    assert {k.throttle for k in site.daemon.registry.submitted.values()} == {2}


def test_a_job_with_an_open_dependency_is_not_written_to(site: Site) -> None:
    site.slurm.submit(1, SCRIPT, dependency="afterok:9(unfulfilled)")
    decided = [site.epoch(60) for _ in range(3)][-1]
    assert site.slurm.written_to() == set()
    assert "it depends on other jobs (afterok:9(unfulfilled))" in decided[1].why
    site.slurm.set(1, dependency="")
    site.epoch(60)
    assert site.life(1).state is ResizeState.RELEASED


def test_an_array_that_keeps_its_size_is_left_to_slurm(site: Site) -> None:
    site.slurm.submit(1, "#!/bin/bash\n#SYNERGY resize=no\nsleep 1\n", **ARRAY)
    for _ in range(3):
        site.epoch(60)
    assert site.slurm.written_to() == set()
