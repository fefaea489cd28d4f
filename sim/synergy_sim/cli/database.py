"""`synergyctl simulate --from-database`: from what the store keeps to a trace and its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from synergy_core.errors import SynergyError, UsageError
from synergy_core.records import Profile, Shape
from synergy_core.wire.codec import decode

from synergy_sim.traces.queue import UNREADABLE, USED_AGAIN, RecordedJob
from synergyd.control.resize.instructions import Target
from synergyd.store.records import Recording, StoredEvent, StoredLifecycle
from synergyd.store.store import open_store

Groups = dict[str, tuple[int, int]]  # GPU type -> (nodes, GPUs a node)


def read_database(url: str) -> tuple[str, Recording]:
    """Return (the database's name for messages, what it has recorded). Raises UsageError or UnavailableError."""
    with open_store(url) as store:
        return store.where, store.recording()


def recorded_jobs(recording: Recording) -> list[RecordedJob]:
    """Return every job that the store has heard of, once for each time its number was used."""
    remembered = recording.remembered
    stood = recording.latest.present if recording.latest is not None else ()
    present = {p["job_id"]: p for p in stood if isinstance(p, Mapping) and "job_id" in p}
    stories: dict[int, list[list[StoredEvent]]] = {}
    for job_id, some in groupby(sorted(recording.events, key=lambda e: e.job_id), key=lambda e: e.job_id):
        stories[job_id] = _split_uses(list(some))
    jobs = []
    for job_id in sorted({*stories, *recording.seen_s, *remembered.lifecycles}):
        *earlier, story = stories.get(job_id) or [[]]
        jobs += [RecordedJob(job_id, s[0].at_s, s[-1].at_s, why_not=USED_AGAIN) for s in earlier]
        ended = bool(story) and story[-1].state == "GONE"
        life = remembered.lifecycles.get(job_id)
        first_s = [e.at_s for e in story[:1]]
        if not earlier and job_id in recording.seen_s:
            first_s.append(recording.seen_s[job_id])
        submit_s = life.submit_s if life is not None else min(first_s, default=0.0)
        stored, cell = remembered.reports.get(job_id), None if earlier else recording.first_cells.get(job_id)
        present_row = present.get(job_id, {})
        asked_gpus = present_row.get("asked_gpus")
        broken = any(_is_about_job(line, job_id) for line in remembered.unreadable)
        jobs.append(
            RecordedJob(
                job_id,
                submit_s,
                story[-1].at_s if ended else None,
                str(present_row.get("name") or ""),
                any(e.state == "RUNNING" for e in story),
                cell.shape if cell is not None else _original_request(life),
                asked_gpus if isinstance(asked_gpus, int) and asked_gpus > 0 else None,
                remembered.profiles.get(f"job:{job_id}"),
                stored.report if stored is not None else None,
                UNREADABLE if broken else "",
            )
        )
    return jobs


def _split_uses(story: list[StoredEvent]) -> list[list[StoredEvent]]:
    """Split the events of a job number into one part for each job that had it."""
    parts: list[list[StoredEvent]] = [[]]
    for event in story:
        if parts[-1] and parts[-1][-1].state == "GONE":
            parts.append([])
        parts[-1].append(event)
    return parts


def _is_about_job(line: str, job_id: int) -> bool:
    return line.startswith((f"job {job_id}:", f"profile job:{job_id}:"))


def _original_request(life: StoredLifecycle | None) -> Shape | None:
    """Return what a job asked for before its first resize, if that is under way, else None."""
    if life is None:
        return None
    try:
        return decode(Target, life.payload.get("origin")).shape
    except SynergyError:
        return None


def recorded_cluster(recording: Recording, where: str) -> Groups:
    """Return the cluster of the last epoch, where it has one GPU type and equal nodes.

    Raises UsageError where the recording does not show that.
    """
    types = {cell.shape.gpu_type for cell in recording.first_cells.values()}
    types |= {m.shape.gpu_type for p in _job_profiles(recording.remembered.profiles) for m in p.measured}
    summary = recording.latest.summary if recording.latest is not None else {}
    nodes, gpus = summary.get("nodes"), summary.get("gpus")
    if len(types) == 1 and isinstance(nodes, int) and isinstance(gpus, int) and 0 < nodes <= gpus and not gpus % nodes:
        return {next(iter(types)): (nodes, gpus // nodes)}
    description = f"{nodes} nodes with {gpus} GPUs of {', '.join(sorted(types)) or 'no type that a job had'}"
    raise UsageError(where, f"its cluster can't be told from it ({description})", "give --types TYPE=NODESxGPUS,...")


def _job_profiles(profiles: Mapping[str, Profile]) -> list[Profile]:
    return [profile for key, profile in profiles.items() if key.startswith("job:")]
