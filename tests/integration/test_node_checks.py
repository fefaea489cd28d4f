"""Nodes that are checked before a run, on a real cluster: their figures reach the daemon, and a slow node is taken last."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synergy_core.wire.codec import decode

from synergyd.control.state.node_health import NodeRecord
from synergyd.store.store import open_store
from synergyd.views import status as status_view
from tests.integration.daemon_site import AS_OTHER, sizes, story, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.accounting import OTHER_UID
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import Synergyd, make_cluster

pytestmark = pytest.mark.slurm
BY_OTHER: dict[str, Any] = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": [], "cwd": "/"}
SLOW_NODE, NODES = "n1", 5
#: Python imports it at its start. In the children that check nodes it stands for torch, whose import takes a busy machine long: each
#: product and copy takes a millisecond of the children's clock, a product on n1 ten.
CUSTOMIZE = f"""
import os, sys
if "synergy_launch.node_check" in sys.orig_argv:
    import time, types
    clock = [0.0]
    def work(*_, seconds=0.001, **__):
        clock[0] += seconds
    def multiply(*_, **__):
        work(seconds=0.01 if os.environ["SLURMD_NODENAME"] == "{SLOW_NODE}" else 0.001)
    tensor = types.SimpleNamespace(copy_=work)
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_available=lambda: False)
    torch.randn = torch.ones = torch.empty_like = lambda *_, **__: tensor
    torch.mm, torch.set_num_threads = multiply, lambda _: None
    torch.float32 = torch.bfloat16 = torch.uint8 = None
    time.perf_counter = lambda: clock[0]
    sys.modules["torch"] = torch
"""


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    """Five nodes with two GPUs each, none of which is there: their CPUs are measured."""
    with make_cluster([NodeGroup("cpu", NODES, 2)], epoch_s=1) as made:
        (made.folder / "light").mkdir()
        (made.folder / "python").mkdir()
        (made.folder / "python" / "sitecustomize.py").write_text(CUSTOMIZE)
        yield made


def records(cluster: SlurmCluster) -> dict[str, NodeRecord]:
    with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
        return {name: decode(NodeRecord, stored.payload, "node") for name, stored in store.nodes().items()}


def test_a_node_that_two_users_checks_find_slow_is_taken_last(cluster: SlurmCluster, tmp_path: Path) -> None:
    daemon = Synergyd(cluster)
    try:
        until_beat(cluster)
        # on four nodes, torchrun's ranks only sleep
        wide = "min_gpus=8 max_gpus=8 tp=1 pp=1"
        sleeps = tmp_path / "sleeps.py"
        sleeps.write_text("import time\ntime.sleep(600)\n")
        script = (
            f"#!/bin/bash\n#SBATCH --nodes=4 --gres=gpu:2 -o {cluster.folder}/wide.out\n#SYNERGY global_batch=8 {wide}\n"
            f"export PYTHONPATH={cluster.folder}/python:$PYTHONPATH TMPDIR={tmp_path}\nsrun synergy-launch {sleeps}\n"
        )
        own = cluster.sbatch(script, "--job-name=wide", "--nodelist=n[1-4]")
        cluster.wait_for(lambda: len(records(cluster)) == 4, 240, "the checks of four nodes")
        figures = {n: {f.measure: f.value for f in r.figures} for n, r in records(cluster).items()}
        assert {n: rates["gemm_flops"] for n, rates in figures.items()} == {
            n: pytest.approx(2.0 * 1024**3 / (0.01 if n == SLOW_NODE else 0.001)) for n in ("n1", "n2", "n3", "n4")
        }
        cluster.wait_for(lambda: records(cluster)[SLOW_NODE].marks, 60, "the mark")
        assert f"{SLOW_NODE}: " in story(cluster, own) and "at 10% of the usual under job" in story(cluster, own)
        assert [n for n, r in records(cluster).items() if r.marks] == [SLOW_NODE]
        with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
            assert status_view.collect(store).bad_nodes == ()  # one user condemns no node for others
        cluster.run("scancel", str(own))
        cluster.wait_for(lambda: cluster.state(own) == "CANCELLED", 60, "its end")
        # another user's, who can't read this Python: it only sleeps, and its owner reports
        script = f"#!/bin/bash\n#SBATCH --gres=gpu:2 --nodes=4 -o /dev/null\n#SYNERGY global_batch=8 micro_batch=1 {wide}\nsleep 300\n"
        other = cluster.sbatch(script, "--job-name=known", "--nodelist=n[1-4]", **BY_OTHER)
        cluster.wait_for(lambda: sizes(cluster, other) == [8], 120, "its start")
        code = (
            "from synergy_core.wire.report import send; from synergy_core.job_report import Report\n"
            "from synergy_core.node_check import NodeCheck\n"
            "rates = {'n1': 1e10, 'n2': 1e11, 'n3': 1e11, 'n4': 1e11}\n"
            "checks = tuple(NodeCheck(node=n, taken_s=1.0, cpus=2, gemm_flops=r) for n, r in rates.items())\n"
            f"send(Report({other}, 0, 0, silent=True, node_checks=checks), '127.0.0.1:{cluster.port + 90}', timeout_s=60)"
        )
        cluster.run(*AS_OTHER, sys.executable, "-c", code)

        def bad() -> dict[str, str]:
            with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
                return {node.name: node.why for node in status_view.collect(store).bad_nodes}

        cluster.wait_for(bad, 60, "the penalty")
        assert bad() == {SLOW_NODE: f"matrix products at 10% of the usual under jobs {own}, {other}"}
        cluster.run("scancel", str(other))
        cluster.wait_for(lambda: cluster.state(other) == "CANCELLED", 60, "its end")
        next_one = light_job.submit(cluster, "light", gpus=2, directive="min_gpus=2 max_gpus=2 tp=1 pp=1")
        until_steps(cluster, next_one)
        assert cluster.run("squeue", "-h", "-j", str(next_one), "-o", "%N").stdout.strip() != SLOW_NODE
    finally:
        daemon.stop()
        cluster.run("scancel", "--me")
