"""How a job learns where the link arbiter is, and how the arbiter learns of the job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Shape
from synergy_core.wire import plan_file
from synergy_core.wire.admin_comment import AdminCommentStamp, decode, encode
from synergy_core.wire.plan_file import PlanFile, from_admin_comment
from synergy_launch.launcher.commands.start import node_command
from synergy_launch.launcher.job.allocation import JobAllocation

from synergyd.daemon import service
from synergyd.daemon.adoption import Adoption
from synergyd.daemon.links.arbiter import Member
from synergyd.settings import Settings
from tests.paths import ROOT, python_path
from tests.unit.daemon.daemon_world import Site


class Links:
    """In place of the arbiter's process."""

    def __init__(self) -> None:
        self.told: list[Mapping[int, Member]] = []

    def follow(self, members: Mapping[int, Member]) -> None:
        self.told.append(members)


def with_links(site: Site) -> Links:
    links = Links()
    site.daemon.dependencies = replace(site.daemon.dependencies, links=links, links_address="ctl:7322")  # type: ignore[arg-type]
    site.daemon.actuator = site.daemon.executor.actuator = replace(site.daemon.actuator, links="ctl:7322")
    site.daemon.adoption = Adoption(site.daemon.actuator, site.daemon.settings.state_dir, "ctl:7321", "ctl:7322")
    return links


def test_the_address_goes_by_the_plan_file_and_by_admin_comment(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with_links(site)
    site.slurm.submit(1)
    site.epoch()
    assert plan_file.read(plan_file.plan_path(tmp_path, 1), 1).links == "ctl:7322"
    told = from_admin_comment(site.slurm.comments[1], 1)
    assert told is not None and (told.report, told.links) == ("ctl:7321", "ctl:7322")


def test_a_job_that_was_told_of_none_is_told_at_the_next_epoch(tmp_path: Path) -> None:
    """It asks from its next start on."""
    site = Site(tmp_path)
    site.running(1, "n1")
    assert plan_file.read(plan_file.plan_path(tmp_path, 1), 1).links == ""
    site.start()
    with_links(site)
    site.epoch(60)
    assert plan_file.read(plan_file.plan_path(tmp_path, 1), 1).links == "ctl:7322"


def test_the_arbiter_follows_running_jobs_on_several_nodes_while_this_daemon_acts(tmp_path: Path) -> None:
    site = Site(tmp_path)
    links = with_links(site)
    site.running(1, "n1", "n2")
    site.running(2, "n3")
    site.slurm.submit(3)
    site.epoch(60)
    told = links.told[-1]
    assert list(told) == [1]
    assert (told[1].uid, told[1].restarts, told[1].nodes) == (1000, site.slurm.jobs[1].restarts, ("n1", "n2"))
    site.leads = False
    site.epoch(60)
    assert links.told[-1] == {}


def test_stamp() -> None:
    words = (("model", "x"),)
    alone = AdminCommentStamp(words, links="ctl:2", daemon_uid=5)
    assert encode(alone) == "synergy:1 model=x | by=5 links=ctl:2" and decode(encode(alone)) == alone
    stamp = AdminCommentStamp(words, requested_shape=Shape("a", 2, 4), report="ctl:1", links="ctl:2")
    assert (
        encode(stamp) == "synergy:1 model=x | asked=a,2,4 report=ctl:1 links=ctl:2" and decode(encode(stamp)) == stamp
    )
    told = from_admin_comment("synergy:1 model=x | report=ctl:1 links=$(x)", 7)
    assert told is not None and (told.report, told.links) == ("ctl:1", "")


@pytest.mark.parametrize(
    ("nodes", "links", "told"), [(("a", "b"), "ctl:2", "ctl:2"), (("a",), "ctl:2", None), (("a", "b"), "", None)]
)
def test_the_launcher_tells_jobs_that_span_nodes(nodes: tuple[str, ...], links: str, told: str | None) -> None:
    where = JobAllocation(job_id=7, restarts=0, nodes=nodes, node_rank=0, gpus=4, in_step=True, leader=True)
    arguments: dict[str, Any] = {"run_dir": Path("/run"), "checkpoint": "", "runner": "torchrun", "master": "a"}
    made = node_command(["t.py"], where, PlanFile(7, links=links, by=5), **arguments)
    assert made.environment.get("SYNERGY_LINK_ARBITER") == told
    assert made.environment.get("SYNERGY_LINK_ARBITER_UID") == (told and "5")


def test_a_megatron_script_that_spans_nodes_is_run_gated() -> None:
    where = JobAllocation(job_id=7, restarts=0, nodes=("a", "b"), node_rank=0, gpus=4, in_step=True, leader=True)
    arguments: dict[str, Any] = {"run_dir": Path("/run"), "checkpoint": "", "master": "a", "style": "megatron"}
    for runner, before in (("torchrun", ("--master-port", "15056")), ("python", (sys.executable,))):
        for given, first in (
            (PlanFile(7, links="c:2"), ("-m", "synergy_launch.megatron_core.hooked_script", "p.py")),
            (PlanFile(7), ("p.py",)),
        ):
            made = node_command(["p.py", "--x"], where, given, runner=runner, **arguments)
            assert made.argv[-len(first) - 1 - len(before) :] == (*before, *first, "--x")


FAKE = """
class DistributedDataParallel:
    dp_cp_group = None
    def __init__(self, name): self.name = name
"""
SCRIPT = """
import sys
from megatron.core.distributed.distributed_data_parallel import DistributedDataParallel
import beside
if __name__ == "__main__":
    print(DistributedDataParallel("x").name, sys.argv, beside.X)
"""


def run_gated(
    folder: Path, *target: str, megatron: str = FAKE, runner: str = "synergy_launch.links.gated_script"
) -> subprocess.CompletedProcess[str]:
    """`target` under `runner` in `folder`, which is given a Megatron with this DDP."""
    package = folder / "megatron" / "core" / "distributed"
    package.mkdir(parents=True)
    for each in (package, package.parent, package.parent.parent):
        (each / "__init__.py").touch()
    (package / "distributed_data_parallel.py").write_text(megatron)
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'path'}:{python_path()}"}
    return subprocess.run(
        [sys.executable, "-m", runner, *target],
        capture_output=True, text=True, timeout=60, env=environment, cwd=folder,
    )  # fmt: skip


