"""Builds the Debian packages: synergy-launch (compute nodes), synergyctl (login nodes), synergyd (the host of slurmctld).

    python -m deb.build [--out build/deb] [--only synergy-launch,synergyd]

synergyctl holds the server part with its libraries in /usr/lib/synergy, a virtual environment on Debian's Python: bookworm has
SQLAlchemy 1.4, numpy 1.24 and no HiGHS, all older than what setup.cfg asks for. The libraries' versions are requirements-dev.txt's.
"""

from __future__ import annotations

import argparse
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
from email.utils import formatdate
from importlib.metadata import Distribution, distributions
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from synergyd import __version__

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "deb"
PREFIX = Path("usr/lib/synergy")  # the virtual environment
LAUNCH = Path("usr/lib/synergy-launch")
SITE = PREFIX / "lib/python3.11/site-packages"  # bookworm's Python
PYTHON = "3.11"
# numpy, scipy and HiGHS are built for glibc 2.27 and 2.28; bookworm has 2.36
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
# Whoever builds them names himself, as for dch. `invalid` is nobody's (RFC 2606); lintian takes no localhost and no root@.
NOBODY = ("Synergy developers", "synergy@synergy.invalid")
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


@dataclass(frozen=True, kw_only=True)
class Package:
    """One binary package; `fill` puts its files below the folder that it is given."""

    name: str
    programs: tuple[str, ...]
    architecture: str
    control: str  # the lines of its dependencies
    summary: str
    description: str
    fill: Callable[[Path], None]


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


def fill_launch(root: Path) -> None:
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


