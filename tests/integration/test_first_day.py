"""A stranger's first day on a real cluster: forecast, dry run, one partition, some users, all, an upgrade, no daemon, and back.

The steps are those of docs/admin/roll-out.md. What each prints stands in tests/cases/first_day/, numbers as `#`. After an intended change:

    WRITE_GOLDEN=1 pytest tests/integration/test_first_day.py

Stated substitutions: the cluster's own StateDir and report port in synergy.conf and job_submit.lua, an epoch of a second, programs that
have run before (`remember_programs`), and daemons started here instead of by systemd.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

from synergyd.daemon import heartbeat
from synergyd.slurm.directives.setup import NOT_LOADED
from tests.integration.daemon_site import Shim, sizes, status, until_beat, until_epochs, until_steps
from tests.paths import ROOT
from tests.throwaway import accounting, light_job
from tests.throwaway.accounting import OTHER, OTHER_UID, Accounting
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import Synergyd, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(accounting.missing_programs()), reason=f"not here: {accounting.missing_programs()}"),
]
GOLDEN = ROOT / "tests/cases/first_day"
BY_OTHER: dict[str, Any] = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": [], "cwd": "/"}
LINE = "#SYNERGY min_gpus=1 max_gpus=4\n"
SLEEPS = "#!/bin/bash\n#SBATCH --gres=gpu:1 --nodes=1 --output=/dev/null --time=30\n{}sleep {}\n"
ELASTIC = "min_gpus=1 max_gpus=4"


@pytest.fixture
def town() -> Iterator[SlurmCluster]:
    """Three nodes with four GPUs each, the partitions main (all) and trial (one), accounts, and nothing of Synergy's."""
    cluster = SlurmCluster((NodeGroup("cpu", 3, 4),))
    cluster.slurm_conf = ("PartitionName=trial Nodes=n1 MaxTime=INFINITE",)
    users = (f"add user {name} account=chem defaultaccount=chem" for name in ("root", OTHER))
    cluster.accounting = Accounting(("add account chem", *users))
    with cluster:
        yield cluster


def check(town: SlurmCluster, name: str, text: str) -> None:
    """Compare the words of a step's text with its golden file, or write that. Where lines break depends on the numbers."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text.replace(str(town.folder), "SITE"))
    text = re.sub(r"\d+([.:-]\d+)*", "#", text.replace(f"={socket.gethostname().split('.')[0]} ", "=HOST "))
    text = re.sub(r"# (s|min|h)\b", "# TIME", re.sub(r"[─━-]{2,}", "--", text))
    text = "".join(f"{re.sub(r'(?<=[^ ]) +', ' ', line).rstrip()}\n" for line in text.splitlines())
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    golden = path.read_text()
    lines = unified_diff(golden.splitlines(), text.splitlines(), str(path), "printed", lineterm="")
    assert _singular(text).split() == _singular(golden).split(), "\n".join(lines)


def _singular(text: str) -> str:
    """Return the text without signs of numbers and with one form for one and several: how many or how much is not what is tested."""
    return re.sub(r"\b(job|GPU|hold|wait)s\b", r"\1", re.sub(r"[-+](?=#)", "", text))


def said(town: SlurmCluster, *words: str) -> str:
    """Both outputs of a command that ends well."""
    done = town.run(*words)
    return done.stdout + done.stderr


def settings(town: SlurmCluster, *lines: str) -> None:
    """Write these lines into synergy.conf in place of those of the step before."""
    path = town.folder / "synergy.conf"
    mark = "# of this step"
    kept = path.read_text().partition(mark)[0].replace("#SYNERGY DryRun=yes\n", "")
    path.write_text(kept + "\n".join((mark, *lines, "")))


def restart_slurmctld(town: SlurmCluster) -> None:
    town.kill("slurmctld")
    town.start_controller()


@contextmanager
def daemon(town: SlurmCluster, shim: Shim | None = None, *, dry_run: bool = False) -> Iterator[Synergyd]:
    with synergyd(town, environment=shim.environment if shim is not None else None) as running:
        if not dry_run:
            until_beat(town)
        yield running
    (town.state_dir / heartbeat.NAME).unlink(missing_ok=True)


def submitted(town: SlurmCluster, name: str, *options: str, **kwargs: Any) -> int:
    """A light job of one GPU that may have four."""
    return light_job.submit(town, name, gpus=1, directive=ELASTIC, options=options, **kwargs)


def wait_until_running(town: SlurmCluster, *job_ids: int) -> None:
    town.wait_for(lambda: {town.state(i) for i in job_ids} == {"RUNNING"}, 120, f"{job_ids} to run")


def only_let_go(town: SlurmCluster, shim: Shim, job_id: int) -> None:
    """All that was written to this job is the end of the plugin's grace."""
    named = re.compile(rf"(?:JobId=)?(?:[\d,]+,)?{job_id}(?:,|\Z)")
    calls = [call for call in shim.writes() if any(named.match(word) for word in call)]
    assert calls and {call[-1] for call in calls} == {"StartTime=now+0"}, shim.writes()
    assert row_of(town, job_id)["restart_cnt"] == 0


