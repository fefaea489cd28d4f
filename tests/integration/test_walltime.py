"""Time limits and reservations on a real cluster: what a job gets is never less than as a plain one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from synergy_core.errors import UsageError

from tests.integration.daemon_site import explain, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import Synergyd, make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def timed() -> Iterator[SlurmCluster]:
    """Three nodes with four GPUs each; an epoch a second."""
    made = make_cluster((NodeGroup("cpu", 3, 4),), epoch_s=1)
    # asked for two minutes before a reservation takes a job's nodes
    made.slurm_conf = tuple(line.replace("CheckpointTimeout=60", "CheckpointTimeout=130") for line in made.slurm_conf)
    with made as cluster:
        yield cluster


@pytest.fixture
def empty(timed: SlurmCluster) -> Iterator[SlurmCluster]:
    yield timed
    timed.run("scancel", "--full", "-s", "KILL", *timed._job_ids(), check=False)
    timed.run("scancel", *timed._job_ids(), check=False)
    timed.wait_for(lambda: timed._job_ids() == ["0"], 120, "an empty queue")
    for name in ("maint", "part"):
        timed.run("scontrol", "delete", f"reservation={name}", check=False)


def squeue(cluster: SlurmCluster, job_id: int, field: str) -> str:
    return cluster.run("squeue", "-h", "-j", str(job_id), "-O", f"{field}:30", check=False).stdout.strip()


def told(cluster: SlurmCluster, job_id: int) -> str:
    """The job's whole story, and the last decision; "" before the daemon has seen it."""
    try:
        data = explain(cluster, job_id)
    except UsageError:
        return ""
    return "\n".join([*(line["detail"] for line in data["story"]), (data["decision"] or {}).get("why", "")])


def restarted(cluster: SlurmCluster, daemon: Synergyd, job_id: int, timeout_s: float) -> None:
    def runs_again() -> bool:
        return squeue(cluster, job_id, "RestartCnt") == "1" and cluster.state(job_id) == "RUNNING"

    try:
        cluster.wait_for(runs_again, timeout_s, f"job {job_id} to be restarted")
    except RuntimeError as error:
        raise RuntimeError(f"{error}\n{daemon.tail()}\n{light_job.output(cluster, job_id)[-800:]}") from None


def test_what_is_left_of_a_limit_goes_with_the_job(empty: SlurmCluster) -> None:
    """A resize, a limit that goes on, and one that ends: side by side, since a minute is the least limit there is."""
    grows = light_job.submit(empty, "grows", directive="min_gpus=1 max_gpus=4", gpus=1, options=("--time=10",))
    empty.wait_for(lambda: empty.state(grows) == "RUNNING", 120, "the plain job to run")
    with synergyd(empty) as daemon:
        until_beat(empty)
        ends = light_job.submit(empty, "ends", directive="resize=no", gpus=4, options=("--time=1",))
        anew = light_job.submit(empty, "anew", directive="resize=no walltime=continue:1", gpus=4, options=("--time=1",))
        until_steps(empty, ends, anew, timeout_s=60)
        empty.wait_for(
            lambda: "before its time limit ends it" in told(empty, ends), 90, "the last checkpoint's request"
        )
        restarted(empty, daemon, anew, 150)
        assert squeue(empty, anew, "TimeLimit") == "1:00"
        begins = "its time limit of 1 min begins anew, time 1 of 1"
        empty.wait_for(lambda: begins in told(empty, anew), 60, "the limit that begins anew")
        assert "time=60,1" in row_of(empty, anew)["admin_comment"]
        assert "checkpoint" in light_job.output(empty, ends)
        restarted(empty, daemon, grows, 150)
        # less than a minute of ten is used, or some: what is left is rounded down
        assert squeue(empty, grows, "TimeLimit") in ("9:00", "8:00", "7:00", "6:00", "5:00", "4:00")
        empty.wait_for(lambda: "of its time limit left" in told(empty, grows), 60, "what is left to be told")


def test_no_job_is_placed_or_restarted_across_a_maintenance_reservation(empty: SlurmCluster) -> None:
    """Two nodes are reserved before the first job would have ended; then all are."""
    maintenance = ("Duration=10", "Users=root", "Flags=MAINT,IGNORE_JOBS,OVERLAP", "StartTime=now+160")
    empty.run("scontrol", "create", "reservation", "ReservationName=part", "Nodes=n1,n2", *maintenance)
    with synergyd(empty) as daemon:
        until_beat(empty)
        first = light_job.submit(empty, "first", directive="min_gpus=1 max_gpus=8", gpus=2, options=("--time=10",))
        empty.wait_for(lambda: empty.state(first) == "RUNNING", 60, "a start beside the reservation\n" + daemon.tail())
        assert squeue(empty, first, "NodeList") == "n3"
        until_steps(empty, first)
        empty.run("scontrol", "create", "reservation", "ReservationName=maint", "Nodes=ALL", *maintenance)
        empty.run("scontrol", "delete", "reservation=part")
        second = light_job.submit(empty, "second", directive="min_gpus=1 max_gpus=4", gpus=4, options=("--time=10",))
        short = light_job.submit(empty, "short", directive="min_gpus=1 max_gpus=4", gpus=4, options=("--time=1",))
        empty.wait_for(lambda: "The reservation maint takes n1, n2, n3 in" in told(empty, second), 60, "the reason")
        empty.wait_for(lambda: empty.state(short) == "RUNNING", 60, "the job that ends before it")
        assert empty.state(second) == "PENDING"
        # it may go on until then, but a restart would wait until the reservation is over
        assert (empty.state(first), squeue(empty, first, "RestartCnt")) == ("RUNNING", "0")
        empty.wait_for(
            lambda: "before the reservation maint takes its nodes" in told(empty, first), 150, "its checkpoint"
        )
