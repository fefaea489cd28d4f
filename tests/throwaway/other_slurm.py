"""Runs a command with another Slurm than this machine's: that of another Debian release, or one built from its source.

    python -m tests.throwaway.other_slurm 24.11 .venv/bin/python -m pytest -m slurm tests/integration
    python -m tests.throwaway.other_slurm --source ~/slurm-25.11 COMMAND...

Of a Debian release: a root of its own in a mount namespace, which has this checkout, this Python, /tmp, /dev, /proc and /sys of
this machine, and all else of that release. What is written elsewhere is gone with it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT
from tests.throwaway.debian_root import CACHE, MAKING_S, DebianRoot
from tests.throwaway.slurm_build import build

SUITES = {"24.11": "trixie", "26.05": "forky"}  # Debian's releases by their Slurm
FEW = ("slurm-wlm", "munge", "python3", "procps")  # python3: its libraries are this Python's too
PACKAGES = (*FEW, "slurmdbd", "mariadb-server", "slurm-wlm-jwt-plugin", "lua5.3", "iproute2", "postgresql")
# forky's client library (11.8.9) fails at slurmdbd's first query ("5027 Number of columns in result"): another suite's is lent
LENDER, LIBRARY = {"forky": "trixie"}, "usr/lib/x86_64-linux-gnu/libmariadb.so.3"
SHARED = ("/tmp", "/dev", "/proc", "/sys")  # locks of ports lie in /tmp
OF_THE_HOST = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/localtime")


def why_not(release: str, root: DebianRoot, making_s: float) -> str:
    """What keeps the Slurm of `release` from being had here, in one line; makes its root. "" if it is there."""
    if reason := root.why_not():
        return reason
    if not root.made():
        print(f"== Debian {root.suite} in {root.folder.relative_to(ROOT)} (some minutes, once)", flush=True)
    try:
        root.make(making_s)
    except subprocess.TimeoutExpired:
        return f"no Debian {root.suite} within {making_s:g} s"
    except RuntimeError as error:
        return f"no Debian {root.suite}: {' '.join(str(error).split())[-300:]}"
    has = version_in(root.folder)
    return "" if has.startswith(f"{release}.") else f"Debian {root.suite} has Slurm {has} now, not {release}"


def version_in(root: Path) -> str:
    """The version of the package slurm-wlm that is installed below `root`, without Debian's own part."""
    status = (root / "var/lib/dpkg/status").read_text()
    found = re.search(r"^Package: slurm-wlm\n(?:.+\n)*?Version: ([^-\n]+)", status, re.MULTILINE)
    return found[1] if found else "?"


def python_links() -> Iterator[Path]:
    """Paths outside of `python_folders` that this Python is started by: links of a virtual environment to /usr/bin."""
    link = Path(sys.executable)
    for _ in range(10):  # a chain of links that ends
        if not any(link.is_relative_to(f) for f in python_folders()):
            yield link
        if not link.is_symlink():
            return
        link = link.parent / link.readlink()


def python_folders() -> list[Path]:
    """What this Python is made of: its environment and its base, of a system's Python the standard library alone."""
    base = Path(sys.base_prefix)
    of_base = Path(sysconfig.get_path("stdlib")) if base == Path("/usr") else base
    return [Path(sys.prefix), of_base] if sys.prefix != sys.base_prefix else [of_base]


def lender_of(root: DebianRoot) -> DebianRoot | None:
    """The root that lends it a library, where it has slurmdbd and needs one."""
    suite = LENDER.get(root.suite)
    return DebianRoot(suite, PACKAGES) if suite and "slurmdbd" in root.packages else None


