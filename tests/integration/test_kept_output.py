"""A job's output over resizes on a Slurm with default settings, which truncates it at each start."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon_site import sizes, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Two nodes with four GPUs each, and Slurm's default for the output of requeued jobs."""
    cluster = make_cluster(epoch_s=1, settings=("#SYNERGY Live=no",))
    cluster.slurm_conf = (*cluster.slurm_conf, "JobFileAppend=0")
    with cluster:
        yield cluster


def talking_script(cluster: SlurmCluster, name: str) -> str:
    """Trains until NAME.go is there, and says in both outputs when an incarnation begins and when the job ends."""
    config, checkpoint = cluster.folder / "config.json", cluster.folder / f"{name}.checkpoint"
    config.write_text(json.dumps(light_job.MODEL))
    job = Path(light_job.__file__).resolve()
    return (
        f"#!/bin/bash\n#SBATCH --gres=gpu:4 --nodes=1 --output={cluster.folder}/%x.out --error={cluster.folder}/%x.err\n"
        f"#SYNERGY model={config} global_batch=8 micro_batch=1 checkpoint={checkpoint} min_gpus=1 max_gpus=8\n"
        f"export GOES_ON_UNTIL={cluster.folder}/{name}.go\n"
        "echo begins ${SLURM_RESTART_COUNT:-0}\necho begins ${SLURM_RESTART_COUNT:-0} >&2\n"
        f"synergy-launch --runner python --checkpoint {checkpoint} {job} 30 || exit 1\n"
        "echo ends\n"
    )


def starts(path: Path) -> list[str]:
    return [line for line in path.read_text(errors="replace").splitlines() if re.match(r"(begins|ends)\b", line)]


def test_a_resize_truncates_no_output(site: SlurmCluster) -> None:
    """On a Slurm that truncates the output of a requeued job; one job wants that, and gets it."""
    with synergyd(site):
        until_beat(site)
        job = site.sbatch(talking_script(site, "talks"), "--job-name=talks")
        site.wait_for(lambda: sizes(site, job) == [8], 150, "the job to have both nodes")
        until_steps(site, job)
        other = site.sbatch(talking_script(site, "other"), "--job-name=talks-other", "--open-mode=truncate")
        site.wait_for(lambda: sizes(site, job, other) == [4, 4], 150, "the job to make way")
        until_steps(site, job, other)
        site.wait_for(lambda: starts(site.folder / "talks.out") == ["begins 0", "begins 1"], 60, "all of its output")
        (site.folder / "talks.go").touch()
        site.wait_for(lambda: sizes(site, other) == [8], 150, "the other job to grow")
        until_steps(site, other)
        (site.folder / "other.go").touch()
        site.wait_for(lambda: site.state(other) in ("COMPLETED", ""), 150, "the end")
    assert starts(site.folder / "talks.out") == ["begins 0", "begins 1", "ends"]
    assert starts(site.folder / "talks.err") == ["begins 0", "begins 1"]
    assert starts(site.folder / "talks-other.out") == ["begins 1", "ends"]
    assert [path.name for path in site.folder.glob(".*")] == [], "nothing is left beside the output"
