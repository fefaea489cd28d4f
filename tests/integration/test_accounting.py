"""synergyd on a cluster whose slurmdbd holds jobs to limits of associations and QOS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.daemon_site import until_beat
from tests.throwaway import accounting
from tests.throwaway.accounting import Accounting
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(accounting.missing_programs()), reason=f"not here: {accounting.missing_programs()}"),
]
NOBODY = 65534
AS_NOBODY: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}
ACCOUNTS = (
    "add account chem GrpTRES=gres/gpu=3",
    "add account few GrpTRES=cpu=4",
    "add account wide GrpTRES=node=1",
    "add account small MaxTRESPerJob=gres/gpu=2",
    "add account shrinks",
    "add account free",
    "add qos capped MaxTRESPerUser=gres/gpu=1",
    "add user nobody account=chem,few,wide,small,free qos=normal,capped defaultqos=normal",
    "add user root account=shrinks",
)


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Two nodes with four GPUs each and a slurmdbd; a running daemon with an epoch a second."""
    cluster = make_cluster(epoch_s=1, plugin=False)
    cluster.accounting = Accounting(ACCOUNTS)
    with cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


def used(cluster: SlurmCluster, account: str) -> dict[str, int]:
    """What Slurm counts to an account, by TRES."""
    text = cluster.run("scontrol", "show", "assoc_mgr", "flags=assoc", f"accounts={account}").stdout
    line = next(x for x in text.splitlines() if "GrpTRES=" in x)
    return {name: int(n) for name, n in re.findall(r"([\w/]+)=[N\d]+\((\d+)\)", line)}


def submit(cluster: SlurmCluster, *options: str, max_gpus: int = 8, gpus: int = 1) -> int:
    """A job of nobody's, which only sleeps and may grow to all GPUs."""
    directive = f"#SYNERGY min_gpus=1 max_gpus={max_gpus} global_batch=8 micro_batch=1"
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:{gpus} --nodes=1 --output=/dev/null\n{directive}\nsleep 300\n"
    return cluster.sbatch(script, *options, **AS_NOBODY)


def test_jobs_start_with_what_their_limits_leave(site: SlurmCluster) -> None:
    jobs = [submit(site, "--account=chem", "--cpus-per-task=1") for _ in range(2)]
    site.wait_for(lambda: used(site, "chem").get("gres/gpu") == 3, 40, "the account to have its GPUs")
    site.run("scancel", *map(str, jobs))
    site.wait_for(lambda: used(site, "chem").get("gres/gpu") == 0, 40, "the jobs to end")
