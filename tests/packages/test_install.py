"""docs/admin/install.md followed word by word on a fresh Debian with a running Slurm; upgrade, removal and purge of the packages.

Stated substitutions: systemctl is tests/packages/systemctl.py (no systemd runs in a chroot); the question of `synergyctl init` is answered
with y on a terminal; the packages come from `make deb`; the section on pip is left out, for there is no network inside.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from packages.contents import PACKAGES, SYSTEMS, System
from packages.deb import architecture, build, file_name
from synergyd import __version__
from synergyd.store import schema
from tests.packages.fresh_debian import PROGRAMS, ROOTS, FreshDebian
from tests.paths import ROOT
from tests.unit.store.test_before_upgrade import database

pytestmark = [pytest.mark.slurm, pytest.mark.network, pytest.mark.timeout(1800)]
BUILT = {"debian12": ROOT / "build" / "deb", "debian13": ROOT / "build" / "deb13"}
NODES = 2
SLURM_CONF = f"""ClusterName=site
SlurmctldHost=head
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/%n
SlurmdPidFile=/run/slurmd.%n.pid
SlurmdLogFile=/var/log/slurmd.%n.log
SlurmctldLogFile=/var/log/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n[1-{NODES}] NodeHostname=head Port=[17001-{17000 + NODES}] CPUs=16 RealMemory=3000 Gres=gpu:a100:4
PartitionName=gpu Nodes=n[1-{NODES}] Default=YES MaxTime=INFINITE
"""
SITE_SCRIPT = """function slurm_job_submit(desc, parts, uid)
  if desc.name == "forbidden" then slurm.log_user("the site says no"); return slurm.ERROR end
  return slurm.SUCCESS
end
function slurm_job_modify(desc, rec, parts, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
JOB = """#!/bin/bash
#SBATCH --gres=gpu:2 --output=/home/mina/out
#SYNERGY model=llama2-7b min_gpus=1 max_gpus=4
srun synergy-launch --runner python /home/mina/train.py
"""


@pytest.fixture(scope="module", params=sorted(BUILT))
def system(request: pytest.FixtureRequest) -> System:
    return SYSTEMS[request.param]


@pytest.fixture(scope="module")
def packages(system: System) -> list[Path]:
    """Those of `make deb`; skips where no fresh Debian can be made."""
    if reason := ROOTS[system.name].why_not(PROGRAMS):
        pytest.skip(reason)
    folder = BUILT[system.name]
    found = [folder / file_name(package, system) for package in PACKAGES.values()]
    if missing := [path.name for path in found if not path.exists()]:
        pytest.skip(f"no {', '.join(missing)} in {folder}: make deb DEBIAN={system.name.removeprefix('debian')}")
    ROOTS[system.name].make()
    return found


@pytest.fixture
def debian(system: System, packages: list[Path]) -> Iterator[FreshDebian]:
    with FreshDebian(ROOTS[system.name]) as made:
        target = made.root_here / "root/build/deb"
        target.mkdir(parents=True)
        for package in packages:
            shutil.copy(package, target)
        yield made


def start_slurm(debian: FreshDebian) -> None:
    """What the page takes for granted: a cluster that works, with a job_submit.lua of the site's own."""
    etc = debian.root_here / "etc/slurm"
    (etc / "slurm.conf").write_text(SLURM_CONF)
    (etc / "gres.conf").write_text(f"NodeName=n[1-{NODES}] Name=gpu Type=a100 File=/dev/gpu[0-3]\n")
    # by itself slurmd looks for a mounted one; 22.05 can't do without
    old = debian.must("slurmd -V").split()[1] < "23.11"
    (etc / "cgroup.conf").write_text(f"CgroupPlugin={'cgroup/v1' if old else 'disabled'}\n")
    (etc / "job_submit.lua").write_text(SITE_SCRIPT)
    debian.must("useradd --create-home mina; install -d -o munge -g munge /run/munge; mkdir /var/lib/slurm/n{1,2}")
    debian.must("systemctl start munge; systemctl start slurmctld")
    debian.must(f"for n in $(seq {NODES}); do slurmd -N n$n; done")
    wait_for(debian, "sinfo -h -o %t | grep -qx idle", "idle nodes")


def wait_for(debian: FreshDebian, script: str, what: str, timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while debian.run(script).returncode:
        assert time.monotonic() < until, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.3)


def steps(page: str) -> list[str]:
    """The shell blocks of a page in their order, without the section on pip."""
    found: list[str] = []
    for section in page.split("\n## "):
        if not section.startswith("The daemon, with pip"):
            found += re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return found


def test_an_admins_first_ten_minutes(debian: FreshDebian, capsys: pytest.CaptureFixture[str]) -> None:
    start_slurm(debian)
    blocks = steps((ROOT / "docs/admin/install.md").read_text())
    assert [block.split()[0] for block in blocks] == ["apt", "synergyctl", "synergyctl", "systemctl", "apt"]
    took_s = time.monotonic()
    told = ""
    for block in blocks:
        typed = block.replace("synergyctl init", "script -qec 'synergyctl init' /dev/null <<<y")
        told += debian.must(typed)
    took_s = time.monotonic() - took_s
    with capsys.disabled():
        print(f"\nthe steps of docs/admin/install.md took {took_s:.0f} s")
    assert "+Include synergy.conf" in told and "0 errors" in told and ", 0 missing" in told, told
    assert "does not load" not in told  # no warning about the hook
    first_job(debian)
    on_a_node(debian)


def first_job(debian: FreshDebian) -> None:
    """A wrong directive is refused, a right one is run and seen; the site's own script still holds."""
    home = debian.root_here / "home/mina"
    (home / "job.sh").write_text(JOB)
    (home / "wrong.sh").write_text(JOB.replace("min_gpus", "min_gpu"))
    (home / "train.py").write_text("import os, synergy_launch\nprint('trained', synergy_launch.__file__)\n")
    as_mina = "cd /home/mina && runuser -u mina --"
    assert "did you mean min_gpus" in debian.run(f"{as_mina} sbatch wrong.sh").stdout
    assert "the site says no" in debian.run(f"{as_mina} sbatch -J forbidden job.sh").stdout
    job = debian.must(f"{as_mina} sbatch --parsable job.sh").strip()
    wait_for(debian, f"synergyctl status | grep -q '{job} '", "the daemon to see the job")
    wait_for(debian, "grep -qs trained /home/mina/out", "the job's output")
    assert "/usr/lib/synergy-launch/" in (home / "out").read_text()


def on_a_node(debian: FreshDebian) -> None:
    """All is there but torch, which is the user's."""
    done = debian.run("cd /tmp && runuser -u mina -- srun --gres=gpu:1 synergyctl doctor --checkpoint /tmp/run7")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "missing ", "- "))]
    assert [line.split(":")[0].split()[1] for line in lines if line.startswith("missing")] == ["torch"], done.stdout
    assert len(lines) >= 9 and "synergyctl: " not in done.stdout


