"""Pipelines whose first and last stage have fewer layers: layouts, time, memory, which plans there are, Megatron's options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.pipeline_stages import StageLayers, can_hold_virtual_stages, stage_layers
from synergy_core.records import Plan, Shape
from synergy_launch.megatron_lm.arguments import with_plan

from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.stages import layers_at_ends
from synergyd.jobmodel.model.step_time import step_time
from synergyd.jobmodel.plan_limits import PlanLimits, check_fixed
from synergyd.jobmodel.plan_space import enumerate_plans
from synergyd.jobmodel.plan_table import plan_table

LLAMA = load_model("llama3-405b")


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        (126, 16, StageLayers(7, 8, 7)),
        (61, 16, StageLayers(3, 4, 2)),
        (61, 8, StageLayers(7, 8, 6)),
        (6, 4, StageLayers(1, 2, 1)),
        (32, 4, StageLayers(8, 8, 8)),
        (126, 1, StageLayers(126, 126, 126)),
        (63, 2, None),  # two stages are both ends
        (40, 16, None),  # 14 stages of 3 leave nothing
    ],
)
def test_layouts(layers: int, pp: int, expected: StageLayers | None) -> None:
    assert stage_layers(layers, pp) == expected


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 3))
def test_every_layer_is_somewhere_and_no_end_has_more_than_the_middle(layers: int, pp: int, mtp: int) -> None:
    found = stage_layers(layers, pp, mtp)
    first, last = layers_at_ends(layers, np.array([pp]), mtp)
    if found is None:
        assert layers % pp
        assert first[0] == last[0] == layers // pp + 1
        return
    assert found.first + found.last + found.middle * (pp - 2) == layers if pp > 1 else found.middle == layers
    assert 1 <= found.last <= found.first <= found.middle
    assert (first[0], last[0]) == (found.first, found.last)


def test_the_last_stage_leaves_room_for_multi_token_prediction() -> None:
    """As far as an uneven layout goes: the first stage takes at most what the others have, and the last keeps one layer."""
    assert stage_layers(61, 16, 1) == StageLayers(4, 4, 1) == stage_layers(61, 16, 3)
    assert stage_layers(61, 8, 1) == StageLayers(8, 8, 5)
    assert stage_layers(64, 16, 1) == StageLayers(4, 4, 4)


def test_virtual_stages_of_an_uneven_layout() -> None:
    assert [v for v in (1, 2, 3, 4, 8) if can_hold_virtual_stages(126, 16, v)] == [
        1,
        2,
        4,
    ]  # 8: the first would have no layer
    assert [v for v in (1, 2, 4) if can_hold_virtual_stages(61, 16, v)] == [1]
    assert [v for v in (1, 2, 3, 4, 8) if can_hold_virtual_stages(32, 4, v)] == [1, 2, 4, 8]


def test_the_last_stage_has_room_for_its_logits() -> None:
    """128 layers on 16 stages against 126: the middle stages are alike, and of the last stage's logits only what one layer's time does
    not cover is left."""
    gpu, even = figures("h100"), replace(LLAMA, layers=128)
    plan = from_plans([Plan(tp=8, pp=16, dp=1, micro_batch=1, global_batch=64, sequence_parallel=True)], 8)
    uneven_s, even_s = step_time(LLAMA, gpu, plan), step_time(even, gpu, plan)
    assert uneven_s.compute[0] < even_s.compute[0]
    assert uneven_s.bubble[0] == pytest.approx(even_s.bubble[0])
    # memory: the second stage is the fullest, with one micro-batch less in flight than the first of 128 layers has
    less, more = peak_memory(LLAMA, gpu, plan).total[0], peak_memory(even, gpu, plan).total[0]
    assert more * 15 / 16 * 0.98 < less < more


def test_only_who_takes_them_gets_uneven_stages() -> None:
    shape = [Shape("h100", 32, 8)]
    plain = enumerate_plans(LLAMA, figures("h100"), shape, PlanLimits(128, 128, vpp=None))
    wider = enumerate_plans(LLAMA, figures("h100"), shape, PlanLimits(128, 128, vpp=None, uneven=True))
    assert not {p for p in plain.plans.pp.tolist() if 126 % p} and {8, 16} <= set(wider.plans.pp.tolist())
    layouts = {(p, v) for p, v in zip(wider.plans.pp.tolist(), wider.plans.vpp.tolist(), strict=True) if 126 % p}
    assert all(can_hold_virtual_stages(126, p, v) for p, v in layouts) and (16, 4) in layouts
    check_fixed(LLAMA, PlanLimits(128, 128, pp=16, vpp=2, uneven=True), "directive")
    with pytest.raises(UsageError, match="vpp=3 does not divide llama3-405b's 126 layers; vpp may be 1, 2, 4"):
        check_fixed(LLAMA, PlanLimits(128, 128, pp=16, vpp=3, uneven=True), "directive")
    with pytest.raises(UsageError, match="pp=16 does not divide llama3-405b's 126 layers; pp may be 1, 2, 3"):
        check_fixed(LLAMA, PlanLimits(128, 128, pp=16), "directive")


ARGUMENTS = [
    *(["--num-layers", "126", "--hidden-size", "16384", "--num-attention-heads", "128", "--seq-length", "8192"]),
    *(["--micro-batch-size", "1", "--global-batch-size", "64", "--bf16"]),
]


def test_megatrons_options() -> None:
    plan = Plan(tp=8, pp=16, dp=1, micro_batch=1, global_batch=64)
    words = " ".join(with_plan(ARGUMENTS, plan))
    assert "--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7" in words
    assert "account-for" not in words and "virtual" not in words
    words = " ".join(with_plan(ARGUMENTS, replace(plan, vpp=4)))
    assert "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split" in words
    assert "--num-virtual-stages-per-pipeline-rank 4" in words and "--decoder-first" not in words
    # what an earlier plan left does not stay
    again = with_plan([*ARGUMENTS, "--num-layers-per-virtual-pipeline-stage", "3"], plan)
    assert "--num-layers-per-virtual-pipeline-stage" not in again
    even = " ".join(with_plan(ARGUMENTS, replace(plan, pp=2, tp=4)))
    assert "--decoder-first" not in even and "--account-for" not in even


def test_a_users_own_layout_stays_for_its_own_pp() -> None:
    plan = Plan(tp=8, pp=16, dp=1, micro_batch=1, global_batch=64)
    pp = [*ARGUMENTS, "--pipeline-model-parallel-size", "16"]
    for layout in (
        ["--decoder-first-pipeline-num-layers", "5", "--decoder-last-pipeline-num-layers", "9"],
        ["--pipeline-model-parallel-layout", "Et*6|(t*8|)*14t*8L", "--mtp-num-layers", "1"],
        ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
         "--num-virtual-stages-per-pipeline-rank", "2"],
    ):  # fmt: skip
        made = " ".join(with_plan([*pp, *layout], plan))
        assert " ".join(layout) in made
        assert made.count("-pipeline-num-layers") == " ".join(layout).count("-pipeline-num-layers")
        # laid out for 16 stages, it is nothing to 2
        less = with_plan([*pp, *layout], replace(plan, pp=2, tp=4))
        assert layout[0] not in less and (len(layout) > 2 or layout[1] not in less)


def test_llama_405b_on_16384_h100() -> None:
    """Trained at 41 % MFU with tp 8, pp 16, dp 128 (The Llama 3 Herd of Models, table 4: 8,192-token sequences, batch 2,048)."""
    best = plan_table(LLAMA, "h100", [16384], 8, (2048, 2048)).counts[0].rows[:5]
    like = [row.mfu for row in best if (row.cell.plan.tp, row.cell.plan.pp) == (8, 16)]
    print("Llama 3.1 405B on H100, tp 8, pp 16: MFU", ", ".join(f"{100 * mfu:.1f} %" for mfu in like))
    assert like and max(like) == pytest.approx(0.41, rel=0.1)


def test_gpt3_on_1024_a100() -> None:
    """Megatron-LM measured 51 % MFU for this model on A100 (Korthikanti et al. 2022, table 5, 64 GPUs)."""
    best = plan_table(load_model("gpt3-175b"), "a100", [1024], 8, (1536, 1536)).counts[0].rows
    print(f"GPT-3 175B on A100: MFU {100 * max(row.mfu for row in best):.1f} %")
    assert 0.45 < max(row.mfu for row in best) <= 0.6
