"""The names of links, for slurm.conf and the command line alike, with each link's nominal figures."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class LinkClass:
    """A class of links. `gbs`: nominal rate in one direction, 1e9 bytes/s; `latency_s`: seconds before a collective's first byte moves."""

    gbs: float
    latency_s: float


# Sources: NVIDIA's NVLink, Quantum InfiniBand and Spectrum product pages, PCI-SIG, IEEE 802.3; latencies: nccl-tests'
# small all-reduces. The share of the rate that collectives reach is a GPU type's link_efficiency and inter_efficiency
# (task/model/hardware.toml); what sharing a link costs is a guess scaled from its rate (links/model.py) until it is measured.
#: Between nodes: one port.
NETWORK_LINKS: dict[str, LinkClass] = {
    "1gbe": LinkClass(0.125, 1e-4),  # Ethernet with TCP
    "10gbe": LinkClass(1.25, 1e-4),
    "25gbe": LinkClass(3.125, 1e-4),
    "100gbe": LinkClass(12.5, 1e-4),
    "ib-edr": LinkClass(12.5, 3e-5),
    "ib-hdr": LinkClass(25, 3e-5),
    "ib-ndr": LinkClass(50, 3e-5),
    "ib-xdr": LinkClass(100, 3e-5),
    "roce-100": LinkClass(12.5, 5e-5),  # Ethernet with RDMA
    "roce-200": LinkClass(25, 5e-5),
    "roce-400": LinkClass(50, 5e-5),
}
#: Between the GPUs of a node.
NODE_LINKS: dict[str, LinkClass] = {
    "nvlink2": LinkClass(150, 2e-5),  # V100 SXM
    "nvlink3": LinkClass(300, 2e-5),  # A100 SXM
    "nvlink4": LinkClass(450, 2e-5),  # H100, H200, GH200
    "nvlink5": LinkClass(900, 2e-5),  # B200, GB200
    "nvbridge3": LinkClass(56, 2e-5),  # pairs of RTX 3090, A40, A6000
    "nvbridge4": LinkClass(300, 2e-5),  # pairs of A100 and H100 PCIe
    "pcie3": LinkClass(16, 2e-5),  # x16
    "pcie4": LinkClass(32, 2e-5),
    "pcie5": LinkClass(64, 2e-5),
    "pcie3-host": LinkClass(8, 3e-5),  # without peer-to-peer each byte goes through host memory (GeForce)
    "pcie4-host": LinkClass(16, 3e-5),
    "pcie5-host": LinkClass(32, 3e-5),
}
LINK_CLASSES = NODE_LINKS | NETWORK_LINKS
_FORMER = {"eth-10": "10gbe", "eth-25": "25gbe", "eth-100": "100gbe"}  # spellings that stay accepted


def parse_link(text: str) -> tuple[int, str] | None:
    """Return (how many together, name in LINK_CLASSES) of `NAME` or `4xNAME` (at most 9999 together); None for anything else."""
    match = re.fullmatch(r"(?:([1-9][0-9]{0,3})x)?([a-z0-9-]+)", text.lower())
    name = _FORMER.get(match[2], match[2]) if match else ""
    return (int(match[1] or 1), name) if match and name in LINK_CLASSES else None


def parse_measured_link(text: str) -> tuple[str, tuple[float, float] | None]:
    """Return (the link's name as `parse_link` takes it, its measured b and h in ms/MB) of `NAME@B+H`.

    Returns None for the figures where the text has none. Raises ValueError for figures that are none.
    """
    name, at, figures = text.partition("@")
    if not at:
        return name, None
    match = re.fullmatch(r"([0-9]{1,5}(?:\.[0-9]{1,6})?)\+([0-9]{1,5}(?:\.[0-9]{1,6})?)", figures)
    if match is None or float(match[1]) <= 0:
        raise ValueError(text)
    return name, (float(match[1]), float(match[2]))
