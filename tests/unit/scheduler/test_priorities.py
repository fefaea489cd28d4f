"""Weights, deadlines, limits and finish-time fairness: what each does to an epoch, and that it can be switched off."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Action, Directive, JobState
from synergy_core.restarts import RestartBudget, RestartCost
from synergy_sim.policies.fifo import FifoPolicy

from synergyd.scheduler.problem.finish_time_fairness import equal_share, finish_time_fairness
from synergyd.scheduler.problem.gpu_limits import usage_limits, within_limits
from synergyd.scheduler.problem.priorities import weights, with_claims
from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, Objective, Problem, Progress, UsageLimit
from synergyd.scheduler.problem.rules import make_decision_rules, make_objective
from synergyd.scheduler.problem.utility import change_value, restart_factor, stay_value, value_terms
from synergyd.settings import Settings
from tests.unit.scheduler.builders import NOW, ask, cells, job, node, snapshot
from tests.unit.scheduler.epochs import decide

PLAIN = Settings(fairness_bound=0.0)
BOUNDED = Settings(fairness_bound=2.0)
RESTART = RestartBudget(cost=RestartCost(mean_s=60.0))
ROOMS = (NodeCapacity("n0", "a100", 8),)


# -- weights -----------------------------------------------------------------------------------------------------------


def test_weights_are_directive_times_priority() -> None:
    jobs = [
        job(1, directive=Directive(weight=2.0), qos="high", priority=100.0),
        job(2, qos="low", priority=300.0),
        job(3, qos="", priority=1e9),
        job(4, directive=Directive(weight=math.nan), priority=0.0),
    ]
    jobs = [replace(one, uid=one.job_id) for one in jobs]
    trusting = Settings(max_weight=2.0)
    assert weights(jobs, make_decision_rules(PLAIN).weights) == {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}
    # the median priority is 300; the third is cut at ten times it, and a held job (0) keeps its own weight
    by_priority = weights(jobs, make_decision_rules(replace(trusting, priority_weight="yes")).weights)
    assert by_priority == {1: pytest.approx(1 / 3), 2: 1.0, 3: 10.0, 4: 1.0}


def test_a_weight_moves_gpus_between_the_jobs_of_one_user_alone() -> None:
    told = {1: 1000.0, 2: 1.0, 3: 0.5, 4: 1.0}
    jobs = [job(i, uid=1 if i < 4 else 2, directive=Directive(weight=w)) for i, w in told.items()]
    assert weights(jobs, make_decision_rules(PLAIN).weights) == {1: 1.0, 2: 1.0, 3: 0.5, 4: 1.0}
    found = weights(jobs, make_decision_rules(Settings(max_weight=6.0)).weights)
    assert found == {1: pytest.approx(2.4), 2: pytest.approx(0.4), 3: pytest.approx(0.2), 4: 1.0}
    assert sum(found[i] for i in (1, 2, 3)) == pytest.approx(3.0)
    light = [replace(one, directive=Directive(weight=0.1)) for one in jobs]
    assert weights(light, make_decision_rules(PLAIN).weights) == dict.fromkeys(told, 0.1)


def test_what_does_not_count_as_it_is_said_is_told() -> None:
    jobs = [job(i, 1, uid=i, directive=Directive(weight=w)) for i, w in ((1, 1000.0), (2, 1.0))]
    decided = decide(snapshot([node("n0", 4)], jobs), PLAIN, {i: cells(1.0, 1.8, 3.2) for i in (1, 2)}, {})
    assert decided[0].why.endswith(" weight=1000 counts as 1 (MaxWeight).") and "MaxWeight" not in decided[1].why
    assert {d.cell.shape.gpus for d in decided if d.cell} == {2}
    lied = decide(
        snapshot([node("n0", 4)], jobs[1:]), PLAIN, {2: cells(1.0)}, {}, progress={2: Progress(is_claim_refuted=True)}
    )
    assert "longer than it said was left" in lied[0].why


# -- deadlines ---------------------------------------------------------------------------------------------------------


def due(job_id: int, left: float, in_s: float, **changes: object) -> JobRequest:
    made = ask(job_id, cells(1.0, 1.8, 3.2), progress=Progress(remaining=left), deadline_s=NOW + in_s)
    return replace(made, restart=RESTART, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "need"),
    [
        (due(1, 100.0, 100.0), 1.0),
        (due(1, 300.0, 100.0), 3.0),
        (due(1, 400.0, 100.0), 0.0),  # out of reach: 3.2 is its best
        (due(1, 100.0, -5.0), 0.0),  # over
        (due(1, 0.0, 100.0), 0.0),  # done
        (replace(due(1, 1.0, 100.0), progress=Progress()), 0.0),  # nobody knows how much is left
        (due(1, 310.0, 100.0, current=0, nodes=("n0",)), 0.0),  # 3.1 as it is, 7.75 after a restart of 60 s
    ],
)
def test_a_deadline_needs_the_goodput_that_still_meets_it(one: JobRequest, need: float) -> None:
    (found,), _ = with_claims([one], ROOMS, Objective(), make_decision_rules(PLAIN).claims, NOW)
    assert found.needed_goodput == pytest.approx(need)
    assert bool(found.need_why) == (need > 0)


def test_a_restart_makes_the_deadline_nearer() -> None:
    (found,), _ = with_claims(
        [due(1, 120.0, 100.0, current=0, nodes=("n0",))], ROOMS, Objective(), make_decision_rules(PLAIN).claims, NOW
    )
    assert (found.needed_goodput, found.need_after_restart) == pytest.approx((1.2, 3.0))


def test_a_deadline_needs_no_more_than_an_equal_share_gives() -> None:
    one = due(1, 300.0, 100.0)  # needs 3.0; on 8 GPUs for 4 jobs it has 1.8 at 2 GPUs
    others = [ask(i, cells(1.0, 1.8, 3.2)) for i in (2, 3, 4)]
    needs = {
        share: with_claims(
            [one, *others], ROOMS, Objective(), make_decision_rules(Settings(deadline_share=share)).claims, NOW
        )[0][0].needed_goodput
        for share in (1.0, 1.9, 2.0, 0.0)
    }
    assert needs == {1.0: 1.8, 1.9: 1.8, 2.0: 3.0, 0.0: 3.0}
    large = replace(
        one, cells=one.cells[2:], relative=(1.0,), requested_cell=0
    )  # its only size is more than an equal share
    assert (
        with_claims([large, *others], ROOMS, Objective(), make_decision_rules(PLAIN).claims, NOW)[0][0].needed_goodput
        == 0.0
    )


def test_a_job_whose_word_was_refuted_counts_as_the_longest() -> None:
    jobs = [ask(i, cells(1.0, 1.8), progress=Progress(remaining=100.0)) for i in (1, 2)]
    lied = ask(3, cells(1.0, 1.8), progress=Progress(is_claim_refuted=True))
    found, _ = with_claims([*jobs, lied], ROOMS, Objective(), make_decision_rules(PLAIN).claims, NOW)
    assert [one.length_factor for one in found] == pytest.approx([1.0, 1.0, 1 / 3])
    assert with_claims([lied], ROOMS, Objective(), make_decision_rules(PLAIN).claims, NOW)[0][
        0
    ].length_factor == pytest.approx(1 / 3)
    assert (
        with_claims([lied], ROOMS, Objective(), make_decision_rules(Settings(short_first=0)).claims, NOW)[0][
            0
        ].length_factor
        == 1.0
    )


def test_who_can_meet_a_deadline_gets_what_it_needs_first() -> None:
    site = snapshot(
        [node("n0", 4)], [job(i, 1, directive=Directive(deadline_s=NOW + 100 if i == 9 else None)) for i in (1, 2, 9)]
    )
    offers = {i: cells(1.0, 1.8, 3.2) for i in (1, 2, 9)}
    late = {9: Progress(remaining=300.0)}
    within = {d.job_id: d for d in decide(site, PLAIN, offers, {}, progress=late)}
    assert sorted(d.cell.shape.gpus if d.cell else 0 for d in within.values()) == [1, 1, 2]
    assert "as far as its share of the GPUs goes" in within[9].why
    first = {d.job_id: d for d in decide(site, replace(PLAIN, deadline_share=0), offers, {}, progress=late)}
    assert first[9].cell is not None and first[9].cell.shape.gpus == 4
    assert first[1].action is first[2].action is Action.WAIT
    assert "deadline" in first[9].why and dict(first[9].worth)["need"] > 3 * math.log(32)


def test_slurms_fair_share_scales_weights_where_it_is_asked_for() -> None:
    jobs = [job(i, uid=1000 + i) for i in (1, 2, 3, 4)]
    shares = {1: 0.5, 2: 0.25, 3: 0.0}
    assert set(weights(jobs, make_decision_rules(PLAIN).weights, shares).values()) == {1.0}
    found = weights(jobs, make_decision_rules(Settings(priority_weight="fair-share")).weights, shares)
    assert found == {1: 2.0, 2: 1.0, 3: pytest.approx(0.1), 4: 1.0}
    assert weights(jobs, make_decision_rules(Settings(priority_weight="fair-share")).weights) == {
        1: 1.0,
        2: 1.0,
        3: 1.0,
        4: 1.0,
    }


# -- limits ------------------------------------------------------------------------------------------------------------


def test_limits_are_less_what_others_hold_and_never_below_what_is_held() -> None:
    asks = [ask(1, cells(1.0, 1.8, 3.2), current=1, nodes=("n0",), account="chem"), ask(2, cells(1.0), account="chem")]
    others = [
        job(1, nodes=("n0",), gpus=2, account="chem"),  # takes part itself
        job(7, nodes=("n1",), gpus=3, account="chem"),
        job(8, nodes=("n1",), gpus=1, account="bio", partition="gpu,debug"),
        job(9, account="chem", state=JobState.PENDING),
        # released to nodes of Slurm's choice, and not started
        replace(job(10, gpus=4, account="chem"), state=JobState.RUNNING, node_names=()),
    ]
    settings = Settings(account_limits={"chem": 8, "bio": 0}, partition_limits={"debug": 4})
    found = usage_limits(asks, others, make_decision_rules(settings).limits)
    assert found == (
        UsageLimit("account", "chem", 5, 8),
        UsageLimit("account", "bio", 0),
        UsageLimit("partition", "debug", 3, 4),
    )
    assert usage_limits(asks, others, make_decision_rules(Settings(account_limits={"chem": 3})).limits) == (
        UsageLimit("account", "chem", 2, 3),
    )
    assert usage_limits(asks, others, make_decision_rules(PLAIN).limits) == ()


def test_an_account_at_its_limit_waits_and_is_told_so() -> None:
    jobs = [job(i, 1, account="chem" if i < 3 else "bio") for i in (1, 2, 3)]
    site = snapshot([node("n0", 8)], jobs)
    offers = {i: cells(1.0, 1.8, 3.2) for i in (1, 2, 3)}
    found = {d.job_id: d for d in decide(site, Settings(account_limits={"chem": 1}), offers, {})}
    assert sorted(found[i].action.value for i in (1, 2)) == ["start", "wait"]
    waits = next(d for d in found.values() if d.action is Action.WAIT)
    assert "account chem" in waits.why and "limit" in waits.why
    assert found[3].cell is not None and found[3].cell.shape.gpus == 4


def test_policies_that_know_no_limits_are_held_to_them() -> None:
    asks = [ask(i, cells(1.0), account="chem") for i in range(3)]
    problem = Problem(tuple(asks), ROOMS, limits=(UsageLimit("account", "chem", 2),))
    free = FifoPolicy().allocate(problem)
    assert free.choice == (0, 0, 0)
    assert within_limits(problem, free).choice == (0, 0, None)
    assert within_limits(replace(problem, limits=()), free) is free


# -- fairness ----------------------------------------------------------------------------------------------------------


def test_equal_share_interpolates_over_sizes_and_types() -> None:
    offers = (*cells(1.0, 1.8, 3.2), *cells(2.0, 3.0, 4.0, kind="h100"))
    assert equal_share(offers[:3], {"a100": 8}, 4) == pytest.approx(1.8)  # 2 GPUs each
    assert equal_share(offers[:3], {"a100": 6}, 2) == pytest.approx(2.5)  # 3: between 1.8 and 3.2
    assert equal_share(offers[:3], {"a100": 4}, 8) == pytest.approx(0.5)  # half a GPU: half the time
    assert equal_share(offers[:3], {"a100": 80}, 2) == pytest.approx(3.2)
    assert equal_share(offers, {"a100": 6, "h100": 2}, 4) == pytest.approx(0.75 * 1.8 + 0.25 * 3.0)
    assert equal_share(offers[:3], {"h100": 8}, 4) == equal_share((), {"a100": 8}, 4) == 0.0


def test_finish_time_fairness_by_hand() -> None:
    # 1000 s old, 500 done, 1500 left at 3/s: ends at 1500 s; an equal share of 2/s would have taken 1000 s
    assert finish_time_fairness(1000.0, Progress(trained_sequences=500.0, remaining=1500.0), 3.0, 2.0) == pytest.approx(
        1.5
    )
    assert finish_time_fairness(1000.0, Progress(trained_sequences=500.0), 3.0, 2.0) == pytest.approx(4.0)
    assert finish_time_fairness(1000.0, Progress(), 3.0, 2.0) is None
    assert finish_time_fairness(1000.0, Progress(trained_sequences=0.0), 3.0, 2.0) is None
    assert finish_time_fairness(0.0, Progress(trained_sequences=0.0, remaining=10.0), 0.0, 2.0) is None
    assert finish_time_fairness(9.0, Progress(trained_sequences=5e-324), 3.0, 2.0) is None
    assert finish_time_fairness(1e300, Progress(trained_sequences=1e-306), 3.0, 2.0) is None


def test_beyond_the_bound_a_job_gets_an_equal_share_first() -> None:
    site = snapshot([node("n0", 4), node("n1", 1)], [job(1, 4), job(2, 1, ("n1",), 1)])
    # the second job scales badly: it gains nothing from more than one GPU, the first gains all the way
    offers = {1: cells(1.0, 2.0, 4.0), 2: cells(1.0, 1.05, 1.1)}
    done = {2: Progress(trained_sequences=10.0)}

    def of(settings: Settings) -> dict[int, int]:
        found = decide(site, settings, offers, {}, ages_s={2: 1000.0}, progress=done)
        return {d.job_id: d.cell.shape.gpus if d.cell else 0 for d in found}

    assert of(PLAIN) == {1: 4, 2: 1}
    share = equal_share(offers[2], {"a100": 5}, 2)
    bounded = decide(site, Settings(fairness_bound=1.5), offers, {}, ages_s={1: 1.0, 2: 1000.0}, progress=done)
    assert bounded[1].cell is not None and bounded[1].cell.goodput >= share
    assert bounded[1].fairness == pytest.approx(1000.0 / (10.0 / share)) and bounded[0].fairness is None
    assert "equal share" in bounded[1].why


@pytest.mark.parametrize(("age_s", "claims"), [(900.0, False), (1900.0, True)])
def test_a_claim_to_an_equal_share_is_that_of_the_job_and_not_of_what_it_runs_on(age_s: float, claims: bool) -> None:
    """2,000 examples in all at 2/s on the share: 1000 s, so the bound is 2000 s. 400 are left, 200 s on the share. On one GPU, at 0.3/s,
    it would be late both times; on its share only the second time. A claim that goes once it is met would come back in the next epoch."""
    terms, bound = make_objective(PLAIN), BOUNDED
    progress = Progress(trained_sequences=1600.0, remaining=400.0)
    offers = cells(0.3, 2.0, 2.2)
    share = equal_share(offers, {"a100": 4}, 2)
    assert share == pytest.approx(2.0)
    twin = ask(2, cells(1.0, 2.0, 4.0))
    needs = []
    for current in range(3):
        one = replace(ask(1, offers), current=current, nodes=("n0",), age_s=age_s, progress=progress)
        (found, _), _ = with_claims(
            [one, twin], (NodeCapacity("n0", "a100", 4),), terms, make_decision_rules(bound).claims, NOW
        )
        needs.append(found.needed_goodput)
    assert needs == pytest.approx([share * claims] * 3)


@pytest.mark.parametrize(("remaining", "needed"), [(100.0, 1.5), (400.0, 2.0)])
def test_a_claim_is_no_reason_for_a_restart_that_the_job_itself_does_not_gain_by(
    remaining: float, needed: float
) -> None:
    """At 1.5/s what is left takes 67 or 267 s, at 2/s 50 or 200 s and a restart of 60 s before."""
    offers, progress = cells(1.5, 2.0, 2.2), Progress(trained_sequences=2000.0 - remaining, remaining=remaining)
    late = replace(ask(1, offers), current=0, nodes=("n0",), age_s=5e3, progress=progress, restart=RESTART)
    rooms = (NodeCapacity("n0", "a100", 4),)
    (found, _), _ = with_claims(
        [late, ask(2, cells(1.0, 2.0, 4.0))], rooms, make_objective(PLAIN), make_decision_rules(BOUNDED).claims, NOW
    )
    assert (found.needed_goodput, found.need_after_restart) == pytest.approx((needed, needed))


# -- objectives --------------------------------------------------------------------------------------------------------


def test_the_objectives_by_name() -> None:
    assert make_objective(Settings(fairness=-1.0, first_start=6.0)) == Objective(exponent=-1.0, first_start=6.0)
    assert make_objective(Settings(objective="sia", max_growth=2.0, first_start=0.0)) == Objective(
        exponent=-0.5, max_growth=2.0, form="sia", reference="smallest"
    )
    assert make_objective(Settings(objective="pollux")).reference == "share"
    assert make_objective(Settings(objective="max-min")).exponent == -3.0
    with pytest.raises(UsageError, match="one of: power, sia, pollux, max-min"):
        make_objective(Settings(objective="best"))


def test_sia_by_hand() -> None:
    """SOSP'23, section 3.4: rows over their minimum times min GPUs, to the power -0.5, waiting costs 1.1."""
    terms = make_objective(Settings(objective="sia"))
    (one,), _ = with_claims([ask(1, cells(2.0, 3.0, 8.0))], ROOMS, terms, make_decision_rules(PLAIN).claims, NOW)
    assert tuple(one.relative) == pytest.approx((1.0, 1.5, 4.0))
    assert stay_value(one, terms) == pytest.approx(-1.1)
    assert [change_value(one, i, terms) for i in range(3)] == pytest.approx([-1.0, -(1.5**-0.5), -0.5])
    running = replace(one, current=0, nodes=("n0",), discount=0.5)
    assert change_value(running, 2, terms) == pytest.approx(-(2.0**-0.5))


