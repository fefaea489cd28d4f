"""The house: which folder may import which. A row a folder, each naming only rows above it: data flows one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {
    "synergy_core": ROOT / "launch",
    "synergy_launch": ROOT / "launch",
    "synergyd": ROOT,
    "synergyd_migrations": ROOT / "sql",
    "synergy_sim": ROOT / "sim",
}

BASE = "synergy_core synergyd.settings"
MODELS = "synergyd.jobmodel.model synergyd.jobmodel.fit synergyd.jobmodel"
PROBLEM = "synergyd.scheduler.problem"
PLACEMENT = f"{PROBLEM} synergyd.scheduler.placement"
SOLVER = f"{PLACEMENT} synergyd.scheduler.solver"
ALLOCATION = f"{SOLVER} synergyd.scheduler"
CONTROL = "synergyd.control.resize synergyd.control.state synergyd.control"
SLURM = "synergyd.slurm.parsed synergyd.slurm.directives synergyd.slurm"
PORTS = "synergyd.daemon.ports synergyd.daemon.notices synergyd.daemon.links"
LAUNCHING = "synergy_core synergy_core.wire synergy_launch.agent synergy_launch.warm_start synergy_launch.megatron_lm"
# A folder, and the rows above it that it may import.
ROWS: tuple[tuple[str, str], ...] = (
    ("synergy_core", ""),
    ("synergy_core.wire", "synergy_core"),
    # what runs inside jobs: of ours only what needs the standard library alone
    ("synergy_launch.batch", "synergy_core"),
    ("synergy_launch.agent", "synergy_core synergy_core.wire synergy_launch.batch"),
    ("synergy_launch.warm_start", "synergy_launch.agent"),
    ("synergy_launch.megatron_lm", "synergy_core synergy_core.wire synergy_launch.agent synergy_launch.warm_start"),
    ("synergy_launch.launcher.gpus", "synergy_core"),
    (
        "synergy_launch.node_check",
        "synergy_core synergy_core.wire synergy_launch.warm_start synergy_launch.launcher.gpus",
    ),
    ("synergy_launch.launcher.script", "synergy_core synergy_launch.megatron_lm synergy_launch.warm_start"),
    ("synergy_launch.launcher.job", "synergy_core synergy_core.wire synergy_launch.agent"),
    ("synergy_launch.launcher.group", "synergy_core synergy_core.wire synergy_launch.launcher.job"),
    ("synergy_launch.launcher.commands", f"{LAUNCHING} synergy_launch.launcher.job synergy_launch.launcher.group"),
    (
        "synergy_launch.launcher.memory",
        "synergy_core synergy_core.wire synergy_launch.agent synergy_launch.launcher.job synergy_launch.launcher.group",
    ),
    (
        "synergy_launch.launcher.failures",
        f"{LAUNCHING} synergy_launch.launcher.gpus synergy_launch.node_check "
        "synergy_launch.launcher.script synergy_launch.launcher.job synergy_launch.launcher.commands synergy_launch.launcher.group",
    ),
    (
        "synergy_launch.launcher",
        f"{LAUNCHING} synergy_launch.batch synergy_launch.launcher.gpus synergy_launch.node_check synergy_launch.launcher.script "
        "synergy_launch.launcher.job synergy_launch.launcher.commands synergy_launch.launcher.group synergy_launch.launcher.memory "
        "synergy_launch.launcher.failures",
    ),
    ("synergy_launch.links", "synergy_core synergy_core.wire"),
    ("synergy_launch.communication", "synergy_core synergy_launch.batch synergy_launch.links"),
    (
        "synergy_launch.pytorch",
        "synergy_core synergy_launch.batch synergy_launch.agent synergy_launch.links synergy_launch.communication",
    ),
    (
        "synergy_launch.megatron_core",
        "synergy_core synergy_launch.batch synergy_launch.agent synergy_launch.megatron_lm "
        "synergy_launch.links synergy_launch.pytorch",
    ),
    ("synergy_launch.huggingface", "synergy_core synergy_launch.batch synergy_launch.agent synergy_launch.pytorch"),
    ("synergy_launch.deepspeed", "synergy_core synergy_launch.batch synergy_launch.agent synergy_launch.pytorch"),
    ("synergy_launch.lightning", "synergy_core synergy_launch.batch synergy_launch.agent synergy_launch.pytorch"),
    (
        "synergy_launch.auto",
        "synergy_core synergy_launch.batch synergy_launch.agent synergy_launch.links synergy_launch.pytorch "
        "synergy_launch.huggingface synergy_launch.lightning",
    ),
    ("synergy_launch", "synergy_launch.pytorch"),
    (
        "synergy_launch.examples",
        "synergy_core synergy_launch synergy_launch.batch synergy_launch.agent synergy_launch.pytorch "
        "synergy_launch.megatron_core",
    ),
    # the daemon's
    ("synergyd", "synergy_core"),
    ("synergyd.settings", "synergy_core"),
    ("synergyd.start_times", BASE),
    ("synergyd.links", BASE),
    ("synergyd.jobmodel.model", BASE),
    ("synergyd.jobmodel.fit", f"{BASE} synergyd.jobmodel.model"),
    ("synergyd.jobmodel", f"{BASE} synergyd.jobmodel.model synergyd.jobmodel.fit"),
    ("synergyd.scheduler.problem", BASE),
    ("synergyd.scheduler.placement", f"{BASE} synergyd.links {PROBLEM}"),
    ("synergyd.scheduler.solver", f"{BASE} {PLACEMENT}"),
    ("synergyd.scheduler", f"{BASE} synergyd.links {SOLVER}"),
    ("synergyd.control.resize", BASE),
    ("synergyd.control.state", f"{BASE} {MODELS} {PROBLEM} synergyd.control.resize"),
    ("synergyd.control", f"{BASE} synergyd.links {MODELS} {ALLOCATION} synergyd.control.resize synergyd.control.state"),
    # Slurm, databases, simulated time: they don't know one another
    ("synergyd.slurm.parsed", f"{BASE} synergy_core.wire {CONTROL}"),
    ("synergyd.slurm.directives", f"{BASE} synergy_core.wire"),
    (
        "synergyd.slurm",
        f"{BASE} synergy_core.wire {CONTROL} synergy_launch.launcher.commands synergyd.slurm.parsed synergyd.slurm.directives",
    ),
    ("synergyd.store", f"{BASE} synergy_core.wire"),
    ("synergyd_migrations", "synergy_core synergyd.store"),
    ("synergyd.daemon.ports", f"{BASE} synergy_core.wire"),
    ("synergyd.daemon.notices", f"{BASE} synergy_core.wire synergyd.store {SLURM}"),
    ("synergyd.daemon.links", f"{BASE} synergy_core.wire synergyd.links {MODELS} {ALLOCATION} synergyd.daemon.ports"),
    (
        "synergyd.daemon",
        f"synergyd {BASE} synergy_core.wire synergyd.links {MODELS} {ALLOCATION} {CONTROL} {SLURM} synergyd.store {PORTS} "
        "synergyd.start_times",
    ),
    ("synergyd.views", f"{BASE} synergy_core.wire synergyd.links {CONTROL} synergyd.store"),
    (
        "synergyd.rest",
        f"synergyd {BASE} synergy_core.wire {CONTROL} synergyd.slurm.parsed synergyd.store synergyd.views",
    ),
    ("synergyd.cli.shared", f"{BASE} synergy_core.wire {CONTROL} {SLURM} synergyd.store synergyd.views"),
    ("synergyd.cli.planning", f"{BASE} {MODELS} synergy_launch.launcher.commands synergyd.cli.shared"),
    (
        "synergyd.cli",
        f"synergyd {BASE} synergy_core.wire synergyd.links {MODELS} {CONTROL} {SLURM} synergyd.store {PORTS} synergyd.daemon "
        "synergyd.views synergyd.rest synergy_launch.launcher.commands synergy_launch.launcher.script synergyd.cli.shared "
        "synergyd.cli.planning",
    ),
    # the simulator: the daemon's pure folders in simulated time
    ("synergy_sim.policies", f"{BASE} {SOLVER}"),
    ("synergy_sim.contention", f"{BASE} synergyd.links synergyd.scheduler.placement"),
    ("synergy_sim", f"{BASE} synergyd.links {MODELS} {ALLOCATION} {CONTROL} synergy_sim.policies"),
    ("synergy_sim.forecast", f"{BASE} synergy_core.wire synergyd.jobmodel synergy_sim"),
    ("synergy_sim.traces", f"{BASE} {MODELS} synergy_sim"),
    (
        "synergy_sim.cli",
        f"{BASE} synergy_core.wire synergyd.links {MODELS} {CONTROL} {SLURM} synergyd.store synergy_sim "
        "synergy_sim.contention synergy_sim.forecast synergy_sim.traces synergyd.views synergyd.cli.shared",
    ),
)
RULES = {folder: frozenset(allowed.split()) for folder, allowed in ROWS}
# Libraries that a folder may not touch: pure folders know no clock, process, socket or thread.
IMPURE = ("time", "datetime", "subprocess", "socket", "threading", "random", "os", "signal", "sqlalchemy")
HEAVY = ("sqlalchemy", "alembic", "scipy", "rich", "prometheus_client", "numpy", "torch", "highspy")
FORBIDDEN = {
    "synergy_core": HEAVY,
    "synergyd.settings": (*IMPURE, *HEAVY),
    "synergyd.start_times": IMPURE,
    "synergyd.links": IMPURE,
    "synergyd.jobmodel": IMPURE,
    "synergyd.scheduler": IMPURE,
    "synergyd.control": (*IMPURE, *HEAVY),
    # time is simulated; only perf_counter is asked, of how long a decision took
    "synergy_sim": ("subprocess", "socket", "threading", "signal", "sqlalchemy", "rich", "matplotlib"),
    "synergyd.daemon": ("sqlalchemy", "scipy", "rich"),
    "synergy_launch.launcher": ("torch", "megatron"),
    "synergy_launch.megatron_lm": ("torch", "megatron"),
}


def module_of(path: Path) -> str:
    root = next(base for base in (ROOT / "launch", ROOT / "sql", ROOT / "sim", ROOT) if base in path.parents)
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


# the old names for users' scripts are no package of ours: nothing here imports them
BRIDGE = SOURCES["synergy_launch"] / "synergy_launch" / "bridge"
FILES = {
    module_of(p): p
    for name, base in SOURCES.items()
    for p in sorted((base / name).rglob("*.py"))
    if BRIDGE not in p.parents
}


#: what of synergy_core opens files, by name
READS_FILES = ("synergy_core.ordinary_file", "synergy_core.wire")


def folder_of(module: str) -> str:
    """The row that a module stands in: its folder, or itself where it is a package."""
    if FILES[module].name == "__init__.py":
        return module
    return module.rpartition(".")[0].removesuffix(".versions")


def imports(path: Path) -> set[str]:
    """Every module named in the file, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            full = {f"{node.module}.{a.name}" for a in node.names}
            found |= {name if name in FILES else node.module or "" for name in full}
    return found


