"""`synergyctl forecast` on a real Slurm with accounts, as a user that is not root."""

from __future__ import annotations

import json

import pytest

from tests.integration.daemon_site import AS_OTHER
from tests.throwaway import accounting
from tests.throwaway.accounting import OTHER, Accounting
from tests.throwaway.synergy import make_cluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(accounting.missing_programs()), reason=f"not here: {accounting.missing_programs()}"),
]
SCRIPT = "#!/bin/bash\n#SBATCH --gres=gpu:{} --nodes=1 --output=/dev/null --time=5\nsleep {}\n"


def test_it_reads_the_accounts_without_daemon_database_or_root() -> None:
    """Two jobs of 4 and 1 GPUs have ended; whoever asks sees the nodes and their GPUs by sinfo."""
    cluster = make_cluster()
    cluster.accounting = Accounting(
        (
            "add account chem",
            "add user root account=chem defaultaccount=chem",
            f"add user {OTHER} account=chem",
        )
    )
    with cluster:
        ids = [cluster.sbatch(SCRIPT.format(gpus, 3)) for gpus in (4, 1)]

        def ended(job_id: int) -> bool:
            return (
                cluster.run("sacct", "-X", "-n", "-P", "-j", str(job_id), "--format=State").stdout.strip()
                == "COMPLETED"
            )

        cluster.wait_for(lambda: all(map(ended, ids)), 90, "the jobs' ends in the accounts")
        own = json.loads(cluster.run(*AS_OTHER, "synergyctl", "forecast", "--json", "-").stdout)
        assert (own["jobs"], own["multi_gpu_jobs"], own["nodes_from"]) == (2, 1, "sinfo")
        assert own["measured"]["gpu_h"] * 3600 == pytest.approx(15, abs=10)
        assert list(own["nodes"].values()) == [[4, 4]]
