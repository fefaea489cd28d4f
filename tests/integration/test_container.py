"""A job whose training runs in a container that has nothing of ours, of Slurm or of munge: the launcher is one file, mounted there."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from synergy_core.job_report import Report
from synergy_core.wire import job_key
from synergy_core.wire.job_key import JobKey
from synergy_core.wire.report import to_json

from packages.launch_archive import build
from synergyd.daemon.job_keys import key_path
from tests.integration.daemon_site import status, until_beat, until_epochs
from tests.integration.test_daemon_trust import send_raw
from tests.throwaway import agent_job, container
from tests.throwaway.ledger import lost_steps, overlaps, read_ledger, twice_started
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import Synergyd, make_cluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(container.why_not()), reason=container.why_not() or "containers can be had"),
]


@pytest.fixture
def site() -> Iterator[tuple[SlurmCluster, Synergyd]]:
    """Two nodes of four GPUs, the second one drained; little to compute with, so that 8 GPUs are worth more than 4."""
    figures = "#SYNERGY GpuType=cpu peak_tflops=0.002 memory_gib=4 bandwidth_gbs=10 intra_gbs=100 inter_gbs=100"
    with make_cluster(epoch_s=1, settings=(figures,)) as cluster:
        daemon = Synergyd(cluster)
        try:
            until_beat(cluster)
            yield cluster, daemon
        finally:
            daemon.stop()


RUNTIMES = [
    "unshare",
    pytest.param(
        "apptainer", marks=pytest.mark.skipif(shutil.which("apptainer") is None, reason="apptainer is not installed")
    ),
]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_resized_once_and_its_losses_go_on(site: tuple[SlurmCluster, Synergyd], runtime: str) -> None:
    cluster, daemon = site
    work = cluster.folder / "work"
    work.mkdir()
    build(work / "synergy-launch.pyz")
    script = work / "train.py"
    script.write_text(Path(agent_job.__file__).read_text())
    # where the plugin tells the job that they lie
    mounts = {work: "/work", cluster.state_dir / "plans": f"{cluster.state_dir}/plans:ro"}
    enter = shlex.quote(str(container.RUNTIMES[runtime](cluster.folder / "enter", mounts)))
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    output = cluster.folder / "out"
    job_id = cluster.sbatch(
        f"#!/bin/bash\n#SBATCH -J train -N1 --gres=gpu:4 --open-mode=append -o {output}\n"
        "#SYNERGY min_gpus=1 max_gpus=8 global_batch=8 checkpoint=/work/checkpoints\n"
        f'srun -N "$SLURM_JOB_NUM_NODES" -n "$SLURM_JOB_NUM_NODES" {enter} '
        "/bin/python3 /work/synergy-launch.pyz --runner python /work/train.py /work/ledger\n"
    )

    def told() -> str:
        return f"{output.read_text() if output.exists() else ''}\n{daemon.tail()}"

    def trains(restarts: int, gpus: int) -> bool:
        row, lines = status(cluster).get(job_id) or {}, read_ledger(work / "ledger")
        since = max((x.step for x in lines if x.what == "saved" and x.restarts < restarts), default=0)
        return (row.get("restarts"), row.get("gpus")) == (restarts, gpus) and (row.get("step") or 0) > since

    try:
        cluster.wait_for(lambda: trains(0, 4), 120, "reports from the container")
        cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")
        cluster.wait_for(lambda: trains(1, 8), 120, "reports after the resize")
    except RuntimeError as error:
        raise AssertionError(f"{error}\n{told()}") from None
    assert "checkpoint acknowledged" in daemon.log.read_text()
    lines = read_ledger(work / "ledger")
    assert not [*overlaps(lines), *twice_started(lines), *lost_steps(lines)], lines
    steps = [x.step for x in lines if x.what == "start"]
    assert len(steps) == 2 and steps[1] > 0, lines

    # a key is of one job, one incarnation and one user: who makes up another, or has an old one, is not believed
    own = job_key.find_key(job_id, 1, {"SYNERGY_PLAN": str(key_path(cluster.state_dir, job_id).with_suffix(".json"))})
    assert own is not None
    forged = Report(job_id, 1, 999_999, loss=7.5, note="forged")
    others = (
        JobKey(job_id, 1, 0, os.urandom(32)),
        JobKey(job_id, 1, 65534, own.key),
        JobKey(job_id + 1, 1, 0, own.key),
    )
    for key in others:
        send_raw(cluster.port + 90, key.sign(to_json(forged), time.time()).encode() + b"\n")
    refused = "signed with no job's key"
    cluster.wait_for(lambda: daemon.log.read_text().count(refused), 60, "the refusal\n" + told())
    until_epochs(cluster)  # what was believed would be stored by then
    row = status(cluster)[job_id]
    assert row["step"] < 999_999 and row["loss"] != 7.5
