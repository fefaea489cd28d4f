"""A job on several nodes goes on from the copies of its state in the nodes' memory, on a real cluster with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon_site import until_beat
from tests.integration.test_failures_in_place import trains_again
from tests.integration.test_in_place import last_step, steps
from tests.throwaway.power import power_off, power_on
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd
from tests.throwaway.torch_job import BATCH, MODULE, nodes_of, output, rank_on, submit

pytestmark = [pytest.mark.slurm, pytest.mark.training, pytest.mark.timeout(900)]
NODES = 3
EVERY, STEP_S = 40, 0.8  # steps between two checkpoints on disk, and their time: half a minute, two intervals in memory
MEMORY = Path("/dev/shm")
COPIES = "export SYNERGY_MEMORY_COPIES=1\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    made = make_cluster([NodeGroup("cpu", NODES, 1)], epoch_s=1)
    made.slurmd_timeout_s = 300  # a lost node is Slurm's business later than any test waits
    with made as cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


def folders(job: int, name: str = "") -> list[Path]:
    """Return the memory folders of the job's launchers, or what has `name` in them."""
    return sorted(MEMORY.glob(f"synergy-memory-{os.getuid()}-{job}-*{name}"))


def acknowledged(job: int, run: int = 0) -> int:
    """Return the step of the latest memory checkpoint that counts on every node; 0: none does."""
    numbers = [int(path.read_text()) for path in folders(job, f"/run-{run}/acknowledged")]
    return min(numbers) if len(numbers) >= NODES else 0


def on_disk(cluster: SlurmCluster, job: int) -> int:
    """Return the step of the latest checkpoint on disk."""
    return int(last_step(cluster, job)["step"]) // EVERY * EVERY


def durable_step(cluster: SlurmCluster, job: int) -> int:
    """Return the step of the checkpoint that the present run reports as its last one."""
    found = (cluster.folder / "tmp").glob(f"synergy-{os.getuid()}-{job}-0-0-*/status.json")
    newest = max(found, key=lambda path: path.stat().st_mtime)
    return int(json.loads(newest.read_text())["checkpoint_step"])


def assert_uninterrupted(folder: Path, log: list[dict[str, float]]) -> None:
    """Compare the losses of all steps, those that were repeated included, with the same training on as many processes."""
    path = folder / "uninterrupted.jsonl"
    processes = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(NODES), "-m", MODULE]
    sizes = ["--global-batch", str(BATCH), "--hidden", "32", "--seq", "32"]
    command = [sys.executable, *processes, "--steps", str(int(max(line["step"] for line in log))), *sizes]
    environment = {**os.environ, "SYNERGY_STEP_LOG": str(path), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    losses = {line["step"]: line["loss"] for line in map(json.loads, path.read_text().splitlines())}
    apart = max(abs(line["loss"] - losses[line["step"]]) for line in log)
    print(f"losses at most {apart:.1e} from the uninterrupted run's")
    assert apart < 1e-6


@pytest.fixture
def job(cluster: SlurmCluster) -> Iterator[int]:
    """One whose latest memory checkpoint is newer than that on disk."""
    job = submit(cluster, NODES, step_s=STEP_S, checkpoint_every=EVERY, before=COPIES)
    try:
        cluster.wait_for(lambda: acknowledged(job) > EVERY, 300, "a memory checkpoint")
        cluster.wait_for(lambda: acknowledged(job) > on_disk(cluster, job), 300, "a newer one than on disk")
        yield job
    except BaseException:
        print(output(cluster, job)[-6000:])
        raise
    finally:
        cluster.run("scancel", str(job))
        cluster.wait_for(lambda: cluster.state(job) in ("", "CANCELLED"), 60, "its end")


def test_a_lost_node_costs_the_steps_since_the_memory_checkpoint(
    cluster: SlurmCluster, job: int, tmp_path: Path
) -> None:
    lost = nodes_of(cluster, job)[1]
    durable = durable_step(cluster, job)
    power_off(cluster, lost)
    try:
        trains_again(cluster, job, NODES - 1)
        said = re.search(
            rf"{lost} lost: started again in place on \S+ \S+ from its memory checkpoint of step (\d+)",
            output(cluster, job),
        )
        assert said is not None, output(cluster, job)[-3000:]
        resumed, log = int(said[1]), steps(cluster, job)
        again = next(i for i in range(1, len(log)) if log[i]["step"] <= log[i - 1]["step"])
        repeated, from_disk = log[again - 1]["step"] - resumed, log[again - 1]["step"] - durable
        print(f"repeated {repeated} steps, {from_disk} from the checkpoint on disk")
        assert log[again]["step"] == resumed + 1 and repeated < from_disk
        assert durable_step(cluster, job) % EVERY == 0, "a memory checkpoint is none that is safe"
    finally:
        cluster.run("scancel", str(job))
        power_on(cluster, lost)
    assert_uninterrupted(tmp_path, log)
    cluster.wait_for(lambda: not folders(job), 60, "the end of all copies")


def test_a_killed_rank_costs_the_steps_since_the_memory_checkpoint(
    cluster: SlurmCluster, job: int, tmp_path: Path
) -> None:
    os.kill(rank_on(cluster, job, nodes_of(cluster, job)[2]), signal.SIGKILL)
    trains_again(cluster, job, NODES)
    assert "started again in place from its memory checkpoint of step" in output(cluster, job)
    assert "goes on from the memory checkpoint of step" in output(cluster, job)
    log = steps(cluster, job)
    cluster.run("scancel", str(job))
    assert_uninterrupted(tmp_path, log)


def test_two_lost_neighbours_leave_the_checkpoint_on_disk(cluster: SlurmCluster, job: int) -> None:
    lost, durable = nodes_of(cluster, job)[1:], on_disk(cluster, job)
    for node in lost:
        power_off(cluster, node)
    try:
        cluster.wait_for(lambda: "started again in place" in output(cluster, job), 60, "the loss to be noticed")
        trains_again(cluster, job, 1)
        assert "memory checkpoint of step" not in output(cluster, job).partition("started again in place")[2]
        log = steps(cluster, job)
        again = next(i for i in range(1, len(log)) if log[i]["step"] <= log[i - 1]["step"])
        assert log[again]["step"] == durable + 1
    finally:
        cluster.run("scancel", str(job))
        power_on(cluster, *lost)
