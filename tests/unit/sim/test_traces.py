"""Readers of traces: what they read, and one line for every mistake, with file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Plan, Shape
from synergy_sim.pollux_truth import read_application
from synergy_sim.records import PlacedGpus
from synergy_sim.traces import cluster_logs, gavel, generate, pollux, sia
from synergy_sim.traces.kinds import cluster_of_trace, find_gpu_type, read_trace

HEADER = "name,time,application,num_replicas,batch_size\n"


def application(root: Path, name: str = "net") -> Path:
    folder = root / "traces" / name
    folder.mkdir(parents=True)
    (folder / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n"
        "1,10,0.10,0.00\n1,20,0.18,0.00\n2,10,0.14,0.04\n2,20,0.22,0.04\n12,10,0.3,0.2\n12,20,0.4,0.2\n"
    )
    (folder / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,4,10,0.5,0.4\n4,4,20,0.6,0.4\n4,16,10,0.9,0.8\n4,16,20,1.0,0.8\n"
    )
    for batch, var in ((20, 1.0), (40, 3.0)):
        (folder / f"validation-{batch}.csv").write_text(
            f"progress,iteration,metric,grad_sqr,grad_var\n100.0,99,0.1,1.0,{var}\n200.0,199,0.2,1.0,{var}\n"
        )
    return folder


def workload(root: Path, text: str) -> Path:
    path = root / "workloads" / "w.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEADER + text)
    return path


def test_interpolation_of_step_times(tmp_path: Path) -> None:
    truth = read_application(application(tmp_path), "t4")
    assert truth.times((1,), 15) == pytest.approx((0.14, 0.0))  # half way between 10 and 20
    assert truth.times((2, 1), 10) == pytest.approx((0.3, 0.2))  # (1, 2) is its smallest rotation
    assert truth.times((1,), 5) == pytest.approx((0.10, 0.0))  # below what was measured
    assert truth.times((2,), 40) == pytest.approx((0.04 + 0.36, 0.04))  # beyond it: compute grows with the batch
    # 4 nodes: on the line between (4, 4) and (4, 16) of the scalability table, a third of the way
    assert truth.times((2, 2, 2, 2), 10) == pytest.approx((0.5 + 0.4 / 3, 0.4 + 0.4 / 3))


def test_a_pace_by_hand(tmp_path: Path) -> None:
    truth = read_application(application(tmp_path), "t4")
    assert (truth.low, truth.high, truth.stages, truth.end(1)) == (20, 40, 2, 200.0)
    plan = Plan(dp=2, micro_batch=15, global_batch=30, zero_stage=0)
    pace = truth.pace(0, PlacedGpus("t4", (2,)), plan)
    assert pace is not None
    # batch 30: variance 2, so a step is worth (2 + 1) / (2 / 1.5 + 1) steps at 20; it takes 0.18 s
    assert pace.rate == pytest.approx((3 / (2 / 1.5 + 1)) / 0.18)
    assert (pace.step_s, pace.noise_scale) == pytest.approx((0.18, 40.0))
    assert truth.pace(0, PlacedGpus("a100", (2,)), plan) is None
    assert truth.best_rates(Shape("a100", 1, 2)) is None
    best = truth.best_rates(Shape("t4", 1, 2))
    assert best is not None and best[0] >= pace.rate * 0.99


def test_passes_of_a_batch(tmp_path: Path) -> None:
    truth = read_application(application(tmp_path), "t4")
    assert truth.split_batch(40, 2) == Plan(dp=2, micro_batch=20, global_batch=40, zero_stage=0)
    # one GPU needs two samples of the gradient beyond the smallest batch, and 20 is what a GPU holds
    assert truth.split_batch(20, 1) == Plan(dp=1, micro_batch=20, global_batch=20, zero_stage=0)
    assert truth.split_batch(24, 1) == Plan(dp=1, micro_batch=12, global_batch=24, zero_stage=0)
    assert truth.executed_plan(Plan(dp=1, micro_batch=40, global_batch=40)).micro_batches == 2


def test_a_workload(tmp_path: Path) -> None:
    application(tmp_path)
    one, two = pollux.read(workload(tmp_path, "a,5,net,2,40\nb,7,net,3,20\n"), None)
    assert (one.name, one.submit_s, one.gpus, one.batch, one.kind) == ("a", 5.0, 2, 40, "net")
    assert one.truth is two.truth
    assert two.where.endswith("w.csv:3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,5,net,2\n", "w.csv:2: column 5: 4 columns where the header has 5"),
        ("a,five,net,2,40\n", "w.csv:2: column time: 'five' is not a number"),
        ("a,nan,net,2,40\n", "w.csv:2: column time: nan is out of bounds"),
        ("a,5,net,2,40\nb,4,net,2,40\n", "w.csv:3: column time: 4 is before the row above; sort the trace"),
        ("a,5,gpt5,2,40\n", "w.csv:2: column application: nothing was measured of 'gpt5'; .* has net"),
        ("a,5,../net,2,40\n", "w.csv:2: column application: nothing was measured of '../net'"),
        ("a,5,net,0,40\n", "w.csv:2: column num_replicas: 0 is out of bounds"),
        ("a,5,net,1.5,40\n", "w.csv:2: column num_replicas: 1.5 is not a whole number"),
        ("a,5,net,2,64\n", "w.csv:2: column batch_size: 64 was not measured; net was measured from 20 to 40"),
        ("a,5,,2,40\n", "w.csv:2: column application: empty"),
        ("", "w.csv: has no jobs"),
    ],
)
def test_mistakes_in_a_workload(tmp_path: Path, text: str, message: str) -> None:
    application(tmp_path)
    with pytest.raises(UsageError, match=message):
        pollux.read(workload(tmp_path, text), None)


def test_mistakes_in_measurements(tmp_path: Path) -> None:
    folder = application(tmp_path)
    (folder / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n1x,1,1,1\n")
    with pytest.raises(UsageError, match=r"placements.csv:2: column placement: '1x' is not GPUs a node as digits"):
        read_application(folder, "t4")
    (folder / "placements.csv").write_text("placement,local_bsz,step_time\n")
    with pytest.raises(UsageError, match=r"placements.csv:1: no column sync_time"):
        read_application(folder, "t4")
    with pytest.raises(UsageError, match="can't be read"):
        pollux.read(tmp_path / "none.csv", None)


def test_the_generator_follows_its_distributions_and_its_seed() -> None:
    jobs = generate.generate("4000,24", "a100", 256, 8, seed=3)
    assert jobs == generate.generate("4000,24", "a100", 256, 8, seed=3)
    assert jobs != generate.generate("4000,24", "a100", 256, 8, seed=4)
    times = [job.submit_s for job in jobs]
    assert times == sorted(times) and times[-1] <= 86400
    sizes = [job.gpus for job in jobs]
    assert sizes.count(1) / len(sizes) == pytest.approx(0.50, abs=0.03)
    # the rate's peak is at 12 h, its trough at 0 h
    assert sum(36_000 < t < 50_400 for t in times) > 1.7 * sum(t < 7_200 or t > 79_200 for t in times)
    assert max(generate.generate("500", "a100", 4, 4, 0), key=lambda j: j.gpus).gpus == 2
    for text in ("many", "0", "10,-1"):
        with pytest.raises(UsageError, match="generate"):
            generate.generate(text, "a100", 8, 8, 0)


def test_a_job_of_known_length_takes_that_long_at_its_own_size() -> None:
    for job in generate.generate("50", "a100", 64, 8, seed=1):
        each = min(8, job.gpus)
        placed = PlacedGpus("a100", (each,) * (job.gpus // each))
        pace = job.truth.pace(0, placed, job.truth.plans(Shape("a100", job.gpus // each, each))[0])
        assert pace is not None
        length_s = job.truth.end(job.truth.stages - 1) / pace.rate
        assert 60 - 1e-6 <= length_s <= 3 * 86400 + 1e-6


def test_philly_and_sacct(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-03 10:00:00,100,4,400,a\n2017-10-03 10:01:00,0,1,0,a\n"
        "2017-10-03 10:02:30,60,12,720,a\n"
    )
    one, two = cluster_logs.read_philly(path, "a100", 8)
    assert (one.submit_s, one.gpus, two.submit_s, two.gpus) == (0.0, 4, 150.0, 12)
    log = tmp_path / "sacct.txt"
    log.write_text(
        "JobID|Submit|ElapsedRaw|AllocTRES\n"
        "12|2026-03-01T12:00:10|50|billing=1,cpu=8,gres/gpu:a100=2,gres/gpu=2,node=1\n"
        "11|2026-03-01T12:00:00|70|cpu=8,gres/gpu=16,node=2\n13|2026-03-01T12:00:20|70|cpu=8,node=1\n"
    )
    first, second = cluster_logs.read_sacct(log, "a100", 8)
    assert [(j.name, j.submit_s, j.gpus) for j in (first, second)] == [("11", 0.0, 16), ("12", 10.0, 2)]
    log.write_text("JobID|Submit|ElapsedRaw|AllocTRES\n1|soon|50|gres/gpu=2\n")
    with pytest.raises(UsageError, match=r"sacct.txt:2: column Submit: 'soon' is not a time"):
        cluster_logs.read_sacct(log, "a100", 8)


def test_gavel(tmp_path: Path) -> None:
    (tmp_path / "throughputs.json").write_text(
        """{"v100": {"('LM (batch size 5)', 1)": {"null": 4.0}, "('LM (batch size 5)', 2)": {"null": 6.0}},
        "v100_unconsolidated": {"('LM (batch size 5)', 2)": {"null": 5.0}}}"""
    )
    path = tmp_path / "some.trace"
    line = "LM (batch size 5)\tx\ty\t--steps\t1\t1200\t2\tstatic\t1\t-1.0\t200\t7\n"
    path.write_text(line)
    (only,) = gavel.read(path, None, "v100")
    assert (only.gpus, only.submit_s, only.batch, only.max_gpus) == (2, 7.0, 40, 2)
    plan = only.truth.plans(Shape("v100", 1, 2))[0]
    # 1200 steps of one worker: 200 s together on one node, 240 s on two
    for per_node, seconds in (((2,), 200.0), ((1, 1), 240.0)):
        pace = only.truth.pace(0, PlacedGpus("v100", per_node), plan)
        assert pace is not None and only.truth.end(0) / pace.rate == pytest.approx(seconds)
    assert only.truth.best_rates(Shape("v100", 1, 4)) is None
    for wrong, message in (
        (
            line.replace("LM (", "GPT ("),
            r"some.trace:1: column job_type: .* no 'GPT \(batch size 5\)' on 2 v100; .* has LM",
        ),
        (line.replace("\t2\t", "\t4\t"), "on 4 v100; it has v100 x 1, v100 x 2"),
        (line.replace("1200", "0"), "some.trace:1: column steps: 0 is out of bounds"),
        ("a\tb\n", "some.trace:1: column 2: 2 fields instead of 12"),
        (line + line.replace("\t7\n", "\t6\n"), "some.trace:2: column arrival: 6 is before the row above"),
    ):
        path.write_text(wrong)
        with pytest.raises(UsageError, match=message):
            gavel.read(path, None, "v100")


def test_kinds(tmp_path: Path) -> None:
    assert find_gpu_type("pollux:x.csv") == "t4"
    assert len(read_trace("generate:3", None, "a100", 8, 8).jobs) == 3
    for text in ("pollux", "pollux:", "gone:x", ":x"):
        with pytest.raises(UsageError, match="--trace"):
            read_trace(text, None, "t4", 8, 8)


def sia_workload(root: Path, text: str = "a,7,cifar10,2,20\nb,9,cifar10,4,40\n") -> Path:
    folder = application(root, "cifar10")
    for cluster, factor in (("aws", 1.0), ("dgx-ext", 0.25), ("rtx", 0.5)):
        rows = [f"{n},{local},{factor * n * local / 100},0" for n, local in ((1, 10), (1, 20), (2, 10), (2, 20))]
        rows += [f"1,{40},{factor * 0.4},0"] * (cluster == "dgx-ext")
        # columns in any order
        (folder / f"placements-{cluster}.csv").write_text(
            "\n".join(["placement,local_bsz,step_time,sync_time", *rows, ""])
        )
        (folder / f"scalability-{cluster}.csv").write_text((folder / "scalability.csv").read_text())
    for name in ("placements.csv", "scalability.csv"):
        (folder / name).unlink()
    path = root / "workloads" / "philly" / "w.csv"
    path.parent.mkdir(parents=True)
    path.write_text(HEADER + text)
    return path


def test_a_sia_workload_has_a_table_for_each_gpu_type(tmp_path: Path) -> None:
    path = sia_workload(tmp_path)
    first, second = sia.read(path, None)
    assert (first.name, first.gpus, first.gpu_type, first.submit_s, second.batch) == ("a", 2, "", 7.0, 40)
    assert first.max_micro_batch == 40 and first.truth is second.truth
    assert first.costs is not None and (first.costs.first_start_s, first.costs.resize_s) == (50.0, 50.0)
    plan = Plan(dp=1, micro_batch=20, global_batch=20, zero_stage=0)
    paces = {t: first.truth.pace(0, PlacedGpus(t, (1,)), plan) for t in ("t4", "a100-40", "rtx2080ti", "v100")}
    assert {t: pace and pace.step_s for t, pace in paces.items()} == {
        "t4": pytest.approx(0.36), "a100-40": pytest.approx(0.09), "rtx2080ti": pytest.approx(0.18), "v100": None,
    }  # fmt: skip
    large = Plan(dp=1, micro_batch=40, global_batch=40, zero_stage=0)
    on = {t: first.truth.pace(0, PlacedGpus(t, (1,)), large) for t in ("t4", "a100-40")}
    assert {t: pace and pace.step_s for t, pace in on.items()} == {
        "t4": pytest.approx(0.72),
        "a100-40": pytest.approx(0.18),
    }
    # the artifact's cifar10 takes 1.8 times as long as its tables say, and makes as much less progress
    table, rates = first.truth.by_type["t4"], first.truth.best_rates(Shape("t4", 1, 1))  # type: ignore[attr-defined]
    untouched = table.pace(0, PlacedGpus("t4", (1,)), plan)
    assert paces["t4"] is not None and paces["t4"].rate == pytest.approx(untouched.rate / 1.8)
    assert rates == pytest.approx(table.best_rates(Shape("t4", 1, 1)) / 1.8)
    assert cluster_of_trace(f"sia:{path}", None) == {"t4": (6, 4), "a100-40": (2, 8), "rtx2080ti": (3, 8)}
    assert read_trace(f"sia:{path}", None, "t4", 0, 4).costs.resize_s == 30.0
    (tmp_path / "traces" / "cifar10" / "placements-rtx.csv").unlink()
    with pytest.raises(UsageError, match=r"placements-rtx.csv: can't be read"):
        sia.read(path, None)
