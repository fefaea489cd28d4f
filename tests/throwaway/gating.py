"""Two torchrun jobs that share a shaped link, phase by phase: each phase with its own rule, or with nobody gated."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from synergy_core.wire import munge

from synergyd.daemon.links.arbiter import LinkArbiter, Member, listen
from synergyd.links.arbiter import ArbiterTerms
from synergyd.links.disciplines import make_discipline
from tests.paths import ROOT, python_path
from tests.throwaway.netns import ShapedLink
from tests.throwaway.slurm import SlurmCluster

NODES = ("ha", "hb")
OPEN = "none"  # the phase in which nobody is gated


@dataclass(frozen=True)
class Load:
    """A job: seconds of compute a step, MB of gradients (2**20 bytes)."""

    compute_s: float
    megabytes: int


@dataclass(frozen=True)
class Phase:
    """A rule's name, or OPEN; and what each job does."""

    rule: str
    loads: tuple[Load, ...]


@dataclass(frozen=True)
class Outcome:
    """Of one job in one phase: seconds of each whole step, and what its gate counted."""

    steps_s: tuple[float, ...]
    asked: int
    waited: int
    waited_s: float

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.steps_s)


# In step, with messages of one size: turns. As large, but with steps that drift past each other, so that every offset comes up: turns.
# A small message beside one twelve times as large: shared.
GATE = (Load(0.4, 20), Load(0.4, 20))
DRIFT = (Load(0.2, 10), Load(0.23, 10))
SHARE = (Load(0.3, 24), Load(0.1, 2))
MBIT = 400.0


def measure(
    phases: Sequence[Phase], *, mbit: float = MBIT, seconds: float = 10.0, bound_s: float = 2.0
) -> list[list[Outcome]]:
    """For each phase the outcome of each job. Real munge, real torchrun on gloo; all jobs start each phase at the same moment,
    the worst case for shared links. Needs root and munged."""
    cluster = SlurmCluster(folder=Path(tempfile.mkdtemp(prefix="syn-gate-")))
    started: list[subprocess.Popen[bytes]] = []
    try:
        (cluster.folder / "log").mkdir()
        cluster.start_munged()
        with ShapedLink("gate", mbit, len(phases[0].loads)) as link:
            arbiter = LinkArbiter(
                listen(link.here, 0),
                ArbiterTerms(bound_s=bound_s),
                decode=lambda credential: munge.decode(credential, str(cluster.munge_socket)),
                encode=lambda words: munge.encode(words, str(cluster.munge_socket)),
            )
            try:
                for number in range(len(phases[0].loads)):
                    started += _start(link, cluster, arbiter.port, number, phases)
                return [
                    _phase(cluster.folder, arbiter, n, phase, seconds, started, bound_s)
                    for n, phase in enumerate(phases)
                ]
            finally:
                arbiter.close()
    finally:
        for process in started:
            process.kill()
            process.wait()
        cluster.stop()


def _start(
    link: ShapedLink, cluster: SlurmCluster, port: int, number: int, phases: Sequence[Phase]
) -> list[subprocess.Popen[bytes]]:
    script = ["-m", "tests.throwaway.gated_job", str(cluster.folder), f"job{number}"]
    for n, phase in enumerate(phases):
        load = phase.loads[number]
        script.append(f"{n}={load.compute_s},{load.megabytes},{int(phase.rule != OPEN)}")
    inside = [partial(link.command, name) for name in (link.a, link.b)]
    where = Places(link.interface(number), NODES, link.address(link.a, number), f"{link.here}:{port}")
    return start_pair(cluster, number, inside, where, script)


@dataclass(frozen=True)
class Places:
    """Where a job of two nodes runs: its own interface there, the nodes' names, the first one's address, and the link arbiter's."""

    interface: str
    nodes: Sequence[str]
    master: str
    arbiter: str


def start_pair(
    cluster: SlurmCluster,
    number: int,
    inside: Sequence[Callable[[list[str]], list[str]]],
    where: Places,
    script: Sequence[str],
) -> list[subprocess.Popen[bytes]]:
    """torchrun of job `number` on its two nodes, one process each; `inside` makes a command one that runs on the node."""
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(),
        "GLOO_SOCKET_IFNAME": where.interface,
        "OMP_NUM_THREADS": "1",
        "MUNGE_SOCKET": str(cluster.munge_socket),
        "SLURM_JOB_ID": str(number + 1),
        "SLURM_JOB_NODELIST": ",".join(where.nodes),
        "SYNERGY_LINK_ARBITER": where.arbiter,
    }
    found = []
    for rank, on_node in enumerate(inside):
        command = [sys.executable, "-m", "synergy_launch.launcher.torchrun", "--nnodes", "2", "--node-rank", str(rank)]
        command += ["--nproc-per-node", "1", "--master-addr", where.master, "--master-port", str(29_500 + number)]
        with (cluster.folder / f"job{number}.{rank}.log").open("wb") as log:
            found.append(
                subprocess.Popen(on_node([*command, *script]), env=environment, stdout=log, stderr=log, cwd=ROOT)
            )
    return found


def _phase(
    folder: Path,
    arbiter: LinkArbiter,
    number: int,
    phase: Phase,
    seconds: float,
    started: Sequence[subprocess.Popen[bytes]],
    bound_s: float,
) -> list[Outcome]:
    jobs = range(len(phase.loads))
    everybody = {n + 1: Member(os.getuid(), 0, NODES, 2, 1000.0) for n in jobs}
    arbiter.follow({} if phase.rule == OPEN else everybody)
    if phase.rule != OPEN:
        arbiter.terms = ArbiterTerms(make_discipline(phase.rule), bound_s=bound_s)
    _wait(folder, [f"job{n}.{number}.ready" for n in jobs], started, 240.0)
    begin_s = time.time() + 0.5
    draft = folder / "go.tmp"
    draft.write_text(json.dumps([begin_s, begin_s + seconds]))
    draft.replace(folder / f"{number}.go")
    names = [f"job{n}.{number}.json" for n in jobs]
    _wait(folder, names, started, seconds + 120.0)
    found = []
    for name in names:
        said = json.loads((folder / name).read_text())
        # the first steps pay for connections; those that end after the window may have had the link to themselves
        steps = [end - begin for begin, end in said["steps"][2:] if end <= begin_s + seconds]
        found.append(Outcome(tuple(steps), *said["counts"]))
    return found


def _wait(folder: Path, names: Sequence[str], started: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not all((folder / name).exists() for name in names):
        if time.monotonic() > end or any(process.poll() for process in started):
            logs = "\n".join(
                f"{p.name}:\n{p.read_text(errors='replace')[-2000:]}" for p in sorted(folder.glob("job*.log"))
            )
            raise TimeoutError(f"no {', '.join(names)}\n{logs}")
        time.sleep(0.02)
