"""Random failures one after another, for `ettr`: nothing may be lost, and no loss may differ from an uninterrupted run's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks.ettr_failures import KINDS, LIMIT_S, NODES, START_S, make_failure, restore
from tests.integration.daemon_site import until_beat
from tests.integration.test_in_place import last_step, shown, steps
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd
from tests.throwaway.torch_job import nodes_of, output, submit

PAIRS = 0.2  # of the failures come two at once
MOST_APART = 1e-6  # losses of the same step, in the issue's own words
LEAST_NODES = 2
# random moments: up to two intervals between checkpoints after the run trains again
MOST_STEPS_BETWEEN = 20
STEP_S = 0.1


@dataclass(frozen=True, kw_only=True)
class RandomRun:
    """What came of the failures."""

    failures: int
    #: of them, how many came two at once
    paired: int
    #: jobs that they came to
    jobs: int
    #: seconds from a failure to the first step afterwards: median and longest
    median_s: float
    longest_s: float
    repeated: int
    lost: int
    #: largest difference of a step's loss from the uninterrupted run
    apart: float
    requeues: int

    @property
    def is_right(self) -> bool:
        """Return whether nothing was lost."""
        return not self.lost and not self.requeues and self.apart <= MOST_APART

    def line(self) -> str:
        """Return the result for a terminal."""
        return (
            f"{self.failures} failures ({self.paired} in pairs) in {self.jobs} jobs: trains again after {self.median_s:.1f} s (median; "
            f"longest {self.longest_s:.1f}), {self.repeated} steps repeated, {self.lost} lost, {self.requeues} requeues, losses at most "
            f"{self.apart:.1e} from the uninterrupted run's"
        )


def run_random(count: int, seed: int, say: Callable[[str], None]) -> RandomRun:
    """Make `count` random failures. Raises RuntimeError where a job does not train again."""
    choice = random.Random(seed)
    cluster = make_cluster([NodeGroup("cpu", NODES, 1)], epoch_s=1)
    cluster.slurmd_timeout_s = 3600  # the answer under test is the launchers'
    logs, waits, made, paired, requeues = [], list[float](), 0, 0, 0
    with cluster, synergyd(cluster):
        until_beat(cluster)  # a job that starts before is a plain one
        while made < count:
            job = _start(cluster)
            nodes, lost = nodes_of(cluster, job), set[str]()
            while made < count and len(nodes) - len(lost) > LEAST_NODES:
                at_once = min(2 if choice.random() < PAIRS else 1, count - made)
                failures = _choose(choice, [n for n in nodes if n not in lost], nodes[0], at_once)
                waits.append(_fail(cluster, job, failures, choice))
                lost |= {node for kind, node in failures if kind == "node"}
                made, paired = made + at_once, paired + (at_once if at_once > 1 else 0)
                say(
                    f"{made:3}: {', '.join(f'{kind} on {node}' for kind, node in failures)}: trains after {waits[-1]:.1f} s"
                )
            requeues += int(shown(cluster, job, "Restarts"))
            logs.append(steps(cluster, job))
            restore(cluster, job, lost)
        longest = max(int(log[-1]["step"]) for log in logs)
        alone = _uninterrupted(cluster, longest)
    repeated, missing, apart = 0, 0, 0.0
    for log in logs:
        numbers = {int(line["step"]) for line in log}
        repeated, missing = repeated + len(log) - len(numbers), missing + max(numbers) - len(numbers)
        apart = max(apart, *(abs(line["loss"] - alone[int(line["step"])]) for line in log))
    return RandomRun(
        failures=made,
        paired=paired,
        jobs=len(logs),
        median_s=sorted(waits)[len(waits) // 2],
        longest_s=max(waits),
        repeated=repeated,
        lost=missing,
        apart=apart,
        requeues=requeues,
    )


def _start(cluster: SlurmCluster) -> int:
    # no forks of a warm process: by their environment nobody can tell which rank they are
    before = "export SYNERGY_CRASH_RESTARTS=1000 SYNERGY_WARM_START=0\n"
    job = submit(cluster, NODES, step_s=STEP_S, before=before, options=("--requeue",))
    cluster.wait_for(lambda: last_step(cluster, job).get("step", 0) >= 15, START_S, "steps")
    return job


def _choose(choice: random.Random, nodes: list[str], first: str, count: int) -> list[tuple[str, str]]:
    """Return `count` failures on different nodes that leave the first one, where the batch script runs, and one more."""
    failures: list[tuple[str, str]] = []
    for node in choice.sample(nodes, count):
        spared = node == first or len(nodes) - sum(kind == "node" for kind, _ in failures) <= LEAST_NODES
        failures.append((choice.choice(KINDS[:2] if spared else KINDS), node))
    return failures


def _fail(cluster: SlurmCluster, job: int, failures: list[tuple[str, str]], choice: random.Random) -> float:
    """Make the failures some steps from now; the seconds until the run trains again."""
    at = int(last_step(cluster, job)["step"]) + choice.randrange(1, MOST_STEPS_BETWEEN)
    cluster.wait_for(lambda: last_step(cluster, job)["step"] >= at, LIMIT_S, "further steps")
    begun_s = time.time()
    for index, (kind, node) in enumerate(failures):
        try:
            make_failure(cluster, job, kind, node)
        except (LookupError, ProcessLookupError):
            if not index:
                raise
            continue  # the first of a pair has ended it already
    time.sleep(0.5)
    before = len(steps(cluster, job))
    try:
        cluster.wait_for(lambda: len(steps(cluster, job)) >= before + 15, 2 * LIMIT_S, f"steps after {failures}")
    except RuntimeError:
        print(output(cluster, job)[-6000:])
        raise
    return float(steps(cluster, job)[before]["time"]) - begun_s


def _uninterrupted(cluster: SlurmCluster, last: int) -> dict[int, float]:
    """Return the losses by step of a run that nothing interrupts."""
    job = submit(cluster, NODES, steps=last, step_s=0.0)
    log: dict[int, float] = {}

    def is_over() -> bool:
        log.update({int(line["step"]): line["loss"] for line in steps(cluster, job)})
        return last in log

    cluster.wait_for(is_over, START_S, "the uninterrupted run's end")
    return log
