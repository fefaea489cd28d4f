"""The wheel, installed without extras into an empty environment: what a compute node and a user of a job gets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import pytest
from synergy_core.records import Plan
from synergy_core.wire import plan_file
from synergy_core.wire.codec import encode
from synergy_core.wire.plan_file import PlanFile

from synergyd import __version__
from synergyd.cli.shared.context import SERVER_LIBRARIES
from tests.paths import ROOT

pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]
TOP_LEVEL = {"synergy_core", "synergy_launch", "synergyd", "synergy_sim", "synergyd_migrations", "slurm_plugins"}


@dataclass(frozen=True)
class Node:
    """An environment with the wheel and what it requires, and nothing else."""

    bin: Path

    def run(self, folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """One of its programs, in `folder`, with nothing of this checkout in reach."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SLURM", "SYNERGY", "VIRTUAL_ENV"))}
        environment = {**kept, "PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(folder), **environment}
        command = [str(self.bin / words[0]), *words[1:]]
        return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)


def pip(python: Path | str, *words: str) -> None:
    # with the checkout on PYTHONPATH, pip would take its egg-info for an installed package
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run([str(python), "-m", "pip", *words], capture_output=True, text=True, timeout=400, env=clean)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools would take what an earlier build left in the checkout."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("synergyd", "launch", "sim", "sql", "slurm_plugins", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip(sys.executable, "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(source))
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def node(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Node:
    folder = tmp_path_factory.mktemp("node")
    venv.create(folder, with_pip=True)
    pip(folder / "bin" / "python", "install", "-q", str(wheel))
    return Node(folder / "bin")


def test_the_wheel_holds_six_names(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    information = f"synergy_slurm-{__version__}.dist-info"
    assert {n.partition("/")[0] for n in names} == TOP_LEVEL | {information}
    assert {"synergyd/py.typed", "synergy_launch/py.typed", "synergy_launch/bridge/launch/__init__.py"} <= set(names)
    sources = {p.relative_to(ROOT) for top in ("synergyd", "slurm_plugins") for p in (ROOT / top).rglob("*.py")}
    for folder in ("launch", "sim", "sql"):
        sources |= {p.relative_to(ROOT / folder) for p in (ROOT / folder).rglob("*.py")}
    assert {n for n in names if n.endswith(".py")} == {str(p) for p in sources}


def test_click_is_all_that_comes_with_it(node: Node, tmp_path: Path) -> None:
    listed = node.run(tmp_path, "python", "-m", "pip", "list", "--format=json", "--disable-pip-version-check")
    names = {row["name"] for row in json.loads(listed.stdout)}
    assert names - {"pip", "setuptools", "wheel"} == {"synergy-slurm", "click"}


def test_the_launcher_runs_a_script_with_its_plan_and_its_own_modules(node: Node, tmp_path: Path) -> None:
    """`launch.py` and `sql/` are names that users give their own files."""
    work = tmp_path / "work"
    (work / "sql").mkdir(parents=True)
    (work / "launch.py").write_text("WHOSE = 'my launch'\n")
    (work / "sql" / "__init__.py").write_text("WHOSE = 'my sql'\n")
    (work / "train.py").write_text(
        "import json, os, sys\nimport launch, sql\n"
        "print(json.dumps([launch.WHOSE, sql.WHOSE, sys.argv[1:], json.loads(os.environ['SYNERGY_PLAN_JSON'])]))\n"
    )
    plan = Plan(dp=1, micro_batch=2, global_batch=8)
    written = plan_file.write(PlanFile(0, plan), tmp_path / "state")
    words = ("synergy-launch", "--runner", "python", "train.py", "--lr", "it's 1e-4")
    done = node.run(work, *words, SYNERGY_PLAN=str(written))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == ["my launch", "my sql", ["--lr", "it's 1e-4"], encode(plan)]


def test_an_installed_launch_is_taken_before_the_old_names(node: Node, tmp_path: Path) -> None:
    found = node.run(tmp_path, "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    installed = Path(found.stdout.strip()) / "launch"
    installed.mkdir()
    (installed / "__init__.py").write_text("WHOSE = 'a package of another name'\n")
    (tmp_path / "train.py").write_text("import launch\nprint(launch.WHOSE)\n")
    try:
        done = node.run(tmp_path, "synergy-launch", "--runner", "python", "train.py")
    finally:
        shutil.rmtree(installed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a package of another name\n", "")


def test_importing_the_launcher_loads_click_and_the_standard_library(node: Node, tmp_path: Path) -> None:
    program = (
        "import sys\nbefore = set(sys.modules)\nimport synergy_launch.launcher.command\n"
        "from synergy_core import records, errors, rates\nfrom synergyd.records import ModelSpec\n"
        "from synergy_core.wire import report, plan_file, munge\n"
        "loaded = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(*sorted(loaded - sys.stdlib_module_names))\n"
    )
    done = node.run(tmp_path, "python", "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == {"click", "synergy_core", "synergyd", "synergy_launch"}


@pytest.mark.parametrize(
    "command", ["synergyctl status", "synergyctl plan --help", "synergyctl config check", "synergyd --once"]
)
def test_the_servers_programs_say_in_one_line_what_they_need(node: Node, tmp_path: Path, command: str) -> None:
    name, *words = command.split()
    done = node.run(tmp_path, name, *words)
    expected = f"{name} needs the server part: pip install 'synergy-slurm[server]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


@pytest.mark.parametrize("name", ["synergyctl", "synergyd", "synergy-launch"])
def test_help_and_version_need_nothing(node: Node, tmp_path: Path, name: str) -> None:
    version = node.run(tmp_path, name, "--version")
    assert (version.returncode, version.stdout, version.stderr) == (0, f"{name}, version {__version__}\n", "")
    shown = node.run(tmp_path, name, "--help")
    assert (shown.returncode, shown.stderr) == (0, "") and shown.stdout.startswith("Usage: ")


def test_the_server_part_is_what_the_line_speaks_of() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wanted = {line.partition(">=")[0] for line in setup["options.extras_require"]["server"].split()}
    assert {name.replace("-", "_") for name in wanted} == SERVER_LIBRARIES
    assert setup["options"]["install_requires"].split() == ["click>=8.1"]