def test_pollux_measures_against_an_equal_share() -> None:
    terms = make_objective(Settings(objective="pollux"))
    two = [ask(1, cells(2.0, 3.0, 8.0)), ask(2, cells(1.0))]
    (one, _), _ = with_claims(two, ROOMS, terms, make_decision_rules(PLAIN).claims, NOW)
    assert tuple(one.relative) == pytest.approx((2 / 8, 3 / 8, 1.0))  # 4 GPUs each


def test_max_min_lifts_the_worst_off() -> None:
    """6 GPUs: by the sum of goodput the good scaler takes all it can; max-min gives both the same."""
    site = snapshot([node("n0", 4), node("n1", 2)], [job(1, 1), job(2, 1)])
    offers = {1: cells(1.0, 2.0, 4.0), 2: cells(1.0, 1.6, 2.2)}

    def of(settings: Settings) -> list[int]:
        return [d.cell.shape.gpus if d.cell else 0 for d in decide(site, settings, offers, {})]

    assert of(Settings(fairness=1.0)) == [4, 2]
    assert of(Settings(objective="max-min")) == [2, 4]


def test_the_terms_of_a_job_add_up_to_what_it_is_worth() -> None:
    terms = Objective(need_bonus=50.0)
    one = ask(
        1,
        cells(1.0, 1.8, 3.2),
        weight=2.0,
        current=0,
        nodes=("n0",),
        discount=0.5,
        needed_goodput=3.0,
        need_after_restart=3.1,
    )
    assert dict(value_terms(one, 2, False, terms)) == pytest.approx(
        {"goodput": math.log(3.2), "restart": math.log(0.5), "need": 50.0, "weight": math.log(1.6)}
    )
    assert sum(v for _, v in value_terms(one, 2, False, terms)) == pytest.approx(change_value(one, 2, terms))
    assert sum(v for _, v in value_terms(one, 0, True, terms)) == pytest.approx(stay_value(one, terms))
    waits = replace(one, current=None, nodes=())
    assert sum(v for _, v in value_terms(waits, None, False, terms)) == pytest.approx(stay_value(waits, terms))
    assert dict(value_terms(waits, None, False, terms)).keys() == {"waiting", "weight"}


