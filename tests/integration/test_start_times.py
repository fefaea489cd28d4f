"""When will my job start: jobs without a #SYNERGY line on a real Slurm, beside a daemon that only looks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:{} --time=10 --output=/dev/null {}\nsleep 600\n"


def explained(cluster: SlurmCluster, job_id: int) -> dict[str, Any]:
    done = cluster.run("synergyctl", "explain", str(job_id), "--json", check=False)
    return dict(json.loads(done.stdout)["expected"] or {}) if done.returncode == 0 else {}


def test_plain_jobs_are_told_when_they_start_and_why_not_yet() -> None:
    with make_cluster([NodeGroup("cpu", 1, 4)], epoch_s=1, settings=("#SYNERGY DryRun=yes",)) as cluster:
        runs = cluster.sbatch(SCRIPT.format(3, ""))
        cluster.wait_for(lambda: cluster.state(runs) == "RUNNING", 60, "the first job")
        waits, behind = (cluster.sbatch(SCRIPT.format(4, "")) for _ in range(2))
        held, after = cluster.sbatch(SCRIPT.format(1, "--hold")), cluster.sbatch(SCRIPT.format(1, f"-d afterok:{runs}"))
        with synergyd(cluster):
            cluster.wait_for(lambda: explained(cluster, waits).get("start"), 120, "a forecast")
            cluster.wait_for(lambda: explained(cluster, behind).get("why"), 120, "Slurm to look at the last job")
            first, second, third, fourth = (explained(cluster, job) for job in (waits, behind, held, after))
            assert time.time() < first["start"]["high_s"] <= time.time() + 600
            assert first["start"]["middle_s"] < second["start"]["middle_s"] <= time.time() + 1200
            assert first["why"].startswith(
                "Waits for 4 GPUs on 1 node in partition main: 1 of the 4 there is free. In about "
            )
            assert first["why"].endswith(f"job {runs} should have freed 3 GPUs.")
            assert second["why"].endswith(
                "1 job of higher priority waits for the same nodes, and asks for 4 GPUs in all."
            )
            assert third["why"].startswith("It is held by its user") and third["start"] is None
            assert fourth["why"].startswith(f"Waits for the end of job {runs} (afterok:{runs}") and fourth["start"]
            text = cluster.run("synergyctl", "explain", str(waits)).stdout
            assert "starts    " in text and " in 8 of 10 cases, about " in text
            waiting = json.loads(cluster.run("synergyctl", "status", "--json").stdout)["waiting"]
            assert [job["job_id"] for job in waiting] == [waits, behind, after, held]
            assert "4 jobs without a #SYNERGY line wait" in cluster.run("synergyctl", "status").stdout
