"""Which less communication a job gets: by its directive, its links, what it has measured, and what was taken back."""

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.accepts import Accepts
from synergy_core.exchange import KINDS
from synergy_core.job_report import Report
from synergy_core.loss_trend import NO_LOSSES
from synergy_core.records import (
    Cell,
    Cluster,
    Job,
    JobState,
    Measurement,
    ModelSpec,
    Plan,
    Profile,
    Shape,
)

from synergyd.jobmodel.exchange_choice import after_exchange, with_exchange
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.learning import coarse, update_profile
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.plan_table import plan_table
from synergyd.scheduler.problem.from_snapshot import current_cell
from tests.unit.jobmodel import builders

SLOW = replace(figures("a100"), gpu_type="a100", inter_gbs=0.05)
TWO, ONE = Shape("a100", 2, 4), Shape("a100", 1, 4)
CLUSTER = Cluster(builders.nodes("a100", 2, 4))
GPT = load_model("gpt3-350m")


def job(comm: tuple[str, ...] = ("local",), shape: Shape = TWO, **directive: Any) -> Job:
    """It runs on `shape`, and on as many GPUs as that has."""
    return builders.job(shape, JobState.RUNNING, min_gpus=shape.gpus, max_gpus=shape.gpus, comm=comm, **directive)


def cells(
    one: Job,
    profile: Profile = Profile(),  # noqa: B008
    present: Plan | None = None,
    model: ModelSpec | None = None,
) -> tuple[Cell, ...]:
    return JobPlanner(one, profile, model, {"a100": SLOW}, present).cells(CLUSTER)


def best(found: tuple[Cell, ...]) -> str:
    return max(found, key=lambda c: c.goodput).plan.exchange


@pytest.mark.parametrize(
    ("kind", "model"),
    # half of DDP's bytes are not enough where the exact plan can be tensor-parallel in its nodes
    [("local", None), ("local", GPT), ("compressed", None)],
    ids=["plain-local", "known-local", "plain-compressed"],
)
def test_a_job_over_slow_links_takes_what_it_allows(kind: str, model: ModelSpec | None) -> None:
    found = JobPlanner(job((kind,)), Profile(), model, {"a100": SLOW}).cells(CLUSTER)
    assert best(found).startswith(kind)
    # the exact plan stays among the Cells: what is gained can be told, and given back
    exact = max((c for c in found if c.plan.exchange == "exact"), key=lambda c: c.goodput)
    taken = max(found, key=lambda c: c.goodput)
    assert taken.goodput > 1.1 * exact.goodput and taken.efficiency < exact.efficiency
    plan = taken.plan
    assert (plan.tp, plan.pp, plan.cp, plan.zero_stage) == (1, 1, 1, 0) and plan.dp == 8


SLOWEST = {"a100": replace(SLOW, inter_gbs=0.0005)}


def test_a_table_of_plans_has_only_what_a_job_would_be_given() -> None:
    every = tuple(k for k in KINDS if k != "exact")
    one = plan_table(GPT, "a100", [8], 4, (64, 64), gpu=SLOWEST["a100"], comm=every, top=100)
    assert {row.cell.plan.exchange for row in one.counts[0].rows} >= {"exact", "local:16", "compressed:bf16"}


@pytest.mark.parametrize("model", [None, GPT], ids=["plain", "known"])
def test_a_job_on_nvlink_and_one_that_allows_nothing_exchange_exactly(model: ModelSpec | None) -> None:
    every = tuple(k for k in KINDS if k != "exact")
    assert {c.plan.exchange for c in cells(job(every, ONE), model=model)} == {"exact"}
    assert {c.plan.exchange for c in cells(job(()), model=model)} == {"exact"}
    assert {c.plan.exchange for c in cells(job(("exact",)), model=model)} == {"exact"}


def test_a_script_that_can_t_and_a_plan_that_it_can_t_have() -> None:
    can_t = Profile(accepts=Accepts(exact_only=True))
    assert {c.plan.exchange for c in cells(job(), can_t)} == {"exact"}
    assert {c.plan.exchange for c in cells(job(tp=2))} == {"exact"}
    refused = Profile(accepts=Accepts(refuses="local"))
    assert {c.plan.exchange for c in cells(job(), refused)} == {"exact"}
    taken = {c.plan.exchange for c in cells(job(("local", "compressed")), refused)}
    assert taken == {"exact", "compressed:bf16"}
    assert "its program exchanges every" in JobPlanner(job(), refused, None, {"a100": SLOW}).exchange_remark()
    said = JobPlanner(job(), can_t, None, {"a100": SLOW}).exchange_remark()
    assert said == " comm=local changes nothing: its program exchanges every gradient in every step."
    assert JobPlanner(job(()), can_t, None, {"a100": SLOW}).exchange_remark() == ""
    assert "no slow link" in JobPlanner(job(shape=ONE), Profile(), None, {"a100": SLOW}).exchange_remark()
    fast = {"a100": replace(SLOW, inter_gbs=1000.0, intra_gbs=1000.0)}
    said = JobPlanner(job(), Profile(), None, fast).exchange_remark()
    assert "changes nothing: exchange local:" in said and said.endswith("gain too little.")


def test_what_it_runs_with_is_among_its_cells() -> None:
    present = Plan(dp=8, micro_batch=8, global_batch=64, zero_stage=0, exchange="local:4")
    found = cells(job(), present=present)
    assert best(found) != "local:4"
    here = current_cell(found, TWO, present)
    assert here is not None and here.plan == present
    # taken back: it goes on only until a restart to the exact exchange pays, which is soon
    taken = cells(with_exchange(job(), True, KINDS), present=present)
    back, exact = (next(c for c in taken if c.plan.exchange == e) for e in ("local:4", "exact"))
    assert back.goodput < 0.5 * exact.goodput and best(taken) == "exact"


