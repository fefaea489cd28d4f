"""Decisions of whole epochs: who gets what, where, why; what is never touched."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.records import Action, Decision, Directive, Job, JobState, Shape, Snapshot

from synergyd.control.resize.gpus_free import gpus_free
from synergyd.scheduler.problem.records import Progress
from synergyd.settings import Settings
from synergyd.slurm.parsed.crowded import limit_to_requested_size
from tests.unit.scheduler.builders import NOW, Cells, cell, cells, job, node, snapshot
from tests.unit.scheduler.epochs import decide

GOOD = cells(1.0, 1.9, 3.6)  # 1, 2, 4 GPUs
SETTINGS = Settings(restart_cost_s=60.0, max_weight=1000.0, fairness_bound=0.0)


def run(snap: Snapshot, offers: dict[int, Cells], settings: Settings = SETTINGS, **more: object) -> dict[int, Decision]:
    found = decide(snap, settings, offers, {}, **more)  # type: ignore[arg-type]
    assert [d.job_id for d in found] == [j.job_id for j in snap.jobs]
    return {d.job_id: d for d in found}


def test_a_job_alone_gets_its_best_cell_and_its_nodes() -> None:
    found = run(snapshot([node("n0")], [job(1)]), {1: GOOD})[1]
    assert (found.action, found.cell, found.node_names) == (Action.START, GOOD[2], ("n0",))
    assert found.relative_goodput == 1.0
    assert "4 a100 GPUs on one node" in found.why and "3.6 sequences/s" in found.why
    assert [a.cell.shape.gpus for a in found.alternatives] == [2, 1]


def test_a_waiting_job_makes_a_running_one_shrink_in_place_and_both_say_why() -> None:
    snap = snapshot([node("n0")], [job(1, nodes=("n0",), gpus=4), job(2)])
    found = run(snap, {1: GOOD, 2: GOOD})
    assert (found[1].action, found[1].cell, found[1].node_names) == (Action.RESIZE, GOOD[1], ("n0",))
    assert (found[2].action, found[2].cell, found[2].node_names) == (Action.START, GOOD[1], ("n0",))
    assert "Shrinks from 4 a100 GPUs" in found[1].why and "job 2 (starts on 2)" in found[1].why
    assert "-47 %" in found[1].why
    assert "would take 2 GPUs from jobs that gain more" in found[2].why
    assert found[2].relative_goodput == pytest.approx(1.9 / 3.6)
    assert gpus_free(found[1], snap) and not gpus_free(found[2], snap)


def test_growth_is_in_place_and_names_its_payback() -> None:
    snap = snapshot([node("n0"), node("n1")], [job(1, nodes=("n1",), gpus=2)])
    found = run(snap, {1: GOOD})[1]
    assert (found.action, found.cell, found.node_names) == (Action.RESIZE, GOOD[2], ("n1",))
    assert "+89 %" in found.why and "a restart of this job costs 60 s (expected), paid back in about 67 s" in found.why
    assert gpus_free(found, snap)


def test_whole_node_growth_takes_a_superset_of_the_present_nodes() -> None:
    wide = (cell(4.0, 1, 4), cell(7.5, 2, 4), cell(14.0, 4, 4))
    nodes = [node(f"n{i}") for i in range(6)]
    found = run(snapshot(nodes, [job(1, nodes=("n2", "n5"), gpus=4)]), {1: wide})[1]
    assert found.cell == wide[2] and {"n2", "n5"} < set(found.node_names)
    shrunk = run(snapshot(nodes[:4], [job(1, nodes=("n0", "n1", "n2", "n3"), gpus=4), job(2)]), {1: wide, 2: wide})
    assert set(shrunk[1].node_names) == {"n0", "n1"} and set(shrunk[2].node_names) == {"n2", "n3"}


def test_no_resize_for_less_than_its_restart() -> None:
    flat = cells(1.0, 1.5, 1.52)
    snap = snapshot([node("n0")], [job(1, nodes=("n0",), gpus=2, submit_s=NOW - 600)])
    kept = run(snap, {1: flat})[1]
    assert (kept.action, kept.cell, kept.node_names) == (Action.KEEP, flat[1], ("n0",))
    assert "gain of +1 % does not repay a restart at this job's age, which costs 60 s (expected)" in kept.why
    assert run(snap, {1: flat}, replace(SETTINGS, restart_cost_s=1.0))[1].action is Action.RESIZE
    # The same job after many restarts: its age is less than they cost.
    worn = snapshot([node("n0")], [job(1, nodes=("n0",), gpus=2, submit_s=NOW - 600, restarts=10)])
    assert run(worn, {1: GOOD})[1].action is Action.KEEP
    assert run(worn, {1: GOOD}, ages_s={1: 50_000.0})[1].action is Action.RESIZE


def test_plan_change_at_the_same_shape_only_when_it_pays() -> None:
    now, slightly, much = cell(2.0, gpus=4, tp=4), cell(2.001, gpus=4, tp=2), cell(3.0, gpus=4, tp=1)
    snap = snapshot([node("n0")], [job(1, nodes=("n0",), gpus=4)])
    assert run(snap, {1: (now, slightly)}, current_plans={1: now.plan})[1].action is Action.KEEP
    found = run(snap, {1: (now, slightly, much)}, current_plans={1: now.plan})[1]
    assert (found.action, found.cell, found.node_names) == (Action.RESIZE, much, ("n0",))
    assert "changes its plan from tp 4" in found.why
    # Not said what it runs with: the best of that shape, so nothing to change.
    assert run(snap, {1: (now, slightly, much)})[1].action is Action.KEEP


def test_present_plan_that_is_no_cell_keeps_its_own_name() -> None:
    snap = snapshot([node("n0")], [job(1, nodes=("n0",), gpus=4)])
    odd = replace(GOOD[2].plan, global_batch=48, micro_batch=3)
    found = run(snap, {1: GOOD}, current_plans={1: odd})[1]
    assert found.action is Action.KEEP and found.cell is not None and found.cell.plan == odd


def test_present_shape_without_a_cell_is_interpolated() -> None:
    snap = snapshot([node("n0", 3)], [job(1, nodes=("n0",), gpus=3)])
    found = run(snap, {1: GOOD})[1]
    assert found.action is Action.KEEP and found.cell is not None
    assert found.cell.shape == Shape("a100", 1, 3) and found.cell.goodput == pytest.approx((1.9 + 3.6) / 2)


def test_others_gpus_and_down_nodes_are_gone() -> None:
    nodes = [node("n0", used=3), node("n1", up=False), node("n2", used=4)]
    found = run(snapshot(nodes, [job(1)]), {1: GOOD})[1]
    assert (found.cell, found.node_names) == (GOOD[0], ("n0",))
    none = run(snapshot(nodes[1:], [job(1)]), {1: GOOD})[1]
    assert none.action is Action.WAIT and "only 0 a100 GPUs can be handed out now" in none.why


def test_a_job_on_a_node_that_went_down_may_stay_but_not_grow_there() -> None:
    snap = snapshot([node("n0", up=False), node("n1")], [job(1, nodes=("n0",), gpus=4)])
    assert run(snap, {1: GOOD})[1].action is Action.KEEP
    grow = run(snapshot([node("n0", up=False), node("n1")], [job(1, nodes=("n0",), gpus=2)]), {1: GOOD})[1]
    assert (grow.action, grow.node_names) == (Action.RESIZE, ("n1",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"directive_error": "line 3: tp: not a number"}, "does not touch it (line 3: tp: not a number)"),
        ({"directive": None}, "has no directive"),
        ({"held": True}, "held by its user or an admin"),
        ({"state": JobState.COMPLETING}, "ending"),
        ({"state": JobState.SUSPENDED}, "suspended"),
        ({"fixed": "its script does not checkpoint"}, "its script does not checkpoint"),
        ({"paused": True}, "paused"),
        ({"directive": Directive(resize=False)}, "resize=no"),
    ],
)
def test_who_is_not_touched_keeps_its_gpus(changes: dict[str, Any], words: str) -> None:
    snap = snapshot([node("n0")], [job(1, nodes=("n0",), gpus=2, **changes), job(2)])
    found = run(snap, {1: GOOD, 2: GOOD})
    assert found[1].action is Action.KEEP and words in found[1].why
    assert (found[1].node_names, found[1].cell, found[1].alternatives) == (("n0",), GOOD[1], ())
    assert found[1].relative_goodput == pytest.approx(1.9 / 3.6)
    assert found[2].cell == GOOD[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"directive_error": "bad"}, "does not touch it (bad)"),
        ({"held": True}, "held"),
        ({"reason": "Dependency"}, "depends on"),
        ({"reason": "BeginTime", "begin_s": NOW + 90}, "another 90 s"),
        ({"directive": Directive(min_gpus=16)}, "min_gpus=16, and the cluster has 4"),
        ({"directive": Directive(gpu_types=("h100",))}, "of type h100, and the cluster has 0"),
        ({"partition": "elsewhere"}, "the cluster has 0 in partition elsewhere"),
    ],
)
def test_who_waits_says_why(changes: dict[str, Any], words: str) -> None:
    snap = snapshot([node("n0", partitions=("gpu",))], [job(1, **changes)])
    found = run(snap, {1: GOOD})[1]
    assert (found.action, found.cell, found.node_names) == (Action.WAIT, None, ()) and words in found.why


def test_requeued_job_whose_begin_time_has_come_starts() -> None:
    snap = snapshot([node("n0")], [job(1, reason="BeginTime", begin_s=NOW - 1)])
    assert run(snap, {1: GOOD})[1].action is Action.START


def test_no_cells_says_the_task_rooms_reason_and_stops_nobody_else() -> None:
    snap = snapshot(
        [node("n0"), node("n1", up=False)], [job(1), job(2), job(3, directive=Directive(min_gpus=8)), job(4)]
    )
    bad = (cell(float("nan"), gpus=1), cell(-1.0, gpus=2), cell(0.0, gpus=4))
    found = {d.job_id: d for d in decide(snap, SETTINGS, {2: GOOD, 3: GOOD, 4: bad}, {1: "needs 90 GiB a GPU"})}
    assert found[1].why == "Waits: needs 90 GiB a GPU." and found[1].action is Action.WAIT
    assert found[2].action is Action.START
    assert "only 4 of 8 are on nodes that are up" in found[3].why
    assert found[4].action is Action.WAIT and "no plan fits" in found[4].why
    runs = snapshot([node("n0")], [job(1, nodes=("n0",), gpus=4)])
    kept = {d.job_id: d for d in decide(runs, SETTINGS, {}, {1: "model unknown"})}[1]
    assert kept.action is Action.KEEP and kept.cell is None and "model unknown" in kept.why


def test_overload_names_who_has_the_gpus() -> None:
    snap = snapshot([node("n0", 2)], [job(i, directive=Directive(weight=3.0 - i)) for i in (0, 1, 2)])
    found = run(snap, {i: GOOD for i in range(3)})
    assert [found[i].action for i in range(3)] == [Action.START, Action.START, Action.WAIT]
    assert "all but 0 of the 2 a100 GPUs are with jobs whose weighted goodput gains more" in found[2].why
    assert "job 0 (starts on 1)" in found[2].why
    assert found[2].alternatives and all(a.why_not for a in found[2].alternatives)


def test_running_jobs_are_stopped_only_where_the_settings_say_so() -> None:
    heavy = job(2, directive=Directive(weight=100.0, min_gpus=4))
    snap = snapshot([node("n0")], [job(1, nodes=("n0",), gpus=4), heavy])
    never = {d.job_id: d for d in decide(snap, replace(SETTINGS, preemption=False), {1: GOOD, 2: GOOD}, {})}
    assert never[1].cell is not None and never[2].action is Action.WAIT
    assert "shrunk for others but never stopped" in never[2].why
    found = run(snap, {1: GOOD, 2: GOOD})
    assert (found[1].action, found[1].cell, found[1].node_names) == (Action.WAIT, None, ())
    assert found[1].why.startswith("Preempted: it gives back 4 a100 GPUs on one node")
    assert "they go to job 2 (starts on 4)" in found[1].why
    assert {name for name, _ in found[1].worth} >= {"waiting", "restart"}
    assert (found[2].action, found[2].node_names) == (Action.START, ("n0",))


def test_a_job_is_not_stopped_for_an_equal_one_nor_when_fixed_paused_or_young() -> None:
    equal = job(2, directive=Directive(min_gpus=4))
    stops = job(2, directive=Directive(weight=100.0, min_gpus=4))
    runs = job(1, nodes=("n0",), gpus=4, directive=Directive(min_gpus=4))
    for first, second, age_s in (
        (runs, equal, 1e6),
        (replace(runs, fixed="its agent has not reported yet"), stops, 1e6),
        (replace(runs, paused=True), stops, 1e6),
        (runs, stops, 0.0),
        (replace(runs, start_s=NOW - 200.0), stops, 1e6),
    ):
        snap = snapshot([node("n0")], [first, second])
        kept, waits = decide(snap, SETTINGS, {1: GOOD, 2: GOOD}, {}, ages_s={1: age_s, 2: 0.0})
        assert (kept.action, waits.action) == (Action.KEEP, Action.WAIT), (first, age_s)


def test_a_wide_job_is_not_stopped_for_two_small_ones() -> None:
    wide = job(1, nodes=("n0",), gpus=4, directive=Directive(min_gpus=4))
    small = [job(i, directive=Directive(max_gpus=1, weight=5.0)) for i in (2, 3, 4)]
    offers = dict.fromkeys(range(1, 5), GOOD)
    for count, action in ((1, Action.KEEP), (2, Action.WAIT), (3, Action.WAIT)):
        found = run(snapshot([node("n0")], [wide, *small[:count]]), offers)
        assert found[1].action is action, count
    # two 1-GPU jobs leave half of its 4 GPUs unused, and of 8 GPUs three quarters
    eight = job(1, nodes=("n0",), gpus=8, directive=Directive(min_gpus=8))
    found = run(snapshot([node("n0", 8)], [eight, *small]), {**offers, 1: cells(1.0, 1.9, 3.5, 6.5)})
    assert found[1].action is Action.KEEP and {found[i].action for i in (2, 3, 4)} == {Action.WAIT}


@pytest.mark.slow
def test_nobody_is_stopped_for_its_twin_or_loses_a_claim_that_the_other_then_has() -> None:
    """Two equal jobs that can't both run, over many epochs and with a bound on unfairness."""
    for bound in (0.0, 1.2):
        settings = replace(SETTINGS, fairness_bound=bound)
        runs, waits, switches = 1, 2, 0
        for epoch in range(60):
            now = NOW + 60.0 * epoch
            two = {
                i: replace(
                    job(i, nodes=("n0",) if i == runs else (), gpus=4, directive=Directive(min_gpus=4)),
                    submit_s=NOW - 5e3,
                )
                for i in (runs, waits)
            }
            snap = replace(snapshot([node("n0")], [two[1], two[2]]), time_s=now)
            told = {i: Progress(0.0, 1e5, 1e3) for i in two}
            found = {d.job_id: d for d in decide(snap, settings, {1: GOOD, 2: GOOD}, {}, progress=told)}
            if found[runs].action is Action.WAIT:
                runs, waits, switches = waits, runs, switches + 1
        assert switches == 0, bound