def restarts(town: SlurmCluster, *job_ids: int) -> list[int]:
    return [row_of(town, i)["restart_cnt"] for i in job_ids]


def test_a_stranger_tries_it_trusts_it_and_takes_it_out_again(town: SlurmCluster) -> None:
    forecast(town)
    dry_run(town)
    one_partition(town)
    some_users(town)
    running = whole_cluster(town)
    upgrade(town, *running)
    a_day_without_the_daemon(town, *running)
    back_to_the_dry_run(town, *running)
    out_again(town)


def forecast(town: SlurmCluster) -> None:
    """Before anything is installed."""
    past = [town.sbatch(SLEEPS.format("", seconds), f"--gres=gpu:{gpus}") for seconds, gpus in ((3, 4), (2, 1))]

    def in_the_accounts(job_id: int) -> bool:
        words = ("sacct", "-X", "-n", "-P", "-j", str(job_id), "--format=State")
        return town.run(*words).stdout.strip() == "COMPLETED"

    town.wait_for(lambda: all(map(in_the_accounts, past)), 120, "the jobs' ends in the accounts")
    check(town, "1-forecast", said(town, "synergyctl", "forecast"))


def dry_run(town: SlurmCluster) -> None:
    """init, a restart of slurmctld, and a daemon that writes nothing."""
    check(town, "2-init", said(town, "synergyctl", "init", "--yes"))
    conf, script = town.folder / "synergy.conf", town.folder / "job_submit.lua"
    own = f"#SYNERGY StateDir={town.state_dir} Epoch=1 ReportPort={town.port + 90} ReportHost=127.0.0.1 RestartCost=5\n"
    more = "#SYNERGY RestartShare=1 CheckpointTimeout=60 FirstStart=8\n"
    conf.write_text(own + more + conf.read_text())
    script.write_text(script.read_text().replace("/var/lib/synergy", str(town.state_dir)))
    restart_slurmctld(town)
    shim = Shim(town)
    with daemon(town, shim, dry_run=True):
        ours, plain = submitted(town, "j1"), light_job.submit(town, "plain", gpus=1, directive=None)
        wait_until_running(town, ours, plain)
        town.wait_for(lambda: ours in status(town), 60, "the job to be known")
        until_epochs(town, 3)
        assert shim.writes() == [] and row_of(town, ours)["gres_detail"]
        check(town, "3-dry-run", said(town, "synergyctl", "status"))
    town.run("scancel", str(ours), str(plain))


def one_partition(town: SlurmCluster) -> None:
    """The job of the partition grows; the same job beside it is Slurm's alone, and waits for nothing."""
    settings(town, "#SYNERGY Partitions=trial")
    shim = Shim(town, "partition")
    with daemon(town, shim):
        beside = submitted(town, "j2", "--exclude=n1")
        inside = submitted(town, "j3", "--partition=trial")
        wait_until_running(town, beside)
        only_let_go(town, shim, beside)
        town.wait_for(lambda: sizes(town, inside) == [4], 180, "the job of the partition to have all of its GPUs")
        assert sizes(town, beside) == [None]
        until_steps(town, inside)
        check(town, "4-one-partition", said(town, "synergyctl", "status"))
    town.run("scancel", str(inside), str(beside))


