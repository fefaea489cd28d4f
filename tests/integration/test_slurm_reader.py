"""Which reader of Slurm is taken, and what each says when Slurm is away, slow, foreign or talkative."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from synergy_core.errors import UsageError

from synergyd.control.arrivals import JobCounts
from synergyd.slurm.backends import Fallback, open_reader
from synergyd.slurm.client import SlurmError
from synergyd.slurm.command_line import CommandLine
from tests.integration.test_slurm_backends import BACKENDS, SLEEP, available, gpus_counted, read, read_raw
from tests.paths import python_path
from tests.throwaway.slurm import NodeGroup, SlurmCluster, missing_programs
from tests.unit.slurm.fake_pyslurm import module

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing_programs()), reason="Slurm or munge is not installed"),
]


# -- Slurm away ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small() -> Iterator[SlurmCluster]:
    with SlurmCluster([NodeGroup("a100", 1, 1)], slurm_conf=["MessageTimeout=2"], accounting=gpus_counted()) as c:
        yield c


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fault", ["killed", "hangs", "no munge"])
def test_slurm_away_and_back(small: SlurmCluster, backend: str, fault: str) -> None:
    job = small.sbatch(SLEEP, "--hold")
    before = read(small, backend)
    controller = small._processes["slurmctld"].pid
    if fault == "killed":
        # with slurmdbd it does not start again before it has written what associations used
        small.kill("slurmctld", signal.SIGTERM if small.accounting else signal.SIGKILL)
    elif fault == "hangs":
        os.kill(controller, signal.SIGSTOP)
    else:
        small.kill("munged")
        small.munge_socket.unlink(missing_ok=True)
    try:
        raw = read_raw(small, backend)
    finally:
        if fault == "hangs":
            os.kill(controller, signal.SIGCONT)
    for what in ("jobs", "nodes"):
        assert raw[what]["transient"] is True, raw[what]
        assert "\n" not in raw[what]["error"]
        assert raw["seconds"][what] < 45  # CommandLine's time-out of 30 s and the end of the command
    if fault == "killed":
        small.start_controller()
    elif fault == "no munge":
        small.start_munged()
    assert job in before.jobs

    def answers() -> bool:
        again = read_raw(small, backend)
        return isinstance(again["jobs"], list) and isinstance(again["nodes"], list)

    small.wait_for(answers, 90, "Slurm to answer again")  # by MessageTimeout at first it may not
    assert read(small, backend).jobs[job].state == "PENDING"


def test_command_line_time_out(small: SlurmCluster) -> None:
    controller = small._processes["slurmctld"].pid
    os.kill(controller, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(SlurmError, match=r"no answer within 0\.5 s") as error:
            CommandLine(small.env, timeout_s=0.5).jobs()
    finally:
        os.kill(controller, signal.SIGCONT)
    assert error.value.transient and time.monotonic() - start < 15


# -- the command line alone ----------------------------------------------------------------------------------------


def test_command_line_ignores_the_users_habits(small: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small.sbatch(SLEEP, "--hold")
    expected = CommandLine(small.env).jobs()
    for key, value in {
        "SQUEUE_FORMAT2": "JobID", "SQUEUE_STATES": "RUNNING", "SQUEUE_PARTITION": "none", "SQUEUE_ARRAY": "1",
        "SINFO_FORMAT": "%N", "SLURM_CLUSTERS": "elsewhere", "SLURM_TIME_FORMAT": "relative",
        "SCANCEL_STATE": "RUNNING", "LC_ALL": "de_DE.UTF-8",
    }.items():  # fmt: skip
        monkeypatch.setenv(key, value)
    line = CommandLine({k: small.env[k] for k in ("SLURM_CONF", "MUNGE_SOCKET", "PATH")})
    assert line.jobs() == expected and [j.job_id for j in expected] == [job]
    assert [n.name for n in line.nodes()] == ["n1"]
    assert line.calls == 3  # the first asks for the release


def test_slurm_counts_what_is_submitted_and_no_requeue_and_what_ends(small: SlurmCluster) -> None:
    backend = CommandLine(environment=small.env)
    before = backend.job_counts()
    job = small.sbatch(SLEEP)
    assert backend.job_counts() == JobCounts(before.submitted + 1, before.ended)
    small.wait_for(lambda: small.state(job) == "RUNNING", 60, "the job to run")
    small.run("scontrol", "requeue", str(job))
    small.wait_for(lambda: small.state(job) == "PENDING", 60, "the job to be requeued")
    requeued = backend.job_counts()  # 22.05 counts its incarnation as one that has ended
    assert requeued.submitted == before.submitted + 1
    small.run("scancel", str(job))
    assert backend.job_counts() == JobCounts(requeued.submitted, requeued.ended + 1)


def test_a_column_that_slurm_does_not_know_is_an_error(small: SlurmCluster) -> None:
    """Slurm leaves such a column out and ends with exit code 0."""
    with pytest.raises(SlurmError) as error:
        CommandLine(small.env).table("sinfo", (("NodeList", 20), ("NoSuchColumn", 20)), "-N")
    assert not error.value.transient


def test_a_warning_is_no_failure(small: SlurmCluster, tmp_path: Path) -> None:
    """Of an option that is obsolete, each command prints an error, and works."""
    for program in ("squeue", "sinfo"):
        fake = tmp_path / program
        fake.write_text(
            f'#!/bin/sh\necho "{program}: error: Ignoring obsolete X=1" >&2\nexec {shutil.which(program)} "$@"\n'
        )
        fake.chmod(0o755)
    job = small.sbatch(SLEEP, "--hold")
    line = CommandLine({**small.env, "PATH": f"{tmp_path}:{small.env['PATH']}"})
    assert [j.job_id for j in line.jobs()] == [job] and len(line.nodes()) == 1


def test_a_slurm_without_json(small: SlurmCluster, tmp_path: Path) -> None:
    """Its AdminComments are the same, through scontrol."""
    fake = tmp_path / "squeue"
    fake.write_text(
        '#!/bin/sh\ncase "$*" in *--json*) echo "squeue: unrecognized option \'--json\'" >&2; exit 1;; esac\n'
        f'exec {shutil.which("squeue")} "$@"\n'
    )
    fake.chmod(0o755)
    jobs = [small.sbatch(SLEEP, "--hold", f"--job-name=plain{i}") for i in range(4)]
    forging = f"x\nJobId={jobs[0]} JobName=forged\n   AdminComment=forged"
    jobs.append(small.sbatch(SLEEP, "--hold", f"--job-name={forging}", "--comment=a\n   AdminComment=b"))
    array = small.sbatch(SLEEP, "--hold", "--array=1-3")
    for i in (*jobs, array):
        small.run("scontrol", "update", f"JobId={i}", f"AdminComment=of {i} = a,b")
    wanted = [*jobs, array, 4_000_000]
    found = CommandLine(small.env).admin_comments(wanted)
    assert found == {i: f"of {i} = a,b" for i in (*jobs, array)}
    line = CommandLine({**small.env, "PATH": f"{tmp_path}:{small.env['PATH']}"})
    # the job that forges has none of its own, and takes nobody else's
    assert line.admin_comments(wanted) == {i: text for i, text in found.items() if i != jobs[-1]}
    assert [line.admin_comment(i) for i in jobs[:2]] == [found[i] for i in jobs[:2]]


# -- the choice ----------------------------------------------------------------------------------------------------


@pytest.fixture
def own(small: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """`small`, as this process's own cluster."""
    for key in ("SLURM_CONF", "MUNGE_SOCKET", "PATH"):
        monkeypatch.setenv(key, small.env[key])
    return small


