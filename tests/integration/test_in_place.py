"""Restarts inside an allocation, on a real cluster: another plan for the same GPUs, and crashes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from synergy_launch.agent.lost_loss import LOST_STEPS

from tests.integration.daemon_site import story, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.power import power_off, power_on
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = pytest.mark.slurm
GPUS = 2  # of each node
# what it runs with where the launcher has no plan. As many stages as GPUs, of a model of four layers: any other plan is better
POOR = 'export SYNERGY_IN_PLACE=nodes SYNERGY_PLAN_JSON=\'{{"pp": {}, "global_batch": 8}}\'\n'


def submit(cluster: SlurmCluster, name: str, before: str, nodes: int = 1, *options: str, runner: str = "python") -> int:
    """A job whose size is its user's own."""
    size = f"min_gpus={nodes * GPUS} max_gpus={nodes * GPUS}"
    return light_job.submit(
        cluster, name, gpus=GPUS, directive=size, before=before, options=(f"--nodes={nodes}", *options), runner=runner
    )


@pytest.fixture(scope="module")
def planned() -> dict[int, int]:
    """By number of nodes: a job that started before the daemon, with arguments that are worse than the daemon's."""
    return {}


@pytest.fixture(scope="module")
def cluster(planned: dict[int, int]) -> Iterator[SlurmCluster]:
    made = make_cluster([NodeGroup("cpu", 5, GPUS)], epoch_s=1)
    made.slurmd_timeout_s = 300  # a lost node is Slurm's business when a test says so
    with made as cluster:
        for nodes in (1, 2):
            planned[nodes] = submit(cluster, f"plan-{nodes}", POOR.format(nodes * GPUS), nodes)
        cluster.wait_for(lambda: all(cluster.state(j) == "RUNNING" for j in planned.values()), 60, "their start")
        with synergyd(cluster):
            until_beat(cluster)
            yield cluster


def shown(cluster: SlurmCluster, job_id: int, name: str) -> str:
    text = cluster.run("scontrol", "show", "job", str(job_id)).stdout
    found = re.search(rf"\b{name}=(\S+)", text)
    assert found is not None, text
    return found[1]


def folder_of(cluster: SlurmCluster, job_id: int) -> Path:
    """Its checkpoints'."""
    folder = re.search(r"checkpoint=(\S+)", cluster.run("scontrol", "write", "batch_script", str(job_id), "-").stdout)
    assert folder is not None
    return Path(folder[1])


def steps(cluster: SlurmCluster, job_id: int) -> list[dict[str, float]]:
    """The job's step log, its whole lines."""
    path = folder_of(cluster, job_id) / "steps.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def last_step(cluster: SlurmCluster, job_id: int) -> dict[str, float]:
    """Its last line; {} before the first."""
    return (steps(cluster, job_id) or [{}])[-1]


