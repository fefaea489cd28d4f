"""Traces of the six kinds that are files, and the tables that come with four of them: 400 inputs a file, 6,000 in all.

A trace with its tables is slower to read than the other files, by a factor of ten."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from synergy_sim.records import TraceJob
from synergy_sim.traces import arena, cluster_logs, gavel, generate, morphling, pollux

from tests.unit.fuzz.checking import check
from tests.unit.fuzz.generators import json_mutations, mutations
from tests.unit.sim.test_placement_truth import crius, rubick
from tests.unit.sim.test_traces import application, workload

COUNT = 400
Read = Callable[[], object]
OTHERS = {
    "optimal": {"bert_1B_128": {"1_l20_1_n_4_d": [5, 9, 0.5, 9, 9, 10.0], "1_l20_1_n_8_d": [5, 9, 0.2, 9, 9, 10.0]}}
}
RATES = {
    "v100": {"('LM (batch size 5)', 1)": {"null": 4.0}, "('LM (batch size 5)', 2)": {"null": 6.0}},
    "v100_unconsolidated": {"('LM (batch size 5)', 2)": {"null": 5.0}},
}
GAVEL = b"LM (batch size 5)\tx\ty\t--steps\t1\t1200\t2\tstatic\t1\t-1.0\t200\t7\nLM (batch size 5)\t\t\t\t0\t9\t1\ts\t1\t-1\t2\t8\n"
PHILLY = b"timestamp,duration,num_gpus\n2017-10-09 00:00:10,300,2\n2017-10-09 00:00:00,60,8\n"
SACCT = (
    b"JobID|Submit|ElapsedRaw|AllocTRES\n11|2026-03-01T12:00:00|50|billing=16,gres/gpu:a100=16,gres/gpu=16,node=2\n"
    b"12|2026-03-01T12:00:10+02:00|70|cpu=2,gres/gpu=2\n13|2026-03-01T12:00:20|70|cpu=2\n"
)


def usable(jobs: Sequence[TraceJob]) -> None:
    """What the simulator counts on."""
    assert jobs
    for job in jobs:
        assert math.isfinite(job.submit_s) and 1 <= job.gpus <= 1_000_000
        assert 0 < job.truth.end(job.truth.stages - 1) < math.inf and 1 <= job.truth.low <= job.truth.high
        assert 0 < job.weight < math.inf and (job.max_gpus is None or job.max_gpus >= 1)


def pollux_file(folder: Path, name: str) -> tuple[Path, bytes, Read]:
    tables = application(folder)
    path = workload(folder, "a,5,net,2,40\nb,7,net,3,20\n")
    changed = path if name == "w.csv" else tables / name
    return changed, changed.read_bytes(), lambda: usable(pollux.read(path, None))


def morphling_file(folder: Path, name: str) -> tuple[Path, bytes, Read]:
    path = rubick(folder)
    changed = path if name == "w.csv" else folder / "traces" / "net" / name
    return changed, changed.read_bytes(), lambda: usable(morphling.read(path, None, "a800", 8))


def arena_file(folder: Path, name: str) -> tuple[Path, bytes, Read]:
    path = crius(folder)
    (folder / "prof_database_h100_l20.json").write_text(json.dumps(OTHERS))
    changed = path if name == "t.csv" else folder / name

    def read() -> None:
        for nodes, gpus in arena.read_cluster(folder).values():
            assert 1 <= nodes <= 100_000 and gpus >= 1
        usable(arena.read(path, None))

    return changed, changed.read_bytes(), read


def gavel_file(folder: Path, name: str) -> tuple[Path, bytes, Read]:
    path, rates = folder / "some.trace", folder / "throughputs.json"
    path.write_bytes(GAVEL)
    rates.write_text(json.dumps(RATES))
    changed = folder / name
    return changed, changed.read_bytes(), lambda: usable(gavel.read(path, None, "v100"))


def log_file(folder: Path, name: str) -> tuple[Path, bytes, Read]:
    path = folder / name
    if name == "philly.csv":
        return path, PHILLY, lambda: usable(cluster_logs.read_philly(path, "a100", 8))
    return path, SACCT, lambda: usable(cluster_logs.read_sacct(path, "a100", 8))


FILES = (
    *((pollux_file, name) for name in ("w.csv", "placements.csv", "scalability.csv", "validation-20.csv")),
    *((morphling_file, name) for name in ("w.csv", "placements.csv")),
    *((arena_file, name) for name in ("t.csv", "alpa_optimal_iter_time.csv", "estimated_3d_plans.csv")),
    *((arena_file, name) for name in ("sim_cluster_spec.json", "prof_database_h100_l20.json")),
    *((gavel_file, name) for name in ("some.trace", "throughputs.json")),
    *((log_file, name) for name in ("philly.csv", "sacct.txt")),
)


@pytest.mark.parametrize(("of", "name"), FILES, ids=[f"{of.__name__} {name}" for of, name in FILES])
def test_a_file_of_a_trace(tmp_path: Path, of: Callable[[Path, str], tuple[Path, bytes, Read]], name: str) -> None:
    path, example, read = of(tmp_path, name)

    def read_instead(content: bytes) -> None:
        path.write_bytes(content)
        read()

    inputs = (
        json_mutations([json.loads(example)], COUNT, 31) if path.suffix == ".json" else mutations([example], COUNT, 32)
    )
    check(read_instead, f"trace_{path.stem}", inputs)


def test_a_generated_trace() -> None:
    def read(given: bytes) -> None:
        usable(generate.generate(given.decode("utf-8", "surrogateescape")[:3], "a100", 64, 8, 0))

    check(read, "trace_generate", mutations([b"3", b"5,8", b"2,0.5"], 300, 33))
