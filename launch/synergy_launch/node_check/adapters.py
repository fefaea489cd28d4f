"""The network adapters of this node, as Linux shows them under /sys/class."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

CLASSES = Path("/sys/class")
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9])?) Gb/sec")
_MEGABIT, _GIGABIT = 1e6, 1e9
_IB_ACTIVE = "4: ACTIVE"


def read_network_rate(classes: Path = CLASSES) -> float | None:
    """Return the rates of the physical adapters that are up, together, in bits a second; None where no rate is known.

    InfiniBand's ports (RoCE's too) count where there are any active ones, otherwise Ethernet's. `classes` stands for /sys/class.
    """
    rates = [float(rate[1]) * _GIGABIT for port in _ports(classes) if _is_active(port) and (rate := _rate(port))]
    if not rates:
        # in Mbit/s; -1 without a link
        speeds = [_read(interface / "speed") for interface in _interfaces(classes) if _is_up(interface)]
        rates = [int(speed) * _MEGABIT for speed in speeds if speed.isdecimal()]
    return sum(rates) if rates else None


def read_links(classes: Path = CLASSES) -> dict[str, bool]:
    """Return whether each physical adapter has a link, by Ethernet's interface (`eth0`) or InfiniBand's port (`mlx5_0 port 1`)."""
    ports = {f"{port.parents[1].name} port {port.name}": _is_active(port) for port in _ports(classes)}
    return ports | {interface.name: _is_up(interface) for interface in _interfaces(classes)}


def _ports(classes: Path) -> list[Path]:
    return sorted((classes / "infiniband").glob("*/ports/*"))


def _interfaces(classes: Path) -> list[Path]:
    # a bridge, a container's end of a link and the loopback have no device of their own
    return [path for path in sorted((classes / "net").glob("*")) if (path / "device").exists()]


def _is_active(port: Path) -> bool:
    return _read(port / "state") == _IB_ACTIVE


def _rate(port: Path) -> re.Match[str] | None:
    return _RATE.match(_read(port / "rate"))


def _is_up(interface: Path) -> bool:
    return _read(interface / "operstate") == "up"


def _read(path: Path) -> str:
    """Return the file's text without white space around it, or "" if it can't be read: the speed of an adapter that is down can't."""
    text = ""
    with contextlib.suppress(OSError, ValueError):
        text = path.read_text().strip()
    return text