@pytest.mark.parametrize("nodes", [1, 2])
def test_another_plan_for_the_same_gpus_needs_no_requeue(
    cluster: SlurmCluster, planned: dict[int, int], nodes: int
) -> None:
    job = planned[nodes]
    cluster.wait_for(lambda: "restarted in place:" in story(cluster, job), 180, "the restart in place")
    cluster.wait_for(lambda: last_step(cluster, job).get("pp") == 1, 60, "a step with the new plan")
    assert (cluster.state(job), shown(cluster, job, "Restarts")) == ("RUNNING", "0")
    log = steps(cluster, job)
    first = next(i for i, line in enumerate(log) if line["pp"] == 1)
    assert log[first]["step"] == log[first - 1]["step"] + 1, "no step is lost"
    print(f"{nodes} nodes: trains again after {log[first]['time'] - log[first - 1]['time']:.1f} s, with another plan")
    cluster.run("scancel", str(job))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_crash_is_mended_in_place_and_one_at_the_same_step_again_ends_the_job(
    cluster: SlurmCluster, nodes: int
) -> None:
    before = "export SYNERGY_IN_PLACE=nodes CHECKPOINT_EVERY=10 CRASHES=35:{}\n"
    once, always = (submit(cluster, f"crash-{nodes}-{n}", before.format(n), nodes) for n in (1, 99))
    until_steps(cluster, once, steps=40, timeout_s=180)
    assert (cluster.state(once), shown(cluster, once, "Restarts")) == ("RUNNING", "0")
    # the step that it has written of itself last: the crash may come sooner than the next such line
    told = r"ended with exit code 9( on n\d)? at step (3[0-5]|2\d): started again in place"
    cluster.wait_for(lambda: re.search(told, story(cluster, once)), 60, "the story")
    log = steps(cluster, once)
    at = next(i for i, line in enumerate(log) if line["step"] == 35)
    assert log[at + 1]["step"] == 31, "from its last checkpoint"
    print(f"{nodes} nodes: trains again after {log[at + 1]['time'] - log[at]['time']:.1f} s, after a crash")
    cluster.run("scancel", str(once))
    cluster.wait_for(lambda: cluster.state(always) == "FAILED", 120, "the end of the other")
    assert shown(cluster, always, "Restarts") == "0" and shown(cluster, always, "ExitCode") == "9:0"


def test_a_loss_that_is_lost_at_a_larger_batch_is_had_again_below_it(cluster: SlurmCluster) -> None:
    """The batch grows, ten steps later the loss is no number: the run goes on from its checkpoint, and never goes there again."""
    before = "export SYNERGY_IN_PLACE=nodes CHECKPOINT_EVERY=5 LOSES_ABOVE=8\n"
    size = f"min_gpus={GPUS} max_gpus={GPUS} global_batch=8:64"
    job = light_job.submit(cluster, "loses", gpus=GPUS, directive=size, before=before)
    cluster.wait_for(lambda: "no global batch above 8 comes again" in story(cluster, job), 240, "the bound")
    until_steps(cluster, job, steps=int(last_step(cluster, job)["step"]) + 40, timeout_s=180)
    log = steps(cluster, job)
    first = next(i for i, line in enumerate(log) if line["loss"] is None)
    again = next(i for i in range(first, len(log)) if log[i]["loss"] is not None)
    assert log[first]["global_batch"] > 8 and again - first == LOST_STEPS
    assert log[again]["step"] <= log[first]["step"], "from a checkpoint before that"
    assert {line["global_batch"] for line in log[again + 2 :]} == {8} and all(line["loss"] for line in log[again:])
    assert (cluster.state(job), shown(cluster, job, "Restarts")) == ("RUNNING", "0")
    cluster.run("scancel", str(job))


@pytest.mark.parametrize("stays", [True, False])
def test_a_lost_node_of_two_leaves_the_job_training_on_the_other(cluster: SlurmCluster, stays: bool) -> None:
    """`stays`: the job may outlive a node in Slurm too, by its owner's options."""
    before = "export CHECKPOINT_EVERY=10" + " SLURM_NO_KILL=set" * stays + "\n"
    job = submit(cluster, "lost", before, 2, *["--no-kill"] * stays, runner="torchrun")
    until_steps(cluster, job, steps=25, timeout_s=180)
    nodes = cluster.run("squeue", "-h", "-j", str(job), "-o", "%N").stdout.strip()
    _, lost = cluster.run("scontrol", "show", "hostnames", nodes).stdout.split()
    at_s = time.time()
    power_off(cluster, lost)
    try:
        cluster.wait_for(lambda: last_step(cluster, job).get("dp") == GPUS, 150, "steps on the node that is left")
        log = steps(cluster, job)
        again = next(line for line in log if line["dp"] == GPUS)
        print(f"trains again {again['time'] - at_s:.1f} s after the loss of a node, in place")
        assert (cluster.state(job), shown(cluster, job, "Restarts")) == ("RUNNING", "0")
        cluster.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=lost")  # as after SlurmdTimeout
        if stays:
            cluster.wait_for(lambda: shown(cluster, job, "NumNodes") == "1", 60, "Slurm to take the node from the job")
            seen = steps(cluster, job)[-1]["step"]
            cluster.wait_for(lambda: steps(cluster, job)[-1]["step"] > seen + 20, 120, "further steps")
            assert shown(cluster, job, "Restarts") in ("0", "1")  # 1: it has grown again
            cluster.wait_for(lambda: f"lost {lost} at step" in story(cluster, job), 60, "the story")
        else:
            cluster.wait_for(lambda: steps(cluster, job)[-1]["restarts"] == 1, 180, "steps after Slurm's requeue")
            assert cluster.state(job) == "RUNNING"
    finally:
        cluster.run("scancel", str(job))
        power_on(cluster, lost)


