"""The state that a daemon before this one left in the store, taken over once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from synergy_core.errors import SynergyError
from synergy_core.wire.codec import Checks, decode
from synergy_core.wire.plan import PLAN_CHECKS

from synergyd.control.controller import Controller
from synergyd.control.resize.lifecycle import JobLifecycle, validate
from synergyd.control.state.node_health import NodeRecord
from synergyd.store.records import StoredState

_CHECKS: Checks = {**PLAN_CHECKS, JobLifecycle: validate}
log = logging.getLogger("synergyd")


def restore(controller: Controller, remembered: StoredState, now_s: float) -> None:
    """Restore lifecycles, profiles and latest reports. Log what can't be read back, and take its job as new."""
    lifecycles: list[JobLifecycle] = []
    for job_id, stored in remembered.lifecycles.items():
        try:
            lifecycles.append(decode(JobLifecycle, stored.payload, "lifecycle", _CHECKS))
        except SynergyError as error:
            log.warning("job %d: %s; taken as new", job_id, error)
    keys = {key: key.partition(":") for key in remembered.profiles}
    profiles = {
        int(text): remembered.profiles[key] for key, (kind, _, text) in keys.items() if kind == "job" and text.isdigit()
    }
    controller.faults.nodes.load(_node_records(remembered), now_s)
    controller.shared_profiles.load(remembered.profiles)
    controller.failed_plans.load(remembered.profiles)
    controller.restart_budgets.load(remembered.profiles)
    controller.lengths.load(remembered.profiles)
    controller.size_changes.load(remembered.profiles)
    controller.restore(
        lifecycles,
        profiles,
        {i: (stored_report.report, stored_report.received_s) for i, stored_report in remembered.reports.items()},
        now_s,
    )


def _node_records(remembered: StoredState) -> Iterator[NodeRecord]:
    for name, stored in remembered.nodes.items():
        try:
            yield replace(decode(NodeRecord, stored.payload, "node"), name=name)
        except SynergyError as error:
            log.warning("node %s: %s; taken as new", name, error)
