"""Synergy's hook in Megatron-LM's own pretrain_gpt.py, unchanged, on gloo: the noise scale, and a batch that moves without a restart.

As test_megatron_lm.py, from which it has the run: $MEGATRON_LM names a checkout.
"""

from __future__ import annotations

import json
import math
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Plan
from synergy_core.wire.codec import decode
from synergy_core.wire.plan import PLAN_CHECKS
from synergy_launch.megatron_lm.log_parser import read_line

from tests.integration import test_megatron_lm as other

pytestmark = other.pytestmark
LAST = other.LAST
PLAN = Plan(tp=2, dp=2, micro_batch=1, global_batch=8)
# answers as a daemon would: from step 6 on another batch
ANSWER = """
def answer(said, address, by=None, timeout_s=5.0, line=None):
    send(said, address)
    wanted = os.environ.get("TEST_BATCH")
    if wanted and (said.step or 0) >= 6:
        return report.ReportAnswer(plan=replace(said.plan, global_batch=int(wanted)))
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


def rates(run: Any) -> dict[int, tuple[int, float]]:
    """Batch and learning rate by the samples consumed, as Megatron-LM prints them."""
    lines = [read_line(line) for line in run.output_file.read_text(errors="replace").splitlines()]
    return {line.consumed_samples or 0: (line.batch or 0, line.rate or 0.0) for line in lines if line is not None}


@pytest.mark.timeout(900)
def test_the_batch_moves_between_iterations(tmp_path: Path) -> None:
    """From 8 to 16, then asked for a checkpoint and started again: no sample is lost or seen twice, the run ends after as many as before,
    and rates are those of the schedule in samples, by the rule."""
    fixed = rates(train(tmp_path / "fixed", SYNERGY_NOISE="0"))
    with other.Run(tmp_path / "moved", PLAN, TEST_BATCH="16") as run:
        deadline = time.monotonic() + 120
        while 16 not in {x["global_batch"] for x in run.steps().values()}:
            assert run.process.poll() is None and time.monotonic() < deadline, run.tail()
            time.sleep(0.05)
        run.process.send_signal(signal.SIGUSR2)
        assert run.wait() == 0, run.tail()
    steps = run.steps()
    batches = [x["global_batch"] for x in steps.values()]
    first = batches.index(16)
    print(batches, run.starts())
    assert list(steps) == list(range(1, len(batches) + 1)) and run.starts() == 2
    assert batches[:first] == [8] * first and set(batches[first:-1]) == {16} and sum(batches) == LAST * 8
    assert json.loads((run.save / "synergy-batches.json").read_text())[:2] == [[0, 8], [first, 16]]
    for consumed, (batch, rate) in rates(run).items():
        if consumed < LAST * 8:
            assert rate == pytest.approx(fixed[consumed][1] * math.sqrt(batch / 8), rel=1e-5), consumed
    last = run.reports()[-1]
    assert (last["done"], last["total"], last["step"]) == (LAST * 8, LAST * 8, len(batches))
    assert decode(Plan, last["plan"], "report", PLAN_CHECKS) == replace(PLAN, global_batch=batches[-1])
