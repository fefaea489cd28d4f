"""A second slurmctld takes over, or slurmctld reads its configuration anew, in the middle of a resize: no job is lost or started twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.throwaway import controllers
from tests.throwaway.faults import Pairs, matrix

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(controllers.why_not()), reason=controllers.why_not() or "several controllers run here"),
]


@pytest.fixture(scope="module")
def pairs() -> Iterator[Pairs]:
    """One cluster with two controllers, and one daemon, for all pairs that end right."""
    with matrix(controllers=2) as running:
        yield running


# the other states: python -m tests.benchmarks.faults --controllers
@pytest.mark.parametrize(("state", "fault"), [("REQUEUING", "reconfigure"), ("PARKED", "takeover")])
def test_ends_right(pairs: Pairs, state: str, fault: str) -> None:
    result = pairs.run(state, fault)
    assert not result.wrong, f"{'; '.join(result.wrong)}\n{result.told}"
