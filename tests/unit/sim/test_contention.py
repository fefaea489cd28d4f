"""Jobs that share links in the simulator's truth: what the neighbours cost and when, worked out by hand."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace

import pytest
from click.testing import CliRunner
from synergy_core.records import Directive, Job, JobState, Plan, Profile, Shape
from synergy_sim.cli.simulate import simulate_verb
from synergy_sim.records import (
    Costs,
    JobResult,
    PlacedGpus,
    Scenario,
    TraceJob,
    TrainingSpeed,
    build_cluster,
    requested_shape,
)
from synergy_sim.runs import simulate
from synergy_sim.scaling_truth import ScalingTruth
from synergy_sim.simulated_forecast import LearntForecast, make_directive
from synergy_sim.world import SimulatedJob, World, results_in_order

from synergyd.control.controller import Controller
from synergyd.control.resize.events import JobObserved, Observed, ReportsReceived
from synergyd.control.resize.lifecycle import ResizeTimes
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.spec import load_model
from synergyd.links.model import Topology
from synergyd.scheduler.problem.delays import LEASE_S
from synergyd.settings import Settings
from tests.unit.sim.builders import FirstFit, Linear, job

SLOWED = 1.4115  # two jobs that send half of their step, on one link (test_scheduler_joint.py)


@dataclass(frozen=True)
class Sends(Linear):
    """A unit of work a second on any GPUs; half of each step is sent where they are on several nodes."""

    def pace(self, stage: int, placed: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        return TrainingSpeed(1.0, 1.0, None, 0.5 if len(placed.per_node) > 1 else 0.0)


@dataclass
class ReportAnswer(FirstFit):
    """Each job gets what `grants` says at the first epoch after its arrival."""

    grants: tuple[tuple[tuple[str, int], ...], ...] = ()

    def run_epoch(self, world: World) -> None:
        for live in world.jobs.values():
            if not live.grant:
                world.begin(
                    live, self.grants[live.job_id - 1], Plan(dp=2, micro_batch=32, global_batch=64), self.delay_s
                )


def run(
    *works: float, grants: tuple[tuple[tuple[str, int], ...], ...], topology: Topology | None, delay_s: float = 0.0
) -> tuple[ReportAnswer, tuple[JobResult, ...]]:
    jobs = tuple(replace(job(0.0, 2, 1.0), name=f"j{n}", truth=Sends(work)) for n, work in enumerate(works))
    cluster = build_cluster({"a100": (3, 4)})
    director = ReportAnswer(delay_s=delay_s, grants=grants)
    world = World(Scenario(jobs, cluster, Costs(0, 0, 0, 0), topology=topology), director)
    world.run()
    return director, results_in_order(world)


A, B, C = ("a100-0", 1), ("a100-1", 1), ("a100-2", 1)


def test_two_that_share_a_link_slow_each_other_down_while_both_train() -> None:
    director, (long, short) = run(100.0, 50.0, grants=((A, B), (B, C)), topology=Topology())
    assert short.finish_s == pytest.approx(60 + 50 * SLOWED, abs=0.01)
    # by then the long one has done 50 as well, and goes on alone
    assert long.finish_s == pytest.approx(short.finish_s + 50, abs=0.01)
    # it could still report the pace that it had, first the one before the other began in the same instant
    assert [rate for _, rate in director.paces] == pytest.approx([1.0, 1 / SLOWED, 1 / SLOWED, 1.0], abs=1e-4)


def test_without_contention_or_shared_links_they_do_not() -> None:
    for grants, topology in ((((A, B), (B, C)), None), (((A, B), (C,)), Topology())):
        _, (long, short) = run(100.0, 50.0, grants=grants, topology=topology)
        assert (long.finish_s, short.finish_s) == (160.0, 110.0)


def test_who_has_not_started_to_train_sends_nothing() -> None:
    _, (one, other) = run(100.0, 100.0, grants=((A, B), (A, B)), topology=Topology(), delay_s=30.0)
    assert one.finish_s == other.finish_s == pytest.approx(90 + 100 * SLOWED, abs=0.02)


def test_uplinks() -> None:
    tree = Topology(leaf={"a100-0": "x", "a100-1": "y", "a100-2": "y"}, uplink=Topology().nic)
    grants = ((A, B), (A, C))
    _, (flat, _) = run(100.0, 100.0, grants=grants, topology=Topology())
    _, (leaves, _) = run(100.0, 100.0, grants=grants, topology=tree)
    assert (
        flat.finish_s == leaves.finish_s == pytest.approx(60 + 100 * SLOWED, abs=0.02)
    )  # one link or four: the costliest


def test_the_formulas_truth_says_what_it_sends() -> None:
    truth = ScalingTruth(("a100",), 100.0, PlacedGpus("a100", (4, 4)), 64, parallel=1.0, network=0.1, step_s=1.0)
    pace = truth.pace(0, PlacedGpus("a100", (4, 4)), Plan(dp=8, micro_batch=8, global_batch=64))
    # 1/8 of a step on one GPU computes, 0.1 sqrt(1/8) sends
    assert pace is not None and pace.sync_s == pytest.approx(0.1 * 8**-0.5 / (1 / 8 + 0.1 * 8**-0.5))
    one = truth.pace(0, PlacedGpus("a100", (4,)), Plan(dp=4, micro_batch=16, global_batch=64))
    assert one is not None and one.sync_s == 0.0


def test_users_who_spread_their_jobs_or_forbid_a_resize() -> None:
    spread = replace(job(0.0, 4, 1.0), nodes=2, resize=False)
    assert requested_shape(spread, build_cluster({"a100": (2, 4)})) == Shape("a100", 2, 2)
    assert requested_shape(spread, build_cluster({"a100": (1, 4)})) is None
    assert not make_directive(spread, rigid=False).resize and make_directive(job(0.0, 4, 1.0), rigid=False).resize


def test_a_link_aware_scheduler_keeps_them_apart() -> None:
    truth = ScalingTruth(("a100",), 600.0, PlacedGpus("a100", (2, 2)), 64, network=0.2)
    jobs = tuple(
        TraceJob(f"j{i}", "made", 0.0, 4, 64, truth, gpu_type="a100", nodes=2, resize=False, batch_fixed=True)
        for i in range(2)
    )
    site = Scenario(jobs, build_cluster({"a100": (4, 4)}), topology=Topology())
    ends = {}
    for aware in (False, True):
        found = simulate(site, "synergy", Settings(link_aware=aware), oracle=True)
        ends[aware] = [round(r.finish_s - r.start_s) for r in found.jobs]
        assert len({name for held in found.occupancies for name, _ in held.nodes}) == (4 if aware else 2)
    assert ends[True] == [630, 630] and min(ends[False]) > 630


def test_a_step_slowed_by_neighbours_teaches_what_it_would_be_without_them() -> None:
    learnt = {}
    for slowdown in (1.0, 2.0):
        forecast = LearntForecast(seed=3)
        plan = Plan(dp=4, micro_batch=16, global_batch=64, zero_stage=0)
        live = SimulatedJob(1, job(0.0, 4, 100.0), (("n", 4),), plan, TrainingSpeed(1.0, slowdown, None), ready_s=0.0)
        shape = Shape("a100", 1, 4)
        known = Job(1, "j", "u", 0, "", JobState.RUNNING, "", 0.0, 0.0, None, 0, shape, shape, directive=Directive())
        controller = Controller(ResizeTimes(), 60.0)
        controller.handle(JobObserved(1, 0.0, Observed("RUNNING")), 0.0)
        controller.jobs[1].slowdown = slowdown
        reports = forecast.reports(live, known, 10.0)
        controller.handle(ReportsReceived(reports, 0, forecast.predict_run(live, known, Profile()), shape), 10.0)
        learnt[slowdown] = controller.profiles[1].measured[0].step_s
    assert learnt[1.0] == learnt[2.0] == pytest.approx(1.0, abs=0.05)


def test_cells_say_what_they_send_between_nodes() -> None:
    cluster = build_cluster({"a100": (4, 8)})
    shape = Shape("a100", 1, 8)
    plain = Job(1, "j", "u", 0, "", JobState.PENDING, "", 0.0, None, None, 0, shape, shape, directive=Directive())
    for model in (None, load_model("llama2-7b")):
        cells = JobPlanner(plain, Profile(), model, {}).cells(cluster)
        assert {c.shape.nodes > 1 for c in cells} == {False, True}
        assert all(c.sync_s == 0 for c in cells if c.shape.nodes == 1)
        several = [c for c in cells if c.shape.nodes > 1]
        assert all(0 <= c.sync_s <= c.step_s for c in several) and any(c.sync_s > 0.005 * c.step_s for c in several)
        # a job measured at half the speed sends for twice as long
        slow = JobPlanner(plain, Profile(speed=0.5, samples=5), model, {}).cells(cluster)
        pairs = {(c.shape, c.plan): c for c in slow}
        assert all(pairs[c.shape, c.plan].sync_s == pytest.approx(2 * c.sync_s) for c in several)


# -- the command line --------------------------------------------------------------------------------------------------

SMALL = ["--trace", "generate:5,1", "--nodes", "4", "--gpus-per-node", "2", "--policy", "first-fit", "--oracle"]


@pytest.mark.slow
def test_the_options() -> None:
    told = {}
    for options in (
        [],
        ["--contention", "10gbe,2,2x10gbe"],
        ["--contention", "1gbe", "--link-aware"],
    ):
        done = CliRunner().invoke(simulate_verb, [*SMALL, *options, "--json", "-"])
        assert (done.exit_code, done.exception) == (0, None)
        told[" ".join(options)] = json.loads(done.stdout)["policies"]["first-fit"]["avg_jct_s"]
    assert all(value > 0 for value in told.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--link-aware"],
            "--set LinkAware: there are no links to be aware of; add --contention LINK[,NODES[,UPLINK]]",
        ),
        (["--contention", "2gbe"], "--contention: no figures for '2gbe'; one of 1gbe, 10gbe"),
        (["--contention", "10gbe,x"], "--contention: '10gbe,x' is not LINK[,NODES[,UPLINK]]"),
        (["--contention", "10gbe,4,0x10gbe"], "--contention: no figures for '0x10gbe'"),
        (["--contention", "10gbe,4,10gbe,1"], "is not LINK[,NODES[,UPLINK]]; such as 10gbe,8,4x10gbe"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str) -> None:
    done = CliRunner().invoke(simulate_verb, [*SMALL, *options])
    assert done.exit_code == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.slow
def test_a_run_with_contention_is_the_same_each_time() -> None:
    draw = random.Random(5)
    truth = [
        ScalingTruth(("a100",), draw.uniform(200, 900), PlacedGpus("a100", (2, 2)), 64, network=0.2) for _ in range(8)
    ]
    jobs = tuple(
        TraceJob(f"j{i}", "made", 40.0 * i, 4, 64, t, gpu_type="a100", nodes=2, batch_fixed=True)
        for i, t in enumerate(truth)
    )
    site = Scenario(jobs, build_cluster({"a100": (4, 4)}), topology=Topology())
    first, second = (simulate(site, "synergy", Settings(link_aware=True)) for _ in range(2))
    assert first.jobs == second.jobs and len(first.jobs) == 8


def test_a_start_across_leaves_is_delayed_until_the_timer_ends() -> None:
    """Jobs of one node run for long in each of two leaves; one of two nodes comes, of which crossing the uplinks costs more than a wait."""

    def made(name: str, at_s: float, nodes: int, seconds: float) -> TraceJob:
        truth = ScalingTruth(("a100",), seconds, PlacedGpus("a100", (4,) * nodes), 64, network=0.3)
        # the wide one has one size, the others may be shrunk
        return TraceJob(
            name, "made", at_s, 4 * nodes, 64, truth, gpu_type="a100", max_gpus=4 * nodes, resize=nodes == 1
        )

    jobs = (made("a", 0.0, 1, 9e3), made("b", 0.0, 1, 9e3), made("wide", 100.0, 2, 9e3))
    cluster = build_cluster({"a100": (4, 4)})
    leaves = tuple(replace(node, leaf=f"leaf{i % 2}") for i, node in enumerate(cluster.nodes))
    told = Scenario(jobs, replace(cluster, nodes=leaves), Costs(0, 0, 0, 0), epoch_s=60.0)

    def starts_s(placement: str) -> float:
        settings = Settings(placement=placement, node_link="10gbe", leaf_uplink="1gbe", early_epochs=False)
        return simulate(told, "synergy", settings, oracle=True).jobs[2].start_s

    assert starts_s("pack") == 120.0
    # twelve leases after the first epoch that saw it
    assert starts_s("dally") == 120.0 + 12 * LEASE_S
