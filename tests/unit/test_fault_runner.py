"""The runner of the fault matrix: which pairs share a cluster, and what is known when a broken one can't be ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from tests.throwaway.faults import Matrix, Pairs, Result


class Clusters:
    """Stands for clusters: pairs named in `wrong` end wrong, and a cluster in `stuck` can't be ended."""

    def __init__(self, wrong: set[str], stuck: set[int]) -> None:
        self.wrong, self.stuck = wrong, stuck
        self.used: list[int] = []
        self.started = 0
        self.ended: list[int] = []

    @contextmanager
    def start(self) -> Iterator[Matrix]:
        self.started += 1
        number = self.started
        try:
            yield cast(Matrix, self)
        finally:
            self.ended.append(number)
            if number in self.stuck:
                raise RuntimeError("a process does not end\nits log")

    def run(self, state: str, fault: str, when: str) -> Result:
        self.used.append(self.started)
        if fault == "error":
            raise ValueError(fault)
        return Result(state, fault, ["it is held"] if state in self.wrong else [])


def test_a_fresh_cluster_follows_a_wrong_result_and_nothing_else() -> None:
    clusters = Clusters({"HELD"}, {1})
    pairs = Pairs(clusters.start)
    results = [pairs.run(state, "scancel") for state in ("QUEUED", "HELD", "RUNNING", "RESIZED")]
    assert clusters.used == [1, 1, 2, 2] and clusters.ended == [1]
    assert [r.wrong for r in results] == [[], ["it is held", "at the cluster's end: a process does not end"], [], []]
    with pytest.raises(ValueError, match="error"):
        pairs.run("QUEUED", "error")
    assert clusters.ended == [1, 2]
    pairs.run("QUEUED", "scancel")
    pairs.close()
    pairs.close()
    assert clusters.used[-1] == 3 and clusters.ended == [1, 2, 3]
