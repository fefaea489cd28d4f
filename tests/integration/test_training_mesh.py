"""The FSDP2 and tensor-parallel template with SynergyTask: a run whose mesh (dp, tp) changes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synergy_core.errors import UsageError
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.pytorch.mesh import Degrees, mesh_degrees
from synergy_launch.pytorch.run_plan import run_plan

from tests.integration import training_ranks
from tests.integration.test_training_pytorch import log_of, make_run_dir, status_of
from tests.integration.training_ranks import Call

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
SMALL = ["--hidden", "32", "--layers", "1", "--seq", "32", "--lr", "1e-2", "--checkpoint", "/unused"]


def train(
    folder: Path, run_dir: Path, tp: int, dp: int, steps: int, checkpoint: Path, *more: str, shard: int = 0
) -> None:
    environment = {
        "SYNERGY_RUN_DIR": str(run_dir),
        "SYNERGY_CHECKPOINT_DIR": str(checkpoint),
        "SYNERGY_PLAN_JSON": json.dumps({"tp": tp, "dp": dp, "global_batch": 8, "micro_batch": 2, "shard": shard}),
    }
    call = Call("example", "synergy_launch.examples.fsdp_tp", ["--steps", str(steps), *SMALL, *more])
    training_ranks.run(folder, tp * dp, call, environment=environment)


def test_the_mesh_changes_from_1_to_2_to_4_to_2_ranks_as_if_left_alone(tmp_path: Path) -> None:
    resized, alone = make_run_dir(tmp_path / "resized"), make_run_dir(tmp_path / "alone")
    for tp, dp, steps in [(1, 1, 2), (2, 1, 4), (2, 2, 6), (1, 2, 8)]:
        train(tmp_path / str(steps), resized, tp, dp, steps, tmp_path / "checkpoints")
    train(tmp_path / "left", alone, 1, 1, 8, tmp_path / "other")
    log, reference = log_of(resized), log_of(alone)
    assert [(entry["tp"], entry["dp"]) for entry in log] == [(1, 1)] * 2 + [(2, 1)] * 2 + [(2, 2)] * 2 + [(1, 2)] * 2
    differences = [abs(a["loss"] - b["loss"]) for a, b in zip(log, reference, strict=True)]
    print(differences, log[0]["loss"], log[-1]["loss"])
    assert max(differences) < 1e-5 and log[-1]["loss"] < log[0]["loss"] - 0.2
    status: dict[str, Any] = status_of(resized)
    assert status["state"] == "done" and status["resharding"] and status["accepts"] == {"cp": True, "exact_only": True}
    assert (status["model"]["heads"], status["model"]["gated"]) == (4, True)
    assert status["noise_scale"] == pytest.approx(status_of(alone)["noise_scale"], rel=0.5)  # other pairs of batches


def test_groups_that_share_out_by_themselves_equal_one_over_a_resize(tmp_path: Path) -> None:
    """HSDP, told by the plan and by the script: 4 ranks in groups of 2, 2 ranks of one group, tp 2 beside groups of one."""
    groups, whole = make_run_dir(tmp_path / "groups"), make_run_dir(tmp_path / "whole")
    train(tmp_path / "1", groups, 1, 4, 3, tmp_path / "checkpoints", shard=2)
    train(tmp_path / "2", groups, 1, 2, 5, tmp_path / "checkpoints", "--shard", "2")  # all of them: plain FSDP
    train(tmp_path / "3", groups, 2, 2, 7, tmp_path / "checkpoints", "--shard", "1")
    train(tmp_path / "4", whole, 1, 4, 7, tmp_path / "other")
    log, reference = log_of(groups), log_of(whole)
    differences = [abs(a["loss"] - b["loss"]) for a, b in zip(log, reference, strict=True)]
    print(differences)
    assert len(log) == 7 and max(differences) < 1e-5 and log[-1]["loss"] < log[0]["loss"] - 0.2
    noise = [status_of(run_dir)["noise_scale"] for run_dir in (groups, whole)]
    assert noise[0] == pytest.approx(noise[1], rel=0.5)


def test_groups_of_the_mesh_are_those_of_fully_shard(tmp_path: Path) -> None:
    plan = {"dp": 4, "global_batch": 8, "micro_batch": 2, "shard": 2}
    placed, _ = training_ranks.run(
        tmp_path, 4, Call("placed_on_groups"), environment={"SYNERGY_PLAN_JSON": json.dumps(plan)}
    )
    assert placed == (("dp_replicate", "dp_shard", "tp"), (2, 2, 1), ("dp_replicate", "dp_shard"), "R S(0)", 0.5)


@pytest.mark.parametrize(
    ("names", "size"), [(("dp",), 4), (("dp_shard", "dp_replicate", "tp"), 4), (("dp_replicate", "dp_shard", "tp"), 8)]
)
def test_a_mesh_of_other_dimensions_is_refused(names: tuple[str, ...], size: int) -> None:
    mesh = SimpleNamespace(mesh_dim_names=names, size=lambda: size)
    with pytest.raises(UsageError, match=r"must be .dp, tp. or .dp_replicate, dp_shard, tp. of all 4"):
        mesh_degrees(mesh, 4)


def test_a_mesh_in_other_groups_than_the_plans_is_refused() -> None:
    plan = json.dumps({"dp": 4, "global_batch": 8, "micro_batch": 2, "shard": 2})
    settings = AgentSettings.from_environment({"SYNERGY_PLAN_JSON": plan, "WORLD_SIZE": "4"})
    assert run_plan(settings, Degrees(4, 1, 2), 8, None).shard == 2
    all_of_them = AgentSettings.from_environment(
        {"SYNERGY_PLAN_JSON": plan.replace('"shard": 2', '"shard": 4'), "WORLD_SIZE": "4"}
    )
    assert run_plan(all_of_them, Degrees(4, 1, 0), 8, None).shard == 4, (
        "one group is none: plan_mesh makes (dp, tp) of it"
    )
    with pytest.raises(UsageError, match="shard=2, the plan dp=4 tp=1 shard=4"):
        run_plan(all_of_them, Degrees(4, 1, 2), 8, None)
    for mesh, said in (((4, 1, 1), "shard=1, the plan dp=4 tp=1 shard=2"), ((4, 1, 0), "shard=2 was given")):
        with pytest.raises(UsageError, match=said):
            run_plan(settings, Degrees(*mesh), 8, None)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"dp": 2, "ep": 2}, "SYNERGY_PLAN_JSON: ep=2 was given to a script that can't split itself so"),
        ({"dp": 2, "shard": 3}, "SYNERGY_PLAN_JSON: shard=3 does not divide dp=2"),
        ({"tp": 2, "dp": 2}, "SYNERGY_PLAN_JSON: tp=2 pp=1 dp=2 needs 4 processes, there are 2"),
    ],
)
def test_a_plan_that_it_cannot_take_is_one_line(tmp_path: Path, plan: dict[str, int], said: str) -> None:
    environment = {"SYNERGY_PLAN_JSON": json.dumps({"global_batch": 4, **plan})}
    call = Call("example", "synergy_launch.examples.fsdp_tp", ["--steps", "1", *SMALL])
    _, output = training_ranks.run(tmp_path, 2, call, environment=environment, code=2)
    lines = [line for line in output.splitlines() if line]
    assert len(lines) == 1 and lines[0].startswith(f"synergy: {said}")


@pytest.mark.parametrize("name", ["pp", "cp"])
def test_a_script_that_says_nothing_of_it_gets_no_such_degree(tmp_path: Path, name: str) -> None:
    environment = {"SYNERGY_PLAN_JSON": json.dumps({"global_batch": 4, name: 2})}
    _, output = training_ranks.run(tmp_path, 2, Call("placed_on_groups"), environment=environment, code=2)
    lines = [line for line in output.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith(f"synergy: SYNERGY_PLAN_JSON: {name}=2 was given to a script that can't split itself so")
