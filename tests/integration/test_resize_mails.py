"""Slurm's mails to a job's user: a resize is neither a begin nor an end."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import sizes, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
MAIL = ("--mail-type=ALL,TIME_LIMIT_90", "--mail-user=mina@example.org")


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Two nodes with four GPUs each, and a MailProg that notes each mail."""
    cluster = make_cluster(epoch_s=1, settings=("#SYNERGY Live=no",))
    program = cluster.folder / "mailprog"
    program.write_text(f'#!/bin/bash\nprintf "%s\\n" "$2" >> {cluster.folder}/mails\n')
    program.chmod(0o755)
    cluster.slurm_conf = (*cluster.slurm_conf, f"MailProg={program}")
    with cluster:
        yield cluster


def mails(cluster: SlurmCluster, job_id: int) -> list[str]:
    """Return what Slurm has mailed of the job: Began, Ended, ..."""
    path = cluster.folder / "mails"
    lines = path.read_text().splitlines() if path.exists() else []
    matches = (re.match(rf"Slurm Job_id={job_id} Name=\S+ (\w+)", line) for line in lines)
    return [match[1] for match in matches if match]


def test_resizes_mail_nothing(site: SlurmCluster) -> None:
    """Two resizes; Slurm mails a begin and a requeue at each, unless Synergy takes these kinds out meanwhile."""
    with synergyd(site):
        until_beat(site)
        job = light_job.submit(site, "talks", gpus=4, directive="min_gpus=1 max_gpus=8", options=MAIL)
        site.wait_for(lambda: sizes(site, job) == [8], 150, "the job to have both nodes")
        until_steps(site, job)
        other = light_job.submit(site, "other", gpus=4, directive="min_gpus=4 max_gpus=4")
        site.wait_for(lambda: sizes(site, job, other) == [4, 4], 150, "the job to make way")
        until_steps(site, job)
        assert row_of(site, job)["restart_cnt"] >= 1
        wants = "MailType=INVALID_DEPEND,BEGIN,END,FAIL,REQUEUE,STAGE_OUT,TIME_LIMIT_90"
        site.wait_for(lambda: wants in site.run("scontrol", "show", "job", str(job)).stdout, 60, "its own MailType")
        site.run("scancel", str(job))
        site.wait_for(lambda: "Ended" in mails(site, job), 150, "the job to end, and its mail")
    assert mails(site, job) == ["Began", "Ended"]