def test_fixed_job_that_waits_starts_at_exactly_its_shape_or_not_at_all() -> None:
    stiff = Directive(resize=False)
    two = run(snapshot([node("n0")], [job(1, asked=2, directive=stiff)]), {1: GOOD})[1]
    assert (two.action, two.cell) == (Action.START, GOOD[1])
    busy = run(snapshot([node("n0", used=3)], [job(1, asked=2, directive=stiff)]), {1: GOOD})[1]
    assert busy.action is Action.WAIT
    # Nothing is known of its model: it still runs as a plain job, its goodput said to be unknown.
    blind = run(snapshot([node("n0")], [job(1, asked=2, directive=stiff)]), {})[1]
    assert blind.action is Action.START and blind.cell is not None and blind.cell.shape == Shape("a100", 1, 2)
    assert blind.relative_goodput is None and "can't be predicted" in blind.why


def test_types_side_by_side() -> None:
    both = (*cells(1.0, 1.9, 3.6), *cells(3.0, 5.5, 10.0, kind="h100"))
    snap = snapshot([node("a"), node("h", kind="h100")], [job(1), job(2, directive=Directive(gpu_types=("a100",)))])
    found = run(snap, {1: both, 2: both})
    assert found[1].cell is not None and found[1].cell.shape.gpu_type == "h100" and found[1].node_names == ("h",)
    assert found[2].cell is not None and found[2].cell.shape.gpu_type == "a100" and found[2].node_names == ("a",)


