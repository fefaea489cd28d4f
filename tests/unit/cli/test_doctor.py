"""`synergyctl doctor` and what `config check` says of a first start, with programs of a node that fails in chosen ways.

That they find nothing missing where nothing is: tests/deb, on a fresh Debian, and tests/integration/test_daemon.py."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from synergyd import __version__
from synergyd.cli import checks, first_start
from synergyd.cli.checks import Finding
from synergyd.cli.synergyctl import cli
from synergyd.daemon import heartbeat
from synergyd.settings import Settings
from synergyd.store import schema

Put = Callable[[str, str], Path]
NODE = "NodeName=here Arch=x86_64\\n   Gres=gpu:a100:4(S:0),gpu:h100:2\\n"


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts a shell script of this name on PATH, which holds nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("SLURM_JOB_ID", "SLURM_GPUS_ON_NODE", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)

    def write(name: str, script: str) -> Path:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return folder / name

    return write


def doctor(tmp_path: Path, *words: str, said: str = "") -> dict[str, Finding]:
    conf = tmp_path / "slurm.conf"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf.write_text(f"SlurmctldHost=head(127.0.0.1)\n#SYNERGY ReportPort={port}\n{said}")
    done = CliRunner().invoke(cli, ["--conf", str(conf), "doctor", "--json", *words])
    found = [Finding(one["name"], one["ok"], one["found"], one["right"]) for one in json.loads(done.stdout)]
    assert done.exit_code == any(finding.ok is False for finding in found)
    return {finding.name.split()[0]: finding for finding in found}


def test_a_bare_machine_lacks_all(put: Put, tmp_path: Path) -> None:
    found = doctor(tmp_path)
    assert {name for name, f in found.items() if f.ok is False} >= {
        "Slurm's",
        "srun",
        "slurmctld",
        "synergy-launch",
        "torch",
        "ReportPort",
    }
    assert all(finding.right for finding in found.values() if finding.ok is False)
    assert "python3 is not on PATH" in found["torch"].state_text and found["GPUs"].ok is None


def test_what_a_node_has_is_compared(put: Put, tmp_path: Path) -> None:
    put("sinfo", "echo slurm 21.08.1")
    put("srun", "echo slurm 21.08.1")
    old = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 400))
    put(
        "scontrol",
        f'case $2 in config) echo "Configuration data as of {old}"; echo "ClusterName = c";; *) printf "{NODE}";; esac',
    )
    put("synergy-launch", "echo synergy-launch, version 0.0.1")
    put("python3", 'echo \'["3.11.2", "2.3.1", 5]\'')
    found = doctor(tmp_path, "--checkpoint", "/proc/no")
    assert (found["Slurm's"].ok, found["slurmctld"].ok, found["clock"].ok) == (False, True, False)
    assert "400 s" in found["clock"].state_text or "399 s" in found["clock"].state_text
    assert found["synergy-launch"].right == f"synergyctl is {__version__}: install the same"
    assert found["torch"].right == "torch 2.4 or newer"
    assert "torch sees 5" in found["GPUs"].state_text and "6" in found["GPUs"].state_text and found["GPUs"].ok is False
    assert found["checkpoint"].ok is False


def test_a_jobs_own_gpus_count_inside_it(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = put("synergy-launch", f"echo synergy-launch, version {__version__}")
    mine = put("mypython3", 'echo \'["3.12.1", "2.13.0+cu126", 2]\'')
    launcher.write_text(f"#!{mine}\n")  # as pip writes it: it names the Python that has torch
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert doctor(tmp_path)["GPUs"].ok is None
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    found = doctor(tmp_path, "--checkpoint", str(tmp_path / "run7" / "deep"))
    assert found["GPUs"].ok and str(mine) in found["torch"].state_text and found["torch"].ok
    assert found["checkpoint"].ok and not (tmp_path / "run7").exists()


def test_ports_are_closed_in_a_dry_run(put: Put, tmp_path: Path) -> None:
    found = doctor(tmp_path, said="#SYNERGY DryRun=yes\n")["ReportPort"]
    assert found.ok is None and "DryRun" in found.state_text


def test_a_port_is_looked_for_on_each_slurmctld_s_host(put: Put, tmp_path: Path) -> None:
    """The daemon that leads may run on any of them."""
    with socket.socket() as other:
        other.bind(("127.0.0.3", 0))
        other.listen()
        port = other.getsockname()[1]
        second = f"SlurmctldHost=next(127.0.0.3)\n#SYNERGY RestPort={port}\n"
        found = doctor(tmp_path, said=second)
        assert found["RestPort"].ok and found["RestPort"].state_text == "127.0.0.3 answers"
        assert "127.0.0.1 or 127.0.0.3" in found["ReportPort"].right


@pytest.mark.slow
def test_a_torch_in_this_folder_is_not_run(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root in /tmp, where anybody may have put it."""
    put("python3", f'exec {sys.executable} "$@"')
    (tmp_path / "torch.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    doctor(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_folders_that_a_user_may_not_enter(tmp_path: Path) -> None:
    closed = tmp_path / "closed"  # 0700, as all above it
    (closed / "state").mkdir(parents=True)
    code = (
        "import os; from pathlib import Path; from synergyd.cli.doctor import writable;"
        "from synergyd.cli.first_start import findings; from synergyd.settings import Settings;"
        f"os.setuid(65534); folder = Path({str(closed / 'state')!r}); print(writable(folder).line());"
        "[print(f.line()) for f in findings(Settings(state_dir=folder, rest_port=7399))]"
    )
    closed.chmod(0o700)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Permission denied" in next(line for line in done.stdout.splitlines() if "checkpoint" in line)
    assert next(line for line in done.stdout.splitlines() if "database" in line).startswith("- ")


def test_a_program_that_hangs_is_given_up(put: Put) -> None:
    put("sinfo", f"exec {sys.executable} -c 'import time; time.sleep(60)'")
    assert checks.run_command("sinfo", answer_s=0.2) == (False, "sinfo gave no answer in 0.2 s")


def test_a_first_start_without_slurm_or_a_folder(put: Put, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = {
            f.name.split()[0]: f for f in first_start.findings(Settings(state_dir=tmp_path / "no", report_port=port))
        }
    assert {n for n, f in found.items() if f.ok is False} >= {
        "Slurm's",
        "slurmctld",
        "StateDir",
        "database",
        "ReportPort",
    }
    assert found["ReportPort"].right == "end what holds it, or set ReportPort to another"
    assert "install -d" in found["StateDir"].right


def test_the_ports_of_a_daemon_that_runs_are_its_own(put: Put, tmp_path: Path) -> None:
    heartbeat.write(tmp_path, time.time(), 60)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        settings = Settings(state_dir=tmp_path, report_port=taken.getsockname()[1])
        found = {f.name.split()[0]: f for f in first_start.findings(settings)}
    assert found["ReportPort"].ok and "made at the first start" in found["database"].state_text


def test_an_older_schema_is_named(put: Put, tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    schema.upgrade(settings.database_url())
    found = {f.name.split()[0]: f for f in first_start.findings(settings)}
    assert found["database"].ok and schema.needed_revision() in found["database"].state_text
    (tmp_path / "synergy.db").write_text("no database")
    found = {f.name.split()[0]: f for f in first_start.findings(settings)}
    assert found["database"].ok is False


@pytest.mark.parametrize(
    ("user", "level", "ok"),
    [
        ("root", "", True),
        ("slurm", "", True),
        ("games", "None", False),
        ("games", "Operator", False),
        ("nobody", "Administrator", False),
        ("nobodys-name", "Administrator", False),
        ("games", "Administrator", True),
        ("4000000", "Administrator", True),
    ],
)
def test_rights(put: Put, user: str, level: str, ok: bool) -> None:
    """By the uid, among all users, as the daemon itself looks."""
    record = "UserName={}({}) DefAccount=chem DefWckey=(null) AdminLevel={}"
    users = (("root", 0, "Administrator"), ("elsewhere", pwd.getpwnam("games").pw_uid, level), ("x", 4000000, level))
    lines = "; ".join(f"echo '{record.format(*each)}'" for each in users)
    put("scontrol", f'[ "$*" = "show assoc_mgr flags=users" ] && {{ {lines}; }}')
    finding = first_start._rights(user, {"SlurmUser": "slurm(64030)"})
    assert finding.ok is ok and (ok or f"sacctmgr modify user {user} set adminlevel=Admin" in finding.right)


def test_the_key_of_slurms_tokens(tmp_path: Path) -> None:
    key = tmp_path / "key"
    config = {"AuthAltTypes": "auth/jwt", "AuthAltParameters": f"jwt_key={key}"}
    assert first_start._jwt({}, "root")[0].ok is None
    assert first_start._jwt(config, "root")[0].ok is False
    key.write_text("x" * 32)
    key.chmod(0o644)
    assert first_start._jwt(config, "root")[0].right == f"chmod 600 {key}"
    key.chmod(0o600)
    assert first_start._jwt(config, "root")[0].ok


def test_clocks_are_told_apart_beyond_the_answers_own_time() -> None:
    now_s = time.mktime(time.strptime("2026-11-22T12:00:00", "%Y-%m-%dT%H:%M:%S"))
    assert checks.compute_offset_s("2026-11-22T12:00:00", now_s, now_s + 3) == 0
    assert checks.compute_offset_s("2026-11-22T12:02:00", now_s, now_s + 3) == -117
    assert checks.compute_offset_s("nonsense", now_s, now_s) is None


@pytest.mark.parametrize(
    ("settings", "guesses"),
    [
        (Settings(node_link="ib-ndr"), []),
        (Settings(node_link="ib-ndr", link_arbiter_port=7322), ["NodeLink ib-ndr"]),
        (Settings(node_link="4x10gbe", leaf_uplink="roce-400", link_aware=True), ["LeafUplink roce-400"]),
        (Settings(node_link="ib-ndr@0.01+0.002", link_aware=True), []),
    ],
)
def test_what_was_never_measured_of_links_is_called_a_guess(settings: Settings, guesses: list[str]) -> None:
    found = first_start._links(settings)
    assert [f.name for f in found] == guesses and all(f.ok is None and "guess" in f.state_text for f in found)
