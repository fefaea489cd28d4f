"""Processes that lead as synergyd does, and write a line into one ledger every 20 ms while they do: who wrote when, in which term."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

EVERY_S = 0.02


class Write(NamedTuple):
    """`at_s` by the machine's monotonic clock."""

    at_s: float
    name: str
    term: int


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def writes(self) -> list[Write]:
        text = self.path.read_text()
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]  # the last one may be half written
        return [Write(float(at), name, int(term)) for at, name, term in lines]

    def wait_for(self, name: str, since_s: float, timeout_s: float = 60.0) -> float:
        """Seconds from `since_s` to the first line of `name` after it. Raises RuntimeError."""
        while time.monotonic() < since_s + timeout_s:
            found = [w.at_s for w in self.writes() if w.name == name and w.at_s > since_s]
            if found:
                return found[0] - since_s
            time.sleep(0.05)
        raise RuntimeError(f"{name} did not lead within {timeout_s:g} s: {self.writes()[-5:]}")

    def problem(self) -> str:
        """Two at once, or a term that goes back; "" if neither was seen."""
        for before, after in pairwise(self.writes()):
            if after.term < before.term or (after.name != before.name and after.term == before.term):
                return f"{before} then {after}"
        return ""


class Leading:
    """One such process. SIGUSR1 stops it between its next look at the lease and the write, SIGTERM ends it in order."""

    def __init__(self, name: str, url: str, ledger: Ledger) -> None:
        argv = [sys.executable, "-m", "tests.throwaway.leading", name, url, str(ledger.path)]
        self.process = subprocess.Popen(argv)

    def __enter__(self) -> Leading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.send_signal(signal.SIGCONT)
        self.process.wait(60)

    def send(self, number: signal.Signals) -> float:
        """The monotonic time just before it."""
        at_s = time.monotonic()
        self.process.send_signal(number)
        return at_s


def main(name: str, url: str, ledger: str) -> None:
    from synergy_core.errors import UnavailableError

    from synergyd.daemon.lease_keeper import LeaseKeeper
    from synergyd.store.leader import Leader

    ended: list[int] = []
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    signal.signal(signal.SIGUSR1, lambda *_: stop.append(1))

    keeper = LeaseKeeper(Leader(url, clock=time.time), grace_s=60.0)
    keeper.start()
    with Path(ledger).open("a", buffering=1) as file:
        while not ended:
            keeper.note_completed_epoch()
            if keeper.begin_turn():
                try:
                    with keeper.guard_write():
                        if stop:
                            signal.raise_signal(signal.SIGSTOP)
                        file.write(f"{time.monotonic()} {name} {keeper.term}\n")
                except UnavailableError:
                    pass
            time.sleep(EVERY_S)
    keeper.close()


if __name__ == "__main__":
    main(*sys.argv[1:4])
