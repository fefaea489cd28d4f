"""The pieces of tests/benchmarks/parts_real.py that need no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.parts_real import PARTS, TRAININGS, WINDOW, Outcome, at_target, reached, table


def line(step: int, loss: float, batch: int = 64) -> dict[str, Any]:
    return {
        "step": step,
        "loss": loss,
        "global_batch": batch,
        "time": 100.0 + step,
        "restarts": 0,
        "tp": 1,
        "pp": 1,
        "dp": 2,
    }


def test_the_target_is_reached_by_the_mean_of_the_last_samples_and_not_by_one_lucky_step() -> None:
    full = WINDOW // 64
    falling = (
        [line(i, 3.0) for i in range(full)] + [line(full, 1.0)] + [line(full + i, 2.0) for i in range(1, 2 * full)]
    )
    assert at_target(falling[: full + 1], 2.0) is None
    # one of 3.0, the 1.0 and six of 2.0
    assert at_target(falling, 2.0) == 2 * full - 1
    assert at_target([line(i, 0.1) for i in range(full - 1)], 2.0) is None
    # larger batches weigh as much as they hold
    assert at_target([line(0, 4.0, WINDOW // 4), line(1, 2.0, 3 * WINDOW // 4)], 2.5) == 2


def test_what_a_run_came_to() -> None:
    training = TRAININGS[0]
    lines = [line(i, 1.0) for i in range(WINDOW // 64)]
    one = reached(training, lines, 90.0)
    assert one is not None
    assert (one.seconds, one.first_step_s, one.samples, one.steps) == (9.0 + len(lines), 10.0, WINDOW, len(lines))
    assert reached(training, lines[1:], 90.0) is None
    jobs = tuple(o for t in TRAININGS if (o := reached(t, lines, 90.0)))
    text = table({"plain": [Outcome(jobs=jobs, makespan_s=60.0, load=2.0, busy=1.0)]})
    assert text.splitlines()[-1] == "| plain |" + " 17 |" * 6 + " 17 | 0.0 | 360 | 51 | 2 |"


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if part.policy])
def test_each_part_leaves_to_synergy_what_it_says(name: str) -> None:
    part = PARTS[name]
    for training in TRAININGS:
        words = training.job(part, 1).script(Path("/c")).splitlines()[2].split()
        assert words[0] == "#SYNERGY"
        given = dict(word.split("=", 1) for word in words[1:])
        assert (given.get("resize") == "no") is not part.size
        assert (":" in given["global_batch"]) is part.batch
        if training.name.startswith("gpt"):
            assert ("tp" in given and "micro_batch" in given) is not part.plan
