"""SynergyTask on clusters: shapes, bounds, fixed degrees, plain jobs, learning, and why there is no Cell."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.accepts import Accepts
from synergy_core.job_report import Report
from synergy_core.kernels import LOCAL, UNKNOWN
from synergy_core.records import (
    Cell,
    Cluster,
    Directive,
    Job,
    JobState,
    Measurement,
    ModelSpec,
    Plan,
    Profile,
    Shape,
)

from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.learning import update_profile
from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.hardware import figures, with_kernels
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import step_time
from tests.unit.jobmodel import builders
from tests.unit.jobmodel.builders import nodes

GPT = load_model("gpt3-1.3b")


TWO_NODES = Shape("a100", 2, 8)


def job(shape: Shape = TWO_NODES, **directive: Any) -> Job:
    return builders.job(shape, **directive)


def task(
    one: Job,
    profile: Profile = Profile(),  # noqa: B008
    model: ModelSpec | None = GPT,
    present: Plan | None = None,
) -> JobPlanner:
    return JobPlanner(one, profile, model, {}, present)


MIXED = Cluster(nodes("a100", 4, 8) + nodes("v100", 2, 4))


def test_shapes_are_powers_of_two_in_a_node_and_whole_nodes() -> None:
    found = task(job(max_gpus=32)).cells(MIXED)
    sizes = {(c.shape.gpu_type, c.shape.nodes, c.shape.gpus_per_node) for c in found}
    a100 = {("a100", 1, n) for n in (1, 2, 4, 8)} | {("a100", n, 8) for n in (2, 4)}
    # 24 GPUs divide no batch of 64 unless by tp and pp: 1.3B has 24 layers, so they do
    assert sizes == a100 | {("a100", 3, 8)} | {("v100", 1, n) for n in (1, 2, 4)} | {("v100", 2, 4)}
    keys = [(c.shape, c.plan.pp) for c in found]
    assert len(keys) == len(set(keys))
    for cell in found:
        assert cell.plan.gpus == cell.shape.gpus
        assert cell.plan.global_batch == 64 and 64 % (cell.plan.dp * cell.plan.micro_batch) == 0
        assert 0 < cell.memory_bytes <= figures(cell.shape.gpu_type).usable_bytes
    assert found == task(job(max_gpus=32)).cells(MIXED)


def test_six_gpus_a_node_gives_the_whole_node_too() -> None:
    found = task(job(Shape("a100", 1, 6), global_batch=(48, 48))).cells(Cluster(nodes("a100", 1, 6)))
    assert {c.shape.gpus for c in found} == {1, 2, 4, 6}


def test_bounds_types_partition_and_down_nodes() -> None:
    assert {c.shape.gpus for c in task(job(min_gpus=4)).cells(MIXED)} == {4, 8, 16, 24, 32}
    assert {c.shape.gpus for c in task(job(min_gpus=4, max_gpus=16)).cells(MIXED)} == {4, 8, 16}
    assert max(c.shape.gpus for c in task(job(resize=False)).cells(MIXED)) == job().asked.gpus
    assert {c.shape.gpu_type for c in task(job(gpu_types=("V100",))).cells(MIXED)} == {"v100"}
    assert {c.shape.gpu_type for c in task(job(gpu_types=("a100-80",))).cells(MIXED)} == {"a100"}
    assert not task(replace(job(), partition="cpu")).cells(MIXED)
    assert task(replace(job(), partition="cpu,gpu")).cells(MIXED)
    down = Cluster(nodes("a100", 2, 8, up=False))
    assert not task(job()).cells(down)
    held = replace(job(), state=JobState.RUNNING, node_names=("a100-0", "a100-1"))
    assert {c.shape.gpus for c in task(held).cells(down)} == {1, 2, 4, 8, 16}


def test_the_asked_shape_is_always_there() -> None:
    odd = Shape("a100", 4, 2)
    found = task(job(odd)).cells(MIXED)
    assert odd in {c.shape for c in found}
    best = task(job(odd)).best_plan(odd)
    assert best is not None
    assert best.goodput == max(c.goodput for c in found if c.shape == odd)


def test_fixed_degrees_and_micro_batch_are_kept() -> None:
    found = task(job(tp=2, pp=4, micro_batch=2)).cells(MIXED)
    assert found and {(c.plan.tp, c.plan.pp, c.plan.micro_batch) for c in found} == {(2, 4, 2)}
    assert {c.shape.gpus for c in found} == {8, 16, 32}


def test_without_a_checkpoint_that_reshards_only_dp_moves() -> None:
    present = Plan(2, 2, 2, 1, 64)
    stuck = task(job(), Profile(), GPT, present).cells(MIXED)
    assert {(c.plan.tp, c.plan.pp) for c in stuck} == {(2, 2)} and len({c.plan.dp for c in stuck}) > 1
    assert len({c.plan.pp for c in task(job(), Profile(resharding=True), GPT, present).cells(MIXED)}) > 1
    assert len({c.plan.pp for c in task(job(reshard=True), Profile(), GPT, present).cells(MIXED)}) > 1
    said_no = task(job(reshard=False), Profile(resharding=True), GPT, present).cells(MIXED)
    assert {c.plan.pp for c in said_no} == {2}


def test_a_mesh_without_a_pipeline_moves_its_tp_alone() -> None:
    """As SynergyTask reports it for a mesh (dp, tp)."""
    profile = Profile(model=GPT, resharding=True, accepts=Accepts(single_stage=True))
    found = task(job(), profile, None, Plan(dp=16, micro_batch=1, global_batch=64)).cells(MIXED)
    assert {c.plan.pp for c in found} == {1}
    fixed = task(job(tp=4), profile, None, Plan(dp=16, micro_batch=1, global_batch=64)).cells(MIXED)
    assert fixed and {c.plan.tp for c in fixed} == {4}
    # a model too large for one GPU
    large = load_model("gpt3-13b")
    split = task(job(), replace(profile, model=large), None, Plan(dp=1, tp=16, global_batch=64)).cells(MIXED)
    assert split and {c.plan.pp for c in split} == {1} and min(c.plan.tp for c in split) > 1


def test_a_mesh_with_a_pipeline_and_parts_of_sequences_moves_them_too() -> None:
    """As SynergyTask reports it where it was given a pipeline, and told of cp."""
    present = Plan(dp=16, micro_batch=1, global_batch=64)
    model = replace(load_model("gpt3-13b"), seq=16384)
    profile = Profile(model=model, resharding=True, accepts=Accepts(cp=True))
    planner = task(job(), profile, None, present)
    assert planner.limits().pp is None and planner.limits().cp is None
    assert max(c.plan.pp for c in planner.cells(MIXED)) > 1
    without = task(job(), replace(profile, accepts=Accepts(single_stage=True)), None, present)
    assert (without.limits().pp, without.limits().cp) == (1, 1)


def test_a_micro_batch_that_the_loss_depends_on_stays() -> None:
    present, profile = Plan(dp=8, micro_batch=2, global_batch=32), Profile(model=GPT, accepts=Accepts(own_micro=True))
    found = task(job(), profile, GPT, present).cells(MIXED)
    assert {cell.plan.micro_batch for cell in found} == {2}
    free = task(job(), replace(profile, accepts=Accepts()), GPT, present).cells(MIXED)
    assert {cell.plan.micro_batch for cell in free} != {2}


@pytest.mark.parametrize("model", [GPT, None])
def test_a_batch_of_multiples_stays_one_and_its_unit_is_shared_out(model: ModelSpec | None) -> None:
    """A Trainer's batch moves in multiples of its own; 31 was planned for one of 16."""
    profile = Profile(
        model=model,
        noise_scale=90.0,
        base_batch=16,
        global_batch=64,
        rebatching=True,
        accepts=Accepts(in_multiples=True),
    )
    ranged = task(job(global_batch=(16, 64)), profile, model, Plan(dp=8, micro_batch=2, global_batch=64))
    plans = [cell.plan for cell in ranged.cells(MIXED)]
    assert plans and all(p.global_batch % 16 == 0 and 16 % p.dp == 0 for p in plans)
    free = replace(ranged, profile=replace(profile, accepts=Accepts()))
    assert any(c.plan.global_batch % 16 or 16 % c.plan.dp for c in free.cells(MIXED))
    fixed = task(job(global_batch=(30, 30)), profile, model)
    assert {cell.plan.global_batch for cell in fixed.cells(MIXED)} <= {30}, "that is its user's word"


