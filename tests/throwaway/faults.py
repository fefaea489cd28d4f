"""The (state x fault) matrix on a real Slurm cluster with a real synergyd: one job a pair, one cluster while all goes well.

The job runs on n1 while n2 is drained; n2 comes back, and the resize that follows is stopped in the state wanted.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.throwaway import agent_job
from tests.throwaway.ledger import lost_steps, overlaps, read_ledger, twice_started
from tests.throwaway.power import power_off, set_down
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.stall import Stalls
from tests.throwaway.synergy import Synergyd, explain, hook

STATES = ("QUEUED", "RUNNING", "CHECKPOINTING", "REQUEUING", "PARKED", "RESIZED", "RELEASED")
FAULTS = ("synergyd-killed", "scancel", "node-down", "slurmctld-killed")
OF_CONTROLLERS = ("takeover", "reconfigure")  # the first needs a second slurmctld
# the call that is stopped before it is made, to keep a job in a state
CALL = {"CHECKPOINTING": "checkpoint", "REQUEUING": "requeue", "PARKED": "update", "RESIZED": "release"}
PARK_S = 120
SETTLE_S = 50.0  # _wait doubles it: less than PARK_S, after which a job would start by itself
SAVE_S = 6.0  # slurmctld writes its state 5 s after a change at the latest
WRITES_S = 0.5  # a file written so soon after a change may be of the moment before it
GPUS = 4  # of each of the two nodes


@dataclass
class Result:
    """How one pair ended: right if `wrong` is empty."""

    state: str
    fault: str
    wrong: list[str] = field(default_factory=list)
    ended: str = ""
    took_s: float = 0.0
    settled_s: float = 0.0
    told: str = ""  # what helps to find the reason


class Matrix:
    """Runs pairs on one cluster, one after the other, until one ends wrong."""

    settle_s = SETTLE_S

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.stalls = Stalls(cluster.folder / "stalls", cluster.env["PATH"])
        self.daemon = self._daemon()
        self.killed: list[str] = []
        self.job_id = self.blocker = 0
        self.n2_told = 0.0  # when it was last told whether it takes jobs
        self.folder = cluster.folder / "jobs"
        self.ledger = self.folder / "none"

    def run(self, state: str, fault: str, when: str = "before") -> Result:
        """One pair, from sbatch to an empty cluster. `when`: the fault comes before or after the call that was stopped.

        After a wrong result the cluster is left as it is: its state is unknown, and no further pair may use it.
        """
        began = time.monotonic()
        result = Result(state, fault if when == "before" else f"{fault} (call made)")
        try:
            self._reach(state, when)
            hit = time.monotonic()
            node = self._strike(state, fault)
            result.ended = self._settle(state, fault, node, result)
            result.settled_s = time.monotonic() - hit
            self._check(state, fault, result)
        except RuntimeError as error:
            result.wrong.append(str(error).splitlines()[0])
        if not result.wrong:
            try:
                self._clean()
            except RuntimeError as error:
                result.wrong.append(f"afterwards: {str(error).splitlines()[0]}")
        if result.wrong:
            result.told = self._told()
        result.took_s = time.monotonic() - began
        return result

    def stop(self) -> None:
        self.stalls.clear()
        self.daemon.stop()

    # -- to the state ----------------------------------------------------------------------------------------------

    def _reach(self, state: str, when: str) -> None:
        state = "PARKED" if state == "HELD" else state  # its name until 0.2
        blocked = state == "QUEUED"
        self.blocker = 0
        if not blocked:
            self._tell_n2("State=DRAIN", "Reason=test")
        else:
            text = "#!/bin/bash\n#SBATCH -N2 --gres=gpu:4 --no-requeue -o /dev/null\nexec sleep 600\n"
            self.blocker = self.cluster.sbatch(text)
            self._wait(lambda: self.cluster.state(self.blocker) == "RUNNING", 60, "the job that fills the cluster")
        self.folder = self.cluster.folder / "jobs" / f"{time.monotonic_ns()}"
        self.folder.mkdir(parents=True)
        self.ledger = self.folder / "ledger"
        self.job_id = self._submit()
        if blocked:
            self._wait(lambda: self._parked(), 60, "the job to be parked")
            return
        self._wait(lambda: self._trains(0, 3) and self._life() == "RUNNING", 60, "the job to train on n1")
        if state == "RUNNING":
            return
        if state == "RELEASED":
            self.stalls.set(CALL["PARKED"], "before")
        else:
            self.stalls.set(CALL[state], when)
        self._tell_n2("State=RESUME")
        if state == "RELEASED":
            self.stalls.wait(CALL["PARKED"], "before")
            # released, and yet Slurm can't start it; a job that runs would not be resized in such a partition
            self._control("update", "PartitionName=main", "State=DOWN")
            self.stalls.clear()
            self._wait(lambda: self._life() == "RELEASED", 30, "RELEASED")
        else:
            self.stalls.wait(CALL[state], when)
            self._wait(lambda: self._life() == state, 10, state)

    def _submit(self) -> int:
        job = Path(agent_job.__file__)
        folder = shlex.quote(str(self.folder / "checkpoints"))
        return self.cluster.sbatch(
            "#!/bin/bash\n"
            f"#SBATCH -J faults -N1 --gres=gpu:{GPUS} --open-mode=append -o {self.folder}/output\n"
            f"#SYNERGY min_gpus=1 max_gpus=8 global_batch=8 checkpoint={self.folder}/checkpoints\n"
            f"export STALLS={shlex.quote(str(self.stalls.folder))}\n"
            f"srun synergy-launch --runner python --checkpoint {folder} {shlex.quote(str(job))} {shlex.quote(str(self.ledger))}\n"
        )

    # -- the fault -------------------------------------------------------------------------------------------------

    def _strike(self, state: str, fault: str) -> str:
        """The fault, and what comes back after it; stopped calls go on in the middle of it. Returns the node that is lost."""
        lost = ""
        if fault == "synergyd-killed":
            self.daemon.kill()  # the call that it waited for goes on without it, beside the new daemon's
            self.daemon = self._daemon()
            time.sleep(1.0)
        elif fault == "scancel":
            self.cluster.run("scancel", str(self.job_id))
        elif fault == "node-down":
            lost = "n1"
            power_off(self.cluster, lost)
            self.killed.append(lost)
            set_down(self.cluster, lost)
            if state == "RUNNING":
                self._tell_n2("State=RESUME")
        elif fault == "reconfigure":
            self._control("reconfigure")
        else:
            self._saved()
            self.cluster.kill("slurmctld")
        self.stalls.clear()
        if fault == "slurmctld-killed":
            time.sleep(0.5)
            self.cluster.start_controller()
        if state == "RELEASED":
            self._control("update", "PartitionName=main", "State=UP")
        if self.blocker and fault != "scancel":
            self.cluster.run("scancel", str(self.blocker), check=False)
        return lost

    def _saved(self) -> None:
        """Waits until slurmctld has written down what it did up to now: what it has not, no restart brings back.

        Jobs and nodes are two files, each written when something of its own has changed.
        """
        for name, since in (("job_state", time.time()), ("node_state", self.n2_told + WRITES_S)):
            path = self.cluster.folder / "state" / name
            while time.time() < since + SAVE_S and (not path.exists() or path.stat().st_mtime < since):
                time.sleep(0.05)

    # -- what came of it -------------------------------------------------------------------------------------------

    def _settle(self, state: str, fault: str, node: str, result: Result) -> str:
        if fault == "scancel":
            self._until(lambda: self.cluster.state(self.job_id) in ("", "CANCELLED"), "the job to be gone", result)
            self._until(lambda: self._life() == "GONE", "the daemon to know that it is gone", result)
            return "gone"
        gpus = GPUS if fault == "node-down" or state == "RUNNING" else 2 * GPUS
        self._until(lambda: self._runs(gpus, node), f"the job to train on {gpus} GPUs", result)
        row = self._row()
        return f"{row.get('state', 'gone').lower()} on {row.get('nodes', '')}, restart {row.get('restarts', '?')}"

    def _runs(self, gpus: int, lost: str) -> bool:
        row = self._row()
        if row.get("state") != "RUNNING" or lost in row["nodes"].split(",") or self._life() != "RUNNING":
            return False
        return row["gpus"] == str(gpus) and self._trains(int(row["restarts"]), 3)

    def _check(self, state: str, fault: str, result: Result) -> None:
        wrong, row, lines = result.wrong, self._row(), read_ledger(self.ledger)
        if row and row["priority"] == "0":
            wrong.append("it is held")
        if row.get("state") == "PENDING" and float(row["eligible"] or 0) > time.time() + PARK_S + 5:
            wrong.append(f"its begin time is {float(row['eligible']) - time.time():.0f} s away")
        wrong += [*overlaps(lines), *twice_started(lines), *lost_steps(lines)]
        story: list[dict[str, str]] = []
        reasons: list[str] = []

        def told() -> bool:
            story[:] = explain(self.cluster, self.job_id)["story"]
            # the queue's own doing (a node that is lost), or a resize: one line of the story for each restart
            begins = ("requeued", "restarted outside", "started again")
            reasons[:] = [e["detail"] for e in story if e["detail"].startswith(begins)]
            return not row or int(row["restarts"]) == len(reasons)

        with suppress(RuntimeError):  # it is stored a moment after it is logged
            self._wait(told, 10, "the story")
        if row and int(row["restarts"]) != len(reasons):
            wrong.append(f"{row['restarts']} restarts, the story tells of {len(reasons)}")
        most = 0 if (state in ("QUEUED", "RUNNING") and fault != "node-down") or state == "QUEUED" else 1
        if row and int(row["restarts"]) > most:
            wrong.append(f"{row['restarts']} restarts where {most} would do")
        for before, event in pairwise(story):
            if before["state"] == "CHECKPOINTING" and event["state"] == "REQUEUING":
                text = event["detail"]
                if "checkpoint acknowledged" not in text and "no checkpoint acknowledged within" not in text:
                    wrong.append(f"requeued without an acknowledged checkpoint: {text}")

    # -- looking ---------------------------------------------------------------------------------------------------

    def _row(self) -> dict[str, str]:
        """Slurm's view; empty when the job is gone."""
        names = ("state", "restarts", "priority", "eligible", "nodes", "gpus")
        fields = "State:20,RestartCnt:10,PriorityLong:20,EligibleTime:30,NodeList:30,tres-per-node:60"
        environment = {**self.cluster.env, "SLURM_TIME_FORMAT": "%s"}
        out = self.cluster.run(
            "squeue", "-h", "-j", str(self.job_id), "-O", fields, check=False, env=environment
        ).stdout
        if not out.strip():
            return {}
        cuts = (0, 20, 30, 50, 80, 110, 170)
        row = {n: out[a:b].strip() for n, a, b in zip(names, cuts, cuts[1:], strict=False)}
        row["nodes"] = {"n[1-2]": "n1,n2"}.get(row["nodes"], row["nodes"])
        per_node = int(row["gpus"].rpartition(":")[2])
        row["gpus"] = str(per_node * len(row["nodes"].split(","))) if row["nodes"] else "0"
        return row

    def _parked(self) -> bool:
        row = self._row()
        return row.get("state") == "PENDING" and row["eligible"].isdigit() and float(row["eligible"]) > time.time() + 30

    def _life(self) -> str:
        """The lifecycle's state, as the daemon logged it last ('QUEUED' before the first line)."""
        text = self.daemon.log.read_text(errors="replace")
        found = re.findall(rf"job {self.job_id} ([A-Z]+): ", text)
        return found[-1] if found else "QUEUED"

    def _trains(self, restarts: int, steps: int) -> bool:
        """Incarnation `restarts` has made `steps` steps."""
        path = self.folder / "checkpoints" / "steps.jsonl"
        text = path.read_text() if path.exists() else ""
        return len(re.findall(rf'"restarts": {restarts},', text)) >= steps

    def _told(self) -> str:
        shown = self.cluster.run("synergyctl", "explain", str(self.job_id), check=False)
        queue = self.cluster.run("scontrol", "show", "job", str(self.job_id), check=False)
        ledger = self.ledger.read_text() if self.ledger.exists() else ""
        nodes = self.cluster.run("sinfo", "-N", check=False).stdout
        output = self.folder / "output"
        said = output.read_text(errors="replace")[-1500:] if output.exists() else ""
        parts = (shown.stdout, shown.stderr, queue.stdout, ledger, said, nodes, self.daemon.tail(25))
        return "\n".join((*parts, self.cluster.log_tail("slurmctld", 20)))

    def _wait(self, condition: object, timeout_s: float, what: str) -> None:
        # generous: a slow machine is no fault
        self.cluster.wait_for(condition, 2 * timeout_s, what)  # type: ignore[arg-type]

    def _until(self, condition: object, what: str, result: Result) -> None:
        try:
            self._wait(condition, self.settle_s, what)
        except RuntimeError as error:
            result.wrong.append(str(error).splitlines()[0])

    def _control(self, *words: str) -> None:
        self.cluster.run("scontrol", *words)

    def _tell_n2(self, *words: str) -> None:
        self._control("update", "NodeName=n2", *words)
        self.n2_told = time.time()

    # -- between two pairs -----------------------------------------------------------------------------------------

    def _clean(self) -> None:
        self.stalls.clear()
        if self.cluster.ended("slurmctld"):
            self.cluster.start_controller()
            self._wait(self._nodes_registered, 60, "the nodes to register with the first slurmctld again")
        self.cluster.run("scancel", *(str(i) for i in (self.job_id, self.blocker) if i), check=False)
        for node in self.killed:
            self.cluster.start_node(node)
        self.killed.clear()
        if "inact" in self.cluster.run("sinfo", "-h", "-o", "%a").stdout:
            self._control("update", "PartitionName=main", "State=UP")
        self._wait(self._queue_empty, 60, "an empty queue")
        self._wait(self._nodes_idle, 60, "idle nodes")
        self._wait(lambda: self._life() == "GONE", 30, "the daemon to forget the job")

    def _queue_empty(self) -> bool:
        return not self.cluster.run("squeue", "-h").stdout.strip()

    def _nodes_registered(self) -> bool:
        done = self.cluster.run("sinfo", "-h", "-N", "-O", "Version", check=False)
        return done.returncode == 0 and "N/A" not in done.stdout

    def _nodes_idle(self) -> bool:
        rows = self.cluster.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.split("\n")
        bad = [r.split()[0] for r in rows if r and r.split()[1] != "idle"]
        for name in bad:
            self.cluster.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        return not bad

    def _daemon(self) -> Synergyd:
        return Synergyd(self.cluster, environment={"PATH": f"{self.stalls.bin}:{self.cluster.env['PATH']}"})


