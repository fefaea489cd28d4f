"""The house: which folder may import which. A row a folder, each naming only rows above it: data flows one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"synergyd": ROOT, "synergy_launch": ROOT / "launch", "synergyd_migrations": ROOT / "sql"}

BASE = (
    "synergyd.errors synergyd.exchange synergyd.ordinary_file synergyd.constraint synergyd.node_needs synergyd.restarts "
    "synergyd.shared_links synergyd.accepts synergyd.records synergyd.job_report synergyd.words synergyd.steering synergyd.usage "
    "synergyd.notice synergyd.masking synergyd.rates synergyd.pipeline_stages synergyd.recompute synergyd.link_names "
    "synergyd.loss_trend synergyd.setting synergyd.settings_allocation synergyd.settings"
)
MODELS = "synergyd.task.model synergyd.task.fit synergyd.task"
PROBLEM = "synergyd.scheduler.problem"
PLACEMENT = f"{PROBLEM} synergyd.scheduler.placement"
SOLVER = f"{PLACEMENT} synergyd.scheduler.solver"
POLICIES = f"{SOLVER} synergyd.scheduler.policies"
ALLOCATION = f"{POLICIES} synergyd.scheduler"
CONTROL = "synergyd.control.resize synergyd.control.known synergyd.control"
SLURM = "synergyd.slurm.parsed synergyd.slurm.directives synergyd.slurm"
PORTS = "synergyd.daemon.ports synergyd.daemon.notices synergyd.daemon.links"
# A folder (or one of synergyd's own files), and the rows above it that it may import.
ROWS: tuple[tuple[str, str], ...] = (
    ("synergyd", ""),
    ("synergyd.errors", ""),
    ("synergyd.exchange", "synergyd.errors"),
    ("synergyd.ordinary_file", ""),
    ("synergyd.constraint", ""),
    ("synergyd.node_needs", ""),
    ("synergyd.restarts", ""),
    ("synergyd.shared_links", ""),
    ("synergyd.later", ""),
    ("synergyd.accepts", "synergyd.later"),
    ("synergyd.records", "synergyd.later synergyd.accepts synergyd.node_needs synergyd.restarts synergyd.shared_links"),
    ("synergyd.job_report", "synergyd.later synergyd.accepts synergyd.records"),
    ("synergyd.recompute", ""),
    ("synergyd.words", "synergyd.recompute synergyd.records"),
    ("synergyd.steering", "synergyd.errors synergyd.records"),
    ("synergyd.usage", ""),
    ("synergyd.notice", ""),
    ("synergyd.masking", ""),
    ("synergyd.rates", "synergyd.errors"),
    ("synergyd.loss_trend", ""),
    ("synergyd.pipeline_stages", ""),
    ("synergyd.link_names", ""),
    ("synergyd.setting_types", "synergyd.link_names"),
    ("synergyd.setting", "synergyd.setting_types"),
    ("synergyd.settings_service", "synergyd.setting_types synergyd.setting synergyd.notice"),
    ("synergyd.settings_allocation", "synergyd.setting_types synergyd.setting"),
    ("synergyd.settings_resizing", "synergyd.exchange synergyd.setting_types synergyd.setting"),
    (
        "synergyd.settings",
        "synergyd.setting_types synergyd.setting synergyd.settings_service synergyd.settings_allocation synergyd.settings_resizing",
    ),
    ("synergyd.settings_text", "synergyd.setting synergyd.settings"),
    (
        "synergyd.wire",
        "synergyd.errors synergyd.exchange synergyd.ordinary_file synergyd.recompute synergyd.records synergyd.job_report",
    ),
    ("synergyd.links", BASE),
    ("synergyd.task.model", BASE),
    ("synergyd.task.fit", f"{BASE} synergyd.task.model"),
    ("synergyd.task", f"{BASE} synergyd.task.model synergyd.task.fit"),
    ("synergyd.scheduler.problem", BASE),
    ("synergyd.scheduler.placement", f"{BASE} synergyd.links {PROBLEM}"),
    ("synergyd.scheduler.solver", f"{BASE} {PLACEMENT}"),
    ("synergyd.scheduler.policies", f"{BASE} {SOLVER}"),
    ("synergyd.scheduler", f"{BASE} synergyd.links {POLICIES}"),
    ("synergyd.control.resize", BASE),
    ("synergyd.control.known", f"{BASE} {MODELS} {PROBLEM} synergyd.control.resize"),
    ("synergyd.control", f"{BASE} synergyd.links {MODELS} {ALLOCATION} synergyd.control.resize synergyd.control.known"),
    # what runs inside jobs: of synergyd only what needs the standard library alone
    ("synergy_launch.batch", "synergyd.errors synergyd.records synergyd.job_report synergyd.rates synergyd.loss_trend"),
    (
        "synergy_launch.agent",
        "synergyd.errors synergyd.exchange synergyd.records synergyd.job_report synergyd.wire synergy_launch.batch",
    ),
    (
        "synergy_launch.megatron_lm",
        "synergyd.errors synergyd.accepts synergyd.records synergyd.job_report synergyd.rates synergyd.pipeline_stages "
        "synergyd.recompute synergyd.wire synergy_launch.agent",
    ),
    (
        "synergy_launch.launcher",
        "synergyd synergyd.errors synergyd.exchange synergyd.accepts synergyd.recompute synergyd.records synergyd.job_report synergyd.wire "
        "synergy_launch.batch synergy_launch.agent synergy_launch.megatron_lm",
    ),
    ("synergy_launch.links", "synergyd.errors synergyd.wire"),
    ("synergy_launch.communication", "synergyd.errors synergyd.exchange synergy_launch.batch synergy_launch.links"),
    (
        "synergy_launch.pytorch",
        "synergyd.errors synergyd.exchange synergyd.records synergyd.job_report synergy_launch.batch synergy_launch.agent "
        "synergy_launch.links synergy_launch.communication",
    ),
    (
        "synergy_launch.megatron_core",
        "synergyd.errors synergyd.records synergyd.job_report synergyd.rates synergyd.pipeline_stages synergyd.recompute "
        "synergy_launch.batch synergy_launch.agent synergy_launch.megatron_lm synergy_launch.links synergy_launch.pytorch",
    ),
    (
        "synergy_launch.huggingface",
        "synergyd.errors synergyd.exchange synergyd.records synergyd.job_report synergyd.rates synergy_launch.batch synergy_launch.agent "
        "synergy_launch.pytorch",
    ),
    (
        "synergy_launch.deepspeed",
        "synergyd.errors synergyd.exchange synergyd.records synergyd.job_report synergyd.rates synergy_launch.batch synergy_launch.agent "
        "synergy_launch.pytorch",
    ),
    (
        "synergy_launch.lightning",
        "synergyd.errors synergyd.exchange synergyd.records synergy_launch.batch synergy_launch.agent synergy_launch.pytorch",
    ),
    ("synergy_launch", "synergy_launch.pytorch"),
    (
        "synergy_launch.examples",
        f"{BASE} synergy_launch synergy_launch.batch synergy_launch.agent synergy_launch.pytorch synergy_launch.megatron_core",
    ),
    # Slurm, databases, simulated time: they don't know one another
    ("synergyd.slurm.parsed", f"{BASE} synergyd.wire {CONTROL}"),
    ("synergyd.slurm.directives", f"{BASE} synergyd.wire"),
    (
        "synergyd.slurm",
        f"{BASE} synergyd.wire {CONTROL} synergy_launch.launcher synergyd.slurm.parsed synergyd.slurm.directives",
    ),
    ("synergyd.store", f"{BASE} synergyd.wire"),
    ("synergyd_migrations", "synergyd.errors synergyd.store"),
    ("synergyd.sim.contention", f"{BASE} synergyd.links synergyd.scheduler.placement"),
    ("synergyd.sim", f"{BASE} synergyd.links {MODELS} {ALLOCATION} {CONTROL}"),
    ("synergyd.sim.traces", f"{BASE} {MODELS} synergyd.sim"),
    ("synergyd.daemon.ports", f"{BASE} synergyd.wire"),
    ("synergyd.daemon.notices", f"{BASE} synergyd.wire synergyd.store {SLURM}"),
    ("synergyd.daemon.links", f"{BASE} synergyd.wire synergyd.links {MODELS} {ALLOCATION} synergyd.daemon.ports"),
    (
        "synergyd.daemon",
        f"{BASE} synergyd.wire synergyd.links {MODELS} {ALLOCATION} {CONTROL} {SLURM} synergyd.store {PORTS}",
    ),
    ("synergyd.views", f"{BASE} synergyd.wire synergyd.links {CONTROL} synergyd.store"),
    ("synergyd.rest", f"synergyd {BASE} synergyd.wire {CONTROL} synergyd.slurm.parsed synergyd.store synergyd.views"),
    ("synergyd.cli.shared", f"{BASE} synergyd.wire {CONTROL} {SLURM} synergyd.store synergyd.views"),
    ("synergyd.cli.planning", f"{BASE} {MODELS} synergy_launch.launcher synergyd.cli.shared"),
    (
        "synergyd.cli.simulation",
        f"{BASE} synergyd.wire synergyd.links {MODELS} {CONTROL} {SLURM} synergyd.store synergyd.sim "
        "synergyd.sim.contention synergyd.sim.traces synergyd.views synergyd.cli.shared",
    ),
    (
        "synergyd.cli",
        f"synergyd {BASE} synergyd.wire synergyd.links {MODELS} {CONTROL} {SLURM} synergyd.store {PORTS} synergyd.daemon "
        "synergyd.views synergyd.rest synergy_launch.launcher synergyd.cli.shared synergyd.cli.planning synergyd.cli.simulation",
    ),
)
RULES = {folder: frozenset(allowed.split()) for folder, allowed in ROWS}
# Libraries that a folder may not touch: pure folders know no clock, process, socket or thread.
IMPURE = ("time", "datetime", "subprocess", "socket", "threading", "random", "os", "signal", "sqlalchemy")
HEAVY = ("sqlalchemy", "alembic", "scipy", "rich", "prometheus_client", "numpy", "torch", "highspy")
FORBIDDEN = {
    "synergyd.errors": (*IMPURE, *HEAVY),
    "synergyd.restarts": (*IMPURE, *HEAVY),
    "synergyd.records": (*IMPURE, *HEAVY),
    "synergyd.job_report": (*IMPURE, *HEAVY),
    "synergyd.constraint": (*IMPURE, *HEAVY),
    "synergyd.node_needs": (*IMPURE, *HEAVY),
    "synergyd.words": (*IMPURE, *HEAVY),
    "synergyd.steering": (*IMPURE, *HEAVY),
    "synergyd.usage": (*IMPURE, *HEAVY),
    "synergyd.notice": (*IMPURE, *HEAVY),
    "synergyd.rates": (*IMPURE, *HEAVY),
    "synergyd.pipeline_stages": (*IMPURE, *HEAVY),
    "synergyd.link_names": (*IMPURE, *HEAVY),
    "synergyd.setting_types": (*IMPURE, *HEAVY),
    "synergyd.setting": (*IMPURE, *HEAVY),
    "synergyd.settings_service": (*IMPURE, *HEAVY),
    "synergyd.settings_allocation": (*IMPURE, *HEAVY),
    "synergyd.settings_resizing": (*IMPURE, *HEAVY),
    "synergyd.settings": (*IMPURE, *HEAVY),
    "synergyd.wire": HEAVY,
    "synergyd.links": IMPURE,
    "synergyd.task": IMPURE,
    "synergyd.scheduler": IMPURE,
    "synergyd.control": (*IMPURE, *HEAVY),
    # time is simulated; only perf_counter is asked, of how long a decision took
    "synergyd.sim": ("subprocess", "socket", "threading", "signal", "sqlalchemy", "rich", "matplotlib"),
    "synergyd.daemon": ("sqlalchemy", "scipy", "rich"),
    "synergy_launch.launcher": ("torch", "megatron"),
    "synergy_launch.megatron_lm": ("torch", "megatron"),
}


def module_of(path: Path) -> str:
    root = next(
        base for base in (SOURCES["synergy_launch"], SOURCES["synergyd_migrations"], ROOT) if base in path.parents
    )
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


# the old names for users' scripts are no package of ours: nothing here imports them
BRIDGE = SOURCES["synergy_launch"] / "synergy_launch" / "bridge"
FILES = {
    module_of(p): p
    for name, base in SOURCES.items()
    for p in sorted((base / name).rglob("*.py"))
    if BRIDGE not in p.parents
}


def folder_of(module: str) -> str:
    """The row that a module stands in: its folder, or itself where it is one of synergyd's own files."""
    if FILES[module].name == "__init__.py" or module.rpartition(".")[0] == "synergyd":
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
    # torchrun's wrapper is a process of its own; a measuring run is no formula, and stands beside the figures it writes
    excused = (
        "launch/synergy_launch/launcher/torchrun.py imports torch",
        "synergyd/task/model/measure.py imports time",
    )
    assert [w for w in wrong if not w.startswith(excused)] == []