def node_state(cluster: SlurmCluster, name: str) -> str:
    """Its state and flags, as Slurm shows them."""
    return cluster.run("sinfo", "-h", "-N", "-n", name, "-O", "StateComplete:60").stdout.split()[0]


def rank_of(job_id: int, rank: int) -> int | None:
    """The process of this rank of the job's first run: those of later ones may be forks, which keep their parent's environment."""
    wanted = {f"SLURM_JOB_ID={job_id}".encode(), f"RANK={rank}".encode()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                    return int(entry.name)
    return None


def test_a_lost_node_is_given_back_before_slurm_ends_the_job_for_it() -> None:
    """Slurm asks a node each third of SlurmdTimeout whether it is there, and finds it down when that is over."""
    made = make_cluster([NodeGroup("cpu", 3, GPUS)], epoch_s=2)
    made.slurmd_timeout_s = 60
    with made as cluster, synergyd(cluster):
        until_beat(cluster)
        job = submit(cluster, "lost", "export CHECKPOINT_EVERY=10\n", 2, runner="torchrun")
        until_steps(cluster, job, steps=25, timeout_s=180)
        nodes = cluster.run("squeue", "-h", "-j", str(job), "-o", "%N").stdout.strip()
        _, lost = cluster.run("scontrol", "show", "hostnames", nodes).stdout.split()
        power_off(cluster, lost)
        cluster.wait_for(lambda: last_step(cluster, job).get("dp") == GPUS, 60, "steps on the node that is left")
        cluster.wait_for(lambda: "lost, given back" in story(cluster, job), 90, "the node's return")
        cluster.wait_for(lambda: node_state(cluster, lost).startswith("down"), 120, "Slurm to find the node down")
        # the third node joins: the job is at its size again
        cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 2 * GPUS, 180, "steps on two nodes")
        assert (cluster.state(job), shown(cluster, job, "Restarts")) == ("RUNNING", "0"), story(cluster, job)
        log = steps(cluster, job)
        assert {line["restarts"] for line in log} == {0}
        assert sorted({line["step"] for line in log}) == list(range(1, int(log[-1]["step"]) + 1)), "no step is left out"


@pytest.mark.parametrize("rank", [1, 2])  # of the first node, and of the other
def test_a_stopped_rank_is_answered_in_place(cluster: SlurmCluster, rank: int) -> None:
    # no forks: their environment does not say which rank they are
    before = "export CHECKPOINT_EVERY=10 SYNERGY_WARM_START=0\n"
    job = submit(cluster, "stopped", before, 2, runner="torchrun")
    until_steps(cluster, job, steps=25, timeout_s=180)
    first = rank_of(job, rank)
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    cluster.wait_for(lambda: "(hang)" in story(cluster, job), 60, "the answer")
    cluster.wait_for(lambda: not Path(f"/proc/{first}").exists(), 60, "the end of the run")
    at = last_step(cluster, job)["step"]
    cluster.wait_for(lambda: last_step(cluster, job)["step"] > at + 5, 60, "further steps")
    assert (cluster.state(job), shown(cluster, job, "Restarts")) == ("RUNNING", "0")
    cluster.run("scancel", str(job))
