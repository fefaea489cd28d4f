"""Real English text that every Python has: the language reference of `help()`, 460 kB, as bytes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field

from synergy_launch.batch.data_order import SampleOrder


def reference_text() -> bytes:
    """Return the topics of pydoc, in order of their names."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name] for name in sorted(topics)).encode("utf-8")


@dataclass(frozen=True)
class TextWindows:
    """Sample n of a run: `seq + 1` bytes, of which the first `seq` are the input and the last `seq` the labels."""

    seq: int
    seed: int = 0
    text: bytes = field(default_factory=reference_text, repr=False)

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.seq

    def __getitem__(self, index: int) -> bytes:
        return self.text[index * self.seq : (index + 1) * self.seq + 1]

    def sample(self, number: int) -> bytes:
        return self[SampleOrder(len(self), self.seed).index(number)]
