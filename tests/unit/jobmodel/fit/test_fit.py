"""Fitting, refining, scoring and the profile file, on rows of a made-up cluster whose true parameters are known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError
from synergy_core.records import Cluster, Directive, Job, JobState, ModelSpec, Node, Plan, Profile, Shape

from synergyd.cli.planning.plan import plan as plan_command
from synergyd.cli.profiles import profiles
from synergyd.cli.shared.atomic import write_atomically
from synergyd.daemon.forecast import Forecast
from synergyd.jobmodel.cell_search import uncertainty
from synergyd.jobmodel.fit import residual
from synergyd.jobmodel.fit.measured_runs import MeasuredRun, Shots
from synergyd.jobmodel.fit.parameters import MEMORY, TIME, backward, family, forward
from synergyd.jobmodel.fit.predictor import Predictor, fit_predictor
from synergyd.jobmodel.fit.profile_file import profile_text, read_profile
from synergyd.jobmodel.fit.residual import PlanFeatures
from synergyd.jobmodel.fit.score import score, score_files, spearman
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import step_time
from synergyd.settings import Settings

HELD = Shape("a100", 1, 8)
JOB = Job(1, "train", "ann", 1000, "main", JobState.PENDING, "", 0.0, None, None, 0, HELD, HELD)
SMALL, LARGE = load_model("gpt3-1.3b"), load_model("gpt3-6.7b")
PLANS = [
    Plan(tp, pp, 16 // tp // pp, micro, 64, "full", False, 0)
    for tp in (1, 2, 4, 8)
    for pp in (1, 2, 4)
    if tp * pp <= 16
    for micro in (1, 2, 4)
    if 64 % (16 // tp // pp * micro) == 0
]
TRUTH = {
    "gemm_efficiency": 0.6,
    "link_efficiency": 0.6,
    "launch_s": 6e-4,
    "inter_efficiency": 0.5,
    "activation_scale": 1.2,
}


def truth(gpu_type: str) -> GpuFigures:
    return replace(figures(gpu_type), **TRUTH)  # type: ignore[arg-type]


def rows_of(cluster: str, gpu_type: str, models: tuple[ModelSpec, ...] = (SMALL, LARGE)) -> list[MeasuredRun]:
    rows = []
    for model in models:
        plans = from_plans(PLANS, 8)
        times = step_time(model, truth(gpu_type), plans).total
        peaks = peak_memory(model, truth(gpu_type), plans).total
        rows += [
            MeasuredRun(
                row_id=f"{cluster}-{gpu_type}-{model.name}-{i}",
                file=f"{cluster}.csv",
                line=i + 2,
                cluster=cluster,
                gpu_type=gpu_type,
                gpus_per_node=8,
                model=model,
                plan=plan,
                time_s=float(times[i]),
                memory_bytes=float(peaks[i]),
                scores=frozenset(("time", "plan", "mem")),
                group=model.name,
                fused=True,
            )
            for i, plan in enumerate(PLANS)
        ]
    return rows


ROWS = rows_of("ours", "a100-80")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    """Fitted to every other row."""
    return fit_predictor(ROWS[::2])


def error(predictor: Predictor, rows: list[MeasuredRun]) -> float:
    return float(np.mean(np.abs(predictor.step_s(rows) / [row.time_s for row in rows] - 1)))


UNFITTED = fit_predictor(rows_of("elsewhere", "v100")[:1])


def test_a_fit_predicts_rows_it_has_not_seen(predictor: Predictor) -> None:
    assert error(UNFITTED, ROWS[1::2]) > 0.15
    assert error(predictor, ROWS[1::2]) < 0.02
    peaks = predictor.peak_bytes(ROWS[1::2]) / [row.memory_bytes for row in ROWS[1::2]]
    assert np.abs(peaks - 1).max() < 0.03


def test_a_cluster_never_seen_is_less_sure_and_better_than_the_figures(predictor: Predictor) -> None:
    strange = [replace(row, cluster="theirs") for row in ROWS[1::2]]
    # one source alone says little of all others
    assert error(predictor, strange) < 0.85 * error(UNFITTED, strange)
    known, unknown = predictor.uncertainty(ROWS[1::2]), predictor.uncertainty(strange)
    assert np.all(known < unknown) and known.mean() < 0.05 and 0.2 < unknown.mean() < 1


def test_a_cost_for_each_rank_is_learnt_for_its_cluster_alone() -> None:
    """2.5 ms for each rank that shares the optimizer out, on one cluster of two: rank counts never seen are right on both."""

    def rows(cluster: str, rank_s: float) -> list[MeasuredRun]:
        plans = [
            replace(plan, dp=plan.dp * more, global_batch=64 * more, zero_stage=1)
            for plan in PLANS
            if plan.tp * plan.pp <= 4
            for more in (1, 4, 16)
        ]
        arrays = from_plans(plans, 8)
        step_s = step_time(SMALL, truth("a100-80"), arrays).total + rank_s * (arrays.dp - 1)
        return [
            replace(ROWS[0], row_id=f"{cluster}-{i}", cluster=cluster, plan=plan, time_s=float(s), memory_bytes=None)
            for i, (plan, s) in enumerate(zip(plans, step_s.tolist(), strict=True))
        ]

    known = [*rows("ours", 2.5e-3), *rows("theirs", 0.0)]
    held = [row for row in known if row.plan.dp > 64]
    predictor = fit_predictor([row for row in known if row.plan.dp <= 64])
    for cluster, low, high in (("ours", 1.9e-3, 3e-3), ("theirs", 0.0, 3e-4)):
        assert low <= predictor.figures("a100-80", cluster).dp_rank_s <= high
        assert error(predictor, [row for row in held if row.cluster == cluster]) < 0.06


def test_a_type_of_the_same_chip_is_predicted_from_it(predictor: Predictor) -> None:
    assert family("a100-40") == family("a100-80") == "a100" != family("h100")
    assert error(predictor, rows_of("ours", "a100-40")) < 0.09


@pytest.mark.slow
def test_figures_carry_what_the_profile_knows() -> None:
    """Surer where rows were measured, no surer than the figures elsewhere, and what a Cell says grows from that."""
    predictor = fit_predictor(rows_of("ours", "a100"))
    here, elsewhere = predictor.figures("a100"), predictor.figures("h100")
    assert here.uncertainty < 0.5 * figures("a100").uncertainty
    assert elsewhere.uncertainty >= figures("h100").uncertainty > here.uncertainty
    assert predictor.figures("something new").uncertainty >= 0.6
    # more rows of more plans leave less open; no rows leave the figures' own
    fewer = fit_predictor(rows_of("ours", "a100")[:2])
    assert fewer.figures("a100").uncertainty > here.uncertainty
    assert fit_predictor(()).figures("a100").uncertainty == figures("a100").uncertainty
    job, nodes = replace(JOB, directive=Directive(model="gpt3-1.3b")), Cluster((Node("n1", "a100", 8),))
    task = JobPlanner(job, Profile(), load_model("gpt3-1.3b"), {"a100": here})
    cells = task.cells(nodes)
    assert cells and all(
        cell.uncertainty == pytest.approx(uncertainty(here.uncertainty, 0), rel=0.05) for cell in cells
    )


def test_a_source_of_many_rows_does_not_stand_for_all() -> None:
    """The effect that is common to all sources moves less than the source's own does."""
    effects = fit_predictor(rows_of("ours", "a100")).time.effects
    common, own = effects.mean[""], sum(effects.mean[level] for level in effects.mean if "ours" in level)
    assert np.abs(common).sum() < np.abs(own).sum()


