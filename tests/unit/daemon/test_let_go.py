"""Jobs that Synergy leaves to Slurm do not wait for the plugin's grace to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from synergyd.slurm.client import SlurmError
from tests.unit.daemon.daemon_world import SCRIPT, Site

STAMP = "synergy:1 model=gpt2 max_gpus=4"


def submitted(site: Site, stamp: str = STAMP, grace_s: float = 180.0, **changes: Any) -> None:
    """As the plugin leaves it. The daemon's grace with an epoch of a minute is 180 s."""
    site.slurm.submit(1, SCRIPT, **changes)
    site.slurm.set(1, eligible_s=site.slurm.now_s + grace_s)
    site.slurm.comments[1] = stamp


def delays(site: Site) -> list[list[str]]:
    return [call for call in site.slurm.calls if "StartTime=now+0" in call]


@pytest.mark.parametrize(
    "changes",
    [
        {"contiguous": True},
        {"licenses": "matlab:1"},
        {"stamp": "synergy:1 tp=0"},
        {"tres_per_node": "", "tres_other": "gres:gpu:1", "stamp": f"{STAMP} global_batch=8 micro_batch=1"},  # --gpus=1
    ],
)
def test_a_job_left_to_slurm_is_released_at_the_first_look(site: Site, changes: dict[str, Any]) -> None:
    submitted(site, **changes)
    assert "leaves" in site.epoch()[1].why or "tp=" in site.daemon.registry.submitted[1].error
    assert delays(site) == [["update", "1", "StartTime=now+0"]] and site.slurm.written_to() == {1}
    assert site.slurm.comments[1] == changes.get("stamp", STAMP)
    site.epoch(60)
    assert len(delays(site)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"stamp": "somebody's own remark"},  # the plugin did not put it off
        {"stamp": f"{STAMP} | begin=99999999"},  # its user's --begin, which the grace hides
        {"grace_s": 4000.0},  # its user's --begin, or a later StartTime
        {"grace_s": 0.0},  # it may start already
        {"restarts": 1},
    ],
)
def test_whose_start_somebody_else_put_off_is_not_written_to(site: Site, changes: dict[str, Any]) -> None:
    submitted(site, contiguous=True, **changes)
    for _ in range(2):
        site.epoch()
    assert site.slurm.written_to() == set()


def test_after_its_users_begin_time_it_may_start(site: Site) -> None:
    submitted(site, f"{STAMP} | begin={int(site.slurm.now_s) + 50} note=a", contiguous=True)
    site.epoch()
    assert delays(site) == []
    site.epoch(60)
    assert len(delays(site)) == 1


@pytest.mark.parametrize("seconds", [50, 182])  # within the grace, and just behind it
def test_its_users_begin_time_is_kept_where_synergy_decides(site: Site, seconds: int) -> None:
    begin_s = int(site.slurm.now_s) + seconds
    submitted(site, f"{STAMP} | begin={begin_s}", grace_s=max(180.0, seconds))
    for _ in range(3):
        assert "May not start for another" in site.epoch(15)[1].why
        assert site.slurm.written_to() == set() and site.slurm.jobs[1].state == "PENDING"
    site.epoch(begin_s - site.slurm.now_s)
    site.tick()
    assert site.slurm.jobs[1].state == "RUNNING"


def test_a_component_is_released_through_its_leader(site: Site) -> None:
    """Whose start alone the plugin puts off: a later component's own start time is that of its submission."""
    for job_id, gpus in ((1, ""), (2, "gres:gpu:2")):
        submitted_as = {"het": True, "het_job_id": 1, "het_offset": job_id - 1, "tres_per_node": gpus}
        site.slurm.submit(job_id, SCRIPT, **submitted_as, contiguous=True)
        site.slurm.set(job_id, eligible_s=site.slurm.now_s)
    site.slurm.set(1, eligible_s=site.slurm.now_s + 180)
    site.slurm.comments[1] = STAMP
    site.epoch()
    assert delays(site) == [["update", "1", "StartTime=now+0"]]


def test_a_job_waits_while_slurmctld_has_not_heard_of_the_nodes(site: Site) -> None:
    """It would start at the size asked for, and be restarted for another one soon after."""
    site.slurm.states = dict.fromkeys(site.slurm.gpus, "unknown")
    submitted(site, f"{STAMP} global_batch=8 micro_batch=1")
    site.epoch()
    assert not delays(site) and site.slurm.jobs[1].state == "PENDING"
    site.slurm.states.clear()
    site.epoch(4)
    site.tick()
    assert not delays(site) and site.slurm.jobs[1].state == "RUNNING"


def test_a_job_of_which_no_size_can_be_decided_about_is_released(site: Site) -> None:
    submitted(site, "synergy:1 model=no-such-model max_gpus=4")
    assert "no-such-model" in site.epoch()[1].why and len(delays(site)) == 1
    site.epoch(60)
    assert len(delays(site)) == 1


def test_jobs_that_synergy_decides_about_are_not(site: Site) -> None:
    submitted(site)
    site.epoch()
    assert delays(site) == []


def test_a_slurm_that_refuses_is_asked_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(jobs: Sequence[int | str], seconds: int) -> None:
        raise SlurmError("scontrol update", "Unable to contact slurm controller", transient=True)

    submitted(site, contiguous=True)
    with monkeypatch.context() as patch:
        patch.setattr(site.slurm, "delay", refuse)
        site.epoch()
    assert delays(site) == []
    site.epoch(60)
    assert len(delays(site)) == 1