def test_the_batch_moves_only_with_a_noise_scale_and_inside_the_range() -> None:
    ranged = job(global_batch=(32, 512))
    assert {(c.plan.global_batch, c.efficiency) for c in task(ranged).cells(MIXED)} == {(32, 1.0)}
    assert {c.plan.global_batch for c in task(ranged, Profile(global_batch=128)).cells(MIXED)} == {128}
    moved = task(ranged, Profile(noise_scale=5000.0)).cells(MIXED)
    assert len({c.plan.global_batch for c in moved}) > 1
    for cell in moved:
        assert 32 <= cell.plan.global_batch <= 512
        # phi (phi + 32) / (phi + M) is 5000 at all batches, as at 32
        phi = max(np.roots([1, 32 - 5000, -5000 * cell.plan.global_batch]))
        assert cell.efficiency == pytest.approx((phi + 32) / (phi + cell.plan.global_batch))
    fixed = task(replace(job(), directive=Directive()), Profile(noise_scale=5000.0, global_batch=48)).cells(MIXED)
    assert {c.plan.global_batch for c in fixed} == {48} and {c.efficiency for c in fixed} == {1.0}


@pytest.mark.parametrize("model", [GPT, None], ids=["gpt", "plain"])
def test_a_size_that_does_not_divide_the_smallest_batch_takes_the_next_one_of_the_range(
    model: ModelSpec | None,
) -> None:
    twelve = job(Shape("v100", 3, 4), global_batch=(128, 4096), tp=1, pp=1)
    best = task(twelve, model=model).best_plan(Shape("v100", 3, 4))
    assert best is not None
    assert best.plan.global_batch == 132 and best.efficiency == pytest.approx(128 / 132)
    fixed = job(Shape("v100", 3, 4), global_batch=(128, 128), tp=1, pp=1)
    assert task(fixed, model=model).best_plan(Shape("v100", 3, 4)) is None, "that is its user's word"


