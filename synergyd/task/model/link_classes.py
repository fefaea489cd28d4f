"""What a link, named or as a rate, means for a GPU type's figures."""

from __future__ import annotations

import math

from synergyd.errors import UsageError
from synergyd.link_names import LINK_CLASSES, parse_link


def link_figures(text: str, scope: str) -> dict[str, float]:
    """The figures of `scope` (intra: in the node, inter: between nodes) for the link that `text` names.

    `CLASS` (`4xCLASS`: four together), `CLASS/N` for a link that N GPUs share, or a rate in 1e9 bytes/s. Raises UsageError.
    """
    name, slash, shared = text.strip().lower().partition("/")
    among = int(shared) if shared.isascii() and shared.isdecimal() and len(shared) <= 6 else 0
    if slash and among < 1:
        raise UsageError(f"--{scope}", f"{text!r}: {shared!r} GPUs share it", "write CLASS/N, such as ib-hdr/4")
    if (known := parse_link(name)) is not None:
        count, link = known[0], LINK_CLASSES[known[1]]
        return {f"{scope}_gbs": count * link.gbs / max(1, among), f"{scope}_latency_s": link.latency_s}
    try:
        number = float(name)
    except ValueError:
        right = f"links are {', '.join(LINK_CLASSES)}; or give 1e9 bytes/s a GPU"
        raise UsageError(f"--{scope}", f"no link is called {name!r}", right) from None
    if not (math.isfinite(number) and 0 < number <= 1e6):
        raise UsageError(f"--{scope}", f"{text} is no rate", "give 1e9 bytes/s a GPU, such as 25")
    return {f"{scope}_gbs": number / max(1, among)}
