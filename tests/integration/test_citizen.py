"""Jobs with the options that Slurm weighs beside GPUs: each starts where Slurm lets it, as soon as the same job without a
directive would. One cluster for all: three nodes of four GPUs, 16 CPUs and 8000 MiB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.daemon_site import ELASTIC, explain, status, until_beat
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster, missing_programs
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing_programs()), reason="Slurm or munge is not installed"),
]
START_S = 90.0  # two epochs of a second and a start of Python, on a machine that does other things too
LINES = (
    "Licenses=matlab:2",
    "PartitionName=small Nodes=n[2-3] MaxNodes=1",
    "PartitionName=whole Nodes=n3 OverSubscribe=EXCLUSIVE",
    "PartitionName=capped Nodes=n[2-3] MaxCPUsPerNode=8",
    "DefMemPerCPU=100",
)


@pytest.fixture(scope="module")
def town() -> Iterator[SlurmCluster]:
    groups = [NodeGroup("a100", 1, 4, "ib"), NodeGroup("a100", 1, 4, "fast"), NodeGroup("a100", 1, 4, "ib,fast")]
    cluster = make_cluster(groups, epoch_s=1, settings=LINES)
    cluster.cpus_per_node, cluster.memory_mib, cluster.counts_memory = 16, 8000, True
    with cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


@pytest.fixture
def plain(town: SlurmCluster) -> Iterator[Any]:
    """Submits a job without GPUs and waits until it runs; all jobs end with the test."""

    def submit(*options: str) -> int:
        job_id = town.sbatch("#!/bin/sh\nsleep 600\n", "-o", "/dev/null", *options)
        town.wait_for(lambda: town.state(job_id) == "RUNNING", 60, "the plain job to run")
        return job_id

    yield submit
    town.run("scancel", *town._job_ids(), check=False)
    town.wait_for(lambda: not town.run("squeue", "-h", "-o", "%A").stdout.split(), 120, "the queue to be empty")


def nodes_of(town: SlurmCluster, job_id: int) -> set[str]:
    """The job's nodes once it runs."""

    def told() -> str:
        row = row_of(town, job_id)
        return f"{row['state_reason']} {row['required_nodes']} {explain(town, job_id)['decision']}"

    looks = [["", ""]]  # state and nodes, in one look

    def runs() -> bool:
        looks.append(town.run("squeue", "-h", "-j", str(job_id), "-o", "%T %N").stdout.strip().split(" "))
        return looks[-1][0] == "RUNNING"

    try:
        town.wait_for(runs, START_S, f"job {job_id} to run")
    except RuntimeError as error:
        raise AssertionError(f"{error}\n{told()}") from None
    return set(town.run("scontrol", "show", "hostnames", looks[-1][1]).stdout.split())


def test_an_excluded_node_is_left_out(town: SlurmCluster, plain: Any) -> None:
    job_id = light_job.submit(town, directive=ELASTIC, options=("--exclude=n1,n2",))
    assert nodes_of(town, job_id) == {"n3"}


def test_a_nodelist_is_kept_at_another_size_too(town: SlurmCluster, plain: Any) -> None:
    job_id = light_job.submit(town, gpus=2, directive="min_gpus=8 max_gpus=8", options=("--nodelist=n2",))
    nodes = nodes_of(town, job_id)
    assert "n2" in nodes and len(nodes) == 2
    assert set(row_of(town, job_id)["required_nodes"].replace("[", "").split(",")) != {""}
    assert "nodes=n2" in row_of(town, job_id)["admin_comment"]


def test_a_node_without_free_cpus_is_passed_over(town: SlurmCluster, plain: Any) -> None:
    plain("-n15", "-w", "n1")
    plain("-n15", "-w", "n2")
    job_id = light_job.submit(town, directive=ELASTIC, options=("--cpus-per-task=4",))
    assert nodes_of(town, job_id) == {"n3"}


def test_a_node_without_free_memory_is_passed_over(town: SlurmCluster, plain: Any) -> None:
    plain("--mem=7000", "-w", "n1")
    plain("--mem=7000", "-w", "n3")
    job_id = light_job.submit(town, directive=ELASTIC, options=("--mem-per-gpu=1000",))
    assert nodes_of(town, job_id) == {"n2"}


