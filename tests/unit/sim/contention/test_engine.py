"""The event simulation against hand-worked examples and against a plain, exact second implementation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from synergy_core.errors import UsageError
from synergy_sim.contention.engine import Engine, Machine
from synergy_sim.contention.lookahead import LookAhead, forecast
from synergy_sim.contention.placers import find_placer
from synergy_sim.contention.workload import MIX, JobSpec, paper_workload

from synergyd.links.disciplines import Discipline, make_discipline
from synergyd.links.lookahead import CANDIDATES
from synergyd.links.model import Link, Topology
from tests.unit.sim.contention.reference import finishes

LINK = Link(1.0, 0.5)  # two share at 2.5 ms/MB, three at 4; threshold 1/3


def job(number: int, gpus: int, message: float, forward: float = 4.0, backward: float = 6.0, iterations: int = 1,
        arrival: float = 0.0) -> JobSpec:  # fmt: skip
    return JobSpec(number, "test", gpus, iterations, arrival, forward, backward, message)


def run(
    jobs: Sequence[JobSpec], where: Sequence[Sequence[int]], name: str, link: Link = LINK, per_node: int = 4
) -> Engine:
    nodes = 1 + max(g for gpus in where for g in gpus) // per_node
    machine = Machine(nodes, per_node, topology=Topology(nic=link))
    engine = Engine(machine, jobs, lambda engine, j: where[j], make_discipline(name))
    assert not engine.advance()
    return engine


@pytest.mark.parametrize(
    ("name", "ends"), [("srsf-1", [20.0, 30.0]), ("srsf-2", [35.0, 35.0]), ("ada-srsf", [20.0, 30.0])]
)
def test_two_equal_jobs(name: str, ends: list[float]) -> None:
    """Both ready at 10 with 10 MB: in turn 10 ms each, or together at 2.5 ms/MB."""
    assert run([job(0, 2, 10.0), job(1, 2, 10.0)], [(0, 4), (1, 5)], name).finish == ends


@pytest.mark.parametrize(
    ("message", "ends"),
    [
        # A has 28 MB left at 12. 9 MB <= 28/3: together till 12 + 9*2.5 = 34.5, then A's last 19 MB. Sum 88, by turns 89.
        (9.0, [53.5, 34.5]),
        # 10 MB: by turns, A at 40, B at 50. Sum 90; together 37 and 55, 92.
        (10.0, [40.0, 50.0]),
    ],
)
def test_adadual_in_time(message: float, ends: list[float]) -> None:
    jobs = [job(0, 2, 30.0), job(1, 2, message, forward=6.0)]
    assert run(jobs, [(0, 4), (1, 5)], "ada-srsf").finish == pytest.approx(ends)


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("srsf-1", [20.0, 30.0, 40.0]),
        ("srsf-2", [35.0, 35.0, 45.0]),  # the third begins alone at 35
        ("srsf-3", [50.0, 50.0, 50.0]),  # 3*1 + 2*0.5 = 4 ms/MB
        ("ada-srsf", [20.0, 30.0, 40.0]),
    ],
)
def test_three_equal_jobs_on_one_link(name: str, ends: list[float]) -> None:
    jobs = [job(i, 2, 10.0) for i in range(3)]
    assert run(jobs, [(0, 4), (1, 5), (2, 6)], name).finish == pytest.approx(ends)


def test_a_task_moves_at_the_pace_of_its_most_loaded_node() -> None:
    """A on n0 n1, B on n1 n2, C on n2 n3: B shares one link with each, so that all go at 2.5 though no link has three."""
    where = [(0, 4), (5, 8), (9, 12)]
    assert run([job(i, 2, 10.0) for i in range(3)], where, "srsf-2").finish == [35.0] * 3
    # By turns A and C go together, for they share nothing.
    assert run([job(i, 2, 10.0) for i in range(3)], where, "srsf-1").finish == [20.0, 30.0, 20.0]


def test_waiting_once_staggers_for_good() -> None:
    """Compute 10, message 10: after B has waited once, they alternate without meeting; sharing meets every time."""
    jobs = [job(i, 2, 10.0, iterations=4) for i in range(2)]
    assert run(jobs, [(0, 4), (1, 5)], "srsf-1").finish == [80.0, 90.0]
    assert run(jobs, [(0, 4), (1, 5)], "srsf-2").finish == [140.0, 140.0]


def test_a_reservation_keeps_small_tasks_from_starving_a_wide_one() -> None:
    """W crosses n0 n1 n2; A (n0 n1) sends at 10..40, B (n1 n2 would meet A) ... C (n2 n3) asks at 35 for 20 MB. Without reservation C
    goes at once and W, free to go at 40, waits till 55; with it C waits for W."""
    jobs = [job(0, 2, 30.0), job(1, 3, 10.0, forward=1.0, backward=19.0), job(2, 2, 20.0, forward=15.0, backward=20.0)]
    where = [(0, 4), (1, 5, 8), (9, 12)]
    assert run(jobs, where, "srsf-1").finish == [40.0, 65.0, 55.0]
    assert run(jobs, where, "srsf-1-reserve").finish == [40.0, 50.0, 70.0]
    # 5 MB from 35 are over by 40: they pass.
    jobs[2] = job(2, 2, 5.0, forward=15.0, backward=20.0)
    assert run(jobs, where, "srsf-1-reserve").finish == [40.0, 50.0, 40.0]


def test_uplinks_count() -> None:
    """Two jobs on four different nodes meet on the leaves' uplinks."""
    leaf = {"n0": "x", "n1": "x", "n2": "y", "n3": "y"}
    machine = Machine(4, 1, topology=Topology(nic=LINK, leaf=leaf, uplink=Link(2.0, 0.0)))
    where = [(0, 2), (1, 3)]
    engine = Engine(machine, [job(0, 2, 10.0), job(1, 2, 10.0)], lambda e, j: where[j], make_discipline("srsf-2"))
    engine.advance()
    assert engine.finish == [50.0, 50.0]  # 2*2 ms/MB on the uplinks against 1 on the nodes


