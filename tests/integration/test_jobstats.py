"""Beside jobstats, whose slurmctld epilog writes its figures into AdminComment at each end of a job, over what stands there."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from synergy_core.wire import admin_comment

from tests.integration.daemon_site import sizes, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

FIGURES = "JS1:H4sIAGl0c2FmZQD/q1YqSy0qzszPU7JSMtQzUKoFAF3Bk7cQAAAA"


@pytest.fixture
def site() -> Iterator[SlurmCluster]:
    """Two nodes with four GPUs each, and an epilog that writes as jobstats does."""
    cluster = make_cluster(epoch_s=1, settings=("#SYNERGY Live=no",))
    epilog = cluster.folder / "jobstats-epilog"
    cluster.slurm_conf = (*cluster.slurm_conf, f"EpilogSlurmctld={epilog}")
    epilog.write_text(
        f"#!/bin/bash\nexport SLURM_CONF={cluster.folder}/slurm.conf\n"
        f'/usr/bin/scontrol update "JobId=$SLURM_JOB_ID" "AdminComment={FIGURES}" && echo "$SLURM_JOB_ID" >> {cluster.folder}/epilogs\n'
    )
    epilog.chmod(0o755)
    with cluster:
        yield cluster


def test_a_requeued_job_keeps_its_size_and_plan_and_jobstats_its_figures(site: SlurmCluster) -> None:
    def written(job: int) -> bool:
        path = site.folder / "epilogs"
        return path.exists() and str(job) in path.read_text().split()

    def note(job: int) -> str:
        stamp = admin_comment.decode(row_of(site, job)["admin_comment"])
        return "" if stamp is None else unquote(stamp.note)

    with synergyd(site):
        until_beat(site)
        job = light_job.submit(site, directive="min_gpus=1 max_gpus=8", gpus=2)
        site.wait_for(lambda: sizes(site, job) == [8], 150, "the job to have both nodes")
        until_steps(site, job)
        other = light_job.submit(site, directive="min_gpus=1 max_gpus=4")
        site.wait_for(lambda: sizes(site, job, other) == [4, 4], 150, "the job to make way by a requeue")
        site.wait_for(lambda: written(job), 60, "the epilog")
        until_steps(site, job, other)
        site.wait_for(lambda: note(job) == FIGURES, 120, "a stamp beside the figures")
        stamp = admin_comment.decode(row_of(site, job)["admin_comment"])
        assert stamp is not None and stamp.requested_shape is not None and stamp.requested_shape.gpus == 2
        assert stamp.plan is not None and stamp.plan.gpus == 4
        site.run("scancel", str(job), str(other))
