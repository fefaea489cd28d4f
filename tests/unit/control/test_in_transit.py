"""A job in mid-resize keeps what it was promised, whatever state Slurm shows it in."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.reasons import text_reason
from synergy_core.records import Action, Cluster, Decision, Job, JobState, Shape

from synergyd.control.in_transit import with_changes_done
from synergyd.control.resize.gpus_free import gpus_free
from synergyd.settings import Settings
from tests.unit.scheduler.builders import cells, job, node, snapshot
from tests.unit.scheduler.epochs import decide

GOOD = cells(1.0, 1.9, 3.6)
SHRINK = Decision(1, Action.RESIZE, GOOD[1], ("n0",), text_reason(""))
SHRINK_SHAPE = GOOD[1].shape
RUNS = job(1, nodes=("n0",), gpus=4)


@pytest.mark.parametrize(
    "shown",
    [
        RUNS,
        replace(RUNS, state=JobState.COMPLETING),
        job(1, held=True, reason="JobHeldAdmin"),
        job(1, reason="BeginTime"),
    ],
)
def test_others_get_only_what_it_gives_up(shown: Job) -> None:
    true = snapshot([node("n0")], [shown, job(2)])
    found = {d.job_id: d for d in decide(with_changes_done(true, {1: SHRINK}), Settings(), {1: GOOD, 2: GOOD}, {})}
    assert found[1].action is Action.KEEP and found[1].cell == GOOD[1] and "being carried out" in found[1].why
    assert (found[2].action, found[2].cell, found[2].node_names) == (Action.START, GOOD[1], ("n0",))
    # Acted on only once the GPUs are free in truth.
    assert gpus_free(found[2], true) == (not shown.node_names)


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.COMPLETING])
def test_a_job_that_makes_way_waits_already(state: JobState) -> None:
    true = snapshot([node("n0")], [replace(RUNS, state=state), job(2)])
    seen = with_changes_done(true, {1: Decision(1, Action.WAIT, None, (), text_reason(""))})
    assert [(j.state, j.node_names) for j in seen.jobs] == [(JobState.PENDING, ())] * 2
    assert seen.cluster.nodes[0].gpus_used == 0 and true.cluster.nodes[0].gpus_used == 4


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.COMPLETING])
def test_a_node_that_it_has_just_left_stays_its_own(state: JobState) -> None:
    """Jobs are read before nodes: by then the node may count the GPUs of a job that is requeued no more."""
    grow = Decision(
        1, Action.RESIZE, replace(GOOD[2], shape=Shape(GOOD[1].shape.gpu_type, 2, 4)), ("n0", "n1"), text_reason("")
    )
    grown = replace(RUNS, state=state)
    nodes = [replace(node(name), gpus_used=0) for name in ("n0", "n1", "n2")]
    seen = with_changes_done(replace(snapshot(nodes, [grown, job(2)]), cluster=Cluster(tuple(nodes))), {1: grow})
    assert [n.gpus_used for n in seen.cluster.nodes] == [4, 4, 0]


def test_without_it_the_held_job_would_lose_its_gpus() -> None:
    true = snapshot([node("n0")], [job(1, held=True), job(2)])
    assert decide(true, Settings(), {1: GOOD, 2: GOOD}, {})[1].cell == GOOD[2]


def test_ended_jobs_and_waits_change_nothing() -> None:
    true = snapshot([node("n0")], [job(1, state=JobState.DONE), job(2)])
    assert with_changes_done(true, {1: SHRINK, 2: Decision(2, Action.WAIT, None, (), text_reason(""))}) == true


def test_a_job_that_shrinks_onto_another_node_waits_for_its_gpus() -> None:
    moved = replace(SHRINK, node_names=("n1",))
    other = job(2, nodes=("n1",), gpus=4)
    full = snapshot([node("n0"), node("n1")], [RUNS, other])
    assert gpus_free(SHRINK, full) and not gpus_free(moved, full)
    assert gpus_free(moved, snapshot([node("n0"), node("n1")], [RUNS, replace(other, shape=SHRINK_SHAPE)]))
