"""Notices of a real daemon on a real cluster: a webhook with TLS that is away at first, and a MailProg; sbatch's and check's answers."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from synergyd.daemon.notices.webhook import KEY_FILE
from synergyd.store.store import open_store
from tests.integration.daemon_site import sizes, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.hook_server import HookServer, hook_server, make_certificate
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]  # the webhook is tried again after twice as long each time
SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[SlurmCluster, HookServer]]:
    """Two nodes with four GPUs each; the daemon is not started."""
    cluster = make_cluster(epoch_s=1)
    certificate = make_certificate(cluster.folder)
    program = cluster.folder / "mailprog"
    program.write_text(f'#!/bin/bash\n(printf "%s|" "$@"; tr "\\n" " "; echo) >> {cluster.folder}/mails\n')
    program.chmod(0o755)
    with hook_server(certificate) as server:
        lines = f"#SYNERGY NoticeUrl=https://localhost:{server.port}/hook MailProg={program}"
        cluster.slurm_conf = (*cluster.slurm_conf, lines)
        with cluster:
            secret = cluster.state_dir / KEY_FILE
            secret.write_bytes(SECRET + b"\n")
            secret.chmod(0o600)
            yield cluster, server


def mails(cluster: SlurmCluster) -> list[str]:
    path = cluster.folder / "mails"
    return path.read_text().splitlines() if path.exists() else []


def mailed(cluster: SlurmCluster) -> list[str]:
    """Events of notices that the outbox says have gone out as mail: before, a daemon that dies sends them again."""
    with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
        return [w.notice.event for w in store.due_notices(1e12, 100) if "mail" in w.done_ways]


def all_mailed(cluster: SlurmCluster) -> bool:
    """One of each event has gone out, and none that the outbox does not know of yet."""
    noted = mailed(cluster)
    return {"resize", "deadline"} <= set(noted) and len(noted) >= len(mails(cluster))


def test_each_notice_goes_out_once_over_an_outage_and_a_restart(site: tuple[SlurmCluster, HookServer]) -> None:
    cluster, server = site
    server.status = 503
    trusts = {"SSL_CERT_FILE": str(cluster.folder / "hook.crt")}
    mail = ("--mail-type=ALL", "--mail-user=mina@example.org")
    late = f"min_gpus=2 max_gpus=2 notify=deadline deadline={int(time.time()) + 2}"
    with synergyd(cluster, environment=trusts) as first:
        until_beat(cluster)
        job = light_job.submit(cluster, "resized", gpus=2, directive="min_gpus=1 max_gpus=8", options=mail)
        until_steps(cluster, job, timeout_s=150)
        other = light_job.submit(cluster, "late", gpus=2, directive=late)
        until_steps(cluster, other, timeout_s=150)
        cluster.wait_for(lambda: sizes(cluster, job) == [6] or sizes(cluster, job) == [4], 150, "the resize")
        until_steps(cluster, job)
        cluster.wait_for(lambda: server.asked > 0 and all_mailed(cluster), 150, "mails, and a try of the webhook")
        first.kill()
    assert not server.taken
    server.status = 204
    with synergyd(cluster, environment=trusts):
        cluster.wait_for(lambda: {n["event"] for n in server.notices()} >= {"resize", "deadline"}, 400, "the notices")
        cluster.run("scancel", str(job), str(other))
        cluster.wait_for(lambda: not cluster.run("squeue", "-h").stdout.strip(), 150, "the end")
    found = server.notices()
    assert len({n["key"] for n in found}) == len(found), found
    resized = next(n for n in found if n["event"] == "resize")
    assert (resized["job_id"], resized["user"], resized["name"]) == (job, "root", "resized")
    assert "GPUs" in resized["text"] and "->" in resized["text"]
    assert "deadline can't be met" in next(n for n in found if n["event"] == "deadline")["text"]
    for headers, body in server.taken:
        signed = headers["Synergy-Time"].encode() + b"." + body
        told = headers["Synergy-Signature"]
        assert told == "sha256=" + hmac.new(SECRET, signed, hashlib.sha256).hexdigest()
    sent = mails(cluster)
    assert len(sent) == len(set(sent))
    assert any(m.startswith(f"-s|Slurm Job_id={job} Name=resized Synergy resize|mina@example.org|") for m in sent)
    assert any(m.startswith(f"-s|Slurm Job_id={other} Name=late Synergy deadline|root|") for m in sent)


def test_sbatch_and_check_tell_of_a_deadline_that_can_not_be_met(
    site: tuple[SlurmCluster, HookServer], tmp_path: Path
) -> None:
    cluster, _ = site
    passed = f"#!/bin/bash\n#SBATCH --gres=gpu:1\n#SYNERGY deadline={int(time.time()) - 60}\ntrue\n"
    script = tmp_path / "job.sh"
    script.write_text(passed)
    done = cluster.run("sbatch", "--output=/dev/null", str(script))
    assert "can't be met: it has passed" in done.stderr and "Submitted" in done.stdout
    told = cluster.run("synergyctl", "check", str(script), check=False)
    assert (told.returncode, "it has passed" in told.stdout) == (1, True)
    soon = int(time.time()) + 3600
    config = tmp_path / "config.json"
    config.write_text(json.dumps(light_job.MODEL))
    lines = f"#SBATCH --nodes=1 --gres=gpu:2\n#SYNERGY model={config} global_batch=8 deadline={soon}\n"
    script.write_text(f"#!/bin/bash\n{lines}true\n")
    never = cluster.run("synergyctl", "check", str(script), "--samples", "100000000000000", check=False)
    assert never.returncode == 1 and "on the best of its sizes" in never.stdout, never
    fine = cluster.run("synergyctl", "check", str(script), "--samples", "1", check=False)
    assert fine.returncode == 0 and "can be met" in fine.stdout, fine
    script.write_text("#!/bin/bash\n#SYNERGY deadline=x\n")
    wrong = cluster.run("synergyctl", "check", str(script), check=False)
    assert wrong.returncode == 2 and "deadline='x' is not right" in wrong.stderr and len(wrong.stderr.splitlines()) == 1
