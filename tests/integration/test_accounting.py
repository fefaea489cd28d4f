"""synergyd on a cluster whose slurmdbd holds jobs to limits of associations and QOS."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.parsed.associations import parse
from synergyd.store.store import open_store
from tests.integration.daemon_site import status, until_beat, until_epochs, until_steps
from tests.throwaway import accounting, light_job
from tests.throwaway.accounting import OTHER, OTHER_UID, Accounting
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(accounting.missing_programs()), reason=f"not here: {accounting.missing_programs()}"),
]
JWT = list(Path("/usr/lib").glob("*/slurm*/auth_jwt.so"))
BY_OTHER: dict[str, Any] = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": [], "cwd": "/"}
ACCOUNTS = (
    "add account chem GrpTRES=gres/gpu=4,node=1,cpu=8,mem=4000",
    "add account few GrpTRES=cpu=4",
    "add account wide GrpTRES=node=1",
    "add account small MaxTRESPerJob=gres/gpu=2",
    "add account shrinks",
    "add account free",
    "add qos capped MaxTRESPerUser=gres/gpu=1",
    "add qos long Flags=PartitionTimeLimit",
    f"add user {OTHER} account=chem,few,wide,small,free qos=normal,capped,long defaultqos=normal",
    "add user root account=shrinks",
)


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Two nodes with four GPUs each, a slurmdbd, the plugin, and a running daemon with an epoch a second."""
    cluster = make_cluster(epoch_s=1)
    cluster.accounting = Accounting(ACCOUNTS)
    parts = ("PartitionName=short Nodes=n2 MaxTime=3", "PartitionName=one Nodes=n1")
    cluster.slurm_conf = (*cluster.slurm_conf, *parts)
    if JWT:
        key = cluster.folder / "jwt.key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        cluster.slurm_conf = (*cluster.slurm_conf, "AuthAltTypes=auth/jwt", f"AuthAltParameters=jwt_key={key}")
    with cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


def used(cluster: SlurmCluster, account: str) -> dict[str, int]:
    """What Slurm counts to an account, by TRES."""
    text = cluster.run("scontrol", "show", "assoc_mgr", "flags=assoc", f"accounts={account}").stdout
    line = next(x for x in text.splitlines() if "GrpTRES=" in x)
    return {name: int(n) for name, n in re.findall(r"([\w/]+)=[N\d]+\((\d+)\)", line)}


def submit(cluster: SlurmCluster, account: str, *options: str, held: bool = False) -> int:
    """A job of another user's that asks for one GPU, may have all, and only sleeps."""
    directive = "" if held else "#SYNERGY min_gpus=1 max_gpus=8 global_batch=8 micro_batch=1"
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:1 --nodes=1 --output=/dev/null\n{directive}\nsleep 300\n"
    extra = ("--hold",) if held else ()
    return cluster.sbatch(script, "--job-name=known", f"--account={account}", "--time=60", *extra, *options, **BY_OTHER)


def end(cluster: SlurmCluster, *job_ids: int) -> None:
    cluster.run("scancel", *map(str, job_ids))
    cluster.wait_for(
        lambda: not any(cluster.state(i) in ("RUNNING", "COMPLETING", "?") for i in job_ids), 120, "their end"
    )


def why(cluster: SlurmCluster, job_id: int) -> str:
    """All that the latest decisions tell of it: one epoch's are gone with the next."""
    with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
        decisions = [stored.decision for stored in store.decisions_of(job_id, 5)]
    return " ".join(text for d in decisions for text in (d.why, *(a.why_not for a in d.alternatives)))


