"""What holds a running job's steps up: three causes, each with its evidence, and silence where that does not decide."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.achieved import Achieved, activity_message
from synergy_core.job_report import GpuActivity, Report
from synergy_core.reasons import format_reasons

from synergyd.control.state.health import diagnose

BUSY = GpuActivity(gpus=8, samples=30, utilisation=0.98)
IDLE = replace(BUSY, utilisation=0.4)
SPEED = Achieved(step_s=1.0, predicted_step_s=1.0, uncertainty=0.05, tokens_per_s=1e5, mfu=0.4, communication_share=0.1)
BOUND = replace(SPEED, communication_share=0.6)
STARVED = replace(SPEED, step_s=2.5, mfu=0.16)
REPORT = Report(7, 0, 100, step_s=1.0, gpu_activity=BUSY)


def codes(report: Report, achieved: Achieved | None) -> list[str]:
    return [reason.code for reason in diagnose(report, achieved)]


def test_idle_gpus_and_long_steps_mean_the_data_loader() -> None:
    report = replace(REPORT, gpu_activity=IDLE)
    assert codes(report, STARVED) == ["waits-for-data"]
    said = format_reasons(diagnose(report, STARVED))
    assert "2.5 s where the model predicts 1 s" in said and "idle for 1.5 s of it" in said and "30 samples" in said


def test_communication_that_agrees_with_the_residue_is_named() -> None:
    assert codes(REPORT, BOUND) == ["communication-bound"]
    assert "wait for 60% of a step" in format_reasons(diagnose(REPORT, BOUND))
    hopper = replace(REPORT, gpu_activity=replace(BUSY, sm=0.35))
    assert format_reasons(diagnose(hopper, BOUND)).endswith("no computation; 35% of the SMs are active.")


def test_a_slow_rank_is_named_with_its_factor() -> None:
    report = replace(REPORT, slow_nodes=("n3",), slow_times=(1.42,))
    assert codes(report, None) == ["slow-rank"]
    assert "n3, whose ranks take 1.42 times" in format_reasons(diagnose(report, None))


@pytest.mark.parametrize(
    ("report", "achieved"),
    [
        (REPORT, SPEED),  # all as predicted
        (
            REPORT,
            STARVED,
        ),  # slow, and its GPUs are busy: it computes more than the model thinks, or waits for other ranks
        (replace(REPORT, gpu_activity=IDLE), SPEED),  # idle, and as fast as predicted
        (replace(REPORT, gpu_activity=replace(IDLE, utilisation=0.85)), STARVED),  # a little idle: less than the excess
        (replace(REPORT, gpu_activity=IDLE), replace(STARVED, uncertainty=1.0)),  # the model may be wrong by that much
        (replace(REPORT, gpu_activity=IDLE), replace(STARVED, mfu=None)),  # its model is not known
        (replace(REPORT, gpu_activity=IDLE), None),
        (replace(REPORT, gpu_activity=IDLE, stalled_s=90.0), STARVED),  # it stands still
        (replace(REPORT, gpu_activity=replace(IDLE, samples=5)), STARVED),  # too few samples
        (replace(REPORT, gpu_activity=None), STARVED),
        (REPORT, replace(BOUND, step_s=1.9)),  # slower than communication explains
        (
            replace(REPORT, gpu_activity=replace(BUSY, utilisation=0.5)),
            BOUND,
        ),  # idle: it does not wait for communication
        (replace(REPORT, gpu_activity=replace(BUSY, sm=0.9)), BOUND),  # its SMs compute
        (replace(REPORT, slow_nodes=("n3",)), BOUND),  # a node is slow, and nobody says by how much
    ],
)
def test_it_is_silent_where_the_evidence_does_not_decide(report: Report, achieved: Achieved | None) -> None:
    assert codes(report, achieved) == []


def test_activity_in_words() -> None:
    full = replace(BUSY, sm=0.74, tensor=0.4, power_w=612.3, memory_bytes=2**36, run_utilisation=0.9, run_power_w=598.0)
    assert activity_message(full) == "8 GPUs busy 98 % of the time, SMs 74 %, tensor cores 40 %, 612 W each, 64.0 GiB"
    assert activity_message(full, whole_run=True) == "8 GPUs busy 90 % of the time, 598 W each, 64.0 GiB"
    assert activity_message(GpuActivity(gpus=1, samples=1)) == ""
