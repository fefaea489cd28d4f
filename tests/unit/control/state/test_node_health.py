"""Bad nodes: who may mark them, how a penalty comes and fades, and which of them are drained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Node
from synergy_core.wire.codec import decode, encode

from synergyd.control.state.node_health import (
    HALF_LIFE_S,
    HUNG,
    JOB_NODES,
    KEPT_OFF_S,
    LOST,
    REASON,
    SLOW,
    SLURM,
    DrainNode,
    Mark,
    NodeHealth,
    NodeRecord,
)
from synergyd.control.state.node_paces import NodePaces

NOW = 1_000_000.0
ANN, BEN, EVE = 1000, 1001, 1002


def cluster(count: int = 10, **changes: object) -> tuple[Node, ...]:
    return tuple(replace(Node(f"n{i}", "a100", 4), **changes) for i in range(count))  # type: ignore[arg-type]


def health(count: int = 10) -> NodeHealth:
    made = NodeHealth()
    made.look(cluster(count), NOW)
    return made


def agreed(nodes: NodeHealth, name: str = "n1", at_s: float = NOW) -> None:
    nodes.mark(SLOW, name, ANN, 1, at_s)
    nodes.mark(SLOW, name, BEN, 2, at_s)


def drained(nodes: NodeHealth, now_s: float) -> list[DrainNode]:
    return [d for d in nodes.drains(now_s) if isinstance(d, DrainNode)]


def test_one_user_makes_no_penalty_whatever_is_reported() -> None:
    nodes = health()
    for job in range(50):
        for name in (f"n{i}" for i in range(10)):
            for kind in (SLOW, HUNG):
                nodes.mark(kind, name, EVE, job, NOW + job)
    assert nodes.penalties(NOW + 60) == {}
    marked = [r.name for r in nodes.records.values() if r.marks]
    assert len(marked) == 1  # a tenth of ten nodes


def test_two_users_make_a_penalty_that_fades() -> None:
    nodes = health()
    agreed(nodes)
    assert nodes.penalties(NOW) == {"n1": 1.0}
    assert nodes.penalties(NOW + HALF_LIFE_S)["n1"] == pytest.approx(0.5)
    assert nodes.penalties(NOW + 10 * 3600) == {}
    nodes.forget_weak_records(NOW + 2 * 86_400)
    assert nodes.records == {}


def test_two_jobs_of_one_user_are_one_user() -> None:
    nodes = health()
    nodes.mark(SLOW, "n1", ANN, 1, NOW)
    nodes.mark(SLOW, "n1", ANN, 2, NOW)
    assert nodes.penalties(NOW) == {}


def test_a_job_marks_few_nodes() -> None:
    nodes = health(100)
    for i in range(20):
        nodes.mark(SLOW, f"n{i}", ANN, 1, NOW)
    assert sum(bool(r.marks) for r in nodes.records.values()) == JOB_NODES


def test_what_slurm_lost_counts_by_itself() -> None:
    nodes = health()
    nodes.lose(["n1"], 7, NOW)
    nodes.lose(["n1"], 8, NOW + 1)  # the same loss, by another of its jobs
    assert nodes.penalties(NOW + 1)["n1"] == pytest.approx(0.5, abs=0.01)
    nodes.lose(["n1"], 9, NOW + 3600)
    assert nodes.penalties(NOW + 3600)["n1"] > 0.8
    assert "lost under jobs 7, 9" in nodes.records["n1"].format_reasons(NOW + 3600)


def test_a_node_with_fewer_gpus_than_it_should_have_is_bad() -> None:
    nodes = health()
    short = (*cluster(10)[:9], Node("n9", "a100", 4, up=False, reason="gres/gpu count reported lower than configured"))
    assert [r.name for r in nodes.look(short, NOW)] == ["n9"]
    assert nodes.look(short, NOW + 60) == []
    assert nodes.penalties(NOW) == {"n9": 1.0}
    assert "fewer GPUs" in nodes.records["n9"].format_reasons(NOW)


def test_a_job_that_runs_well_there_breaks_the_row() -> None:
    nodes = health()
    agreed(nodes)
    nodes.lose(["n1"], 3, NOW)
    assert nodes.clear_marks(SLOW, "n1")
    assert nodes.penalties(NOW) == {"n1": 0.5}  # what Slurm saw stays
    assert not nodes.clear_marks(SLOW, "n1")


def test_a_job_that_hangs_elsewhere_too_takes_its_marks_back() -> None:
    nodes = health()
    nodes.mark(HUNG, "n1", ANN, 1, NOW)
    nodes.mark(HUNG, "n1", BEN, 2, NOW)
    nodes.take_back(2)
    assert nodes.penalties(NOW) == {}


def test_few_are_drained_and_the_worst_first() -> None:
    nodes = health(20)
    for name, ago_s in (("n1", 0.0), ("n2", 600.0), ("n3", 300.0)):
        nodes.mark(SLOW, name, ANN, 1 + int(ago_s), NOW - ago_s)
        nodes.mark(HUNG, name, 2000 + int(ago_s), 2 + int(ago_s), NOW - ago_s)
        nodes.records[name] = replace(
            nodes.records[name],
            marks=tuple(replace(m, uid=m.uid + 1) if m.uid == ANN else m for m in nodes.records[name].marks),
        )
    first = drained(nodes, NOW)
    assert [d.name for d in first] == ["n1", "n3"]  # a tenth of 20
    assert first[0].reason.startswith(REASON) and "slow under job" in first[0].reason
    assert drained(nodes, NOW + 60) == []


def test_a_small_cluster_drains_one_and_no_other_meanwhile() -> None:
    nodes = health(3)
    agreed(nodes, "n1")
    assert [d.name for d in drained(nodes, NOW)] == ["n1"]
    shown = tuple(replace(n, up=False, reason=f"{REASON}slow") if n.name == "n1" else n for n in cluster(3))
    nodes.look(shown, NOW + 60)
    nodes.lose(["n2"], 5, NOW + 60)
    nodes.lose(["n2"], 6, NOW + 900)
    assert nodes.penalties(NOW + 900)["n2"] > 0.6 and drained(nodes, NOW + 900) == []
    # an admin takes it back: not drained again within a day, and thought well of
    nodes.look(cluster(3), NOW + 1000)
    assert "n1" not in nodes.penalties(NOW + 1000)
    agreed(nodes, "n1", NOW + 1100)
    assert [d.name for d in drained(nodes, NOW + 1100)] == ["n2"]
    nodes.look(cluster(3), NOW + 1000 + KEPT_OFF_S)
    agreed(nodes, "n1", NOW + 1000 + KEPT_OFF_S)
    assert [d.name for d in drained(nodes, NOW + 1001 + KEPT_OFF_S)] == ["n1"]


def test_a_drain_that_slurm_refused_is_tried_again() -> None:
    nodes = health()
    agreed(nodes)
    assert drained(nodes, NOW)
    nodes.look(cluster(), NOW + 30)
    assert not drained(nodes, NOW + 30)
    nodes.look(cluster(), NOW + 200)
    assert drained(nodes, NOW + 200)


def test_a_node_that_is_down_or_an_admins_is_not_drained() -> None:
    nodes = health()
    agreed(nodes)
    nodes.look(cluster(up=False, reason="broken fan"), NOW)
    assert drained(nodes, NOW) == []


def test_a_record_survives_the_store_and_the_clock() -> None:
    nodes = health()
    agreed(nodes)
    kept = [decode(NodeRecord, encode(r), "node") for r in nodes.records.values()]
    again = NodeHealth()
    again.load(kept, NOW)
    assert again.records == nodes.records and again.penalties(NOW) == {"n1": 1.0}
    again.set_clock(3600.0)
    assert again.penalties(NOW + 3600) == {"n1": 1.0}


def test_times_that_lie_ahead_count_from_now() -> None:
    ahead = NOW + 10 * KEPT_OFF_S
    mark = Mark(kind=LOST, uid=SLURM, job_id=1, at_s=ahead)
    nodes = NodeHealth()
    nodes.load([NodeRecord(name="n1", marks=(mark,), drained_s=ahead), NodeRecord(name="n2", back_s=ahead)], NOW)
    assert nodes.penalties(NOW + HALF_LIFE_S) == {"n1": 0.5}
    assert nodes.records["n1"].drained_s == NOW
    assert nodes.records["n2"].is_kept_undrained(NOW) and not nodes.records["n2"].is_kept_undrained(NOW + KEPT_OFF_S)


def test_marks_of_a_node_are_bounded() -> None:
    nodes = health()
    for uid in range(100):
        nodes.mark(SLOW, "n1", uid, uid, NOW)
    assert len(nodes.records["n1"].marks) <= 16
    assert SLURM not in {m.uid for m in nodes.records["n1"].marks} and LOST not in {
        m.kind for m in nodes.records["n1"].marks
    }


def test_a_node_is_slow_for_a_job_alone_by_runs_like_it() -> None:
    paces = NodePaces()
    assert paces.add("run", "n1", 1.0, 100) is None  # nothing to compare with
    assert paces.add("run", "n2", 1.3, 10) is None  # its first steps
    assert paces.add("run", "n2", 1.3, 100) is True
    assert paces.add("run", "n3", 1.01, 100) is False
    assert paces.add("other", "n2", 9.0, 100) is None
    assert paces.add("run", "n2", 1.1, 100) is None  # neither
