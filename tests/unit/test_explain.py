"""The lines of `synergyctl explain`: what was predicted, with all factors of the goodput."""

from __future__ import annotations

import pytest
from synergy_core.achieved import Achieved
from synergy_core.job_report import Report
from synergy_core.kernels import LOCAL, Kernels
from synergy_core.records import Cell, Plan, Shape

from synergyd.views.explain import _decision_lines, _kernels


def predicted_lines(throughput: float, efficiency: float, goodput: float) -> tuple[str, ...]:
    cell = Cell(Shape("h100", 1, 8), Plan(dp=8, global_batch=8), throughput, efficiency, goodput, 1.44, 70 << 30)
    return _decision_lines(cell, ("n1",))


def predicted(throughput: float, efficiency: float, goodput: float) -> str:
    return predicted_lines(throughput, efficiency, goodput)[2]


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (
            (5.56, 1.0, 5.37),
            "5.56 sequences/s x 1.00 efficiency x 0.97 that the memory suffices = goodput 5.37, 70.0 GiB",
        ),
        ((8.0, 0.5, 3.0), "8 sequences/s x 0.50 efficiency x 0.75 that the memory suffices = goodput 3, "),
        ((5.56, 1.0, 5.56 * 0.9951), "5.56 sequences/s x 1.00 efficiency = goodput 5.53, "),
        ((5.56, 0.9, 5.56 * 0.9), "5.56 sequences/s x 0.90 efficiency = goodput 5, "),
    ],
)
def test_goodput_is_shown_with_all_its_factors(cell: tuple[float, float, float], says: str) -> None:
    assert says in predicted(*cell)


def test_a_size_without_a_plan_of_synergy_s_shows_the_script_s_own() -> None:
    assert predicted_lines(0.0, 1.0, 0.0)[1:] == ("plan      its script's own",)


def test_kernels_are_detected_or_assumed() -> None:
    unreported = Report(7, 0, 1)
    assert _kernels(unreported, None) == _kernels(None, Achieved(step_s=1.0)) == ""  # nothing is predicted by them
    assert _kernels(unreported, Achieved(step_s=1.0, mfu=0.4)).startswith("assumed: fused attention, norms")
    assert _kernels(Report(7, 0, 1, kernels=LOCAL), None).startswith("detected: no Transformer Engine; fused softmax")
    some = _kernels(Report(7, 0, 1, kernels=Kernels(attention=True, compiled=True)), None)
    assert (
        some == "detected: torch.compile; fused attention; assumed: fused norms, activations, gradient sums, optimizer"
    )
