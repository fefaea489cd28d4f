"""`decide` for tests: from a snapshot, settings and whatever of an epoch's other inputs a test needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synergy_core.records import Cell, Decision, Plan, Snapshot
from synergy_sim.placements import make_stages

from synergyd.scheduler.epoch import EpochInputs, begin, run
from synergyd.scheduler.policies import load_policy
from synergyd.scheduler.problem.records import Policy
from synergyd.scheduler.problem.rules import make_decision_rules
from synergyd.settings import Settings


def decide(
    snapshot: Snapshot,
    settings: Settings,
    cells: Mapping[int, tuple[Cell, ...]],
    no_cell_reasons: Mapping[int, str],
    current_plans: Mapping[int, Plan] | None = None,
    ages_s: Mapping[int, float] | None = None,
    policy: Policy | None = None,
    **inputs: Any,
) -> tuple[Decision, ...]:
    """Decide as the simulator does: `inputs` are further fields of EpochInputs; without `policy` the settings name it."""
    made = EpochInputs(
        snapshot=snapshot,
        cells=cells,
        no_cell_reasons=no_cell_reasons,
        current_plans=current_plans or {},
        ages_s=ages_s or {},
        **inputs,
    )
    draft = begin(made, make_decision_rules(settings), policy or load_policy(settings.policy))
    return run(make_stages(settings.placement), draft).decisions
