"""The REST service on a real cluster: users by munge and by Slurm's tokens, rights from Slurm and slurmdbd, jobs steered."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from synergy_core.errors import SynergyError
from synergy_core.wire import munge

from tests.integration.daemon_site import until_beat
from tests.throwaway import light_job
from tests.throwaway.accounting import OTHER, OTHER_UID, Accounting
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import explain, make_cluster, status, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can submit and ask as several users"),
]
# name, uid: strangers to one another; www-data coordinates the account of games, man is an operator
GAMES, COORDINATOR, OPERATOR = 5, 33, 6
REST_PORT = 91  # behind the ports of the cluster's own in its block


def as_user(uid: int) -> tuple[str, ...]:
    """A user to Slurm and munge, who can still read a Python that lies in root's home."""
    ids = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    return ("setpriv", *ids, "--inh-caps=+dac_override", "--ambient-caps=+dac_override")


@dataclass
class Site:
    cluster: SlurmCluster
    job_id: int  # of games, in account chem

    def ctl(self, uid: int, *words: str, far: bool = False) -> subprocess.CompletedProcess[str]:
        """synergyctl as that user; `far`: from a host that shares slurm.conf alone."""
        environment = dict(self.cluster.env)
        if far:
            conf = self.cluster.folder / "login.conf"
            text = self.cluster.conf.read_text()
            conf.write_text(text.replace(f"StateDir={self.cluster.state_dir}", "StateDir=/var/lib/not-here"))
            environment["SLURM_CONF"] = str(conf)
        return self.cluster.run(*as_user(uid), "synergyctl", *words, check=False, env=environment)

    def token(self, user: str, lifespan_s: int = 600) -> str:
        text = self.cluster.run("scontrol", "token", f"username={user}", f"lifespan={lifespan_s}").stdout
        return text.strip().partition("=")[2]

    def http(self, target: str, token: str, method: str = "GET") -> tuple[int, Any]:
        url = f"http://127.0.0.1:{self.cluster.port + REST_PORT}{target}"
        request = urllib.request.Request(url, method=method, headers={"X-SLURM-USER-TOKEN": token})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    cluster = make_cluster(epoch_s=1)
    key = cluster.folder / "jwt.key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    cluster.slurm_conf = (
        *cluster.slurm_conf,
        "PrivateData=jobs",
        f"AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={key}",
    )
    cluster.accounting = Accounting(
        ("add account chem", "add account bio", "add user root account=chem", "add user games account=chem",
         f"add user {OTHER} account=bio", "add user www-data account=chem", "add user man account=bio adminlevel=operator",
         "add coordinator account=chem names=www-data")
    )  # fmt: skip
    with cluster:
        conf = cluster.conf
        conf.write_text(conf.read_text() + f"\n#SYNERGY RestPort={cluster.port + REST_PORT}\n")
        with synergyd(cluster):
            until_beat(cluster)
            with (cluster.folder / "log" / "synergyrestd.log").open("ab") as log:
                process = subprocess.Popen(["synergyrestd"], env=cluster.env, stdout=log, stderr=log)
            try:
                options: dict[str, Any] = {"user": GAMES, "group": GAMES, "extra_groups": [], "cwd": "/"}
                script = (
                    "#!/bin/bash\n#SBATCH --gres=gpu:1 --nodes=1 --output=/dev/null\n"
                    "#SYNERGY min_gpus=1 max_gpus=2 global_batch=8 micro_batch=1\nsleep 600\n"
                )
                job_id = cluster.sbatch(script, "--account=chem", "--time=60", **options)
                cluster.wait_for(lambda: job_id in status(cluster), 120, "its job")
                cluster.wait_for((cluster.state_dir / "rest.sock").is_socket, 120, "the service")
                yield Site(cluster, job_id)
            finally:
                process.terminate()
                assert process.wait(60) == 0
    assert not (cluster.state_dir / "rest.sock").exists()


def test_users_see_and_steer_what_slurm_lets_them(here: Site) -> None:
    job = str(here.job_id)
    seen = {
        uid: [j["job_id"] for j in json.loads(here.ctl(uid, "status", "--json").stdout)["jobs"]]
        for uid in (OTHER_UID, GAMES, COORDINATOR, OPERATOR)
    }
    assert seen == {OTHER_UID: [], GAMES: [here.job_id], COORDINATOR: [here.job_id], OPERATOR: [here.job_id]}
    hidden, unknown = here.ctl(OTHER_UID, "explain", job), here.ctl(OTHER_UID, "explain", "99")
    assert hidden.returncode == unknown.returncode == 2 and hidden.stderr == unknown.stderr.replace("99", job)
    assert here.ctl(OTHER_UID, "pause", job).returncode == 2 and not status(here.cluster)[here.job_id]["paused"]
    for uid, verb in ((GAMES, "pause"), (COORDINATOR, "resume"), (OPERATOR, "pause"), (GAMES, "resume")):
        assert here.ctl(uid, verb, job).stdout.startswith(f"job {job}: ")
    story = [e["detail"] for e in explain(here.cluster, here.job_id)["story"] if e["event"] == "Steered"]
    assert story == ["games paused it", "www-data resumed it", "man paused it", "games resumed it"]


