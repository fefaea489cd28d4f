"""Which steps of a job run a launcher, by what squeue shows."""

from __future__ import annotations

import pytest

from synergyd.slurm.parsed.launcher_steps import launcher_steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("7.batch batch\n7.extern extern\n7.0 synergy-launch\n", ["7.0"]),
        ("7.0 python3\n7.1 synergy-launch\n7.2 eval.py\n", ["7.1"]),
        ("7_2.0 synergy-launch\n8+1.0 synergy-launch.pyz\n", ["7_2.0", "8+1.0"]),
        ("7.0 python3\n7.batch batch\n", []),  # a launcher in the batch script started it, or it is anything else
        ("7.0 eval.py\n", []),
        ("7.batch synergy-launch\n", []),
        ("7.0; rm synergy-launch\n-1.0 synergy-launch\n\n", []),
    ],
)
def test_only_what_surely_runs_a_launcher(text: str, steps: list[str]) -> None:
    assert launcher_steps(text) == steps