def test_odd_rows_change_little() -> None:
    odd = [
        replace(row, time_s=row.time_s * 10) if i % 12 == 0 else row for i, row in enumerate(ROWS[::2]) if row.time_s
    ]
    assert error(fit_predictor(odd), ROWS[1::2]) < 0.08


def test_six_shots_teach_a_new_cluster(predictor: Predictor) -> None:
    new = rows_of("third", "h100", (LARGE,))
    taught = predictor.with_rows(new[::6])
    assert len(new[::6]) == 6
    rest = [row for i, row in enumerate(new) if i % 6]
    assert error(taught, rest) < 0.05 and error(taught, rest) < 0.5 * error(predictor, rest)
    off = np.abs(np.log(taught.step_s(rest) / [row.time_s for row in rest]))
    assert np.mean(off <= 2 * taught.uncertainty(rest)) > 0.9
    # and what was known stays known
    assert error(taught, ROWS[1::2]) == pytest.approx(error(predictor, ROWS[1::2]), abs=1e-6)


def test_a_plan_that_ran_out_of_memory_teaches_memory(predictor: Predictor) -> None:
    """Its peak was beyond the GPU's, where a smaller one was predicted; where a larger one was, it says nothing new."""
    failed = replace(ROWS[0], cluster="third", time_s=None, memory_bytes=None, out_of_memory=True)
    fits, too_big = (replace(failed, plan=Plan(1, 1, 8, micro, 512, "none")) for micro in (8, 32))
    limit = figures("a100-80").usable_bytes
    before = predictor.peak_bytes([fits, too_big])
    assert before[0] < limit < before[1]
    after = predictor.with_rows([fits]).peak_bytes([fits, too_big])
    assert after[0] > 1.05 * before[0] and after[1] > before[1]
    assert predictor.with_rows([too_big]).peak_bytes([fits]) == pytest.approx(before[:1])
    # and one that ran with more than there was room for, the other way
    ran = replace(too_big, out_of_memory=False, time_s=1.0)
    assert predictor.with_rows([ran]).peak_bytes([ran])[0] < before[1]


