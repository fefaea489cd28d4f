"""slurm.conf by key, as Slurm reads it: the one reader of its own lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from synergyd.slurm.directives.conf_lines import ConfLine

_PAIR = re.compile(r'(?<![A-Za-z0-9_])([A-Za-z0-9_]+)\s*=\s*("[^"]*"|\S*)')
_MAX_JOINED = 1 << 14  # characters of lines that end with a backslash
_LISTS = ("nodename", "partitionname", "nodeset", "downnodes", "frontendname", "switchname", "include")
_HOSTS = ("slurmctldhost", "controlmachine", "backupcontroller")
_HOST = re.compile(r"([^\s(#,]+)(?:\(([^)\s]+)\))?")  # NAME, or NAME(ADDRESS)


@dataclass(frozen=True)
class SlurmConf:
    """slurm.conf by key: `values` in small letters (the last one said holds, as in Slurm) with their `places`.

    `controllers` are the addresses of all SlurmctldHosts, in their order; `gpu_types` those that NodeName lines give;
    `path` is slurm.conf itself.
    """

    path: Path
    values: Mapping[str, str]
    places: Mapping[str, str]
    partitions: tuple[str, ...]
    gpu_types: tuple[str, ...]
    controllers: tuple[str, ...] = ()

    def get(self, key: str) -> str:
        return self.values.get(key.lower(), "")

    def where(self, key: str) -> str:
        return self.places.get(key.lower(), str(self.path))

    def tokens(self, key: str) -> list[str]:
        """Return the parts of a comma-separated value, in small letters."""
        return [part.strip().lower() for part in self.get(key).split(",") if part.strip()]


def read_slurm_conf(path: Path, lines: Sequence[ConfLine]) -> SlurmConf:
    """Sort the lines of slurm.conf `path` (conf_lines.read_lines) by key.

    Lines that are no key=value are passed over.
    """
    values: dict[str, str] = {}
    places: dict[str, str] = {}
    partitions: list[str] = []
    gpu_types: list[str] = []
    controllers: list[str] = []
    continuation = ""
    for line in lines:
        text = continuation + re.split(r"(?<!\\)#", line.text, maxsplit=1)[0].rstrip()
        if (len(text) - len(text.rstrip("\\"))) % 2 and len(text) < _MAX_JOINED:
            continuation = text[:-1]  # the next line goes on at its very end
            continue
        continuation = ""
        pairs = [(key.lower(), value.strip('"')) for key, value in _PAIR.findall(text)]
        if not pairs:
            continue
        if pairs[0][0] not in _LISTS:
            for key, value in pairs:
                values[key], places[key] = value, line.where
                if key in _HOSTS and (host := _HOST.match(value)):
                    controllers.append(host[2] or host[1])
        elif pairs[0][0] == "partitionname":
            partitions.append(pairs[0][1])
        elif pairs[0][0] == "nodename":
            gpu_types += re.findall(r"gpu:([A-Za-z_][A-Za-z0-9_.+-]*)", dict(pairs).get("gres", ""))
    return SlurmConf(path, values, places, tuple(partitions), tuple(dict.fromkeys(gpu_types)), tuple(controllers))
