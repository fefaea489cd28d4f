"""The history that a job's incarnations leave for the next one: plans that failed, and one that ran. A file beside the checkpoints."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_core.wire.codec import decode, encode
from synergy_core.wire.plan import PLAN_CHECKS

FILE = "synergy-plans.json"
_LIMIT_BYTES = 1 << 16
_KEPT = 16


@dataclass(frozen=True)
class Crash:
    """A run that had trained and ended with an error. `at_s`: seconds since 1970. `cause`: one of wire.report.FAILURES."""

    step: int
    at_s: float
    cause: str = ""


@dataclass(frozen=True)
class RunHistory:
    """The history of one job over its incarnations."""

    job_id: int
    #: times that it came back from a plan that failed
    returns: int = 0
    #: the latest that got past its first steps; None where there is none, or it was the user's own arguments
    ran: Plan | None = None
    #: the incarnation that got past its first steps last; -1: none did
    ran_restarts: int = -1
    #: plans that failed within their first steps
    failed: tuple[Plan, ...] = ()
    #: after which it was started again in place, the latest last
    crashes: tuple[Crash, ...] = ()

    def with_failed(self, plan: Plan) -> RunHistory:
        others = tuple(p for p in self.failed if p != plan)
        return replace(self, returns=self.returns + 1, failed=(*others, plan)[-_KEPT:])

    def with_crash(self, crash: Crash) -> RunHistory:
        return replace(self, crashes=(*self.crashes, crash)[-_KEPT:])


def read_history(folder: Path | None, job_id: int) -> RunHistory:
    """Return the job's history, or an empty one where there is none or it is that of another job."""
    if folder is not None:
        with contextlib.suppress(OSError, ValueError, UsageError), (folder / FILE).open("rb") as stream:
            history = decode(RunHistory, json.loads(stream.read(_LIMIT_BYTES)), FILE, PLAN_CHECKS)
            if history.job_id == job_id and history.returns >= 0:
                return history
    return RunHistory(job_id)


def write_history(folder: Path | None, history: RunHistory) -> None:
    """Replace the file. Where it can't be written the next incarnation knows less: training does not depend on it."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f".{FILE}"
        fresh.write_text(json.dumps(encode(history)) + "\n", encoding="ascii")
        fresh.replace(folder / FILE)
