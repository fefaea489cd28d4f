"""What tests of the store share."""

from __future__ import annotations

from synergy_core.accepts import Accepts
from synergy_core.job_report import Report
from synergy_core.reasons import Reason, text_reason
from synergy_core.records import Action, Alternative, Cell, Decision, Measurement, ModelSpec, Plan, Profile, Shape

from synergyd.store.records import EpochRecord, StoredLifecycle

# What a stranger may call a job: quotes, SQL, newline, NUL, not UTF-8, more than 16 bits
NASTY = "x'; DROP TABLE events; --\"\n$(id) \x00 \udcff ü 火 🜂"
NASTY_STORED = "x'; DROP TABLE events; --\"\n$(id) \\x00 \\udcff ü 火 🜂"

SPEC = ModelSpec("gpt-mini", 4, 128, 4, 2, 512, 1000, 256, gated=True)
PLAN = Plan(2, 1, 2, 4, 64, recompute="full", sequence_parallel=True, zero_stage=0)
CELL = Cell(Shape("a100", 2, 2), PLAN, 12.5, 0.75, 9.375, 5.12, 30 * 2**30, 0.1)
MEASURED = (Measurement(Plan(2, 1, 4, 1, 64), Shape("a100", 1, 8), 1.25), Measurement(Plan(), Shape("h100", 1, 1), 2.0))
PROFILE = Profile(0.9, 1.1, 17, 123.5, True, SPEC, 64, MEASURED, Accepts(True, False, True, "fp8"))
REPORT = Report(7, 1, 1200, 0.5, 2.25, 10**12, 100.0, 5 * 10**10, 1100, 2, PLAN, True, SPEC, "note")


def decision(job_id: int, why: str = "more GPUs help it most") -> Decision:
    alternatives = (Alternative(CELL, Reason("text", {"text": "slower"})),)
    return Decision(
        job_id,
        Action.RESIZE,
        CELL,
        ("n1",),
        text_reason(why),
        1.5,
        alternatives,
        (("goodput", 0.5), ("need", 50.0)),
        0.9,
    )


def epoch(at_s: float, *jobs: int, error: str = "") -> EpochRecord:
    return EpochRecord(at_s, 0.25, False, tuple(decision(j) for j in jobs), {"gpus": 8}, error)


def lifecycle(job_id: int, state: str = "RUNNING", at_s: float = 5.0) -> StoredLifecycle:
    return StoredLifecycle(job_id, 1.0, state, {"restarts": 2, "nested": {"a": [1, None]}}, at_s)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
