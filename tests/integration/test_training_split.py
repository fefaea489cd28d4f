"""The FSDP2 template's context and pipeline parallel: a run whose mesh (pp, dp, cp, tp) changes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.integration import training_ranks
from tests.integration.test_training_pytorch import log_of, make_run_dir, status_of
from tests.integration.training_ranks import Call
from tests.integration.training_split import plan

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
SMALL = ["--hidden", "32", "--seq", "32", "--lr", "1e-2", "--checkpoint", "/unused"]


def train(folder: Path, run_dir: Path, steps: int, checkpoint: Path, *more: str, **degrees: int) -> None:
    chosen = {"global_batch": 8, "micro_batch": 2, **degrees}
    environment = {
        "SYNERGY_RUN_DIR": str(run_dir),
        "SYNERGY_CHECKPOINT_DIR": str(checkpoint),
        "SYNERGY_PLAN_JSON": json.dumps(chosen),
    }
    call = Call("example", "synergy_launch.examples.fsdp_tp", ["--steps", str(steps), *SMALL, *more])
    world = math.prod(degrees.get(name, 1) for name in ("pp", "dp", "cp", "tp"))
    training_ranks.run(folder, world, call, environment=environment)


def differences(first: Path, second: Path) -> list[float]:
    return [abs(a["loss"] - b["loss"]) for a, b in zip(log_of(first), log_of(second), strict=True)]


def test_stages_and_parts_of_sequences_change_as_if_left_alone(tmp_path: Path) -> None:
    """Three blocks, so that two stages are not alike; in the second run groups share out by themselves (HSDP)."""
    resized, alone = make_run_dir(tmp_path / "resized"), make_run_dir(tmp_path / "alone")
    ways = [{"pp": 2}, {"dp": 2, "cp": 2, "shard": 2}, {"pp": 2, "tp": 2}, {"tp": 2}]
    for number, degrees in enumerate(ways, start=1):
        train(tmp_path / str(number), resized, 2 * number, tmp_path / "checkpoints", "--layers", "3", **degrees)
        reported = status_of(resized)["accepts"]
        assert reported == {"cp": True, "exact_only": True}, "the scheduler may choose pp and cp whatever runs now"
    train(tmp_path / "left", alone, 2 * len(ways), tmp_path / "other", "--layers", "3")
    found, log = differences(resized, alone), log_of(resized)
    print(found, log[0]["loss"], log[-1]["loss"])
    assert max(found) < 1e-5 and len(log) == 2 * len(ways) and log[-1]["loss"] < log[0]["loss"] - 0.2
    assert [(entry["pp"], entry["tp"], entry["dp"]) for entry in log[::2]] == [
        (2, 1, 1),
        (1, 1, 2),
        (2, 2, 1),
        (1, 2, 1),
    ]
    assert status_of(resized)["state"] == "done"


def test_the_micro_batches_of_a_pipeline_change_between_two_steps(tmp_path: Path) -> None:
    """From four micro-batches to one, fewer than there are stages: the schedule is made anew."""
    moved, alone = make_run_dir(tmp_path / "moved"), make_run_dir(tmp_path / "alone")
    (moved / "batch").write_text(json.dumps({"global_batch": 8, "micro_batch": 8}))
    train(tmp_path / "1", moved, 3, tmp_path / "checkpoints", "--layers", "2", pp=2)
    train(tmp_path / "2", alone, 3, tmp_path / "other", "--layers", "2")
    assert status_of(moved)["plan"]["micro_batch"] == 8
    assert max(differences(moved, alone)) < 1e-5
    saved = json.loads((tmp_path / "checkpoints" / "step_00000003" / "complete").read_text())
    assert saved["meta"]["batch"] == [8, 8] and saved["meta"]["samples"] == 24


@pytest.mark.parametrize("cp", [2, 4])
def test_attention_over_cp_is_that_of_the_whole_sequence(tmp_path: Path, cp: int) -> None:
    call = Call("tests.integration.training_split:attention_differences", 16)
    found, _ = training_ranks.run(tmp_path, cp, call, environment=plan(cp=cp))
    print(found)
    assert len(found) == 4 and max(found) < 1e-5


def test_the_gradients_norm_is_that_of_all_stages(tmp_path: Path) -> None:
    """At a rate at which the bound alone decides how far a step goes."""
    call = Call("tests.integration.training_split:clipped", 3)
    ways = [{"pp": 2, "cp": 2}, {}]
    *split, whole = (
        training_ranks.run(tmp_path / str(n), n, call, environment=plan(**way))[0]
        for way in ways
        for n in [math.prod(way.values())]
    )
    print(whole, split)
    assert abs(whole[-1] - whole[0]) > 0.05
    for losses in split:
        assert losses == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize(("fixed", "dropped"), [(("embedding", "blocks.0."), ()), ((), ("output", "blocks.1."))])
def test_a_stage_with_fewer_gradients_leaves_all_at_the_same_step(
    tmp_path: Path, fixed: tuple[str, ...], dropped: tuple[str, ...]
) -> None:
    """None of the first stage's from the start, or fewer of the last one's from some step on: the noise scale and what follows it is that
    of one process."""
    call = Call("tests.integration.training_split:frozen", 12, fixed, dropped)
    split, _ = training_ranks.run(tmp_path / "split", 2, call, environment=plan(pp=2))
    (whole,), _ = training_ranks.run(tmp_path / "whole", 1, call, environment=plan(micro_batch=4))
    print(split, whole)
    assert split[0] == split[1] == pytest.approx(whole, rel=1e-4)
    assert whole[0] > 6 and whole[2] > 0, "the run is longer than 12 steps of the tuned batch by the noise scale"


def test_stages_take_up_what_a_script_without_them_has_saved(tmp_path: Path) -> None:
    """The settings of the optimizer's groups too, whose rates have moved; and back."""
    ways: list[tuple[dict[str, int], bool]] = [({}, False), ({"pp": 2}, True), ({"pp": 2}, True), ({}, True)]
    resized: list[float] = []
    for number, (degrees, pipeline) in enumerate(ways, start=1):
        call = Call("tests.integration.training_split:grouped", tmp_path / "a", 2 * number, pipeline)
        world = math.prod(degrees.values())
        resized += training_ranks.run(tmp_path / str(number), world, call, environment=plan(**degrees))[0]
    call = Call("tests.integration.training_split:grouped", tmp_path / "b", 8, True)
    alone, _ = training_ranks.run(tmp_path / "left", 1, call, environment=plan())
    assert resized == pytest.approx(alone, abs=1e-5) and len(alone) == 8


