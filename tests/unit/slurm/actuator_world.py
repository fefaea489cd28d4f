"""An actuator before a fake Slurm with job 1, and what its tests ask of it."""

from __future__ import annotations

from pathlib import Path

from synergy_core.records import Directive, Plan, Shape

from synergyd.control.resize.instructions import Target, Update
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.parsed.snapshot import SubmittedJob
from tests.unit.slurm.fake_slurm import FakeSlurm, row

PLAN = Plan(tp=2, dp=2, global_batch=8)
TARGET = Target(Shape("a100", 2, 2), ("n1", "n2"), PLAN)
KNOWN = SubmittedJob(Directive(checkpoint="/scratch/a b"), "", Shape("a100", 1, 2), 8)
UPDATE = Update(1, TARGET, 900)


def make(folder: Path, *, known: SubmittedJob | None = KNOWN, **changes: object) -> tuple[FakeSlurm, Actuator]:
    slurm = FakeSlurm(jobs={1: row(1, **changes)})
    return slurm, Actuator(slurm, folder, "ctl:7321", {1: known} if known else {})


def fields(slurm: FakeSlurm) -> dict[str, str]:
    """Return the fields of all updates together."""
    return dict(w.partition("=")[::2] for call in slurm.calls if call[0] == "update" for w in call[2:])
