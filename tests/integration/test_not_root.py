"""synergyd as another user than root on a real cluster: which rights it needs, and who reads what it writes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synergyd.daemon import heartbeat
from tests.integration.daemon_site import AS_OTHER, failed, status, story, until_beat, until_steps
from tests.throwaway import accounting, light_job
from tests.throwaway.accounting import OTHER, OTHER_UID, Accounting
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import make_cluster, remember_programs, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(accounting.missing_programs()), reason=f"not here: {accounting.missing_programs()}"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root becomes other users"),
]
OWNER, STRANGER = 5, 6
USERS = (
    "add account chem",
    f"add user {OTHER} account=chem",
    "add user games account=chem",
    "add user root account=chem",
)


def user(uid: int) -> dict[str, Any]:
    return {"user": uid, "group": uid, "extra_groups": [], "cwd": "/"}


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Two partitions, and a StateDir of the user backup, whom slurmdbd knows."""
    cluster = make_cluster(epoch_s=1, settings=("#SYNERGY Partitions=main,second", "PartitionName=second Nodes=ALL"))
    cluster.accounting = Accounting(USERS, enforce="associations")
    with cluster:
        os.chown(cluster.state_dir, OTHER_UID, OTHER_UID)
        remember_programs(cluster)
        yield cluster


def level(site: SlurmCluster, name: str) -> None:
    site.sacctmgr(f"modify user {OTHER} set adminlevel={name}")


def submit(site: SlurmCluster) -> int:
    script = (
        "#!/bin/bash\n#SBATCH --gres=gpu:1 --nodes=1 --output=/dev/null --partition=main,second\n"
        "#SYNERGY min_gpus=1 max_gpus=4 global_batch=8 micro_batch=1\nsrun synergy-launch train.py & sleep 300\n"
    )
    return site.sbatch(script, "--job-name=known", "--account=chem", **user(OWNER))


def gpus_of(site: SlurmCluster, job_id: int) -> Any:
    return (status(site).get(job_id) or {}).get("gpus")


@pytest.mark.parametrize(("has", "options"), [("None", ("--dry-run",)), ("Operator", ())])
def test_too_few_rights_are_told_at_start(site: SlurmCluster, has: str, options: tuple[str, ...]) -> None:
    """There is no job yet."""
    level(site, has)
    line = failed(site, *AS_OTHER, "synergyd", *options, code=2)
    assert line.startswith(f"synergyd: user {OTHER}: it may not write to jobs") and f"AdminLevel={has};" in line
    assert ("nor read their scripts" in line) == bool(options)
    assert line.endswith("run synergyd as root, SlurmUser, or with AdminLevel=Admin")
    assert not (site.state_dir / heartbeat.NAME).exists()
    told = site.run("synergyctl", "config", "check", check=False).stdout
    assert f"missing rights: {OTHER}" in told and f"sacctmgr modify user {OTHER} set adminlevel=Admin" in told


def test_an_admin_resizes_a_job_of_two_partitions_that_its_owner_can_read(site: SlurmCluster) -> None:
    level(site, "Admin")
    assert f"ok      rights: {OTHER}" in site.run("synergyctl", "config", "check", check=False).stdout
    with synergyd(site, by=AS_OTHER) as daemon:
        until_beat(site)
        job_id = submit(site)
        site.wait_for(lambda: gpus_of(site, job_id) == 4, 60, "the job to have all GPUs\n" + daemon.tail())
        plan, script = (site.state_dir / "plans" / f"{job_id}.{end}" for end in ("json", "sh"))
        assert b'"plan"' in read(plan, OWNER) and not read(plan, STRANGER)
        assert b"--nproc-per-node 4" in read(script, OWNER) and not read(script, STRANGER)
        # running, it has one partition, and two again as soon as it is requeued
        running = partition(site, job_id)
        site.run("scontrol", "requeue", str(job_id))
        site.wait_for(lambda: partition(site, job_id) != running, 30, "its requeue")
        site.wait_for(lambda: restarts(site, job_id) == 1 and gpus_of(site, job_id) == 4, 60, daemon.tail())
        assert "left the queue" not in daemon.log.read_text()


def partition(site: SlurmCluster, job_id: int) -> str:
    return site.run("squeue", "-h", "-j", str(job_id), "-o", "%P").stdout.strip()


def restarts(site: SlurmCluster, job_id: int) -> Any:
    return (status(site).get(job_id) or {}).get("restarts")


def read(path: Path, uid: int) -> bytes:
    return subprocess.run(["cat", path], capture_output=True, check=False, **user(uid)).stdout or b""


def test_slurm_user_resizes_a_job() -> None:
    cluster = make_cluster(epoch_s=1)
    cluster.slurm_user = OTHER
    with cluster as site:
        assert (
            f"ok      rights: the daemon's user is {OTHER}, SlurmUser"
            in site.run("synergyctl", "config", "check", check=False).stdout
        )
        with synergyd(site, by=AS_OTHER) as daemon:
            until_beat(site)
            script = (
                "#!/bin/bash\n#SBATCH --gres=gpu:1 --nodes=1 --output=/dev/null\n"
                "#SYNERGY min_gpus=1 max_gpus=4 global_batch=8 micro_batch=1\nsrun synergy-launch train.py & sleep 300\n"
            )
            job_id = site.sbatch(script, "--job-name=known", **user(OWNER))
            site.wait_for(lambda: gpus_of(site, job_id) == 4, 60, "the job to have all GPUs\n" + daemon.tail())
            assert b"--nproc-per-node 4" in read(site.state_dir / "plans" / f"{job_id}.sh", OWNER)


def test_a_job_without_munge_reports_with_its_key(site: SlurmCluster) -> None:
    """Its processes find no munge; the daemon is another user's than the job. Resized once, and its steps go on."""
    level(site, "Admin")
    site.run("scancel", "--partition=main")  # what the tests before have left
    site.wait_for(lambda: not site.run("squeue", "-h").stdout.strip(), 120, "their end")
    away = f"export MUNGE_SOCKET=/nonexistent SYNERGY_STATE_DIR={site.state_dir}\n"
    with synergyd(site, by=AS_OTHER) as daemon:
        until_beat(site)
        options = ("--account=chem",)
        first = light_job.submit(site, directive="min_gpus=1 max_gpus=8", before=away, options=options)
        until_steps(site, first, timeout_s=120)
        assert not read(site.state_dir / "plans" / f"{first}.key", STRANGER)
        step = status(site)[first]["step"]
        second = light_job.submit(site, directive="min_gpus=4 max_gpus=4", before=away, options=options)
        try:
            # live, if the launchers of both nodes had met before the decision
            resized = ("resized live", "requeued")
            site.wait_for(lambda: any(x.startswith(resized) for x in story(site, first).splitlines()), 90, "the resize")
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{daemon.tail()}\n{light_job.output(site, first)[-3000:]}") from None
        until_steps(site, first, second, steps=step + 1, timeout_s=120)
        assert "checkpoint acknowledged" in story(site, first)
        site.run("scancel", str(first), str(second))
