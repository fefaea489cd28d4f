"""A minute of chaos: random faults on a real cluster with two daemons, and all that must hold after each."""

from __future__ import annotations

import os

import pytest

from tests.throwaway.chaos import Chaos
from tests.throwaway.chaos_site import Site

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(1200),  # Chaos tells by its own time-outs what does not end
    pytest.mark.skipif(os.geteuid() != 0, reason="a small disk for StateDir is mounted: only root may"),
]
KINDS = ("synergyd-killed", "slurmd-restarted", "sqlite-locked", "user-requeues", "user-updates", "disk-full")


def test_a_minute_of_chaos() -> None:
    said: list[str] = []
    with Site("sqlite") as site:
        chaos = Chaos(site, seed=5, steps=(30, 90), say=said.append)
        chaos.run(minutes=0.4, names=KINDS)
    assert not chaos.findings, "\n".join([*said, chaos.table()])
    assert sum(t.run for t in chaos.tallies.values()) >= 1 and "0 findings" in chaos.table()
