"""The batch of a real run changes, between two incarnations and between two steps: rate, schedule and end follow."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from synergy_core.records import Plan
from synergy_launch.agent.run_folder import propose_batch
from synergy_launch.batch.tuner import STEPS_BETWEEN

from tests.integration import training_ranks
from tests.integration.training_ranks import Call

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


def test_restarts_into_other_batches_equal_the_same_run_by_hand(tmp_path: Path) -> None:
    """8 x 4, then 16 on two ranks x 3, then 4 (accumulated) x 4: 96 examples of M0 = 8."""
    parts = [(Plan(dp=1, micro_batch=4, global_batch=8), 4), (Plan(dp=2, micro_batch=4, global_batch=16), 10)]
    parts.append((Plan(dp=1, micro_batch=2, global_batch=4), 12))
    rates: list[float] = []
    for number, (plan, steps) in enumerate(parts):
        call = Call("rebatched", tmp_path / "checkpoints", plan, steps)
        result, _ = training_ranks.run(tmp_path / str(number), plan.dp, call)
        assert result["samples"] == 8 * steps == 8 * result["schedule"]
        rates += result["rates"]
    batches = [8] * 4 + [16] * 3 + [4] * 4
    seen = [sum(batches[:i]) for i in range(len(batches))]
    expected = [3e-3 * (1 - s // 8 / 30) * (b / 8) ** 0.5 for s, b in zip(seen, batches, strict=True)]
    assert rates == pytest.approx(expected, rel=1e-9)
    assert result["tuned"] == pytest.approx(3e-3 * (1 - 12 / 30))  # M0's own, whatever the last batch was
    by_hand, _ = training_ranks.run(tmp_path / "hand", 1, Call("rebatched_by_hand", batches))
    assert float((result["weights"] - by_hand).abs().max()) < 2e-5


def test_sgd_takes_adascale_from_its_own_noise(tmp_path: Path) -> None:
    plan = Plan(dp=2, micro_batch=8, global_batch=32)
    call = Call("rebatched", tmp_path / "checkpoints", plan, 20, optimiser="SGD", lr=0.05)
    result, _ = training_ranks.run(tmp_path / "run", 2, call)
    gain = (result["noise"] / 8 + 1) / (result["noise"] / 32 + 1)
    assert 1 < gain < 4
    last = 0.05 * (1 - (result["schedule"] - 1) / 30) * gain
    assert result["rates"][-1] == pytest.approx(last, rel=0.25)  # the schedule strides by several steps here
    # counted in progress: more examples than 20 steps of 8, fewer than 20 steps of 32
    assert 8 * 20 < result["samples"] < 32 * 20 and result["progress"] == pytest.approx(160, abs=33)


def test_a_proposed_batch_is_taken_between_two_steps_without_a_restart(tmp_path: Path) -> None:
    run_dir = tmp_path / "job" / "run"
    run_dir.mkdir(parents=True)
    propose_batch(run_dir, Plan(dp=2, micro_batch=4, global_batch=16))
    environment = {"SYNERGY_RUN_DIR": str(run_dir)}
    call = Call("rebatched", tmp_path / "checkpoints", Plan(dp=2, micro_batch=4, global_batch=8), 9)
    result, _ = training_ranks.run(tmp_path / "run", 2, call, environment=environment)
    log = [json.loads(line) for line in (run_dir.parent / "steps.jsonl").read_text().splitlines()]
    assert [entry["global_batch"] for entry in log] == [8] + [16] * 4
    assert result["samples"] == 72 and result["plan"]["global_batch"] == 16
    assert "learning rate x 1.41 (sqrt)" in result["note"]
    by_hand, _ = training_ranks.run(tmp_path / "hand", 1, Call("rebatched_by_hand", [8] + [16] * 4))
    assert float((result["weights"] - by_hand).abs().max()) < 2e-5


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses at batches of 8, 16, 16, 4, 4, 4 and 4."""
    call = Call("tests.integration.training_batch:by_hand", [8, 16, 16, 4, 4, 4, 4])
    losses, _ = training_ranks.run(tmp_path_factory.mktemp("hand"), 1, call)
    return [float(loss) for loss in losses]


@pytest.mark.parametrize(
    ("kind", "first", "then"),
    [
        ("fsdp", {"dp": 2}, {"dp": 4}),
        ("mesh", {"tp": 2, "dp": 2}, {"tp": 2}),
        ("split", {"pp": 2, "cp": 2}, {"cp": 2}),
    ],
)
def test_the_batch_moves_under_fsdp_and_on_a_mesh_as_by_hand(
    tmp_path: Path, by_hand: list[float], kind: str, first: dict[str, int], then: dict[str, int]
) -> None:
    """8, between two steps 16, and over a restart into other degrees 4; the rate follows each, and its schedule the examples."""
    run_dir = tmp_path / "job" / "run"
    run_dir.mkdir(parents=True)
    propose_batch(run_dir, Plan(micro_batch=4, global_batch=16))
    plans = [{**first, "micro_batch": 2, "global_batch": 8}, {**then, "micro_batch": 1, "global_batch": 4}]
    losses: list[float] = []
    for number, (degrees, plan, steps) in enumerate(zip((first, then), plans, (5, 7), strict=True)):
        environment = {"SYNERGY_PLAN_JSON": json.dumps(plan), **({} if number else {"SYNERGY_RUN_DIR": str(run_dir)})}
        call = Call("tests.integration.training_batch:moved", kind, tmp_path / "checkpoints", steps)
        world = math.prod(degrees.values())
        losses += training_ranks.run(tmp_path / str(number), world, call, environment=environment)[0]
    print(kind, [a - b for a, b in zip(losses, by_hand, strict=True)], by_hand)
    assert losses == pytest.approx(by_hand, abs=1e-5) and by_hand[-1] < by_hand[0] - 0.2


