"""Link classes by name (hardware.toml, [links]), and what a link means for a GPU type's figures."""

from __future__ import annotations

import math
import tomllib
from functools import cache
from importlib.resources import files

from synergyd.errors import UsageError


@cache
def links() -> dict[str, tuple[float, float]]:
    """Name -> (1e9 bytes/s in one direction, seconds before a collective's first byte moves)."""
    data = tomllib.loads(files("synergyd.task.model").joinpath("hardware.toml").read_text(encoding="utf-8"))
    return {name: (float(entry["gbs"]), float(entry["latency_s"])) for name, entry in data["links"].items()}


def link_figures(text: str, scope: str) -> dict[str, float]:
    """The figures of `scope` (intra: in the node, inter: between nodes) for the link that `text` names.

    `CLASS`, `CLASS/N` for a link that N GPUs share, or a rate in 1e9 bytes/s. Raises UsageError.
    """
    name, slash, shared = text.strip().lower().partition("/")
    among = int(shared) if shared.isascii() and shared.isdecimal() and len(shared) <= 6 else 0
    if slash and among < 1:
        raise UsageError(f"--{scope}", f"{text!r}: {shared!r} GPUs share it", "write CLASS/N, such as ib-hdr/4")
    if name in links():
        rate, latency = links()[name]
        return {f"{scope}_gbs": rate / max(1, among), f"{scope}_latency_s": latency}
    try:
        number = float(name)
    except ValueError:
        right = f"links are {', '.join(links())}; or give 1e9 bytes/s a GPU"
        raise UsageError(f"--{scope}", f"no link is called {name!r}", right) from None
    if not (math.isfinite(number) and 0 < number <= 1e6):
        raise UsageError(f"--{scope}", f"{text} is no rate", "give 1e9 bytes/s a GPU, such as 25")
    return {f"{scope}_gbs": number / max(1, among)}
