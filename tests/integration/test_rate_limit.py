"""Slurm's limit on one user's requests (rl_enable) with a daemon that is neither root nor SlurmUser: it waits, and loses no job."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import AS_OTHER, sizes, status, story, until_beat, until_epochs, until_steps
from tests.throwaway import accounting, light_job
from tests.throwaway.accounting import OTHER, OTHER_UID, Accounting
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.slurm_output import release
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(release() < (23, 2), reason=f"Slurm {release()[0]}.{release()[1]:02} has no rl_enable"),
    pytest.mark.skipif(bool(accounting.missing_programs()), reason=f"not here: {accounting.missing_programs()}"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root becomes other users"),
]
LIMIT = "rl_enable,rl_bucket_size=12,rl_refill_rate=4,rl_refill_period=1"
USERS = ("add account chem", f"add user {OTHER} account=chem adminlevel=Admin", "add user root account=chem")
GREEDY = 10  # each makes two requests: more than the bucket holds


@pytest.fixture
def site() -> Iterator[SlurmCluster]:
    cluster = make_cluster(epoch_s=1, settings=(f"SlurmctldParameters={LIMIT}",))
    cluster.accounting = Accounting(USERS, enforce="associations")
    with cluster:
        os.chown(cluster.state_dir, OTHER_UID, OTHER_UID)
        yield cluster


def refused(site: SlurmCluster) -> int:
    """How often slurmctld has told the daemon's user to back off."""
    log = (site.folder / "log" / "slurmctld.log").read_text(errors="replace")
    return log.count(f"RPC rate limit exceeded by uid {OTHER_UID}")


def spend(site: SlurmCluster) -> list[subprocess.Popen[bytes]]:
    """Spends the tokens of the daemon's user from outside, as a script of the admin would."""
    quiet = subprocess.DEVNULL
    return [
        subprocess.Popen([*AS_OTHER, "squeue", "-h"], env=site.env, stdout=quiet, stderr=quiet) for _ in range(GREEDY)
    ]


def test_the_daemon_keeps_to_the_limit_and_loses_no_job_where_others_do_not(site: SlurmCluster) -> None:
    account = ("--account=chem",)
    with synergyd(site, by=AS_OTHER) as daemon:
        until_beat(site)
        first = light_job.submit(site, directive="min_gpus=1 max_gpus=8", options=account)
        until_steps(site, first)
        assert sizes(site, first) == [8]
        assert refused(site) == 0, "by itself the daemon goes beyond the limit"
        # now it has to write in the middle of refusals: the first job shrinks for the second
        second = light_job.submit(site, directive="min_gpus=4 max_gpus=4", options=account)
        greedy = spend(site)
        try:
            site.wait_for(lambda: sizes(site, first, second) == [4, 4], 120, "the resize")
            until_steps(site, first, second)
            until_epochs(site, 2)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{daemon.tail()}") from None
        finally:
            for process in greedy:
                process.kill()
                process.wait(30)
        assert refused(site) > 0, "the limit did not bite"
        assert daemon.process.poll() is None and "Traceback" not in daemon.log.read_text()
        assert "checkpoint acknowledged" in story(site, first)
        assert [site.state(i) for i in (first, second)] == ["RUNNING", "RUNNING"]
        assert [status(site)[i]["restarts"] for i in (first, second)] == [1, 0]