def test_residents_of_one_gpu_take_turns_between_passes() -> None:
    """L (3 iterations of 10) runs alone; S comes at 11 in L's second forward pass, which ends at 14; S runs 14..24, then L goes on."""
    jobs = [job(0, 1, 0.0, iterations=3), job(1, 1, 0.0, arrival=11.0)]
    assert run(jobs, [(0,), (0,)], "srsf-1").finish == [40.0, 24.0]


def random_jobs(rng: random.Random) -> tuple[list[JobSpec], list[tuple[int, ...]]]:
    jobs, where = [], []
    for i in range(rng.randint(2, 7)):
        gpus = rng.choice((1, 1, 2, 2, 3, 4))
        jobs.append(
            job(i, gpus, float(rng.randint(1, 40)), float(rng.randint(1, 9)), float(rng.randint(1, 9)),
                rng.randint(1, 8), float(rng.randint(0, 60)))
        )  # fmt: skip
        where.append(tuple(rng.sample(range(6), gpus)))
    return jobs, where


@pytest.mark.parametrize("name", ["srsf-1", "srsf-2", "srsf-3", "ada-srsf"])
def test_the_engine_is_exact(name: str) -> None:
    """Random small cases on 3 nodes of 2 GPUs, GPUs shared: every finish as the plain implementation has it."""
    for seed in range(40):
        jobs, where = random_jobs(random.Random(seed))
        engine = run(jobs, where, name, Link(2.0, 1.0), per_node=2)
        expected = finishes(jobs, where, 2, 2, 1, make_discipline(name).rule)
        assert engine.finish == pytest.approx(expected, abs=1e-6), seed


