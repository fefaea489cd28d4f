"""Placements that a simulated run may try beside those of the setting: `quiet` and `dally`. They won nowhere (docs/design/measurements)."""

from __future__ import annotations

from dataclasses import replace

from synergy_sim.delayed_starts import delay_starts
from synergyd.scheduler.decide import STAGES
from synergyd.scheduler.epoch import Draft, Stage
from synergyd.scheduler.placement.link_aware import place_link_aware
from synergyd.scheduler.solve import find_outside_traffic, make_topology

QUIET, DALLY = "quiet", "dally"


def make_stages(placement: str) -> tuple[Stage, ...]:
    """Return an epoch's stages with that placement."""
    if placement == QUIET:
        quiet = Stage(
            name="layout", text="Jobs get nodes where shared links are forecast to cost least.", run=_place_quietly
        )
        return tuple(quiet if stage.name == "layout" else stage for stage in STAGES)
    if placement == DALLY:
        delay = Stage(
            name="delay", text="Jobs that would start across leaf switches hold out for one.", run=_delay_starts
        )
        at = next(i for i, stage in enumerate(STAGES) if stage.name == "sharing")
        return (*STAGES[:at], delay, *STAGES[at:])
    return STAGES


def _place_quietly(draft: Draft) -> Draft:
    answer, topology = draft.answer, make_topology(draft)
    others = find_outside_traffic(draft, topology)
    link_aware = place_link_aware(answer.problem, answer.allocation, answer.placement, topology, others, sizes=False)
    return replace(draft, answer=replace(answer, allocation=link_aware.allocation, placement=link_aware.placement))


def _delay_starts(draft: Draft) -> Draft:
    if draft.policy.rule:
        return draft
    answer, topology = draft.answer, make_topology(draft)
    others = find_outside_traffic(draft, topology)
    allocation, placement, delays = delay_starts(answer.problem, answer.allocation, answer.placement, topology, others)
    reasons = {answer.problem.jobs[i].job_id: delay.reason() for i, delay in delays.items()}
    answer = replace(answer, allocation=allocation, placement=placement)
    return replace(draft, answer=answer, wait_reasons={**draft.wait_reasons, **reasons})
