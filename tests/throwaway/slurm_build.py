"""A Slurm built from a folder of its source, below build/slurm: once for each version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.paths import ROOT

BUILT = ROOT / "build" / "slurm"
NEEDS = "gcc make libmunge-dev liblua5.3-dev libjson-c-dev libjwt-dev libmariadb-dev"  # Debian's names
# several slurmd on one machine, as Debian builds it: without, slurmctld finds no address of n2
OPTIONS = ("--disable-debug", "--without-rpath", "--enable-multiple-slurmd")
PLUGINS = ("auth_munge", "job_submit_lua", "serializer_json", "auth_jwt", "accounting_storage_mysql")
BUILDING_S = 3600


def build(source: Path) -> tuple[str, Path]:
    """("", the prefix that holds it), or why there is none in one line. `source` is only read."""
    meta = source / "META"
    found = re.search(r"^\s*Version:\s*(\S+)", meta.read_text(), re.MULTILINE) if meta.exists() else None
    if found is None:
        return f"{source} is no folder of Slurm's source: it has no META with a Version", source
    prefix = BUILT / found[1]
    ready, made = prefix / ".ready", f"{prefix} {' '.join(OPTIONS)}"
    if ready.exists() and ready.read_text() == made:
        return "", prefix
    print(f"== Slurm {found[1]} from {source}, into {prefix} (half an hour, once)", flush=True)
    shutil.rmtree(prefix, ignore_errors=True)
    prefix.mkdir(parents=True)
    log = prefix.with_name(f"{prefix.name}.log")
    with tempfile.TemporaryDirectory(prefix="synergy-slurm-build-") as folder, log.open("wb") as told:
        # unoptimized: a third of the time
        environment = {**os.environ, "CFLAGS": "-O0"}
        for argv in (
            [str(source / "configure"), f"--prefix={prefix}", *OPTIONS],
            ["make", "-s", f"-j{os.cpu_count()}"],
            ["make", "-s", "install"],
        ):
            done = subprocess.run(
                argv, cwd=folder, env=environment, stdout=told, stderr=told, timeout=BUILDING_S, check=False
            )
            if done.returncode:
                return f"{argv[0]} failed, see {log}; it needs {NEEDS}", prefix
    lacks = [name for name in PLUGINS if not (prefix / "lib" / "slurm" / f"{name}.so").exists()]
    if lacks:
        return f"built without {', '.join(lacks)}: it needs {NEEDS}", prefix
    ready.write_text(made)  # a Slurm knows its own folder: that of another checkout would not do
    return "", prefix
