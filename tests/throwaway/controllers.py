"""Several slurmctlds for one throwaway cluster on this machine, as SlurmctldHost several times on hosts that share StateSaveLocation.

Each has a UTS namespace with a name of its own, an address of 127.0.0.0/8 of its own, and a mount namespace: /etc/hosts knows the
names, and a folder of its own holds its pid (slurmctld ends the process that the pid file names). It needs root.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

TIMEOUT_S = 5  # of the first one's silence, before the next takes over; Slurm's own value is 120


def why_not() -> str:
    """What keeps several from running here, in one line; "" if nothing does."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "hosts of their own need root and unshare"
    done = subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


def key(number: int) -> str:
    """The name by which the cluster knows the process."""
    return f"slurmctld{number if number > 1 else ''}"


def conf_lines(folder: Path, controllers: int) -> list[str]:
    """The lines of slurm.conf in place of those of one controller; makes the folders."""
    names = [f"ctl{n}" for n in range(1, controllers + 1)]
    hosts = "".join(f"127.0.0.{n} ctl{n - 1}\n" for n in range(2, controllers + 2))
    (folder / "hosts").write_text(hosts + Path("/etc/hosts").read_text())
    for name in (*names, "ctl"):
        (folder / name).mkdir(exist_ok=True)
    return [
        *(f"SlurmctldHost={name}(127.0.0.{n})" for n, name in enumerate(names, 2)),
        f"SlurmctldTimeout={TIMEOUT_S}",
        "CommunicationParameters=NoCtldInAddrAny",  # each listens on its own address, on the same port
        f"SlurmctldPidFile={folder}/ctl/slurmctld.pid",
    ]


def command(folder: Path, number: int, slurmctld: list[str]) -> list[str]:
    """slurmctld `number` (from 1) on its host; the process that is started becomes it."""
    binds = {folder / "hosts": "/etc/hosts", folder / f"ctl{number}": folder / "ctl"}
    steps = [
        f"hostname ctl{number}",
        *(f"mount --bind {shlex.quote(f'{a}')} {shlex.quote(f'{b}')}" for a, b in binds.items()),
    ]
    return ["unshare", "--uts", "--mount", "sh", "-c", f"{' && '.join(steps)} && exec {shlex.join(slurmctld)}"]