def test_a_fork_goes_on_as_the_original_would() -> None:
    jobs = paper_workload(3, scale=4, load=50.0)
    engine = Engine(Machine(), jobs, find_placer("lwf-1"), make_discipline("ada-srsf"))
    assert engine.advance(until=200.0)
    copy = engine.fork(make_discipline("ada-srsf"), arrivals=True)
    copy.advance()
    assert engine.now <= 200.0 and min(engine.finish) < 0
    engine.advance()
    assert copy.finish == engine.finish


@pytest.mark.slow
def test_look_ahead_forecast_is_what_then_happens() -> None:
    """Without arrivals to come, a forecast is exact, and the chosen discipline is the best of the candidates."""
    jobs = [replace(j, arrival_ms=0.0) for j in paper_workload(5, jobs=50, scale=4)]
    engine = Engine(Machine(), jobs, find_placer("lwf-1"), CANDIDATES[0])
    engine.advance(to_change=True)
    sums = {d.name: forecast(engine, d, engine.unfinished_jobs) for d in CANDIDATES}
    best, mean = LookAhead(margin=0.0).choose(engine)
    assert sums[best.name] == min(sums.values())
    assert mean == pytest.approx(min(sums.values()) / len(jobs) - engine.now)
    assert forecast(engine, best, engine.unfinished_jobs, limit=sums[best.name] * 0.999) == float("inf")
    # Chosen again at every change: never worse than the best of them from the start, for it may be kept throughout.
    engine = Engine(Machine(), jobs, find_placer("lwf-1"), CANDIDATES[0])
    LookAhead(patience=0.0, margin=0.0).run(engine)
    assert sum(engine.finish) <= min(sums.values()) * (1 + 1e-9)


def test_look_ahead_leaves_what_is_in_force_only_for_a_gain_beyond_its_margin() -> None:
    jobs = [replace(j, arrival_ms=0.0) for j in paper_workload(5, jobs=50, scale=4)]
    worst = make_discipline("srsf-99")
    engine = Engine(Machine(), jobs, find_placer("lwf-1"), worst)
    engine.advance(to_change=True)
    kept, other = (forecast(engine, d, engine.unfinished_jobs) for d in (worst, CANDIDATES[0]))
    gain = (kept - other) / (kept - len(jobs) * engine.now)
    assert gain > 0
    for margin, chosen in ((gain * 0.99, CANDIDATES[0]), (gain * 1.01, worst)):
        assert LookAhead(CANDIDATES[:1], margin=margin).choose(engine)[0] == chosen


def test_the_papers_mix() -> None:
    jobs = paper_workload(1)
    assert {g: sum(j.gpus == g for j in jobs) for g, _ in MIX} == dict(MIX)
    assert all(1000 <= j.iterations <= 6000 and 0 <= j.arrival_ms <= 1.2e6 for j in jobs)
    assert paper_workload(1) == jobs != paper_workload(2)
    assert [j.arrival_ms for j in jobs] == sorted(j.arrival_ms for j in jobs)
    assert max(j.arrival_ms for j in paper_workload(1, load=2.0)) <= 0.6e6


@pytest.mark.parametrize("placement", ["first-fit", "lwf-1", "lwf-4"])
def test_exclusive_gpus_have_one_resident(placement: str) -> None:
    engine = Engine(
        Machine(exclusive=True),
        paper_workload(2, jobs=80, scale=2),
        find_placer(placement),
        make_discipline("srsf-1"),
    )
    while engine.advance(to_change=True):
        assert all(len(some) <= 1 for some in engine.residents)
    assert min(engine.finish) > 0


def test_bad_input_is_one_line() -> None:
    with pytest.raises(UsageError, match="fewer GPUs or less memory"):
        Engine(Machine(2, 2), [job(0, 5, 1.0)], find_placer("first-fit"), Discipline(make_discipline("srsf-1").rule))
    for name in ("lwf", "lwf-", "best", "lwf-x"):
        with pytest.raises(UsageError, match="no placement"):
            find_placer(name)