def steps(root: DebianRoot, command: list[str]) -> list[str]:
    """Shell commands that enter the root and run `command`, in a mount namespace of their own."""
    run = CACHE / ".run"  # mounts on it are seen inside the namespace alone
    run.mkdir(parents=True, exist_ok=True)
    inside = run / "root"
    made = [
        f"mount -t tmpfs tmpfs {run}",
        f"mkdir {run}/upper {run}/work {inside}",
        f"mount -t overlay overlay -o lowerdir={root.folder},upperdir={run}/upper,workdir={run}/work {inside}",
    ]
    for name in SHARED:
        made.append(f"mount --rbind {name} {inside}{name}")
    for folder in dict.fromkeys((ROOT, *python_folders())):
        place = shlex.quote(f"{inside}{folder}")
        made.append(f"mkdir -p {place} && mount --bind {shlex.quote(str(folder))} {place}")
    for link in python_links():
        place = shlex.quote(f"{inside}{link}")
        made.append(f"rm -f {place} && cp {shlex.quote(os.path.realpath(link))} {place}")
    if (lender := lender_of(root)) and (library := lender.folder / LIBRARY).exists():
        made.append(f"cp {library} {inside}/{LIBRARY}")
    for name in OF_THE_HOST:
        if Path(name).exists():
            made.append(f"rm -f {inside}{name} && cp {name} {inside}{name}")
    entered = ["env", f"--chdir={ROOT}", *command]
    # not chroot, in which a container's runtime refuses to run
    made += [f"cd {inside}", "mkdir -p .before", "mount --make-rprivate /", "pivot_root . .before", "umount -l .before"]
    return [*made, f"exec {shlex.join(entered)}"]


def entering(root: DebianRoot, command: list[str]) -> list[str]:
    return ["unshare", "--mount", "sh", "-c", " && ".join(steps(root, command))]


def cannot_enter(root: DebianRoot) -> str:
    """What keeps a command from running there, such as a machine that lets nobody mount; "" if nothing does."""
    done = subprocess.run(entering(root, ["true"]), capture_output=True, text=True, check=False)
    return f"its root can't be entered: {' '.join(done.stderr.split())[-300:]}" if done.returncode else ""


def main() -> None:
    """Runs the command in its place: its exit code is this one's."""
    parser = argparse.ArgumentParser(description="Run a command with another Slurm.", usage="%(prog)s [-h] "
                                     "[--or-pass] [--few] [--making-s S] (RELEASE | --source FOLDER) COMMAND...")  # fmt: skip
    parser.add_argument("--source", type=Path, metavar="FOLDER", help="of a Slurm that is built below build/slurm")
    parser.add_argument("--or-pass", action="store_true", help="where it is not to be had, say so and end with 0")
    parser.add_argument("--few", action="store_true", help="without slurmdbd and the databases")
    parser.add_argument("--making-s", type=float, default=MAKING_S, help="for debootstrap, default %(default)s")
    parser.add_argument("words", nargs=argparse.REMAINDER, help=f"RELEASE ({', '.join(SUITES)}) and COMMAND")
    options = parser.parse_args()
    words: list[str] = options.words
    if options.source is not None:
        reason, prefix = build(options.source.absolute())
        if not reason:
            path = f"{prefix}/bin:{prefix}/sbin:{os.environ.get('PATH', '')}"
            os.execvpe(words[0], words, {**os.environ, "PATH": path})
    else:
        release = words.pop(0) if words else ""
        if release not in SUITES or not words:
            parser.error(f"{release!r}: expected one of {', '.join(SUITES)}, and a command")
        root = DebianRoot(SUITES[release], FEW if options.few else PACKAGES)
        reason = why_not(release, root, options.making_s) or cannot_enter(root)
        if not reason and (lender := lender_of(root)):
            of = next(r for r, suite in SUITES.items() if suite == lender.suite)
            if lacks := why_not(of, lender, options.making_s):
                print(f"== its slurmdbd will not run: {lacks}", file=sys.stderr)
        if not reason:
            os.execvp("unshare", entering(root, words))
    print(f"== no other Slurm here: {reason}", file=sys.stderr)
    sys.exit(0 if options.or_pass else 1)


if __name__ == "__main__":
    main()