def test_corrections_scale_and_reports_make_surer() -> None:
    shape = Shape("a100", 1, 8)
    first = task(job()).best_plan(shape)
    taught = task(job(), Profile(speed=0.5, memory=1.2, samples=8)).best_plan(shape)
    assert first is not None and taught is not None
    assert taught.plan == first.plan
    assert taught.step_s == pytest.approx(2 * first.step_s)
    assert taught.memory_bytes == pytest.approx(1.2 * first.memory_bytes, rel=1e-6)
    assert taught.uncertainty < first.uncertainty / 2
    unknown = task(job()).best_plan(Shape("tpu", 1, 8))
    assert unknown is not None and unknown.uncertainty > first.uncertainty
    # a memory correction may rule plans out
    assert task(job(), Profile(memory=20.0)).best_plan(Shape("v100", 1, 1)) is None


def test_the_reported_model_wins_unless_it_cannot_exist() -> None:
    small = load_model("gpt2")
    shape = Shape("a100", 1, 1)
    by_report = task(job(), Profile(model=small)).best_plan(shape)
    assert by_report == task(job(), Profile(), small).best_plan(shape)
    broken = task(job(), Profile(model=replace(small, heads=0))).best_plan(shape)
    assert broken == task(job(), Profile(), GPT).best_plan(shape)


def test_a_type_that_the_job_never_ran_on_is_less_sure_and_half_corrected() -> None:
    one = job(Shape("", 1, 4), min_gpus=4, max_gpus=4, tp=1, pp=1, micro_batch=1)
    ran = Measurement(Plan(dp=4, global_batch=64), Shape("a100", 1, 4), 1.0)

    def cells(*measured: Measurement) -> dict[str, Cell]:
        found = task(one, Profile(speed=0.25, samples=9, measured=measured)).cells(MIXED)
        return {c.shape.gpu_type: c for c in found}

    before, after = cells(), cells(ran)
    assert set(before) == set(after) == {"a100", "v100"}
    assert after["a100"].step_s == pytest.approx(1.0)
    assert after["v100"].step_s == pytest.approx(before["v100"].step_s / 2)
    assert after["v100"].uncertainty > 2 * before["v100"].uncertainty


def test_what_is_measured_on_each_type_stays_with_it() -> None:
    one = job(Shape("", 1, 4), min_gpus=4, max_gpus=4, tp=1, pp=1, micro_batch=1)
    slow = Measurement(Plan(dp=4, global_batch=64), Shape("a100", 1, 4), 5.0, samples=40)
    first = Measurement(Plan(dp=4, global_batch=64), Shape("v100", 1, 4), 2.0)
    found = {
        c.shape.gpu_type: c for c in task(one, Profile(speed=0.1, samples=41, measured=(slow, first))).cells(MIXED)
    }
    assert found["a100"].step_s == pytest.approx(5.0) and found["v100"].step_s == pytest.approx(2.0)
    assert found["v100"].uncertainty > found["a100"].uncertainty