def test_partition_bounds_the_nodes() -> None:
    nodes = [node("n0", partitions=("p",)), node("n1", partitions=("q",)), node("n2", partitions=("p", "q"))]
    snap = snapshot(nodes, [job(1, partition="p"), job(2, partition="q"), job(3, partition="q")])
    found = run(snap, {i: GOOD for i in (1, 2, 3)})
    assert found[1].node_names == ("n0",)
    assert {found[2].node_names, found[3].node_names} == {("n1",), ("n2",)}


def test_growth_bound_is_said() -> None:
    eight = cells(1.0, 1.9, 3.6, 7.0)
    snap = snapshot([node("n0", 8)], [job(1, nodes=("n0",), gpus=2)])
    found = run(snap, {1: eight}, replace(SETTINGS, max_growth=2.0))[1]
    assert found.cell == eight[2]
    assert found.alternatives[0].why_not == "it is more than 2 times the present GPUs, the bound of one epoch"


def test_fifo_serves_in_order_at_the_size_asked_for() -> None:
    fifo = replace(SETTINGS, policy="fifo")
    snap = snapshot([node("n0", 8)], [job(1, asked=4), job(2, asked=2), job(3, asked=4), job(4, asked=1)])
    found = run(snap, {i: GOOD for i in range(1, 5)}, fifo)
    assert [found[i].action for i in range(1, 5)] == [Action.START, Action.START, Action.WAIT, Action.WAIT]
    assert [found[i].cell for i in (1, 2)] == [GOOD[2], GOOD[1]]
    assert "first come, first served" in found[4].why
    kept = run(snapshot([node("n0", 8)], [job(1, nodes=("n0",), gpus=2)]), {1: GOOD}, fifo)
    assert kept[1].action is Action.KEEP


