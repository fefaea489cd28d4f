"""What each package holds, for every system that there are packages for: `python -m packages.deb`, `python -m packages.rpm`.

synergyctl holds the server part with its libraries in /usr/lib/synergy, a virtual environment on the system's Python: bookworm has
SQLAlchemy 1.4, numpy 1.24 and no HiGHS, all older than what setup.cfg asks for. The libraries' versions are requirements-dev.txt's.
"""

from __future__ import annotations

import gzip
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import get_completion_class

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "packages"
PREFIX = Path("usr/lib/synergy")  # the virtual environment
LAUNCH = Path("usr/lib/synergy-launch")
# numpy, scipy and HiGHS are built for glibc 2.27 and 2.28; EL 9 has 2.34, bookworm 2.36
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# Whoever builds them names himself, as for dch. `invalid` is nobody's (RFC 2606); lintian takes no localhost and no root@.
NOBODY = ("Synergy developers", "synergy@synergy.invalid")


@dataclass(frozen=True, kw_only=True)
class System:
    """A system to build for: its Python, and where its files differ from another's."""

    name: str
    python: str
    #: behind the version, so that the package of the next release of the system is newer
    suffix: str = ""
    units: str = "lib/systemd/system"
    environment: str = "etc/default/synergyd"
    #: of the user slurm, where there is none yet
    slurm_uid: str = "64030"

    @property
    def site(self) -> Path:
        """The folder of the libraries."""
        return PREFIX / f"lib/python{self.python}/site-packages"

    @property
    def next_python(self) -> str:
        """The first version of Python for which the libraries are not built."""
        major, _, minor = self.python.partition(".")
        return f"{major}.{int(minor) + 1}"


