"""Rooms import only what the ground plan lets them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER = (
    "synergyd.sim",
    "synergyd.store",
    "synergyd.slurm",
    "synergyd.daemon",
    "synergyd.cli",
    "synergyd.task",
    "synergyd.scheduler",
)
HEAVY = ("sqlalchemy", "alembic", "scipy", "rich", "prometheus_client", "jinja2", "numpy", "torch")
PURE = ("time", "datetime", "subprocess", "socket", "threading", "random", "os", "signal", "sqlalchemy")


def imports(path: Path) -> set[str]:
    """Every module named in the file, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or "", *(f"{node.module}.{a.name}" for a in node.names)}
    return found


def offending(folder: str, forbidden: tuple[str, ...]) -> list[str]:
    files = sorted(ROOT.glob(folder))
    assert files, folder
    return [
        f"{f.relative_to(ROOT)} imports {name}"
        for f in files
        for name in sorted(imports(f))
        if any(name == x or name.startswith(x + ".") for x in forbidden)
    ]


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("synergyd/records.py", ("synergyd", "launch", *PURE, *HEAVY)),
        ("synergyd/errors.py", ("synergyd", "launch", *PURE, *HEAVY)),
        ("synergyd/rates.py", (*SERVER, "launch", *PURE, *HEAVY)),
        ("synergyd/lifecycle.py", (*SERVER, "launch", *PURE, *HEAVY)),
        (
            "synergyd/task/*.py",
            (
                "synergyd.store",
                "synergyd.slurm",
                "synergyd.daemon",
                "synergyd.cli",
                "synergyd.scheduler",
                "synergyd.sim",
                *PURE,
            ),
        ),
        (
            "synergyd/scheduler/*.py",
            ("synergyd.store", "synergyd.slurm", "synergyd.daemon", "synergyd.cli", "synergyd.sim", "launch", *PURE),
        ),
        (
            "synergyd/slurm/*.py",
            (
                "synergyd.store",
                "synergyd.daemon",
                "synergyd.cli",
                "synergyd.scheduler",
                "synergyd.task",
                "synergyd.sim",
            ),
        ),
        (
            "synergyd/store/*.py",
            (
                "synergyd.slurm",
                "synergyd.daemon",
                "synergyd.cli",
                "synergyd.scheduler",
                "synergyd.task",
                "synergyd.sim",
            ),
        ),
        # time is simulated; only perf_counter is asked, of how long a decision took
        (
            "synergyd/sim/**/*.py",
            (
                *("synergyd.store", "synergyd.slurm", "synergyd.daemon", "synergyd.cli", "launch"),
                *("subprocess", "socket", "threading", "signal", "sqlalchemy", "rich", "matplotlib"),
            ),
        ),
        ("synergyd/daemon/*.py", ("synergyd.cli", "synergyd.sim", "sqlalchemy", "scipy", "rich")),
        ("launch/*.py", SERVER),
        ("launch/examples/*.py", SERVER),
    ],
)
def test_rooms(folder: str, forbidden: tuple[str, ...]) -> None:
    assert offending(folder, forbidden) == []


def test_launching_loads_nothing_of_the_servers() -> None:
    """In a process of its own: on a compute node only click is installed beside the training's own packages."""
    light = [f"launch.{p.stem}" for p in sorted((ROOT / "launch").glob("*.py"))
             if not any(i.partition(".")[0] in ("torch", "megatron") for i in imports(p)) and p.stem != "__init__"]  # fmt: skip
    assert {"launch.launcher", "launch.agent", "launch.script", "launch.handover"} <= set(light)
    program = (
        f"import sys, importlib\nimport launch\nfor m in {light!r}: importlib.import_module(m)\n"
        f"bad = [m for m in sys.modules for x in {(*SERVER, *HEAVY)!r} if m == x or m.startswith(x + '.')]\n"
        "sys.exit(', '.join(sorted(bad)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
