"""The lint of slurm.conf, and `synergyctl config check`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from synergyd.cli.config import config, leak_lints
from synergyd.slurm.client import SlurmError
from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.directives.conf_lint import lint
from synergyd.slurm.parsed.rows import SlurmNodeRow
from tests.unit.plugin.lua_runtimes import ROOT
from tests.unit.slurm.directives.conf_world import GOOD, load
from tests.unit.slurm.fake_slurm import row

AGED = "PriorityType=priority/multifactor\nPriorityWeightAge=1000"


def test_a_good_slurm_conf_has_no_lint(folder: Path) -> None:
    loaded = load(folder, GOOD)
    assert lint(folder / "slurm.conf", loaded) == ()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("JobSubmitPlugins=lua", "", "the job_submit plugin lua is not on"),
        ("GresTypes=gpu", "GresTypes=nic", "gpu is not a GresTypes"),
        ("ClusterName", "jobrequeue=0\nClusterName", "JobRequeue=0 takes the right"),
        ("JobFileAppend=1", "", "without JobFileAppend=1"),
        ("accounting_storage/slurmdbd", "accounting_storage/none", "without slurmdbd no user has an AdminLevel"),
        ("ClusterName", "PriorityType=priority/basic\nClusterName", "priority/basic puts a job"),
        ("ClusterName", f"{AGED}\nClusterName", "gains no age"),
        ("ClusterName", f"{AGED}\nPriorityFlags=MAX_TRES,ACCRUE_ALWAYS\nClusterName", ""),
        ("ClusterName", "PriorityType=priority/multifactor\nPriorityWeightAge=0\nClusterName", ""),
        ("ClusterName", "KillWait=5 ClusterName", "a short KillWait"),
        ("ClusterName", "PreemptMode=CANCEL\nClusterName", "PreemptMode=CANCEL ends jobs"),
        ("ClusterName", "PreemptMode=GANG,\\\nSUSPEND\nClusterName", "gang scheduling and suspension"),
        ("select/cons_tres", "select/cons_res", "this SelectType can't give GPUs"),
        ("ClusterName", "SchedulerParameters=bf_interval=1,synergy_x=1\nClusterName", "Slurm looks for its own words"),
        ("ClusterName", "AuthInfo=cred_expire=600\nClusterName", "cred_expire=600 lengthens the wait"),
        ("ClusterName", "#SYNERGY Partitions=gpus\nClusterName", "no partition is named gpus; did you mean gpu?"),
        (
            "ClusterName",
            "#SYNERGY GpuType=a10 memory_gib=24\nClusterName",
            "no node has GPUs of type a10; did you mean a100?",
        ),
        ("ClusterName", "#SYNERGY Epoch=60 Park=60\nClusterName", "Park (60 s) is under two epochs"),
        ("ClusterName", "#SYNERGY StateDir=/srv/x\nClusterName", ""),
    ],
)
def test_lint_of_slurm_conf(folder: Path, old: str, new: str, what: str) -> None:
    loaded = load(folder, GOOD.replace(old, new, 1))
    found = lint(folder / "slurm.conf", loaded)
    assert loaded.problems == ()
    if not what:
        assert found == ()
        return
    assert len(found) == 1 and found[0].severity == "warning"
    assert what in str(found[0])


def test_lint_of_job_submit_lua(folder: Path) -> None:
    loaded = load(folder, GOOD)
    script = folder / "job_submit.lua"
    for text, what in (
        ("return 0", "it does not load Synergy's module"),
        ("-- synergy comes later\nreturn 0", "it does not load Synergy's module"),
        ("--[[ dofile\n synergy.lua ]] return 0", "it does not load Synergy's module"),
        ('synergy.configure{state_dir = "/elsewhere"}', "its state_dir is /elsewhere but StateDir is /var/lib/synergy"),
    ):
        script.write_text(text)
        assert [problem.what.startswith(what) for problem in lint(folder / "slurm.conf", loaded)] == [True]
    script.write_text((ROOT / "slurm_plugins" / "job_submit.hook.lua").read_text())
    assert lint(folder / "slurm.conf", loaded) == ()
    script.unlink()
    assert "this file is absent" in str(lint(folder / "slurm.conf", loaded)[0])


def test_lint_of_a_password_that_others_can_read(folder: Path) -> None:
    loaded = load(folder, GOOD + "#SYNERGY Database=postgresql+psycopg://u:geheim@h/db\n")
    path = folder / "slurm.conf"
    path.chmod(0o644)
    assert ["others can read" in str(problem) for problem in lint(path, loaded)] == [True]
    path.chmod(0o600)
    assert lint(path, loaded) == ()


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(config, ["check", *arguments], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_check_shows_values_origins_and_lint(folder: Path) -> None:
    text = GOOD + "KillWait=5\n#SYNERGY Epoch=5m Database=postgresql+psycopg://u:geheim@h/db?password=geheim\n"
    load(folder, text + "#SYNERGY Policy=first-fit StateDir='/x/[red]y'\n")
    code, out = run("--conf", str(folder / "slurm.conf"))
    assert code == 0
    lines = out.splitlines()
    epoch = next(line for line in lines if "Epoch" in line)
    assert "300s" in epoch and "slurm.conf:10" in epoch
    assert "Fairness" not in out  # as it is by default
    assert "[red]y" in out and "geheim" not in out
    assert any(line.startswith("warning: ") and "KillWait" in line for line in lines)
    assert lines[0] == "All is well: 2 warnings" and any(" at their defaults, which " in line for line in lines)


def test_check_fails_on_errors(folder: Path) -> None:
    load(folder, GOOD + "#SYNERGY Epoch=never\n")
    code, out = run("--conf", str(folder / "slurm.conf"))
    assert code == 2 and "Epoch=never is not right" in out
    assert out.startswith("The settings are wrong: 1 error")


def test_check_as_json(folder: Path) -> None:
    load(folder, GOOD + "#SYNERGY Database=postgresql+psycopg://u:geheim@h/db Partitions=gpux\n#SYNERGY Epoch=x\n")
    code, out = run("--json", "--conf", str(folder / "slurm.conf"))
    shown = json.loads(out)
    assert code == 2 and "geheim" not in out
    assert {"key": "Partitions", "value": "gpux", "origin": f"{folder}/slurm.conf:9"} in shown["settings"]
    assert sorted({problem["severity"] for problem in shown["problems"]}) == ["error", "warning"]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_check_of_an_absent_file_is_one_line(folder: Path, form: list[str]) -> None:
    code, out = run("--conf", str(folder / "absent.conf"), *form)
    assert code == 2 and len(out.splitlines()) == 1 and "can't be read (No such file or directory)" in out


def test_gpus_that_slurm_has_lost_count_of_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the running cluster, and nothing where none answers."""
    used = SlurmNodeRow("n1", "idle", "gpu:a100:4", "gpu:a100:4(IDX:0-3)", (), ("main",), "")
    monkeypatch.setattr(CommandLine, "nodes", lambda self: (used, replace(used, name="n2")))
    monkeypatch.setattr(CommandLine, "jobs", lambda self: (row(1, state="RUNNING", node_names=("n2",)),))
    (found,) = leak_lints()
    assert (found.severity, found.where) == ("warning", "node n1")
    assert found.what == "Slurm counts 4 GPUs as in use that no job holds"

    def away(self: CommandLine) -> tuple[SlurmNodeRow, ...]:
        raise SlurmError("sinfo", "Unable to contact slurm controller", transient=True)

    monkeypatch.setattr(CommandLine, "nodes", away)
    assert leak_lints() == ()
