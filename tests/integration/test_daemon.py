"""synergyd on a real cluster with light jobs: what it decides, what it writes, and what it says when something is away."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from synergyd.cli import explain as explain_cli
from synergyd.cli import status as status_cli
from synergyd.cli import synergyctl as synergyctl_cli
from synergyd.cli import synergyd as synergyd_cli
from synergyd.daemon import heartbeat
from synergyd.errors import UsageError
from synergyd.store.store import open_store
from synergyd.wire.codec import encode
from tests.throwaway import light_job
from tests.throwaway.postgres import Postgres
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = pytest.mark.slurm
pytest_plugins = ("tests.throwaway.fixtures_postgres",)
# as another user to Slurm and munge, who can still read a Python that lies in root's home
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+dac_override",
             "--ambient-caps=+dac_override")  # fmt: skip
MAINS = {"synergyd": synergyd_cli.main, "synergyctl": synergyctl_cli.main}
ELASTIC = "min_gpus=1 max_gpus=4"
READS = {"show", "ping", "--version", "write", "-V"}


@pytest.fixture
def site() -> Iterator[SlurmCluster]:
    """Two nodes with four GPUs each and the plugin; an epoch a second."""
    with make_cluster(epoch_s=1) as cluster:
        yield cluster


@pytest.fixture
def bare() -> Iterator[SlurmCluster]:
    """The same without the plugin."""
    with make_cluster(epoch_s=1, plugin=False) as cluster:
        yield cluster


class Shim:
    """Logs every scontrol and scancel that a process with this environment starts, then runs the real one."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.folder = cluster.folder / "shim"
        self.folder.mkdir()
        self._log = cluster.folder / "shim.log"
        for name in ("scontrol", "scancel"):
            real = shutil.which(name, path=cluster.env["PATH"])
            path = self.folder / name
            path.write_text(
                f"#!/bin/bash\nprintf '%s\\x1f' {name} \"$@\" >> {self._log}\nprintf '\\n' >> {self._log}\n"
                f'exec {real} "$@"\n'
            )
            path.chmod(0o755)
        self.environment = {"PATH": f"{self.folder}:{cluster.env['PATH']}"}

    def writes(self) -> list[list[str]]:
        """The calls that change something, word by word."""
        text = self._log.read_text() if self._log.exists() else ""
        calls = [line.split("\x1f")[:-1] for line in text.splitlines()]
        return [c for c in calls if c[0] == "scancel" or c[1] not in READS]

    def written(self) -> set[int]:
        """The job ids that those calls name."""
        return {int(n) for call in self.writes() for word in call for n in re.findall(r"\A(?:JobId=)?(\d+)", word)}


def shown(cluster: SlurmCluster) -> str:
    """All that Slurm shows of all jobs, without what time and Slurm's own scheduler change."""
    text = cluster.run("scontrol", "show", "job").stdout
    return re.sub(r"(RunTime|LastSchedEval|Reason|StartTime|EndTime|SchedNodeList|Scheduler)=\S+", "", text)


def status(cluster: SlurmCluster, url: str = "") -> dict[int, dict[str, Any]]:
    """What `synergyctl status --json` shows, by job id, without starting a process for each look; {} without a database."""
    try:
        with open_store(url or f"sqlite:///{cluster.state_dir}/synergy.db") as store:
            return {j["job_id"]: j for j in encode(status_cli.collect(store))["jobs"]}
    except UsageError:  # not made yet; a database that is away is an error here
        return {}


def sizes(cluster: SlurmCluster, *job_ids: int) -> list[int | None]:
    """GPUs that jobs hold, as `synergyctl status` shows them; None for one that is not in the last epoch."""
    found = status(cluster)
    return [found[i]["gpus"] if i in found else None for i in job_ids]


def explain(cluster: SlurmCluster, job_id: int, url: str = "") -> dict[str, Any]:
    """What `synergyctl explain --json` shows."""
    with open_store(url or f"sqlite:///{cluster.state_dir}/synergy.db") as store:
        return dict(encode(explain_cli.collect(store, job_id)))