def test_rows_name_only_rows_above_them() -> None:
    """So there is no circle, and no two folders that import each other."""
    above: set[str] = set()
    for folder, allowed in ROWS:
        assert set(allowed.split()) <= above, (
            f"{folder} may import {set(allowed.split()) - above}, which stand below it"
        )
        above.add(folder)


def test_every_folder_has_a_row() -> None:
    folders = {folder_of(m) for m in FILES} - {"synergyd_migrations.versions"}
    assert folders == set(RULES)


@pytest.mark.slow
@pytest.mark.parametrize("folder", RULES)
def test_a_folder_imports_only_what_its_row_names(folder: str) -> None:
    wrong = [
        f"{FILES[module].relative_to(ROOT)} imports {name}"
        for module in FILES
        if folder_of(module) == folder
        for name in sorted(imports(FILES[module]) & FILES.keys())
        if (target := folder_of(name)) != folder and target not in RULES[folder]
    ]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", FORBIDDEN)
def test_a_folder_keeps_away_from_what_is_not_its_business(folder: str) -> None:
    wrong = [
        f"{FILES[module].relative_to(ROOT)} imports {name}"
        for module in FILES
        if f"{module}.".startswith(f"{folder}.")
        for name in sorted(imports(FILES[module]))
        if name.partition(".")[0] in FORBIDDEN[folder]
    ]
    # torchrun's wrapper is a process of its own; a measuring run stands beside the figures it writes; commands print and plot
    excused = (
        "launch/synergy_launch/launcher/torchrun.py imports torch",
        "synergyd/jobmodel/model/measure.py imports time",
        "sim/synergy_sim/cli/",
    )
    assert [w for w in wrong if not w.startswith(excused)] == []