def test_plain_job_is_data_parallel_and_never_gets_more_samples_a_gpu() -> None:
    plain = task(job(Shape("v100", 1, 4), max_gpus=8), Profile(), None)
    found = {c.shape: c for c in plain.cells(MIXED)}
    for cell in found.values():
        p = cell.plan
        assert (p.tp, p.pp, p.dp) == (1, 1, cell.shape.gpus)
        assert p.micro_batch <= 16 and p.global_batch == 64 and 64 % (p.dp * p.micro_batch) == 0
        assert cell.memory_bytes == 0
    one, two, four = (found[Shape("v100", 1, n)] for n in (1, 2, 4))
    assert one.goodput < two.goodput < four.goodput <= 4 * one.goodput * (1 + 1e-9)
    assert four.goodput > found[Shape("a100", 1, 1)].goodput
    slower = task(job(Shape("v100", 1, 4)), Profile(speed=0.1, samples=5), None).best_plan(four.shape)
    bare = plain.best_plan(four.shape)
    assert slower is not None and bare is not None
    assert slower.goodput == pytest.approx(0.1 * bare.goodput)
    fixed = task(job(Shape("v100", 1, 4), tp=2, pp=2), Profile(), None).best_plan(four.shape)
    assert fixed is not None and (fixed.plan.tp, fixed.plan.pp, fixed.plan.dp) == (2, 2, 1)


def test_predict_is_the_model_without_corrections() -> None:
    taught = task(job(), Profile(speed=0.5, memory=1.2, samples=8))
    cell = taught.best_plan(Shape("a100", 1, 8))
    assert cell is not None
    predicted = taught.predict(cell.shape, cell.plan)
    assert predicted is not None
    assert predicted[0] == pytest.approx(0.5 * cell.step_s)
    assert predicted[1] == pytest.approx(cell.memory_bytes / 1.2, rel=1e-6)
    assert taught.predict(Shape("a100", 1, 4), cell.plan) is None
    plain = task(job(), Profile(speed=0.5, samples=1), None)
    cell = plain.best_plan(Shape("a100", 1, 8))
    assert cell is not None and plain.predict(cell.shape, cell.plan) == pytest.approx((0.5 * cell.step_s, 0))


@pytest.mark.parametrize(
    ("directive", "says"),
    [
        ({"min_gpus": 64}, "min_gpus=64 is more GPUs of one type than the cluster has for this job (32 a100, 8 v100)"),
        ({"min_gpus": 8, "max_gpus": 4}, "min_gpus=8 is above max_gpus=4"),
        ({"min_gpus": 5, "max_gpus": 7}, "no whole-node or power-of-two size lies in 5 to 7 GPUs"),
        ({"gpu_types": ("h100",)}, "gpu_types=h100: no usable node has them; the cluster has a100, v100"),
        ({"tp": 3}, "tp=3 does not divide"),
        ({"pp": 5}, "pp=5 does not divide"),
        ({"micro_batch": 7}, "micro_batch=7 does not divide global_batch=64"),
        ({"tp": 16, "pp": 24, "max_gpus": 16}, "needs 384 GPUs, more than the 16 allowed"),
        ({"min_gpus": 16, "gpu_types": ("a100",), "global_batch": (7, 7), "tp": 1, "pp": 1}, "divides global_batch=7"),
    ],
)
def test_why_there_is_no_cell(directive: dict[str, Any], says: str) -> None:
    impossible = task(job(**directive))
    assert impossible.cells(MIXED) == ()
    why = impossible.why_no_cell(MIXED)
    assert says in why and "\n" not in why


def test_why_there_is_no_cell_for_what_fits_nowhere() -> None:
    why = task(job(), model=load_model("gpt3-175b")).why_no_cell(MIXED)
    assert "gpt3-175b does not fit" in why and "GiB" in why and "would help" in why
    assert task(job()).why_no_cell(MIXED) == ""
    assert "no node with GPUs is up in partition gpu" in task(job()).why_no_cell(Cluster(()))
    picky = replace(job(), features="ib&nvme")
    assert "up in partition gpu with the features that it asks for (ib&nvme)" in task(picky).why_no_cell(Cluster(()))
    broken = replace(job(), directive=None, directive_error="line 3: unknown key tpp")
    assert task(broken).cells(MIXED) == () and task(broken).why_no_cell(MIXED) == "line 3: unknown key tpp"
    lone = replace(job(global_batch=(7, 7), min_gpus=16), shape=Shape("a100", 2, 8))
    assert "divides global_batch=7" in task(lone, model=None).why_no_cell(MIXED)