SYSTEMS = {
    system.name: system
    for system in (
        System(name="debian12", python="3.11"),
        System(name="debian13", python="3.13", suffix="+deb13"),
        System(
            name="el9",
            python="3.11",
            units="usr/lib/systemd/system",
            environment="etc/sysconfig/synergyd",
            slurm_uid="-",
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Package:
    """One binary package; `fill` puts its files below the folder that it is given."""

    name: str
    programs: tuple[str, ...]
    summary: str
    description: str
    fill: Callable[[Path, System], None]


def put(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def write(target: Path, text: str, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    target.chmod(mode)


def compressed(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(content, 9, mtime=0))


def copy_python(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"), dirs_exist_ok=True)


# -- what each package holds ---------------------------------------------------------------------------------------------


def fill_launch(root: Path, _system: System) -> None:
    """Install the launcher for whatever Python a job's PATH names: torch is the user's."""
    library = root / LAUNCH
    copy_python(ROOT / "launch" / "synergy_launch", library / "synergy_launch")
    copy_python(ROOT / "launch" / "synergy_core", library / "synergy_core")
    for name in ("__init__.py", "records.py"):  # what scripts of 0.2 imported
        put(ROOT / "synergyd" / name, library / "synergyd" / name)
    # apart from the rest: the user's own click goes before it
    copy_python(Path(click.__file__).parent, library / "click" / "click")
    put(HERE / "synergy_launch_entry.py", library / "synergy-launch")
    put(HERE / "synergy-launch.sh", root / "usr/bin/synergy-launch", 0o755)


def fill_ctl(root: Path, system: System) -> None:
    """Install the virtual environment and synergyctl."""
    site = root / system.site
    with tempfile.TemporaryDirectory() as folder:
        pip("wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, str(source_copy(Path(folder))))
        (wheel,) = Path(folder).glob("*.whl")
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        options = ["--no-compile", "--only-binary", ":all:", "--python-version", system.python, *platforms]
        wanted = f"synergy-slurm[rest,postgresql] @ {wheel.as_uri()}"
        pip("install", "-q", "-c", str(ROOT / "requirements-dev.txt"), *options, "--target", str(site), wanted)
    shutil.rmtree(site / "bin", ignore_errors=True)  # for the builder's Python
    for tests in list(site.glob("*/**/tests")):  # half of scipy's and numpy's size, and never imported
        shutil.rmtree(tests, ignore_errors=True)
    (root / PREFIX / "bin").mkdir()
    (root / PREFIX / "bin/python3").symlink_to(f"/usr/bin/python{system.python}")
    about = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {system.python}\n"
    write(root / PREFIX / "pyvenv.cfg", about)
    write(root / "usr/bin/synergyctl", program("synergyctl"), 0o755)


def fill_daemon(root: Path, system: System) -> None:
    """Install units, settings and the files for Slurm."""
    for name in ("synergyd", "synergyrestd"):
        write(root / f"usr/bin/{name}", program(name), 0o755)
        unit = (ROOT / "slurm_plugins" / f"{name}.service").read_text()
        first, _, rest = unit.partition("\n")  # says where to install it by hand
        text = f"{first.partition('. Install')[0]}.\n{rest}".replace("/usr/local/bin/", "/usr/bin/")
        text = text.replace("/etc/default/synergyd", f"/{system.environment}")
        write(root / f"{system.units}/{name}.service", text)
    for source in sorted((ROOT / "slurm_plugins").iterdir()):
        if source.suffix in (".lua", ".conf", ".yml", ".json"):
            put(source, root / "usr/share/synergy" / source.name)
    users = (HERE / "synergyd.sysusers").read_text().replace("64030", system.slurm_uid)
    write(root / "usr/lib/sysusers.d/synergyd.conf", users)
    put(HERE / "synergyd.default", root / system.environment)
    for page in sorted((ROOT / "docs/admin").glob("*.md")):
        put(page, root / "usr/share/doc/synergyd/admin" / page.name)
    page_of_settings = (ROOT / "docs/man/synergy.conf.5").read_bytes()
    compressed(root / "usr/share/man/man5/synergy.conf.5.gz", page_of_settings)


def program(name: str) -> str:
    """Return a start script. -I: neither PYTHONPATH nor packages in the caller's home are seen."""
    return f'#!/bin/sh\nexec /{PREFIX}/bin/python3 -I -m synergyd.cli.{name} "$@"\n'


def source_copy(folder: Path) -> Path:
    """Copy what the wheel is made of: setuptools would take what an earlier build left in the checkout."""
    target = folder / "source"
    target.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for name in ("synergyd", "launch", "sim", "sql", "slurm_plugins"):
        copy_python(ROOT / name, target / name)
    return target


def pip(*words: str) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    if subprocess.run(command, env=clean, check=False).returncode:
        sys.exit(f"packages: {' '.join(words[:2])} failed: see above")


PACKAGES = {
    package.name: package
    for package in (
        Package(
            name="synergy-launch",
            programs=("synergy-launch",),
            summary="run a training script with the plan that Synergy chose",
            description="For compute nodes: runs torchrun in a job with the degrees, batch and\n"
            "GPUs that synergyd chose. It runs in the Python that the job's PATH names,\nand torch is the user's.",
            fill=fill_launch,
        ),
        Package(
            name="synergyctl",
            programs=("synergyctl",),
            summary="see and steer what Synergy does with the jobs of a Slurm cluster",
            description="For login nodes: users see and steer their jobs through the REST service\n"
            "of synergyd, and plan and simulate without one. Its libraries are its own,\nin /usr/lib/synergy.",
            fill=fill_ctl,
        ),
        Package(
            name="synergyd",
            programs=("synergyd", "synergyrestd"),
            summary="goodput-driven scheduling of large-model training on Slurm",
            description="For the host of slurmctld: the daemon decides each epoch how many GPUs\n"
            "every #SYNERGY job gets, and with which plan, and resizes jobs through\n"
            "Slurm. Its REST service lets users see and steer their jobs. Neither is\nstarted before the admin enables it.",
            fill=fill_daemon,
        ),
    )
}


# -- what all packages have ----------------------------------------------------------------------------------------------


def commands(names: Iterable[str]) -> dict[str, click.Command]:
    """Return the click command of each program."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"]["console_scripts"].split("\n")
    modules = {line.split(" = ")[0]: line.split(" = ")[1].partition(":")[0] for line in lines if line}
    found = {}
    for name in names:
        members = vars(importlib.import_module(modules[name])).values()
        found[name] = next(value for value in members if isinstance(value, click.Command))
    return found


def add_programs(package: Package, root: Path) -> None:
    """Add man pages, one a program and one a verb, and completion."""
    for name, command in commands(package.programs).items():
        for page in (ROOT / "docs/man").glob("*.1"):
            if page.stem == name or (name == "synergyctl" and page.stem.startswith("synergyctl-")):
                compressed(root / f"usr/share/man/man1/{page.name}.gz", page.read_bytes())
        variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
        for shell, target in (
            ("bash", f"bash-completion/completions/{name}"),
            ("zsh", f"zsh/vendor-completions/_{name}"),
        ):
            kind = get_completion_class(shell)
            assert kind is not None
            write(root / "usr/share" / target, kind(command, {}, name, variable).source())


def settle(root: Path, date_s: float) -> None:
    """Give one mode and one time for all files: the same sources give the same bytes."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or (
                path.stat().st_mode & 0o100 and ".so" not in path.name and path.suffix != ".py"
            )
            path.chmod(0o755 if executable else 0o644)
            os.utime(path, (date_s, date_s))


def maintainer() -> str:
    """Return DEBFULLNAME <DEBEMAIL>. Exits where they would spoil the control file."""
    name, address = (os.environ.get(key) or NOBODY[i] for i, key in enumerate(("DEBFULLNAME", "DEBEMAIL")))
    if not re.fullmatch(r"[^<>,@\s]+@[^<>,@\s]+", address) or not name.isprintable() or set(name) & set("<>,@"):
        sys.exit("packages: DEBFULLNAME or DEBEMAIL is not right; give a name, and an address as x@example.org alone")
    return f"{name} <{address}>"


def source_date_s() -> float:
    """Return the time of the last commit, or SOURCE_DATE_EPOCH; now where neither is known."""
    if given := os.environ.get("SOURCE_DATE_EPOCH", ""):
        return float(given)
    log = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True)
    return float(log.stdout) if log.returncode == 0 and log.stdout.strip() else time.time()
