"""One job's fault costs that job alone: whatever goes wrong in it, the epoch goes on and the others are decided."""

from __future__ import annotations

from typing import Any

import pytest
from synergy_core.records import Job

from synergyd.control import cell_cache, learning
from synergyd.control.resize.lifecycle import ResizeState
from synergyd.daemon import forecast, job_registry
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.learning import update_profile
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.directives.directive import parse_script
from tests.unit.daemon.daemon_world import SCRIPT, START_S, Site


def broken_for(job_id: int, real: Any, *, at: int) -> Any:
    """`real`, but a fault for the job whose id, or whose record's or row's id, is the argument number `at`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        who = args[at]
        if getattr(who, "job_id", who) == job_id:
            raise ZeroDivisionError("a fault\nof ours")
        return real(*args, **kwargs)

    return call


def two_jobs(site: Site) -> None:
    site.slurm.gpus = {"n1": 8, "n2": 8}
    site.slurm.submit(1, SCRIPT)
    site.slurm.submit(2, SCRIPT)


def test_cells(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    class Planner(JobPlanner):
        def __init__(self, job: Job, *args: Any) -> None:
            if job.job_id == 1:
                raise ZeroDivisionError("a fault\nof ours")
            super().__init__(job, *args)

    monkeypatch.setattr(cell_cache, "JobPlanner", Planner)
    two_jobs(site)
    site.epoch()
    assert site.life(1).state is ResizeState.QUEUED and site.life(2).state is not ResizeState.QUEUED
    why = {d.job_id: d.why for d in site.daemon.decisions}[1]
    assert "its Cells could not be worked out (ZeroDivisionError: a fault\\nof ours)" in why
    assert 1 not in site.slurm.written_to()


def test_advice_costs_no_cells(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: JobPlanner) -> None:
        raise OverflowError("a fault of ours")

    monkeypatch.setattr(forecast, "advise", broken)
    two_jobs(site)
    site.epoch()
    assert ResizeState.QUEUED not in (site.life(1).state, site.life(2).state)


def test_a_directive(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = parse_script
    calls: list[str] = []

    def parse(script: str) -> Any:
        calls.append(script)
        if len(calls) == 1:
            raise RecursionError("deep")
        return real(script)

    monkeypatch.setattr(job_registry, "parse_script", parse)
    two_jobs(site)
    site.epoch()
    jobs = {i: t.job for i, t in site.daemon.controller.jobs.items()}
    assert jobs[1] is not None and "RecursionError" in jobs[1].directive_error
    assert site.life(2).state is not ResizeState.QUEUED and site.slurm.written_to() == {2}


def test_an_instruction(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Actuator, "_do", broken_for(1, Actuator._do, at=1))
    two_jobs(site)
    for _ in range(8):
        site.epoch(10)
    assert 1 not in site.slurm.written_to() and 2 in site.slurm.written_to()
    assert "ZeroDivisionError: a fault" in site.story(1)


def test_a_report(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    two_jobs(site)
    site.slurm.runs(1, "n1")
    site.slurm.runs(2, "n2")
    site.epoch()

    def update(*args: Any) -> Any:
        if args[1].job_id == 1:
            raise OverflowError("too large")
        return real(*args)

    real = update_profile
    monkeypatch.setattr(learning, "update_profile", update)
    for _ in range(2):
        site.report(1)
        site.report(2)
        site.tick()
    assert set(site.daemon.controller.profiles) == {2} and set(site.daemon.controller.reports) == {1, 2}
    assert site.story(1).count("its report can't be learnt from: OverflowError: too large") == 1


def test_a_prediction(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    two_jobs(site)
    site.slurm.runs(1, "n1")
    site.epoch()
    monkeypatch.setattr(JobPlanner, "predict", lambda *_: 1 / 0)
    site.report(1)
    site.tick()
    assert site.daemon.controller.has_reported(1, 0)


def test_heartbeats_follow_completed_epochs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that decides nothing any more must not put off new jobs for ever."""
    site.slurm.submit(1)
    site.epoch()
    beat = site.folder / "heartbeat"
    for _ in range(4):
        site.tick(20)
    assert int(beat.read_text().split()[0]) == START_S + 80
    monkeypatch.setattr(site.daemon.observer, "snapshot", lambda *_: 1 / 0)
    for _ in range(12):
        with pytest.raises(ZeroDivisionError):
            site.epoch(60)
        site.tick(1)
    assert int(beat.read_text().split()[0]) <= START_S + site.daemon.grace_s
