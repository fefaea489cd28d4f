"""When jobs will start and end, as the daemon's last forecast has it."""

from __future__ import annotations

from dataclasses import replace

from synergy_core.expected import ExpectedJob
from synergy_core.reasons import format_reasons

from synergyd.store.store import Store


def collect(store: Store) -> dict[int, ExpectedJob]:
    """Return the jobs of the last forecast by id, in the order of the queue: those that wait first."""
    stored = store.expected()
    return {job.job_id: replace(job, why=format_reasons(job.reasons)) for job in stored.jobs} if stored else {}
