"""What others see of jobs on a real cluster: nobody but the daemon's user opens the database, nobody but its owner a plan.

Whoever keeps the database locked all the same stops nothing."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon_site import failed, status, until_beat
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.sqlite_lock import locked_by_a_reader
from tests.throwaway.synergy import make_cluster, remember_programs, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can submit and look as several users"),
]
OWNER, STRANGER = 5, 6
NO_UMASK = ("sh", "-c", 'umask 0; exec "$@"', "sh")
SCRIPT = (
    "#!/bin/bash\n#SBATCH --gres=gpu:1 --nodes=1 --output=/dev/null\n"
    "#SYNERGY min_gpus=1 max_gpus=4 global_batch=8 micro_batch=1\nsrun synergy-launch train.py & sleep 300\n"
)


def test_users_reach_what_is_theirs_and_a_lock_stops_nothing() -> None:
    cluster = make_cluster(epoch_s=1, settings=("PrivateData=jobs",))
    with cluster as site:
        with site.conf.open("a") as conf:
            conf.write(f"#SYNERGY MetricsPort={site.port + 95}\n")
        database = site.state_dir / "synergy.db"
        site.state_dir.chmod(0o755)
        remember_programs(site)
        # as an earlier version and a lavish umask have made it
        for path in site.state_dir.glob("synergy.db*"):
            path.chmod(0o666)
        with synergyd(site, by=NO_UMASK) as daemon:
            until_beat(site)
            first = submit(site)
            site.wait_for(lambda: gpus(site, first) == 4, 60, "the job to have all GPUs\n" + daemon.tail())
            assert run(STRANGER, "cat", site.state_dir / "heartbeat")  # as slurmctld does
            assert b'"plan"' in run(OWNER, "cat", site.state_dir / "plans" / f"{first}.json")
            assert b"--nproc-per-node" in run(OWNER, "cat", site.state_dir / "plans" / f"{first}.sh")
            for path in (database, *site.state_dir.glob("synergy.db*"), *site.state_dir.glob(f"plans/{first}.*")):
                assert not run(STRANGER, "cat", path), path
            for folder in (site.state_dir, site.state_dir / "plans"):
                assert not run(STRANGER, "ls", folder), folder
            site.wait_for(
                lambda: b'synergy_account_gpus{account="",kind="held"} 4.0' in metrics(site), 60, "the metrics"
            )
            assert b"job_id=" not in metrics(site)
            with locked_by_a_reader(database):
                site.run("scancel", str(first))
                second = submit(site)
                site.wait_for(lambda: in_slurm(site, second) == "RUNNING gres:gpu:4", 60, "its start\n" + daemon.tail())
                assert "database is locked" in failed(site, "synergyctl", "pause", str(first), code=1)
            site.wait_for(lambda: gpus(site, second) == 4, 90, "what waited to be stored\n" + daemon.tail())


def submit(site: SlurmCluster) -> int:
    return site.sbatch(SCRIPT, "--job-name=known", **user(OWNER))


def gpus(site: SlurmCluster, job_id: int) -> Any:
    return (status(site).get(job_id) or {}).get("gpus")


def in_slurm(site: SlurmCluster, job_id: int) -> str:
    return " ".join(site.run("squeue", "-h", "-j", str(job_id), "-o", "%T %b").stdout.split())


def metrics(site: SlurmCluster) -> bytes:
    page: bytes = urllib.request.urlopen(f"http://127.0.0.1:{site.port + 95}/metrics", timeout=30).read()
    return page


def user(uid: int) -> dict[str, Any]:
    return {"user": uid, "group": uid, "extra_groups": [], "cwd": "/"}


def run(uid: int, program: str, path: Path) -> bytes:
    """What it prints as that user; nothing where it may not."""
    return subprocess.run([program, path], capture_output=True, check=False, **user(uid)).stdout or b""