def test_unknown_policy_is_one_line() -> None:
    with pytest.raises(UsageError, match="no policy is called 'best'; one of: backfill, crius, dally, exact, fifo, "):
        decide(snapshot([node("n0")], []), Settings(policy="best"), {}, {})


def test_no_jobs_no_nodes() -> None:
    assert decide(snapshot([], []), SETTINGS, {}, {}) == ()
    assert run(snapshot([], [job(1)]), {1: GOOD})[1].action is Action.WAIT


@st.composite
def epochs(draw: st.DrawFn) -> tuple[Snapshot, dict[int, Cells]]:
    rnd = random.Random(draw(st.integers(0, 2**32)))
    nodes = [node(f"n{i}", 8, rnd.choice([0, 0, 0, 1, 5]), rnd.random() < 0.9) for i in range(rnd.randint(1, 5))]
    free = {n.name: n.gpus - n.gpus_used for n in nodes}
    jobs: list[Job] = []
    offers: dict[int, Cells] = {}
    for i in range(rnd.randint(0, 9)):
        power = rnd.uniform(0.3, 1)
        own = [cell(g**power, gpus=g) for g in (1, 2, 4, 8)] + [cell((8 * n) ** power, n, 8) for n in (2, 3)]
        offers[i] = tuple(c for c in own if rnd.random() < 0.8)
        shape = rnd.choice(own).shape
        room = [name for name, count in free.items() if count >= shape.gpus_per_node]
        changes: dict[str, Any] = rnd.choice([{}, {}, {}, {"paused": True}, {"directive": Directive(weight=2.0)}])
        if rnd.random() < 0.6 and len(room) >= shape.nodes:
            names = tuple(rnd.sample(room, shape.nodes))
            for name in names:
                free[name] -= shape.gpus_per_node
            changes = {**changes, "node_names": names, "shape": shape, "state": JobState.RUNNING, "start_s": NOW - 500}
        jobs.append(job(i, asked=rnd.choice([1, 2, 4, 8]), **changes))
    return snapshot(nodes, jobs), offers


