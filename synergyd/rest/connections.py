"""The bounds on the service's connections, and the choice of the one that makes room. Pure: sockets are the caller's.

A source is a user over the Unix socket, an IPv4 address, or an IPv6 network of 64 bits: one host has a whole one of those. If a
source, or all sources of one kind, have as many connections as they may, the one that has waited longest for its client is closed.
A connection whose request is being answered is never closed for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Protocol

Source = int | str  # a uid, or an address or network as text


class Connection(Protocol):
    """One client's connection."""

    @property
    def waits_for_client(self) -> bool:
        """Return whether the client, not the service, has to do something next."""
        ...

    def abort(self) -> None:
        """Close it at once."""
        ...


def network_source(address: str) -> Source:
    """Return the source that a client's IP address belongs to, or "" for an address that can't be read."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if not isinstance(ip, IPv6Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(IPv6Network((ip, 64), strict=False))


@dataclass
class ConnectionPool:
    """The open connections of one kind: the Unix socket's, or the port's.

    At most `most` in all and `most_a_source` of one source. Those of root's are not bounded.
    """

    most: int
    most_a_source: int
    _by_source: dict[Source, dict[Connection, None]] = field(default_factory=dict)  # the longest quiet first
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def admit(self, connection: Connection, source: Source) -> bool:
        """Add `connection`, and close another if there are too many. Return whether there was room for it."""
        if source != 0:
            of_source = self._by_source.get(source, {})
            if len(of_source) >= self.most_a_source and not self._make_room([source]):
                return False
            if self._count >= self.most and not self._make_room(self._largest_first()):
                return False
        self._by_source.setdefault(source, {})[connection] = None
        self._count += 1
        return True

    def touch(self, connection: Connection, source: Source) -> None:
        """Note that `connection` has begun or ended a request: all others of its source have been quiet for longer."""
        of_source = self._by_source.get(source, {})
        if connection in of_source:
            del of_source[connection]
            of_source[connection] = None

    def discard(self, connection: Connection, source: Source) -> None:
        """Remove `connection` if it is here."""
        of_source = self._by_source.get(source, {})
        if connection in of_source:
            del of_source[connection]
            self._count -= 1
            if not of_source:
                del self._by_source[source]

    def _largest_first(self) -> Iterator[Source]:
        """Yield the sources that may have to make room for another, by how many connections they have."""
        sources = self._by_source.keys() - {0}
        if sources:
            yield max(sources, key=lambda source: len(self._by_source[source]))  # nearly always enough
        yield from sorted(sources, key=lambda source: -len(self._by_source[source]))

    def _make_room(self, sources: Iterable[Source]) -> bool:
        for source in sources:
            for connection in self._by_source.get(source, {}):
                if connection.waits_for_client:
                    self.discard(connection, source)
                    connection.abort()
                    return True
        return False