def test_a_rule_that_is_broken_is_found() -> None:
    """The test itself: the daemon may not be imported from below, nor a row name one below itself."""
    assert "synergyd.daemon" not in RULES["synergyd.scheduler"] and "synergyd.cli" not in RULES["synergyd.daemon"]
    assert folder_of("synergyd.scheduler.policies.fifo") == "synergyd.scheduler.policies"
    assert folder_of("synergyd.records") == "synergyd.records"
    assert "synergyd.scheduler.problem.records" in imports(FILES["synergyd.scheduler.policies.fifo"])


def test_what_is_installed_is_all_there_is() -> None:
    """setup.cfg lists the packages by name, since they lie in three folders."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = set(setup["options"]["packages"].split())
    there = {m for m, path in FILES.items() if path.name == "__init__.py"} | {"slurm_plugins"}
    assert packages == there


@pytest.mark.slow
def test_launching_loads_nothing_of_the_servers() -> None:
    """In a process of its own: on a compute node only click is installed beside the training's own packages."""
    light = [m for m, path in FILES.items() if m.startswith(("synergy_launch.", "synergyd.wire."))
             and not any(i.partition(".")[0] in ("torch", "megatron", "transformers") for i in imports(path))
             and path.name != "__init__.py"]  # fmt: skip
    assert {"synergy_launch.launcher.command", "synergy_launch.agent.agent", "synergyd.wire.plan_file"} <= set(light)
    light = [m for m in light if not any("torch" in str(i) or "megatron_core" in i for i in imports(FILES[m]))]
    server = ("synergyd.sim", "synergyd.store", "synergyd.slurm", "synergyd.daemon", "synergyd.cli", "synergyd.task")
    bad = (*server, "synergyd.scheduler", "synergyd.control", *HEAVY)
    program = (
        f"import sys, importlib\nimport synergy_launch\nfor m in {light!r}: importlib.import_module(m)\n"
        f"bad = [m for m in sys.modules for x in {bad!r} if m == x or m.startswith(x + '.')]\n"
        "sys.exit(', '.join(sorted(bad)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