def test_choice_by_word() -> None:
    reader, why = open_reader({}, "command line")
    assert (reader.name, why) == ("command line", "the command line was asked for")
    with pytest.raises(UsageError, match="'perl' is none"):
        open_reader({}, "perl")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import os, sys\nprint('fatal: Could not establish a configuration source', file=sys.stderr)\nos._exit(1)\n",
         "configuration source"),
        ("__version__ = '17.11.0'\ndef slurm_api_version():\n    return 17, 11, 0\n", "is not made for Slurm"),
        ("__version__ = 'unknown'\ndef slurm_api_version():\n    return ()\n", "does not say which Slurm"),
        ("raise ImportError('libslurm.so.38: cannot open')\n", "libslurm.so.38: cannot open"),
    ],
    ids=["ends the process", "other Slurm", "no version", "broken"],
)  # fmt: skip
def test_a_pyslurm_that_does_not_fit(
    own: SlurmCluster, text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyslurm.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    reader, why = open_reader({})
    assert reader.name == "command line" and says in why and "\n" not in why
    assert [n.name for n in reader.nodes()] == ["n1"]
    with pytest.raises(UsageError, match=says):
        open_reader({}, "pyslurm")


def test_another_cluster_than_this_processes_own(
    small: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyslurm's process is given the cluster's SLURM_CONF."""
    says = f"import os\nassert os.environ['SLURM_CONF'] == '{small.conf}'"
    fits = CommandLine(small.env).version()
    (tmp_path / "pyslurm.py").write_text(module("old", version=fits, first=says))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    reader, why = open_reader({**small.env, "PYTHONPATH": python_path(tmp_path)})
    assert isinstance(reader, Fallback) and reader.name == "pyslurm", why
    assert reader.jobs()
    reader.close()


def test_without_slurms_commands(tmp_path: Path) -> None:
    reader, why = open_reader({"PATH": str(tmp_path)})
    assert reader.name == "command line" and why
    with pytest.raises(SlurmError, match="scontrol: can't be run") as error:
        reader.jobs()
    assert not error.value.transient


@pytest.mark.parametrize("backend", BACKENDS)
def test_auto_takes_what_fits(small: SlurmCluster, backend: str) -> None:
    raw = read_raw(small, "auto")
    if backend == "pyslurm":
        assert raw["name"] == "pyslurm" and "which is installed" in raw["why"]
    else:
        assert raw["name"] in available() and raw["why"]


# -- what a job asks of its nodes ----------------------------------------------------------------------------------


def test_leaf_switches_features_accounts_and_reservations() -> None:
    cluster = SlurmCluster([NodeGroup("a100", 4, 1)], slurm_conf=["TopologyPlugin=topology/tree"])
    (cluster.folder / "topology.conf").write_text(
        "SwitchName=s0 Nodes=n[1-2]\nSwitchName=s1 Nodes=n[3-4]\nSwitchName=spine Switches=s[0-1]\n"
    )
    with cluster as c:
        backend = CommandLine(environment=c.env)
        assert backend.leaf_switches() == {"n1": "s0", "n2": "s0", "n3": "s1", "n4": "s1"}
        c.run("scontrol", "update", "NodeName=n[1-2]", "AvailableFeatures=ib,fast", "ActiveFeatures=ib,fast")
        plain = c.sbatch(SLEEP, "--hold")
        picky = c.sbatch(SLEEP, "--hold", "--constraint=ib&fast", "--account=chem")
        c.run("scontrol", "create", "reservation", "ReservationName=week", "Users=root", "StartTime=now", "Duration=60",
              "Nodes=n4")  # fmt: skip
        kept = c.sbatch(SLEEP, "--hold", "--reservation=week")
        rows = {row.job_id: row for row in backend.jobs()}
        assert (rows[plain].features, rows[plain].reservation) == ("", "")
        assert (rows[picky].features, rows[picky].account) == ("ib&fast", "chem")
        assert rows[kept].reservation == "week"
        assert {n.name: n.features for n in backend.nodes()}["n1"] == ("ib", "fast")
    with SlurmCluster([NodeGroup("a100", 1, 1)]) as flat:
        assert CommandLine(environment=flat.env).leaf_switches() == {}
