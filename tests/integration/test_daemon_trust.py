"""synergyd on a real cluster: databases, rights, strangers, stand-by, the link arbiter, and what it says to bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest

from synergyd.daemon import heartbeat
from tests.integration.daemon_site import (
    AS_OTHER,
    ELASTIC,
    Here,
    Shim,
    explain,
    failed,
    status,
    until_beat,
    until_steps,
)
from tests.throwaway import light_job
from tests.throwaway.accounting import OTHER
from tests.throwaway.postgres import Postgres
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = pytest.mark.slurm
pytest_plugins = ("tests.throwaway.fixtures_postgres",)


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
        site.wait_for(lambda: (status(site, url).get(first) or {}).get("step"), 150, "reports\n" + daemon.tail())
        away_s = time.monotonic()
        postgres_server.stop()
        line = failed(site, "synergyctl", "--database", url, "status", code=1)
        assert postgres_server.password not in line
        at = beat()
        # a job that arrives, starts and makes the first one shrink, all while the database is away
        others = [light_job.submit(site, f"late{i}", directive=ELASTIC) for i in range(2)]
        site.wait_for(lambda: all(site.state(i) == "RUNNING" for i in (first, *others)), 120, daemon.tail())
        site.wait_for(lambda: beat() > at, 60, "the next epoch")
        assert daemon.process.poll() is None
        postgres_server.start()
        away_s = time.monotonic() - away_s
        site.wait_for(
            lambda: set(others) <= set(status(site, url)), 120, "the database to be caught up\n" + daemon.tail()
        )
        for job_id in (first, *others):  # what has waited longest is written first
            site.wait_for(
                lambda i=job_id: [e["state"] for e in explain(site, i, url)["story"]][-1:] == ["RUNNING"],  # type: ignore[misc]
                60,
                "its story",
            )
            told = explain(site, job_id, url)
            assert any("started" in e["detail"] for e in told["story"]), told["story"]
        epochs = [r[0] for r in postgres_server.run("SELECT started_s FROM epochs ORDER BY 1", url.rpartition("/")[2])]
        gaps = [b - a for a, b in pairwise(epochs)]  # type: ignore[operator]
        assert max(gaps) < max(10, away_s / 2), "epochs of the outage were lost"
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
    heartbeat.write(site.state_dir, time.time(), 120)
    job_id = light_job.submit(site, directive=ELASTIC)
    line = failed(site, *AS_OTHER, "synergyd", code=2)
    assert line.startswith(f"synergyd: user {OTHER}: it may not write to jobs: ")
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
            "from synergy_core.wire.report import send; from synergy_core.job_report import Report\n"
            f"send(Report({job_id}, 0, 999999, loss=7.5, checkpoint_requests=9, note='forged'), {address!r}, timeout_s=60)"
        )
        site.run(*AS_OTHER, sys.executable, "-c", code)
        site.wait_for(lambda: f"refused: job {job_id} is not uid" in daemon.log.read_text(), 60, "the refusal")
        for raw in (b"nonsense\n", b"\0" * 200_000, b"MUNGE:AAAA:\n", b""):
            send_raw(site.port + 90, raw)
        time.sleep(2)
        row = status(site)[job_id]
        assert row["step"] < 999999 and row["loss"] != 7.5
        assert explain(site, job_id)["note"] != "forged"
        assert daemon.process.poll() is None
        assert "Traceback" not in daemon.log.read_text()
        steps = row["step"]
        site.wait_for(lambda: status(site)[job_id]["step"] > steps, 150, "the owner's next report")


def send_raw(port: int, raw: bytes) -> None:
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
            "srun env MUNGE_SOCKET=/nonexistent SYNERGY_STATE_DIR=/nonexistent "  # nor a key
            f"synergy-launch --runner python --checkpoint {site.folder}/c {path} 50\n",
            f"--output={out}",
        )
        try:
            site.wait_for(lambda: site.state(job_id) == "COMPLETED", 180, "the job to end")
        except RuntimeError:
            raise AssertionError((site.state(job_id), out.read_text() if out.exists() else None)) from None
        said = [x for x in out.read_text().splitlines() if "munge" in x.lower()]
        assert len(said) == 1 and said[0].endswith("; training goes on"), out.read_text()
        assert "done at step 50" in out.read_text()


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
            site.wait_for(lambda: "standing by: another synergyd leads" in log.read_text(), 120, "the second")
            late = [light_job.submit(site, f"late{i}", directive=ELASTIC) for i in range(2)]
            site.wait_for(lambda: all(site.state(i) == "RUNNING" for i in late), 150, first.tail())
            assert shim.writes() == []
            first.kill()
            last = [light_job.submit(site, "last", directive=f"{ELASTIC} weight=5")]
            site.wait_for(lambda: all(site.state(i) == "RUNNING" for i in last), 150, log.read_text())
            assert shim.writes()
            # the jobs have found their new address
            before = {i: status(site)[i]["step"] or 0 for i in late}
            site.wait_for(lambda: all((status(site)[i]["step"] or 0) > before[i] for i in late), 150, log.read_text())
            assert "Traceback" not in log.read_text()
        finally:
            second.terminate()
            second.wait(60)


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
        site.wait_for(lambda: status(site)[job_id]["restarts"] >= 1, 150, "a resize\n" + daemon.tail())
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
    def set_up(cluster: SlurmCluster) -> SlurmCluster:
        """With ports of the cluster's own block, behind those of accounting."""
        ports = f"LinkArbiterPort={cluster.port + 94} MetricsPort={cluster.port + 95}"
        with cluster.conf.open("a") as conf:
            conf.write(f"#SYNERGY {ports} LinkArbiterRule=srsf-1\n")
        return cluster

    with make_cluster(epoch_s=1) as cluster, synergyd(set_up(cluster)) as daemon:
        until_beat(cluster)
        wide = "--nodes=2", "--gres=gpu:2"
        both = [light_job.submit(cluster, f"wide{i}", directive="resize=no", options=wide) for i in range(2)]
        until_steps(cluster, *both)

        def counted(name: str) -> float:
            text = urllib.request.urlopen(f"http://127.0.0.1:{cluster.port + 95}/metrics", timeout=30).read().decode()
            return next((float(x.split()[1]) for x in text.splitlines() if x.startswith(f"{name} ")), 0.0)

        cluster.wait_for(lambda: counted("synergy_link_waited_total") >= 5, 150, "turns\n" + daemon.tail())
        cluster.wait_for(lambda: counted("synergy_link_connections") == 2, 60, "both to be connected")
        cluster.wait_for(lambda: counted("synergy_link_at_once_total") > 0, 60, "one that has waited long enough")
        before = [status(cluster)[i]["step"] for i in both]
        arbiter = int(
            cluster.run("pgrep", "-P", str(daemon.process.pid), "-f", "daemon.links.process").stdout.split()[0]
        )
        os.kill(arbiter, signal.SIGKILL)
        until_steps(cluster, *both, steps=max(before) + 5)  # nobody waits for one that is gone
        cluster.wait_for(lambda: counted("synergy_link_connections") == 2, 150, "another arbiter\n" + daemon.tail())


# -- bad input -----------------------------------------------------------------------------------------------------------


def test_each_bad_command_line_is_one_line(site: SlurmCluster, here: Here) -> None:
    for argv, code, words in (
        (("synergyctl", "explain", "4711"), 2, "job 4711: was never seen"),
        (("synergyctl", "pause", "4711"), 2, "job 4711: was never seen"),
        (("synergyctl", "render", "4711"), 2, "job 4711: was never seen by the daemon"),
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
    # its disk may be mounted late: systemd tries again after code 1, and not after 2
    missing = f"sqlite:///{site.state_dir}/away.db"
    assert "no such database yet" in here("synergyd", "--once", "--database", missing, code=1)


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
