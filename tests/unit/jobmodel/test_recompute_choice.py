"""Full recompute of some layers and of modules: what it keeps and takes, and which of it a search chooses."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from synergy_core.recompute import MODULES, is_recompute, list_modules, of_modules
from synergy_core.records import ModelSpec, Plan, Shape

from synergyd.control.failed_plans import needs_as_much
from synergyd.jobmodel.cell_search import rank
from synergyd.jobmodel.memory_belief import MemoryBelief
from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import step_time
from synergyd.jobmodel.plan_limits import PlanLimits
from synergyd.jobmodel.plan_space import enumerate_plans

H100 = figures("h100")
LLAMA = load_model("llama3-8b")
MOE = ModelSpec("moe", 8, 2048, 16, 8, 4096, 32000, 4096, True, False, experts=4, top_k=2)
DEEPSEEK = load_model("deepseek-v3")
NODE = Shape("h100", 1, 8)
BLOCKS = PlanLimits(64, 64, vpp=None, blocks=True)


def both(model: ModelSpec, plans: list[Plan]) -> tuple[list[float], list[float]]:
    """(peak bytes, seconds) of each plan on nodes of 8 H100."""
    arrays = from_plans(plans, 8)
    return peak_memory(model, H100, arrays).total.tolist(), step_time(model, H100, arrays).total.tolist()


def test_the_words_of_a_plan() -> None:
    assert of_modules(("moe_act", "layernorm")) == "layernorm+moe_act" and of_modules(("core_attn",)) == "selective"
    assert list_modules("selective") == ("core_attn",) and list_modules("full") == list_modules("none") == ()
    assert all(is_recompute(text) for text in ("none", "selective", "full", "core_attn+mlp", *MODULES[1:]))
    assert not any(
        is_recompute(text) for text in ("", "core_attn", "mlp+layernorm", "mlp+mlp", "full+mlp", "operators")
    )


@pytest.mark.parametrize(
    "plan", [Plan(2, 1, 4, 2, 64, "full", True), Plan(1, 4, 2, 1, 64, "full", vpp=2), Plan(1, 2, 4, 1, 64, "full")]
)
def test_each_further_layer_keeps_less_and_takes_longer(plan: Plan) -> None:
    each = 32 // (plan.pp * plan.vpp)
    some = [replace(plan, recompute_layers=n) for n in range(1, each + 1)]
    peaks, times = both(LLAMA, [replace(plan, recompute="none"), *some, plan])
    assert all(a > b for a, b in pairwise(peaks[:-2])) and all(a < b for a, b in pairwise(times[:-1]))
    # the last number is all of them
    assert (peaks[-1], times[-1]) == pytest.approx((peaks[-2], times[-2]))
    # each layer frees and takes the same
    assert np.diff(times[:-1]) == pytest.approx(times[1] - times[0], rel=1e-6)
    if plan.pp == 1:
        assert np.diff(peaks[:-2]) == pytest.approx(peaks[1] - peaks[0], rel=1e-6)


@pytest.mark.parametrize(
    ("model", "module", "elements"),
    [
        # tokens of a micro-batch times what Megatron's layer holds of it (Korthikanti et al. 2022, section 4), 2 bytes each
        (LLAMA, "mlp", 3 * 14336),
        (MOE, "moe_act", 2 * 4096),
        (MOE, "moe", 2 * 3 * 4096),
        (MOE, "layernorm", 2048),
        (LLAMA, "layernorm", 0),
        (MOE, "mlp", 0),
    ],
)
def test_what_a_module_frees(model: ModelSpec, module: str, elements: int) -> None:
    plan = Plan(1, 1, 8, 1, 64)
    gpu = replace(H100, activation_scale=1.0, fragmentation=0.0)
    peaks = peak_memory(model, gpu, from_plans([plan, replace(plan, recompute=module)], 8)).total
    # all layers but the one that is being computed again
    assert peaks[0] - peaks[1] == pytest.approx(2 * model.seq * elements * (model.layers - 1), abs=1.0)
    times = step_time(
        model, H100, from_plans([plan, replace(plan, recompute=module), replace(plan, recompute="full")], 8)
    ).total
    assert times[0] < times[1] < times[2] if elements else times[0] == times[1]


def test_modules_add_up_and_moe_is_more_than_its_parts() -> None:
    plan = Plan(1, 8, 256, 1, 2048, ep=64)
    names = (
        "none",
        "mla_up_proj",
        "layernorm",
        "moe_act",
        "layernorm+mla_up_proj+moe_act",
        "moe",
        "moe+moe_act",
        "full",
    )
    peaks, times = both(DEEPSEEK, [replace(plan, recompute=name) for name in names])
    freed, takes = [peaks[0] - peak for peak in peaks], [t - times[0] for t in times]
    assert freed[4] == pytest.approx(sum(freed[1:4])) and takes[4] == pytest.approx(sum(takes[1:4]))
    assert min(freed[1:4]) > 0 and freed[5] > freed[3] and freed[6] == freed[5] and freed[7] > freed[5]
    assert takes[6] == takes[5] > takes[3] and takes[7] > takes[5]
    # the up-projections come from 2 x 512 wide to 128 heads: cheap for what they free (DeepSeek-V3, section 3.2.3)
    assert freed[1] / takes[1] > freed[7] / takes[7]


def test_the_fewest_layers_that_fit() -> None:
    """Against trying every number."""
    model, shape = load_model("llama3-70b"), Shape("h100", 4, 8)
    found = enumerate_plans(model, H100, [shape], replace(BLOCKS, pp=4, tp=8))
    plans = [found.plans.plan(i) for i in range(len(found.plans))]
    chosen = [plan for plan in plans if plan.recompute_layers]
    assert len(chosen) > 5 and len(set(plans)) == len(plans)
    for plan in chosen:
        fewer = replace(plan, recompute_layers=plan.recompute_layers - 1)
        fewer = fewer if fewer.recompute_layers else replace(fewer, recompute="none")
        peaks, _ = both(model, [plan, fewer])
        assert peaks[0] <= H100.usable_bytes < peaks[1]
    # nothing is lost: each plan of a search without it has one here that is no slower
    old = rank(model, H100, [shape], replace(BLOCKS, blocks=False, pp=4, tp=8))
    new = rank(model, H100, [shape], replace(BLOCKS, pp=4, tp=8))
    assert (
        len(new.step_s) == len(old.step_s) and (new.step_s <= old.step_s).all() and (new.step_s < old.step_s).sum() > 5
    )
    assert not any(old.candidates.plans.recompute_layers)


def test_a_plan_that_may_fail_is_tried_with_the_layers_that_make_it_safe() -> None:
    tight = replace(H100, memory_gib=37.0)
    belief = MemoryBelief(sigma=0.1)
    found = enumerate_plans(LLAMA, tight, [NODE], BLOCKS, belief)
    plans = [found.plans.plan(i) for i in range(len(found.plans))]
    assert len(set(plans)) == len(plans)
    by_degrees: dict[Plan, list[float]] = {}
    for plan, risk in zip(plans, found.risk, strict=True):
        by_degrees.setdefault(replace(plan, recompute="", recompute_layers=0), []).append(float(risk))
    unsure = [risks for risks in by_degrees.values() if max(risks) > 0.3]
    assert unsure and sum(min(risks) <= 0.0101 for risks in unsure) > len(unsure) / 2
    assert any(0.01 < risk < 0.2 for risks in unsure for risk in risks)  # and between


def test_modules_are_chosen_where_a_model_has_them() -> None:
    limits = PlanLimits(64, 64, ep=None, blocks=True, modules=MODULES)
    tight = replace(H100, memory_gib=30.0)
    for model, expected in ((MOE, {"layernorm+moe_act", "layernorm+moe"}), (LLAMA, {"mlp"})):
        found = enumerate_plans(model, tight, [NODE], limits)
        kinds = {found.plans.plan(i).recompute for i in range(len(found.plans))}
        assert kinds & expected and kinds <= {"none", "full", "layernorm+moe_act", "layernorm+moe+moe_act", *expected}
        plans = [found.plans.plan(i) for i in range(len(found.plans))]
        assert len(set(plans)) == len(plans)
        without = enumerate_plans(model, tight, [NODE], replace(limits, modules=()))
        assert {without.plans.plan(i).recompute for i in range(len(without.plans))} <= {"none", "full"}


@pytest.mark.parametrize(
    ("recompute", "layers", "failed", "failed_layers", "as_much"),
    [
        ("full", 2, "full", 2, True),
        ("full", 2, "full", 3, True),
        ("full", 3, "full", 2, False),
        ("full", 0, "full", 2, False),
        ("full", 2, "full", 0, True),
        ("full", 0, "full", 0, True),
        ("none", 0, "full", 2, True),
        ("mlp", 0, "full", 2, False),
        ("mlp", 0, "full", 0, True),
        ("mlp", 0, "layernorm+mlp", 0, True),
        ("layernorm+mlp", 0, "mlp", 0, False),
        ("none", 0, "none", 0, True),
        ("full", 1, "none", 0, False),
        ("full", 1, "mlp", 0, False),
    ],
)
def test_a_plan_that_keeps_more_than_one_that_failed_fails_too(
    recompute: str, layers: int, failed: str, failed_layers: int, as_much: bool
) -> None:
    plan, other = (
        Plan(recompute=recompute, recompute_layers=layers),
        Plan(recompute=failed, recompute_layers=failed_layers),
    )
    assert needs_as_much(plan, other) is as_much
