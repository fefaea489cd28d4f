"""What daemons see of one another without the database: the heartbeat, and who wants to lead without it. Both in StateDir."""

from __future__ import annotations

from pathlib import Path

from synergyd.daemon import heartbeat

NAME = "leads-without-database"


class StateDirWitness:
    """synergyd.store.leader.Witness."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def seen(self) -> str:
        return f"{heartbeat.seen(self._state_dir)} {self.claimed()}"

    def claim(self, holder: str) -> None:
        try:
            fresh = self._state_dir / f".{NAME}.{holder}"
            fresh.write_text(holder)
            fresh.replace(self._state_dir / NAME)
        except OSError:
            pass  # then `claimed` does not name it

    def claimed(self) -> str:
        try:
            return (self._state_dir / NAME).read_text(errors="replace")[:100]
        except OSError:
            return ""