class Pairs:
    """Runs pairs on one cluster; after a wrong result the next pair gets a fresh one. `start` makes a cluster ready."""

    def __init__(self, start: Callable[[], AbstractContextManager[Matrix]]) -> None:
        self._start = start
        self._open = ExitStack()
        self._matrix: Matrix | None = None

    def run(self, state: str, fault: str, when: str = "before") -> Result:
        """As Matrix.run; what goes wrong when a broken cluster is ended is added to the result."""
        if self._matrix is None:
            self._matrix = self._open.enter_context(self._start())
        try:
            result = self._matrix.run(state, fault, when)
        except BaseException:
            self.close()
            raise
        if result.wrong:
            try:
                self.close()
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                result.wrong.append(f"at the cluster's end: {str(error).splitlines()[0]}")
        return result

    def close(self) -> None:
        """Ends the cluster, if there is one."""
        self._matrix = None
        self._open.close()


def matrix(controllers: int = 1) -> AbstractContextManager[Pairs]:
    """Return a context that runs pairs, on clusters of so many slurmctlds."""
    return pairs_on(lambda: _one_cluster(controllers))


@contextmanager
def pairs_on(start: Callable[[], AbstractContextManager[Matrix]]) -> Iterator[Pairs]:
    """Yield what runs pairs on clusters that `start` makes ready."""
    pairs = Pairs(start)
    try:
        yield pairs
    finally:
        pairs.close()


@contextmanager
def _one_cluster(controllers: int) -> Iterator[Matrix]:
    """A cluster of two nodes and a daemon."""
    cluster = SlurmCluster([NodeGroup("cpu", 2, GPUS)], controllers=controllers)
    cluster.job_submit = hook(cluster.state_dir)
    cluster.slurm_conf = (
        f"#SYNERGY StateDir={cluster.state_dir} Epoch=1 RestartCost=0 CheckpointTimeout=15 Park={PARK_S} Live=no",
        # little to compute with and much to send through: 8 GPUs on two nodes are worth more than 4 on one
        "#SYNERGY GpuType=cpu peak_tflops=0.002 memory_gib=4 bandwidth_gbs=10 intra_gbs=100 inter_gbs=100",
    )
    with cluster:
        pairs = Matrix(cluster)
        try:
            cluster.wait_for((cluster.state_dir / "heartbeat").exists, 120, "the daemon's first epoch")
            yield pairs
        finally:
            pairs.stop()
