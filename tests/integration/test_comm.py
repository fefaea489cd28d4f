"""Less communication on a real cluster: a job that allows it gets it over slow links, and not over fast ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon_site import explain, until_beat
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, remember_programs, synergyd

pytestmark = pytest.mark.slurm
#: two nodes of A100s behind 1 Gbit/s Ethernet, of which each GPU has a share; NVLink in a node
SLOW = "#SYNERGY GpuType=a100 peak_tflops=312 memory_gib=80 bandwidth_gbs=2039 intra_gbs=300 inter_gbs=0.03"


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    cluster = make_cluster((NodeGroup("a100", 2, 4),), epoch_s=1, settings=(SLOW,))
    with cluster:
        remember_programs(cluster, {"says": "#SYNERGY global_batch=64\n"})
        with synergyd(cluster):
            until_beat(cluster)
            yield cluster


def told(site: SlurmCluster, nodes: int, comm: str) -> str:
    """SYNERGY_COMM in a job's training process, which has 4 GPUs on each of `nodes`; `none` where there is none."""
    script = site.folder / "says.py"
    script.write_text(
        "import os, time\nprint('comm', os.environ.get('SYNERGY_COMM', 'none'), flush=True)\ntime.sleep(3)\n"
    )
    gpus, output = 4 * nodes, site.folder / f"says-{nodes}-{comm}.out"
    job_id = site.sbatch(
        f"#!/bin/bash\n#SBATCH --nodes={nodes} --gres=gpu:4\n"
        f"#SYNERGY min_gpus={gpus} max_gpus={gpus} global_batch=64 comm={comm}\n"
        f"srun synergy-launch --runner python {script}\n",
        "--job-name=says",
        f"--output={output}",
    )
    site.wait_for(lambda: "comm " in _text(output), 120, f"job {job_id} to say what it was told: {_text(output)}")
    story = str(explain(site, job_id)["story"])
    said = _text(output).partition("comm ")[2].split()[0]
    site.run("scancel", str(job_id))
    site.wait_for(lambda: site.state(job_id) not in ("RUNNING", "COMPLETING"), 60, "its end")
    assert (f"exchange {said}" in story) is (said != "none"), story
    return said


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_job_over_slow_links_exchanges_less_where_it_allows_that(site: SlurmCluster) -> None:
    assert told(site, 2, "local").startswith("local:")
    assert told(site, 2, "exact") == "none"


def test_a_job_on_nvlink_exchanges_every_gradient(site: SlurmCluster) -> None:
    assert told(site, 1, "local") == "none"


def test_a_wrong_word_is_refused_at_sbatch(site: SlurmCluster) -> None:
    with pytest.raises(RuntimeError, match="comm takes some of exact, local, compressed"):
        site.sbatch("#!/bin/bash\n#SBATCH --gres=gpu:1\n#SYNERGY comm=locally\nsrun true\n")
