"""Few inputs, but large ones: at most a second and 100 MB each, whatever a stranger sends."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.wire import admin_comment, link_protocol, plan_file, report
from synergy_core.wire.hostlist import expand
from synergy_sim.traces import arena, cluster_logs, gavel

from synergyd.jobmodel.fit.measured_runs import read_rows
from synergyd.jobmodel.fit.profile_file import read_profile
from synergyd.jobmodel.model.spec import load_model
from synergyd.slurm.directives.conf import load_settings
from synergyd.slurm.directives.conf_lint import lint
from synergyd.slurm.directives.directive import parse_script, read_stamp
from tests.unit.fuzz.checking import refused
from tests.unit.jobmodel.fit.test_measured_runs import COLUMNS

MOST_BYTES = 100 * 1024 * 1024
MB10 = 10_000_000
LARGE: dict[str, bytes] = {
    "one line": b"x" * MB10,
    "line ends": b"\n" * MB10,
    "blanks": b" " * MB10,
    "commas": b"," * MB10,
    "words": b"ab " * (MB10 // 3),
    "brackets": b"[" * 100_000,
    "closed brackets": b"[" * 100_000 + b"]" * 100_000,
    "objects": b'{"a":' * 100_000,
    "empty lists": b"[" + b"[]," * (MB10 // 3) + b"[]]",
    "a long number": b"9" * 100_000,
    "a long number in an object": b'{"job_id":' + b"9" * 100_000 + b"}",
    "NUL bytes": b"\0" * MB10,
    "no UTF-8": b"\xff" * 1_000_000,
    "surrogates": b"\xed\xa0\x80" * 100_000,
    "quotes": b'"' * 1_000_000,
    "#SYNERGY lines": b"#SYNERGY Epohc=1\n" * 200_000,
    "#SYNERGY words": b"#SYNERGY " + b"a=1 " * 1000 + b"\n",
    "Include lines": b"Include nowhere\n" * 100_000,
    "backslashes": b"\\\n" * 90_000,
    "equal signs": b"a=" * (MB10 // 2),
}
BY_CONF = (
    "#SYNERGY lines",
    "#SYNERGY words",
    "Include lines",
    "backslashes",
    "equal signs",
    "words",
    "blanks",
    "one line",
)
HEADERS = {
    "rows": ",".join(COLUMNS).encode(),
    "philly": b"timestamp,duration,num_gpus",
    "sacct": b"JobID|Submit|ElapsedRaw|AllocTRES",
}
Read = Callable[[Path], object]


def conf(path: Path) -> None:
    loaded = load_settings(path)
    lint(path, loaded)
    assert len(loaded.problems) <= 1000
    for problem in loaded.errors():
        raise UsageError(problem.where, problem.what, problem.right)


FILES: dict[str, Read] = {
    "slurm.conf": conf,
    "rows": read_rows,
    "profile": read_profile,
    "config.json": lambda path: load_model(str(path)),
    "plan file": lambda path: plan_file.read(path, 7),
    "philly": lambda path: cluster_logs.read_philly(path, "a100", 8),
    "sacct": lambda path: cluster_logs.read_sacct(path, "a100", 8),
    "gavel": lambda path: gavel.read(path, path, "v100"),
    "gavel's rates": gavel.read_rates,
    "arena's others": arena.read_others,
}
TEXTS: dict[str, Callable[[bytes], object]] = {
    "directive": lambda given: parse_script("#SYNERGY tp=2\n" + given.decode("utf-8", "surrogateescape")),
    "report": report.from_json,
    "hello": link_protocol.read_hello,
    "question": link_protocol.read_question,
    "answers": lambda given: (link_protocol.read_answer(given), link_protocol.read_welcome(given)),
    "host list": lambda given: expand(given.decode("utf-8", "surrogateescape")),
    "host list's range": lambda given: expand("n[" + given.decode("utf-8", "surrogateescape") + "]"),
    "AdminComment": lambda given: stamp("synergy:1 model=" + given.decode("utf-8", "surrogateescape")),
    "AdminComment's plan": lambda given: stamp("synergy:1 | plan=" + given.decode("utf-8", "surrogateescape")),
}


def stamp(text: str) -> None:
    found = admin_comment.decode(text)
    assert found is not None
    read_stamp(found.directive)


def bounded(read: Callable[[], object]) -> None:
    """By memory, and by the clock where counting memory may have slowed it down."""
    began_s = time.process_time()
    tracemalloc.start()
    try:
        read()
    except UsageError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_BYTES, f"{peak / 2**20:.0f} MiB"
    if time.process_time() - began_s > 0.2:
        refused(lambda _: read(), None)


@pytest.mark.parametrize("reader", TEXTS)
@pytest.mark.parametrize("name", LARGE)
def test_a_text(reader: str, name: str) -> None:
    bounded(lambda: TEXTS[reader](LARGE[name]))


@pytest.mark.parametrize(
    "reader", [name for name in FILES if name not in ("profile", "sacct")]
)  # an admin's of up to 16 MiB; as philly
@pytest.mark.parametrize("name", [name for name in LARGE if name not in BY_CONF])
def test_a_file(tmp_path: Path, reader: str, name: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(HEADERS.get(reader, b"") + b"\n" + LARGE[name])
    bounded(lambda: FILES[reader](path))


@pytest.mark.parametrize("name", BY_CONF)
def test_slurm_conf(tmp_path: Path, name: str) -> None:
    path = tmp_path / "slurm.conf"
    path.write_bytes(LARGE[name])
    bounded(lambda: conf(path))


@pytest.mark.parametrize("reader", FILES)
def test_only_ordinary_files_are_read(tmp_path: Path, reader: str) -> None:
    """A pipe is not waited for, a device not read to its end, nor a file without bound."""
    pipe, sparse = tmp_path / "pipe", tmp_path / "sparse"
    os.mkfifo(pipe)
    with sparse.open("wb") as file:
        file.truncate(10**12)
    for path in (pipe, Path("/dev/zero"), sparse, tmp_path):
        assert refused(FILES[reader], path), path


def test_the_largest_report_is_still_read() -> None:
    payload = json.dumps({"job_id": 7, "restarts": 0, "step": 1, "note": "x" * 60_000}).encode()
    assert len(report.from_json(payload).note) == 300
