"""Checks of nodes: what is compared with what, what is usual, and who may say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.node_check import NodeCheck
from synergy_core.reasons import format_reasons
from synergy_core.records import Directive, Job, JobState, Node, Shape
from synergy_core.wire.codec import decode, encode

from synergyd.control.state.node_figures import FIGURES_S, NodeFigure, usual_value
from synergyd.control.state.node_health import CHECKED, NodeHealth, NodeRecord

NOW, HOUR = 1_000_000.0, 3600.0
ANN, BEN, EVE = 1000, 1001, 1002
NAMES = tuple(f"n{i}" for i in range(1, 41))
#: so many nodes that a user may mark several
CLUSTER = tuple(Node(name, "h100", 8) for name in NAMES)


def job(uid: int = ANN, job_id: int = 1, names: tuple[str, ...] = NAMES, gpus: int = 8, gpu_type: str = "h100") -> Job:
    shape = Shape(gpu_type, len(names), gpus)
    return Job(
        job_id, "gpt", "u", uid, "", JobState.RUNNING, "", 0.0, 0.0, None, 0, shape, shape, names, directive=Directive()
    )


def check(name: str, gemm: float | None = 600e12, taken_s: float = 1.0, **more: Any) -> NodeCheck:
    measured: dict[str, Any] = {"gpus": 8, "cpus": 96, "device": "NVIDIA H100 80GB HBM3", "gemm_flops": gemm, **more}
    return NodeCheck(node=name, taken_s=taken_s, **measured)


def health(nodes: tuple[Node, ...] = CLUSTER) -> NodeHealth:
    made = NodeHealth()
    made.look(nodes, NOW)
    return made


def marked(nodes: NodeHealth) -> set[str]:
    return {r.name for r in nodes.records.values() if any(m.kind == CHECKED for m in r.marks)}


def take(nodes: NodeHealth, uid: int, rates: dict[str, float], at_s: float = NOW, **more: Any) -> set[str]:
    """Have a job of `uid` report these GEMM rates. Return the nodes that fall short."""
    checks = [check(name, rate, taken_s=at_s, **more) for name, rate in rates.items()]
    return set(nodes.take_checks(checks, job(uid, uid, tuple(rates)), at_s)[1])


def test_a_node_below_four_fifths_of_the_median_of_its_kind_falls_short() -> None:
    nodes = health()
    rates = {"n1": 600e12, "n2": 610e12, "n3": 590e12, "n4": 485e12}
    assert take(nodes, ANN, rates) == set()
    assert take(nodes, ANN, {**rates, "n4": 470e12}, NOW + HOUR) == {"n4"}
    (mark,) = nodes.records["n4"].marks
    assert mark.shortfall is not None and mark.shortfall.usual == pytest.approx(595e12)
    assert (
        format_reasons(nodes.records["n4"].reasons(NOW + HOUR)) == "matrix products at 79% of the usual under job 1000"
    )


def test_a_node_whose_check_comes_first_is_compared_once_the_others_have_come() -> None:
    nodes = health()
    own = job(names=NAMES[:5])
    found = [
        nodes.take_checks([check(n, r)], own, NOW)[1]
        for n, r in zip(NAMES, (1e14, 6e14, 6e14, 6e14, 6e14), strict=False)
    ]
    assert [set(each) for each in found] == [set(), set(), set(), {"n1"}, set()]


def test_a_check_that_nothing_can_be_compared_with_ends_no_mark() -> None:
    nodes = health()
    bad = {"n1": 600e12, "n2": 600e12, "n3": 600e12, "n4": 100e12}
    take(nodes, ANN, bad)
    take(nodes, ANN, {"n4": 600e12}, NOW + HOUR, device="NVIDIA H100 PCIe")
    assert marked(nodes) == {"n4"}
    take(nodes, ANN, bad | {"n4": 600e12}, NOW + 2 * HOUR)
    assert marked(nodes) == set()


def test_three_nodes_are_too_few_to_say_what_is_usual() -> None:
    assert take(health(), ANN, {"n1": 600e12, "n2": 600e12, "n3": 100e12}) == set()


def test_two_users_make_a_penalty_and_one_makes_none() -> None:
    nodes = health()
    rates = {"n1": 600e12, "n2": 600e12, "n3": 600e12, "n4": 100e12}
    take(nodes, ANN, rates)
    assert marked(nodes) == {"n4"} and nodes.penalties(NOW) == {}
    take(nodes, BEN, rates, NOW + HOUR)
    assert nodes.penalties(NOW + HOUR) == {"n4": pytest.approx(0.5 ** (1 / 3))}


def test_nobody_alone_makes_the_usual_value_high() -> None:
    """Eve says ten times what there is of most nodes: the others' honest checks must not look bad for it."""
    nodes = health()
    take(nodes, EVE, dict.fromkeys(NAMES[:30], 6000e12))
    honest = dict.fromkeys(NAMES[30:40], 600e12)
    assert take(nodes, ANN, honest, NOW + 1) == set()
    assert take(nodes, BEN, honest, NOW + HOUR) == set()
    assert marked(nodes) == set()


