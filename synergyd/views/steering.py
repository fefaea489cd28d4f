"""The writes of what somebody steers, with a line in the job's story that says who did what."""

from __future__ import annotations

from synergy_core.steering import Steering, format_steering

from synergyd.store.records import StoredEvent
from synergyd.store.store import Store


def set_paused(store: Store, job_id: int, paused: bool, user: str, now_s: float) -> None:
    """Pause or resume a job in `user`'s name. Raises SynergyError if the database does not take it."""
    store.set_paused(job_id, paused, now_s)
    _remember(store, job_id, f"{user} {'paused' if paused else 'resumed'} it", now_s)


def set_steering(store: Store, job_id: int, steering: Steering, user: str, now_s: float) -> None:
    """Store what `user` has set for a job. Raises SynergyError if the database does not take it."""
    store.set_steering(job_id, steering, now_s)
    _remember(store, job_id, f"{user} set {format_steering(steering)}", now_s)


def _remember(store: Store, job_id: int, what: str, now_s: float) -> None:
    life = store.lifecycle(job_id)
    store.append_events([StoredEvent(job_id, now_s, life.state if life else "", "Steered", what)])
