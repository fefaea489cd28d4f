"""Reading jobs' scripts and node lists: bounded in time, and never given up for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synergyd.daemon.job_registry import AGAIN_S, EXCLUSIONS_EPOCHS, READING_S, JobRegistry
from synergyd.slurm.client import SlurmError
from tests.unit.slurm.fake_slurm import FakeSlurm, row


class Scripts(FakeSlurm):
    """Each script takes `seconds` of the clock to come; `problem` is raised instead. `asked`: whose node lists were read."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int]] = []

    seconds = 0.0
    problem: SlurmError | None = None
    read = 0

    def node_lists(self, job_ids: Sequence[int]) -> Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]:
        self.asked.append(sorted(job_ids))
        return super().node_lists(job_ids)

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
    while len(registry.submitted) < 10:
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
    assert registry.learn(rows, {}) == set() and registry.submitted == {}
    slurm.problem = None
    slurm.now_s += AGAIN_S - 1
    registry.learn(rows, {})
    assert slurm.read == 1  # not at every epoch
    slurm.now_s += 1
    registry.learn(rows, {})
    assert registry.submitted[1].directive is not None and registry.plain == set()


def test_a_user_s_own_nodes_are_told_from_those_that_synergy_wrote() -> None:
    slurm = Scripts()
    slurm.comments = {
        3: "synergy:1 | asked=a100,1,2 cpus=8 nodes=n5 report=ctl:7321",
        5: "synergy:1 | asked=a100,1,2 cpus=8",
    }
    registry = JobRegistry(slurm, 30.0, clock=lambda: slurm.now_s)
    registry.learn([row(1, req_nodes=("n2",)), row(3, req_nodes=("n4", "n5")), row(5, req_nodes=("n4",))], {})
    assert {i: registry.submitted[i].nodelist for i in (1, 3, 5)} == {1: ("n2",), 3: ("n5",), 5: ()}


def test_cpus_of_a_job_that_counts_them_by_gpu_are_not_those_that_it_holds() -> None:
    slurm = Scripts()
    registry = JobRegistry(slurm, 30.0, clock=lambda: slurm.now_s)
    registry.learn([row(1, cpus_per_gpu=8, num_cpus=64), row(3, num_cpus=64)], {})
    assert (registry.submitted[1].cpus_per_node, registry.submitted[3].cpus_per_node) == (1, 64)


def test_excluded_nodes_are_read_once_and_now_and_then_again() -> None:
    slurm = Scripts()
    rows = [row(job_id) for job_id in (1, 2, 3)]
    slurm.jobs, slurm.excluded = {r.job_id: r for r in rows}, {1: ("n1",), 2: ("n2",)}
    registry = JobRegistry(slurm, 30.0, clock=lambda: slurm.now_s)
    registry.learn(rows, {})
    assert {i: known.excluded for i, known in registry.submitted.items()} == {1: ("n1",), 3: ()}
    slurm.excluded[3] = ("n9",)
    for _ in range(EXCLUSIONS_EPOCHS):
        registry.learn(rows, {})
    assert {i: known.excluded for i, known in registry.submitted.items()} == {1: ("n1",), 3: ("n9",)}
    assert slurm.asked == [[1, 3]] * 2


def test_only_stamped_jobs_outside_that_wait_for_the_grace_are_let_go() -> None:
    slurm = Scripts()
    registry = JobRegistry(slurm, 30.0, clock=lambda: slurm.now_s)
    slurm.comments = {i: "synergy:1 max_gpus=8" for i in (1, 2, 3, 5)} | {6: "synergy:1 max_gpus=8 | begin=1020"}
    waiting = {"submit_s": 995.0, "eligible_s": 1025.0}
    rows = [
        row(1, **waiting),
        row(2, **waiting),  # managed
        row(3, submit_s=995.0, eligible_s=2000.0),  # its user's own start time
        row(4, **waiting),  # without a stamp
        row(5, submit_s=995.0, eligible_s=990.0),  # may start
        row(6, **waiting),  # its user's own start time, within the grace
    ]
    assert registry.parked_outside(rows, {2}, 1000.0) == (1,)
