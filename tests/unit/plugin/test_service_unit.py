"""The systemd units: each directive stands once, in the section where systemd reads it."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from synergyd.rest.server import MAX_CONNECTIONS
from tests.unit.plugin.lua_runtimes import ROOT

UNITS = ("synergyd", "synergyrestd")


def unit_of(program: str) -> Path:
    return ROOT / "slurm_plugins" / f"{program}.service"


def directives(program: str) -> list[tuple[str, str, str]]:
    """(section, name, value)."""
    section, found = "", []
    for line in unit_of(program).read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.append((section, name, value))
    return found


@pytest.mark.parametrize("program", UNITS)
def test_each_directive_stands_once(program: str) -> None:
    assert [n for n, times in Counter(name for _, name, _ in directives(program)).items() if times > 1] == []


@pytest.mark.parametrize("program", UNITS)
def test_it_is_confined_and_may_write_its_state(program: str) -> None:
    said = {name: value for section, name, value in directives(program) if section == "Service"}
    assert (said["ProtectSystem"], said["NoNewPrivileges"], said["CapabilityBoundingSet"]) == ("strict", "yes", "")
    assert said["StateDirectory"] == "synergy" and said["UMask"] == "0022"  # jobs read their plans
    assert "AF_UNIX" in said["RestrictAddressFamilies"]  # munge
    assert "WatchdogSec" not in said  # nothing feeds it
    # the links' connections and the reports'; of the REST service: its own bound and a database
    assert int(said["LimitNOFILE"]) >= (2 * 4096 + 2 * 1000 if program == "synergyd" else 2 * MAX_CONNECTIONS)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed here")
@pytest.mark.parametrize("program", UNITS)
def test_systemd_understands_it(program: str, tmp_path: Path) -> None:
    unit = tmp_path / f"{program}.service"
    unit.write_text(unit_of(program).read_text().replace(f"/usr/local/bin/{program}", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert f"{program}.service" not in done.stderr, done.stderr
