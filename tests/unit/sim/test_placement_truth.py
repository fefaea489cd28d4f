"""Ground truths of the Rubick and Crius artifacts' forms, on small tables made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError
from synergy_core.records import Plan, Shape
from synergy_sim.cli.simulate import simulate_verb
from synergy_sim.comparison import plain_scenario, run_plain
from synergy_sim.ideal import all_shapes
from synergy_sim.memory_fit import MemoryFit, anywhere, with_known_fit
from synergy_sim.placement_truth import BATCH, PlacementTruth, Times, has_room
from synergy_sim.records import Costs, PlacedGpus, Scenario, TraceJob, build_cluster
from synergy_sim.runs import simulate
from synergy_sim.traces import arena, morphling
from synergy_sim.traces.kinds import cluster_of_trace, find_gpu_type, read_trace

from synergyd.jobmodel.model.counts import parameters

SHARED = Path("/work/shared/data")
HEADER = "name,submission_time,duration,application,num_gpus,num_cpus,bandwidth,exec_plan,steps,is_sla\n"


def test_a_number_of_gpus_of_which_no_time_is_known_is_not_offered() -> None:
    times = Times(
        {"a40": {(2,): 4.0, (2, 2): 2.0}, "a10": {(2,): 5.0}}, {"a40": {(2, 2): "estimated"}, "a10": {(2,): "lent"}}
    )
    offered = (Shape("a40", 1, 2), Shape("a40", 2, 2), Shape("a40", 1, 4), Shape("a10", 1, 2))
    assert all(times.is_measured(shape) for shape in offered)
    others = (Shape("a40", 3, 2), Shape("a40", 1, 3), Shape("a40", 2, 1), Shape("a10", 2, 2), Shape("v100", 1, 2))
    assert not any(times.is_measured(shape) for shape in others)
    known = [("a40", (2,)), ("a40", (2, 2)), ("a40", (2, 2, 2)), ("a10", (2,))]
    origins = [times.origin(PlacedGpus(gpu_type, per_node)) for gpu_type, per_node in known]
    assert origins == ["measured", "estimated", "of a smaller placement", "lent"]


def test_groups_fit_node_by_node() -> None:
    assert (
        has_room((4, 4), (8,))
        and has_room((4, 4, 4, 4), (8, 8))
        and has_room((2, 1), (2, 2))
        and has_room((4,), (8, 8))
    )
    assert not has_room((8,), (4, 4)) and not has_room((3, 3, 3), (4, 4)) and not has_room((2, 2), (2, 1))


def test_a_placement_that_was_not_measured_takes_the_best_that_fits_into_it() -> None:
    times = Times({"a800": {(4,): 4.0, (4, 4): 3.0, (8,): 2.0, (4, 4, 4, 4): 2.5}})
    assert (times.largest, times.smallest("a800"), times.smallest("t4")) == (16, 4, 0)
    for per_node, seconds in (
        ((4,), 4.0),
        ((4, 4), 3.0),  # its own time, though (4,) would fit as well
        ((8, 8), 2.0),  # one of its nodes
        ((2, 4, 4), 3.0),  # in any order
        ((4, 8, 4), 2.0),
        ((5,), 4.0),
        ((2, 2), None),
    ):
        assert times.step_s(PlacedGpus("a800", per_node)) == seconds, per_node
    assert times.step_s(PlacedGpus("t4", (8,))) is None
    assert times.can_run(Shape("a800", 3, 4)) and not times.can_run(Shape("a800", 4, 2))


def test_a_job_of_measured_steps() -> None:
    truth = PlacementTruth(Times({"a800": {(1,): 4.0, (2,): 2.5}}), 100.0)
    (plan,) = truth.plans(Shape("a800", 1, 2))
    assert plan == Plan(dp=2, micro_batch=BATCH // 2, global_batch=BATCH, zero_stage=0)
    pace = truth.pace(0, PlacedGpus("a800", (2,)), plan)
    assert pace is not None and (pace.rate, pace.step_s, pace.noise_scale) == (0.4, 2.5, None)
    assert truth.end(0) / pace.rate == 250.0
    assert truth.pace(0, PlacedGpus("a800", (1,)), plan) is None
    best = truth.best_rates(Shape("a800", 1, 2))
    assert best is not None and best.tolist() == [0.4]
    assert truth.best_rates(Shape("a800", 1, 11)) is None  # does not divide the batch
    assert all(not BATCH % k for k in (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 40, 48, 56, 64))


def rubick(root: Path, text: str = "a,0,9,net,2,16,0,ga,10,0\nb,5,9,net,8,16,0,144,20,1\n") -> Path:
    folder = root / "traces" / "net"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "placements.csv").write_text(
        "exec_plan,placement,iter_time,forward,overlap_sync,optimize\n"
        "ga,2,3.0,1,1,1\nzero-dp,2,2.0,1,1,1\nga,11,4.0,1,1,1\n144,44,1.0,1,1,1\ngc,4,0,1,1,1\n"
    )
    path = root / "workloads" / "w.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEADER + text)
    return path


def test_a_rubick_workload(tmp_path: Path) -> None:
    one, two = morphling.read(rubick(tmp_path), None, "a800", 8)
    assert (one.name, one.submit_s, one.gpus, one.kind, one.max_gpus, one.batch_fixed) == ("a", 0, 2, "net", 8, True)
    assert (two.truth.end(0), two.where.endswith("w.csv:3")) == (20.0, True)
    assert one.can_run is not None and one.can_run(Shape("a800", 1, 2)) and not one.can_run(Shape("a800", 1, 1))
    times = morphling.read_times(tmp_path / "traces" / "net" / "placements.csv")
    assert times == {(2,): 2.0, (1, 1): 4.0, (4, 4): 1.0}  # the fastest plan; 0 is no time
    loaded = read_trace(f"morphling:{tmp_path}/workloads/w.csv", None, "a800", 64, 8)
    assert (loaded.costs.first_start_s, loaded.costs.resize_s) == (260.0, 260.0)
    assert cluster_of_trace("morphling:x", None) == {"a800": (8, 8)} and find_gpu_type("morphling:x") == "a800"
    assert cluster_of_trace("generate:3", None) is None


def test_rubick_jobs_that_keep_their_plan(tmp_path: Path) -> None:
    one, two = morphling.read(rubick(tmp_path), None, "a800", 8, keep_plan=True)
    plan = Plan(dp=2, micro_batch=BATCH // 2, global_batch=BATCH, zero_stage=0)
    pace = one.truth.pace(0, PlacedGpus("a800", (2,)), plan)
    assert pace is not None and pace.step_s == 3.0  # of ga; zero-dp takes 2
    assert two.truth.best_rates(Shape("a800", 1, 8)) is not None and one.max_gpus == 2
    # no time is known of its plan at the size asked for: it runs the fastest
    (other,) = morphling.read(rubick(tmp_path, "a,0,9,net,2,16,0,zero-offload,10,0\n"), None, "a800", 8, keep_plan=True)
    pace = other.truth.pace(0, PlacedGpus("a800", (2,)), plan)
    assert pace is not None and pace.step_s == 2.0


def test_rubick_jobs_run_their_own_plan_where_users_sizes_are_kept(tmp_path: Path) -> None:
    """The workloads base and bp differ in exec_plan alone: ga takes 3 s a step on two GPUs, zero-dp 2 s."""
    ends: dict[str, list[float]] = {}
    for plan in ("ga", "zero-dp"):
        path = rubick(tmp_path, f"a,0,9,net,2,16,0,{plan},10,0\n")
        one = Scenario(
            morphling.read(path, None, "a800", 8), build_cluster({"a800": (1, 8)}), Costs(20.0, 0.0, 0.0, 20.0)
        )
        runs = run_plain(one), simulate(one, "fifo"), simulate(one, "tiresias"), simulate(one, "synergy")
        ends[plan] = [run.jobs[0].finish_s - run.jobs[0].start_s for run in runs]
    # Synergy's launcher takes the fastest plan that was measured, on eight GPUs here
    assert ends == {"ga": [50.0, 50.0, 50.0, 30.0], "zero-dp": [40.0, 40.0, 40.0, 30.0]}
    # a time limit that is right to the second is right for the job's own plan
    path = rubick(tmp_path, "a,0,9,net,2,16,0,ga,10,0\n")
    (job,) = plain_scenario(replace(one, jobs=morphling.read(path, None, "a800", 8))).jobs
    assert job.time_limit_s == 50.0


def test_guaranteed_rubick_jobs_never_have_fewer_gpus_than_they_asked_for(tmp_path: Path) -> None:
    """The workload mt differs from base in is_sla: a tenant whose jobs are guaranteed their GPUs."""
    text = "a,0,9,net,4,16,0,ga,4000,{}\nb,9,9,net,4,16,0,ga,4000,{}\nc,20,9,net,4,16,0,ga,4000,0\n"
    least: dict[int, set[int]] = {}
    table = "exec_plan,placement,iter_time\nga,1,4\nga,2,2\nga,4,1.0\nga,8,0.9\n"
    for flag in (0, 1):
        path = rubick(tmp_path, text.format(flag, flag))
        (tmp_path / "traces" / "net" / "placements.csv").write_text(table)
        jobs = morphling.read(path, None, "a800", 8)
        assert [(job.uid, job.min_gpus) for job in jobs] == [(flag, 4 if flag else None)] * 2 + [(0, None)]
        run = simulate(Scenario(jobs, build_cluster({"a800": (1, 8)}), Costs(20.0, 0.0, 0.0, 20.0)), "synergy")
        least[flag] = {held.gpus for held in run.occupancies if held.job < 3}
    assert min(least[1]) == 4 and min(least[0]) < 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,0,9,net,2,16,0,ga,9,2\n", "w.csv:2: column is_sla: 2 is out of bounds"),
        ("a,0,9,net,2,16,0,ga,ten,0\n", "w.csv:2: column steps: 'ten' is not a number"),
        ("a,0,9,net,2,16,0,ga,0,0\n", "w.csv:2: column steps: 0 is out of bounds"),
        ("a,0,9,net,2,16,0,fast,9,0\n", "w.csv:2: column exec_plan: 'fast' is no plan; ga, gc, .* three digits"),
        ("a,0,9,net,2,16,0,140,9,0\n", "w.csv:2: column exec_plan: '140' is no plan"),
        ("a,0,9,net,1,16,0,ga,9,0\n", "w.csv:2: column num_gpus: net was not measured on 1 GPUs.* from 2 to 8"),
        ("a,0,9,net,16,16,0,ga,9,0\n", "w.csv:2: column num_gpus: net was not measured on 16 GPUs"),
        ("a,0,9,gpt,2,16,0,ga,9,0\n", "w.csv:2: column application: nothing was measured of 'gpt'; .* has net"),
        ("a,9,9,net,2,16,0,ga,9,0\nb,8,9,net,2,16,0,ga,9,0\n", "w.csv:3: column submission_time: 8 is before the row"),
        ("a,0,9,net,2\n", "w.csv:2: column 6: 5 columns where the header has 10"),
        ("", "w.csv: has no jobs"),
    ],
)
def test_mistakes_in_a_rubick_workload(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        morphling.read(rubick(tmp_path, text), None, "a800", 8)


def test_mistakes_in_rubick_measurements(tmp_path: Path) -> None:
    path = rubick(tmp_path)
    table = tmp_path / "traces" / "net" / "placements.csv"
    table.write_text("exec_plan,placement,iter_time\nga,2x,1\n")
    with pytest.raises(UsageError, match=r"placements.csv:2: column placement: '2x' is not GPUs a node as digits"):
        morphling.read(path, None, "a800", 8)
    table.write_text("exec_plan,placement,iter_time\nga,2,0\n")
    with pytest.raises(UsageError, match=r"placements.csv: has no measured times"):
        morphling.read(path, None, "a800", 8)


def test_rubick_jobs_by_hand_in_the_simulator(tmp_path: Path) -> None:
    path = rubick(tmp_path)
    # its own cluster of 8 x 8: both start at 60 s and take 260 s to start; 10 steps of 3 s (ga), 20 of 1 s
    arguments = ["--trace", f"morphling:{path}", "--policy", "fifo,tiresias", "--json", "-"]
    done = CliRunner().invoke(simulate_verb, arguments)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gpus"] == 64 and found["costs"]["start_s"] == 250.0
    for policy in ("fifo", "tiresias"):
        assert found["policies"][policy]["avg_jct_s"] == pytest.approx(((60 + 260 + 30) + (55 + 260 + 20)) / 2)
    done = CliRunner().invoke(simulate_verb, [*arguments, "--nodes", "1"])
    assert json.loads(done.stdout)["gpus"] == 8  # nodes as the option says, GPUs a node as the trace has them


ARENA = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,gpu_type\n"
TABLE = "model,params,global_batch,gpu_type,num_nodes,gpus_per_node,iter_time_s\n"


def crius(root: Path, text: str = "x,1000,52,bert__1B,0,128,2,a40\ny,990,9,moe__1B,0,256,4,v100\n") -> Path:
    (root / "traces").mkdir(exist_ok=True)
    (root / "alpa_optimal_iter_time.csv").write_text(
        f"{TABLE}bert,1B,128,a40,1,2,4.0\nbert,1B,128,a40,2,2,2.0\nbert,1B,128,v100,1,4,1.0\nbert,1B,128,a40,1,1,-1.0\n"
        "bert,1B,128,a10,2,2,3.0\n"
    )
    (root / "estimated_3d_plans.csv").write_text(
        "model,params,global_batch,gpu_type,num_nodes,gpus_per_node,pp,dp,tp,compute_s,intra_stage_comm_s,"
        "inter_stage_comm_s,iter_time_s\n"
        "bert,1B,128,a40,1,2,1,2,1,9,0,0,1.0\nbert,1B,128,a40,1,1,1,1,1,9,0,0,1.5\n"
        "moe,1B,256,a10,2,2,1,4,1,9,0,0,9.0\nmoe,1B,256,a10,2,2,4,1,1,9,0,0,6.0\nmoe,1B,256,a10,2,2,2,2,1,9,0,0,inf\n"
        "moe,1B,256,a10,2,2,1,1,4,9,0,0,-0.5\n"
    )
    (root / "sim_cluster_spec.json").write_text('[{"a40": {"node_num": 3}, "v100": {"node_num": 1}}]')
    path = root / "traces" / "t.csv"
    path.write_text(ARENA + text)
    return path


def test_a_crius_trace(tmp_path: Path) -> None:
    path = crius(tmp_path)
    first, second = arena.read(path, None)  # in order of time, from zero
    assert (first.name, first.submit_s, first.kind, first.gpu_type, first.gpus) == ("y", 0.0, "moe-1B", "v100", 4)
    assert (second.name, second.submit_s, second.gpus, second.truth.end(0)) == ("x", 10.0, 2, 10.0)
    assert first.truth.end(0) == 1.0
    loaded = read_trace(f"arena:{path}", None, "a40", 22, 2)
    assert loaded.costs == Costs(40.0, 8.0, 2.0, 40.0)
    assert cluster_of_trace(f"arena:{path}", None) == {"a40": (3, 2), "v100": (1, 16)}
    shapes = [s for s in all_shapes(build_cluster({"a40": (3, 2)})) if second.can_run is not None and second.can_run(s)]
    assert shapes == [Shape("a40", 1, 2), Shape("a40", 2, 2)]  # of 6 no time is known


def test_measured_before_estimated_before_lent(tmp_path: Path) -> None:
    crius(tmp_path)
    known = arena.read_tables(tmp_path)
    bert, moe = arena.Model("bert", "1B", 128), arena.Model("moe", "1B", 256)
    # -1: it did not fit, whatever was estimated
    assert known[bert]["a40"] == {(2,): 4.0, (2, 2): 2.0}
    assert known[moe] == {"a10": {(2, 2): 6.0}}
    filled = arena.with_lent_times(known, {})
    # bert on 4 GPUs: v100 1 s, a10 3 s, a40 2 s; so moe's 6 s are 2 s and 4 s there; a100 is known of nothing
    assert filled[moe] == {"a10": {(2, 2): 6.0}, "v100": {(4,): 2.0}, "a40": {(2, 2): 4.0}}
    # a40's two GPUs have more memory than a10's: nothing is lent down
    assert filled[bert]["a10"] == {(2, 2): 3.0}
    assert arena.tightest_placement("a100", 16) == (4, 4, 4, 4) and arena.tightest_placement("v100", 16) == (16,)


def test_times_of_other_types_are_lent_where_the_memory_is_enough(tmp_path: Path) -> None:
    crius(tmp_path)
    path = tmp_path / "prof_database_h100_l20.json"
    bert = {"1_l20_1_n_4_d": [5, 9, 0.5, 9, 9, 10.0], "1_l20_1_n_8_d": [5, 9, 0.2, 9, 9, 10.0]}
    large = {"1_l20_1_n_4_d": [5, 9, 5.0, 9, 9, 30.0], "1_l20_1_n_2_d": [5, 9, 0, 9, 9, 0]}
    path.write_text(json.dumps({"optimal": {"bert_1B_128": bert, "moe_10B_256": large}}))
    others = arena.read_others(path)
    ten = arena.Model("moe", "10B", 256)
    assert others[ten] == {("l20", 4): arena.LentTime(5.0, 30.0)}
    # 30 GB fit an a40 (48), not a v100 (32) or a10 (24); bert: a40 takes 4 times as long as l20
    assert arena.with_lent_times(arena.read_tables(tmp_path), others)[ten] == {"a40": {(2, 2): 20.0}}
    (job,) = arena.read(crius(tmp_path, "x,0,50,moe__10B,0,256,1,a40\n"), None)
    assert (job.gpu_type, job.gpus) == ("a40", 4)  # the fewest that hold it
    (job,) = arena.read(crius(tmp_path, "x,0,50,moe__10B,0,256,8,v100\n"), None)
    assert (job.gpu_type, job.gpus) == ("a40", 8)  # none of its own type does
    path.write_text('{"optimal": {"moe_10B_256": {"l20": []}}}')
    with pytest.raises(UsageError, match=r"prof_database_h100_l20.json: is no profile database"):
        arena.read_others(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,0,50,bert-1B,0,128,2,a40\n", "t.csv:2: column model_name: 'bert-1B' is no model; <family>__<parameters>"),
        (
            "x,0,50,bert__9B,0,128,2,a40\n",
            "t.csv:2: column model_name: no time is known of .*; the tables have bert__1B",
        ),
        ("x,0,50,bert__1B,0,128,3,a40\n", "t.csv:2: column num_gpu: 3 GPUs were not measured; one of 1, 2, 4, 8, 16"),
        ("x,0,50,bert__1B,0,128,2,k80\n", "t.csv:2: column gpu_type: 'k80' is not in the cluster; one of a10"),
        ("x,0,0,bert__1B,0,128,2,a40\n", "t.csv:2: column num_iteration: 0 is out of bounds"),
        ("x,soon,50,bert__1B,0,128,2,a40\n", "t.csv:2: column submission_time: 'soon' is not a number"),
        ("x,0,50,bert__1B\n", "t.csv:2: column 5: 4 columns where the header has 8"),
        ("", "t.csv: has no jobs"),
    ],
)
def test_mistakes_in_a_crius_trace(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        arena.read(crius(tmp_path, text), None)


def test_mistakes_in_crius_tables(tmp_path: Path) -> None:
    path = crius(tmp_path)
    (tmp_path / "alpa_optimal_iter_time.csv").write_text(f"{TABLE}bert,1B,128,a40,1,2,fast\n")
    with pytest.raises(UsageError, match=r"alpa_optimal_iter_time.csv:2: column iter_time_s: 'fast' is not a number"):
        arena.read(path, None)
    (tmp_path / "sim_cluster_spec.json").write_text('[{"k80": {"node_num": 3}}]')
    with pytest.raises(UsageError, match=r"sim_cluster_spec.json: is no cluster .*; such as"):
        arena.read_cluster(tmp_path)
    (tmp_path / "sim_cluster_spec.json").write_text('[{"a40": {"node_num": 0}}]')
    with pytest.raises(UsageError, match=r"sim_cluster_spec.json: has no nodes"):
        arena.read_cluster(tmp_path)
    with pytest.raises(UsageError, match="can't be read: No such file or directory; give --types"):
        arena.read_cluster(tmp_path / "nowhere")


def test_crius_jobs_by_hand_in_the_simulator(tmp_path: Path) -> None:
    path = crius(tmp_path)
    arguments = ["--trace", f"arena:{path}", "--policy", "fifo", "--json", "-"]
    done = CliRunner().invoke(simulate_verb, arguments)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gpus"] == 22
    # both start at 60 s: one step of 2 s on 4 v100; ten of 4 s on 2 a40, which came at 10 s
    assert found["policies"]["fifo"]["avg_jct_s"] == pytest.approx(((60 + 40 + 2) + (50 + 40 + 40)) / 2)
    done = CliRunner().invoke(simulate_verb, [*arguments, "--nodes", "4"])
    assert (done.exit_code, done.stdout) == (2, "") and "has 2 GPU types; give --types" in done.stderr
    learnt = CliRunner().invoke(simulate_verb, ["--trace", f"arena:{path}", "--policy", "synergy", "--json", "-"])
    assert json.loads(learnt.stdout)["policies"]["synergy"]["finished"] == 2


def test_tiresias_keeps_jobs_on_equal_gpus_of_their_type() -> None:
    times = Times({"a100": {(2,): 2.0, (4, 4): 1.0}})

    def asks(name: str, gpus: int, steps: float) -> TraceJob:
        batch = dict(batch_fixed=True, can_run=times.can_run)
        return TraceJob(name, "net", 0.0, gpus, BATCH, PlacementTruth(times, steps), "t:2", "a100", **batch)  # type: ignore[arg-type]

    # a and b share one node; c's eight GPUs on two nodes have no room until both have ended
    given = Scenario(
        (asks("a", 2, 10.0), asks("b", 2, 100.0), asks("c", 8, 10.0)), build_cluster({"a100": (2, 4), "t4": (1, 4)})
    )
    run = simulate(given, "tiresias")
    assert [(r.start_s, r.finish_s) for r in run.jobs] == [(60.0, 110.0), (60.0, 290.0), (300.0, 340.0)]
    assert [held.nodes for held in run.occupancies if held.job == 3] == [(("a100-0", 4), ("a100-1", 4))]
    assert {name for held in run.occupancies if held.job < 3 for name, _ in held.nodes} == {"a100-0"}


@pytest.mark.skipif(not (SHARED / "morphling").is_dir(), reason=f"{SHARED}/morphling is not there")
def test_the_published_rubick_workload() -> None:
    path = SHARED / "morphling" / "workloads" / "workload-base.csv"
    jobs = morphling.read(path, None, "a800", 8)
    assert len(jobs) == 406 and {job.kind for job in jobs} >= {"llama7", "llama30", "vit"}
    cluster = build_cluster(morphling.CLUSTER)
    for job in {job.kind: job for job in jobs}.values():
        assert job.can_run is not None and any(job.can_run(shape) for shape in all_shapes(cluster))


@pytest.mark.skipif(not (SHARED / "arena").is_dir(), reason=f"{SHARED}/arena is not there")
def test_the_published_crius_trace() -> None:
    jobs = arena.read(SHARED / "arena" / "traces" / "simulate_trace_pai.csv", None)
    groups = arena.read_cluster(SHARED / "arena")
    assert len(jobs) == 125 and sum(nodes * gpus for nodes, gpus in groups.values()) == 1280
    assert min(job.submit_s for job in jobs) == 0.0


def short_of_memory(at_gpus: int) -> TraceJob:
    """A job that fits on four and eight GPUs, which nobody knows but for the size asked for."""
    times = Times({"a100": {(4,): 8.0, (8,): 1.0}})
    truth, fit = PlacementTruth(times, 2000.0), MemoryFit(None, BATCH, anywhere, ("a100", at_gpus))
    return TraceJob("a", "net", 0.0, at_gpus, BATCH, truth, "t:2", "a100", batch_fixed=True, max_gpus=8,
                    max_micro_batch=BATCH, can_run=times.is_measured, expected_fit=fit)  # fmt: skip


def test_a_job_runs_out_of_memory_where_it_does_not_fit_and_comes_back() -> None:
    """A plain job holds six of eight GPUs at first, so that it starts on fewer than it fits on, if it may."""
    long = PlacementTruth(Times({"a100": {(6,): 1.0}}), 400.0)
    first = replace(short_of_memory(4), name="b", gpus=6, plain=True, truth=long, expected_fit=None)
    costs = Costs(20.0, 0.0, 0.0, 20.0)
    late = replace(short_of_memory(4), submit_s=10.0)
    scenario = Scenario((first, late), build_cluster({"a100": (1, 8)}), costs)
    run = simulate(scenario, "synergy")
    held = [one for one in run.occupancies if one.job == 2]
    assert held[0].gpus < 4 and held[0].end_s - held[0].start_s == pytest.approx(20.0)  # its start, and no step
    # what failed is banned for the program: it does not try as few again
    assert [one.gpus for one in held[1:]] and min(one.gpus for one in held[1:]) >= 4
    assert run.jobs[1].restarts >= 1 and run.jobs[1].finish_s > 420.0
    # where it is known beforehand, it waits for GPUs on which it fits
    known = simulate(with_known_fit(scenario), "synergy")
    assert min(one.gpus for one in known.occupancies if one.job == 2) >= 4 and known.jobs[1].start_s >= 420.0


def test_the_memory_model_says_where_a_crius_job_is_expected_to_fit(tmp_path: Path) -> None:
    (job,) = arena.read(crius(tmp_path, "x,0,50,bert__1B,0,128,2,a40\n"), None)
    assert job.expected_fit is not None and job.max_gpus == 16
    # nothing is known of a bert of 1B parameters: it may fit on every size of the artifact's
    assert job.expected_fit(Shape("v100", 1, 1)) and not job.expected_fit(Shape("a40", 2, 1))
    large = MemoryFit(arena.find_spec(arena.Model("bert", "6.7B", 128)), 128, anywhere, ("a10", 2), "fp16")
    fits = [gpus for gpus in (1, 2, 4, 8) if large(Shape("a100-40", -(-gpus // 4), min(4, gpus)))]
    assert fits == [4, 8]  # 6.7 B parameters take 107 GB of weights, gradients and optimizer
    assert large(Shape("a10", 1, 2)) and not large(Shape("a10", 1, 1))  # its user has seen it fit there
    assert arena.find_spec(arena.Model("wide_resnet", "1B", 256)) is None


def test_experts_of_a_width_that_gives_the_parameters_as_named() -> None:
    for name, billions in (("690M", 0.69), ("1.3B", 1.35), ("2.4B", 2.4), ("10B", 10.2)):
        spec = arena.find_spec(arena.Model("moe", name, 256))
        assert spec is not None and parameters(spec) / 1e9 == pytest.approx(billions, rel=0.03)
