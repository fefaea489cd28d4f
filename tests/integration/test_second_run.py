"""Scripts that do not get to their training a second time: they are not resized, or run once more as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import explain, sizes, status, story, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with make_cluster([NodeGroup("cpu", 2, 4)], epoch_s=1) as cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


def test_no_job_is_lost_to_its_own_script(cluster: SlurmCluster) -> None:
    """One makes a folder under `set -e`, which can be seen; the other takes four GPUs alone, which can't. A third job wants GPUs."""
    folder = cluster.folder / "made-once"
    (cluster.folder / "check.sh").write_text('[ "$SLURM_GPUS_ON_NODE" = 4 ]\n')
    elastic = "min_gpus=1 max_gpus=4"
    makes = light_job.submit(cluster, "makes", directive=elastic, before=f"set -e\nmkdir {folder}\n")
    picky = light_job.submit(cluster, "picky", directive=elastic, before=f"bash {cluster.folder}/check.sh || exit 3\n")
    until_steps(cluster, makes, picky)
    assert sizes(cluster, makes, picky) == [4, 4]
    rival = light_job.submit(cluster, "rival", directive="min_gpus=2 max_gpus=2 resize=no weight=8", gpus=2)
    cluster.wait_for(lambda: "run once more with 4" in story(cluster, picky), 120, "the script to end at its new size")
    until_steps(cluster, rival)
    cluster.run("scancel", str(rival))
    cluster.wait_for(lambda: cluster.state(picky) == "RUNNING", 120, "its former size")
    until_steps(cluster, picky)
    assert sizes(cluster, picky) == [4] and row_of(cluster, picky)["restart_cnt"] == 2
    # neither is resized from now on, and both say why
    other = light_job.submit(cluster, "rival", directive="min_gpus=2 max_gpus=2 resize=no weight=8", gpus=2)
    why = "ended before its training began again after a resize"
    cluster.wait_for(lambda: why in explain(cluster, picky)["decision"]["why"], 60, "the reason")
    cluster.wait_for(lambda: other in status(cluster), 60, "the decision about the other")
    assert "`mkdir` without -p" in explain(cluster, makes)["decision"]["why"]
    assert (cluster.state(makes), row_of(cluster, makes)["restart_cnt"]) == ("RUNNING", 0)
    assert (cluster.state(picky), cluster.state(other)) == ("RUNNING", "PENDING")
