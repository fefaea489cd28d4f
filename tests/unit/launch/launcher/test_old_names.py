"""Scripts of release 0.1.0 under synergy-launch: `launch` is the user's own where there is one, else the old names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from synergy_launch.launcher import node_run

from tests.paths import SOURCES

WARNING = "synergy: DeprecationWarning: `launch` is called `synergy_launch` since release 0.2.0: the name `launch` ends with 0.3.0\n"


def launched(script: Path, *paths: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The script under synergy-launch, without torchrun; `paths` are searched as site-packages are: last of all."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_")) and k != "RANK"}
    environment |= {"PYTHONPATH": os.pathsep.join(SOURCES), "SITE": os.pathsep.join(map(str, paths)), **more}
    command = [sys.executable, "-P", "-m", "synergy_launch.launcher.command", "--runner", "python", str(script)]
    return subprocess.run(command, env=environment, cwd=script.parent, capture_output=True, text=True, timeout=60)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder / "train.py"


def site(tmp_path: Path) -> Path:
    """A folder that a script adds to the end of sys.path, as `site` does with site-packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


LAST = "import os, sys\nsys.path.append(os.environ['SITE'])\n"


def test_the_folder_comes_last_and_once() -> None:
    bridge = str(node_run.BRIDGE)
    assert node_run.python_path({}) == {"PYTHONPATH": bridge}
    assert node_run.python_path({"PYTHONPATH": "/a:"}) == {"PYTHONPATH": f"/a::{bridge}"}
    assert node_run.python_path({"PYTHONPATH": f"/a:{bridge}"}) == {"PYTHONPATH": f"/a:{bridge}"}


def test_a_module_beside_the_script_is_the_one(script: Path) -> None:
    (script.parent / "launch.py").write_text("SynergyTask = 'my own'\n")
    script.write_text("from launch import SynergyTask\nprint(SynergyTask)\n")
    done = launched(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "my own\n", "")


def test_an_installed_package_is_the_one(script: Path, tmp_path: Path) -> None:
    package = site(tmp_path) / "launch"
    package.mkdir()
    (package / "__init__.py").write_text("SynergyTask = 'installed'\n")
    (package / "huggingface.py").write_text("SynergyCallback = 'installed too'\n")
    lines = "import launch\nfrom launch import SynergyTask\nfrom launch.huggingface import SynergyCallback\n"
    script.write_text(f"{LAST}{lines}print(SynergyTask, SynergyCallback, launch.__file__)\n")
    done = launched(script, package.parent)
    expected = f"installed installed too {package / '__init__.py'}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_an_installed_package_that_fails_says_so_itself(script: Path, tmp_path: Path) -> None:
    (site(tmp_path) / "launch.py").write_text("raise ImportError('no robot here')\n")
    script.write_text(
        f"{LAST}try:\n    import launch\nexcept ImportError as e:\n    print(e, 'launch' in sys.modules)\n"
    )
    done = launched(script, tmp_path / "site")
    assert (done.returncode, done.stdout, done.stderr) == (0, "no robot here False\n", "")


@pytest.mark.training
def test_a_folder_of_the_users_own_keeps_its_modules_beside_the_old_names(script: Path) -> None:
    folder = script.parent / "launch"
    folder.mkdir()
    (folder / "mine.py").write_text("HERE = 'mine'\n")
    script.write_text(
        "from launch import SynergyTask\nfrom launch.mine import HERE\nprint(HERE, SynergyTask.__module__)\n"
    )
    done = launched(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine synergy_launch.pytorch.training\n", WARNING)


@pytest.mark.training
@pytest.mark.parametrize(("rank", "told"), [("0", WARNING), ("1", "")])
def test_old_names_serve_where_there_is_no_other(script: Path, rank: str, told: str) -> None:
    (script.parent / "transformers.py").write_text("TrainerCallback = object\n")
    script.write_text(
        "from launch import SynergyTask\nfrom launch.huggingface import SynergyCallback, apply_plan, resume_from\n"
        "import synergy_launch, synergy_launch.huggingface as new\n"
        "print(SynergyTask is synergy_launch.SynergyTask, SynergyCallback is new.SynergyCallback, apply_plan, resume_from)\n"
    )
    done = launched(script, RANK=rank)
    assert (done.returncode, done.stderr) == (0, told)
    assert done.stdout.startswith("True True <function apply_plan")


def test_looking_whether_there_is_a_launch_warns_of_nothing(script: Path) -> None:
    script.write_text("import launch\nprint(hasattr(launch, 'LaunchDescription'))\n")
    done = launched(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_a_bridge_of_another_install_is_passed_by(script: Path, tmp_path: Path) -> None:
    other = tmp_path / "venv" / "synergy_launch" / "bridge"
    other.parent.mkdir(parents=True)
    other.symlink_to(node_run.BRIDGE)
    copy = tmp_path / "second" / "synergy_launch" / "bridge" / "launch"
    copy.mkdir(parents=True)
    for file in (node_run.BRIDGE / "launch").glob("*.py"):
        (copy / file.name).write_text(file.read_text())
    paths = os.pathsep.join((*SOURCES, str(other), str(copy.parent)))
    script.write_text("import launch\nprint(launch.__doc__[:8])\n")
    done = launched(script, PYTHONPATH=paths)
    assert (done.returncode, done.stdout, done.stderr) == (0, "`launch`\n"[:8] + "\n", "")
