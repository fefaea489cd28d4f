"""torch's random generators in a checkpoint: each rank's own, taken up again where the number of ranks is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from synergy_launch.agent.collectives import Collectives


def save_random(folder: Path, ranks: Collectives) -> None:
    """Write this rank's generators as a file beside the checkpoint's own."""
    state: dict[str, Any] = {"world": ranks.world, "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    torch.save(state, _path(folder, ranks.rank))


def load_random(folder: Path, ranks: Collectives) -> bool:
    """Load the generators back. Return False, with nothing changed, where the checkpoint has none for this rank of as many."""
    path = _path(folder, ranks.rank)
    if not path.exists():
        return False
    state = torch.load(path, weights_only=True)
    if state["world"] != ranks.world:
        return False
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    return True


def _path(folder: Path, rank: int) -> Path:
    return folder / f"random_{rank}.pt"
