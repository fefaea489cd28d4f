"""The readers through pyslurm: its old classes and its new ones give the same rows, and what becomes of one that does not work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.errors import UsageError

from synergyd.slurm import backends, pyslurm_objects
from synergyd.slurm.backends import Fallback, open_reader, reads
from synergyd.slurm.client import SlurmError
from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.pace import TokenBucket
from synergyd.slurm.parsed.rows import JobRow, SlurmNodeRow, parse_gpus
from synergyd.slurm.pyslurm_process import PyslurmProcess
from tests.paths import python_path
from tests.unit.slurm.fake_pyslurm import INFINITE, JOB, NO_VAL16, NO_VAL64, NODE, RUNNING, Job, module

SHAPES = ("old", "mixed", "new")  # 22.5 to 24.11, 25.5, 25.11
Put = Callable[..., PyslurmProcess]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Installs a pyslurm of a shape."""

    def write(shape: str, timeout_s: float = 60.0, **says: Any) -> PyslurmProcess:
        (tmp_path / "pyslurm.py").write_text(module(shape, **says))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
        return PyslurmProcess({}, timeout_s)

    return write


def rows(reader: PyslurmProcess) -> tuple[dict[int, JobRow], dict[str, SlurmNodeRow]]:
    try:
        return {j.job_id: j for j in reader.jobs()}, {n.name: n for n in reader.nodes()}
    finally:
        reader.close()


def plain(row: JobRow | SlurmNodeRow) -> dict[str, Any]:
    """What a row means: GPUs as numbers, since 22.05 and 25.11 write them differently."""
    found = {**vars(row)} if hasattr(row, "__dict__") else {k: getattr(row, k) for k in row.__dataclass_fields__}
    for name in ("tres_per_node", "gres", "gres_used"):
        if name in found:
            found[name] = parse_gpus(found[name])
    return found


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_all_shapes_give_the_same_rows(put: Put, shape: str) -> None:
    jobs, nodes = rows(put("old"))
    others, hosts = rows(put(shape))
    assert jobs.keys() == {7, 8, 10, 11, 12, 13, 14, 15} and nodes.keys() == {"n1", "n2", "n3"}
    others[14] = replace(others[14], user=jobs[14].user)  # of an unknown user squeue says nobody, 25.11 the number
    assert {i: plain(j) for i, j in others.items()} == {i: plain(j) for i, j in jobs.items()}
    assert {i: plain(n) for i, n in hosts.items()} == {i: plain(n) for i, n in nodes.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_rows_say(put: Put, shape: str) -> None:
    jobs, nodes = rows(put(shape))
    first, second = jobs[7], jobs[8]
    assert (first.state, first.num_nodes, parse_gpus(first.tres_per_node), first.eligible_s) == (
        "PENDING",
        1,
        ("a100", 4),
        1060.0,
    )
    assert (first.time_limit_s, first.end_s, first.node_names, first.memory_mib) == (3600.0, None, (), 64000)
    assert (second.node_names, second.num_nodes, second.num_cpus, second.restarts) == (("n1", "n2"), 2, 16, 2)
    assert (second.req_nodes, second.tres_gpus, second.memory_mib) == (("n1", "n2"), 8, 125 * 1024)
    assert (jobs[10].array, jobs[10].array_task, jobs[11].array_task) == (True, "0-3%2", "0")
    assert [(jobs[i].het, jobs[i].het_job_id, jobs[i].het_offset) for i in (12, 13, 7)] == [
        (True, 12, 0),
        (True, 12, 1),
        (False, 0, 0),
    ]
    assert (jobs[14].start_s, jobs[14].end_s) == (1060.0, None), "as squeue has one that is planned, without a limit"
    assert (jobs[14].time_limit_s, jobs[14].nice, jobs[14].requeue, jobs[14].priority) == (None, -5, False, 0)
    odd = jobs[15]
    assert (odd.min_memory_mib, odd.memory_per_cpu, odd.features, odd.licenses) == (
        2000,
        True,
        "ib&fast",
        "matlab:2,abaqus:1",
    )
    assert (odd.dependency, odd.switches, odd.oversubscribe, odd.min_time_s, odd.core_spec) == (
        "afterok:3:4",
        1,
        "NO",
        1800.0,
        2,
    )
    assert [parse_gpus(n.gres_used)[1] for n in nodes.values()] == [0, 2, 0] and nodes["n2"].reason == "fan"
    assert nodes["n3"].state == "unknown"
    assert nodes["n2"].state == "mixed+drain" and nodes["n1"].features == ("a100", "ib")


MANY = {**NODE, "gres": "gpu:a100:2,gpu:v100:2"}


@pytest.mark.parametrize(
    ("says", "call", "why"),
    [
        ({"jobs": [{**JOB, "mem_per_tres": "gres/gpu:512", "pn_min_memory": NO_VAL64}]}, "jobs", "job 7 can't be read"),
        (
            {"jobs": [{**JOB, "cpus_per_tres": "gres/gpu:4", "cpus_per_task": NO_VAL16}]},
            "jobs",
            "job 7 asks for CPUs or",
        ),
        # as Slurm 25.11.7 sends them: neither property fails, and neither tells
        ({"jobs": [{**JOB, "cpus_per_tres": "gres/gpu:4", "cpus_per_task": 1}]}, "jobs", "job 7 asks for CPUs or"),
        (
            {"jobs": [{**JOB, "mem_per_tres": "gres/gpu:16000", "pn_min_memory": 16000}]},
            "jobs",
            "job 7 asks for CPUs or",
        ),
        ({"tres": "cpu,mem,node"}, "nodes", "AccountingStorageTRES has gres/gpu"),
        ({"nodes": [{**MANY, "alloc_tres_fmt_str": "gres/gpu=1"}]}, "nodes", "node n1 has GPUs of several types"),
    ],
)
def test_what_the_new_classes_can_not_tell_is_refused(put: Put, says: dict[str, Any], call: str, why: str) -> None:
    reader = put("new", **says)
    with pytest.raises(SlurmError, match=why) as error:
        getattr(reader, call)()
    assert not error.value.transient
    reader.close()


def test_a_request_by_job_is_known_by_its_total(put: Put) -> None:
    jobs, _ = rows(put("new", jobs=[{**JOB, **RUNNING, "tres_per_node": None, "tres_per_job": "gres/gpu:8"}]))
    assert (jobs[7].tres_per_node, jobs[7].tres_other) == ("", "gres/gpu:8")


def test_a_job_that_slurm_expedites_waits(put: Put) -> None:
    jobs, _ = rows(put("new", jobs=[{**JOB, "job_state": "EXPEDITING", "time_limit": INFINITE}]))
    assert (jobs[7].state, jobs[7].end_s) == ("PENDING", None)


def test_a_users_words_that_are_not_utf_8_stop_no_read() -> None:
    """Without AccountingStorageEnforce Slurm takes any account."""

    class Odd(Job):
        def __getattribute__(self, key: str) -> Any:
            return b"caf\xe9".decode() if key in ("name", "account") else super().__getattribute__(key)

    row = pyslurm_objects.job_row(Odd(JOB))
    assert (row.name, row.account) == ("caf\ufffd", "caf\ufffd")


# -- its process ---------------------------------------------------------------------------------------------------


def test_threads_go_on_while_slurmctld_hangs(put: Put) -> None:
    """They would not where pyslurm, which keeps Python's lock, were in this process; no answer comes in time, and the next does."""
    reader = put("old", timeout_s=1.5, takes_s=60)
    turns = 0

    def renew() -> None:
        nonlocal turns
        while not ended.wait(0.02):
            turns += 1

    ended = threading.Event()
    thread = threading.Thread(target=renew)
    thread.start()
    began_s = time.monotonic()
    with pytest.raises(SlurmError, match=r"no answer within 1\.5 s") as error:
        reader.jobs()
    took_s = time.monotonic() - began_s
    ended.set()
    thread.join()
    assert error.value.transient and took_s < 10 and turns >= 10
    child = put("old")
    reader._timeout_s = 60.0
    assert reader.jobs() and child._child is None
    reader.close()


def test_a_slurm_that_is_away_is_tried_again(put: Put) -> None:
    for shape in ("old", "new"):
        reader = put(shape, fails="Unable to contact slurm controller (connect failure)")
        with pytest.raises(SlurmError, match="Unable to contact") as error:
            reader.jobs()
        assert error.value.transient
        reader.close()


def test_a_process_that_ends_is_told_with_its_last_words(put: Put) -> None:
    reader = put("old", first="import os, sys\nprint('fatal: no configuration source', file=sys.stderr)\nos._exit(1)")
    with pytest.raises(SlurmError, match="its process ended: fatal: no configuration source") as error:
        reader.version()
    assert not error.value.transient


# -- the choice ----------------------------------------------------------------------------------------------------


class Line(CommandLine):
    """The command line of a Slurm 22.05 that has no jobs."""

    def version(self) -> str:
        return "22.05.8"

    def jobs(self) -> tuple[JobRow, ...]:
        return ()

    def nodes(self) -> tuple[SlurmNodeRow, ...]:
        return ()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "CommandLine", Line)


