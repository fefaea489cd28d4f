"""Two hosts on this machine: network namespaces joined by one link with a shaped rate, each also reachable from here."""

from __future__ import annotations

import os
import subprocess
from types import TracebackType
from typing import Self


def why_not() -> str:
    """What keeps namespaces or shaping from working here, in one line; "" if nothing does."""
    try:
        with ShapedLink("probe", 100.0, 2):
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
        return f"network namespaces or tc are not to be had here: {said.splitlines()[-1] if said else error}"


class _Made:
    """Made at its begin and removed at its end, also where making it failed half-way."""

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        raise NotImplementedError

    def _remove(self) -> None:
        raise NotImplementedError


class ShapedLink(_Made):
    """Two namespaces `a` and `b`, joined by `link0`, on which each of `users` has an address and an alias of the interface of its own.

    The link goes at `mbit` each way, and users that send at the same time have a fair share each, as the model has it: without that
    the luckier of two TCP connections drives the other away. `up0` leads from a to `here`.
    """

    def __init__(self, name: str, mbit: float, users: int) -> None:
        self._tag = f"{name[:5]}{os.getpid() % 100_000}"  # an interface's name may have 15 letters
        self.a, self.b = f"{self._tag}a", f"{self._tag}b"
        self._mbit, self._users = mbit, users
        self.here = ""

    def interface(self, user: int) -> str:
        return f"link0:{user}"

    def address(self, name: str, user: int) -> str:
        return f"10.77.0.{(10 if name == self.a else 110) + user}"

    def command(self, name: str, argv: list[str]) -> list[str]:
        """`argv` as it runs inside a namespace."""
        return ["ip", "netns", "exec", name, *argv]

    def _make(self) -> None:
        for name in (self.a, self.b):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", self.a, "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", self.b)
        for name in (self.a, self.b):
            _run("ip", "-n", name, "link", "set", "link0", "up")
            other = self.b if name == self.a else self.a
            for user in range(self._users):
                words = ("dev", "link0", "label", self.interface(user))
                _run("ip", "-n", name, "addr", "add", f"{self.address(name, user)}/24", *words)
            theirs = [self.address(other, user) for user in range(self._users)]
            _shape(("ip", "netns", "exec", name, "tc"), "link0", self._mbit, "dst", theirs)
        net = os.getpid() % 250
        self.here = f"10.78.{net}.1"
        _run("ip", "link", "add", f"{self._tag}u", "type", "veth", "peer", "name", "up0", "netns", self.a)
        _run("ip", "addr", "add", f"{self.here}/24", "dev", f"{self._tag}u")
        _run("ip", "link", "set", f"{self._tag}u", "up")
        _run("ip", "-n", self.a, "addr", "add", f"10.78.{net}.2/24", "dev", "up0")
        _run("ip", "-n", self.a, "link", "set", "up0", "up")

    def _remove(self) -> None:
        for argv in (["link", "del", f"{self._tag}u"], ["netns", "del", self.a], ["netns", "del", self.b]):
            subprocess.run(["ip", *argv], capture_output=True, check=False, timeout=20)


def _run(*argv: str) -> None:
    subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20)


def _shape(tc: tuple[str, ...], device: str, mbit: float, end: str, addresses: list[str]) -> None:
    """One direction of a link: a class a user, by the address at its `end` (src or dst). What is nobody's goes ahead of all."""
    _run(*tc, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb")
    shares = {"parent 1: classid 1:1": mbit}
    shares |= {f"parent 1:1 classid 1:{10 + user}": mbit / len(addresses) for user in range(len(addresses))}
    for words, rate in shares.items():
        limits = ("rate", f"{rate}mbit", "ceil", f"{mbit}mbit", "burst", "64kb", "cburst", "64kb")
        _run(*tc, "class", "add", "dev", device, *words.split(), "htb", *limits, "quantum", "3000")
    for user, address in enumerate(addresses):
        matches = ("u32", "match", "ip", end, f"{address}/32", "flowid", f"1:{10 + user}")
        _run(*tc, "filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "prio", "1", *matches)
        _run(*tc, "qdisc", "add", "dev", device, "parent", f"1:{10 + user}", "pfifo", "limit", "200")


class ShapedNodes(_Made):
    """Namespaces `nodes`, each with one shaped link of `mbit` each way to a switch here; every one of `users` has an address on each
    node and a fair share of its link, as the model has it. `here` is this machine's own address on the switch."""

    def __init__(self, name: str, mbit: float, nodes: int, users: int) -> None:
        self._tag = f"{name[:4]}{os.getpid() % 100_000}"  # an interface's name may have 15 letters
        self._net = f"10.{80 + os.getpid() % 120}"
        self.nodes = [f"{self._tag}n{n}" for n in range(nodes)]
        self._mbit, self._users = mbit, users
        self.here = f"{self._net}.255.1"

    def interface(self, user: int) -> str:
        return f"eth0:{user}"

    def address(self, node: int, user: int) -> str:
        return f"{self._net}.{user}.{10 + node}"

    def command(self, node: int, argv: list[str]) -> list[str]:
        """`argv` as it runs on a node."""
        return ["ip", "netns", "exec", self.nodes[node], *argv]

    def _make(self) -> None:
        switch = f"{self._tag}s"
        _run("ip", "link", "add", switch, "type", "bridge")
        _run("ip", "addr", "add", f"{self.here}/16", "dev", switch)
        _run("ip", "link", "set", switch, "up")
        for n, name in enumerate(self.nodes):
            port = f"{self._tag}p{n}"
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "set", port, "master", switch, "up")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            for user in range(self._users):
                words = ("dev", "eth0", "label", self.interface(user))
                _run("ip", "-n", name, "addr", "add", f"{self.address(n, user)}/16", *words)
            mine = [self.address(n, user) for user in range(self._users)]
            _shape(("ip", "netns", "exec", name, "tc"), "eth0", self._mbit, "src", mine)
            _shape(("tc",), port, self._mbit, "dst", mine)

    def _remove(self) -> None:
        deletions = [["netns", "del", name] for name in self.nodes] + [["link", "del", f"{self._tag}s"]]
        for argv in deletions:
            subprocess.run(["ip", *argv], capture_output=True, check=False, timeout=20)
