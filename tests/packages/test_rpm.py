"""The packages for EL 9, as `make rpm` builds them: their lists and scripts, and installation, upgrade and removal by rpm.

No EL root is to be had here (no registry that this project reaches has one). rpm installs them into a fresh Debian 12 instead, which has
the Python 3.11 and the systemd-sysusers that they need, with --nodeps, since no rpm owns those there. tests/packages/systemctl.py stands
for systemctl.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from packages.contents import SYSTEMS
from packages.rpm import SHORT
from synergyd import __version__
from tests.packages.fresh_debian import PROGRAMS, ROOTS, FreshDebian
from tests.paths import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.network, pytest.mark.timeout(1800)]
BUILT = ROOT / "build/rpm"
SCRIPTS = ("POSTIN", "PREUN", "POSTUN")


@pytest.fixture(scope="module")
def packages() -> dict[str, Path]:
    if shutil.which("rpm") is None:
        pytest.skip("rpm is not installed here")
    found = {name: BUILT / f"{name}-{__version__}-1.el9.x86_64.rpm" for name in SHORT}
    if missing := [path.name for path in found.values() if not path.exists()]:
        pytest.skip(f"no {', '.join(missing)} in build/rpm: make rpm")
    return found


@pytest.fixture
def debian() -> Iterator[FreshDebian]:
    if reason := ROOTS["debian12"].why_not(PROGRAMS):
        pytest.skip(reason)
    ROOTS["debian12"].make()
    with FreshDebian(ROOTS["debian12"]) as made:
        yield made


def query(path: Path, *words: str) -> str:
    return subprocess.run(["rpm", "-qp", *words, str(path)], capture_output=True, text=True, check=True).stdout


def test_no_file_is_of_two_packages_and_all_are_roots(packages: dict[str, Path]) -> None:
    lists = {name: set(query(path, "-l").splitlines()) for name, path in packages.items()}
    assert all(not one & other for one, other in combinations(lists.values(), 2))
    assert f"/{SYSTEMS['el9'].site}/synergyd/__init__.py" in lists["synergyctl"]
    assert {"/usr/lib/systemd/system/synergyd.service", "/usr/share/man/man5/synergy.conf.5.gz"} <= lists["synergyd"]
    assert query(packages["synergyd"], "-c") == "/etc/sysconfig/synergyd\n"
    for path in packages.values():
        assert {
            line.split()[0] for line in query(path, "--qf", "[%{FILEUSERNAME}:%{FILEGROUPNAME}\n]").splitlines()
        } == {"root:root"}


def test_what_they_need_is_what_el_9_has(packages: dict[str, Path]) -> None:
    needs = {name: set(query(path, "--requires").splitlines()) for name, path in packages.items()}
    ours = {each for each in needs["synergyctl"] if not each.startswith("rpmlib(")}
    assert ours == {"/bin/sh", "glibc >= 2.28", "libgcc", "libstdc++", "python3.11", "zlib"}
    assert f"synergyctl = {__version__}-1.el9" in needs["synergyd"]
    assert all(not re.search(r"\.so|python3dist|perl\(", each) for each in set().union(*needs.values()))


def test_scripts_are_sh(packages: dict[str, Path]) -> None:
    texts = [query(path, "--qf", f"%{{{script}}}") for path in packages.values() for script in SCRIPTS]
    texts = [text for text in texts if text != "(none)"]
    assert len(texts) == 6
    assert [text for text in texts if subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode] == []


def rpm(debian: FreshDebian, *words: str) -> str:
    done = debian.run_beside("rpm", f"--root={debian.root}", "--nodeps", "--force-debian", *words)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_installed_upgraded_and_removed(packages: dict[str, Path], debian: FreshDebian) -> None:
    debian.must("userdel slurm")  # as on a system whose slurm packages make none
    told = rpm(debian, "-i", *map(str, packages.values()))
    assert "nothing is started yet; go on with: synergyctl init" in told
    assert debian.must("stat -c '%U %a' /var/lib/synergy") == "slurm 711\n"
    for name in ("synergyctl", "synergyd", "synergyrestd", "synergy-launch"):
        assert debian.must(f"{name} --version") == f"{name}, version {__version__}\n"
    assert "EnvironmentFile=-/etc/sysconfig/synergyd" in debian.must("cat /usr/lib/systemd/system/synergyd.service")

    debian.must(
        "mkdir -p /etc/slurm; printf 'ClusterName=c\\nSlurmctldHost=head\\n' >/etc/slurm/slurm.conf; synergyctl init --yes"
    )
    debian.must("touch -d 2020-01-01 /etc/slurm/job_submit.lua; runuser -u slurm -- synergyctl db upgrade")
    told = rpm(debian, "-U", "--force", *map(str, packages.values()))
    assert "already" in told and "nothing is started" not in told
    assert debian.must("stat -c %Y /etc/slurm/job_submit.lua") > debian.must("date -d 2021-01-01 +%s")

    told = rpm(debian, "-e", *packages)
    assert "still has Synergy's hook, which lets all jobs pass" in told
    left = debian.must("find / -xdev \\( -path /proc -o -path /sys \\) -prune -o -name '*synerg*' -print").split()
    assert [path for path in left if not path.startswith(("/etc/slurm/", "/var/lib/synergy", "/root/"))] == []
