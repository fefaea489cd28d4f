"""The simulated machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from synergyd.links.model import Topology


@dataclass(frozen=True)
class Machine:
    """`nodes` nodes of `gpus` GPUs with `memory_mb` each; with `exclusive` a GPU has one resident at most."""

    nodes: int = 16
    gpus: int = 4
    memory_mb: float = 32768.0
    exclusive: bool = False
    topology: Topology = field(default_factory=Topology)

    def node_name(self, index: int) -> str:
        return f"n{index}"
