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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from tests.integration.daemon_site import explain
from tests.integration.test_in_place import folder_of, last_step, steps
from tests.integration.test_live_shrink import is_live
from tests.throwaway import light_job
from tests.throwaway.faults import Result
from tests.throwaway.power import power_off
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.stall import Stalls
from tests.throwaway.synergy import Synergyd, make_cluster, remember_programs

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
REACH_S, SETTLE_S = 180.0, 480.0
SAVE_S = 6.0  # slurmctld writes its state 5 s after a change at the latest


class LiveMatrix:
    """Runs pairs on one cluster, one after the other, until one ends wrong."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.stalls = Stalls(cluster.folder / "stalls", cluster.env["PATH"])
        self.daemon = self._daemon()
        self.job_id = self.other = 0
        self.lost: list[str] = []

    def run(self, state: str, fault: str) -> Result:
        """Run one pair, from sbatch to an empty cluster, which is left as it is after a wrong result."""
        began, result = time.monotonic(), Result(state, fault)
        try:
            self._reach(state)
            before, hit = len(self._steps()), time.monotonic()
            self._strike(fault)
            result.ended = self._settle(fault, before, result)
            result.settled_s = time.monotonic() - hit
            self._check(fault, result)
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

    def _reach(self, state: str) -> None:
        grows = state in GROWS
        if grows:
            self._take_node()
            self._wait(lambda: self.cluster.state(self.other) == "RUNNING", REACH_S, "the other job's start")
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
            self.stalls.set(call)
        if grows:
            self.cluster.run("scancel", str(self.other))
        else:
            self._take_node()
        if call:
            self.stalls.wait(call, timeout_s=REACH_S)
        else:
            final = NODES if grows else NODES - 1
            self._wait(lambda: self._trains_on(final), REACH_S, f"steps on {final} nodes")
            self._wait(lambda: self._life() == "RUNNING", REACH_S, "the change's end")

    def _take_node(self) -> None:
        size = f"min_gpus={GPUS} max_gpus={GPUS} weight=8 resize=no"
        self.other = light_job.submit(self.cluster, "small", gpus=GPUS, directive=size)

    # -- the fault -------------------------------------------------------------------------------------------------

    def _strike(self, fault: str) -> None:
        """Make the fault, and bring back what comes back after it; stopped calls go on in the middle of it."""
        if fault == "synergyd-killed":
            self.daemon.kill()
            self.daemon = self._daemon()
            time.sleep(1.0)
        elif fault == "slurmctld-killed":
            self._await_written_state()
            self.cluster.kill("slurmctld")
        elif fault == "node-lost":
            self.lost.append(self._last_node())
            power_off(self.cluster, self.lost[-1])
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

    def _await_written_state(self) -> None:
        """Wait until slurmctld has written down what it did up to now: what it has not, no restart brings back."""
        since, path = time.time(), self.cluster.folder / "state" / "job_state"
        while time.time() < since + SAVE_S and (not path.exists() or path.stat().st_mtime < since):
            time.sleep(0.05)

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
        first = self._launchers()[min(self._launchers())]
        said = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
        ports = [m[1] for line in said.splitlines() if f"pid={first}," in line and (m := re.search(r":(\d+)\s", line))]
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

    def _settle(self, fault: str, before: int, result: Result) -> str:
        if fault == "scancel":
            self._until(lambda: self.cluster.state(self.job_id) in ("", "CANCELLED"), "the job to be gone", result)
            self._until(lambda: self._life() == "GONE", "the daemon to know that it is gone", result)
        else:
            self._until(lambda: len(self._steps()) >= before + STEPS_AFTER, "steps after the fault", result)
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

    def _check(self, fault: str, result: Result) -> None:
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

    def _expanders(self, of: str = "") -> list[int]:
        return [i for i, name, *_ in self._queue() if name.startswith(of or f"synergy-nodes-of-{self.job_id}.")]

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

    def _life(self) -> str:
        """The lifecycle's state, as the daemon logged it last."""
        text = self.daemon.log.read_text(errors="replace")
        found = re.findall(rf"job {self.job_id} ([A-Z]+): ", text)
        return found[-1] if found else "QUEUED"

    def _told(self) -> str:
        parts = [self.cluster.run(*words, check=False).stdout for words in (
            ("synergyctl", "explain", str(self.job_id)), ("scontrol", "show", "job", str(self.job_id)), ("squeue",), ("sinfo", "-N"),
        )]  # fmt: skip
        log = self._steps()
        parts.append("\n".join(str(line) for line in log[-5:]))
        return "\n".join((*parts, light_job.output(self.cluster, self.job_id)[-3000:], self.daemon.tail(40)))

    def story(self) -> list[str]:
        """Return the story that `explain` tells of the job."""
        return [event["detail"] for event in explain(self.cluster, self.job_id)["story"]]

    def _wait(self, condition: Callable[[], object], timeout_s: float, what: str) -> None:
        self.cluster.wait_for(condition, timeout_s, what)

    def _until(self, condition: Callable[[], object], what: str, result: Result) -> None:
        try:
            self._wait(condition, SETTLE_S, what)
        except RuntimeError as error:
            result.wrong.append(str(error).splitlines()[0])

    # -- between two pairs -----------------------------------------------------------------------------------------

    def _clean(self) -> None:
        self.stalls.clear()
        self.cluster.run("scancel", str(self.job_id), str(self.other), check=False)
        for node in self.lost:
            self.cluster.start_node(node)
            self.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test", check=False)
        self.lost.clear()
        self._wait(lambda: not self._queue(), 120, "an empty queue")
        self._wait(self._are_nodes_idle, 60, "idle nodes")
        self._wait(lambda: self._life() == "GONE", 60, "the daemon to forget the job")

    def _are_nodes_idle(self) -> bool:
        rows = self.cluster.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.split("\n")
        bad = [r.split()[0] for r in rows if r and r.split()[1] != "idle"]
        for name in bad:
            self.cluster.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        return not bad

    def _daemon(self) -> Synergyd:
        return Synergyd(self.cluster, environment={"PATH": f"{self.stalls.bin}:{self.cluster.env['PATH']}"})


class LivePairs:
    """Runs pairs on one cluster; after a wrong result the next pair gets a fresh one."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._matrix: LiveMatrix | None = None

    def run(self, state: str, fault: str) -> Result:
        """Run one pair as LiveMatrix does."""
        if self._matrix is None:
            self._matrix = self._open.enter_context(_one_cluster())
        try:
            result = self._matrix.run(state, fault)
        except BaseException:
            self.close()
            raise
        if result.wrong:
            with suppress(RuntimeError, OSError, subprocess.SubprocessError):
                self.close()
        return result

    def close(self) -> None:
        """End the cluster, if there is one."""
        self._matrix = None
        self._open.close()


@contextmanager
def live_matrix() -> Iterator[LivePairs]:
    """Yield what runs pairs."""
    pairs = LivePairs()
    try:
        yield pairs
    finally:
        pairs.close()


@contextmanager
def _one_cluster() -> Iterator[LiveMatrix]:
    cluster = make_cluster([NodeGroup("cpu", NODES, GPUS)], epoch_s=1)
    with cluster:
        remember_programs(cluster, light_jobs=("wide", "small"))
        pairs = LiveMatrix(cluster)
        try:
            cluster.wait_for((cluster.state_dir / "heartbeat").exists, 120, "the daemon's first epoch")
            yield pairs
        finally:
            pairs.stop()