def test_records_know_no_clock_process_or_socket() -> None:
    pure = [m for m in FILES if m.startswith("synergy_core.") and not m.startswith(READS_FILES)]
    assert len(pure) > 10
    assert [(m, i) for m in pure for i in sorted(imports(FILES[m])) if i.partition(".")[0] in IMPURE] == []


def test_a_rule_that_is_broken_is_found() -> None:
    """The test itself: the daemon may not be imported from below, nor a row name one below itself."""
    assert "synergyd.daemon" not in RULES["synergyd.scheduler"] and "synergyd.cli" not in RULES["synergyd.daemon"]
    assert folder_of("synergy_sim.policies.fifo") == "synergy_sim.policies"
    assert folder_of("synergy_core.records") == "synergy_core"
    assert "synergyd.scheduler.problem.records" in imports(FILES["synergy_sim.policies.fifo"])


def test_what_is_installed_is_all_there_is() -> None:
    """setup.cfg lists the packages by name, since they lie in four folders."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = set(setup["options"]["packages"].split())
    there = {m for m, path in FILES.items() if path.name == "__init__.py"} | {"slurm_plugins"}
    assert packages == there


@pytest.mark.slow
def test_launching_loads_nothing_of_the_servers() -> None:
    """In a process of its own: on a compute node only click is installed beside the training's own packages."""
    light = [m for m, path in FILES.items() if m.startswith(("synergy_launch.", "synergy_core."))
             and not any(i.partition(".")[0] in ("torch", "megatron", "transformers") for i in imports(path))
             and path.name != "__init__.py"]  # fmt: skip
    assert {"synergy_launch.launcher.command", "synergy_launch.agent.agent", "synergy_core.wire.plan_file"} <= set(
        light
    )
    light = [m for m in light if not any("torch" in str(i) or "megatron_core" in i for i in imports(FILES[m]))]
    bad = ("synergyd", "synergy_sim", *HEAVY)
    program = (
        f"import sys, importlib\nimport synergy_launch\nfor m in {light!r}: importlib.import_module(m)\n"
        f"bad = [m for m in sys.modules for x in {bad!r} if m == x or m.startswith(x + '.')]\n"
        "sys.exit(', '.join(sorted(bad)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
