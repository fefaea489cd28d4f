"""The launcher of a job that Slurm preempts: it asks for the requeue, and only then and there."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from synergy_launch.launcher.job import preemption
from synergy_launch.launcher.job.allocation import JobAllocation

PREEMPTED, GONE = "RUNNING 1700000000", "COMPLETING 1700000000"
CONF = "PreemptMode             = REQUEUE\nPreemptType             = preempt/partition_prio\n"


def node(rank: int = 0) -> JobAllocation:
    return JobAllocation(
        job_id=7, restarts=0, nodes=("n1", "n2"), node_rank=rank, gpus=1, in_step=True, leader=rank == 0
    )


class FakeSlurm:
    """squeue answers what `rows` says, one a call; scontrol shows the modes, and writes down what it was asked for."""

    def __init__(
        self,
        folder: Path,
        rows: list[str],
        partition: str = "PreemptMode=REQUEUE",
        conf: str = CONF,
        refuses: bool = False,
    ) -> None:
        self._folder = folder
        (folder / "rows").write_text("".join(f"{row}\n" for row in rows))
        (folder / "partition").write_text(f"PartitionName=low\n   OverSubscribe=NO {partition}\n")
        (folder / "config").write_text(conf)
        self._write("squeue", f'echo "$@" >> {folder}/queried; head -n 1 {folder}/rows; sed -i 1d {folder}/rows')
        self._write(
            "scontrol",
            f'if [ "$1" = show ]; then cat {folder}/$2; else echo "$@" >> {folder}/asked; exit {int(refuses)}; fi',
        )

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def _lines(self, name: str) -> list[str]:
        path = self._folder / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def asked(self) -> list[str]:
        return self._lines("asked")

    @property
    def queried(self) -> list[str]:
        return self._lines("queried")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ASK_EVERY_S", "OTHERS_PAUSE_S", "OTHERS_SPREAD_S"):
        monkeypatch.setattr(preemption, name, 0.01)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "low")


def test_a_preempted_job_is_requeued_by_its_first_node(tmp_path: Path) -> None:
    slurm = FakeSlurm(tmp_path, [PREEMPTED, PREEMPTED, GONE])
    preemption.give_way(node())
    assert slurm.asked == ["requeue incomplete 7"] * 2, "until Slurm has done it"


def test_of_an_array_that_task_alone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    slurm = FakeSlurm(tmp_path, [PREEMPTED, GONE])
    preemption.give_way(node())
    assert slurm.asked == ["requeue incomplete 7_3"]
    assert all(line.startswith("-h -r -j 7_3 ") for line in slurm.queried)


def test_after_a_refusal_it_only_waits(tmp_path: Path) -> None:
    slurm = FakeSlurm(tmp_path, [PREEMPTED] * 3 + [GONE], refuses=True)
    preemption.give_way(node())
    assert (len(slurm.asked), len(slurm.queried)) == (1, 4)


@pytest.mark.parametrize(
    ("partition", "conf", "asks"),
    [
        ("PreemptMode=CANCEL", CONF, False),
        ("PreemptMode=OFF", CONF, False),
        ("PreemptMode=GANG,REQUEUE", CONF, True),
        ("", CONF, True),
        ("", CONF.replace("REQUEUE", "CANCEL"), False),
        ("PreemptMode=REQUEUE", CONF.replace("partition_prio", "qos"), False),
        ("PreemptMode=REQUEUE", "", False),
    ],
)
def test_only_where_preemption_requeues(tmp_path: Path, partition: str, conf: str, asks: bool) -> None:
    slurm = FakeSlurm(tmp_path, [PREEMPTED, PREEMPTED, GONE], partition, conf)
    preemption.give_way(node())
    assert (bool(slurm.asked), len(slurm.queried)) == (asks, 3)


def test_the_other_nodes_wait(tmp_path: Path) -> None:
    slurm = FakeSlurm(tmp_path, [PREEMPTED, "COMPLETING N/A"])
    preemption.give_way(node(1))
    assert slurm.asked == []


def test_the_other_nodes_ask_seldom_and_not_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pauses_s = [preemption._others_pause_s(rank) for rank in range(1, 17)]
    assert len(set(pauses_s)) == 16 and min(pauses_s) >= 15 and max(pauses_s) < 30


def test_slurms_next_signal_ends_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "OTHERS_PAUSE_S", 60.0)
    FakeSlurm(tmp_path, [PREEMPTED, GONE])
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    began_s = time.monotonic()
    preemption.give_way(node(1))
    signal.signal(signal.SIGTERM, handler)
    assert time.monotonic() - began_s < 50


@pytest.mark.parametrize(
    "row", ["RUNNING N/A", "RUNNING", "COMPLETING 1700000000", "CANCELLED N/A", "", "RUNNING None"]
)
def test_any_other_end_is_left_alone(tmp_path: Path, row: str) -> None:
    slurm = FakeSlurm(tmp_path, [row])
    preemption.give_way(node())
    assert slurm.asked == []


def test_without_slurms_commands_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    preemption.give_way(node())