def row_of(cluster: SlurmCluster, job_id: int) -> dict[str, Any]:
    """The job as squeue's JSON has it."""
    rows = json.loads(cluster.run("squeue", "-t", "all", "--json").stdout)["jobs"]
    found: dict[str, Any] = next(r for r in rows if r["job_id"] == job_id)
    return found


def until_beat(cluster: SlurmCluster) -> None:
    """Waits for the daemon's first heartbeat."""
    try:
        cluster.wait_for((cluster.state_dir / heartbeat.NAME).exists, 40, "the heartbeat")
    except RuntimeError as error:
        log = (cluster.folder / "log" / "synergyd.log").read_text()
        raise RuntimeError(f"{error}\nsynergyd: {log[-4000:]}") from None


def until_steps(cluster: SlurmCluster, *job_ids: int, steps: int = 2, timeout_s: float = 60) -> None:
    """Waits until the daemon knows by reports that these jobs train."""

    def trains() -> bool:
        found = status(cluster)
        return all((found.get(i) or {}).get("step") is not None and found[i]["step"] >= steps for i in job_ids)

    try:
        cluster.wait_for(trains, timeout_s, f"reports of {job_ids}")
    except RuntimeError as error:
        log = (cluster.folder / "log" / "synergyd.log").read_text()
        raise RuntimeError(
            f"{error}\n{log[-4000:]}\n{[light_job.output(cluster, i)[-500:] for i in job_ids]}"
        ) from None


def failed(cluster: SlurmCluster, *argv: str, code: int, **kwargs: Any) -> str:
    """Runs a command that must fail with `code` and exactly one line on the terminal, which is returned."""
    done = cluster.run(*argv, check=False, **kwargs)
    said = done.stderr.splitlines()
    log = [x for x in said if re.match(r"\d{4}-\d\d-\d\d .* INFO ", x)]
    said = [x for x in said if x not in log]
    assert "Traceback" not in done.stderr
    assert (done.returncode, len(said)) == (code, 1), (argv, done.returncode, done.stdout, done.stderr)
    return said[0]


Here = Callable[..., str]


