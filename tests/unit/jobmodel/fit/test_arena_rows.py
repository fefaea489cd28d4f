"""The comparison with Arena's measured optima: what is read, what is held out, and that the fit is of use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synergy_core.errors import UsageError

from synergyd.jobmodel.fit import residual
from synergyd.jobmodel.fit.predictor import Predictor, fit_predictor
from tests.benchmarks import arena_rows

OPTIMA = """model,params,global_batch,gpu_type,num_nodes,gpus_per_node,iter_time_s
bert,760M,128,a40,1,1,{a}
bert,760M,128,a40,1,2,{b}
bert,1.3B,128,a40,1,2,{c}
bert,1.3B,128,a40,2,2,{d}
bert,15B,256,v100,1,16,-1.0
wide_resnet,1B,256,a40,1,2,19.2
wide_resnet,1B,256,a40,2,2,15.4
"""
LATENCIES = """file,op,groups,num_elements,dtype,latency_s
1_a40_1_n_2_d,all-reduce,"[[0, 1]]",33554432,float32,0.01
2_a40_2_n_2_d,all-reduce,"[[0, 2], [1, 3]]",33554432,float32,0.1
2_a40_2_n_2_d,all-reduce,"[[0, 1], [2, 3]]",33554432,float32,0.01
"""
ESTIMATES = """model,params,global_batch,gpu_type,num_nodes,gpus_per_node,pp,dp,tp,compute_s,iter_time_s
bert,760M,128,a40,1,1,1,1,1,14.0,14.0
bert,760M,128,a40,1,2,1,2,1,7.0,7.5
bert,760M,128,a40,1,2,2,1,1,7.0,8.5
"""


def folder(where: Path, factor: float = 1.0) -> Path:
    measured = {"a": 13.5 * factor, "b": 7.5 * factor, "c": 12.7 * factor, "d": 7.4 * factor}
    (where / "alpa_optimal_iter_time.csv").write_text(OPTIMA.format(**measured))
    (where / "collective_latency.csv").write_text(LATENCIES)
    (where / "estimated_3d_plans.csv").write_text(ESTIMATES)
    (where / "prof_database_h100_l20.json").write_text(
        json.dumps({"optimal": {"bert_760M_256": {"1_l20_1_n_8_d": [5, 19.4, 3.878, 18.0, 3.61, 6.0]}}})
    )
    return where


def test_optima_and_links_are_read_as_they_were_measured(tmp_path: Path) -> None:
    optima = arena_rows.read_optima(folder(tmp_path))
    assert [one.step_s for one in optima][-4:] == [None, 19.2, 15.4, 3.878]
    assert optima[-1].shape.gpu_type == "l20" and optima[-1].gpus == 8
    links = arena_rows.link_rates(tmp_path)["a40"]
    # bus rate of two ranks: the bytes over the time, here 128 MiB in 10 and 100 ms; both links reach 0.75 of nominal
    assert links["intra_gbs"] == pytest.approx(13.42 / 0.75, rel=1e-3)
    assert links["inter_gbs"] == pytest.approx(1.342 / 0.75, rel=1e-3)


def test_every_plan_has_sixteen_micro_batches(tmp_path: Path) -> None:
    optima = arena_rows.read_optima(folder(tmp_path))
    for one in optima:
        if one.family == "bert":
            plans = arena_rows.plans_of(one)
            assert plans and {plan.micro_batches for plan in plans} == {16}
            assert all(plan.gpus == one.gpus and plan.tp <= one.shape.gpus_per_node for plan in plans)


def test_a_row_that_is_scored_is_never_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optima = [one for one in arena_rows.read_optima(folder(tmp_path)) if one.family == "bert"]
    known = arena_rows.space(optima, {})
    seen: list[set[str]] = []

    def watched(space: arena_rows.Space, train: list[int]) -> Predictor:
        seen.append({space.optima[j].size for j in train})
        return fit_predictor((), {})

    monkeypatch.setattr(arena_rows, "learnt", watched)
    signed = arena_rows.held_out(known, lambda one: one.size)
    # one a held-out size (1.3B, 760M), without that size and without the optimum that was not measured
    assert seen == [{"760M"}, {"1.3B"}] and len(signed) == 5


@pytest.mark.slow
def test_other_sizes_teach_a_level(tmp_path: Path) -> None:
    optima = [one for one in arena_rows.read_optima(folder(tmp_path, 1.4)) if one.shape.gpu_type == "a40"]
    known = arena_rows.space([one for one in optima if one.family == "bert"], {})
    raw = arena_rows.found(arena_rows.held_out(known, None))
    learnt = arena_rows.found(arena_rows.held_out(known, lambda one: one.size))
    assert learnt.mean < 0.7 * raw.mean


def test_peers_are_the_fastest_of_their_plans_and_memory_is_told(tmp_path: Path) -> None:
    optima = [one for one in arena_rows.read_optima(folder(tmp_path)) if one.family == "bert"]
    theirs = arena_rows.peers(tmp_path, optima)
    assert theirs[0] == pytest.approx(14 / 13.5 - 1) and theirs[1] == pytest.approx(0.0) and theirs[2] is None
    called = arena_rows.out_of_memory(arena_rows.space(optima, {}))
    assert called["ran"] == 5 and called["failed"] == 1 and called["ran_called_oom"] == 0


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        arena_rows.read_optima(tmp_path / "nowhere")


def test_a_predictor_starts_from_the_sites_own_figures(tmp_path: Path) -> None:
    optima = [one for one in arena_rows.read_optima(folder(tmp_path)) if one.size == "1.3B"]
    slow = fit_predictor((), {"a40": {"inter_gbs": 0.1}})
    rows = [row for row in arena_rows.space(optima, {}).rows if row.plan.dp == 4]
    assert (slow.step_s(rows) > 1.5 * fit_predictor(()).step_s(rows)).all()
    assert not len(slow.time.residual.measured) and not len(residual.empty(1).measured)
