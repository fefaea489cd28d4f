"""Synergy's hook in Megatron-LM's own pretrain_gpt.py, unchanged, on gloo: the noise scale, and a batch that moves without a restart.

As test_megatron_lm.py, from which it has the run: $MEGATRON_LM names a checkout.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from synergyd.records import Plan
from tests.integration import test_megatron_lm as other

pytestmark = other.pytestmark
LAST = other.LAST
PLAN = Plan(tp=2, dp=2, micro_batch=1, global_batch=8)
# answers as a daemon would: from step 6 on another batch
ANSWER = """
def answer(said, address, by=None, timeout_s=5.0):
    send(said, address)
    wanted = os.environ.get("TEST_BATCH")
    if wanted and (said.step or 0) >= 6:
        return report.Told(plan=replace(said.plan, global_batch=int(wanted)))
report.send = answer
command.main()
"""


@pytest.fixture(autouse=True)
def _a_daemon_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = "import os\nfrom dataclasses import replace\n" + other.LAUNCH.replace(
        "report.send = send\ncommand.main()\n", ANSWER
    )
    monkeypatch.setattr(other, "LAUNCH", launch)
    monkeypatch.setattr(other, "USER", [*other.USER, "--log-interval", "1"])


def train(folder: Path, plan: Plan = PLAN, **environment: str) -> Any:
    with other.Run(folder, plan, **environment) as run:
        assert run.wait() == 0, run.tail()
    return run


@pytest.mark.timeout(600)
def test_the_noise_is_reported_and_losses_stay(tmp_path: Path) -> None:
    hooked = train(tmp_path / "with")
    without = train(tmp_path / "without", SYNERGY_NOISE="0")
    steps, plain = hooked.steps(), without.steps()
    assert list(steps) == list(plain) == list(range(1, LAST + 1))
    assert [x["loss"] for x in steps.values()] == [x["loss"] for x in plain.values()]
    last = hooked.reports()[-1]
    assert last["noise_scale"] > 0 and last["rebatching"] is True
    assert not without.reports()[-1]["rebatching"] and without.reports()[-1]["noise_scale"] is None
    assert "hook" not in hooked.tail() and json.loads((hooked.save / "synergy-noise.json").read_text())["weight"] > 0


@pytest.mark.timeout(600)
def test_the_batch_moves_between_iterations(tmp_path: Path) -> None:
    """From 8 to 16: the run ends after the same samples, at the rates that a run at 16 has; stopped and resumed it goes on so."""
    moved = train(tmp_path / "moved", TEST_BATCH="16")
    steps = moved.steps()
    batches = [x["global_batch"] for x in steps.values()]
    first = batches.index(16)
    print(batches)
    assert batches[:first] == [8] * first and sum(batches) == LAST * 8 and set(batches[first:-1]) == {16}
    assert moved.starts() == 1
    assert json.loads((moved.save / "synergy-batches.json").read_text())[:2] == [[0, 8], [first, 16]]
    last = moved.reports()[-1]
    assert (last["done"], last["total"], last["step"]) == (LAST * 8, LAST * 8, len(batches))
    assert last["plan"] == {**asdict(PLAN), "global_batch": batches[-1]}
