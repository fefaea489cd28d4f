"""What must outlive a take-over, a second launcher in one script, and an epoch that failed half-way."""

from __future__ import annotations

from typing import Any

import pytest

from synergyd.control.resize.lifecycle import ResizeState
from tests.unit.daemon.daemon_world import SCRIPT, Site, grow

FULL = SCRIPT.replace("gpt2", "gpt2 resize=no")


def full(site: Site) -> None:
    """One node with four GPUs, all of them job 1's, which keeps its size."""
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, FULL, tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")


def test_who_takes_over_keeps_the_gpu_time_it_has_seen(site: Site) -> None:
    site.running(1, "n1")
    site.leads = False
    standby = site.start()
    for seconds in (1, 600, 600):
        site.epoch(seconds)
    before = standby.controller.attained_gpu_s[1]
    site.leads = True
    site.epoch(60)
    assert standby.controller.attained_gpu_s[1] > before > 0


def test_who_was_stopped_while_another_led_forgets_what_it_knew(site: Site) -> None:
    """No epoch of its own lay between its two terms."""
    grow(site)
    first = site.daemon
    second = site.start()
    site.term = 2
    site.epoch(10)
    site.report(1, checkpoint_requests=1)
    site.tick()
    assert site.life(1).state is ResizeState.REQUEUING
    site.daemon, site.term = first, 3
    assert first.controller.reports[1].checkpoint_requests == 0
    site.epoch(10)
    assert first.controller.reports[1] == second.controller.reports[1]


def test_who_leads_again_parks_waiting_jobs_with_one_call(site: Site) -> None:
    full(site)
    for job_id in (2, 3):
        site.slurm.submit(job_id)
    site.epoch()
    site.leads = False
    site.epoch(1)
    site.leads = True
    writes = len(site.slurm.calls)
    site.epoch(860)
    assert [call for call in site.slurm.calls[writes:] if "2" in call[1]] == [["update", "2,3", "StartTime=now+900"]]


def test_a_second_launcher_of_one_script_counts_its_checkpoints_from_nought(site: Site) -> None:
    site.running(1, "n1")
    site.report(1, checkpoint_requests=1)
    site.tick()
    site.report(1, checkpoint_requests=0)
    site.epoch(60)
    assert site.life(1).state is ResizeState.CHECKPOINTING
    site.report(1, checkpoint_requests=1)
    site.tick()
    assert site.life(1).state.name == "REQUEUING"


def test_what_an_epoch_that_failed_left_undone_is_void(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that it was about to put off once more, and that the next one starts, is not put off after that."""
    full(site)
    site.slurm.submit(2)
    site.epoch()
    real = site.daemon.executor.do

    def broken(output: Any) -> Any:
        answer = real(output)
        if type(output).__name__ == "ParkAgain":
            raise RuntimeError("a fault of ours")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(site.daemon.executor, "do", broken)
        with pytest.raises(RuntimeError):
            site.epoch(860)
    site.slurm.cancel(1)
    site.slurm.pass_time(10)
    site.epoch(10)
    for _ in range(3):
        site.tick(2)
    assert site.slurm.jobs[2].state == "RUNNING"


def test_a_job_on_its_way_back_into_the_queue_is_not_written_to(site: Site) -> None:
    full(site)
    site.slurm.submit(2, state="REQUEUED")
    site.epoch()
    assert 2 not in site.slurm.written_to()
