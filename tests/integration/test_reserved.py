"""Jobs in a reservation, and jobs whose nodes one takes, on a real cluster of four nodes with four GPUs each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import status, until_beat, until_steps
from tests.integration.test_walltime import squeue, told
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster, missing_programs
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing_programs()), reason="Slurm or munge is not installed"),
    pytest.mark.timeout(900),
]
WAIT_S = 450.0  # a resize that Slurm's own start came before is tried again after 300 s


@pytest.fixture(scope="module")
def town() -> Iterator[SlurmCluster]:
    with make_cluster((NodeGroup("cpu", 4, 4),), epoch_s=1) as cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


@pytest.fixture
def empty(town: SlurmCluster) -> Iterator[SlurmCluster]:
    yield town
    town.run("scancel", "--full", "-s", "KILL", *town._job_ids(), check=False)
    town.run("scancel", *town._job_ids(), check=False)
    town.wait_for(lambda: town._job_ids() == ["0"], 120, "an empty queue")
    for name in ("mine", "maint"):
        town.run("scontrol", "delete", f"reservation={name}", check=False)


def reserve(cluster: SlurmCluster, name: str, nodes: str, start: str, *flags: str, minutes: int = 30) -> None:
    words = (f"ReservationName={name}", f"Nodes={nodes}", f"StartTime={start}", f"Duration={minutes}", "Users=root")
    cluster.run("scontrol", "create", "reservation", *words, *(f"Flags={flag}" for flag in flags))


def names(cluster: SlurmCluster, job_id: int) -> set[str]:
    listed = squeue(cluster, job_id, "NodeList")
    return set(cluster.run("scontrol", "show", "hostnames", listed).stdout.split()) if listed else set()


def until(cluster: SlurmCluster, condition: object, what: str, *job_ids: int) -> None:
    try:
        cluster.wait_for(condition, WAIT_S, what)  # type: ignore[arg-type]
    except RuntimeError as error:
        raise RuntimeError("\n".join([str(error), *(told(cluster, i) for i in job_ids)])) from None


def gpus(cluster: SlurmCluster, job_id: int) -> int | None:
    row = status(cluster).get(job_id)
    return row["gpus"] if row is not None and cluster.state(job_id) == "RUNNING" else None


def test_jobs_in_a_reservation_are_resized_inside_it_and_others_stay_out(empty: SlurmCluster) -> None:
    reserve(empty, "mine", "n3,n4", "now")
    inside = ("--reservation=mine",)
    first = light_job.submit(empty, "first", directive="min_gpus=1 max_gpus=4", gpus=1, options=inside)
    other = light_job.submit(empty, "other", directive="min_gpus=1 max_gpus=4", gpus=1)
    until(empty, lambda: gpus(empty, first) == 4, "it to grow in its reservation", first)
    assert names(empty, first) <= {"n3", "n4"}
    # three of four GPUs each: one makes room for the next
    others = [
        light_job.submit(empty, name, directive="min_gpus=2 max_gpus=4", gpus=4, options=inside) for name in ("b", "c")
    ]
    jobs = (first, *others)
    until(empty, lambda: all(gpus(empty, i) for i in jobs), "all of its jobs to run", *jobs)
    assert all(names(empty, i) <= {"n3", "n4"} for i in jobs)
    assert sum(gpus(empty, i) or 0 for i in jobs) <= 8 and squeue(empty, first, "Reservation") == "mine"
    until(empty, lambda: gpus(empty, other) is not None, "the other to run", other)
    assert names(empty, other) <= {"n1", "n2"}
    until(empty, lambda: "Its reservation mine has n3, n4 for another" in told(empty, first), "how long it has them")


def test_a_job_whose_nodes_are_taken_moves_in_time_and_says_for_what(empty: SlurmCluster) -> None:
    """Its last checkpoint is due a minute and two epochs before, its restart takes five seconds."""
    moves = light_job.submit(empty, "moves", directive="min_gpus=4 max_gpus=4", gpus=4)
    until_steps(empty, moves, timeout_s=150)
    (home,) = names(empty, moves)
    reserve(empty, "maint", home, "now+100", "MAINT,IGNORE_JOBS")
    until(empty, lambda: gpus(empty, moves) and names(empty, moves) != {home}, "it to move", moves)
    assert "since the reservation maint takes its nodes" in told(empty, moves)
    assert squeue(empty, moves, "RestartCnt") == "1"
    waits = light_job.submit(empty, "waits", directive="min_gpus=16 max_gpus=16", gpus=4, options=("--nodes=4",))
    until(empty, lambda: f"The reservation maint takes {home}" in told(empty, waits), "the reason", waits)
    empty.run("scancel", str(moves))
    empty.run("scontrol", "delete", "reservation=maint")
    until(empty, lambda: names(empty, waits) == {"n1", "n2", "n3", "n4"}, "its nodes to be free again", waits)