def test_a_job_that_soon_ends_is_not_worth_a_restart() -> None:
    one = ask(1, cells(1.0, 1.9, 3.6), current=0, nodes=("n0",), restart_drag=60.0 / 30.0)
    # 30 sequences at 3.6/s after 60 s without any: 30/(60 + 8.33) = 0.439/s
    assert restart_factor(one, 2) * 3.6 == pytest.approx(30 / (60 + 30 / 3.6))
    assert restart_factor(replace(one, discount=0.1), 2) == 0.1 and restart_factor(replace(one, current=None), 2) == 1.0
    site = snapshot([node("n0", 4)], [job(1, 1, nodes=("n0",), gpus=1)])
    offers = {1: cells(1.0, 1.9, 3.6)}

    def action(left: float) -> Action:
        (found,) = decide(site, PLAIN, offers, {}, ages_s={1: 1e6}, progress={1: Progress(remaining=left)})
        return found.action

    assert action(1e6) is Action.RESIZE and action(30.0) is Action.KEEP


def test_who_has_less_left_weighs_more_within_bounds() -> None:
    """Median time left of those that tell: job 1's. Job 2 has a quarter of it, job 3 a thousand times as much."""
    left = {1: 1000.0, 2: 250.0, 3: 1e6, 4: None}
    four = [ask(i, cells(1.0, 2.0, 4.0), progress=Progress(remaining=w), weight=2.0) for i, w in left.items()]
    found, _ = with_claims(four, ROOMS, Objective(), make_decision_rules(replace(PLAIN, short_first=0.5)).claims, NOW)
    assert [one.weight for one in found] == pytest.approx([2.0, 4.0, 2.0 / 3.0, 2.0])
    assert [one.length_factor for one in found] == pytest.approx([1.0, 2.0, 1.0 / 3.0, 1.0])
    told = dict(value_terms(found[1], 2, False, Objective()))
    assert told["weight"] == pytest.approx(math.log(4)) and told["short"] == pytest.approx(2 * math.log(4))
    assert sum(told.values()) == pytest.approx(change_value(found[1], 2, Objective()))
    same, _ = with_claims(four, ROOMS, Objective(), make_decision_rules(replace(PLAIN, short_first=0.0)).claims, NOW)
    assert [one.weight for one in same] == [2.0] * 4


