"""What an epoch's summary keeps for charts, and plain Slurm's allocation of the same queue."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from synergy_core.job_report import Report
from synergy_core.reasons import text_reason
from synergy_core.records import Action, Cell, Cluster, Decision, Job, JobState, Node, Plan, Shape, Snapshot

from synergyd.control.queue_history import WHOLE_S, QueueHistory, decided_gpus, plain_gpus


def shape(nodes: int, each: int, kind: str = "a100") -> Shape:
    return Shape(kind, nodes, each)


def job(job_id: int, asked: Shape, *nodes: str, runs: Shape | None = None) -> Job:
    state = JobState.RUNNING if runs else JobState.PENDING
    return Job(
        job_id, f"j{job_id}", "ann", 1, "p", state, "", 0.0, None, None, 0, runs or asked, asked, nodes, account="a"
    )


def nodes(count: int, gpus: int = 4, used: int = 0) -> tuple[Node, ...]:
    return tuple(Node(f"n{i}", "a100", gpus, used) for i in range(count))


def cell(gpus: int) -> Cell:
    return Cell(shape(1, gpus), Plan(dp=gpus, global_batch=8), 1.0, 1.0, 1.0, 1.0, 1)


def seen(jobs: tuple[Job, ...], cluster: Cluster | None = None, at_s: float = 0.0) -> Snapshot:
    return Snapshot(at_s, cluster or Cluster(nodes(2)), jobs)


def test_the_decided_allocation_in_gpus_of_the_size_asked_for() -> None:
    jobs = (job(1, shape(1, 4)), job(2, shape(1, 2)), job(3, shape(1, 1)))
    decisions = (
        Decision(1, Action.RESIZE, cell(8), (), text_reason(""), 1.5),
        Decision(2, Action.START, cell(3), (), text_reason("")),  # can't be predicted: the GPUs that it asked for
        Decision(3, Action.WAIT, None, (), text_reason("")),
        Decision(9, Action.KEEP, cell(4), (), text_reason(""), 2.0),  # not in the queue any more
    )
    assert decided_gpus(jobs, decisions) == 4 * 1.5 + 2


def test_plain_slurm_serves_in_order_with_backfill_at_the_size_asked_for() -> None:
    first, large, small = job(1, shape(1, 3)), job(2, shape(2, 4)), job(3, shape(1, 4))
    assert plain_gpus(seen((small, large, first))) == 3 + 4  # the large one has no room beside the first
    assert plain_gpus(seen((large, small))) == 8
    assert plain_gpus(seen((replace(first, held=True), large))) == 8
    assert plain_gpus(seen((job(1, shape(1, 8)),))) == 0  # no node has so many
    assert plain_gpus(seen((job(1, shape(1, 1, "h100")),))) == 0
    assert plain_gpus(seen((job(1, shape(2, 2, "")),))) == 4  # any type


def test_plain_slurm_has_the_gpus_of_synergys_jobs_and_no_others() -> None:
    grown = job(1, shape(1, 1), "n0", "n1", runs=shape(2, 3))
    cluster = Cluster(nodes(2, used=4))  # three are the job's, one another's, on each
    waiting = tuple(job(i, shape(1, 1)) for i in range(2, 12))
    assert plain_gpus(seen((grown, *waiting), cluster)) == 6
    down = Cluster(tuple(replace(n, up=False) for n in cluster.nodes))
    assert plain_gpus(seen((grown, *waiting), down)) == 0


def test_only_what_changed_is_written_until_the_hour_is_over() -> None:
    history = QueueHistory()
    waits, runs = job(1, shape(1, 2)), job(1, shape(1, 2), "n0", runs=shape(1, 2))
    first = history.epoch(seen((waits, job(2, shape(1, 1)))), (), {}, 0.0)
    assert first["whole"] and [row["job"] for row in first["job_changes"]] == [1, 2] and len(first["node_changes"]) == 2
    assert set(history.epoch(seen((waits, job(2, shape(1, 1)))), (), {}, 60.0)) == {"goodput_gpus", "plain_gpus"}
    third = history.epoch(seen((runs,), Cluster(nodes(1, used=2))), (), {}, 120.0)
    assert third["jobs_gone"] == [2] and third["nodes_gone"] == ["n1 a100"]
    assert [(row["job"], row["gpus"], row["nodes"]) for row in third["job_changes"]] == [(1, 2, ["n0"])]
    again = history.epoch(seen((runs,), Cluster(nodes(1, used=2))), (), {}, WHOLE_S)
    assert again["whole"] and len(again["job_changes"]) == len(again["node_changes"]) == 1
    assert history.epoch(seen((runs,)), (), {}, 0.0)["whole"]  # the clock was set back


def test_a_jobs_points_grow_rarer_with_its_age() -> None:
    history, found = QueueHistory(), []
    waits = (job(1, shape(1, 2)),)
    for n in range(24 * 60):
        summary = history.epoch(seen(waits), (), {1: Report(1, 0, n, loss=1.0)}, 60.0 * n)
        found += [60.0 * n for _ in summary.get("points", ())]
    gaps = [b - a for a, b in pairwise(found)]
    assert gaps[:30] == [60.0] * 30 and max(gaps) <= 600 and 200 < len(found) < 600
    assert "points" in history.epoch(seen(waits), (), {1: Report(1, 0, 2000)}, 1e6)
    assert "points" not in history.epoch(seen(waits), (), {1: Report(1, 0, 2000)}, 1e6 + 900)  # no new step
    assert history.epoch(seen(waits), (), {1: Report(1, 1, 3)}, 1e6 + 901)["points"] == [
        [1, 3, None, None, None, None, 1]
    ]
