"""Slurm's limit on the requests of one user (rl_enable, from 23.02 on), kept to by waiting before a call.

Beyond it slurmctld refuses, and Slurm's commands sleep 1, 2, 3 ... s by themselves, which would be taken for a Slurm that hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from synergyd.slurm.parsed.rows import config_values

# slurm.conf(5), SlurmctldParameters: tokens that a user has at first, and how many come back each so many seconds
BUCKET, REFILL, PERIOD_S = 30, 2, 1
OURS = 0.5  # share of the limit for the daemon's main loop: its other threads, and the user's own commands, are counted by Slurm too


class TokenBucket:
    """Tokens that come back with time, one for each request. `take` waits until there are enough.

    `waited_s`: for how long in all, the wait that is under way included.
    """

    def __init__(
        self,
        bucket: float,
        refill_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bucket, self._refill_per_s = max(1.0, bucket), refill_per_s
        self._clock, self._sleep = clock, sleep
        self._left, self._at_s = self._bucket, clock()
        self.waited_s = 0.0

    @property
    def at_once(self) -> int:
        """Return how many requests one command may make at most."""
        return int(self._bucket)

    def take(self, requests: int = 1) -> None:
        now_s = self._clock()
        self._left = min(self._bucket, self._left + (now_s - self._at_s) * self._refill_per_s) - requests
        self._at_s = now_s
        if self._left < 0:
            wait_s = -self._left / self._refill_per_s
            self.waited_s += wait_s
            self._sleep(wait_s)


def count_requests(argv: Sequence[str]) -> int:
    """Return the requests that slurmctld counts for one of our commands, as sdiag showed them on 22.05.8, 24.11.5 and 26.05.5."""
    program, rest = argv[0], argv[1:]
    if program == "squeue":  # the jobs, and the partitions beside them; of some ids the federation too
        return 1 if "--json" in rest else 3 if "-j" in rest else 2
    if program == "sinfo" or list(rest[:2]) == ["show", "config"]:  # nodes and partitions; a ping of each slurmctld
        return 2
    if program == "scancel":  # the federation, the jobs, the signal
        return 3
    if program == "scontrol" and list(rest[:1]) == ["update"]:  # one for each job
        return 1 + next((word.count(",") for word in rest if word.startswith("JobId=")), 0)
    return 0 if "--version" in rest else 1


def make_token_bucket(config: str) -> TokenBucket | None:
    """Return what `scontrol show config` allows a user other than root and SlurmUser, or None if nothing is limited."""
    words = [word.strip().lower() for word in config_values(config).get("SlurmctldParameters", "").split(",")]
    if "rl_enable" not in words:
        return None
    values = dict(word.partition("=")[::2] for word in words)

    def number(key: str, usual: int) -> int:
        text = values.get(key, "")
        return int(text) if text.isdecimal() and len(text) < 10 and int(text) else usual

    per_s = number("rl_refill_rate", REFILL) / number("rl_refill_period", PERIOD_S)
    return TokenBucket(OURS * number("rl_bucket_size", BUCKET), OURS * per_s)
