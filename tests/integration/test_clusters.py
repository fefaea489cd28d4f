"""Two clusters, a daemon each, one PostgreSQL: their jobs have the same ids, and neither takes the other's for its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.throwaway.postgres import Postgres
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.postgres]
pytest_plugins = ("tests.throwaway.fixtures_postgres",)
NAMES = ("alpha", "beta")
SCRIPT = "#!/bin/bash\n#SBATCH -N1 --gres=gpu:2 -o /dev/null\n#SYNERGY min_gpus=2 max_gpus=2\nexec sleep 600\n"


@pytest.fixture(scope="module")
def clusters(postgres_server: Postgres) -> Iterator[list[SlurmCluster]]:
    """Each with a job 1 of its own name, and a daemon."""
    database = f"#SYNERGY Database={postgres_server.database()}?schema={{cluster}}"
    with ExitStack() as stack:
        made = []
        for name in NAMES:
            cluster = make_cluster((NodeGroup("cpu", 1, 2),), epoch_s=1, settings=(database,))
            cluster.name = name
            stack.enter_context(cluster)
            made.append(cluster)
            made[0].run("synergyctl", "-M", name, "db", "upgrade")
            stack.enter_context(synergyd(cluster))
            assert cluster.sbatch(SCRIPT, "-J", f"of-{name}") == 1
        yield made


def jobs(cluster: SlurmCluster, *words: str) -> list[dict[str, Any]]:
    done = cluster.run("synergyctl", *words, "status", "--json", check=False)
    return json.loads(done.stdout)["jobs"] if done.returncode == 0 else []


def test_each_is_read_and_steered_from_the_other(clusters: list[SlurmCluster]) -> None:
    alpha, beta = clusters

    def seen(cluster: SlurmCluster, *words: str) -> list[tuple[str, str, bool]]:
        return [(j["name"], j["state"], j["paused"]) for j in jobs(cluster, *words)]

    for cluster, other in ((alpha, beta), (beta, alpha)):
        own, others = [(f"of-{c.name}", "RUNNING", False) for c in (cluster, other)]
        cluster.wait_for(lambda c=cluster, want=[own]: seen(c) == want, 60, f"{cluster.name}'s own job")  # type: ignore[misc]
        cluster.wait_for(
            lambda c=cluster, o=other, want=[others]: seen(c, "-M", o.name) == want,  # type: ignore[misc]
            60,
            f"{other.name}'s job, seen from {cluster.name}",
        )
    alpha.run("synergyctl", "-M", "beta", "pause", "1")
    beta.wait_for(lambda: [paused for *_, paused in seen(beta)] == [True], 60, "beta's job to be paused")
    assert [paused for *_, paused in seen(alpha)] == [False]
    beta.run("scancel", "1")
    beta.wait_for(lambda: not seen(alpha, "-M", "beta"), 60, "the end of beta's job")
    assert [name for name, *_ in seen(alpha)] == ["of-alpha"] and alpha.state(1) == "RUNNING"