@pytest.mark.parametrize(
    ("account", "options", "most", "told"),
    [
        ("chem", ("--cpus-per-task=2", "--mem=1000"), {"gres/gpu": 4, "node": 1}, "account chem may hold"),
        ("few", ("--cpus-per-task=4",), {"cpu": 4, "node": 1}, "account few may hold"),
        ("wide", (), {"node": 1}, "account wide may hold"),
        ("small", (), {"gres/gpu": 2}, "may have at most 2 GPUs (MaxTRESPerJob)"),
        ("free", ("--qos=capped",), {"gres/gpu": 1}, "in QOS capped may hold"),
    ],
)
def test_a_job_starts_with_what_a_limit_leaves(
    site: SlurmCluster, account: str, options: tuple[str, ...], most: dict[str, int], told: str
) -> None:
    """On an empty cluster, where a job of no limited account gets all GPUs."""
    job = submit(site, account, *options)
    site.wait_for(lambda: site.state(job) == "RUNNING", 60, "the job to start")
    has = used(site, account)
    try:
        assert {name: has[name] for name in most} == most
        site.wait_for(lambda: told in why(site, job), 60, "the reason to be stored")
    finally:
        end(site, job)


def test_a_job_without_a_limit_gets_all_and_two_share_one(site: SlurmCluster) -> None:
    alone = submit(site, "free")
    site.wait_for(lambda: used(site, "free")["gres/gpu"] == 8, 60, "all GPUs to be its")
    end(site, alone)
    jobs = [submit(site, "chem") for _ in range(5)]
    site.wait_for(lambda: used(site, "chem")["gres/gpu"] == 4, 60, "the account to have its GPUs")
    site.wait_for(lambda: "account chem may hold 0 more" in why(site, jobs[4]), 60, "the last one's reason")
    assert used(site, "chem")["node"] == 1
    end(site, *jobs)


def test_a_partition_whose_time_limit_is_too_short_is_left_out(site: SlurmCluster) -> None:
    """But for a QOS that comes over it."""
    filling = submit(site, "free", "--partition=one", held=True)
    site.run("scontrol", "release", str(filling))
    site.wait_for(lambda: site.state(filling) == "RUNNING", 120, "one GPU of n1 to be taken")
    jobs = [submit(site, "free", "--partition=short,one")]
    site.wait_for(lambda: site.state(jobs[0]) == "RUNNING", 60, "the job to start")
    jobs += [submit(site, "free", "--partition=short"), submit(site, "free", "--partition=short", "--qos=long")]
    site.wait_for(lambda: site.state(jobs[2]) == "RUNNING", 60, "the job of the QOS to start")
    site.wait_for(lambda: "short: MaxTime=3 min" in why(site, jobs[1]), 60, "the limit to be told")
    told = {
        f"{jobs[0]} one n1 None RUNNING",
        f"{jobs[1]} short  PartitionTimeLimit PENDING",
        f"{jobs[2]} short n2 None RUNNING",
    }

    def shown() -> set[str]:
        listed = site.run("squeue", "-h", "-t", "all", "-o", "%i %P %N %r %T", "-j", ",".join(map(str, jobs))).stdout
        return {x for x in listed.split("\n") if x}

    try:
        with suppress(RuntimeError):  # Slurm tells its reason a moment after the daemon has let the job go
            site.wait_for(lambda: shown() == told, 60, "Slurm's reasons")
        assert shown() == told
        assert not any("did not start it" in why(site, job) for job in jobs)
    finally:
        end(site, filling, *jobs)


def test_a_limit_lowered_below_what_runs_stops_nothing(site: SlurmCluster) -> None:
    job = light_job.submit(site, gpus=2, directive="min_gpus=1 max_gpus=2", options=("--account=shrinks",))
    until_steps(site, job)
    site.sacctmgr("modify account shrinks set GrpTRES=gres/gpu=1")
    site.wait_for(
        lambda: "account shrinks has 2 GPUs and may have 1 (GrpTRES)" in why(site, job), 60, "the limit to be known"
    )
    assert site.state(job) == "RUNNING"
    assert used(site, "shrinks")["gres/gpu"] == 2
    assert status(site)[job]["restarts"] == 0
    end(site, job)


