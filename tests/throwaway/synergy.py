"""Synergy on a throwaway cluster: plugin, settings and daemon, as an admin would install them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from synergy_core.records import Profile

from synergyd.control.state.size_changes import PREFIX
from synergyd.jobmodel.shared_profiles import program
from synergyd.slurm.directives.directive import parse_script
from synergyd.store.store import open_store
from tests.throwaway import light_job
from tests.throwaway.accounting import OTHER_UID
from tests.throwaway.slurm import NodeGroup, SlurmCluster

PLUGINS = Path(__file__).resolve().parents[2] / "slurm_plugins"


def hook(state_dir: Path) -> str:
    """job_submit.lua: the hook that is shipped, with this tree's module and the cluster's state folder."""
    text = (PLUGINS / "job_submit.hook.lua").read_text()
    text = text.replace("/etc/slurm/synergy/synergy.lua", str(PLUGINS / "synergy.lua"))
    return text.replace("/var/lib/synergy", str(state_dir))


def make_cluster(
    groups: Sequence[NodeGroup] = (NodeGroup("cpu", 2, 4),),
    *,
    epoch_s: float = 2.0,
    plugin: bool = True,
    settings: Sequence[str] = (),
) -> SlurmCluster:
    """A cluster with Synergy's settings in its slurm.conf; not started yet."""
    cluster = SlurmCluster(groups)
    if plugin:
        cluster.job_submit = hook(cluster.state_dir)
    cluster.slurm_conf = (
        f"#SYNERGY StateDir={cluster.state_dir} Epoch={epoch_s:g} RestartCost=5 RestartShare=1 "
        "CheckpointTimeout=60 MaxWeight=1000 FirstStart=8",
        *settings,
    )
    return cluster


#: names, but for a number at their end, of light jobs of root's whose program counts as one that has run before
NAMES = (
    "light", "j", "first", "second", "late", "last", "other", "ours", "grown", "held", "later", "shown", "measured", "resized",
    "wide", "short", "grows", "ends", "anew", "moves", "waits", "loses", "b", "c", "training", "gpt-neo",
    "slow", "hangs", "idle", "lost",
)  # fmt: skip
#: the same of those whose model's config lies in the cluster's own folder
BESIDE = ("talks", "talks-other", "chain", "het")
#: the lines of other jobs that count so as well, by name: of root's, and of the other user's
LINES = {
    "known": f"#SYNERGY global_batch={light_job.BATCH} micro_batch=1\n",
    "faults": f"#SYNERGY global_batch={light_job.BATCH}\n",
    "train": f"#SYNERGY global_batch={light_job.BATCH}\n",
}


def remember_programs(
    cluster: SlurmCluster, scripts: Mapping[str, str] | None = None, *, light_jobs: Iterable[str] = ()
) -> None:
    """Store, before the first daemon starts, that agents of jobs with these names and #SYNERGY lines have reported that they can change
    size, and those of `LINES` and of light jobs, with these names besides. Others start at the size that they ask for."""
    config = cluster.folder / "light" / "config.json"
    light, beside = (
        f"#SYNERGY model={path} global_batch={light_job.BATCH} micro_batch=1\n"
        for path in (config, cluster.folder / "config.json")
    )
    lines = {**dict.fromkeys((*NAMES, *light_jobs), light), **dict.fromkeys(BESIDE, beside), **LINES, **(scripts or {})}
    # root's, and those of the users in whose name tests submit
    owners = (os.getuid(), 5, OTHER_UID)
    known = {PREFIX + _mark(uid, name, line): Profile(samples=1) for uid in owners for name, line in lines.items()}
    with open_store(f"sqlite:///{cluster.state_dir}/synergy.db", create=True) as store:
        store.put_profiles(known, time.time())
    whose = cluster.state_dir.stat()
    for path in cluster.state_dir.glob("synergy.db*"):
        os.chown(path, whose.st_uid, whose.st_gid)


def _mark(uid: int, name: str, script: str) -> str:
    said = parse_script(script)
    assert said is not None
    return program(uid, name, said.model, said.global_batch, said.micro_batch, said.max_micro_batch)


class Synergyd:
    """A daemon process of the cluster. `by`: words before its own, such as those that make it another user's.

    The first one of a cluster, where it has SQLite, knows some programs (`remember_programs`)."""

    def __init__(
        self,
        cluster: SlurmCluster,
        *options: str,
        environment: dict[str, str] | None = None,
        by: Sequence[str] = (),
    ) -> None:
        self.cluster = cluster
        self.log = cluster.folder / "log" / "synergyd.log"
        database = cluster.state_dir / "synergy.db"
        apart = any("Database=" in line for line in cluster.slurm_conf)
        if not apart and not (database.exists() and database.stat().st_size):
            remember_programs(cluster)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*by, "synergyd", *options], env={**cluster.env, **(environment or {})}, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """kill -9, no clean end."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def stop(self) -> None:
        """SIGTERM, and its end."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def synergyd(
    cluster: SlurmCluster, *options: str, environment: dict[str, str] | None = None, by: Sequence[str] = ()
) -> Iterator[Synergyd]:
    """A running daemon; its port for reports is the cluster's own. What it wrote is printed where the test fails."""
    daemon = Synergyd(cluster, *options, environment=environment, by=by)
    try:
        yield daemon
    except BaseException:
        print(f"synergyd: exit code {daemon.process.poll()}\n{daemon.tail(100)}")
        raise
    finally:
        daemon.stop()


def status(cluster: SlurmCluster) -> dict[int, dict[str, Any]]:
    """`synergyctl status --json` by job id; empty while there is no database yet."""
    done = cluster.run("synergyctl", "status", "--json", check=False)
    return {j["job_id"]: j for j in json.loads(done.stdout)["jobs"]} if done.returncode == 0 else {}


def explain(cluster: SlurmCluster, job_id: int) -> dict[str, Any]:
    """`synergyctl explain --json`."""
    told: dict[str, Any] = json.loads(cluster.run("synergyctl", "explain", str(job_id), "--json").stdout)
    return told