@pytest.mark.slow
@hypothesis_settings(max_examples=80, deadline=None)
@given(epochs(), st.booleans())
def test_every_epoch_is_sound(epoch: tuple[Snapshot, dict[int, Cells]], stops: bool) -> None:
    snap, offers = epoch
    given_settings = replace(SETTINGS, preemption=stops)
    found = {d.job_id: d for d in decide(snap, given_settings, offers, {})}
    jobs = {j.job_id: j for j in snap.jobs}
    after: Counter[str] = Counter()
    for n in snap.cluster.nodes:
        after[n.name] = n.gpus_used - sum(j.shape.gpus_per_node for j in snap.jobs if n.name in j.node_names)
    up = {n.name for n in snap.cluster.nodes if n.up}
    for d in found.values():
        j = jobs[d.job_id]
        assert d.why.endswith((".", ")")) and "\n" not in d.why
        for alternative in d.alternatives:
            assert alternative.why_not and alternative.cell != d.cell
        for name in d.node_names:
            after[name] += d.cell.shape.gpus_per_node if d.cell else j.shape.gpus_per_node
        if j.state is JobState.RUNNING and d.action is Action.WAIT:
            assert stops and not d.node_names and not j.paused and d.why.startswith("Preempted: ")
        elif j.state is JobState.RUNNING:
            assert d.action in (Action.KEEP, Action.RESIZE) and d.node_names
            if d.action is Action.KEEP:
                assert d.node_names == j.node_names
            assert not (j.paused and d.action is Action.RESIZE)
        else:
            assert d.action in (Action.START, Action.WAIT)
        if d.action in (Action.START, Action.RESIZE):
            assert d.cell is not None and len(set(d.node_names)) == d.cell.shape.nodes and set(d.node_names) <= up
    for n in snap.cluster.nodes:
        assert after[n.name] <= n.gpus
    assert decide(snap, given_settings, offers, {}) == tuple(found.values())


