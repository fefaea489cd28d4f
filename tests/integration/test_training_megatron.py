"""Real megatron-core training on the CPU: the same run on every plan, before and after any resize."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Plan

from tests.integration import training_ranks
from tests.integration.training_ranks import SPEC

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]
STEPS = 8


def plan(tp: int, pp: int, dp: int, **more: Any) -> Plan:
    return Plan(tp=tp, pp=pp, dp=dp, micro_batch=1, global_batch=8, **more)


def train(folder: Path, what: Plan, steps: int = STEPS, **more: Any) -> dict[str, Any]:
    result, _ = training_ranks.run(folder, what.gpus, training_ranks.Call("gpt", what, steps, **more))
    assert isinstance(result, dict)
    return result


def largest_difference(a: list[float], b: list[float]) -> float:
    assert len(a) == len(b) > 0
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process, never interrupted."""
    return train(tmp_path_factory.mktemp("alone"), plan(1, 1, 1))


def test_training_learns_and_the_adapter_was_used(alone: dict[str, Any]) -> None:
    assert alone["losses"][-1] < alone["losses"][0] - 0.5
    assert 5.3 < alone["losses"][0] < 5.8  # ln 256 = 5.545
    assert alone["intercepted"]["Tensor.type"] > 0


@pytest.mark.parametrize("degrees", [(2, 1, 2), (1, 2, 1), (1, 1, 4), (1, 2, 2)])
def test_same_losses_on_every_plan(tmp_path: Path, alone: dict[str, Any], degrees: tuple[int, int, int]) -> None:
    result = train(tmp_path, plan(*degrees))
    assert largest_difference(result["losses"], alone["losses"]) < 2e-5


def test_gated_model_with_sequence_parallelism_and_recompute(tmp_path: Path) -> None:
    spec = replace(SPEC, gated=True, tied_embeddings=False, kv_heads=2)
    reference = train(tmp_path / "a", plan(1, 1, 1), 4, spec=spec)
    other = train(tmp_path / "b", plan(2, 2, 1, sequence_parallel=True, recompute="full"), 4, spec=spec)
    assert largest_difference(other["losses"], reference["losses"]) < 2e-5


@pytest.mark.parametrize(
    ("degrees", "what", "mlps"),
    [
        ((1, 1, 1), {"recompute_layers": 1}, 4 + 1),
        ((1, 1, 2), {"recompute_layers": 3}, 4 + 3),
        ((1, 2, 1), {"recompute_layers": 1}, 2 + 1),
        ((1, 2, 1), {}, 2 + 2),
    ],
)
def test_what_is_computed_again_changes_no_loss(
    tmp_path: Path, alone: dict[str, Any], degrees: tuple[int, int, int], what: dict[str, Any], mlps: int
) -> None:
    result = train(tmp_path, plan(*degrees, **{"recompute": "full", **what}))
    assert largest_difference(result["losses"], alone["losses"]) < 1e-5
    # forward passes of the MLPs of a stage, for each micro-batch
    assert result["mlps"] == mlps and alone["mlps"] == 4


def test_modules_that_are_computed_again_change_no_loss(tmp_path: Path) -> None:
    spec = replace(SPEC, gated=True, tied_embeddings=False)
    reference = train(tmp_path / "a", plan(1, 1, 1), 3, spec=spec)
    other = train(tmp_path / "b", plan(2, 1, 1, recompute="core_attn+mlp"), 3, spec=spec)
    assert largest_difference(other["losses"], reference["losses"]) < 1e-5
    assert (reference["mlps"], other["mlps"]) == (4, 8)


@pytest.mark.parametrize("distributed", [False, True])
def test_resized_run_equals_the_one_left_alone(tmp_path: Path, alone: dict[str, Any], distributed: bool) -> None:
    checkpoint = tmp_path / "checkpoints"
    losses: list[float] = []
    for number, (degrees, until) in enumerate([((2, 1, 2), 3), ((1, 2, 1), 5), ((1, 1, 4), STEPS)]):
        result = train(
            tmp_path / str(number),
            plan(*degrees),
            until,
            checkpoint=checkpoint,
            save=True,
            distributed_optimizer=distributed,
        )
        assert result["first"] == len(losses)
        losses += result["losses"]
    assert largest_difference(losses, alone["losses"]) < 2e-5
    assert sorted(path.name for path in checkpoint.iterdir()) == ["step_00000005", "step_00000008"]


def test_a_pipeline_whose_ends_have_fewer_layers(tmp_path: Path) -> None:
    """Six layers on four stages, 1, 2, 2 and 1, then on one and on two others: the losses of one process."""
    spec, checkpoint = replace(SPEC, layers=6), tmp_path / "checkpoints"
    reference = train(tmp_path / "alone", plan(1, 1, 1), 6, spec=spec)
    losses: list[float] = []
    for number, (degrees, until) in enumerate([((1, 4, 1), 2), ((1, 1, 2), 4), ((1, 4, 1), 6)]):
        result = train(tmp_path / str(number), plan(*degrees), until, checkpoint=checkpoint, save=True, spec=spec)
        assert result["first"] == len(losses)
        losses += result["losses"]
    assert largest_difference(losses, reference["losses"]) < 2e-5


