"""Builds the packages for EL 9 with rpmbuild, on any machine that has it (Debian: apt install rpm).

    python -m packages.rpm [--out build/rpm]

One run makes all three: synergyd is installed with the synergyctl of the same build.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packages.contents import HERE, PACKAGES, ROOT, SYSTEMS, add_programs, maintainer, settle, source_date_s
from synergyd import __version__

SYSTEM = SYSTEMS["el9"]
#: the names that packages/synergy.spec has for each package's texts
SHORT = {"synergy-launch": "launch", "synergyctl": "ctl", "synergyd": "daemon"}


def stage(root: Path, date_s: float) -> None:
    """Put the files of all packages below `root`: the spec says which file is whose."""
    for package in PACKAGES.values():
        package.fill(root, SYSTEM)
        add_programs(package, root)
    share = root / "usr/share/zsh"
    (share / "vendor-completions").rename(share / "site-functions")
    settle(root, date_s)


def build(out: Path, date_s: float) -> list[Path]:
    """Return the three packages, in `out`. Exits with what rpmbuild says where it fails."""
    with tempfile.TemporaryDirectory(prefix="synergy-rpm-") as folder:
        staged, top = Path(folder) / "staged", Path(folder) / "top"
        staged.mkdir(mode=0o755)
        stage(staged, date_s)
        texts: dict[str, str] = {}
        for name, short in SHORT.items():
            texts[f"summary_{short}"] = PACKAGES[name].summary
            # a macro of several lines would need braces
            texts[f"description_{short}"] = " ".join(PACKAGES[name].description.split())
        macros = {**texts, "version": __version__, "staged": str(staged), "packager": maintainer(), "_topdir": str(top)}
        defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(int(date_s))}
        command = ["rpmbuild", "-bb", "--quiet", "--target", "x86_64", *defines, str(HERE / "synergy.spec")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"packages.rpm: rpmbuild failed\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        out.mkdir(parents=True, exist_ok=True)
        made = sorted((top / "RPMS").rglob("*.rpm"))
        return [Path(shutil.move(path, out / path.name)) for path in made]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m packages.rpm", description="Builds the packages for EL 9.")
    parser.add_argument("--out", type=Path, default=ROOT / "build/rpm")
    given = parser.parse_args()
    if shutil.which("rpmbuild") is None:
        parser.error("rpmbuild is missing; on Debian: apt install rpm")
    os.umask(0o022)
    for path in build(given.out, source_date_s()):
        print(path)


if __name__ == "__main__":
    main()