def test_who_does_not_tell_is_held_for_typical_until_it_has_run_for_longer() -> None:
    """Job 1 tells of 1000 s at an equal share, and is the long one here: without the others it would be the middle."""
    told = ask(1, cells(1.0, 2.0, 4.0), progress=Progress(remaining=1000.0))
    alone, _ = with_claims([told], ROOMS, Objective(), make_decision_rules(replace(PLAIN, short_first=1.0)).claims, NOW)
    untold = [
        ask(i, cells(1.0, 2.0, 4.0), 4, progress=Progress(attained_gpu_s=4 * ran))
        for i, ran in ((2, 0), (3, 50), (4, 900))
    ]
    found, _ = with_claims(
        [told, *untold],
        ROOMS,
        Objective(),
        make_decision_rules(replace(PLAIN, short_first=1.0)).claims,
        NOW,
        typical_s=100.0,
    )
    assert alone[0].weight == 1.0
    left = equal_share(told.cells, {"a100": sum(r.free for r in ROOMS)}, 4)
    times = [1000.0 / left, 100.0, 100.0, 900.0]
    middle = (sorted(times)[1] + sorted(times)[2]) / 2
    assert [one.weight for one in found] == pytest.approx([min(max(middle / t, 1 / 3), 3.0) for t in times])
    silent, _ = with_claims(
        untold, ROOMS, Objective(), make_decision_rules(replace(PLAIN, short_first=1.0)).claims, NOW
    )
    assert [one.weight for one in silent] == [1.0] * 3


