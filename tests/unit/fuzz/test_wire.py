"""What jobs, the daemon and the link arbiter say to each other, 10,000 inputs a reader."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.job_report import Report
from synergy_core.reasons import Reason
from synergy_core.records import Alternative, Cell, Measurement, ModelSpec, Plan, Profile, Shape
from synergy_core.shared_links import SharedLink, Sharing
from synergy_core.wire import link_protocol, plan_file, report
from synergy_core.wire.codec import decode, encode
from synergy_core.wire.hostlist import MAX_NAMES, expand

from tests.unit.fuzz.checking import check, refused
from tests.unit.fuzz.generators import json_mutations, mutations

PLAN = Plan(tp=2, dp=4, micro_batch=2, global_batch=64, recompute="full")
MODEL = ModelSpec("llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096, gated=True, tied_embeddings=False)
REPORT = Report(
    7, 1, 120, step_s=0.5, loss=2.5, tokens=10**6, noise_scale=300.0, peak_memory_bytes=10**10, checkpoint_step=100,
    plan=PLAN, model=MODEL, note="as planned", slow_nodes=("n1",), stalled_s=1.0, done=10.0, total=100.0,
)  # fmt: skip
HELLO = link_protocol.Hello(7, 1, ("n1", "gpu-2.site"), 3, "0af7")
SHAPE = Shape("a100", 2, 4)
CELL = Cell(SHAPE, PLAN, 12.5, 0.8, 10.0, 0.5, 10**10, float("inf"))
STORED = (
    REPORT, PLAN, CELL, MODEL, Alternative(CELL, Reason("text", {"text": "it would slow others"})), Measurement(PLAN, SHAPE, 0.5, 3),
    Profile(1.1, 0.9, 4, 300.0, True, MODEL, 64, (Measurement(PLAN, SHAPE, 0.5),)),
    Sharing(1.2, "nic:n1", (SharedLink("nic:n1", (8, 9)),)),
)  # fmt: skip

FIELDS: dict[type, set[str]] = {type(record): {f.name for f in dataclasses.fields(record)} for record in STORED}


def test_reports() -> None:
    examples = [
        encode(REPORT),
        encode(Report(7, 0, 0)),
        {**encode(REPORT), "accepts": {"vpp": True, "precision": "fp8"}},
    ]

    def read(payload: bytes) -> None:
        taken = report.from_json(payload)
        if len(payload) % 8 == 0:  # each costs as much as the reading
            assert report.from_json(report.to_json(taken)) == taken
        assert taken.note.isprintable() and (taken.model is None or taken.model.name.isprintable())

    check(read, "report", json_mutations(examples, 10_000, 11))


def test_status_files() -> None:
    """A training process's own file: whatever it holds, a report comes out."""
    examples = [{**encode(REPORT), "time": 1.0}]
    for text in json_mutations(examples, 1_000, 12):
        try:
            status = json.loads(text)
        except ValueError:
            continue
        if isinstance(status, dict):
            assert not refused(lambda given: report.to_json(report.status_to_report(given, 7, 0)), status)


def test_hellos() -> None:
    check(link_protocol.read_hello, "link_protocol", json_mutations([encode(HELLO)], 10_000, 13))


def test_questions_to_the_arbiter() -> None:
    examples = [link_protocol.ask_line(link_protocol.Question(4, 512.5, 0.25)), link_protocol.done_line(4)]

    def read(line: bytes) -> None:
        asked = link_protocol.read_question(line)
        again = (
            link_protocol.ask_line(asked) if isinstance(asked, link_protocol.Question) else b"done %d" % asked.number
        )
        assert link_protocol.read_question(again).number == asked.number

    check(read, "link_protocol", mutations(examples, 10_000, 14))


def test_answers_of_the_arbiter_and_the_daemon() -> None:
    """They are listened to by jobs: any other line is none."""
    examples = [
        b"go 4\n", b"wait 4\n", link_protocol.welcome_line("MUNGE:AwQ="), b"ok\n", b"no room\n",
        link_protocol.welcome_text(HELLO, 0.5),
    ]  # fmt: skip

    def read(line: bytes) -> None:
        link_protocol.read_answer(line)
        link_protocol.read_welcome(line)
        link_protocol.read_welcome_bound(line, HELLO)
        if not line.startswith(b"ok MUNGE:"):  # that one is munged's business
            report.read_answer(line, REPORT, 0)

    for line in mutations(examples, 10_000, 15):
        assert not refused(read, line)


def test_host_lists() -> None:
    examples = [b"n1", b"n[1-3,7],gpu05", b"rack-1-n[098-101]-ib", b"a[1],b[2-3]x,c", b"(null)"]

    def read(text: bytes) -> None:
        assert len(expand(text.decode("utf-8", "surrogateescape"))) <= MAX_NAMES

    check(read, "hostlist", mutations(examples, 10_000, 16))


def test_plan_files(tmp_path: Path) -> None:
    path = tmp_path / "7.json"
    whole = plan_file.PlanFile(7, PLAN, "ctl:7321", "/scratch/run1", 64030, "ctl:7322")
    examples = [{"format": 1, **encode(whole)}, {"format": 1, "job_id": 7}]

    def read(content: bytes) -> None:
        path.write_bytes(content)
        plan_file.read(path, 7)

    check(read, "plan_file", json_mutations(examples, 2_000, 17))  # a file each


def test_stored_records() -> None:
    """Rows of the database: each record from what another version, or a hand, wrote."""

    def read(content: bytes) -> None:
        try:
            data = json.loads(content)
        except (ValueError, RecursionError):
            raise UsageError("row", "is no JSON") from None
        names = set(data) if isinstance(data, dict) else set()
        for cls, fields in FIELDS.items():
            if len(names & fields) > 1 and not names - fields:
                assert decode(cls, encode(decode(cls, data, "row")), "row")
                return
        decode(Report, data, "row")

    check(read, "records", json_mutations([encode(record) for record in STORED], 10_000, 18))
