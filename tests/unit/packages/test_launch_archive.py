"""The launcher as one file runs in a Python that has nothing of ours, wherever it lies."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from packages.launch_archive import build

TOLD = "import synergy_launch, sys; print(synergy_launch.__file__, *sys.argv[1:])"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive beside a script that imports it."""
    folder = tmp_path_factory.mktemp("archive")
    build(folder / "synergy-launch.pyz")
    (folder / "script.py").write_text(TOLD)
    (folder / "link.pyz").symlink_to("synergy-launch.pyz")
    return folder


def launched(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """In this Python without its packages; `words`: the archive's name, and what follows it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_", "PYTHON"))}
    own = [str(Path(sys.executable).resolve()), "-S"]
    return subprocess.run([*own, *words], cwd=folder, env=clean | more, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["synergy-launch.pyz", "./synergy-launch.pyz", "link.pyz"])
def test_the_script_imports_what_the_archive_holds(folder: Path, name: str) -> None:
    done = launched(folder, name, "--runner", "python", "script.py", "a b")
    assert done.stdout == f"{folder.resolve()}/synergy-launch.pyz/synergy_launch/__init__.py a b\n", done.stderr


@pytest.mark.slow
def test_without_srun_a_step_of_the_wrong_size_is_one_line(folder: Path) -> None:
    """In a container there is no Slurm to start another one."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "4", "PATH": str(folder)}
    done = launched(folder, "synergy-launch.pyz", "script.py", **job)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "srun" in done.stderr and "-N 1 -n 1" in done.stderr


def test_it_holds_python_alone_and_is_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    build(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == (folder / "synergy-launch.pyz").read_bytes()
    names = zipfile.ZipFile(tmp_path / "again.pyz").namelist()
    assert {Path(n).suffix for n in names} <= {".py", ".typed"}
    assert {n.partition("/")[0] for n in names} == {
        "__main__.py",
        "click",
        "synergy_core",
        "synergy_launch",
        "synergyd",
    }
    assert (tmp_path / "again.pyz").stat().st_mode & 0o777 == 0o755