def test_a_network_that_is_known_leaves_less_open(predictor: Predictor) -> None:
    far = replace(ROWS[0], cluster="third", plan=Plan(1, 1, 64, 1, 64, "full", zero_stage=1))
    near = replace(far, plan=Plan(8, 1, 1, 1, 64, "full"))
    unknown, known = predictor.uncertainty([far]), predictor.uncertainty([replace(far, inter_gbs=11.0)])
    assert known[0] < 0.8 * unknown[0]
    assert predictor.uncertainty([near]) == pytest.approx(predictor.uncertainty([replace(near, inter_gbs=11.0)]))
    slow = predictor.step_s([replace(far, inter_gbs=3.1)])
    assert slow[0] > 1.2 * predictor.step_s([replace(far, inter_gbs=25.0)])[0]


def test_one_odd_shot_breaks_nothing(predictor: Predictor) -> None:
    new = rows_of("third", "a100-80", (LARGE,))
    odd = predictor.with_rows([replace(new[0], time_s=new[0].time_s * 50), *new[6:30:6]])  # type: ignore[operator]
    assert error(odd, new[1:6]) < 0.1
    alone = predictor.with_rows([replace(new[0], time_s=new[0].time_s * 50)])  # type: ignore[operator]
    assert error(alone, new[1:]) < 0.5


def test_scales_go_both_ways() -> None:
    for parameter in (*TIME, *MEMORY):
        for value in (0.03, 0.5, 0.9):
            assert backward(parameter, np.array(forward(parameter, value))) == pytest.approx(value, abs=0.2)
        assert np.isfinite(forward(parameter, 0.0)) and np.isfinite(forward(parameter, 1.0))


def test_fitted_figures_for_planning(predictor: Predictor) -> None:
    gpu = predictor.figures("a100-80", "ours")
    assert gpu.gemm_efficiency == pytest.approx(0.6, rel=0.1) and gpu.peak_tflops == figures("a100-80").peak_tflops
    stranger = predictor.figures("nvidia_h100_80gb_hbm3", "nobody")
    assert 0 < stranger.gemm_efficiency < 1.5 and stranger.unfused == 0


# residuals


def points(*tokens: float, hardware: int = 1, job: int = 1) -> PlanFeatures:
    n = len(tokens)
    shape = np.zeros((n, residual.SHAPE))
    shape[:, 0] = tokens
    return PlanFeatures(shape, np.zeros((n, 1)), np.full(n, hardware), np.full(n, job))


