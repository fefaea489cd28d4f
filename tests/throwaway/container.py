"""A container's root without a container runtime: a mount namespace with the folders that are named, and Python; no Slurm, no munge.

With apptainer, where that is installed, the same root is apptainer's. It needs root. /tmp is the container's own, the network the
host's, as with pyxis, enroot and apptainer.
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
    root, python, shown = "/run", Path(sys.executable).resolve(), of_this_machine(LIBRARIES, DEVICES)
    lines = ["#!/bin/sh", "set -e", "mount --make-rprivate /", f"mount -t tmpfs tmpfs {root}"]
    lines += [f"mkdir -p {root}/tmp {root}/bin", f"ln -s {shlex.quote(str(python))} {root}/bin/python3"]
    for source, place in {**shown, **mounts}.items():
        place, _, read_only = place.partition(":")
        at, what = shlex.quote(f"{root}{place}"), shlex.quote(str(source))
        made = f"mkdir -p {at}" if source.is_dir() else f"mkdir -p $(dirname {at}) && : > {at}"
        lines += [made, f"mount --rbind {what} {at}"]
        lines += [f"mount -o remount,bind,ro {at}"] if read_only else []
    if (site := _site()).exists():  # nothing but what the test puts there
        lines.append(f"mount -t tmpfs tmpfs {shlex.quote(f'{root}{site}')}")
    lines.append(f'exec chroot {root} "$@"')
    inner = path.with_suffix(".inner")
    inner.write_text("\n".join(lines) + "\n")
    inner.chmod(0o755)
    path.write_text(f'#!/bin/sh\nexec unshare --mount {shlex.quote(str(inner))} "$@"\n')
    path.chmod(0o755)
    return path


def by_apptainer(path: Path, mounts: Mapping[Path, str]) -> Path:
    """The same by `apptainer exec`. Its image is a folder with nothing in it but links to what is mounted."""
    image, empty = path.with_suffix(".image"), path.with_suffix(".empty")
    for name in ("bin", "etc", "tmp", "proc", "dev", "sys", "var/tmp", "root", "usr"):
        (image / name).mkdir(parents=True, exist_ok=True)
    empty.mkdir()
    (image / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    for name in ("passwd", "group"):
        (image / "etc" / name).touch()
    # /lib is a link into /usr/lib: two mounts of one folder
    shown = {**of_this_machine(LIBRARIES), **mounts, **({empty: str(_site())} if _site().exists() else {})}
    for place in shown.values():
        (image / place.partition(":")[0].lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    binds = " ".join(shlex.quote(f"--bind={source}:{place}") for source, place in shown.items())
    # --userns: it takes no capabilities, some of which a machine may lack; --contain: nothing of the host but what is named
    path.write_text(
        f'#!/bin/sh\nexec apptainer -q exec --userns --contain --no-home --pwd=/ {binds} {shlex.quote(str(image))} "$@"\n'
    )
    path.chmod(0o755)
    return path


def of_this_machine(*names: tuple[str, ...]) -> dict[Path, str]:
    """The folders of that name, and Python's: each where it lies here."""
    python, base = Path(sys.executable).resolve(), Path(sys.base_prefix)
    shown = {Path(x): x for group in names for x in group if Path(x).exists()}
    return shown | (
        {python: str(python)} if base == Path("/usr") else {base: str(base)}
    )  # /usr itself has Slurm's programs


def _site() -> Path:
    """Where packages of this Python are installed."""
    debian = Path(sys.base_prefix) == Path("/usr")
    return Path(sysconfig.get_path("stdlib")) / ("dist-packages" if debian else "site-packages")


RUNTIMES = {"unshare": entering, "apptainer": by_apptainer}
