"""A container's root without a container runtime: a mount namespace with the folders that are named, and Python; no Slurm, no munge.

It needs root. /tmp is the container's own, the network the host's, as with pyxis, enroot and apptainer.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

LIBRARIES = ("/lib", "/lib64", "/usr/lib")  # the dynamic linker's; programs lie elsewhere
DEVICES = ("/proc", "/dev")


def why_not() -> str:
    """What keeps such a root from being entered here, in one line; "" if nothing does."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "a root of its own needs root and unshare"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


def entering(path: Path, mounts: Mapping[Path, str]) -> Path:
    """Writes the script `path`, which runs its arguments in such a root. `mounts`: where each file or folder lies in it; what is
    shown as `PLACE:ro` can't be written to."""
    root, python, base = "/run", Path(sys.executable).resolve(), Path(sys.base_prefix)
    site = Path(sysconfig.get_path("stdlib")) / ("dist-packages" if base == Path("/usr") else "site-packages")
    shown = {Path(x): x for x in (*LIBRARIES, *DEVICES) if Path(x).exists()}
    shown |= {python: str(python)} if base == Path("/usr") else {base: str(base)}  # /usr itself has Slurm's programs
    lines = ["#!/bin/sh", "set -e", "mount --make-rprivate /", f"mount -t tmpfs tmpfs {root}"]
    lines += [f"mkdir -p {root}/tmp {root}/bin", f"ln -s {shlex.quote(str(python))} {root}/bin/python3"]
    for source, place in {**shown, **mounts}.items():
        place, _, read_only = place.partition(":")
        at, what = shlex.quote(f"{root}{place}"), shlex.quote(str(source))
        made = f"mkdir -p {at}" if source.is_dir() else f"mkdir -p $(dirname {at}) && : > {at}"
        lines += [made, f"mount --rbind {what} {at}"]
        lines += [f"mount -o remount,bind,ro {at}"] if read_only else []
    if site.exists():  # nothing but what the test puts there
        lines.append(f"mount -t tmpfs tmpfs {shlex.quote(f'{root}{site}')}")
    lines.append(f'exec chroot {root} "$@"')
    inner = path.with_suffix(".inner")
    inner.write_text("\n".join(lines) + "\n")
    inner.chmod(0o755)
    path.write_text(f'#!/bin/sh\nexec unshare --mount {shlex.quote(str(inner))} "$@"\n')
    path.chmod(0o755)
    return path
