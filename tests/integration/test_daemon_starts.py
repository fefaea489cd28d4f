"""Starts on a real cluster: one that slurmd refuses is tried again elsewhere, and a user's start time is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from synergy_core.wire import admin_comment

from tests.integration.daemon_site import explain, status, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.power import power_off, set_down
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.slurm_output import release, row_of
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Two nodes of four GPUs and a daemon. The Prolog of a job with a `fail-JOBID` folder fails once."""
    cluster = make_cluster(epoch_s=1)
    prolog = cluster.folder / "prolog"
    prolog.write_text(f"#!/bin/bash\n! rmdir {cluster.folder}/fail-$SLURM_JOB_ID 2>/dev/null\n")
    prolog.chmod(0o755)
    expedites = ("SlurmctldParameters=enable_expedited_requeue",) * (release() >= (25, 11))
    cluster.slurm_conf = (*cluster.slurm_conf, f"Prolog={prolog}", *expedites)
    with cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


def test_a_start_that_slurmd_refuses_is_tried_again_on_another_node(site: SlurmCluster) -> None:
    job_id = light_job.submit(site, directive="min_gpus=1 max_gpus=2", options=("--hold",))
    (site.folder / f"fail-{job_id}").mkdir()
    site.run("scontrol", "release", str(job_id))
    site.wait_for(lambda: job_id in status(site), 60, "the job to be known")
    site.wait_for(lambda: "tried again (1 of 3)" in str(explain(site, job_id)), 90, "the failed start to be told")
    text = str(explain(site, job_id))
    first = text.partition("its start on ")[2].partition(" ")[0]
    drained = [n for n in site.node_names if "DRAIN" in site.run("scontrol", "show", "node", n).stdout]
    assert drained == [first]
    site.run("scontrol", "update", f"NodeName={first}", "State=RESUME")  # Slurm would take it again
    site.wait_for(lambda: site.state(job_id) == "RUNNING", 90, "its start")
    row = row_of(site, job_id)
    assert row["restart_cnt"] == 1 and row["nodes"] and row["nodes"] != first
    site.run("scancel", str(job_id))


def test_a_job_that_arrives_does_not_wait_for_the_minute_to_be_over() -> None:
    with make_cluster(epoch_s=300) as cluster, synergyd(cluster):
        until_beat(cluster)
        job_id = light_job.submit(cluster, directive="min_gpus=1 max_gpus=2")
        # it is seen within 25 s, and decided about 50 s after the first epoch began
        cluster.wait_for(lambda: cluster.state(job_id) == "RUNNING", 150, "its start long before the next epoch")
        assert explain(cluster, job_id)["decision"]["action"] in ("start", "keep")


def test_a_start_time_that_its_user_sets_while_synergy_parks_it_is_kept(site: SlurmCluster) -> None:
    filling = site.sbatch("#!/bin/bash\nsleep 600\n", "--nodes=2", "--gres=gpu:4", "--output=/dev/null")
    site.wait_for(lambda: site.state(filling) == "RUNNING", 60, "the nodes to be full")
    job_id = light_job.submit(site, directive="min_gpus=1 max_gpus=2")
    # put off for ParkTime, 900 s, by Synergy
    site.wait_for(lambda: row_of(site, job_id)["eligible_time"] > time.time() + 600, 60, "the job to be parked")
    site.run("scontrol", "update", f"JobId={job_id}", "StartTime=now+300")
    begin_s = row_of(site, job_id)["eligible_time"]
    site.run("scancel", str(filling))

    def told() -> bool:
        return "May not start for another" in (status(site).get(job_id) or {}).get("why", "")

    site.wait_for(told, 60, "the start time to be told")
    site.wait_for(lambda: site.state(filling) in ("", "CANCELLED"), 60, "the nodes to be free")
    decided = explain(site, job_id)["decision"]["why"]
    assert told() and row_of(site, job_id)["eligible_time"] == begin_s, decided
    site.run("scontrol", "update", f"JobId={job_id}", "StartTime=now+3")
    site.wait_for(lambda: site.state(job_id) == "RUNNING", 120, "its start at the time that its user has set")


def test_an_operator_s_admin_comment_is_kept_beside_the_stamp(site: SlurmCluster) -> None:
    job_id = light_job.submit(site, directive="min_gpus=1 max_gpus=2", options=("--begin=now+3600",))
    site.wait_for(lambda: job_id in status(site), 60, "the job to be known")
    site.run("scontrol", "update", f"JobId={job_id}", "AdminComment=ticket 12: see ops = yes")
    site.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    site.wait_for(lambda: "note=" in row_of(site, job_id)["admin_comment"], 60, "the stamp")
    stamp = admin_comment.decode(row_of(site, job_id)["admin_comment"])
    assert stamp is not None and stamp.requested_shape is not None and unquote(stamp.note) == "ticket 12: see ops = yes"
    site.run("scancel", str(job_id))


@pytest.mark.skipif(release() < (25, 11), reason="--requeue=expedite is of 25.11")
def test_a_job_that_slurm_expedites_is_not_bound_to_the_node_that_it_lost(site: SlurmCluster) -> None:
    """As the last one here: a node is lost."""
    job_id = light_job.submit(site, directive="min_gpus=1 max_gpus=2", options=("--requeue=expedite",))
    site.wait_for(lambda: site.state(job_id) == "RUNNING", 60, "its start")
    until_steps(site, job_id, timeout_s=120)
    lost = row_of(site, job_id)["nodes"]
    power_off(site, lost)
    set_down(site, lost)
    site.wait_for(lambda: row_of(site, job_id)["nodes"] not in ("", lost), 60, "its start elsewhere")
    assert site.state(job_id) == "RUNNING"
    site.run("scancel", str(job_id))
