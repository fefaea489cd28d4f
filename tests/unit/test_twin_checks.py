"""The checks of a twin run find what they are for, and nothing in a run where all is well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.throwaway.twin_checks import Run, breaches, lost
from tests.throwaway.twin_jobs import TwinJob, generate
from tests.throwaway.twin_late import Both, late, worse_off

SYNERGY = "min_gpus=1 max_gpus=8"


def job(number: int, **words: Any) -> TwinJob:
    return TwinJob(**{"number": number, "submit_s": 0.0, "seconds": 20, **words})


def run(number: int, start_s: float, end_s: float, nodes: str = "n1", gpus: int = 1, **words: Any) -> Run:
    """`gpus` of each node."""
    names = tuple(nodes.split(","))
    count = len(names)
    known = {
        "key": (number, 0),
        "partition": "main",
        "limit_s": 60.0,
        "state": "COMPLETED",
        "cpus": count,
        "memory_mib": 100 * count,
    }
    return Run(start_s=start_s, end_s=end_s, nodes=names, gpus=gpus * count, **{**known, **words})


def kinds(jobs: list[TwinJob], *runs: Run, window: tuple[float, float] | None = None) -> list[str]:
    return [f.kind for f in breaches({j.number: j for j in jobs}, runs, window)]


def both(jobs: list[TwinJob], ours: list[Run], plain: list[Run], **words: Any) -> Both:
    known: dict[str, Any] = {
        "submitted_s": {j.number: j.submit_s for j in jobs},
        "window": None,
        "grace_s": 10.0,
        "give_back_s": 30.0,
    }
    return Both(jobs={j.number: j for j in jobs}, ours=ours, plain=plain, **{**known, **words})


@pytest.mark.parametrize(
    ("words", "changes", "kind"),
    [
        ({}, {}, ""),
        ({"exclude": frozenset({"n1"})}, {}, "place"),
        ({"nodelist": frozenset({"n2"})}, {}, "place"),
        ({"constraint": "fast&(ib|rack1)"}, {}, "place"),
        ({"constraint": "ib&rack1"}, {}, ""),
        ({"gpu_type": "h100"}, {}, "place"),
        ({"partitions": ("short",)}, {}, "place"),
        ({"cpus": 4}, {}, "size"),
        ({"memory_mib": 4000}, {}, "size"),
        ({"exclusive": True}, {}, "size"),
        ({}, {"gpus": 2}, "size"),
        ({"directive": SYNERGY, "max_gpus": 2}, {"gpus": 2}, ""),
        ({"directive": SYNERGY, "min_gpus": 2, "gpus": 2, "max_gpus": 2}, {}, "size"),
        ({}, {"limit_s": 120.0}, "time"),
        ({}, {"end_s": 200.0}, "time"),
        ({"directive": SYNERGY, "max_gpus": 1, "continues": 2}, {"end_s": 200.0}, ""),
    ],
)
def test_one_run(words: dict[str, Any], changes: dict[str, Any], kind: str) -> None:
    found = kinds([job(0, **words)], replace(run(0, 0, 20), **changes))
    assert set(found) == ({kind} if kind else set())


def test_runs_of_one_job() -> None:
    elastic = job(0, directive=SYNERGY, max_gpus=8)
    assert kinds([elastic], run(0, 0, 10, state="REQUEUED"), run(0, 12, 30)) == []
    assert kinds([elastic], run(0, 0, 13, state="REQUEUED"), run(0, 12, 30)) == ["twice"]
    assert kinds([job(0)], run(0, 0, 10, state="REQUEUED"), run(0, 12, 30)) == ["twice"]
    spent = kinds([elastic], run(0, 0, 50, state="REQUEUED"), run(0, 130, 200, state="REQUEUED"), run(0, 200, 220))
    assert spent == ["time", "time"], "a limit that the runs before did not leave, and more than it in sum"
    assert kinds([elastic], run(0, 0, 10), run(0, 12, 30)) == ["twice"], "started again after its good end"


def test_nodes_limits_and_licences() -> None:
    jobs = [job(n, gpus=4, account="chem") for n in range(2)]
    assert kinds(jobs, run(0, 0, 20, gpus=4), run(1, 20, 40, gpus=4)) == []
    assert kinds(jobs, run(0, 0, 20, gpus=4), run(1, 19, 40, "n2", gpus=4)) == ["limit"]
    assert kinds([job(0, gpus=4), job(1)], run(0, 0, 20, gpus=4), run(1, 19, 40)) == ["limit"]
    assert kinds([job(0, exclusive=True), job(1)], run(0, 0, 20, cpus=16), run(1, 25, 40)) == []
    licensed = [job(n, licences=1) for n in range(3)]
    assert kinds(licensed, *(run(n, n, 20) for n in range(3))) == ["limit"]
    wide = [job(n, account="wide") for n in range(3)]
    assert kinds(wide, run(0, 0, 20), run(1, 1, 20), run(2, 2, 20, "n2")) == []
    assert kinds(wide, *(run(n, n, 20, f"n{n + 1}") for n in range(3))) == ["limit"]


def test_order() -> None:
    jobs = [job(0), job(1, after=0)]
    assert kinds(jobs, run(0, 0, 20), run(1, 20, 40)) == []
    assert kinds(jobs, run(0, 0, 20), run(1, 17, 40)) == ["order"]
    assert kinds(jobs, run(0, 0, 20, state="FAILED"), run(1, 20, 40)) == ["order"]
    named = [job(n, name="one") for n in range(2)]
    assert kinds(named, run(0, 0, 20), run(1, 10, 40)) == ["order"]
    tasks = [replace(run(0, n, 20), key=(0, n)) for n in range(2)]
    assert kinds([job(0, tasks=2, throttle=1)], *tasks) == ["order"]


def test_maintenance() -> None:
    assert kinds([job(0)], run(0, 0, 20, "n2"), window=(30.0, 90.0)) == []
    assert kinds([job(0)], run(0, 31, 40, "n2"), window=(30.0, 90.0)) == ["maintenance"]


def test_lost() -> None:
    jobs = {n: job(n) for n in range(3)}
    plain = [run(n, 0, 20) for n in range(3)]
    found = list(lost(jobs, [run(0, 0, 20), run(1, 0, 20, state="NODE_FAIL")], plain))
    assert [(f.kind, f.key[0]) for f in found] == [("lost", 1), ("never", 2)]


def test_a_job_is_late_where_its_nodes_were_free() -> None:
    jobs = [job(0, directive=SYNERGY, max_gpus=8)]
    seen = both(jobs, [run(0, 30, 50)], [run(0, 0, 20)])
    assert [f.kind for f in worse_off(seen)] == ["idle"]
    assert late(seen)[0].spent_s["idle"] == 30
    assert list(worse_off(both(jobs, [run(0, 9, 29)], [run(0, 0, 20)]))) == []
    # it stood in Slurm's queue as its twin did
    looks = (*range(0, 12, 3), *range(14, 31, 4))
    assert list(worse_off(both(jobs, [run(0, 30, 50)], [run(0, 0, 20)], turns={(0, 0): looks}))) == []
    assert [f.kind for f in worse_off(both(jobs, [run(0, 30, 50)], [run(0, 0, 20)], turns={(0, 0): (3, 5)}))] == [
        "idle"
    ]


def test_a_job_is_not_late_where_a_limit_or_its_options_are_in_the_way() -> None:
    other = job(0, gpus=4, account="chem")
    for words, ours in (
        ({"account": "chem", "gpus": 4}, run(0, 0, 40, "n2", gpus=4)),
        ({"nodelist": frozenset({"n1"})}, run(0, 0, 40, "n1", gpus=4)),
        ({"gpu_type": "v100"}, run(0, 0, 40, "n6", gpus=4)),
    ):
        jobs = [other, job(1, **words)]
        late_one = run(1, 40, 60, ours.nodes[0], gpus=jobs[1].gpus)
        seen = both(
            jobs, [ours, late_one], [replace(ours, start_s=21, end_s=61), replace(late_one, start_s=0, end_s=20)]
        )
        assert list(worse_off(seen)) == [], words
        assert late(seen)[0].spent_s["knock-on"] == 40


@pytest.mark.parametrize(
    ("words", "start_s", "kind"), [({}, 40, "knock-on"), ({"directive": SYNERGY}, 40, "idle"), ({}, 70, "idle")]
)
def test_a_node_that_backfill_keeps_for_a_job_before_it_is_not_free(
    words: dict[str, Any], start_s: float, kind: str
) -> None:
    """Four GPUs for job 0 from `start_s` on, while job 2 has one until then: job 1, of a minute, would be in the way."""
    jobs = [job(0, gpu_type="v100", gpus=4, **words), job(1, gpu_type="v100", directive=SYNERGY, max_gpus=1), job(2)]
    ours = [run(2, 0, start_s, "n6"), run(0, start_s, start_s + 20, "n6", gpus=4), run(1, start_s + 20, 100, "n6")]
    plain = [run(1, 0, 20, "n6"), run(2, 0, 40, "n6"), run(0, 40, 60, "n6", gpus=4)]
    seen = both(jobs, ours, plain)
    assert next(one for one in late(seen) if one.key == (1, 0)).spent_s[kind] >= 10


def hoard(**words: Any) -> tuple[list[TwinJob], list[Run], list[Run]]:
    """Job 0 has four GPUs of n6 and asked for one; job 1 wants one of that type."""
    jobs = [job(0, directive=SYNERGY, max_gpus=4), job(1, submit_s=1.0, gpu_type="v100", **words)]
    ours = [run(0, 0, 50, "n6", gpus=4), run(1, 50, 70, "n6")]
    return jobs, ours, [run(0, 0, 50, "n6"), run(1, 1, 21, "n6")]


def test_a_job_is_late_where_others_have_more_than_they_asked_for() -> None:
    jobs, ours, plain = hoard()
    seen = both(jobs, ours, plain)
    assert [(f.kind, f.key[0]) for f in worse_off(seen)] == [("hoarded", 1)]
    assert late(seen)[0].by_whom == ((0, 0),)
    quick = [replace(ours[0], end_s=25), replace(ours[1], start_s=25)]
    assert list(worse_off(both(jobs, quick, plain))) == []


def test_a_higher_weight_is_an_excuse_where_explain_tells() -> None:
    jobs, ours, plain = hoard(directive=f"{SYNERGY} weight=0.5", max_gpus=8)
    told = {(1, 0): ((5.0, "Waits: ..."),)}
    assert list(worse_off(both(jobs, ours, plain, told=told))) == []
    assert [f.kind for f in worse_off(both(jobs, ours, plain))] == ["hoarded"]
    jobs, ours, plain = hoard(directive=SYNERGY, max_gpus=8)
    assert [f.kind for f in worse_off(both(jobs, ours, plain, told=told))] == ["hoarded"]


def test_a_job_is_late_where_a_later_one_came_before_it() -> None:
    jobs = [
        job(0, gpu_type="v100", gpus=4),
        job(1, submit_s=1.0, directive=SYNERGY, gpu_type="v100", gpus=4, max_gpus=4),
    ]
    ours = [run(1, 2, 50, "n6", gpus=4), run(0, 50, 70, "n6", gpus=4)]
    plain = [run(0, 0, 20, "n6", gpus=4), run(1, 20, 68, "n6", gpus=4)]
    assert [(f.kind, f.key[0]) for f in worse_off(both(jobs, ours, plain))] == [("overtaken", 0)]


def test_a_job_is_passed_by_those_without_a_directive() -> None:
    """Each time that there is room, one that came later takes it."""
    jobs = [job(0, gpu_type="v100", gpus=4, directive=SYNERGY, max_gpus=4), *(job(n, submit_s=1.0) for n in (1, 2, 3))]
    ours = [run(1, 1, 21, "n6"), run(2, 22, 42, "n6"), run(3, 43, 63, "n6"), run(0, 63, 83, "n6", gpus=4)]
    plain = [run(0, 0, 20, "n6", gpus=4), *(run(n, 42, 62, "n6") for n in (1, 2, 3))]
    assert [(f.kind, f.key[0]) for f in worse_off(both(jobs, ours, plain))] == [("passed", 0)]
    assert late(both(jobs, ours, plain))[0].spent_s["idle"] == 3


def test_a_job_takes_longer() -> None:
    jobs = [job(0, directive=SYNERGY, max_gpus=8)]
    ours = [run(0, 0, 10, state="REQUEUED"), run(0, 60, 70)]
    assert [f.kind for f in worse_off(both(jobs, ours, [run(0, 0, 20)]))] == ["longer"]


def test_jobs_are_drawn_from_the_seed() -> None:
    assert generate(50, 3, 100.0) == generate(50, 3, 100.0) != generate(50, 4, 100.0)


@pytest.mark.parametrize(
    ("weight", "told_s", "other_from_s", "found"),
    [
        (" weight=0.5", 22.0, 21.0, []),
        ("", 22.0, 21.0, ["longer"]),  # nobody weighs more
        (" weight=0.5", 5.0, 21.0, ["longer"]),  # told before
        (" weight=0.5", 22.0, 5.0, ["longer"]),  # nobody began there meanwhile
    ],
)
def test_a_stopped_job_may_take_longer_for_one_of_a_higher_weight(
    weight: str, told_s: float, other_from_s: float, found: list[str]
) -> None:
    jobs = [job(0, directive=SYNERGY + weight), job(1, directive=SYNERGY)]
    ours = [run(0, 0, 20), run(0, 100, 110), run(1, other_from_s, 90)]
    plain = [run(0, 0, 30), run(1, other_from_s, 90)]
    told = {(0, 0): ((told_s, "Waits: ..."),)}
    assert [f.kind for f in worse_off(both(jobs, ours, plain, told=told))] == found


def test_gpus_that_were_asked_for_in_total_may_be_spread_unevenly() -> None:
    jobs = [job(0, form="no-nodes", gpus=4), job(1, gpus=3)]
    ours = [run(0, 0, 20, nodes="n1,n3", gpus=2), run(1, 0, 20, gpus=3)]
    assert kinds(jobs, *ours) == []
    assert kinds([replace(jobs[0], form="gres"), jobs[1]], *ours) == ["limit"]