@pytest.fixture
def here(site: SlurmCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """`failed` for our own commands on `site`, in this process: a start of Python for each would take minutes."""

    def run(*argv: str, code: int) -> str:
        with monkeypatch.context() as patch:
            for key, value in site.env.items():
                patch.setenv(key, value)
            patch.setattr(sys, "argv", list(argv))
            with pytest.raises(SystemExit) as ended:
                MAINS[argv[0]]()
        said = capfd.readouterr()
        lines = [x for x in said.err.splitlines() if " INFO " not in x]
        assert (ended.value.code, len(lines)) == (code, 1), (argv, ended.value.code, said)
        return lines[0]

    return run


# -- dry run, once -------------------------------------------------------------------------------------------------------


def test_dry_run_decides_stores_explains_and_touches_nothing(bare: SlurmCluster) -> None:
    jobs = [light_job.submit(bare, f"j{i}", directive=ELASTIC) for i in range(3)]
    plain = light_job.submit(bare, "plain", directive=None)
    bare.wait_for(lambda: [bare.state(i) for i in jobs] == ["RUNNING", "RUNNING", "PENDING"], 10, "two jobs to run")
    time.sleep(1)
    before, shim = shown(bare), Shim(bare)
    with synergyd(bare, "--dry-run", environment=shim.environment) as daemon:
        bare.wait_for(lambda: len(status(bare)) == 3, 15, "epochs")
        time.sleep(3)
        assert not (bare.state_dir / heartbeat.NAME).exists()
        assert daemon.process.poll() is None
    done = bare.run("synergyd", "--dry-run", "--once", env={**bare.env, **shim.environment})
    assert "Traceback" not in done.stderr
    assert shown(bare) == before
    assert shim.writes() == []
    assert sorted(p.name for p in (bare.state_dir / "plans").iterdir()) == []
    found = json.loads(bare.run("synergyctl", "status", "--json").stdout)
    assert found["dry_run"] is True
    assert [j["job_id"] for j in found["jobs"]] == jobs
    told = explain(bare, jobs[2])
    assert told["dry_run"] is True
    assert told["decision"]["action"] in ("wait", "start")
    assert "(dry run)" in bare.run("synergyctl", "explain", str(jobs[2])).stdout
    failed(bare, "synergyctl", "explain", str(plain), code=2)


def test_once_starts_what_it_decided_and_takes_its_heartbeat_away(site: SlurmCluster) -> None:
    heartbeat.write(site.state_dir, time.time(), 30)  # as if a daemon ran: the job waits for a decision
    job_id = light_job.submit(site, directive=ELASTIC, gpus=2)
    time.sleep(1)
    assert site.state(job_id) == "PENDING"
    assert site.run("synergyd", "--once").returncode == 0
    site.wait_for(lambda: site.state(job_id) == "RUNNING", 20, "the job to start")
    site.wait_for(lambda: "synergy: step 0: tp=1 pp=1 dp=4" in light_job.output(site, job_id), 10, "the plan's use")
    assert not (site.state_dir / heartbeat.NAME).exists()
    # nobody leads any more: a new job runs at once, as a plain one
    plain = light_job.submit(site, directive=ELASTIC, gpus=2)
    site.wait_for(lambda: site.state(plain) == "RUNNING", 10, "the plain job to start")


# -- who is written to ---------------------------------------------------------------------------------------------------


def test_no_write_goes_to_jobs_without_a_directive(site: SlurmCluster) -> None:
    shim = Shim(site)
    with synergyd(site, environment=shim.environment) as daemon:
        until_beat(site)
        plain = [light_job.submit(site, f"plain{i}", directive=None, gpus=g) for i, g in enumerate((1, 1, 4))]
        plain.append(site.sbatch("#!/bin/bash\nsleep 60\n", "--array=1-2", "--output=/dev/null"))
        plain.append(site.sbatch("#!/bin/bash\nsleep 60\n", "--hold", "--output=/dev/null"))
        shell = subprocess.Popen(["srun", "-n1", "sleep", "60"], env=site.env)
        ours = [light_job.submit(site, f"ours{i}", directive=ELASTIC, gpus=2) for i in range(3)]
        site.wait_for(lambda: set(ours) <= shim.written(), 30, "all three to be written to\n" + daemon.tail())
        time.sleep(3)
        shell.terminate()
        shell.wait(10)
    assert shim.written() == set(ours)
    comments = {r["job_id"]: r["admin_comment"] for r in json.loads(site.run("squeue", "--json").stdout)["jobs"]}
    assert all(not text for i, text in comments.items() if i not in ours)


def test_the_daemon_reads_directives_where_the_plugin_is_absent(bare: SlurmCluster) -> None:
    wrong = light_job.submit(bare, "wrong", directive="tp=0", gpus=1)
    array = light_job.submit(bare, "array", directive=ELASTIC, gpus=1, options=("--array=1-2",))
    jobs = [light_job.submit(bare, f"j{i}", directive=ELASTIC) for i in range(3)]
    shim = Shim(bare)
    with synergyd(bare, environment=shim.environment) as daemon:
        bare.wait_for(lambda: set(jobs) <= set(status(bare)), 15, "the jobs to be known")
        told = explain(bare, wrong)
        assert "tp='0' is not right; tp takes a whole number from 1 to 1024" in told["decision"]["why"]
        rows = json.loads(bare.run("squeue", "--json").stdout)["jobs"]
        members = [r["job_id"] for r in rows if r["name"] == "array"]
        assert array in members
        for member in members:
            if bare.state(member):
                assert "job array" in explain(bare, member)["decision"]["why"]
        # those that wait do so without a hold, and get GPUs when the others' agents have been told where to report
        bare.wait_for(
            lambda: all(status(bare)[i]["state"] == "RUNNING" for i in jobs), 45, "all to run\n" + daemon.tail()
        )
    assert not shim.written() & {wrong, *members}


def test_impossible_min_gpus_is_said_and_not_held(site: SlurmCluster) -> None:
    with synergyd(site):
        until_beat(site)
        job_id = light_job.submit(site, directive="min_gpus=64 max_gpus=128", gpus=4)
        site.wait_for(lambda: job_id in status(site), 15, "the job to be known")
        why = explain(site, job_id)["decision"]["why"]
        assert "64" in why and "8" in why, why
        row = row_of(site, job_id)
        assert row["priority"] != 0
        first = row["eligible_time"]
        assert first - row["submit_time"] < 60
        time.sleep(3)
        assert row_of(site, job_id)["eligible_time"] <= first, "put off again and again"


def test_pause_and_resume(site: SlurmCluster) -> None:
    with synergyd(site) as daemon:
        until_beat(site)
        first = [light_job.submit(site, f"first{i}", directive=ELASTIC) for i in range(2)]
        until_steps(site, *first)
        for job_id in first:
            assert site.run("synergyctl", "pause", str(job_id)).stdout == (
                f"job {job_id}: paused; it keeps its present size\n"
            )
        late = light_job.submit(site, "late", directive=ELASTIC)
        time.sleep(5)
        found = status(site)
        assert [found[i]["gpus"] for i in (*first, late)] == [4, 4, 0]
        assert [found[i]["paused"] for i in (*first, late)] == [True, True, False]
        assert "paused" in explain(site, first[0])["decision"]["why"]
        site.run("synergyctl", "resume", str(first[0]))
        site.wait_for(lambda: sizes(site, *first, late) == [2, 4, 2], 90, "a resize\n" + daemon.tail())
        assert status(site)[first[0]]["restarts"] == 1
        assert status(site)[first[1]]["restarts"] == 0


def test_a_job_that_can_not_shrink_is_stopped_for_a_weightier_one_and_goes_on_where_it_was(site: SlurmCluster) -> None:
    whole = "min_gpus=4 max_gpus=4"
    with synergyd(site) as daemon:
        until_beat(site)
        first = [light_job.submit(site, f"first{i}", directive=whole) for i in range(2)]
        until_steps(site, *first)
        late = light_job.submit(site, "late", directive=f"{whole} weight=50")
        site.wait_for(lambda: sizes(site, late) == [4], 120, "the weightier job\n" + daemon.tail())
        (stopped,) = [i for i in first if status(site)[i]["gpus"] == 0]
        (other,) = [i for i in first if i != stopped]
        assert row_of(site, stopped)["job_state"] == "PENDING"
        told = explain(site, stopped)
        assert any("preemption decided: 4 GPUs" in str(event) for event in told["story"]), told["story"]
        before = status(site)[stopped]["step"]
        site.run("scancel", str(late))
        site.wait_for(lambda: sizes(site, *first) == [4, 4], 60, "its second start\n" + daemon.tail())
        until_steps(site, stopped, steps=before + 1)
        found = status(site)
        assert (found[stopped]["restarts"], found[other]["restarts"]) == (1, 0)


def test_the_users_own_hold_and_begin_time_are_respected(site: SlurmCluster) -> None:
    with synergyd(site):
        until_beat(site)
        held = light_job.submit(site, "held", directive=ELASTIC, options=("--hold",))
        later = light_job.submit(site, "later", directive=ELASTIC, options=("--begin=now+3600",))
        site.wait_for(lambda: {held, later} <= set(status(site)), 15, "the jobs to be known")
        time.sleep(4)
        row = row_of(site, held)
        assert (row["priority"], row["state_reason"]) == (0, "JobHeldUser")
        row = row_of(site, later)
        assert abs(row["eligible_time"] - row["submit_time"] - 3600) <= 2
        assert "held" in explain(site, held)["decision"]["why"]
        assert "begin" in explain(site, later)["decision"]["why"]
        site.run("scontrol", "release", str(held))
        site.wait_for(lambda: site.state(held) == "RUNNING", 45, "the released job to start")


# -- what it shows -------------------------------------------------------------------------------------------------------


def test_every_verb_shows_what_happened(site: SlurmCluster) -> None:
    with synergyd(site) as daemon:
        until_beat(site)
        job_id = light_job.submit(site, "shown", directive=ELASTIC, gpus=2)
        until_steps(site, job_id)
        table = site.run("synergyctl", "status").stdout
        assert re.search(rf"│{job_id} +│ shown │ root │ running │", table), table
        one = json.loads(site.run("synergyctl", "status", str(job_id), "--json").stdout)["jobs"]
        assert [(j["job_id"], j["gpus"], j["asked_gpus"], j["plan"]["dp"]) for j in one] == [(job_id, 4, 2, 4)]
        told = explain(site, job_id)
        assert told["decision"]["why"] and told["alternatives"] and told["report"]["checkpoint_requests"] == 0
        states = [e["state"] for e in told["story"]]
        assert states[-1] == "RUNNING" and "RELEASED" in states
        text = site.run("synergyctl", "explain", str(job_id)).stdout
        for words in ("  Keeps 4 cpu GPUs on one node", "\nalternatives\n", "\nstory\n", told["story"][-1]["detail"]):
            assert words in text
        script = site.run("synergyctl", "render", str(job_id)).stdout
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        assert str(Path(light_job.__file__).resolve()) in script
        plan = ("plan", "--model", "llama2-7b", "--gpus", "8", "--gpu-type", "a100")
        assert "tp" in site.run("synergyctl", *plan).stdout.lower()
        assert json.loads(site.run("synergyctl", *plan, "--json").stdout)
        config = json.loads(site.run("synergyctl", "config", "check", "--json").stdout)
        origins = {s["key"]: (s["value"], s["origin"]) for s in config["settings"]}
        number = 1 + next(i for i, x in enumerate(site.conf.read_text().splitlines()) if "StateDir=" in x)
        assert origins["StateDir"] == (str(site.state_dir), f"{site.conf}:{number}")
        assert {p["severity"] for p in config["problems"]} <= {"warning"}, config["problems"]
        assert "\n0 errors, " in site.run("synergyctl", "config", "check").stdout
        assert "as needed" in site.run("synergyctl", "db", "current").stdout
        assert "Traceback" not in daemon.log.read_text()


# -- the database --------------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_database_that_is_away_stops_nothing(site: SlurmCluster, postgres_server: Postgres) -> None:
    url = postgres_server.database()
    assert "schema created" in site.run("synergyctl", "--database", url, "db", "upgrade").stdout

    def beat() -> int:
        return int((site.state_dir / heartbeat.NAME).read_text().split()[0])

    with synergyd(site, "--database", url) as daemon:
        until_beat(site)
        first = light_job.submit(site, "first", directive=ELASTIC)
        site.wait_for(lambda: (status(site, url).get(first) or {}).get("step"), 20, "reports\n" + daemon.tail())
        postgres_server.stop()
        line = failed(site, "synergyctl", "--database", url, "status", code=1)
        assert postgres_server.password not in line
        at = beat()
        # a job that arrives, starts and makes the first one shrink, all while the database is away
        others = [light_job.submit(site, f"late{i}", directive=ELASTIC) for i in range(2)]
        site.wait_for(lambda: all(site.state(i) == "RUNNING" for i in (first, *others)), 40, daemon.tail())
        assert daemon.process.poll() is None and beat() > at
        postgres_server.start()
        site.wait_for(
            lambda: set(others) <= set(status(site, url)), 40, "the database to be caught up\n" + daemon.tail()
        )
        for job_id in (first, *others):
            told = explain(site, job_id, url)
            assert told["story"][-1]["state"] == "RUNNING"
            assert any("started" in e["detail"] for e in told["story"]), told["story"]
        epochs = [r[0] for r in postgres_server.run("SELECT started_s FROM epochs ORDER BY 1", url.rpartition("/")[2])]
        gaps = [b - a for a, b in pairwise(epochs)]  # type: ignore[operator]
        assert max(gaps) < 10, "epochs of the outage were lost"
        assert "Traceback" not in daemon.log.read_text()


@pytest.mark.postgres
def test_wrong_databases_are_one_line(site: SlurmCluster, here: Here, postgres_server: Postgres) -> None:
    postgres_server.start()
    unmade = postgres_server.database()
    absent = postgres_server.url("absent")
    refused = unmade.replace(postgres_server.password, "wrong")
    for url, code, words in (
        ("nonsense", 2, "database URL"),
        ("mysql://u:secret@h/d", 2, "mysql"),
        (unmade, 2, "db upgrade"),
        (absent, 2, "absent"),
        (refused, 2, "password"),
        ("sqlite:////nonexistent/folder/x.db", 2, "/nonexistent/folder"),
    ):
        for command in (("synergyd", "--database", url, "--once"), ("synergyctl", "--database", url, "status")):
            line = here(*command, code=code)
            assert line.startswith(f"{command[0]}: "), line
            assert words in line, line
            assert "secret" not in line and postgres_server.password not in line
    assert not (site.state_dir / heartbeat.NAME).exists()


# -- rights and trust ----------------------------------------------------------------------------------------------------


def test_without_the_right_to_update_jobs_one_line_says_so(site: SlurmCluster) -> None:
    site.state_dir.chmod(0o777)
    heartbeat.write(site.state_dir, time.time(), 30)
    job_id = light_job.submit(site, directive=ELASTIC)
    line = failed(site, *AS_NOBODY, "synergyd", code=2)
    assert line.startswith("synergyd: scontrol update JobId=1: uid 65534 may not manage jobs (")
    assert line.endswith("run synergyd as root, SlurmUser, or with AdminLevel=Admin")
    assert not (site.state_dir / heartbeat.NAME).exists()
    assert site.state(job_id) == "PENDING"


def test_a_strangers_report_is_refused(site: SlurmCluster) -> None:
    with synergyd(site) as daemon:
        until_beat(site)
        job_id = light_job.submit(site, directive=ELASTIC)
        until_steps(site, job_id)
        address = f"127.0.0.1:{site.port + 90}"
        code = (
            "from synergyd.wire.report import send; from synergyd.records import Report\n"
            f"send(Report({job_id}, 0, 999999, loss=7.5, checkpoint_requests=9, note='forged'), {address!r})"
        )
        site.run(*AS_NOBODY, sys.executable, "-c", code)
        site.wait_for(lambda: "refused: not its owner's" in daemon.log.read_text(), 10, "the refusal")
        for raw in (b"nonsense\n", b"\0" * 200_000, b"MUNGE:AAAA:\n", b""):
            send_raw(site.port + 90, raw)
        time.sleep(2)
        row = status(site)[job_id]
        assert row["step"] < 999999 and row["loss"] != 7.5
        assert explain(site, job_id)["note"] != "forged"
        assert daemon.process.poll() is None
        assert "Traceback" not in daemon.log.read_text()
        steps = row["step"]
        site.wait_for(lambda: status(site)[job_id]["step"] > steps, 25, "the owner's next report")


def send_raw(port: int, raw: bytes) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(10)
        except OSError:
            pass  # closed on us: as good a refusal as any


def test_without_munge_training_goes_on_and_says_so_once(site: SlurmCluster) -> None:
    with synergyd(site):
        until_beat(site)
        path = Path(light_job.__file__).resolve()
        out = site.folder / "out"
        job_id = site.sbatch(
            "#!/bin/bash\n#SBATCH --gres=gpu:1\n#SYNERGY max_gpus=1 global_batch=8 "
            f"checkpoint={site.folder}/c model={model(site)}\n"
            f"srun env MUNGE_SOCKET=/nonexistent synergy-launch --runner python --checkpoint {site.folder}/c {path} 150\n",
            f"--output={out}",
        )
        try:
            site.wait_for(lambda: site.state(job_id) == "COMPLETED", 60, "the job to end")
        except RuntimeError:
            raise AssertionError((site.state(job_id), out.read_text() if out.exists() else None)) from None
        said = [x for x in out.read_text().splitlines() if "munge" in x.lower()]
        assert len(said) == 1 and said[0].endswith("; training goes on"), out.read_text()
        assert "done at step 150" in out.read_text()


def model(cluster: SlurmCluster) -> Path:
    path = cluster.folder / "model.json"
    path.write_text(json.dumps(light_job.MODEL))
    return path


def test_a_second_daemon_stands_by_and_takes_over(site: SlurmCluster) -> None:
    other = site.folder / "other.conf"
    other.write_text(site.conf.read_text().replace(f"ReportPort={site.port + 90}", f"ReportPort={site.port + 91}"))
    with synergyd(site) as first:
        until_beat(site)
        job_id = light_job.submit(site, directive=ELASTIC)
        until_steps(site, job_id)
        shim = Shim(site)
        log = site.folder / "log" / "second.log"
        with log.open("wb") as stream:
            environment = {**site.env, **shim.environment}
            second = subprocess.Popen(["synergyd", "--conf", str(other)], env=environment, stdout=stream, stderr=stream)
        try:
            site.wait_for(lambda: "standing by: another synergyd leads" in log.read_text(), 15, "the second")
            late = [light_job.submit(site, f"late{i}", directive=ELASTIC) for i in range(2)]
            site.wait_for(lambda: all(site.state(i) == "RUNNING" for i in late), 40, first.tail())
            assert shim.writes() == []
            first.kill()
            last = [light_job.submit(site, "last", directive=f"{ELASTIC} weight=5")]
            site.wait_for(lambda: all(site.state(i) == "RUNNING" for i in last), 90, log.read_text())
            assert shim.writes()
            # the jobs have found their new address
            before = {i: status(site)[i]["step"] or 0 for i in late}
            site.wait_for(lambda: all((status(site)[i]["step"] or 0) > before[i] for i in late), 90, log.read_text())
            assert "Traceback" not in log.read_text()
        finally:
            second.terminate()
            second.wait(20)


def test_a_strangers_text_is_only_text(site: SlurmCluster) -> None:
    mark = site.folder / "pwned"
    evil = f"a'b\"; touch {mark}; $(touch {mark}) `touch {mark}` | & \\ % [bold]"
    folder = site.folder / f"it's; touch {mark.name} [red] & %s"
    with synergyd(site) as daemon:
        until_beat(site)
        path = Path(light_job.__file__).resolve()
        out = site.folder / "out"
        job_id = site.sbatch(
            f"#!/bin/bash\n#SBATCH --gres=gpu:4 --open-mode=append\n"
            f'#SYNERGY {ELASTIC} global_batch=8 micro_batch=1 model={model(site)} checkpoint="{folder}"\n'
            f"srun synergy-launch --runner python {path} 100000\n",
            "-J", evil, f"--output={out}", "--comment", evil,
        )  # fmt: skip
        other = light_job.submit(site, f"x\nJobId={job_id}\n   AdminComment=synergy:1", directive=ELASTIC)
        until_steps(site, job_id, other)
        site.run("synergyctl", "pause", str(other))
        late = light_job.submit(site, "late", directive=ELASTIC)  # only the first job can make room for it
        site.wait_for(lambda: status(site)[job_id]["restarts"] >= 1, 60, "a resize\n" + daemon.tail())
        until_steps(site, job_id, other, late)
        assert status(site)[job_id]["name"] == evil[: len(status(site)[job_id]["name"])]
        script = site.run("synergyctl", "render", str(job_id)).stdout
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        assert shlex.quote(str(folder)) in script
        assert "$(touch" in site.run("synergyctl", "status").stdout or "a'b" in site.run("synergyctl", "status").stdout
        assert (folder / "steps.jsonl").exists()
    assert not mark.exists() and not list(Path.cwd().glob("pwned*"))
    assert "Traceback" not in daemon.log.read_text()


# -- the link arbiter ------------------------------------------------------------------------------------------------------


def test_jobs_on_the_same_nodes_take_turns_by_the_daemon_s_arbiter() -> None:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("", 0))
        other.bind(("", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    words = f"#SYNERGY LinkArbiterPort={ports[0]} LinkArbiterRule=srsf-1 LinkArbiterWait=0.3 MetricsPort={ports[1]}"
    with make_cluster(epoch_s=1, settings=(words,)) as cluster, synergyd(cluster) as daemon:
        until_beat(cluster)
        wide = "--nodes=2", "--gres=gpu:2"
        both = [light_job.submit(cluster, f"wide{i}", directive="resize=no", options=wide) for i in range(2)]
        until_steps(cluster, *both)

        def counted(name: str) -> float:
            text = urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/metrics", timeout=5).read().decode()
            return next(float(x.split()[1]) for x in text.splitlines() if x.startswith(f"{name} "))

        cluster.wait_for(lambda: counted("synergy_link_waited_total") >= 5, 60, "turns\n" + daemon.tail())
        assert counted("synergy_link_connections") == 2
        assert counted("synergy_link_at_once_total") > 0
        before = [status(cluster)[i]["step"] for i in both]
        arbiter = int(cluster.run("pgrep", "-P", str(daemon.process.pid), "-f", "link_process").stdout.split()[0])
        os.kill(arbiter, signal.SIGKILL)
        until_steps(cluster, *both, steps=max(before) + 5)  # nobody waits for one that is gone
        cluster.wait_for(lambda: counted("synergy_link_connections") == 2, 60, "another arbiter\n" + daemon.tail())


# -- bad input -----------------------------------------------------------------------------------------------------------


def test_each_bad_command_line_is_one_line(site: SlurmCluster, here: Here) -> None:
    for argv, code, words in (
        (("synergyctl", "explain", "4711"), 2, "job 4711: was never seen"),
        (("synergyctl", "pause", "4711"), 2, "job 4711: was never seen"),
        (("synergyctl", "render", "4711"), 2, "job 4711: has no decided size"),
        (("synergyctl", "status", "4711"), 2, "job 4711: is not in the last epoch"),
        (("synergyctl", "plan", "--model", "nonsense", "--gpus", "8", "--gpu-type", "a100"), 2, "nonsense"),
        (("synergyctl", "plan", "--model", "llama2-7b", "--gpus", "x", "--gpu-type", "a100"), 2, "x"),
        (("synergyctl", "--conf", "/nonexistent", "status"), 2, "/nonexistent"),
        (("synergyd", "--conf", "/nonexistent"), 2, "/nonexistent"),
    ):
        if words.startswith("job 4711") and not (site.state_dir / "synergy.db").exists():
            line = here(*argv, code=2)
            assert "there is no such database yet; start synergyd" in line
            site.run("synergyd", "--dry-run", "--once")
        assert words in here(*argv, code=code)
    assert "/nonexistent.py" in failed(site, "synergy-launch", "/nonexistent.py", code=2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Epoch=soon", "Epoch"),
        ("Epcoh=5", "did you mean Epoch"),
        ("Database=nonsense", "Database"),
        ("StateDir=relative", "StateDir"),
        ("StateDir=/proc/synergy", "/proc/synergy"),
        ("ReportPort=70000", "ReportPort"),
        ("Policy=best", "Policy"),
    ],
)
def test_each_wrong_setting_is_one_line(site: SlurmCluster, here: Here, line: str, words: str) -> None:
    conf = site.folder / "wrong.conf"
    text = re.sub(r"\S*StateDir=\S+", "", site.conf.read_text()) if "StateDir" in line else site.conf.read_text()
    key = line.partition("=")[0]
    text = re.sub(rf"\b{key}=\S+", "", text)
    conf.write_text(text + f"#SYNERGY {line}\n")
    assert words in here("synergyd", "--conf", str(conf), "--once", code=2)


def test_without_slurm_one_line(site: SlurmCluster) -> None:
    outside = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    if not any(Path(p).exists() for p in ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")):
        assert "slurm.conf" in failed(site, "synergyd", "--once", code=2, env=outside)
        assert "slurm.conf" in failed(site, "synergyctl", "status", code=2, env=outside)
    missing = {**site.env, "SLURM_CONF": "/nonexistent/slurm.conf"}
    assert "/nonexistent/slurm.conf" in failed(site, "synergyd", "--once", code=2, env=missing)
    site.kill("slurmctld")
    line = failed(site, "synergyd", "--once", code=1)
    assert "Unable to contact slurm controller" in line
