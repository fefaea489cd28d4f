"""What the journal says of a daemon that is well: how it runs, at its start, and one line an hour."""

from __future__ import annotations

from dataclasses import dataclass

from synergy_core.formatting import format_duration
from synergy_core.records import Action

from synergyd import __version__
from synergyd.daemon.loop import Daemon
from synergyd.settings import SETTINGS, Settings
from synergyd.settings.text import changed_settings
from synergyd.store.records import EpochRecord

LINE_S = 3600.0
#: what may hold a password or a token
_SECRET = ("database", "notice_url")


def start_message(settings: Settings, reads: str) -> str:
    """Return the line of a start: version, mode, and what differs from the defaults. `reads`: what Slurm is read through."""
    mode = "dry run, no job is touched" if settings.dry_run else "acts on jobs"
    changed = [
        f"{setting.key}=(set)"
        if setting.field in _SECRET
        else f"{setting.key}={setting.type.write(getattr(settings, setting.field))}"
        for setting in changed_settings(settings)
    ]
    count = f"{len(SETTINGS) - len(changed)} settings at their defaults"
    return f"synergyd {__version__}: {mode}; reads through {reads}; " + ", ".join([*changed, count])


@dataclass
class Hour:
    """The counts of the hour so far."""

    epochs: int = 0
    failures: int = 0
    starts: int = 0
    resizes: int = 0
    longest_s: float = 0.0


class Journal:
    """The hourly lines. `begin_s`: by a clock that nobody sets."""

    def __init__(self, begin_s: float) -> None:
        self._line_s, self._hour = begin_s, Hour()

    def note_failure(self) -> None:
        self._hour.failures += 1

    def note_epoch(self, record: EpochRecord, daemon: Daemon, now_s: float) -> str:
        """Count an epoch. Return the line that is due, or ""."""
        hour = self._hour
        hour.epochs += 1
        hour.longest_s = max(hour.longest_s, record.duration_s)
        # a decision that stays the same is news only once
        hour.starts += sum(d.action is Action.START for d in record.decisions)
        hour.resizes += sum(d.action is Action.RESIZE for d in record.decisions)
        if now_s - self._line_s < LINE_S:
            return ""
        took_s, self._line_s, self._hour = now_s - self._line_s, now_s, Hour()
        return format_hour(hour, daemon, took_s)


def format_hour(hour: Hour, daemon: Daemon, took_s: float) -> str:
    """Return the line of an hour that took `took_s` seconds, with the jobs as they are at its end."""
    jobs = [t.job for t in daemon.controller.jobs.values() if t.job is not None and t.job.directive is not None]
    held_gpus = sum(job.shape.gpus for job in jobs if job.node_names)
    mode = " (dry run)" if daemon.settings.dry_run else ""
    return (
        f"in {format_duration(took_s)}: {hour.epochs} epochs (longest {hour.longest_s:.1f} s), {hour.failures} failed; "
        f"{hour.starts} starts and {hour.resizes} resizes decided{mode}; now {len(jobs)} jobs with a #SYNERGY line hold {held_gpus} GPUs, "
        f"{daemon.plain_jobs} plain ones {daemon.plain_held_gpus}"
    )