def test_residuals_repeat_for_the_same_layers_alone() -> None:
    quirk = residual.learn(points(10, 10, 12), np.array([0.3, 0.3, 0.0]), 0.02)
    same, next_, far = quirk.mean(points(10, 12, 16))
    assert same == pytest.approx(0.28, abs=0.03) and abs(next_) < 0.05 and 0 < far < 0.15
    assert quirk.mean(points(10, hardware=2))[0] == 0
    assert quirk.mean(points(10, job=2))[0] < same
    assert quirk.sigma(points(10))[0] < quirk.sigma(points(16))[0]
    assert residual.empty(1).mean(points(3.0))[0] == 0


def test_what_is_measured_to_within_more_moves_less() -> None:
    exact, rough = (residual.learn(points(10), np.array([0.1]), sigma) for sigma in (0.02, 0.05))
    assert 0 < rough.mean(points(10))[0] < exact.mean(points(10))[0]
    assert rough.sigma(points(10))[0] > exact.sigma(points(10))[0]


def test_an_impossible_measurement_is_no_residual() -> None:
    assert abs(residual.learn(points(10), np.array([4.0]), 0.02).mean(points(10))[0]) < 0.05
    among = residual.learn(points(10, 10, 10, 10), np.array([0.1, 0.1, 0.1, 4.0]), 0.02)
    assert among.mean(points(10))[0] == pytest.approx(0.1, abs=0.03)


# scores


def test_the_score_by_hand() -> None:
    some = [
        replace(row, time_s=t, memory_bytes=m)
        for row, t, m in zip(ROWS, (1.0, 2.0, 4.0), (1e10, 2e10, 9e10), strict=False)
    ]
    got = score(some, np.array([2.2, 2.0, 3.0]), np.array([1.1e10, 2e10, 2e10]))
    assert (got.rows, got.groups, got.memory_rows) == (3, 1, 3)
    assert got.mape == pytest.approx((1.2 + 0 + 0.25) / 3) and got.bias == pytest.approx((1.2 + 0 - 0.25) / 3)
    assert got.median == pytest.approx(0.25)
    # the plan thought fastest takes 2 s, the fastest 1 s
    assert got.regret_mean == pytest.approx(1.0) and got.top1 == 0.0
    assert got.spearman == pytest.approx(0.5)
    assert got.memory_mape == pytest.approx((0.1 + 0 + 7 / 9) / 3)
    # 90 GB are more than an A100 has: that one can't have run, and is called fitting
    assert (got.fit_rows, got.fit_called_oom, got.oom_rows, got.oom_called_fit) == (2, 0, 1, 1)


def test_spearman_with_ties_and_without_order() -> None:
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 40])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 2, 3])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1)
    assert spearman(np.array([1.0, 1, 1]), np.array([3.0, 2, 1])) is None


def test_what_is_not_scored_is_left_out(predictor: Predictor) -> None:
    silent = [replace(row, scores=frozenset(("mem",))) for row in ROWS]
    got = score_files(silent, predictor)["all"]
    assert (got.rows, got.mape, got.groups, got.regret_mean, got.spearman) == (0, None, 0, None, None)
    assert got.memory_rows == len(ROWS)
    shot = score_files(ROWS, predictor, Shots(each=5))
    assert shot["all"].rows == shot["ours.csv"].rows == len(ROWS) - 10


# the file


