"""Forecasts of starts from an epoch to the database: the rows of a look, the thread, what it learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Action, Cell, Decision, Directive, Job, JobState, Plan, Shape
from synergy_core.usage import PastRun, Usage

from synergyd.control.state.time_view import Reservation
from synergyd.daemon import start_keeper
from synergyd.daemon.queue_look import QueueLook, name_of_program, queue_of
from synergyd.daemon.start_keeper import StartKeeper
from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.rows import JobRow, PartitionRow, SlurmNodeRow
from synergyd.start_times.records import Amounts, PendingJob
from synergyd.store.store import Store, open_store
from synergyd.views.explain import collect as explain
from synergyd.views.status import collect as status
from tests.unit.slurm.fake_slurm import row

NOW = 1_000_000.0


def waits(job_id: int, gpus: int = 4, **changes: object) -> JobRow:
    told: dict[str, object] = {
        "state": "PENDING",
        "node_names": (),
        "start_s": None,
        "num_nodes": 1,
        "num_cpus": 8,
        "tres_per_node": f"gres:gpu:{gpus}",
        "submit_s": NOW - 100,
        "eligible_s": NOW - 100,
        "time_limit_s": 3600.0,
        "priority": 10,
        "reason": "Resources",
        "user": "joao",
        "partition": "main",
    }
    return row(job_id, **(told | changes))


def runs(job_id: int, nodes: tuple[str, ...] = ("n1",), gpus: int = 4, **changes: object) -> JobRow:
    told: dict[str, object] = {
        "state": "RUNNING",
        "node_names": nodes,
        "start_s": NOW - 600,
        "end_s": NOW + 3000,
        "num_nodes": len(nodes),
        "reason": "None",
    }
    return waits(job_id, gpus, **(told | changes))


def look(*rows: JobRow, at_s: float = NOW, used: int = 4, **changes: object) -> QueueLook:
    nodes = (SlurmNodeRow("n1", "mixed", "gpu:a100:4", f"gpu:a100:{used}", (), ("main",), "", cpus=64, cpus_alloc=8),)
    told: dict[str, object] = {
        "at_s": at_s,
        "rows": rows,
        "nodes": nodes,
        "partitions": {"main": PartitionRow(name="main")},
    }
    return QueueLook(**(told | changes))  # type: ignore[arg-type]


def only(of: QueueLook) -> PendingJob:
    (job,) = queue_of(of, {}).pending
    return job


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/s.db", create=True) as opened:
        yield opened


class Kept:
    """A keeper whose thread has stopped: the tests take its looks themselves."""

    def __init__(self, store: Store, *past: PastRun, accounts: bool = True) -> None:
        self.monotonic_s, self.store = 0.0, store

        def past_runs(_from_s: float, _to_s: float) -> tuple[PastRun, ...]:
            if not accounts:
                raise SlurmError("sacct", "storage is disabled", transient=False)
            return past

        self.keeper = StartKeeper(lambda: store, past_runs, lambda: self.monotonic_s)
        self.keeper.close()

    def take(self, of: QueueLook) -> None:
        self.monotonic_s += 1000.0
        self.keeper.take(self.store, of)


def test_a_plain_job_is_explained(store: Store) -> None:
    Kept(store).take(look(runs(7), waits(8)))
    told = explain(store, 8).expected
    assert told is not None and told.start is not None and told.end is not None
    assert NOW < told.start.low_s < told.start.high_s <= NOW + 3000
    assert told.why.startswith("Waits for 4 GPUs on 1 node in partition main: 0 of the 4 there are free. In about ")
    assert "job 7 should have freed 4 GPUs." in told.why
    with pytest.raises(UsageError):
        explain(store, 9)


def test_status_lists_what_waits(store: Store) -> None:
    from synergyd.store.records import EpochRecord

    store.save_epoch(EpochRecord(NOW, 0.1, True))
    Kept(store).take(look(runs(7), waits(9, priority=1), waits(8)))
    assert [job.job_id for job in status(store).waiting] == [8, 9]
    assert [job.job_id for job in status(store, 9).waiting] == [9]
    with pytest.raises(UsageError):
        status(store, 7)


def test_lengths_come_from_slurms_accounts(store: Store) -> None:
    """Job 7 has run for 600 s, and all its like have ended after 700 to 731 s."""
    past = [PastRun(i, "joao", "", 0.0, 700.0 + i, 4, name=f"train{i}", limit_s=3600.0) for i in range(32)]
    Kept(store, *past).take(look(runs(7, name="train99"), waits(8)))
    told = explain(store, 8).expected
    assert told is not None and told.start is not None
    assert NOW + 90 < told.start.middle_s < NOW + 140


def test_parts_of_jobs_tell_no_length(store: Store) -> None:
    past = [PastRun(i, "joao", "", 0.0, 700.0, 4, state="REQUEUED", name="train", limit_s=3600.0) for i in range(32)]
    Kept(store, *past).take(look(runs(7, name="train"), waits(8)))
    told = explain(store, 8).expected
    assert told is not None and told.start is not None
    assert told.start.high_s > NOW + 1000


def test_without_accounts_the_kept_gpu_hours_tell(store: Store) -> None:
    parts = [Usage(job_id=i, from_s=NOW - 9000 + i, to_s=NOW - 8300 + i, start_s=NOW - 9000 + i, is_open=False, user="joao",
                   account="", gpus=4, asked_gpus=4, state="COMPLETED") for i in range(32)]  # fmt: skip
    store.put_usage(parts)
    Kept(store, accounts=False).take(look(runs(7), waits(8)))
    told = explain(store, 8).expected
    assert told is not None and told.start is not None
    assert NOW + 90 < told.start.middle_s < NOW + 110


def test_ends_that_looks_show_are_learnt(store: Store) -> None:
    kept = Kept(store)
    for number in range(20):
        job = 100 + number
        kept.take(look(runs(job, name="a1", start_s=NOW - 300), at_s=NOW))
        kept.take(look(at_s=NOW + 60))
    kept.take(look(runs(200, name="a2", start_s=NOW - 100), waits(8)))
    told = explain(store, 8).expected
    assert told is not None and told.start is not None
    assert told.start.middle_s == NOW + 230  # as long as from their start to the middle between two looks, less 100 s


def test_how_long_nodes_stay_empty_is_learnt(store: Store) -> None:
    """A job ends, and 20 s later the next one starts that had waited for its node."""
    kept = Kept(store)
    for number in range(10):
        first, second = 100 + 2 * number, 101 + 2 * number
        kept.take(look(runs(first), waits(second)))
        ending = runs(first, state="COMPLETING", end_s=NOW + 30)
        kept.take(look(ending, runs(second, start_s=NOW + 50), at_s=NOW + 60))
    assert kept.keeper._forecaster.turnaround_s == 20.0


def test_outcomes_survive_the_daemon(store: Store) -> None:
    kept = Kept(store)
    for number in range(12):
        job = 100 + number
        kept.take(look(runs(7), waits(job)))
        kept.take(look(runs(job, start_s=NOW + 2500), at_s=NOW + 2560))
    before = store.expected()
    assert before is not None
    kinds = before.errors["starts"]
    assert isinstance(kinds, list) and [len(kind[0]) for kind in kinds] == [0, 12, 0, 0]
    Kept(store).take(look(runs(7), waits(8)))
    after = store.expected()
    assert after is not None and after.errors["starts"] == before.errors["starts"]


def test_a_forecast_takes_a_bounded_share_of_the_time(store: Store) -> None:
    kept = Kept(store)
    kept.take(look(runs(7), waits(8)))
    kept.keeper._rest_until = kept.monotonic_s + 5000
    kept.take(look(runs(7), waits(8), waits(9)))
    assert [job.job_id for job in (store.expected() or pytest.fail()).jobs] == [8, 7]


def test_a_queue_without_end_is_forecast_from_its_begin(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_keeper, "MOST", 2)
    Kept(store).take(look(runs(7), waits(8), waits(9), waits(10), waits(11, priority=99)))
    assert [job.job_id for job in (store.expected() or pytest.fail()).jobs] == [11, 8, 7]


def test_held_jobs_have_a_reason_and_no_time(store: Store) -> None:
    Kept(store).take(look(waits(8, reason="JobHeldUser", priority=0), used=0))
    told = explain(store, 8).expected
    assert told is not None and told.start is None
    assert told.why == "It is held by its user: `scontrol release` lets it run."


def test_needs_are_read_by_node() -> None:
    job = only(look(waits(8, gpus=2, num_nodes=3, num_cpus=12, features="ib", time_limit_s=None), partitions={
        "main": PartitionRow(name="main", max_time_s=7200.0)}))  # fmt: skip
    assert (job.nodes, job.need, job.features, job.program.limit_s) == (3, Amounts(2, 4), "ib", 7200.0)
    assert only(look(waits(8, array=True, array_job_id=8, array_task="1-9:2,20%2"))).tasks == 6
    assert only(look(waits(8, dependency="afterok:5(unfulfilled),afterany:6"))).after == (5, 6)


@pytest.mark.parametrize(
    ("reason", "cap"),
    [
        ("QOSMaxGRESPerUser", ("user", "joao", "gpus")),
        ("QOSMaxJobsPerUserLimit", ("user", "joao", "jobs")),
        ("AssocGrpGRES", ("account", "chem", "gpus")),
        ("QOSGrpCpuLimit", ("qos", "high", "cpus")),
        ("JobArrayTaskLimit", ("array", "5", "jobs")),
        ("Resources", None),
    ],
)
def test_limits_that_are_free_again(reason: str, cap: tuple[str, str, str] | None) -> None:
    held = runs(7, account="chem", qos="high", array_job_id=5)
    of = queue_of(look(held, waits(8, reason=reason, account="chem", qos="high", array_job_id=5)), {})
    assert of.pending[0].cap == cap
    assert of.running[0].caps == (frozenset([cap]) if cap else frozenset())


def test_a_budget_that_is_used_up_lets_nobody_tell() -> None:
    of = queue_of(look(waits(8, reason="AssocGrpGRESMinutes")), {})
    assert [job.job_id for job in of.held] == [8] and not of.pending


def job_of(row: JobRow, **changes: object) -> Job:
    shape = Shape("a100", 1, 4)
    told = Job(
        job_id=row.job_id, name="", user="joao", uid=1, partition="main", state=JobState.PENDING, reason="", submit_s=NOW - 100,
        start_s=None, begin_s=None, restarts=0, shape=shape, asked=shape, directive=Directive(min_gpus=2),
    )  # fmt: skip
    return replace(told, **changes)  # type: ignore[arg-type]


def test_synergys_own_plans_count() -> None:
    """Job 8 starts on 2 GPUs as was decided, though Slurm says that it may not yet; job 7 gives n2 back."""
    parked = waits(8, eligible_s=NOW + 9999, reason="BeginTime")
    cell = Cell(Shape("a100", 1, 2), Plan(dp=2, global_batch=2), 1.0, 1.0, 1.0, 1.0, 1)
    starts = Decision(8, Action.START, cell, ("n1",), ())
    shrinks = Decision(7, Action.RESIZE, cell, ("n1",), ())
    of = look(runs(7, ("n1", "n2")), parked, decided={8: job_of(parked)}, decisions={8: starts, 7: shrinks})
    queue = queue_of(of, {})
    first = queue.pending[0]
    assert (first.need.gpus, first.planned_s, first.may_start_s) == (2, NOW + 10, 0.0)
    assert [(job.nodes, job.freed_s) for job in queue.running] == [(("n1",), None), (("n2",), NOW + 60)]
    waiting = queue_of(replace(of, decisions={}), {}).pending[0]
    assert (waiting.need.gpus, waiting.may_start_s) == (2, NOW)


@pytest.mark.parametrize(
    ("name", "stem"), [("run-12", "run"), ("llama-7b", "llama-7b"), ("sweep3_1", "sweep3"), ("42", "42"), ("", "")]
)
def test_runs_of_one_program_differ_by_a_number_at_the_end(name: str, stem: str) -> None:
    assert name_of_program(name) == stem


def test_reservations_close_nodes() -> None:
    bars = Reservation("maint", NOW + 10, NOW + 20, frozenset(["n1"]))
    assert queue_of(look(reservations=(bars,)), {}).nodes[0].closed == ((NOW + 10, NOW + 20, "maint"),)