def some_users(town: SlurmCluster) -> None:
    settings(town, "#SYNERGY Partitions=user/root")
    shim = Shim(town, "users")
    with daemon(town, shim):
        theirs = town.sbatch(SLEEPS.format(LINE, 60), cwd="/", **{k: v for k, v in BY_OTHER.items() if k != "cwd"})
        ours = submitted(town, "j4")
        wait_until_running(town, theirs)
        only_let_go(town, shim, theirs)
        town.wait_for(lambda: sizes(town, ours) == [4], 180, "root's job to have all GPUs of a node")
        assert sizes(town, theirs) == [None]
    town.run("scancel", str(ours), str(theirs))


def whole_cluster(town: SlurmCluster) -> list[int]:
    """Every job with the line, in any partition."""
    settings(town)
    with daemon(town):
        jobs = [submitted(town, "j5"), submitted(town, "j6", "--partition=trial")]
        town.wait_for(lambda: sizes(town, *jobs) == [4, 4], 240, "both jobs to have all GPUs of a node")
        until_steps(town, *jobs)
        check(town, "5-all", said(town, "synergyctl", "status"))
    return jobs


def upgrade(town: SlurmCluster, *jobs: int) -> None:
    """The commands of docs/admin/upgrade.md while jobs run: none is restarted, and the new daemon goes on with them."""
    before = restarts(town, *jobs)
    script = town.folder / "job_submit.lua"
    script.write_text(_as_0_2(script.read_text()))
    check(town, "6-upgrade-init", said(town, "synergyctl", "init", "--yes"))
    check(town, "6-upgrade-database", said(town, "synergyctl", "db", "upgrade"))
    with daemon(town):
        until_steps(town, *jobs, steps=status(town)[jobs[0]]["step"] + 1)
        assert restarts(town, *jobs) == before and sizes(town, *jobs) == [4, 4]


def _as_0_2(script: str) -> str:
    """Return the hook as 0.2 had it, which refused jobs without the module."""
    old = "the Synergy plugin could not be loaded; tell your admins, or drop the #SYNERGY lines"
    return re.sub(r'( +)(slurm\.log_user\("%s", )"the Synergy.*\n', rf'\1\2"{old}")\n\1return slurm.ERROR\n', script)


def a_day_without_the_daemon(town: SlurmCluster, *jobs: int) -> None:
    """It was killed a day ago: what runs goes on, and a new job starts at once as a plain one."""
    before, steps = restarts(town, *jobs), light_job.output(town, jobs[0])
    heartbeat.write(town.state_dir, time.time() - 86400, 30)
    new = submitted(town, "j7")
    wait_until_running(town, new)
    assert row_of(town, new)["admin_comment"] == ""
    assert restarts(town, *jobs) == before and {town.state(i) for i in jobs} == {"RUNNING"}
    assert steps in light_job.output(town, jobs[0])
    town.run("scancel", str(new))


def back_to_the_dry_run(town: SlurmCluster, *jobs: int) -> None:
    """In the middle of their runs resized jobs keep what they have, and nothing is written any more."""
    before, shim = restarts(town, *jobs), Shim(town, "back")
    settings(town, "#SYNERGY DryRun=yes")
    with daemon(town, shim, dry_run=True):
        until_epochs(town, 3)
        check(town, "7-back-to-dry-run", said(town, "synergyctl", "status"))
        assert shim.writes() == []
    assert restarts(town, *jobs) == before and {town.state(i) for i in jobs} == {"RUNNING"}
    town.run("scancel", *map(str, jobs))


def out_again(town: SlurmCluster) -> None:
    """Even a package that is removed before its hook refuses no job; `init --undo` leaves no trace in Slurm's files."""
    modules = Path(re.findall(r'dofile\("(.*)/synergy\.lua"\)', (town.folder / "job_submit.lua").read_text())[0])
    for name in ("synergy.lua", "synergy_grammar.lua"):
        (modules / name).unlink()
    restart_slurmctld(town)
    path = town.folder / "job.sh"
    path.write_text(SLEEPS.format(LINE, 5))
    assert NOT_LOADED in town.run("sbatch", str(path)).stderr
    assert town.run("sbatch", "--wrap=true").stderr == ""
    check(town, "8-undo", said(town, "synergyctl", "init", "--undo", "--yes"))
    restart_slurmctld(town)
    done = town.run("sbatch", "--parsable", str(path))
    assert done.stderr == ""
    wait_until_running(town, int(done.stdout))
    assert "synergy" not in town.conf.read_text().lower().replace(str(town.folder).lower(), "")
    assert not (town.folder / "job_submit.lua").exists()