@pytest.mark.slow
def test_a_profile_comes_back_as_it_was(tmp_path: Path, predictor: Predictor) -> None:
    path = tmp_path / "x.profile"
    write_atomically(path, profile_text(predictor))
    read = read_profile(path)
    assert read.step_s(ROWS) == pytest.approx(predictor.step_s(ROWS), rel=1e-3)
    assert read.peak_bytes(ROWS) == pytest.approx(predictor.peak_bytes(ROWS), rel=1e-3)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.profile"]
    with pytest.raises(UsageError, match="can't be written"):
        write_atomically(tmp_path / "no" / "folder", "text")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[]", "not a profile"),
        ("{}", "not a profile"),
        ('{"version": 99}', "version 99"),
        ('{"version": 2}', "not a profile"),
        ('{"version": 2, "time": {"levels": {"": {"launch_s": [1e999, 0]}}}, "memory": {}}', "not a profile"),
        ('{"version": 2, "time": {"levels": 7}, "memory": {}}', "not a profile"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_profile(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.profile"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        read_profile(path)


CSV = """row_id,source,model,layers,hidden,heads,seq,gpu_type,gpus_per_node,n_gpus,tp,pp,dp,micro_batch,global_batch,\
recompute,iter_time_s,score_as,group
a,x,GPT,24,2048,16,1024,a100,8,8,1,1,8,1,64,full,1.0,time+plan,g
b,x,GPT,24,2048,16,1024,a100,8,8,2,1,4,2,64,full,1.1,time+plan,g
c,x,GPT,24,2048,16,1024,a100,8,8,4,1,2,4,64,full,1.3,time+plan,g
"""
KEYS = (
    "rows mape median p90 bias regret_mean regret_p90 top1 spearman groups memory_mape memory_rows".split()  # noqa: SIM905
)


@pytest.mark.slow
def test_a_profile_comes_over_the_built_in_figures(tmp_path: Path) -> None:
    """In the daemon by the setting Profile, and in `synergyctl plan` by --profile."""
    path = tmp_path / "cluster.profile"
    predictor = fit_predictor(rows_of("ours", "a100"))
    path.write_text(profile_text(predictor), encoding="utf-8")
    assert (predictor.find_cluster("nvidia_a100-sxm4-80gb"), predictor.find_cluster("h100")) == ("ours", "")
    both = fit_predictor([*rows_of("ours", "a100"), *rows_of("theirs", "a100")])
    assert both.find_cluster("a100") == ""
    plans = from_plans(PLANS, 8)
    right = step_time(SMALL, truth("a100"), plans).total
    error = step_time(SMALL, predictor.figures("a100"), plans).total / right - 1
    assert np.abs(error).mean() < 0.05 < np.abs(step_time(SMALL, figures("a100"), plans).total / right - 1).mean()
    assert predictor.figures("a100").uncertainty < figures("a100").uncertainty

    def step_s(*options: str) -> float:
        words = ["--model", "gpt3-1.3b", "--gpus", "8", "--gpu-type", "a100", "--top", "1", "--json", *options]
        done = CliRunner().invoke(plan_command, words)
        assert done.exit_code == 0, done.output
        return float(json.loads(done.output)["counts"][0]["rows"][0]["cell"]["step_s"])

    assert step_s("--profile", str(path)) > step_s()
    job, nodes = replace(JOB, directive=Directive(model="gpt3-1.3b")), Cluster((Node("n1", "a100", 8),))
    built_in = Forecast(Settings()).cells(job, Profile(), None, nodes)
    learnt = Forecast(Settings(profile=path)).cells(job, Profile(), None, nodes)
    assert max(c.goodput for c in learnt.cells) < max(c.goodput for c in built_in.cells)
    with pytest.raises(UsageError, match="cannot be read"):
        Forecast(Settings(profile=tmp_path / "missing"))


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    rows, out = tmp_path / "r.csv", tmp_path / "p.json"
    rows.write_text(CSV, encoding="utf-8")
    run = CliRunner().invoke
    done = run(profiles, ["fit", "--rows", str(rows), "--out", str(out)])
    assert done.exit_code == 0 and "fitted to 3 step times and 0 memory peaks" in done.output
    told = run(profiles, ["score", "--rows", str(rows), "--profile", str(out), "--shots", "1", "--json"])
    found = json.loads(told.output)
    assert list(found) == ["r.csv", "all"] and set(KEYS) <= set(found["all"])
    assert found["all"]["rows"] == 2 and found["all"]["mape"] < 0.2 and found["all"]["memory_mape"] is None
    assert "regret" in run(profiles, ["score", "--rows", str(rows), "--profile", str(out)]).output
    in_all = run(profiles, ["score", "--rows", str(rows), "--profile", str(out), "--shots-in-all", "2", "--json"])
    assert json.loads(in_all.output)["all"]["rows"] == 1
    with pytest.raises(UsageError, match="one of them"):
        words = ["score", "--rows", str(rows), "--profile", str(out), "--shots", "1", "--shots-in-all", "1"]
        run(profiles, words, catch_exceptions=False)
