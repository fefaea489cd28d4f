"""Whatever fails in whatever state of a resize, the job is soon running or gone as it should be, and no step is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.throwaway.faults import FAULTS, STATES, Matrix, matrix

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def pairs() -> Iterator[Matrix]:
    """One cluster and daemon for all pairs."""
    with matrix() as running:
        yield running


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("state", STATES)
def test_ends_right(pairs: Matrix, state: str, fault: str) -> None:
    result = pairs.run(state, fault)
    assert not result.wrong, f"{'; '.join(result.wrong)}\n{result.told}"
