"""Checkpoints are asked for of the launcher alone: whatever else a job's script runs is never signalled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import sizes, story, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
# says that it is there, and ends by itself as soon as it may; a signal ends it at once, as most programs
STEP = """
import sys, time
from pathlib import Path
name, until = sys.argv[1], Path(sys.argv[2])
Path(name).touch()
while not until.exists():
    time.sleep(0.2)
Path(name + ".done").touch()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with make_cluster([NodeGroup("cpu", 3, 4)], epoch_s=1) as cluster, synergyd(cluster):
        (cluster.folder / "step.py").write_text(STEP)
        until_beat(cluster)
        yield cluster


def step(cluster: SlurmCluster, name: str) -> str:
    """A command line of a step that is no training, until the file `over` is there."""
    return f"srun --overlap --ntasks=1 --nodes=1 --gres=none python3 {cluster.folder}/step.py {cluster.folder}/{name} {cluster.folder}/over"


def test_only_the_launcher_s_step_is_asked_for_a_checkpoint(cluster: SlurmCluster) -> None:
    """A job whose training is over and whose evaluation runs, one with a server beside its training, and one with a monitor whose time
    limit is near; then a fourth one wants GPUs."""
    elastic, kept = "min_gpus=1 max_gpus=4", "resize=no"
    evaluates = light_job.submit(cluster, "evaluates", directive=elastic, steps=30, after=step(cluster, "eval") + "\n")
    serves = light_job.submit(
        cluster, "serves", directive=elastic, before=f"{step(cluster, 'server')} &\n", beside="&\nwait -n"
    )
    monitors = light_job.submit(
        cluster,
        "monitors",
        directive=kept,
        before=f"{step(cluster, 'monitor')} &\n",
        beside="&\nwait -n",
        options=("--time=1",),
    )
    until_steps(cluster, serves, monitors)
    cluster.wait_for((cluster.folder / "eval").exists, 120, "the evaluation")
    rival = light_job.submit(cluster, "rival", directive="min_gpus=2 max_gpus=2 resize=no weight=8", gpus=2)
    # it makes way with a checkpoint, and goes on from there
    cluster.wait_for(lambda: sizes(cluster, serves, rival) == [2, 2], 120, "two GPUs to be given back")
    until_steps(cluster, rival, serves)
    assert "checkpoint acknowledged" in story(cluster, serves)
    assert row_of(cluster, serves)["restart_cnt"] == 1
    cluster.wait_for(lambda: "before its time limit ends it" in story(cluster, monitors), 120, "the last checkpoint")
    cluster.wait_for(lambda: "checkpoint" in light_job.output(cluster, monitors), 60, "it to be taken")
    assert cluster.state(monitors) == "RUNNING"
    # a signal would have ended it, and its job with it
    assert (row_of(cluster, evaluates)["restart_cnt"], cluster.state(evaluates)) == (0, "RUNNING")
    (cluster.folder / "over").touch()
    cluster.wait_for(lambda: cluster.state(evaluates) == "COMPLETED", 60, "the evaluation's end")
    assert (cluster.folder / "eval.done").exists()