def test_the_run_chooses_its_own_batch_where_it_may(tmp_path: Path) -> None:
    environment = {"SYNERGY_GLOBAL_BATCH": "8:64"}
    plan = Plan(dp=2, micro_batch=2, global_batch=8)
    call = Call("rebatched", tmp_path / "checkpoints", plan, 600, update_s=0.1)  # what a larger batch saves
    result, _ = training_ranks.run(tmp_path / "run", 2, call, environment=environment)
    assert result["noise"] > 8, result["noise"]  # so that a larger batch is worth its examples
    assert 8 < result["plan"]["global_batch"] <= 64 and result["plan"]["micro_batch"] <= 2
    chosen = result["plan"]["global_batch"]
    # a restart goes on with it, on other ranks too
    alone = Call("rebatched", tmp_path / "checkpoints", None, 602)
    again, _ = training_ranks.run(tmp_path / "again", 1, alone, environment=environment)
    assert again["plan"]["dp"] == 1 and again["plan"]["global_batch"] == chosen
    assert 8 * 600 <= result["samples"] < 8 * 600 + 64


def test_a_grown_batch_at_which_the_loss_does_worse_is_taken_back(tmp_path: Path) -> None:
    """At 64, and so eight times the learning rate, real training diverges; nobody looks at the loss, and it is a hundred times as high."""
    said = "global batch 64 is taken back to 32: the loss does worse"
    result, output = training_ranks.run(tmp_path / "heeded", 2, Call("drifting", 620, rule="linear"))
    batches, losses = result["batches"], result["losses"]
    first, last = batches.index(64), len(batches) - 1 - batches[::-1].index(64)
    assert batches[:first] == [8] * STEPS_BETWEEN + [16] * STEPS_BETWEEN + [32] * STEPS_BETWEEN
    assert said in output and set(batches[last + 1 :]) == {32}
    usual = sum(losses[first - 20 : first]) / 20
    assert max(losses[first : last + 1]) > 2 * usual and sum(losses[-20:]) / 20 < 1.5 * usual
    careless, output = training_ranks.run(tmp_path / "not", 2, Call("drifting", 620, rule="linear", heeds=False))
    assert "taken back" not in output and max(careless["losses"]) > 100 * usual


def test_a_grown_batch_that_the_loss_bears_stays(tmp_path: Path) -> None:
    result, output = training_ranks.run(tmp_path / "run", 2, Call("drifting", 400, rule="none"))
    assert "taken back" not in output and result["batches"][-1] == 64 and max(result["losses"][60:]) < 5


def test_megatron_follows_its_batch_over_a_restart(tmp_path: Path) -> None:
    """The same examples and end as at M0, at rates that follow; and from step to step when a batch is proposed."""
    run_dir = tmp_path / "job" / "run"
    run_dir.mkdir(parents=True)
    options = ["--hidden", "32", "--layers", "2", "--seq", "32", "--checkpoint", str(tmp_path / "checkpoints")]
    options += ["--global-batch", "4", "--warmup", "2", "--cosine"]
    degrees = [({"tp": 2, "global_batch": 4}, 3), ({"dp": 2, "global_batch": 8}, 7)]
    for number, (plan, steps) in enumerate(degrees):
        environment = {"SYNERGY_RUN_DIR": str(run_dir), "SYNERGY_PLAN_JSON": json.dumps(plan)}
        call = Call("example", "synergy_launch.examples.gpt", [*options, "--steps", str(steps)])
        training_ranks.run(tmp_path / str(number), 2, call, environment=environment)
    propose_batch(run_dir, Plan(dp=2, micro_batch=2, global_batch=16))
    call = Call("example", "synergy_launch.examples.gpt", [*options, "--steps", "17"])
    _, output = training_ranks.run(tmp_path / "last", 2, call, environment=environment)
    assert "global batch 16 in place of 4: learning rate x 2 (sqrt)" in output
    log = [json.loads(line) for line in (run_dir.parent / "steps.jsonl").read_text().splitlines()]
    assert [entry["global_batch"] for entry in log] == [4] * 3 + [8] * 2 + [8] + [16] * 2
    status = json.loads((run_dir / "status.json").read_text())
    assert status["tokens"] == 68 * 32 and status["state"] == "done" and status["rebatching"] is True