def report(step_s: float | None, **extra: Any) -> Report:
    return Report(7, 0, 10, step_s=step_s, **extra)


def test_a_report_corrects_within_one_update() -> None:
    after = update_profile(Profile(), report(2.0, peak_memory_bytes=150), 1.0, 100)
    assert (after.speed, after.memory) == pytest.approx((0.5, 1.5)) and after.samples == 1


def test_one_odd_measurement_moves_little_and_a_lasting_change_is_followed() -> None:
    profile = Profile()
    for _ in range(8):
        profile = update_profile(profile, report(1.0), 1.0, None)
    odd = update_profile(profile, report(1000.0), 1.0, None)
    assert 0.9 < odd.speed < 1.0
    for _ in range(40):
        profile = update_profile(profile, report(4.0), 1.0, None)
    assert profile.speed == pytest.approx(0.25, rel=0.02)


def test_a_first_odd_measurement_is_outgrown() -> None:
    profile = update_profile(Profile(), report(1000.0), 1.0, None)
    assert profile.speed == pytest.approx(1 / 20)
    for _ in range(25):
        profile = update_profile(profile, report(1.0), 1.0, None)
    assert profile.speed == pytest.approx(1.0, rel=0.1)


def test_report_fills_model_batch_resharding_and_noise() -> None:
    plan = Plan(2, 1, 2, 1, 32)
    first = update_profile(
        Profile(), report(None, plan=plan, model=GPT, resharding=True, noise_scale=100.0), None, None
    )
    assert (first.model, first.global_batch, first.resharding, first.noise_scale) == (GPT, 32, True, 100.0)
    assert (first.speed, first.memory, first.samples) == (1.0, 1.0, 0)
    second = update_profile(first, report(None, noise_scale=1e9, resharding=True), None, None)
    assert second.model == GPT and second.global_batch == 32
    assert second.noise_scale == 400.0, "within a factor of four"


numbers = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


@given(numbers, numbers, numbers, st.one_of(st.none(), st.integers()), st.one_of(st.none(), st.integers()))
def test_no_report_can_break_a_profile(
    step: float | None, predicted: float | None, noise: float | None, peak: int | None, predicted_peak: int | None
) -> None:
    profile = Profile()
    for _ in range(4):
        profile = update_profile(
            profile, report(step, noise_scale=noise, peak_memory_bytes=peak), predicted, predicted_peak
        )
        for value in (profile.speed, profile.memory):
            assert 1 / 20.001 <= value <= 20.001
        assert profile.noise_scale is None or 0 < profile.noise_scale < math.inf


def test_without_any_word_on_the_batch_every_smaller_power_of_two_can_run() -> None:
    for model in (GPT, None):
        unsaid = task(replace(job(), directive=Directive()), model=model).cells(MIXED)
        assert {1, 2, 4, 8, 16} <= {c.shape.gpus for c in unsaid}
        assert {c.plan.global_batch for c in unsaid} == {16 * 8}


def test_a_prime_batch_of_a_plain_job_is_quick_and_right() -> None:
    prime = 9_999_991
    cell = task(job(Shape("v100", 1, 4), global_batch=(prime, prime)), Profile(), None).best_plan(Shape("v100", 1, 1))
    assert cell is not None and cell.plan.micro_batch == 1 and cell.plan.global_batch == prime
    huge = task(job(global_batch=(10**15, 10**15)))
    assert huge.cells(MIXED) == () and "too large" in huge.why_no_cell(MIXED)


def test_detected_kernels_are_what_a_job_is_predicted_by() -> None:
    one, shape, plan = job(Shape("a100", 1, 8)), Shape("a100", 1, 8), Plan(dp=8, micro_batch=1, global_batch=64)
    assumed, local = task(one), task(one, Profile(kernels=LOCAL))
    for planner, kernels in ((assumed, UNKNOWN), (local, LOCAL)):
        gpu = with_kernels(figures("a100"), kernels)
        step_s = step_time(GPT, gpu, from_plans([plan], 8)).total[0]
        peak = int(peak_memory(GPT, gpu, from_plans([plan], 8)).total[0])
        predicted = planner.predict(shape, plan)
        assert predicted is not None and predicted[0] == pytest.approx(step_s) and predicted[1] == peak
    slow, fast = local.best_plan(shape), assumed.best_plan(shape)
    assert slow and fast and slow.step_s > 1.2 * fast.step_s