def fill_ctl(root: Path) -> None:
    """Install the virtual environment and synergyctl."""
    with tempfile.TemporaryDirectory() as folder:
        pip("wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, str(source_copy(Path(folder))))
        (wheel,) = Path(folder).glob("*.whl")
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        options = ["--no-compile", "--only-binary", ":all:", "--python-version", PYTHON, *platforms]
        wanted = f"synergy-slurm[rest,postgresql] @ {wheel.as_uri()}"
        pip("install", "-q", "-c", str(ROOT / "requirements-dev.txt"), *options, "--target", str(root / SITE), wanted)
    shutil.rmtree(root / SITE / "bin", ignore_errors=True)  # for the builder's Python
    for tests in list((root / SITE).glob("*/**/tests")):  # half of scipy's and numpy's size, and never imported
        shutil.rmtree(tests, ignore_errors=True)
    (root / PREFIX / "bin").mkdir()
    (root / PREFIX / "bin/python3").symlink_to(f"/usr/bin/python{PYTHON}")
    write(root / PREFIX / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n")
    write(root / "usr/bin/synergyctl", program("synergyctl"), 0o755)
    put(HERE / "synergyctl.lintian-overrides", root / "usr/share/lintian/overrides/synergyctl")


def fill_daemon(root: Path) -> None:
    """Install units, settings and the files for Slurm."""
    for name in ("synergyd", "synergyrestd"):
        write(root / f"usr/bin/{name}", program(name), 0o755)
        unit = (ROOT / "slurm_plugins" / f"{name}.service").read_text()
        first, _, rest = unit.partition("\n")  # says where to install it by hand
        text = f"{first.partition('. Install')[0]}.\n{rest}".replace("/usr/local/bin/", "/usr/bin/")
        write(root / f"lib/systemd/system/{name}.service", text)
    for source in sorted((ROOT / "slurm_plugins").iterdir()):
        if source.suffix in (".lua", ".conf", ".yml", ".json"):
            put(source, root / "usr/share/synergy" / source.name)
    put(HERE / "synergyd.sysusers", root / "usr/lib/sysusers.d/synergyd.conf")
    put(HERE / "synergyd.default", root / "etc/default/synergyd")
    for page in sorted((ROOT / "docs/admin").glob("*.md")):
        put(page, root / "usr/share/doc/synergyd/admin" / page.name)


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
        sys.exit(f"deb.build: {' '.join(words[:2])} failed: see above")


PACKAGES = {
    package.name: package
    for package in (
        Package(
            name="synergy-launch",
            programs=("synergy-launch",),
            architecture="all",
            control=f"Depends: python3 (>= {PYTHON})\nRecommends: libmunge2, slurm-client, synergyctl\n",
            summary="run a training script with the plan that Synergy chose",
            description="For compute nodes: runs torchrun in a job with the degrees, batch and\n"
            "GPUs that synergyd chose. It runs in the Python that the job's PATH names,\nand torch is the user's.",
            fill=fill_launch,
        ),
        Package(
            name="synergyctl",
            programs=("synergyctl",),
            architecture="amd64",
            control=f"Depends: python3 (>= {PYTHON}), python3 (<< 3.12), libc6 (>= 2.28), libstdc++6 (>= 12), libgcc-s1, zlib1g\n"
            "Recommends: libmunge2, slurm-client\n",
            summary="see and steer what Synergy does with the jobs of a Slurm cluster",
            description="For login nodes: users see and steer their jobs through the REST service\n"
            "of synergyd, and plan and simulate without one. Its libraries are its own,\nin /usr/lib/synergy.",
            fill=fill_ctl,
        ),
        Package(
            name="synergyd",
            programs=("synergyd", "synergyrestd"),
            architecture="all",
            control="Pre-Depends: init-system-helpers (>= 1.54~)\n"
            f"Depends: synergyctl (= {__version__}), systemd | systemd-standalone-sysusers, slurm-client, libmunge2\n"
            "Recommends: slurmctld, munge\nSuggests: postgresql, prometheus, grafana\n",
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


def add_common(package: Package, root: Path, date_s: float) -> None:
    """Add man pages, completion, changelog and copyright."""
    for name, command in commands(package.programs).items():
        page = (ROOT / "docs/man" / f"{name}.1").read_bytes()
        compressed(root / f"usr/share/man/man1/{name}.1.gz", page)
        variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
        for shell, target in (
            ("bash", f"bash-completion/completions/{name}"),
            ("zsh", f"zsh/vendor-completions/_{name}"),
        ):
            kind = get_completion_class(shell)
            assert kind is not None
            write(root / "usr/share" / target, kind(command, {}, name, variable).source())
    docs = root / "usr/share/doc" / package.name
    entry = (
        f"synergy-slurm ({__version__}) stable; urgency=medium\n\n  * See changelog.gz.\n\n"
        f" -- {maintainer()}  {formatdate(date_s)}\n"
    )
    docs.mkdir(parents=True, exist_ok=True)
    compressed(docs / "changelog.Debian.gz", entry.encode())
    compressed(docs / "changelog.gz", (ROOT / "CHANGELOG.md").read_bytes())
    write(docs / "copyright", copyright_text(package, root))


def copyright_text(package: Package, root: Path) -> str:
    """Return our copyright, and what each library in the package says of itself."""
    text = (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: synergy-slurm\n\n"
        "Files: *\nCopyright: 2026 the authors of Synergy\nLicense: Apache-2.0\n"
        " On Debian systems the licence stands in /usr/share/common-licenses/Apache-2.0.\n"
    )
    found: list[tuple[str, Distribution]] = []
    if package.name == "synergyctl":
        found = [(f"/{SITE}", one) for one in distributions(path=[str(root / SITE)])]
    elif package.name == "synergy-launch":
        found = [(f"/{LAUNCH}/click", Distribution.from_name("click"))]
    for place, library in sorted(found, key=lambda one: one[1].name.lower()):
        if library.name == "synergy-slurm":
            continue
        about = library.metadata
        said = {name: about[name] for name in ("License-Expression", "License", "Author") if name in about}
        named = said.get("License-Expression") or said.get("License") or "see below"
        title = named.splitlines()[0][:60] if named else "see below"
        where = f"/{SITE}" if package.name == "synergyctl" else "the wheel of click"
        name = library.name.replace("-", "_")
        text += (
            f"\nFiles: {place}/{name}*\nCopyright: {said.get('Author') or 'its authors'}\nLicense: {library.name}\n"
            f" {title}\n .\n Its text stands in {where}/{name}-{library.version}.dist-info.\n"
        )
    return text


def conffiles(root: Path) -> str:
    return "".join(f"/{p.relative_to(root)}\n" for p in sorted(root.glob("etc/**/*")) if p.is_file())


def build(package: Package, out: Path, date_s: float) -> Path:
    """Build the .deb in `out`. The same sources give the same bytes."""
    with tempfile.TemporaryDirectory(prefix="synergy-deb-") as folder:
        root = Path(folder) / package.name
        root.mkdir(mode=0o755)
        package.fill(root)
        add_common(package, root, date_s)
        size_kib = sum(p.lstat().st_size for p in root.rglob("*")) // 1024
        lines = package.description.split("\n")
        write(
            root / "DEBIAN/control",
            f"Package: {package.name}\nSource: synergy-slurm\nVersion: {__version__}\nSection: admin\nPriority: optional\n"
            f"Architecture: {package.architecture}\nMaintainer: {maintainer()}\nInstalled-Size: {size_kib}\n{package.control}"
            f"Description: {package.summary}\n" + "".join(f" {line}\n" for line in lines),
        )
        if text := conffiles(root):
            write(root / "DEBIAN/conffiles", text)
        for name in SCRIPTS:
            if (HERE / f"{package.name}.{name}").exists():
                put(HERE / f"{package.name}.{name}", root / "DEBIAN" / name, 0o755)
        for path in (root, *root.rglob("*")):
            if not path.is_symlink():
                executable = path.is_dir() or (
                    path.stat().st_mode & 0o100 and ".so" not in path.name and path.suffix != ".py"
                )
                path.chmod(0o755 if executable else 0o644)
                os.utime(path, (date_s, date_s))
        target = out / f"{package.name}_{__version__}_{package.architecture}.deb"
        out.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(int(date_s))}
        # xz at its fastest: a fifth of the time, a tenth more bytes
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", str(root), str(target)]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return target


def maintainer() -> str:
    """Return DEBFULLNAME <DEBEMAIL>. Exits where they would spoil the control file."""
    name, address = (os.environ.get(key) or NOBODY[i] for i, key in enumerate(("DEBFULLNAME", "DEBEMAIL")))
    if not re.fullmatch(r"[^<>,@\s]+@[^<>,@\s]+", address) or not name.isprintable() or set(name) & set("<>,@"):
        sys.exit("deb.build: DEBFULLNAME or DEBEMAIL is not right; give a name, and an address as x@example.org alone")
    return f"{name} <{address}>"


def source_date_s() -> float:
    """Return the time of the last commit, or SOURCE_DATE_EPOCH; now where neither is known."""
    if given := os.environ.get("SOURCE_DATE_EPOCH", ""):
        return float(given)
    log = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True)
    return float(log.stdout) if log.returncode == 0 and log.stdout.strip() else time.time()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deb.build", description="Builds the Debian packages.")
    parser.add_argument("--out", type=Path, default=ROOT / "build/deb")
    parser.add_argument("--only", default=",".join(PACKAGES), help="names with commas between")
    given = parser.parse_args()
    names = given.only.split(",")
    if wrong := [name for name in names if name not in PACKAGES]:
        parser.error(f"--only {wrong[0]}: no such package; there are {', '.join(PACKAGES)}")
    if shutil.which("dpkg-deb") is None:
        parser.error("dpkg-deb is missing: build on a Debian machine")
    os.umask(0o022)
    for name in names:
        print(build(PACKAGES[name], given.out, source_date_s()))


if __name__ == "__main__":
    main()
