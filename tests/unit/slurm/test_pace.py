"""Slurm's limit on requests is kept to, and what it says beyond it is no lasting refusal."""

from __future__ import annotations

import pytest

from synergyd.slurm.client import SlurmError
from synergyd.slurm.pace import TokenBucket, count_requests, make_token_bucket
from tests.unit.slurm.shell_world import Shell


def test_calls_wait_for_their_turn() -> None:
    now_s = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        slept.append(seconds)
        now_s += seconds

    pace = TokenBucket(3, 2, lambda: now_s, sleep)
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
    found = make_token_bucket(f"SlurmctldPort           = 6817\nSlurmctldParameters     = {words}\n")
    assert found is not None and (found._bucket, found._refill_per_s) == (bucket, per_s)


@pytest.mark.parametrize(
    ("words", "requests"),
    [
        ("squeue -h -a -O JobID:12", 2),
        ("squeue -h -a -j 7 -O JobID:12", 3),
        ("squeue -a --json", 1),
        ("sinfo -h -a -N -O NodeList:20", 2),
        ("scontrol show config", 2),
        ("scontrol show topology", 1),
        ("scontrol release 7", 1),
        ("scontrol update JobId=7 StartTime=now", 1),
        ("scontrol update JobId=7,8,9_1 StartTime=now+60", 3),
        ("scancel --signal=USR2 7", 3),
        ("scontrol --version", 0),
    ],
)
def test_the_requests_of_a_command_are_what_slurm_counts(words: str, requests: int) -> None:
    assert count_requests(words.split()) == requests


def test_a_command_waits_for_all_of_its_requests(shell: Shell) -> None:
    slept: list[float] = []
    shell.answers("scontrol")
    shell.answers("sinfo")
    shell.backend.pace = TokenBucket(2, 2, lambda: 0.0, slept.append)
    shell.backend.reservations()
    shell.backend.run("sinfo", "-h")
    assert slept == [0.5]


def test_many_jobs_are_put_off_a_bucket_at_a_time(shell: Shell) -> None:
    """One scontrol makes a request for each: beyond the bucket Slurm would make it sleep past its time."""
    slept: list[float] = []
    shell.answers("scontrol")
    shell.backend.pace = TokenBucket(3, 1, lambda: 0.0, slept.append)
    shell.backend.delay(range(1, 8), 60)
    named = [word for call in shell.calls for word in call if word.startswith("JobId=")]
    assert named == ["JobId=1,2,3", "JobId=4,5,6", "JobId=7"]
    assert slept == [3.0, 4.0]


def test_without_a_limit_nothing_waits() -> None:
    for config in ("", "SlurmctldParameters     = (null)\n", "SlurmctldParameters     = rl_bucket_size=3\n"):
        assert make_token_bucket(config) is None


def test_beyond_it_the_call_may_be_tried_again(shell: Shell) -> None:
    # slurm_errno.c, SLURMCTLD_COMMUNICATIONS_BACKOFF (23.02)
    shell.answers("scontrol", error="slurm_update error: Rate limit exceeded, please retry momentarily\n", code=1)
    with pytest.raises(SlurmError) as error:
        shell.backend.update(7, {"StartTime": "now"})
    assert error.value.transient
