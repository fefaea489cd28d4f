"""What tests of synergyd on a real cluster share: what its commands show, and what was written to Slurm."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.wire.codec import encode

from synergyd.cli import synergyctl as synergyctl_cli
from synergyd.cli import synergyd as synergyd_cli
from synergyd.daemon import heartbeat
from synergyd.store.store import open_store
from synergyd.views import explain as explain_view
from synergyd.views import status as status_view
from tests.throwaway import light_job
from tests.throwaway.accounting import OTHER_UID
from tests.throwaway.slurm import SlurmCluster

# as another user to Slurm and munge, who can still read a Python that lies in root's home
AS_OTHER = ("setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups", "--inh-caps=+dac_override",
            "--ambient-caps=+dac_override")  # fmt: skip
MAINS = {"synergyd": synergyd_cli.main, "synergyctl": synergyctl_cli.main}
ELASTIC = "min_gpus=1 max_gpus=4"
READS = {"show", "ping", "--version", "write", "-V"}


class Shim:
    """Logs every scontrol and scancel that a process with this environment starts, then runs the real one."""

    def __init__(self, cluster: SlurmCluster, name: str = "shim") -> None:
        self.folder = cluster.folder / name
        self.folder.mkdir()
        self._log = cluster.folder / f"{name}.log"
        for name in ("scontrol", "scancel"):
            real = shutil.which(name, path=cluster.env["PATH"])
            path = self.folder / name
            path.write_text(
                # a call is one write: several may be made at once
                f"#!/bin/bash\nprintf -v call '%s\\x1f' {name} \"$@\"\nprintf '%s\\n' \"$call\" >> {self._log}\n"
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
            return {j["job_id"]: j for j in encode(status_view.collect(store))["jobs"]}
    except UsageError:  # not made yet; a database that is away is an error here
        return {}


def sizes(cluster: SlurmCluster, *job_ids: int) -> list[int | None]:
    """GPUs that jobs hold, as `synergyctl status` shows them; None for one that is not in the last epoch."""
    found = status(cluster)
    return [found[i]["gpus"] if i in found else None for i in job_ids]


def explain(cluster: SlurmCluster, job_id: int, url: str = "") -> dict[str, Any]:
    """What `synergyctl explain --json` shows, once the daemon has decided about the job (60 s at most)."""
    with open_store(url or f"sqlite:///{cluster.state_dir}/synergy.db") as store:
        cluster.wait_for(lambda: store.decisions_of(job_id, 1), 60, f"the daemon to decide about {job_id}")
        return dict(encode(explain_view.collect(store, job_id)))


def story(cluster: SlurmCluster, job_id: int) -> str:
    """The events that `synergyctl explain` tells of the job, a line each."""
    return "\n".join(event["detail"] for event in explain(cluster, job_id)["story"])


def empty_queue(cluster: SlurmCluster) -> None:
    """Cancels root's jobs and waits until the queue is empty."""
    cluster.run("scancel", "--user=root", check=False)
    cluster.wait_for(lambda: not cluster.run("squeue", "-h").stdout, 120, "the queue to be empty")


def until_beat(cluster: SlurmCluster) -> None:
    """Waits for the daemon's first heartbeat."""
    try:
        cluster.wait_for((cluster.state_dir / heartbeat.NAME).exists, 120, "the heartbeat")
    except RuntimeError as error:
        log = (cluster.folder / "log" / "synergyd.log").read_text()
        raise RuntimeError(f"{error}\nsynergyd: {log[-4000:]}") from None


def until_epochs(cluster: SlurmCluster, epochs: int = 2, timeout_s: float = 120) -> None:
    """Waits until so many epochs that began after this call are stored."""
    since_s = time.time()
    with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
        cluster.wait_for(lambda: len(store.epochs_since(0, since_s)) >= epochs, timeout_s, f"{epochs} epochs")


def until_steps(cluster: SlurmCluster, *job_ids: int, steps: int = 2, timeout_s: float = 150) -> None:
    """Waits until the daemon knows by reports that these jobs train, and an epoch has seen them run."""

    def trains() -> bool:
        rows = [status(cluster).get(i) or {} for i in job_ids]
        return all(row.get("state") == "RUNNING" and (row["step"] or 0) >= steps for row in rows)

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
