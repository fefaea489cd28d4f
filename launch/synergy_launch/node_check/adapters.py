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
    rates = _infiniband_rates(classes / "infiniband") or _ethernet_rates(classes / "net")
    return sum(rates) if rates else None


def read_links(classes: Path = CLASSES) -> dict[str, bool]:
    """Return whether each physical adapter has a link, by Ethernet's interface (`eth0`) or InfiniBand's port (`mlx5_0 port 1`)."""
    ports = {
        f"{path.parents[1].name} port {path.name}": _read(path / "state") == _IB_ACTIVE
        for path in sorted((classes / "infiniband").glob("*/ports/*"))
    }
    interfaces = {
        path.name: _read(path / "operstate") == "up"
        for path in sorted((classes / "net").glob("*"))
        if (path / "device").exists()
    }
    return ports | interfaces


def _infiniband_rates(folder: Path) -> list[float]:
    rates = []
    for port in sorted(folder.glob("*/ports/*")):
        rate = _RATE.match(_read(port / "rate"))
        if rate is not None and _read(port / "state") == _IB_ACTIVE:
            rates.append(float(rate[1]) * _GIGABIT)
    return rates


def _ethernet_rates(folder: Path) -> list[float]:
    rates = []
    for adapter in sorted(folder.glob("*")):
        speed = _read(adapter / "speed")  # in Mbit/s; -1 without a link
        # a bridge, a container's end of a link and the loopback have no device of their own
        if speed.isdecimal() and _read(adapter / "operstate") == "up" and (adapter / "device").exists():
            rates.append(int(speed) * _MEGABIT)
    return rates


def _read(path: Path) -> str:
    """Return the file's text without white space around it, or "" if it can't be read: the speed of an adapter that is down can't."""
    text = ""
    with contextlib.suppress(OSError, ValueError):
        text = path.read_text().strip()
    return text
