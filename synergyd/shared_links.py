"""What the links cost a job that it shares with others."""

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
    """What the links that a job shares cost it."""

    #: expected step time over that with its links to itself
    slowdown: float
    #: the link that it waits for most
    worst: str
    #: all that it shares
    links: tuple[SharedLink, ...]