def test_low_figures_of_one_user_condemn_only_in_his_own_name() -> None:
    nodes = health()
    take(nodes, ANN, dict.fromkeys(NAMES, 600e12))
    low = {**dict.fromkeys(NAMES[:10], 1e12), **dict.fromkeys(NAMES[10:30], 600e12)}
    assert len(take(nodes, EVE, low, NOW + 1)) == 2  # as many as a job may mark
    assert len(marked(nodes)) == 2 and nodes.penalties(NOW + 1) == {}


def test_a_node_that_lies_as_healthy_ends_only_the_reporters_own_mark() -> None:
    nodes = health()
    bad = {"n1": 600e12, "n2": 600e12, "n3": 600e12, "n4": 100e12}
    take(nodes, ANN, bad)
    take(nodes, BEN, bad, NOW + HOUR)
    take(nodes, BEN, {**bad, "n4": 600e12}, NOW + 2 * HOUR)
    assert [m.uid for m in nodes.records["n4"].marks] == [ANN]


def test_gpu_types_and_devices_are_compared_with_their_own_kind_only() -> None:
    mixed = tuple(Node(name, "h100" if i % 2 else "v100", 8) for i, name in enumerate(NAMES))
    nodes = health(mixed)
    rates = {node.name: 600e12 if node.gpu_type == "h100" else 100e12 for node in mixed[:16]}
    assert take(nodes, ANN, rates) == set()
    # the same type by Slurm, another board by its driver
    assert take(nodes, ANN, {n.name: 60e12 for n in mixed[16:26]}, device="NVIDIA H100 PCIe") == set()


def test_host_figures_count_only_where_the_job_has_the_whole_node() -> None:
    nodes = health()
    checks = [
        check(name, None, host_bytes_per_s=rate) for name, rate in zip(NAMES, (2e11, 2e11, 2e11, 2e10), strict=False)
    ]
    assert nodes.take_checks(checks, job(gpus=4), NOW)[1] == {}
    assert set(nodes.take_checks(checks, job(gpus=8), NOW)[1]) == {"n4"}


def test_cpus_are_compared_with_as_many() -> None:
    nodes = health()
    checks = [check(n, 1e12, gpus=0, cpus=64, device="") for n in NAMES[:4]]
    checks += [check(n, 1e11, gpus=0, cpus=4, device="") for n in NAMES[4:8]]
    assert nodes.take_checks(checks, job(), NOW)[1] == {}


@pytest.mark.parametrize(
    ("measure", "usual", "least"),
    [("nvlinks", 18.0, 18.0), ("network_bits_per_s", 3.2e12, 2.88e12), ("sm_clock_hz", 2e9, 1.6e9)],
)
def test_each_measure_has_its_least_share(measure: str, usual: float, least: float) -> None:
    for value, short in ((least, set()), (0.99 * least, {"n5"})):
        checks = [check(n, None, **{measure: usual}) for n in NAMES[:4]] + [check("n5", None, **{measure: value})]
        assert set(health().take_checks(checks, job(), NOW)[1]) == short


def test_a_measurement_that_did_not_end_is_a_mark_by_itself() -> None:
    nodes = health()
    assert set(nodes.take_checks([check("n1", None, hung_at="gemm_flops")], job(), NOW)[1]) == {"n1"}
    assert format_reasons(nodes.records["n1"].reasons(NOW)) == "measuring its matrix products did not end under job 1"


def test_a_job_speaks_of_its_own_nodes_alone_and_not_twice_of_one_check() -> None:
    nodes = health()
    assert nodes.take_checks([check("n9")], job(names=("n1",)), NOW) == ([], {})
    first, _ = nodes.take_checks([check("n1")], job(), NOW)
    assert first and nodes.take_checks([check("n1")], job(), NOW + HOUR) == ([], {})  # the same, said again
    assert nodes.take_checks([check("n1", taken_s=2.0)], job(), NOW + 10) == ([], {})  # too soon
    assert nodes.take_checks([check("n1", taken_s=3.0)], job(), NOW + 100)[0]


def test_figures_are_one_a_measure_last_a_month_and_survive_the_store() -> None:
    nodes = health()
    for hour in range(50):
        take(nodes, ANN, {"n1": 600e12 + hour}, NOW + hour * HOUR)
    record = nodes.records["n1"]
    assert len(record.figures) == 1
    assert decode(NodeRecord, encode(record), "stored") == record
    later = NOW + 49 * HOUR + FIGURES_S
    nodes.forget_weak_records(later - 1)
    assert "n1" in nodes.records
    nodes.forget_weak_records(later + 1)
    assert nodes.records == {}


def test_a_record_of_an_earlier_release_reads_and_is_written_as_before() -> None:
    stored = encode(NodeRecord(name="n1"))
    assert "figures" not in stored and decode(NodeRecord, stored, "stored").figures == ()


def test_the_usual_value_needs_four_nodes_without_any_one_other_user() -> None:
    def figure(uid: int, value: float) -> NodeFigure:
        return NodeFigure(measure="nvlinks", kind="k", value=value, uid=uid, job_id=1, at_s=NOW, taken_s=1.0)

    own = [figure(ANN, float(v)) for v in (1, 2, 3, 4)]
    assert usual_value(own, ANN) == 2.5
    assert usual_value(own, BEN) is None  # without Ann's there is nothing
    both = [*own, *(replace(f, uid=BEN, value=10 * f.value) for f in own)]
    assert usual_value(both, ANN) == 2.5
    assert usual_value(both, EVE) == 2.5