def test_an_update_of_the_size_leaves_limits_in_force(site: SlurmCluster) -> None:
    """By root's own update Slurm takes a limit on CPUs as lifted by an admin: were that no longer so, `update` would do."""
    slurm = CommandLine(site.env)
    assert slurm.accounting_rules().limits
    size = {"NumTasks": "2", "NumNodes": "2-2", "NumCPUs": "8", "TresPerNode": "gres:gpu:2", "ReqNodeList": "n1,n2"}
    lifted, kept = (submit(site, "few", "--cpus-per-task=4", held=True) for _ in range(2))
    slurm.update(lifted, size)
    slurm.update_size(kept, OTHER_UID, {**size, "AdminComment": "mine"})
    assert slurm.admin_comments([kept]) == {kept: "mine"}
    slurm.update(kept, {"StartTime": "now", "Nice": "5"})  # what root writes besides lifts nothing
    site.run("scontrol", "release", str(kept))
    site.wait_for(
        lambda: (row := slurm.job(kept)) is not None and row.reason == "AssocGrpCpuLimit", 60, "Slurm's reason"
    )
    site.run("scontrol", "release", str(lifted))
    site.wait_for(lambda: site.state(lifted) == "RUNNING", 60, "the other to run")
    assert used(site, "few")["cpu"] == 8
    end(site, lifted, kept)


@pytest.mark.skipif(not JWT, reason="Slurm's plugin auth/jwt is not installed")
def test_slurm_user_writes_a_size_by_its_owners_token(site: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here root is SlurmUser: without its right to become the owner it is like any other."""
    slurm = CommandLine(site.env)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_UID - 1)
    assert not slurm.acts_as_owner and slurm.accounting_rules().tokens and slurm.acts_as_owner
    size = {"NumTasks": "2", "NumNodes": "2-2", "NumCPUs": "8", "TresPerNode": "gres:gpu:2"}
    kept = submit(site, "few", "--cpus-per-task=4", held=True)
    slurm.update_size(kept, OTHER_UID, {**size, "AdminComment": "mine"})
    assert slurm.admin_comments([kept]) == {kept: "mine"}
    site.run("scontrol", "release", str(kept))
    site.wait_for(
        lambda: (row := slurm.job(kept)) is not None and row.reason == "AssocGrpCpuLimit", 60, "Slurm's reason"
    )
    end(site, kept)


def test_what_slurm_shows_is_understood(site: SlurmCluster) -> None:
    slurm = CommandLine(site.env)
    rules, found = slurm.accounting_rules(), parse(slurm.associations())
    assert rules.qos["capped"].user.tres["gres/gpu"].limit == 1
    leaf = found.find("small", OTHER, "main")
    assert leaf is not None and leaf.job_tres["gres/gpu"].limit == 2 and leaf.fair_share is not None
    assert [a.account for a in found.chain(leaf)] == ["small", "small", "root"]
    assert found.find("small", "root", "main") is None


def test_slurmdbd_away_stops_nothing(site: SlurmCluster) -> None:
    """slurmctld keeps the limits meanwhile; what is changed afterwards counts."""
    running = submit(site, "few", "--cpus-per-task=4")
    site.wait_for(lambda: site.state(running) == "RUNNING", 60, "the job to start")
    site.kill("slurmdbd")
    until_epochs(site)
    late = submit(site, "chem", "--cpus-per-task=1", "--mem=1000")
    site.wait_for(lambda: site.state(late) == "RUNNING", 60, "a job to start without slurmdbd")
    has = used(site, "chem")
    assert has["gres/gpu"] <= 4 and has["node"] == 1 and used(site, "few")["cpu"] == 4
    assert site.state(running) == "RUNNING"
    site.spawn("slurmdbd", ["-D"])
    site.wait_for(lambda: site.run("sacctmgr", "-n", "show", "cluster", check=False).returncode == 0, 60, "slurmdbd")
    site.sacctmgr("modify account free set MaxTRESPerJob=gres/gpu=2")
    end(site, running, late)
    after = submit(site, "free")
    try:
        site.wait_for(lambda: "may have at most 2 GPUs (MaxTRESPerJob)" in why(site, after), 120, "the new limit")
        site.wait_for(lambda: site.state(after) == "RUNNING", 60, "the job to start")
        assert used(site, "free")["gres/gpu"] == 2
    finally:
        end(site, after)
        site.sacctmgr("modify account free set MaxTRESPerJob=gres/gpu=-1")
