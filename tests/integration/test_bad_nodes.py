"""Bad nodes and bad runs on a real cluster: what is avoided, drained, started again elsewhere, and shrunk."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from synergyd.daemon import heartbeat
from synergyd.store.store import open_store
from synergyd.views import status as status_view
from tests.integration.daemon_site import AS_OTHER, sizes, status, story, until_beat, until_steps
from tests.throwaway import light_job, sick_job
from tests.throwaway.accounting import OTHER_UID
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import Synergyd, make_cluster

pytestmark = pytest.mark.slurm
BY_OTHER: dict[str, Any] = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": [], "cwd": "/"}
# a job of two nodes, n1 among them; and one of one node, which n1 would be the first choice for
WIDE = "min_gpus=4 max_gpus=4 tp=1 pp=1"
WHOLE_NODE = "min_gpus=2 max_gpus=2 tp=1 pp=1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Four nodes with two GPUs each."""
    settings = ("#SYNERGY HangTimeout=2 IdleReclaim=2 DrainSlow=no",)
    made = make_cluster([NodeGroup("cpu", 4, 2)], epoch_s=1, settings=settings)
    made.slurm_conf = tuple(line.replace("CheckpointTimeout=60", "CheckpointTimeout=3") for line in made.slurm_conf)
    with made:
        (made.folder / "light").mkdir()
        (made.folder / "light").chmod(0o777)
        yield made


@pytest.fixture
def daemon(cluster: SlurmCluster) -> Iterator[Synergyd]:
    daemon = Synergyd(cluster)
    try:
        until_beat(cluster)
        yield daemon
    finally:
        daemon.stop()
        cluster.run("scancel", "--me")


def submit(cluster: SlurmCluster, how: str, directive: str, *options: str, **more: Any) -> int:
    # a healthy run of a busy machine stands still for a second now and then
    soon = {"hangs": "SYNERGY_STALL_S=4", "idle": "SYNERGY_IDLE_S=1"}.get(how, "")
    before = f"export SICK={how} SICK_ON=n1 {soon}\n"
    script = Path(sick_job.__file__)
    return light_job.submit(
        cluster, how, gpus=2, directive=directive, script=script, before=before, options=options, **more
    )


def until(cluster: SlurmCluster, condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """As cluster.wait_for, and tells what the daemon logged meanwhile."""
    try:
        cluster.wait_for(condition, timeout_s, what)
    except RuntimeError:
        log = (cluster.folder / "log" / "synergyd.log").read_text()
        raise RuntimeError(f"waiting for {what}\n{log[-4000:]}") from None


def bad_nodes(cluster: SlurmCluster) -> dict[str, Any]:
    with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
        return {node.name: node for node in status_view.collect(store).bad_nodes}


def node_of(cluster: SlurmCluster, job_id: int) -> str:
    return cluster.run("squeue", "-h", "-j", str(job_id), "-o", "%N").stdout.strip()


# first, since a user has one mark on a node: a hang's would stand in the way
def test_a_node_that_is_slow_for_two_users_is_avoided_and_drained(cluster: SlurmCluster, daemon: Synergyd) -> None:
    own = submit(cluster, "slow", WIDE, "--nodelist=n1")
    until_steps(cluster, own)
    assert "n1" not in bad_nodes(cluster)
    cluster.run("scancel", str(own))
    # another user's, who can't read this Python: it only sleeps, and its owner reports
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:2 --nodes=1 -o /dev/null\n#SYNERGY global_batch=8 micro_batch=1 {WIDE}\nsleep 300\n"
    other = cluster.sbatch(script, "--job-name=known", "--nodelist=n1", **BY_OTHER)
    until(cluster, lambda: sizes(cluster, other) == [4], 120, "its start")
    code = (
        "from synergy_core.wire.report import send; from synergy_core.job_report import Report\n"
        f"send(Report({other}, 0, 5, step_s=0.1, slow_nodes=('n1',), slow_times=(1.5,)), '127.0.0.1:{cluster.port + 90}', timeout_s=60)"
    )
    cluster.run(*AS_OTHER, sys.executable, "-c", code)
    until(cluster, lambda: "n1" in bad_nodes(cluster), 60, "the penalty")
    assert bad_nodes(cluster)["n1"].why == f"slow under jobs {own}, {other}"
    cluster.run("scancel", str(other))
    until(cluster, lambda: cluster.state(other) == "CANCELLED", 60, "its end")
    daemon.kill()  # the next one knows from the store

    def drained() -> list[str]:
        lines = cluster.run("sinfo", "-h", "-N", "-o", "%N|%T|%E").stdout.splitlines()
        return [line for line in lines if "|drain" in line]

    (cluster.state_dir / heartbeat.NAME).unlink()
    again = Synergyd(cluster)
    try:
        until_beat(cluster)
        next_one = submit(cluster, "none", WHOLE_NODE)
        until_steps(cluster, next_one)
        assert node_of(cluster, next_one) != "n1"
        assert drained() == []
    finally:
        again.stop()
    conf = cluster.folder / "slurm.conf"
    conf.write_text(conf.read_text().replace("DrainSlow=no", "DrainSlow=yes"))
    last = Synergyd(cluster)
    try:
        until(cluster, drained, 120, "the drain")
        assert [re.sub(r"drain\w+", "drained", line) for line in drained()] == [
            f"n1|drained|synergy: slow under jobs {own}, {other}"
        ]
        until(cluster, lambda: bad_nodes(cluster)["n1"].drained, 60, "the daemon to see that")
        cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")
        until(cluster, lambda: "n1" not in bad_nodes(cluster), 60, "the node to be forgiven")
    finally:
        last.stop()
        conf.write_text(conf.read_text().replace("DrainSlow=yes", "DrainSlow=no"))


def test_a_run_that_hangs_is_started_again_elsewhere_and_completes(cluster: SlurmCluster, daemon: Synergyd) -> None:
    job = submit(cluster, "hangs", WHOLE_NODE, steps=30)
    until(cluster, lambda: "hangs on" in light_job.output(cluster, job), 120, "its hang")
    until(cluster, lambda: cluster.state(job) == "COMPLETED", 150, "its end")
    first = re.search(r"hangs on (\S+)", light_job.output(cluster, job))
    assert first is not None and light_job.output(cluster, job).count("hangs on") == 1
    shown = cluster.run("scontrol", "show", "job", str(job)).stdout
    assert "Restarts=1 " in shown and f" NodeList={first[1]}\n" not in shown
    assert f"started again from its last checkpoint, on other nodes than {first[1]}" in story(cluster, job)


def test_gpus_of_a_job_that_does_nothing_are_taken_back(cluster: SlurmCluster, daemon: Synergyd) -> None:
    job = submit(cluster, "idle", "min_gpus=1 max_gpus=2 tp=1 pp=1")
    until(cluster, lambda: sizes(cluster, job) == [2], 120, "its start")
    until(
        cluster, lambda: "the GPUs of this job do nothing" in light_job.output(cluster, job), 60, "a word to its owner"
    )
    # its checkpoint is waited for: CheckpointTimeout
    until(cluster, lambda: sizes(cluster, job) == [1], 180, "it to shrink")
    told = story(cluster, job)
    assert "its GPUs do nothing" in told and "so it goes on with its smallest size" in told
    until(cluster, lambda: "idle for" in status(cluster)[job]["action"], 60, "status to say so")