def test_one_that_fits_is_read_through(put: Put, line: None) -> None:
    put("old")
    reader, why = open_reader({})
    assert isinstance(reader, Fallback) and reader.name == "pyslurm" and "which is installed" in why
    assert len(reader.jobs()) == 8 and len(reader.nodes()) == 3
    reader.close()
    assert reads({}) == ("pyslurm", why)


def test_its_reads_count_in_the_limit_on_requests(put: Put) -> None:
    put("old")
    line, slept = Line(), list[float]()
    line.pace = TokenBucket(4, 1, lambda: 0.0, slept.append)
    reader, _ = open_reader({}, line=line)
    assert isinstance(reader, Fallback)
    reader.jobs()
    reader.nodes()
    assert slept == []
    reader.jobs()
    assert slept == [2.0]
    reader.close()


def test_one_whose_first_read_fails_is_left_and_told_once(
    put: Put, line: None, caplog: pytest.LogCaptureFixture
) -> None:
    put("old", jobs=[])
    odd = put("old", nodes=[{k: v for k, v in NODE.items() if k != "alloc_cpus"}])
    odd.close()
    reader, _ = open_reader({})
    with caplog.at_level(logging.WARNING):
        assert reader.nodes() == () and reader.name == "command line"
        assert reader.nodes() == () and reader.jobs() == ()
    assert len(caplog.records) == 1 and "the command line, since pyslurm nodes: KeyError('alloc_cpus')" in caplog.text
    assert reads({}) == ("command line", "the command line, since pyslurm nodes: KeyError('alloc_cpus')")


def test_another_release_does_not_fit(put: Put, line: None) -> None:
    put("new", version="25.11.2")
    reader, why = open_reader({})
    assert reader.name == "command line" and "pyslurm 25.11.2 is not made for Slurm 22.05.8" in why
    with pytest.raises(UsageError, match="is not made for"):
        open_reader({}, "pyslurm")