@pytest.mark.parametrize("distributed", [False, True])
def test_a_checkpoint_written_beside_training_holds_the_state_of_its_own_step(
    tmp_path: Path, alone: dict[str, Any], distributed: bool
) -> None:
    more: dict[str, Any] = {"checkpoint": tmp_path / "checkpoints", "distributed_optimizer": distributed}
    begun = train(tmp_path / "a", plan(2, 1, 1), 3, beside=2, **more)
    assert largest_difference(begun["losses"], alone["losses"][:5]) < 2e-5  # the writing disturbs nothing
    resumed = train(tmp_path / "b", plan(1, 2, 1), STEPS, **more)
    assert resumed["first"] == 3
    assert largest_difference(resumed["losses"], alone["losses"][3:]) < 2e-5


def test_kill_in_a_save_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints"
    what = plan(1, 1, 2)
    train(tmp_path / "a", what, 2, checkpoint=checkpoint, save=True)
    more = {"checkpoint": checkpoint, "save": True, "die_in_save": True}
    training_ranks.run(tmp_path / "b", 2, training_ranks.Call("gpt", what, 4, **more), code=-9)
    assert (checkpoint / "step_00000004" / ".metadata").exists()  # all there but for the marker
    result = train(tmp_path / "c", what, 3, checkpoint=checkpoint)
    assert result["first"] == 2
    assert "step_00000004" in result["note"] and "step 2" in result["note"]


def test_corrupt_checkpoint_is_passed_over_and_said(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints"
    what = plan(1, 1, 1)
    arguments = ["--hidden", "32", "--seq", "32", "--checkpoint", str(checkpoint), "--checkpoint-interval", "2"]
    arguments += ["--global-batch", "4"]
    run_dir = tmp_path / "job" / "run"
    run_dir.mkdir(parents=True)
    environment = {"SYNERGY_RUN_DIR": str(run_dir), "SYNERGY_PLAN_JSON": json.dumps({"global_batch": 4})}
    call = training_ranks.Call("example", "synergy_launch.examples.gpt", [*arguments, "--steps", "4"])
    training_ranks.run(tmp_path / "a", what.gpus, call, environment=environment)
    data = checkpoint / "step_00000004" / "__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    call = training_ranks.Call("example", "synergy_launch.examples.gpt", [*arguments, "--steps", "5"])
    _, output = training_ranks.run(tmp_path / "b", what.gpus, call, environment=environment)
    assert "checkpoint step_00000004 is not usable: __0_0.distcp has other content than was saved" in output
    assert "the last good one, of step 2, is used" in output
    status = json.loads((run_dir / "status.json").read_text())
    assert status["state"] == "done" and status["step"] == 5 and "last good one" in status["note"]
    assert status["resharding"] is True and status["model"]["layers"] == 4
    log = [json.loads(line) for line in (run_dir.parent / "steps.jsonl").read_text().splitlines()]
    steps = {entry["step"]: entry["loss"] for entry in log[:4]}
    assert [entry["step"] for entry in log] == [1, 2, 3, 4, 3, 4, 5]
    assert log[4]["loss"] == pytest.approx(steps[3], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "degrees", "said"),
    [
        (["--heads", "3", "--hidden", "48"], {"tp": 2}, "tp=2 can't divide 3 heads"),
        (["--layers", "3"], {"pp": 2}, "pp=2 can't divide 3 layers"),
        ([], {"tp": 2, "dp": 2}, "needs 4 processes, there are 2"),
        ([], {"pp": 2, "vpp": 2}, "vpp=2 was given to a script that can't split itself so"),
        (["--checkpoint", "/nowhere/at/all"], {"dp": 2}, "neither it nor its parent folder exists"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path: Path, options: list[str], degrees: dict[str, int], said: str) -> None:
    environment = {"SYNERGY_PLAN_JSON": json.dumps({"global_batch": 4, **degrees})}
    call = training_ranks.Call("example", "synergy_launch.examples.gpt", ["--steps", "1", *options])
    _, output = training_ranks.run(tmp_path, 2, call, environment=environment, code=2)
    lines = output.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("synergy: ") and said in lines[0], output


def test_other_model_in_the_checkpoint_is_one_clear_line(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints"
    train(tmp_path / "a", plan(1, 1, 1), 1, checkpoint=checkpoint, save=True)
    call = training_ranks.Call(
        "example", "synergy_launch.examples.gpt", ["--steps", "2", "--hidden", "64", "--checkpoint", str(checkpoint)]
    )
    _, output = training_ranks.run(tmp_path / "b", 1, call, code=2)
    lines = [line for line in output.splitlines() if line.startswith("synergy: ")]
    assert len(lines) == 1 and "does not fit this model" in lines[0]
    assert "Traceback" not in output