def test_a_bad_example_costs_an_option_its_place() -> None:
    plan, known = Plan(dp=8, micro_batch=8, global_batch=64, zero_stage=0), {"a100": replace(SLOW, inter_gbs=0.5)}

    def found(profile: Profile) -> tuple[Cell, ...]:
        return JobPlanner(job(), profile, None, known).cells(CLUSTER)

    step_s, option = {c.plan.exchange: c.step_s for c in found(Profile())}, best(found(Profile()))
    assert option.startswith("local:")
    seen = tuple(
        Measurement(replace(plan, exchange=e), TWO, step_s[e], 500, worth)
        for e, worth in (("exact", None), (option, 0.06))
    )
    assert best(found(Profile(measured=seen, samples=1000))) == "exact"
    good = (seen[0], replace(seen[1], comm_efficiency=0.99))
    assert best(found(Profile(measured=good, samples=1000))).startswith("local:")


def test_the_admin_s_setting_and_a_loss_that_did_worse() -> None:
    both = job(("local", "compressed"))
    assert with_exchange(both, False, KINDS) is both
    narrowed = with_exchange(both, False, ("exact", "compressed"))
    assert narrowed.directive is not None and narrowed.directive.comm == ("compressed",)
    assert with_exchange(both, False, ("exact",)).exact == "none of it is allowed here"
    assert "its loss did worse" in with_exchange(both, True, KINDS).exact
    assert with_exchange(job(()), True, ("exact",)).exact == ""


def test_a_report_s_efficiency_is_kept_with_its_plan() -> None:
    plan = Plan(dp=8, micro_batch=8, global_batch=64, zero_stage=0, exchange="local:8")
    profile = Profile()
    for value in (0.9, None, 0.8):
        report = Report(7, 0, 5, step_s=1.0, plan=plan, comm="local:8", comm_efficiency=value)
        profile = update_profile(profile, report, 1.0, None, TWO)
    exact = replace(plan, exchange="exact")
    profile = update_profile(profile, Report(7, 0, 5, step_s=4.0, plan=exact), 4.0, None, TWO)
    local, other = profile.measured
    assert (local.plan, local.step_s, other.plan, other.step_s) == (plan, 1.0, exact, 4.0)
    assert local.comm_efficiency is not None and 0.8 < local.comm_efficiency < 0.9 and other.comm_efficiency is None
    moved = replace(local, comm_efficiency=local.comm_efficiency * 1.0001)
    assert coarse(profile).measured == coarse(replace(profile, measured=(moved, other))).measured


def test_what_several_processes_have_shown_one_does_not_take_back() -> None:
    eight, one = Plan(dp=8, global_batch=64), Plan(dp=1, global_batch=64)

    def after(profile: Profile, plan: Plan, accepts: Accepts) -> Accepts:
        return update_profile(profile, Report(7, 0, 5, plan=plan, accepts=accepts), None, None).accepts

    can_t = Profile(accepts=after(Profile(), eight, Accepts(exact_only=True, refuses="local")))
    hooked = Accepts(refuses="compressed:bf16")
    assert after(can_t, one, hooked) == Accepts(exact_only=True, refuses="local+compressed:bf16")
    assert after(can_t, eight, hooked) == hooked and after(Profile(), one, Accepts()) == Accepts()


def test_a_period_that_the_rule_has_made_longer_is_priced_as_it_runs() -> None:
    present = Plan(dp=8, micro_batch=8, global_batch=64, zero_stage=0, exchange="local:4")

    def here(ran: str) -> tuple[Cell, Cell]:
        seen = Measurement(replace(present, exchange=ran), TWO, 4.0, 500)
        found = {c.plan.exchange: c for c in cells(job(), Profile(measured=(seen,), samples=500), present)}
        return found["local:4"], found["exact"]

    (as_planned, exact), (longer, more_exact) = here("local:4"), here("local:64")
    # a step of 4 s with 1/64 of the exchange in it says more of computation than one with 1/4
    assert more_exact.step_s > 4.0 and longer.step_s == pytest.approx(as_planned.step_s, rel=0.1)
    assert longer.efficiency == as_planned.efficiency, "the rule's longer period loses no more"
    assert exact.step_s != more_exact.step_s


def losses(values: list[float], exchange: str, first: int) -> list[Report]:
    plan = Plan(dp=8, micro_batch=8, global_batch=64, exchange=exchange)
    return [Report(7, 0, first + i, loss=value, plan=plan) for i, value in enumerate(values)]


@pytest.mark.parametrize(("rise", "worse"), [(0.0, False), (0.5, True)])
def test_a_loss_that_does_worse_with_less_communication_is_seen(rise: float, worse: bool) -> None:
    before = [2 + 1 / (1 + i / 20) + 0.01 * (i % 3) for i in range(60)]
    after = [2 + 1 / (4 + i / 20) + rise + 0.01 * (i % 3) for i in range(60)]
    trend = NO_LOSSES
    for report in losses(before, "exact", 1) + losses(after, "local:8", 61):
        trend = after_exchange(trend, report, None)
    assert (trend.worse is not None) is worse
    # with every gradient exchanged again it begins anew
    (again,) = losses([2.5], "exact", 121)
    assert after_exchange(trend, again, None).worse is None
