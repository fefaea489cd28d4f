"""Reading jobs' scripts: bounded in time, and never given up for ever."""

from __future__ import annotations

from synergyd.daemon.job_registry import AGAIN_S, READING_S, JobRegistry
from synergyd.slurm.client import SlurmError
from tests.unit.slurm.fake_slurm import FakeSlurm, row


class Scripts(FakeSlurm):
    """Each script takes `seconds` of the clock to come; `problem` is raised instead."""

    seconds = 0.0
    problem: SlurmError | None = None
    read = 0

    def batch_script(self, job_id: int) -> str | None:
        self.read += 1
        self.now_s += self.seconds
        if self.problem is not None:
            raise self.problem
        return "#SYNERGY max_gpus=8\n" if job_id % 2 else "true\n"


def test_slow_scripts_are_spread_over_epochs() -> None:
    slurm = Scripts()
    slurm.seconds = 3.0
    registry = JobRegistry(slurm, 30.0, clock=lambda: slurm.now_s)
    rows = [row(job_id) for job_id in range(1, 21)]
    epochs = 0
    while len(registry.known) < 10:
        began_s = slurm.now_s
        registry.learn(rows, {})
        epochs += 1
        assert slurm.now_s - began_s <= READING_S + slurm.seconds
    assert (slurm.read, len(registry.plain)) == (20, 10) and epochs == 5


def test_an_unknown_error_makes_no_job_plain_for_ever() -> None:
    slurm = Scripts()
    slurm.problem = SlurmError("scontrol write batch_script", "what nobody has seen before", transient=False)
    registry = JobRegistry(slurm, 30.0, clock=lambda: slurm.now_s)
    rows = [row(1)]
    assert registry.learn(rows, {}) == set() and registry.known == {}
    slurm.problem = None
    slurm.now_s += AGAIN_S - 1
    registry.learn(rows, {})
    assert slurm.read == 1  # not at every epoch
    slurm.now_s += 1
    registry.learn(rows, {})
    assert registry.known[1].directive is not None and registry.plain == set()
