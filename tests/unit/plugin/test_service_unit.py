"""synergyd.service: each directive stands once, in the section where systemd reads it."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.plugin.lua_runtimes import ROOT

UNIT = ROOT / "slurm_plugins" / "synergyd.service"


def directives() -> list[tuple[str, str, str]]:
    """(section, name, value)."""
    section, found = "", []
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.append((section, name, value))
    return found


def test_each_directive_stands_once() -> None:
    assert [n for n, times in Counter(name for _, name, _ in directives()).items() if times > 1] == []


def test_the_daemon_is_confined_and_may_write_its_state() -> None:
    said = {name: value for section, name, value in directives() if section == "Service"}
    assert (said["ProtectSystem"], said["NoNewPrivileges"], said["CapabilityBoundingSet"]) == ("strict", "yes", "")
    assert said["StateDirectory"] == "synergy" and said["UMask"] == "0022"  # jobs read their plans
    assert "AF_UNIX" in said["RestrictAddressFamilies"]  # munge
    assert "WatchdogSec" not in said  # nothing feeds it
    assert int(said["LimitNOFILE"]) >= 2 * 4096 + 2 * 1000  # the links' connections and the reports'


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed here")
def test_systemd_understands_it(tmp_path: Path) -> None:
    unit = tmp_path / "synergyd.service"
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/synergyd", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "synergyd.service" not in done.stderr, done.stderr
