"""The daemon's loop goes on after what it did not expect, and ends on what its admin has to mend."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from synergy_core.errors import UnavailableError, UsageError

from synergyd.daemon import service
from synergyd.settings import Settings
from synergyd.store.records import EpochRecord

RECORD = EpochRecord(0.0, 0.1, True)


class Once:
    """A daemon whose epochs raise what they are told to, one after the other; then it has nothing more to do."""

    settings, is_resizing, needs_early_epoch = Settings(epoch_s=0.01, dry_run=True), False, False

    def __init__(self, *problems: Exception) -> None:
        self.problems, self.epochs, self.stop = list(problems), 0, threading.Event()
        store = SimpleNamespace(refresh=lambda: True, prune=lambda _s: None, problem="")
        self.dependencies = SimpleNamespace(store=store, inbox=None, leads=lambda: True)

    def epoch(self) -> Any:
        self.epochs += 1
        if self.problems:
            raise self.problems.pop(0)
        self.stop.set()
        return RECORD

    def tick(self) -> None: ...


def run(daemon: Once, once: bool = False) -> tuple[int, int]:
    """(exit code, failures counted)."""
    failed: list[int] = []
    metrics: Any = SimpleNamespace(epoch=lambda *_: None, count_failure=lambda: failed.append(1))
    keeper: Any = SimpleNamespace(begin_turn=lambda: False, note_completed_epoch=lambda: None, problem="")
    code = service._loop(daemon, keeper, metrics, daemon.stop, once, None)  # type: ignore[arg-type]
    return code, len(failed)


def test_a_fault_of_its_own_is_logged_and_the_next_look_comes(caplog: pytest.LogCaptureFixture) -> None:
    daemon = Once(ZeroDivisionError("a fault"), UnavailableError("slurmctld", "is away"))
    with caplog.at_level(logging.WARNING):
        assert run(daemon) == (0, 2)
    assert daemon.epochs == 3
    assert "a fault" in caplog.text and "slurmctld: is away" in caplog.text


def test_failing_ticks_do_not_put_off_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm is away for 13 s while a job is being resized: the epochs' own back-off (1, 2, 4, 8 s) is all that is waited."""
    now_s = 0.0

    def wait(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    class Busy(Once):
        settings, is_resizing = Settings(epoch_s=1.0, dry_run=True), True

        def epoch(self) -> Any:
            self.tick()
            ended.append(now_s)
            return RECORD

        def tick(self) -> None:
            if now_s < 13.0:
                raise UnavailableError("slurmctld", "is away")

    ended: list[float] = []
    daemon = Busy()
    daemon.stop = SimpleNamespace(is_set=lambda: bool(ended) or now_s > 100, wait=wait)  # type: ignore[assignment]
    monkeypatch.setattr("synergyd.daemon.service.time.monotonic", lambda: now_s)
    run(daemon)
    assert ended and ended[0] < 20.0


class Hurried(Once):
    """Epochs of 60 s on a clock of the test's own; from 10 s on one should come early."""

    settings = Settings(epoch_s=60.0, dry_run=True)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *problems: Exception, until_s: float = 50.0) -> None:
        super().__init__(*problems)
        self.now_s, self.began = 0.0, list[float]()
        self.stop = SimpleNamespace(is_set=lambda: self.now_s > until_s, wait=self._wait)  # type: ignore[assignment]
        monkeypatch.setattr("synergyd.daemon.service.time.monotonic", lambda: self.now_s)

    def _wait(self, seconds: float) -> None:
        self.now_s += seconds

    def epoch(self) -> Any:
        self.needs_early_epoch = False
        self.began.append(self.now_s)
        if len(self.began) > 1 and self.problems:
            raise self.problems.pop(0)
        return RECORD

    def tick(self) -> None:
        self.needs_early_epoch |= self.now_s >= 10.0 and len(self.began) == 1


def test_an_early_epoch_that_fails_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Hurried(monkeypatch, UnavailableError("slurmctld", "is away"))
    assert run(daemon) == (0, 1)
    assert len(daemon.began) == 3 and daemon.began[2] <= daemon.began[1] + 4.0


def test_an_early_epoch_does_not_put_off_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the simulator: it comes besides."""
    daemon = Hurried(monkeypatch, until_s=75.0)
    run(daemon)
    first, early, following = daemon.began
    assert first == 0.0 and 10.0 <= early <= 12.0
    assert 0.95 * 60.0 <= following <= 1.05 * 60.0 + 2.0


def test_early_epochs_that_fail_do_not_put_off_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a node is lost while slurmctld is away: ticks ask for one again and again. The epochs' own back-off from the first
    failure on (2, 4, 8, 16, 32 s) is all that is waited."""

    class Often(Hurried):
        def tick(self) -> None:
            self.needs_early_epoch |= 10.0 <= self.now_s < 50.0

    daemon = Often(monkeypatch, *[UnavailableError("slurmctld", "is away")] * 30, until_s=120.0)
    run(daemon)
    later = [at_s for at_s in daemon.began if at_s >= 50.0]
    assert later and later[0] <= 80.0


def test_for_one_look_no_epoch_comes_early(monkeypatch: pytest.MonkeyPatch) -> None:
    class Resizes(Hurried):
        def tick(self) -> None:
            super().tick()
            self.is_resizing = self.now_s < 20.0

    daemon = Resizes(monkeypatch)
    daemon.is_resizing = True
    assert run(daemon, once=True) == (0, 0)
    assert daemon.began == [0.0]


def test_for_one_look_it_is_the_exit_code() -> None:
    assert run(Once(ZeroDivisionError("a fault")), once=True) == (1, 1)


def test_what_the_admin_has_to_mend_ends_it() -> None:
    with pytest.raises(UsageError, match="StateDir"):
        run(Once(UsageError("StateDir", "is gone", "make it")))


def test_who_takes_over_decides_at_once() -> None:
    led: list[bool] = []

    class Standby(Once):
        settings = Settings(epoch_s=1000.0)

        def epoch(self) -> Any:
            led.append(leads)
            if leads:
                self.stop.set()
            return RECORD

    daemon, leads = Standby(), False

    def turn() -> bool:
        nonlocal leads
        leads = bool(led)  # from its second turn on
        return leads

    metrics: Any = SimpleNamespace(epoch=lambda *_: None, count_failure=lambda: None)
    keeper: Any = SimpleNamespace(
        start=lambda: None, begin_turn=turn, note_completed_epoch=lambda: None, problem="", term=2
    )
    assert service._loop(daemon, keeper, metrics, daemon.stop, False, None) == 0  # type: ignore[arg-type]
    assert led == [False, True]
