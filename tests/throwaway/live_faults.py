"""The (state x fault) matrix of changes of a running job's nodes: one light job a pair, on a real cluster with a real synergyd.

The job runs on nodes of its own and may have all three of the cluster. Another job, which holds a node or asks for one, has it shrink
or lets it grow; the change is stopped in the state wanted, and one fault strikes.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from tests.integration.test_in_place import folder_of, last_step, steps
from tests.integration.test_live_shrink import is_live
from tests.throwaway import light_job
from tests.throwaway.accounting import Accounting
from tests.throwaway.faults import Matrix, Pairs, Result, pairs_on
from tests.throwaway.power import power_off, power_on
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, remember_programs

NODES, GPUS = 3, 2  # of each node
BATCH = 12  # which two, four and six GPUs divide
GROWS = ("JOINING", "GROW-SAVES", "GROW-STARTS", "GROWN")  # from two nodes of its own to three
SHRINKS = ("SHRINK-SAVES", "SHRINK-STARTS", "RETURNING", "SHRUNK")  # from three nodes of its own to two
STATES = (*GROWS, *SHRINKS)
FAULTS = (
    "synergyd-killed", "slurmctld-killed", "node-lost", "launcher-killed", "expander-cancelled", "requeued", "cut", "scancel",
)  # fmt: skip
#: the call that is stopped before it is made, to keep a change in its state
CALL = {
    "JOINING": "join", "GROW-SAVES": "checkpoint", "GROW-STARTS": "start",
    "SHRINK-SAVES": "checkpoint", "SHRINK-STARTS": "start", "RETURNING": "return",
}  # fmt: skip
#: how often a fault may requeue the job: each of the others is to be answered while it runs
REQUEUES = {"requeued": 1}
ORPHAN_S = 30.0  # after which nothing beside the job may outlive it (issue 32)
CUT_S = 3.0
STEPS_AFTER = 15
# generous: a slow machine is no fault, and a node whose launcher alone has gone is kept for 300 s (in_place.ANSWERS_S)
REACH_S, SETTLE_S = 90.0, 240.0  # _wait doubles them


class LiveMatrix(Matrix):
    """Runs pairs on one cluster, one after the other, until one ends wrong."""

    settle_s = SETTLE_S

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__(cluster)
        self._steps_before = 0  # the fault

    # -- to the state ----------------------------------------------------------------------------------------------

    def _reach(self, state: str, when: str) -> None:
        grows = state in GROWS
        if grows:
            self._take_node()
            self._wait(lambda: self.cluster.state(self.blocker) == "RUNNING", REACH_S, "the other job's start")
        own = NODES - 1 if grows else NODES
        before = (
            f"export SYNERGY_IN_PLACE=nodes BATCH={BATCH} CHECKPOINT_EVERY=40 STALLS={shlex.quote(str(self.stalls.folder))}\n"
            f"export PATH={shlex.quote(str(self.stalls.bin))}:$PATH\n"
        )
        size = f"min_gpus={GPUS} max_gpus={NODES * GPUS} global_batch={BATCH}"
        self.job_id = light_job.submit(
            self.cluster, "wide", gpus=GPUS, directive=size, before=before, options=(f"--nodes={own}", "--time=60")
        )
        self._wait(lambda: self._trains_on(own), REACH_S, f"steps on {own} nodes")
        self._wait(lambda: self._last() >= 45, REACH_S, "a checkpoint of its own")
        self._wait(lambda: is_live(self.cluster, self.job_id), REACH_S, "its launchers to say that nodes can leave")
        if call := CALL.get(state):
            self.stalls.set(call, when)
        if grows:
            self.cluster.run("scancel", str(self.blocker))
        else:
            self._take_node()
        if call:
            self.stalls.wait(call, when, timeout_s=2 * REACH_S)
        else:
            final = NODES if grows else NODES - 1
            self._wait(lambda: self._trains_on(final), REACH_S, f"steps on {final} nodes")
            self._wait(lambda: self._life() == "RUNNING", REACH_S, "the change's end")

    def _take_node(self) -> None:
        size = f"min_gpus={GPUS} max_gpus={GPUS} weight=8 resize=no"
        self.blocker = light_job.submit(self.cluster, "small", gpus=GPUS, directive=size)

    # -- the fault -------------------------------------------------------------------------------------------------

    def _strike(self, state: str, fault: str) -> str:
        """Make the fault, and bring back what comes back after it; stopped calls go on in the middle of it. Return the lost node."""
        self._steps_before, lost = len(self._steps()), ""
        if fault == "synergyd-killed":
            self.daemon.kill()
            self.daemon = self._daemon()
            time.sleep(1.0)
        elif fault == "slurmctld-killed":
            self._saved()
            self.cluster.kill("slurmctld")
        elif fault == "node-lost":
            lost = self._last_node()
            power_off(self.cluster, lost)
            self.killed.append(lost)
        elif fault == "launcher-killed":
            with suppress(ProcessLookupError):
                os.kill(self._launcher_on(self._last_node()), signal.SIGKILL)
        elif fault == "expander-cancelled":
            for expander in self._expanders():
                self.cluster.run("scancel", str(expander))
        elif fault == "requeued":
            self.cluster.run("scontrol", "requeue", str(self.job_id))
        elif fault == "cut":
            self._cut_connections()
        else:
            self.cluster.run("scancel", str(self.job_id))
        self.stalls.clear()
        if fault == "slurmctld-killed":
            time.sleep(0.5)
            self.cluster.start_controller()
        return lost

    def _last_node(self) -> str:
        """Return the last node on which a launcher of the job runs: one that joins, or one that may leave."""
        return max(self._launchers())

    def _launcher_on(self, node: str) -> int:
        return self._launchers()[node]

    def _launchers(self) -> dict[str, int]:
        """Return the job's launchers: their processes' ids by node, the first process of each."""
        mark, conf = b"STALLS=" + os.fsencode(self.stalls.folder), b"SLURM_CONF=" + os.fsencode(self.cluster.conf)
        found: dict[str, int] = {}
        for entry in sorted((e for e in Path("/proc").iterdir() if e.name.isdigit()), key=lambda e: int(e.name)):
            try:
                words, command = (entry / "environ").read_bytes().split(b"\0"), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            is_launcher = b"synergy" in command and b"python" in command.split(b"\0")[0] and b"light_job.py" in command
            if is_launcher and mark in words and conf in words and b"--runner" in command:
                node = next((w.partition(b"=")[2] for w in words if w.startswith(b"SLURMD_NODENAME=")), b"")
                found.setdefault(node.decode(), int(entry.name))
        if not found:
            raise RuntimeError("no launcher of the job runs")
        return found

    def _cut_connections(self) -> None:
        """Break the launchers' connections, again and again for a while."""
        pids = self._launchers().values()  # the first node's, which listens, need not come first by name
        said = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
        lines = [line for line in said.splitlines() if any(f"pid={pid}," in line for pid in pids)]
        ports = [m[1] for line in lines if (m := re.search(r":(\d+)\s", line))]
        until, cut = time.monotonic() + CUT_S, 0
        while time.monotonic() < until:
            for port in ports:
                done = subprocess.run(
                    ["ss", "-HK", "sport", "=", f":{port}"], capture_output=True, text=True, check=False
                )
                cut += len(done.stdout.splitlines())
            time.sleep(0.05)
        if not cut:
            raise RuntimeError("no connection of the launchers was there to be cut")

    # -- what came of it -------------------------------------------------------------------------------------------

    def _settle(self, state: str, fault: str, node: str, result: Result) -> str:
        if fault == "scancel":
            self._until(lambda: self.cluster.state(self.job_id) in ("", "CANCELLED"), "the job to be gone", result)
            self._until(lambda: self._life() == "GONE", "the daemon to know that it is gone", result)
        else:
            self._until(lambda: len(self._steps()) >= self._steps_before + STEPS_AFTER, "steps after the fault", result)
            self._until(lambda: self._life() == "RUNNING", "an end of the change", result)
            self._until(
                lambda: self._nodes_of_run() == len(self._allocated()), "no nodes that the run does not use", result
            )
        if fault in ("scancel", "requeued"):
            end = time.monotonic() + 2 * ORPHAN_S
            while (left := self._orphans(fault)) and time.monotonic() < end:
                time.sleep(0.5)
            if left:
                result.wrong.append(f"orphans: {', '.join(left)}")
        return f"{self._nodes_of_run()} nodes, restart {self._shown('Restarts')}" if fault != "scancel" else "gone"

    def _check(self, state: str, fault: str, result: Result) -> None:
        wrong = result.wrong
        if fault != "scancel":
            restarts = int(self._shown("Restarts"))
            if restarts > REQUEUES.get(fault, 0):
                wrong.append(f"requeued {restarts} times")
            if self._shown("Priority") == "0":
                wrong.append("it is held")
            log = self._steps()
            gaps = [(a["step"], b["step"]) for a, b in pairwise(log) if b["step"] > a["step"] + 1]
            if gaps:
                wrong.append(f"steps lost: {gaps}")
            if (folder_of(self.cluster, self.job_id) / light_job.OVERLAP).exists():
                wrong.append("two runs were alive at once")

    # -- looking ---------------------------------------------------------------------------------------------------

    def _steps(self) -> list[dict[str, float]]:
        try:
            return steps(self.cluster, self.job_id)
        except (RuntimeError, AssertionError):  # slurmctld is away
            return []

    def _last(self) -> int:
        return int(last_step(self.cluster, self.job_id).get("step", 0))

    def _nodes_of_run(self) -> int:
        log = self._steps()
        return int(log[-1]["dp"]) // GPUS if log else 0

    def _trains_on(self, nodes: int) -> bool:
        log = self._steps()
        return len(log) >= STEPS_AFTER and all(line["dp"] == nodes * GPUS for line in log[-STEPS_AFTER:])

    def _shown(self, name: str) -> str:
        text = self.cluster.run("scontrol", "show", "job", str(self.job_id)).stdout
        found = re.search(rf"\b{name}=(\S+)", text)
        return found[1] if found else ""

    def _queue(self) -> list[tuple[int, str, str, str]]:
        """Return (id, name, state, nodes) of what is in the queue; [] while Slurm does not answer."""
        out = self.cluster.run("squeue", "-h", "-o", "%i|%j|%T|%N", check=False).stdout
        rows = [line.split("|") for line in out.splitlines() if line.count("|") == 3]
        return [(int(r[0]), r[1], r[2], r[3]) for r in rows]

    def _expanders(self) -> list[int]:
        return [i for i, name, *_ in self._queue() if name.startswith(f"synergy-nodes-of-{self.job_id}.")]

    def _allocated(self) -> set[str]:
        """Return the nodes that Slurm counts to the job and to the allocations beside it."""
        expanders = set(self._expanders())
        texts = [nodes for i, _, state, nodes in self._queue() if i in {self.job_id, *expanders} and state == "RUNNING"]
        names: set[str] = set()
        for text in filter(None, texts):
            names |= set(self.cluster.run("scontrol", "show", "hostnames", text).stdout.split())
        return names

    def _orphans(self, fault: str) -> list[str]:
        """Return allocations of incarnations that are over."""
        now = "-" if fault == "scancel" else self._shown("Restarts")
        current = f"synergy-nodes-of-{self.job_id}.{now}."
        return [
            name
            for _, name, *_ in self._queue()
            if name.startswith("synergy-nodes-of-") and not name.startswith(current)
        ]

    def _told(self) -> str:
        parts = [self.cluster.run(*words, check=False).stdout for words in (
            ("synergyctl", "explain", str(self.job_id)), ("scontrol", "show", "job", str(self.job_id)), ("squeue",), ("sinfo", "-N"),
        )]  # fmt: skip
        log = self._steps()
        parts.append("\n".join(str(line) for line in log[-5:]))
        return "\n".join((*parts, light_job.output(self.cluster, self.job_id)[-3000:], self.daemon.tail(40)))

    # -- between two pairs -----------------------------------------------------------------------------------------

    def _clean(self) -> None:
        self.stalls.clear()
        self.cluster.run("scancel", *(str(i) for i in (self.job_id, self.blocker) if i), check=False)
        if self.killed:
            power_on(self.cluster, *self.killed)
        self.killed.clear()
        self._wait(self._queue_empty, 60, "an empty queue")
        self._wait(self._nodes_idle, 30, "idle nodes")
        self._wait(lambda: self._life() == "GONE", 30, "the daemon to forget the job")


def live_matrix() -> AbstractContextManager[Pairs]:
    """Return a context that runs pairs."""
    return pairs_on(_one_cluster)


@contextmanager
def _one_cluster() -> Iterator[LiveMatrix]:
    cluster = make_cluster([NodeGroup("cpu", NODES, GPUS)], epoch_s=1)
    # without slurmdbd Slurm 22.05 takes no second node back for a while
    cluster.accounting = Accounting(("add account lab", "add user root account=lab"))
    with cluster:
        remember_programs(cluster, light_jobs=("wide", "small"))
        pairs = LiveMatrix(cluster)
        try:
            cluster.wait_for((cluster.state_dir / "heartbeat").exists, 120, "the daemon's first epoch")
            yield pairs
        finally:
            pairs.stop()