@pytest.mark.slow
@hypothesis_settings(max_examples=40, deadline=None)
@given(epochs())
def test_a_decided_epoch_is_left_alone_by_the_next(epoch: tuple[Snapshot, dict[int, Cells]]) -> None:
    """Once carried out, the same cells decide no further change: no oscillation."""
    snap, offers = epoch
    first = run(snap, offers)
    jobs = []
    for j in snap.jobs:
        d = first[j.job_id]
        if d.action in (Action.START, Action.RESIZE) and d.cell is not None:
            restarts = j.restarts + (d.action is Action.RESIZE)
            j = replace(j, state=JobState.RUNNING, shape=d.cell.shape, node_names=d.node_names, restarts=restarts)
        elif d.action is Action.WAIT and j.state is JobState.RUNNING:
            j = replace(j, state=JobState.PENDING, node_names=(), restarts=j.restarts + 1)
        jobs.append(j)
    own = {n.name: sum(j.shape.gpus_per_node for j in snap.jobs if n.name in j.node_names) for n in snap.cluster.nodes}
    nodes = [replace(n, gpus_used=n.gpus_used - own[n.name]) for n in snap.cluster.nodes]
    plans = {d.job_id: d.cell.plan for d in first.values() if d.cell is not None}
    again = run(snapshot(nodes, jobs), offers, current_plans=plans)
    assert all(d.action in (Action.KEEP, Action.WAIT) for d in again.values())


@pytest.mark.parametrize("policy", ["synergy", "sia", "pollux", "fifo"])
def test_a_job_in_a_crowded_partition_gives_back_what_it_did_not_ask_for(policy: str) -> None:
    """Whatever its restart costs: others have asked for these GPUs, and it has not."""
    offers = cells(1.0, 1.9, 3.6, 7.0)
    nodes = [node("n0", 8), node("n1", 8, used=8), node("n2", 8)]
    grown = job(1, asked=2, nodes=("n0",), gpus=8, restarts=3)
    waiting = job(2, asked=8)
    taken = {1: offers, 2: offers}
    settings = Settings(policy=policy, restart_cost_s=600.0)
    free = decide(snapshot(nodes, [grown, waiting]), settings, taken, {})
    assert free[0].action is not Action.RESIZE or policy == "fifo"
    limited = limit_to_requested_size(grown, "others wait")
    taken = {1: tuple(c for c in offers if c.shape.gpus <= 2), 2: offers}
    found = decide(snapshot(nodes, [limited, waiting]), settings, taken, {})
    assert (found[0].action, found[0].cell and found[0].cell.shape.gpus, found[0].node_names) == (
        Action.RESIZE,
        2,
        ("n0",),
    )
    assert found[0].why.startswith("Gives back 6 GPUs: others wait.")
    assert "n0" not in found[1].node_names, "what is given back is Slurm's to hand out"
    for left_alone in (replace(limited, paused=True), replace(limited, fixed="it is so")):
        kept = decide(snapshot(nodes, [left_alone]), settings, taken, {})[0]
        assert kept.action is Action.KEEP


def test_a_job_gives_nothing_back_where_it_could_not_start_again() -> None:
    """A reservation of its node is near: it may run on until then, but would not be started there."""
    grown = replace(limit_to_requested_size(job(1, asked=2, nodes=("n0",), gpus=8), "others wait"), barred=("n0",))
    found = decide(snapshot([node("n0", 8)], [grown]), Settings(), {1: cells(1.0, 1.9)}, {})[0]
    assert found.action is Action.KEEP


def test_a_job_without_a_smaller_cell_keeps_what_it_holds() -> None:
    grown = limit_to_requested_size(job(1, asked=2, nodes=("n0",), gpus=8), "others wait")
    found = decide(snapshot([node("n0", 8)], [grown]), Settings(), {1: cells(1.0, 2.0, kind="v100")}, {})[0]
    assert found.action is Action.KEEP and "Gives back" not in found.why
