"""The cost to a job of the links that it shares with others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SharedLink:
    """A link that a job shares."""

    #: `nic:NODE`: a node's own, `leaf:NAME`: a leaf switch's uplink
    link: str
    #: the other jobs on it
    jobs: tuple[int, ...]


@dataclass(frozen=True)
class Sharing:
    """The cost to a job of the links that it shares with others."""

    #: expected step time relative to links of its own
    slowdown: float
    #: the link that it waits for most
    worst: str
    #: all links that it shares
    links: tuple[SharedLink, ...]
