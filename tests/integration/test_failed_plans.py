"""Plans of Synergy's that fail within their first steps: the job goes on with what its user wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from synergyd.store.store import open_store
from tests.integration.daemon_site import sizes, status, story, until_beat, until_steps
from tests.throwaway import failing_job, light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, remember_programs, synergyd

pytestmark = pytest.mark.slurm
WAYS = ("exit", "memory", "killed", "nccl", "hang")
# further ways, and where: what follows is the same
POINTS = (
    ("segmentation", "first"),
    ("assertion", "start"),
    ("bus", "mid"),
    ("collective", "mid"),
    ("abort", "checkpoint"),
)
OWN_SIZE = "min_gpus=4 max_gpus=4 tp=1 pp=1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    names = [f"place-{how}" for how in WAYS] + [f"point-{how}-{at}" for how, at in POINTS]
    with make_cluster([NodeGroup("cpu", len(WAYS), 4)], epoch_s=1) as cluster:
        remember_programs(cluster, light_jobs=(*names, "requeue", "always", "nodes", "full"))
        with synergyd(cluster):
            until_beat(cluster)
            yield cluster


def submit(
    cluster: SlurmCluster,
    how: str,
    name: str,
    *,
    gpus: int = 4,
    always: bool = False,
    size: str = OWN_SIZE,
    at: str = "start",
) -> int:
    before = f"export FAILS={how} FAILS_AT={at}{' FAILS_ALWAYS=1' * always}\n"
    before += "export SYNERGY_FIRST_STEP_S=2\n" if how == "hang" else ""  # others may start slowly
    before += "export CHECKPOINT_EVERY=5\n" if at != "start" else ""
    script = Path(failing_job.__file__)
    return light_job.submit(cluster, name, gpus=gpus, directive=size, script=script, before=before)


def shown(cluster: SlurmCluster, job_id: int, name: str) -> str:
    text = cluster.run("scontrol", "show", "job", str(job_id)).stdout
    found = re.search(rf"\b{name}=(\S+)", text)
    assert found is not None, text
    return found[1]


def banned(cluster: SlurmCluster) -> set[str]:
    """Keys of the store with plans that are banned."""
    with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
        return {key for key, profile in store.profiles().items() if key.startswith("failed:") and profile.measured}


def idle_s(cluster: SlurmCluster, job_id: int) -> float:
    """Seconds from the first failure of the job to its next step."""
    text = light_job.output(cluster, job_id)
    failed = re.search(r"fails at ([0-9.]+)", text)
    folder = re.search(r"checkpoint=(\S+)", cluster.run("scontrol", "write", "batch_script", str(job_id), "-").stdout)
    assert failed is not None and folder is not None, text
    steps = (Path(folder[1]) / "steps.jsonl").read_text().splitlines()
    return float(json.loads(steps[0])["time"]) - float(failed[1])


@pytest.fixture(scope="module")
def in_place(cluster: SlurmCluster) -> dict[str, int]:
    """Jobs whose size is their user's own, by the way in which their plan fails; all at once, for the time that they take."""
    return {how: submit(cluster, how, f"place-{how}") for how in WAYS}


@pytest.mark.parametrize("how", WAYS)
def test_a_plan_that_fails_is_replaced_in_place(cluster: SlurmCluster, in_place: dict[str, int], how: str) -> None:
    job = in_place[how]
    until_steps(cluster, job, timeout_s=180)  # all five start at once
    assert (cluster.state(job), shown(cluster, job, "Restarts")) == ("RUNNING", "0")
    cluster.wait_for(lambda: "started again in place" in story(cluster, job), 60, "the story")
    assert light_job.output(cluster, job).count("fails at") == 1
    print(f"{how}: trains again after {idle_s(cluster, job):.1f} s, in place")
    kind = "memory" if how in ("memory", "killed") else "plan"
    cluster.wait_for(lambda: kind in {key.split(":")[1] for key in banned(cluster)}, 60, "the plan to be banned")
    cluster.run("scancel", str(job))


def test_a_full_disk_is_named_and_bans_no_plan(cluster: SlurmCluster) -> None:
    before = banned(cluster)
    job = submit(cluster, "full", "full")
    until_steps(cluster, job, timeout_s=180)
    cluster.wait_for(lambda: "started again in place" in story(cluster, job), 60, "the story")
    assert re.search(r"disk full: /\S+ \([\d.]+ GiB free\) on \w+", story(cluster, job)), story(cluster, job)
    assert "synergy-launch: disk full: /" in light_job.output(cluster, job) and banned(cluster) == before
    cluster.run("scancel", str(job))


def test_a_run_that_fails_at_any_point_trains_again_in_place(cluster: SlurmCluster) -> None:
    jobs = {(how, at): submit(cluster, how, f"point-{how}-{at}", at=at) for how, at in POINTS}
    until_steps(cluster, *jobs.values(), steps=failing_job.MID + 10, timeout_s=240)
    for (how, at), job in jobs.items():
        assert (cluster.state(job), shown(cluster, job, "Restarts")) == ("RUNNING", "0"), (how, at)
        assert light_job.output(cluster, job).count("fails at") == 1, (how, at)
        told = "in place from its last checkpoint" if at == "mid" else "started again in place with its own arguments"
        cluster.wait_for(lambda job=job, told=told: told in story(cluster, job), 60, f"the story of {how}, {at}")  # type: ignore[misc]
        cluster.run("scancel", str(job))


def test_a_plan_for_another_size_that_fails_is_requeued_with_its_own(cluster: SlurmCluster) -> None:
    job = submit(cluster, "exit", "requeue", gpus=2)
    until_steps(cluster, job, timeout_s=180)
    assert (cluster.state(job), shown(cluster, job, "Restarts")) == ("RUNNING", "1")
    cluster.wait_for(lambda: sizes(cluster, job) == [2], 60, "its size")
    assert "requeued with 2 cpu GPUs" in story(cluster, job)
    print(f"trains again after {idle_s(cluster, job):.1f} s, by a requeue")
    cluster.run("scancel", str(job))
    # another run of the program does not try the plan again: it starts with its own size
    again = submit(cluster, "exit", "requeue", gpus=2)
    until_steps(cluster, again, timeout_s=180)
    assert "fails at" not in light_job.output(cluster, again)
    cluster.run("scancel", str(again))


def test_a_script_that_fails_anyway_ends_as_without_synergy(cluster: SlurmCluster) -> None:
    before = banned(cluster)
    job = submit(cluster, "exit", "always", always=True)
    cluster.wait_for(lambda: cluster.state(job) == "FAILED", 120, "its end")
    assert shown(cluster, job, "ExitCode") == f"{failing_job.EXIT_CODE}:0"
    assert light_job.output(cluster, job).count("fails at") == 2
    # the script is broken, not the plan
    cluster.wait_for(
        lambda: job not in status(cluster) and banned(cluster) == before, 60, "what it had banned to be free"
    )


def test_a_plan_for_more_nodes_that_fails_is_requeued(cluster: SlurmCluster) -> None:
    job = submit(cluster, "memory", "nodes", size="min_gpus=8 max_gpus=8 tp=1 pp=1")
    until_steps(cluster, job, timeout_s=180)
    assert (cluster.state(job), shown(cluster, job, "Restarts"), shown(cluster, job, "NumNodes")) == (
        "RUNNING",
        "1",
        "1",
    )
    cluster.run("scancel", str(job))
