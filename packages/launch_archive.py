"""Builds synergy-launch.pyz: the launcher in one file, for containers, where nothing of ours is installed.

    python -m packages.launch_archive [--out build/synergy-launch.pyz]

It holds what the Debian package synergy-launch installs (click too) and runs with any Python from 3.11 on.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from pathlib import Path

from packages.contents import LAUNCH, ROOT, SYSTEMS, fill_launch

INTERPRETER = b"#!/usr/bin/env python3\n"
MADE = (1980, 1, 1, 0, 0, 0)  # equal sources make equal files


def build(out: Path) -> None:
    """Write the archive, executable."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, out.open("wb") as file:
        fill_launch(Path(folder), SYSTEMS["debian12"])
        root = Path(folder) / LAUNCH
        (root / "synergy-launch").rename(root / "__main__.py")
        file.write(INTERPRETER)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(p for p in root.rglob("*") if p.is_file()):
                about = zipfile.ZipInfo(path.relative_to(root).as_posix(), MADE)
                about.external_attr, about.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
                archive.writestr(about, path.read_bytes())
    out.chmod(0o755)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Build the launcher as one file.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "synergy-launch.pyz", help="default: %(default)s")
    out = parser.parse_args().out
    build(out)
    print(f"== {out}: {out.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
