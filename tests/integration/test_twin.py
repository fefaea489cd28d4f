"""A short twin run: the same random jobs with and without Synergy; none may be worse off with it."""

from __future__ import annotations

import pytest

from tests.throwaway import accounting, twin

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(accounting.missing_programs()), reason=f"not here: {accounting.missing_programs()}"),
]


WAITED = ("idle", "hoarded", "passed")


def test_no_job_is_worse_off_than_its_twin() -> None:
    said: list[str] = []
    outcome = twin.run(20, seed=5, maintenance=False, say=said.append)
    # who waited for how long is the benchmark's to say, on a machine that does nothing else
    broken = [f for f in outcome.findings if f.kind not in WAITED]
    assert not broken and not outcome.plain_breaches, "\n".join([*said, outcome.table()])
    assert len(outcome.waits) >= 15