@pytest.mark.parametrize("as_module", [False, True])
def test_a_gated_script_runs_as_it_would_alone(tmp_path: Path, as_module: bool) -> None:
    """Even where Megatron is another one than is known here: then it is not gated, and says so."""
    (tmp_path / "beside.py").write_text("X = 5\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    target = ["-m", "script"] if as_module else [str(tmp_path / "script.py")]
    done = run_gated(tmp_path, *target, "--a", "b c")
    assert done.stdout == f"x ['{tmp_path}/script.py', '--a', 'b c'] 5\n"
    assert done.stderr.startswith("synergy: all-reduces are not gated: ImportError") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("gated", [False, True])
def test_a_hooked_script_runs_as_it_would_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gated: bool) -> None:
    """As above; each hook says for itself that it does not fit."""
    (tmp_path / "beside.py").write_text("X = 5\n")
    loop = tmp_path / "megatron" / "training"
    loop.mkdir(parents=True)
    (loop / "__init__.py").touch()
    (loop / "training.py").write_text("TRAIN = 1\n")
    (tmp_path / "script.py").write_text("import megatron.training.training\n" + SCRIPT)
    if gated:
        monkeypatch.setenv("SYNERGY_LINK_ARBITER", "nobody:1")
    done = run_gated(tmp_path, "script.py", "--a", runner="synergy_launch.megatron_core.hooked_script")
    assert done.stdout == "x ['script.py', '--a'] 5\n"
    said = done.stderr.splitlines()
    assert len(said) == 1 + gated and any("runs without Synergy's hook: AttributeError" in line for line in said)
    assert any("not gated" in line for line in said) is gated


def test_a_megatron_without_the_class_is_imported_all_the_same(tmp_path: Path) -> None:
    """What fails after the import is said once, and the script goes on."""
    (tmp_path / "script.py").write_text(
        "import megatron.core.distributed.distributed_data_parallel as m\n"
        "import megatron.core.distributed.distributed_data_parallel\nprint(m.X)\n"
    )
    done = run_gated(tmp_path, "script.py", megatron="X = 3\n")
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert done.stderr.startswith("synergy: all-reduces are not gated: AttributeError") and done.stderr.count("\n") == 1


def test_chunks_that_can_not_be_gated_are_told_of_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from megatron.core.distributed.distributed_data_parallel import DistributedDataParallel as D\n"
        "print([D(n).name for n in 'ab'])\n"
    )
    done = run_gated(tmp_path, "script.py")
    assert done.stdout == "['a', 'b']\n" and done.stderr.count("not gated") == done.stderr.count("\n") == 1


OWN_LAUNCH = """
from megatron.core.distributed.distributed_data_parallel import DistributedDataParallel
DistributedDataParallel("x")
import sys, launch
print(launch.__file__, sorted(n for n in sys.modules if n.startswith("launch")), sys.path[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("as_package", "as_module"), [(False, False), (True, True)])
def test_a_script_finds_a_launch_of_its_own(tmp_path: Path, as_package: bool, as_module: bool) -> None:
    """Beside it, under the name that Synergy's package had before 0.2.0."""
    own = tmp_path / ("launch/__init__.py" if as_package else "launch.py")
    own.parent.mkdir(exist_ok=True)
    own.touch()
    (tmp_path / "script.py").write_text(OWN_LAUNCH)
    megatron = (
        FAKE + "import sys\nsys.modules['megatron.core.parallel_state'] = sys\n"
    )  # so that synergy_launch.links.hooks is reached
    megatron += "sys.modules['megatron.core'].parallel_state = sys\n"
    target = ["-m", "script"] if as_module else ["script.py"]
    done = run_gated(tmp_path, *target, megatron=megatron)
    assert done.stdout == f"{own} ['launch'] {tmp_path}\n"
    assert done.stderr.startswith("synergy: all-reduces are not gated: AttributeError: module 'sys'")


def test_a_gated_script_may_use_synergys_package_itself(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "from synergy_launch.links import link_gate\nprint(link_gate.ADDRESS, link_gate.__file__)\n"
    )
    done = run_gated(tmp_path, "script.py")
    assert done.stdout == f"SYNERGY_LINK_ARBITER {ROOT}/launch/synergy_launch/links/link_gate.py\n" and not done.stderr


def test_off_by_default_and_in_a_dry_run() -> None:
    assert service._link_arbiter(Settings()) is None
    assert service._link_arbiter(Settings(link_arbiter_port=1, dry_run=True)) is None
    with pytest.raises(UsageError, match="no discipline"):
        service._link_arbiter(Settings(link_arbiter_port=1, link_arbiter_rule="fifo"))
