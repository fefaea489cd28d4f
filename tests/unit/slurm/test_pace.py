"""Slurm's limit on requests is kept to, and what it says beyond it is no lasting refusal."""

from __future__ import annotations

import pytest

from synergyd.slurm.client import SlurmError
from synergyd.slurm.pace import Pace, pace_of
from tests.unit.slurm.shell_world import Shell


def test_calls_wait_for_their_turn() -> None:
    now_s = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        slept.append(seconds)
        now_s += seconds

    pace = Pace(3, 2, lambda: now_s, sleep)
    for _ in range(3):
        pace.take()
    assert slept == []
    for _ in range(4):
        pace.take()
    assert slept == [0.5] * 4 and now_s == pace.waited_s == 2.0
    now_s += 60
    for _ in range(3):
        pace.take()
    assert len(slept) == 4  # no more is saved up than the bucket holds
    pace.take()
    assert len(slept) == 5


@pytest.mark.parametrize(
    ("words", "bucket", "per_s"),
    [
        ("rl_enable", 15.0, 1.0),
        ("idle_on_node_suspend, RL_ENABLE,rl_bucket_size=100,rl_refill_rate=10,rl_refill_period=2", 50.0, 2.5),
        ("rl_enable,rl_refill_period=0,rl_bucket_size=x", 15.0, 1.0),
    ],
)
def test_the_limit_as_slurm_says_it(words: str, bucket: float, per_s: float) -> None:
    found = pace_of(f"SlurmctldPort           = 6817\nSlurmctldParameters     = {words}\n")
    assert found is not None and (found._bucket, found._refill_per_s) == (bucket, per_s)


def test_without_a_limit_nothing_waits() -> None:
    for config in ("", "SlurmctldParameters     = (null)\n", "SlurmctldParameters     = rl_bucket_size=3\n"):
        assert pace_of(config) is None


def test_beyond_it_the_call_may_be_tried_again(shell: Shell) -> None:
    # slurm_errno.c, SLURMCTLD_COMMUNICATIONS_BACKOFF (23.02)
    shell.answers("scontrol", error="slurm_update error: Rate limit exceeded, please retry momentarily\n", code=1)
    with pytest.raises(SlurmError) as error:
        shell.backend.update(7, {"StartTime": "now"})
    assert error.value.transient