def test_cpus_of_each_gpu_bound_the_size(town: SlurmCluster, plain: Any) -> None:
    for name in ("n1", "n2", "n3"):
        plain("-n8", "-w", name)
    job_id = light_job.submit(town, gpus=1, directive=ELASTIC, options=("--cpus-per-gpu=4",))
    assert len(nodes_of(town, job_id)) == 1
    town.wait_for(lambda: (status(town).get(job_id) or {}).get("gpus") == 2, START_S, "two GPUs")


def test_an_exclusive_job_waits_for_no_node_that_is_in_use(town: SlurmCluster, plain: Any) -> None:
    plain("-n1", "-w", "n1")
    plain("-n1", "-w", "n2")
    job_id = light_job.submit(town, directive=ELASTIC, options=("--exclusive",))
    assert nodes_of(town, job_id) == {"n3"}


def test_features_in_parentheses(town: SlurmCluster, plain: Any) -> None:
    job_id = light_job.submit(town, directive=ELASTIC, options=("--constraint=a100&(fast&ib)",))
    assert nodes_of(town, job_id) == {"n3"}


def test_all_jobs_of_a_partition_share_its_cpus_of_a_node(town: SlurmCluster, plain: Any) -> None:
    for node in ("n2", "n3"):  # n3 has less room without that limit
        plain("-p", "main", f"--nodelist={node}", "-c", "2" if node == "n2" else "4")
    plain("-p", "capped", "--nodelist=n2", "-c", "6")
    job_id = light_job.submit(town, gpus=1, directive="max_gpus=8", options=("-p", "capped", "-c", "4"))
    assert nodes_of(town, job_id) == {"n3"}


def test_a_partition_s_limit_caps_the_size(town: SlurmCluster, plain: Any) -> None:
    job_id = light_job.submit(town, directive="min_gpus=1 max_gpus=8", options=("--partition=small",))
    assert len(nodes_of(town, job_id)) == 1
    both = light_job.submit(
        town, directive="min_gpus=1 max_gpus=4", options=("--partition=small,whole", "--exclude=n2")
    )
    assert nodes_of(town, both) == {"n3"}


def test_what_slurm_counts_alone_is_left_to_it(town: SlurmCluster, plain: Any) -> None:
    job_id = light_job.submit(town, directive=ELASTIC, options=("--licenses=matlab:1",))
    assert len(nodes_of(town, job_id)) == 1
    why = "leaves the job to Slurm: it asks for licences (matlab:1)"
    town.wait_for(lambda: why in explain(town, job_id)["decision"]["why"], 60, "the reason to be told")
    assert row_of(town, job_id)["required_nodes"] == ""


def test_cpus_of_each_gpu_follow_the_size(town: SlurmCluster, plain: Any) -> None:
    job_id = light_job.submit(town, gpus=1, directive="min_gpus=2 max_gpus=2", options=("--cpus-per-gpu=4",))
    assert len(nodes_of(town, job_id)) == 1
    assert town.run("squeue", "-h", "-j", str(job_id), "-o", "%C").stdout.strip() == "8"


def test_a_refusal_that_no_node_shows_costs_one_more_try(town: SlurmCluster, plain: Any) -> None:
    """n2's partition has given out all the CPUs that it may there, and jobs of another partition hide that: the node itself has GPUs
    and CPUs free, and is the tightest fit. For as long as a release may take (two epochs, a minute at the least) Slurm does not
    start the job there."""
    plain("-w", "n2", "-p", "capped", "-c", "6", "--gres=gpu:1")
    plain("-w", "n2", "-p", "main", "-c", "1", "--gres=gpu:1")
    job_id = light_job.submit(town, gpus=2, directive="min_gpus=2 max_gpus=2", options=("-p", "capped", "-c", "4"))
    town.wait_for(lambda: row_of(town, job_id)["required_nodes"] == "n2", START_S, "the job to be pinned")
    town.wait_for(lambda: town.state(job_id) == "RUNNING", 60 + START_S, "the job to run")
    assert nodes_of(town, job_id) == {"n3"}
    story = [line["detail"] for line in explain(town, job_id)["story"]]
    (said,) = (text for text in story if "Slurm did not start it with" in text)
    assert "on n2" in said and "(its reason: Resources)" in said and "on nodes of Slurm's choice is tried" in said