def test_a_login_node_asks_the_port_and_a_set_bound_holds(here: Site) -> None:
    job = str(here.job_id)
    told = here.ctl(GAMES, "explain", job, "--json", far=True)
    assert json.loads(told.stdout)["job_id"] == here.job_id, told.stderr
    training = light_job.submit(here.cluster, directive="min_gpus=1 max_gpus=4")  # of root's

    def shown(what: str) -> Any:
        return (status(here.cluster).get(training) or {}).get(what)

    here.cluster.wait_for(lambda: shown("gpus") == 4, 120, "four GPUs")
    here.cluster.wait_for(lambda: shown("step"), 120, "reports")
    done = here.ctl(OPERATOR, "set", str(training), "max_gpus=1", far=True)
    assert done.stdout == f"job {training}: max_gpus=1\n", done.stderr
    here.cluster.wait_for(lambda: shown("gpus") == 1, 150, "one GPU")
    back = here.ctl(OPERATOR, "set", str(training), "max_gpus=", far=True)
    assert back.stdout == f"job {training}: as in its script\n", back.stderr
    assert here.ctl(GAMES, "set", str(training), "max_gpus=1", far=True).returncode == 2  # hidden from it
    here.cluster.run("scancel", str(training))
    wrong = here.ctl(GAMES, "set", job, "max_gpus=none", far=True)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "is no number" in wrong.stderr


def test_slurms_tokens_open_it_and_forged_ones_do_not(here: Site) -> None:
    target = f"/v1/jobs/{here.job_id}/explain"
    assert here.http(target, here.token("games"))[0] == 200
    assert here.http(target, here.token(OTHER))[0] == 404
    jobs = here.http("/v1/status", here.token("man"))[1]["jobs"]
    assert [j["user"] for j in jobs if j["job_id"] == here.job_id] == ["games"]
    good = here.token(OTHER)
    header, _, signature = good.split(".")
    forged = ".".join([header, here.token("man").split(".")[1], signature])
    brief = here.token("games", 1)
    time.sleep(2)
    for wrong in (forged, brief, good[:-3], "x"):
        code, told = here.http("/v1/status", wrong)
        assert code == 401 and told["title"]


@pytest.mark.parametrize("port", [94, 0])
def test_no_service_is_one_line_that_an_ordinary_user_can_act_on(here: Site, port: int) -> None:
    conf = here.cluster.folder / f"away-{port}.conf"
    text = here.cluster.conf.read_text().replace(f"StateDir={here.cluster.state_dir}", "StateDir=/var/lib/no")
    of_nobody = f"RestPort={here.cluster.port + port}" if port else ""
    conf.write_text(text.replace(f"RestPort={here.cluster.port + REST_PORT}", of_nobody))
    environment = {**here.cluster.env, "SLURM_CONF": str(conf)}
    for words in (("status",), ("pause", "1"), ("explain", "1")):
        done = here.cluster.run(*as_user(GAMES), "synergyctl", *words, check=False, env=environment)
        assert done.returncode == 1 and done.stderr.endswith("; ask the cluster's admin to start synergyrestd\n")
        assert done.stderr.count("\n") == 1


def test_a_link_to_the_page_is_for_its_user_alone(here: Site) -> None:
    secrets_of = [here.ctl(GAMES, "page", far=far).stdout.strip().rpartition("#/login/")[2] for far in (False, True)]
    assert len(set(secrets_of)) == 2 and all(len(secret) > 40 for secret in secrets_of)
    sealed = here.http("/v1/page-link", here.token("games"), "POST")[1]["link"]
    with pytest.raises(SynergyError, match="nauthorized"):
        munge.decode(sealed, here.cluster.env["MUNGE_SOCKET"])  # as root
    url = f"http://127.0.0.1:{here.cluster.port + REST_PORT}/v1/session"
    body = json.dumps({"link": secrets_of[1]}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, method="POST"), timeout=20) as answer:
        session = json.loads(answer.read())
    assert session["user"] == "games" and here.http("/v1/me", session["token"])[1]["user"] == "games"


def test_an_ended_job_tells_its_exit_code_and_its_story(here: Site) -> None:
    options: dict[str, Any] = {"user": GAMES, "group": GAMES, "extra_groups": [], "cwd": "/"}
    script = (
        "#!/bin/bash\n#SBATCH --gres=gpu:1 --nodes=1 --output=/dev/null\n"
        "#SYNERGY min_gpus=1 max_gpus=2 global_batch=8 micro_batch=1\nsleep 6; exit 3\n"
    )
    job_id = here.cluster.sbatch(script, "--account=chem", "--time=60", **options)
    here.cluster.wait_for(lambda: job_id in status(here.cluster), 120, "its job")
    here.cluster.wait_for(lambda: job_id not in status(here.cluster), 120, "its end")
    for far in (False, True):  # over the socket, and over the port
        told = here.ctl(GAMES, "explain", str(job_id), far=far).stdout
        assert "ended: FAILED, exit code 3, after " in told and "left the queue while RUNNING" in told
    # long after slurmctld has forgotten it, slurmdbd knows it
    read = here.cluster.run("sacct", "-n", "-X", "-j", str(job_id), "--format=State,ExitCode").stdout
    assert read.split() == ["FAILED", "3:0"]
    assert here.ctl(OTHER_UID, "explain", str(job_id)).returncode == 2  # hidden from it
