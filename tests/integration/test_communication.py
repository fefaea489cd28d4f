"""SynergyTask where replicas exchange less than every gradient in every step: on real gloo ranks, against the same by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration import communicating, training_ranks
from tests.integration.training_ranks import Call

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]
TRAINED = "tests.integration.communicating:trained"
ALL = ("local:3", "compressed:bf16")


def trained(folder: Path, world: int, *arguments: Any, environment: dict[str, str] | None = None, **more: Any) -> Any:
    return training_ranks.run(folder, world, Call(TRAINED, *arguments, **more), environment=environment)[0]


def apart(a: Any, b: Any) -> float:
    return float((a["weights"] - b["weights"]).abs().max())


@pytest.mark.parametrize("comm", ALL)
def test_a_run_that_starts_from_a_checkpoint_is_the_one_that_goes_on(tmp_path: Path, comm: str) -> None:
    """Step 7 lies in the middle of a local period."""
    whole = trained(tmp_path / "a", 2, comm, tmp_path / "left", 16, interval=7)
    trained(tmp_path / "b", 2, comm, tmp_path / "cut", 7)
    again = trained(tmp_path / "c", 2, comm, tmp_path / "cut", 16, interval=7)
    assert again["first"] == 7 and again["apart"] == whole["apart"] == 0
    assert apart(whole, again) < 1e-6
    assert [name for name, _, _ in whole["said"]] == ([""] * 4 if comm != "compressed:bf16" else [comm] * 4) + [
        comm
    ] * 12


@pytest.mark.parametrize(
    ("comm", "more"),
    [
        ("local:3", {}),
        ("local:2", {"decay_steps": 30}),  # the period grows
    ],
)
def test_weights_are_those_by_hand(tmp_path: Path, comm: str, more: dict[str, Any]) -> None:
    found = trained(tmp_path, 2, comm, None, 20, optimiser="SGD", **more)
    clip = more.get("arguments", {}).get("clip")
    wanted = communicating.by_hand(comm, 20, decay_steps=more.get("decay_steps", 0), clip=clip)
    assert float((found["weights"] - wanted).abs().max()) < 2e-5 and found["apart"] == 0
    exact = communicating.by_hand("exact", 20, warm_up=99, decay_steps=more.get("decay_steps", 0), clip=clip)
    assert float((found["weights"] - exact).abs().max()) > 2e-4, "the test can tell them apart"


@pytest.mark.parametrize("comm", ["local:3"])
def test_a_run_goes_on_from_1_to_2_to_4_to_2_ranks(tmp_path: Path, comm: str) -> None:
    losses: list[float] = []
    for n, (world, steps) in enumerate([(1, 6), (2, 12), (4, 18), (2, 24)]):
        found = trained(tmp_path / str(n), world, comm, tmp_path / "checkpoints", steps)
        assert found["first"] == len(losses) and found["apart"] == 0
        assert found["said"][-1][0] == (comm if world > 1 else "")
        assert ("one process has nobody to exchange with" in found["note"]) == (world == 1)
        losses += found["losses"]
    exact = trained(tmp_path / "exact", 2, "exact", None, 24)["losses"]
    assert losses[:6] == pytest.approx(exact[:6], abs=1e-4)
    assert sum(losses[-6:]) / 6 == pytest.approx(sum(exact[-6:]) / 6, abs=0.2), "as far as in 24 exact steps"


def test_the_noise_scale_needs_no_gradient_of_another_replica(tmp_path: Path) -> None:
    """At a rate of 0 the weights stay, and what is told is what single gradients come to by hand."""
    wanted = communicating.own_norms(30, batch=16, micro=2, world=2)
    more: dict[str, Any] = {"batch": 16, "micro": 2, "warm_up": 0, "optimiser": "SGD", "frozen": True}
    found = trained(tmp_path, 2, "local:4", None, 31, **more)
    assert found["noise"] == pytest.approx(wanted, rel=0.02)


def test_what_is_sent_beside_ddp_asks_the_link_arbiter(tmp_path: Path) -> None:
    local = trained(tmp_path / "a", 2, "local:3", None, 16, gated=True)
    size = 4 * local["weights"].numel()
    assert local["gate"] == [size, 0] * 4 + [3 * size, 0], "the last with AdamW's momenta"


def test_buffers_are_brought_together(tmp_path: Path) -> None:
    """In the middle of a local period: their averages lie in the checkpoint, and the run that goes on has them too."""
    comm = "local:3"
    whole = trained(tmp_path / "a", 2, comm, tmp_path / "left", 14, interval=9, norm=True)
    trained(tmp_path / "b", 2, comm, tmp_path / "cut", 9, norm=True)
    again = trained(tmp_path / "c", 2, comm, tmp_path / "cut", 14, norm=True)
    assert whole["apart"] == again["apart"] == 0 and apart(whole, again) < 1e-6


@pytest.mark.parametrize("comm", ["local:3", "compressed:bf16"])
def test_a_scaler_and_a_batch_that_changes(tmp_path: Path, comm: str) -> None:
    changes = {9: 16}
    scaled = trained(tmp_path / "a", 2, comm, None, 20, optimiser="SGD", scaler=True, batches=changes)
    plain = trained(tmp_path / "b", 2, comm, None, 20, optimiser="SGD", batches=changes)
    assert len(scaled["losses"]) < 20, "the batch did not grow"
    assert apart(scaled, plain) < 1e-5 and scaled["apart"] == 0


def test_what_cant_be_done_is_one_line_for_a_script_and_exact_for_a_plan(tmp_path: Path) -> None:
    with pytest.raises(training_ranks.Failed, match="exit codes") as refused:
        trained(tmp_path / "a", 2, "compressed:bf16", None, 2, hooked=True)
    assert "the script has registered a communication hook of its own; comm=exact" in str(refused.value)
    environment = {"SYNERGY_COMM": "compressed:bf16"}
    found = trained(tmp_path / "b", 2, "", tmp_path / "kept", 6, hooked=True, environment=environment)
    assert found["note"].startswith("gradients are exchanged exactly, not as compressed:bf16")
    assert {name for name, _, _ in found["said"]} == {""}
    with pytest.raises(training_ranks.Failed) as unknown:
        trained(tmp_path / "c", 2, "sometimes", None, 2)
    assert "SynergyTask: comm: 'sometimes' is no way to exchange gradients" in str(unknown.value)
    assert "Traceback" not in str(unknown.value)
