"""What the ledger of tests/throwaway/agent_job.py tells: incarnations at once or twice, and steps lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """A line of a job's ledger."""

    what: str
    restarts: int
    step: int
    time_s: float


def read_ledger(path: Path) -> list[Line]:
    """All whole lines; none where there is no file yet."""
    rows = [x.split() for x in path.read_text().splitlines()] if path.exists() else []
    return [Line(r[0], int(r[1]), int(r[2]), float(r[4])) for r in rows if len(r) == 5]


def overlaps(lines: Sequence[Line]) -> list[str]:
    """Incarnations that began while another was alive."""
    return ["two incarnations ran at once"] if any(x.what == "overlap" for x in lines) else []


def twice_started(lines: Sequence[Line]) -> list[str]:
    """Restart counts that were given to more than one incarnation."""
    starts = [x.restarts for x in lines if x.what == "start"]
    return ["an incarnation started twice"] if len(set(starts)) != len(starts) else []


def lost_steps(lines: Sequence[Line]) -> list[str]:
    """Each incarnation goes on from the last checkpoint of those before it."""
    wrong: list[str] = []
    saved: list[int] = [0]
    ended = True
    for line in lines:
        if line.what == "saved":
            saved.append(line.step)
        elif line.what == "end":
            ended = True
        elif line.what == "start":
            # one that was killed may have been killed while it wrote its last one
            if line.step not in (saved[-1:] if ended else saved[-2:]):
                wrong.append(f"restart {line.restarts} began at step {line.step}, the last checkpoint was {saved[-1]}")
            ended = False
    return wrong
