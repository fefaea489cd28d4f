"""Nodes that jobs may not start on now: reserved ones, powered-down ones, and GPUs that Slurm has lost count of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from synergy_core.records import Action, Cell, Cluster, Decision, Directive, Job, Node, Snapshot
from synergy_core.restarts import RestartBudget, RestartCost

from synergyd.scheduler.problem.gpu_limits import SlurmLimits
from synergyd.scheduler.problem.records import Rate, UsageLimit
from synergyd.settings import Settings
from tests.unit.scheduler.builders import NOW, cell, cells, job, node, snapshot
from tests.unit.scheduler.test_decide import run

GOOD = cells(1.0, 1.9, 3.6)  # 1, 2, 4 GPUs
ASLEEP = replace(node("c1", up=False), wakeable=True)


def with_nodes(snap: Snapshot, *more: object) -> Snapshot:
    return replace(snap, cluster=Cluster((*snap.cluster.nodes, *more)))  # type: ignore[arg-type]


# -- powered down ------------------------------------------------------------------------------------------------------


def test_a_job_with_nothing_free_starts_without_named_nodes_where_slurm_can_wake_some() -> None:
    found = run(with_nodes(snapshot([node("n0", used=4)], [job(1)]), ASLEEP), {1: GOOD})[1]
    assert (found.action, found.cell, found.node_names) == (Action.START, GOOD[2], ())
    assert "Slurm can wake c1" in found.why


def test_it_is_not_called_impossible_where_all_nodes_sleep() -> None:
    assert run(with_nodes(snapshot([], [job(1)]), ASLEEP), {1: GOOD})[1].action is Action.START
    asleep_for_good = replace(ASLEEP, wakeable=False)
    assert "only 0 of 4" in run(with_nodes(snapshot([], [job(1)]), asleep_for_good), {1: GOOD})[1].why


def test_free_nodes_come_first_and_each_sleeping_node_is_for_one_job() -> None:
    free = run(with_nodes(snapshot([node("n0")], [job(1)]), ASLEEP), {1: GOOD})[1]
    assert free.node_names == ("n0",)
    found = run(with_nodes(snapshot([node("n0", used=4)], [job(1), job(2)]), ASLEEP), {1: GOOD, 2: GOOD})
    assert [found[i].action for i in (1, 2)] == [Action.START, Action.WAIT]


def test_a_larger_job_than_sleeps_waits_and_limits_hold() -> None:
    large = run(with_nodes(snapshot([node("n0", used=4)], [job(1, asked=8)]), ASLEEP), {1: cells(1, 2, 3, 4)})[1]
    assert large.action is Action.WAIT
    limited = Settings(restart_cost_s=60.0, partition_limits={"main": 2})
    other = run(with_nodes(snapshot([node("n0", used=4)], [job(1, partition="main")]), ASLEEP), {1: GOOD}, limited)[1]
    assert other.action is Action.WAIT


def of_main(job_id: int, **changes: Any) -> Job:
    return job(job_id, partition="main", **changes)


def of_type(made: Job, own: Cell) -> Job:
    return replace(made, shape=own.shape, asked=own.shape)


def test_nodes_that_are_woken_and_turns_share_what_a_limit_leaves() -> None:
    four = Settings(restart_cost_s=60.0, partition_limits={"main": 4})
    busy = with_nodes(snapshot([node("n0", used=4)], [of_main(1), of_main(2)]), ASLEEP)
    found = run(busy, {1: GOOD, 2: GOOD}, four, overtaken={2})
    assert [found[i].action for i in (1, 2)] == [Action.START, Action.WAIT]


def test_a_start_and_a_growth_onto_nodes_that_sleep_share_what_a_limit_leaves() -> None:
    eight = Settings(restart_cost_s=60.0, partition_limits={"main": 8})
    wide = (cell(3.6, gpus=4, kind="h100"), cell(7.0, nodes=2, gpus=4, kind="h100"))
    runs = of_type(of_main(1, nodes=("h0",), gpus=4, **OLD), wide[0])
    busy = snapshot([node("h0", kind="h100"), node("n0", used=4)], [runs, of_main(2)])
    found = run(with_nodes(busy, ASLEEP, sleeping(name="h1", gpu_type="h100")), {1: wide, 2: GOOD}, eight)
    assert [found[i].action for i in (1, 2)] == [Action.KEEP, Action.START]


def test_gpus_of_another_type_on_the_same_node_are_not_counted() -> None:
    two = [replace(ASLEEP, gpus=2), replace(ASLEEP, gpus=8, gpu_type="v100")]
    assert run(with_nodes(snapshot([node("n0", used=4)], [job(1)]), *two), {1: GOOD})[1].action is Action.WAIT
    found = run(with_nodes(snapshot([node("n0", used=4)], [job(1, asked=2)]), *two), {1: GOOD})[1]
    assert found.action is Action.START and "Slurm can wake c1." in found.why
    v100 = (cell(3.6, gpus=4, kind="v100"),)
    other = of_type(job(1), v100[0])
    found = run(with_nodes(snapshot([node("n0", used=4)], [other]), *two), {1: v100})[1]
    assert found.action is Action.START and "Slurm can wake c1." in found.why


# -- passed by others --------------------------------------------------------------------------------------------------


def test_a_job_that_was_passed_stands_in_slurms_queue_as_asked() -> None:
    busy = snapshot([node("n0", used=4)], [job(1), job(2)])
    found = run(busy, {1: GOOD, 2: GOOD}, overtaken={1})
    assert (found[1].action, found[1].cell, found[1].node_names) == (Action.START, GOOD[2], ())
    assert "submitted later have started before it. Waits" in found[1].why
    assert found[2].action is Action.WAIT


def test_a_job_of_one_size_that_synergys_own_jobs_have_passed_stands_in_slurms_queue_too() -> None:
    fixed = job(1, fixed="no run of this program has reported that it can change size")
    last = replace(fixed, directive=Directive(weight=0.5))
    for waits, action in ((fixed, Action.START), (job(1), Action.WAIT), (last, Action.WAIT)):
        found = run(snapshot([node("n0", used=4)], [waits]), {1: GOOD}, outrun={1})
        assert (found[1].action, found[1].node_names) == (action, ())


def test_a_job_that_was_passed_and_finds_room_starts_where_it_was_placed_and_limits_hold() -> None:
    assert run(snapshot([node("n0")], [job(1)]), {1: GOOD}, overtaken={1})[1].node_names == ("n0",)
    limited = Settings(restart_cost_s=60.0, partition_limits={"main": 2})
    busy = snapshot([node("n0", used=4)], [job(1, partition="main")])
    assert run(busy, {1: GOOD}, limited, overtaken={1})[1].action is Action.WAIT


def test_a_job_that_was_passed_waits_for_slurms_own_limits_in_slurms_queue() -> None:
    full = UsageLimit("account", "wide", 0, 2, unit="nodes", slurm="GrpTRES", rates={1: Rate(per_job=1.0, per_gpu=0.0)})
    busy = snapshot([node("n0")], [job(1)])
    assert run(busy, {1: GOOD}, slurm_limits=SlurmLimits(shared_limits=(full,)))[1].action is Action.WAIT
    found = run(busy, {1: GOOD}, slurm_limits=SlurmLimits(shared_limits=(full,)), overtaken={1})[1]
    assert (found.action, found.cell, found.node_names) == (Action.START, GOOD[2], ())
    own = SlurmLimits(job_limits={1: (replace(full, rates=None, job_rate=Rate(per_job=0.0, per_gpu=1.0), most=2),)})
    asks_too_much = run(snapshot([node("n0", used=4)], [job(1)]), {1: GOOD}, slurm_limits=own, overtaken={1})[1]
    assert asks_too_much.action is Action.WAIT


# -- reserved ----------------------------------------------------------------------------------------------------------

WHY = " The reservation maint takes n0 in 8 min, and the job may run for 10 min."


def test_a_job_goes_round_reserved_nodes_or_waits_and_says_why() -> None:
    barred = job(1, barred=("n0",), barred_why=WHY)
    assert run(snapshot([node("n0"), node("n1")], [barred]), {1: GOOD})[1].node_names == ("n1",)
    found = run(snapshot([node("n0")], [barred]), {1: GOOD})[1]
    assert found.action is Action.WAIT and found.why.endswith(WHY)
    assert "Can't start" not in found.why


def test_a_running_job_stays_where_its_restart_would_wait() -> None:
    runs = job(1, nodes=("n0",), gpus=2, barred=("n0",), barred_why=WHY)
    found = run(snapshot([node("n0")], [runs]), {1: GOOD})[1]
    assert found.action is Action.KEEP and found.why.endswith(WHY)
    free = replace(runs, barred=(), barred_why="")
    assert run(snapshot([node("n0")], [free]), {1: GOOD})[1].action is Action.RESIZE


# -- what is left of the time limit ------------------------------------------------------------------------------------


def test_no_restart_is_begun_that_does_not_pay_in_what_is_left() -> None:
    """2 to 4 GPUs, 1.9 to 3.6: paid back in 67 s after a restart of 60 s, which must be 0.4 of what is left then."""
    for left_s, action in ((225.0, Action.KEEP), (230.0, Action.RESIZE), (None, Action.RESIZE)):
        runs = job(1, nodes=("n0",), gpus=2, time_left_s=left_s, submit_s=NOW - 1e7)
        assert run(snapshot([node("n0")], [runs]), {1: GOOD}, ages_s={1: 1e7})[1].action is action


# -- lost count --------------------------------------------------------------------------------------------------------


def test_gpus_that_no_job_holds_are_named() -> None:
    leaky = replace(node("n0", used=4), leaked=4)
    found = run(with_nodes(snapshot([], [job(1)]), leaky), {1: GOOD})[1]
    assert "Slurm counts GPUs as in use that no job holds, and gives them to nobody: 4 of n0." in found.why


def test_jobs_of_a_reservation_share_its_nodes_and_others_get_none() -> None:
    nodes = [node("n0"), replace(node("n1"), reserved=True), replace(node("n2"), reserved=True)]
    inside: dict[str, Any] = {"reservation": "mine", "within": ("n1", "n2")}
    jobs = [
        job(1, **inside),
        job(2, nodes=("n1",), gpus=2, **inside),
        job(3, barred=("n1", "n2")),
        job(4, barred=("n1", "n2")),
    ]
    found = run(snapshot(nodes, jobs), dict.fromkeys((1, 2, 3, 4), GOOD))
    assert {found[1].node_names, found[2].node_names} == {("n1",), ("n2",)}
    assert found[3].node_names == found[4].node_names == ("n0",)
    wide = run(
        snapshot(nodes, [job(1, asked=8, **inside)]), {1: (cell(7.0, nodes=2, gpus=4), cell(9.0, nodes=3, gpus=4))}
    )[1]
    assert wide.node_names == ("n1", "n2")
    large = job(1, directive=Directive(min_gpus=12), **inside)
    why = run(snapshot(nodes, [large]), {1: (cell(9.0, nodes=3, gpus=4),)})[1].why
    assert why == "Can't start: it needs min_gpus=12, and the cluster has 8 in its reservation mine."


def test_a_job_on_a_node_that_drains_keeps_it_and_nobody_starts_or_grows_there() -> None:
    nodes = [replace(node("n0"), up=False), node("n1")]
    jobs = [job(1, nodes=("n0",), gpus=2), job(2), job(3, nodes=("n1",), gpus=4)]
    found = run(snapshot(nodes, jobs), dict.fromkeys((1, 2, 3), GOOD))
    assert (found[1].action, found[1].node_names) == (Action.KEEP, ("n0",))
    assert found[2].node_names == found[3].node_names == ("n1",)


# -- growing onto nodes that sleep -------------------------------------------------------------------------------------

WIDER = (cell(3.6, gpus=4), cell(7.0, nodes=2, gpus=4))
OLD: dict[str, Any] = {"submit_s": NOW - 36_000.0}  # ten hours old


def sleeping(wake_s: float = 60.0, **changes: Any) -> Node:
    return replace(ASLEEP, wake_s=wake_s, **changes)


def grows(*more: Node, made: Job | None = None, offers: tuple[Cell, ...] = WIDER, **changes: Any) -> Decision:
    runs = made or job(1, nodes=("n0",), gpus=4, **{**OLD, **changes})
    return run(with_nodes(snapshot([node("n0")], [runs]), *more), {1: offers})[1]


def test_a_running_job_grows_onto_a_node_that_is_woken_first() -> None:
    found = grows(sleeping())
    assert (found.action, found.cell, found.node_names) == (Action.RESIZE, WIDER[1], ("n0", "c1"))
    assert (
        "as soon as c1 is powered up, and goes on meanwhile" in found.why
        and "; 120 s for that and the restart" in found.why
    )
    # a restart of 60 s and 60 s more: 3.6 * 120 / (7.0 - 3.6)
    assert "paid back in about 127 s" in found.why
    assert dict(found.worth)["restart"] < dict(grows(sleeping(wake_s=0.0)).worth)["restart"] < 0


def test_the_time_to_power_up_is_priced() -> None:
    """Ten hours old: 7.0 (36000 / (36060 + wake)) over 3.6 pays up to 34,000 s."""
    assert grows(sleeping(33_000.0)).action is Action.RESIZE
    assert grows(sleeping(35_000.0)).action is Action.KEEP
    assert grows(sleeping(float("inf"))).action is Action.KEEP
    # of its own limit: 7.0 (left - 160) / (left - 60) / (1 + 60 / (0.4 (left - 60))) over 3.6
    assert grows(sleeping(100.0), time_left_s=400.0).action is Action.KEEP
    assert grows(sleeping(100.0), time_left_s=450.0).action is Action.RESIZE


def test_a_restart_beyond_its_share_is_not_spent_on_nodes_that_sleep() -> None:
    spent = RestartBudget(cost=RestartCost(mean_s=60.0), lost_s=2000.0, life_s=9000.0)
    snap = snapshot([node("n0")], [job(1, nodes=("n0",), gpus=4, **OLD)])
    for there, restarts, action in (
        (node("n1"), {1: spent}, Action.KEEP),
        (sleeping(), {1: spent}, Action.KEEP),
        (sleeping(), {1: replace(spent, lost_s=0.0)}, Action.RESIZE),
    ):
        assert run(with_nodes(snap, there), {1: WIDER}, restarts=restarts)[1].action is action


def test_it_grows_onto_the_second_type_of_a_node() -> None:
    wide = (cell(3.6, gpus=4, kind="v100"), cell(7.0, nodes=2, gpus=4, kind="v100"))
    runs = of_type(job(1, nodes=("n0",), gpus=4, **OLD), wide[0])
    snap = with_nodes(snapshot([node("n0", kind="v100")], [runs]), sleeping(gpus=2), sleeping(gpu_type="v100"))
    found = run(snap, {1: wide})[1]
    assert (found.action, found.node_names) == (Action.RESIZE, ("n0", "c1"))
    assert "as soon as c1 is powered up" in found.why


def test_nodes_that_are_up_come_first() -> None:
    assert grows(sleeping(), node("n1")).node_names == ("n0", "n1")
    wide = (cell(3.6, gpus=4), cell(13.0, nodes=3, gpus=4))
    found = grows(sleeping(), node("n1"), sleeping(name="c2"), offers=wide)
    assert set(found.node_names) in ({"n0", "n1", "c1"}, {"n0", "n1", "c2"})


def test_it_does_not_grow_there_where_it_may_not_or_others_wait() -> None:
    assert grows(sleeping(), fixed="it is paused").action is Action.KEEP
    assert grows(sleeping(), barred=("c1",)).action is Action.KEEP
    assert grows(sleeping(partitions=("other",)), partition="main").action is Action.KEEP
    assert grows(sleeping(), directive=Directive(max_gpus=4)).action is Action.KEEP
    limited = Settings(restart_cost_s=60.0, partition_limits={"main": 4})
    runs = job(1, nodes=("n0",), gpus=4, partition="main", **OLD)
    assert run(with_nodes(snapshot([node("n0")], [runs]), sleeping()), {1: WIDER}, limited)[1].action is Action.KEEP
    runs = job(1, nodes=("n0",), gpus=4, **OLD)
    both = with_nodes(snapshot([node("n0")], [runs, job(2, asked=8)]), sleeping())
    found = run(both, {1: WIDER[:1], 2: WIDER[1:]})
    assert found[1].action is Action.KEEP


def test_one_node_that_sleeps_is_for_one_job() -> None:
    jobs = [job(i, nodes=(f"n{i}",), gpus=4, **OLD) for i in (1, 2)]
    found = run(with_nodes(snapshot([node("n1"), node("n2")], jobs), sleeping()), {1: WIDER, 2: WIDER})
    assert sorted(d.action for d in found.values()) == [Action.KEEP, Action.RESIZE]
    # one that starts there comes first
    jobs[1] = job(2)
    found = run(with_nodes(snapshot([node("n1")], jobs), sleeping()), {1: WIDER[:1], 2: WIDER[:1]})
    assert (found[2].action, found[2].node_names) == (Action.START, ())


def test_a_policy_with_a_rule_of_its_own_does_not_grow_there() -> None:
    runs = job(1, nodes=("n0",), gpus=4, **OLD)
    for policy in ("fifo", "tiresias"):
        other = Settings(restart_cost_s=60.0, policy=policy)
        assert (
            run(with_nodes(snapshot([node("n0")], [runs]), sleeping()), {1: WIDER}, other)[1].action
            is not Action.RESIZE
        )
