"""What the verb and the benchmark call: policies by name, records, JSON, table."""

from __future__ import annotations

import json

import pytest
from synergy_core.errors import UsageError
from synergy_sim.contention.run import HEADER, Setup, parse_policy, rows, run_contention, summary, table, to_json

SMALL = Setup(scale=2, jobs=20)


def test_runs_and_their_records() -> None:
    runs = run_contention(["srsf-1", "first-fit+ada-srsf", "look-ahead"], 7, SMALL)
    assert [(r.policy, r.placement, r.seed, len(r.jobs)) for r in runs] == [
        ("srsf-1", "lwf-1", 7, 20),
        ("ada-srsf", "first-fit", 7, 20),
        ("look-ahead", "lwf-1", 7, 20),
    ]
    for run in runs:
        assert all(j.finish_s > j.arrival_s for j in run.jobs)
        assert all((j.sent_s > 0) == (j.nodes > 1) for j in run.jobs)
        assert summary(run)["mean_jct_s"] == pytest.approx(sum(j.finish_s - j.arrival_s for j in run.jobs) / 20)
    assert run_contention(["srsf-1"], 7, SMALL)[0] == runs[0]
    assert not runs[0].discipline_counts and runs[2].discipline_counts


def test_json_and_table_tell_the_same() -> None:
    runs = run_contention(["srsf-1", "srsf-2"], 1, SMALL)
    told = json.loads(to_json(runs, jobs=True))
    assert [t["policy"] for t in told] == ["srsf-1", "srsf-2"] and len(told[0]["job_runs"]) == 20
    lines = table(runs).splitlines()
    assert len(lines) == 3 and len({len(line) for line in lines}) == 1
    for row, each in zip(rows(runs), told, strict=True):
        assert dict(zip(HEADER, row, strict=True))["mean JCT s"] == f"{each['mean_jct_s']:.1f}"


def test_a_table_without_multi_node_jobs() -> None:
    runs = run_contention(["srsf-1"], 1, Setup(scale=1, jobs=4))
    assert {j.nodes for j in runs[0].jobs} <= {1, 2, 4, 8}
    runs = run_contention(["srsf-1"], 1, Setup(scale=1, jobs=4, nodes=1))
    assert rows(runs)[0][7] == "-" and summary(runs[0])["multi_node_jobs"] == 0


def test_no_penalty_and_a_fast_link_make_the_rule_matter_less() -> None:
    slow, fast = (run_contention(["srsf-1", "srsf-2"], 3, Setup(scale=2, link=x)) for x in ("10gbe", "ib-ndr"))
    assert fast[0].jct_s < slow[0].jct_s
    assert abs(fast[1].jct_s / fast[0].jct_s - 1) < abs(slow[1].jct_s / slow[0].jct_s - 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"load": 0.0},
        {"scale": float("nan")},
        {"penalty": -1.0},
        {"nodes": 0},
        {"link": "2gbe"},
        {"scale": 0.2},
        {"memory_mb": 10.0},
    ],
)
def test_bad_setups_are_one_line(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        run_contention(["srsf-1"], 1, Setup(**{"scale": 2, "jobs": 10, **wrong}))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "best", "srsf-0", "lwf-x+srsf-1", "+srsf-1", "lwf-1+"])
def test_bad_policies_are_one_line(name: str) -> None:
    with pytest.raises(UsageError):
        parse_policy(name)
