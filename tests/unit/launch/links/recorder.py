"""A gate that notes what it is told."""

from __future__ import annotations


class Recorder:
    """In place of a LinkGate."""

    is_asking = True

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, _size_bytes: int) -> float:
        self.told.append("begin")
        return 0.0

    def end(self) -> None:
        self.told.append("end")

    def close(self) -> None:
        self.told.append("close")