def older(folder: Path, version: str = "0.1.0", preinst: str = "") -> list[Path]:
    """synergyd with nothing but a version, and a synergyctl that it can depend on."""
    made = []
    for name in ("synergyctl", "synergyd"):
        root = folder / name
        (root / "DEBIAN").mkdir(parents=True)
        about = f"Package: {name}\nVersion: {version}\nArchitecture: {architecture(PACKAGES[name])}\n"
        control = f"{about}Maintainer: x <x@y.z>\nDescription: x\n"
        (root / "DEBIAN/control").write_text(control)
        if preinst:
            (root / "DEBIAN/preinst").write_text(preinst)
            (root / "DEBIAN/preinst").chmod(0o755)
        made.append(folder / f"{name}_{version}.deb")
        command = ["dpkg-deb", "--root-owner-group", "--build", str(root), str(made[-1])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return made


def test_upgraded_from_0_1_0_removed_and_purged(debian: FreshDebian, tmp_path: Path) -> None:
    start_slurm(debian)
    for package in older(tmp_path):
        shutil.copy(package, debian.root_here / "root")
    debian.must(
        "dpkg -i /root/*_0.1.0.deb; install -d -o slurm -g slurm -m755 /var/lib/synergy; : >/run/synergyd.was-active"
    )
    wants = "/etc/systemd/system/multi-user.target.wants"
    debian.must(f"mkdir -p {wants}; ln -s /lib/systemd/system/synergyd.service {wants}/")
    path, _ = database(tmp_path)
    state = debian.root_here / "var/lib/synergy"
    shutil.copy(path, state / "synergy.db")
    debian.must("chown slurm:slurm /var/lib/synergy/synergy.db")

    told = debian.must("apt install -y ./build/deb/synergyctl_*.deb ./build/deb/synergyd_*.deb")
    assert f"upgraded from revision 0005 to {schema.needed_revision()}" in told
    (copy,) = state.glob("synergy.db.0005-*")
    assert {
        debian.must(f"stat -c %U {p}").strip() for p in ("/var/lib/synergy/synergy.db", f"/var/lib/synergy/{copy.name}")
    } == {"slurm"}
    # SQLite follows links by name, which leads out of the chroot
    with closing(sqlite3.connect(shutil.copy(copy, tmp_path / "copy"))) as kept:
        assert kept.execute("SELECT version_num FROM alembic_version").fetchone() == ("0005",)
    wait_for(debian, "systemctl is-active synergyd", "the daemon that ran before")

    # the same version once more: it stops, nothing is upgraded, it starts
    debian.must("synergyctl init --yes; touch -d 2020-01-01 /etc/slurm/job_submit.lua")
    told = debian.must("dpkg -i ./build/deb/synergyd_*.deb; systemctl is-active synergyd")
    assert "already" in told and len(list(state.glob("synergy.db.0005-*"))) == 1
    assert debian.must("stat -c %Y /etc/slurm/job_submit.lua") > debian.must("date -d 2021-01-01 +%s")

    # a version that can't be installed: dpkg goes back to this one, which runs on
    broken = older(tmp_path / "broken", "9.0", "#!/bin/sh\nexit 1\n")[1]
    shutil.copy(broken, debian.root_here / "root")
    assert debian.run(f"dpkg -i /root/{broken.name}").returncode
    debian.must("systemctl is-active synergyd; test ! -e /run/synergyd.was-active")

    # a database that can't be upgraded is left alone, and dpkg goes on
    debian.must(
        "systemctl stop synergyd; mv /var/lib/synergy/synergy.db /var/lib/synergy/kept; echo no database >/var/lib/synergy/synergy.db"
    )
    told = debian.must("dpkg -i ./build/deb/synergyd_*.deb")
    assert "the database is as it was" in told and "Traceback" not in told
    # nor is one with a file of the environment that no shell reads
    debian.must("echo 'A=(' >>/etc/default/synergyd")
    assert "the database is as it was" in debian.must("dpkg -i ./build/deb/synergyd_*.deb")
    debian.must("sed -i '$d' /etc/default/synergyd")
    debian.must("mv /var/lib/synergy/kept /var/lib/synergy/synergy.db; systemctl start synergyd")

    told = debian.must("dpkg --remove synergyd synergyctl")
    assert "job_submit.lua still has Synergy's hook, which lets all jobs pass" in told
    assert debian.run("systemctl is-active synergyd").returncode == 3
    assert [path for path in files(debian) if re.search(r"/usr/.*synerg|lib/systemd/.*synerg", path)] == []
    assert (state / "synergy.db").exists() and (debian.root_here / "etc/default/synergyd").exists()
    debian.must("dpkg --purge synergyd synergyctl; dpkg --purge synergyd")
    assert not state.exists() and not (debian.root_here / "etc/default/synergyd").exists()
    assert (debian.root_here / "etc/slurm/synergy.conf").exists()  # the admin's


def files(debian: FreshDebian) -> set[str]:
    """All that stands on its disk, but for dpkg's and apt's own books, and logs."""
    left = ("/root", "/proc", "/sys", "/dev", "/run", "/var/log", "/var/cache", "/var/lib/dpkg", "/var/lib/apt")
    paths = " -o ".join(f"-path {path}" for path in left)
    return set(debian.must(f"find / \\( {paths} \\) -prune -o -print").split("\n"))


def test_installed_and_purged_twice_it_leaves_no_traces(debian: FreshDebian) -> None:
    before = files(debian)
    for _ in range(2):
        debian.must("apt install -y ./build/deb/*.deb")
        for name in ("synergyctl", "synergyd", "synergyrestd", "synergy-launch"):
            assert debian.must(f"{name} --version") == f"{name}, version {__version__}\n"
        script = (
            "source /usr/share/bash-completion/completions/synergyctl; COMP_WORDS=(synergyctl expl); COMP_CWORD=1;"
            " _synergyctl_completion synergyctl expl synergyctl; echo ${COMPREPLY[@]}"
        )
        assert debian.must(script).strip() == "explain"
        debian.must("/var/lib/dpkg/info/synergyd.postinst configure ''")  # once more
        debian.must("apt purge -y synergyd synergyctl synergy-launch")
    assert files(debian) - before == set()


@pytest.mark.skipif(shutil.which("lintian") is None, reason="lintian is not installed here")
@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_lintian_finds_no_errors(system: System, packages: list[Path], name: str) -> None:
    package = next(path for path in packages if path.name.startswith(f"{name}_"))
    command = ["lintian", "--allow-root", "--fail-on", "error", "--tag-display-limit", "0", str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if line.startswith("E:")]
    assert (done.returncode, errors) == (0, [])


def test_the_packages_are_of_this_checkout(system: System, packages: list[Path], tmp_path: Path) -> None:
    """A stale build/deb would test something else; the page, the models and the migrations are no Python modules of a package."""
    for name, built in zip(PACKAGES, packages, strict=True):
        there = tmp_path / f"{name}.built"
        subprocess.run(["dpkg-deb", "-x", str(built), str(there)], check=True)
        if name == "synergyctl":  # its libraries come from the network: only what is ours
            for folder in ("synergyd", "slurm_plugins"):
                assert content(there / system.site / folder) == content(ROOT / folder)
            continue
        fresh = tmp_path / name
        subprocess.run(["dpkg-deb", "-x", str(build(PACKAGES[name], tmp_path, 1.8e9, system)), str(fresh)], check=True)
        assert content(there) == content(fresh)


def content(folder: Path) -> dict[str, bytes]:
    """The files below a folder, but for what Python and the date of the build leave there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.name != "changelog.Debian.gz"
    }