def test_of_two_that_are_alike_the_one_that_ends_sooner_gets_more() -> None:
    site = snapshot([node("n0", 6)], [job(1, 2), job(2, 2)])
    offers = {i: cells(1.0, 1.9, 3.3) for i in (1, 2)}

    def of(*left: float) -> list[int]:
        known = {i: Progress(remaining=w) for i, w in enumerate(left, 1)}
        return [d.cell.shape.gpus if d.cell else 0 for d in decide(site, Settings(), offers, {}, progress=known)]

    assert of(1e6, 1e3) == [2, 4] and of(1e3, 1e6) == [4, 2]


def test_what_like_jobs_have_taken_counts_for_who_does_not_tell_and_explain_says_so() -> None:
    """In GPU seconds over the GPUs of an equal share, beside the time left of one that tells."""
    told = ask(1, cells(1.0, 2.0, 4.0), progress=Progress(remaining=1000.0))
    untold = [ask(i, cells(1.0, 2.0, 4.0), progress=Progress(likely_gpu_s=gpu_s)) for i, gpu_s in ((2, 60.0), (3, 9e4))]
    settings, gpus = replace(PLAIN, short_first=1.0), sum(room.free for room in ROOMS)
    found, _ = with_claims(
        [told, *untold], ROOMS, Objective(), make_decision_rules(settings).claims, NOW, typical_s=1.0
    )
    left = equal_share(told.cells, {"a100": gpus}, 3)
    times = [1000.0 / left, 60.0 / (gpus / 3), 9e4 / (gpus / 3)]
    assert [one.weight for one in found] == pytest.approx([min(max(sorted(times)[1] / t, 1 / 3), 3.0) for t in times])
    assert [one.restart_drag for one in found][1:] == [0.0, 0.0]  # nobody knows when it ends
    site = snapshot([node("n0", 4)], [job(1), job(2)])
    known = {1: Progress(likely_gpu_s=7000.0), 2: Progress(likely_gpu_s=100.0)}
    why = {d.job_id: d.why for d in decide(site, Settings(), {i: cells(1.0) for i in (1, 2)}, {}, progress=known)}
    assert "it counts as about 2 GPU hours from its end" in why[1] and "about 2 GPU minutes from" in why[2]
    silent = decide(site, Settings(short_first=0.0), {i: cells(1.0) for i in (1, 2)}, {}, progress=known)
    assert not any("like jobs" in d.why for d in silent)