@pytest.mark.parametrize(
    ("degrees", "layers", "said"),
    [
        ({"pp": 2}, "1", "SYNERGY_PLAN_JSON: pp=2 with a model of 1 blocks"),
        ({"cp": 2}, "2", "SYNERGY_PLAN_JSON: cp=2 can't cut a sequence of 34"),
        ({"dp": 2, "ep": 2}, "2", "SYNERGY_PLAN_JSON: ep=2 was given to a script that can't split itself so"),
        ({"dp": 1, "cp": 2, "shard": 1}, "2", "SYNERGY_PLAN_JSON: shard=1 parts the cp=2 ranks of a sequence"),
    ],
)
def test_a_plan_that_it_cannot_take_is_one_line(
    tmp_path: Path, degrees: dict[str, int], layers: str, said: str
) -> None:
    call = Call("example", "synergy_launch.examples.fsdp_tp", ["--steps", "1", "--seq", "34", "--layers", layers])
    _, output = training_ranks.run(tmp_path, 2, call, environment=plan(**degrees), code=2)
    lines = [line for line in output.splitlines() if line]
    assert len(lines) == 1 and lines[0].startswith(f"synergy: {said}")


@pytest.mark.parametrize(
    ("missing", "degrees", "said"),
    [
        ("pipeline", {"pp": 2}, "SynergyTask: pipeline: the mesh has pp=2, and no pipeline was given"),
        ("scaler", {"pp": 2}, "SynergyTask: scaler: a scaler with pp=2"),
        ("tied", {"pp": 2}, "SynergyTask: model_spec: pp=2 of a model with tied embeddings"),
        ("cp", {"cp": 2}, "SynergyTask: cp: the mesh has cp=2, which SynergyTask was not told of"),
    ],
)
def test_a_script_that_does_less_than_its_mesh_says_so(
    tmp_path: Path, missing: str, degrees: dict[str, int], said: str
) -> None:
    call = Call("tests.integration.training_split:unprepared", missing)
    _, output = training_ranks.run(tmp_path, 2, call, environment=plan(**degrees), code=2)
    lines = [line for line in output.splitlines() if line]
    assert len(lines) == 1 and lines[0].startswith(f"synergy: {said}")
