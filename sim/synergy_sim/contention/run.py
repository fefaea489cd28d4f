"""The entry point of `synergyctl simulate --workload contention` and the benchmark: named policies in, records, JSON and a table out."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from synergy_core.errors import UsageError

from synergy_sim.contention.engine import Engine, Machine
from synergy_sim.contention.lookahead import LookAhead
from synergy_sim.contention.placers import find_placer
from synergy_sim.contention.workload import MIX, JobSpec, paper_workload
from synergyd.links.disciplines import LOOK_AHEAD, Discipline, make_discipline
from synergyd.links.lookahead import CANDIDATES
from synergyd.links.model import Link, Topology, make_link

POLICIES = ("srsf-1", "srsf-2", "srsf-3", "ada-srsf", LOOK_AHEAD)
PLACEMENT = "lwf-1"


@dataclass(frozen=True)
class Setup:
    """The paper's set-up, except where a field says otherwise.

    `penalty`, `message` and `load` multiply the link's h, the gradients' sizes and the rate of arrivals; `scale` 1000 is the paper's
    1,000 to 6,000 iterations (see paper_workload). `exclusive`: one job on a GPU, where the paper lets as many share it as its memory
    holds.
    """

    nodes: int = 16
    gpus: int = 4
    memory_mb: float = 32768.0
    exclusive: bool = False
    link: str = "10gbe"
    penalty: float = 1.0
    message: float = 1.0
    load: float = 1.0
    jobs: int = 160
    scale: float = 1000.0

    def check(self) -> Setup:
        """Return the set-up itself. Raises UsageError."""
        for name in ("memory_mb", "message", "load", "scale"):
            if not 1e-6 <= (value := getattr(self, name)) <= 1e6:
                raise UsageError(name, f"{value} is no use", "a number above 0, from 1e-6 to 1e6")
        if not (math.isfinite(self.penalty) and self.penalty >= 0):
            raise UsageError("penalty", f"{self.penalty} is no use", "a number of at least 0")
        if min(self.nodes, self.gpus, self.jobs) < 1:
            raise UsageError("simulate", "nodes, GPUs and jobs are needed", "at least 1 of each")
        if round(self.scale) < 1:
            raise UsageError("scale", f"{self.scale} leaves jobs without iterations", "at least 1")
        make_link(self.link)
        return self

    def machine(self) -> Machine:
        link = make_link(self.link)
        nic = Link(link.per_mb, link.penalty * self.penalty)
        return Machine(self.nodes, self.gpus, self.memory_mb, self.exclusive, Topology(nic=nic))

    def workload(self, seed: int) -> tuple[JobSpec, ...]:
        """Return the paper's jobs; those that ask for more GPUs than the machine has are cut to it."""
        most = self.nodes * self.gpus
        return tuple(
            replace(j, gpus=min(j.gpus, most))
            for j in paper_workload(seed, self.jobs, self.scale, self.load, self.message)
        )


@dataclass(frozen=True)
class JobRun:
    """One job's outcome. `waited_s`: seconds in which it was ready to send but not allowed to; `sent_s`: seconds that its messages took."""

    job_id: int
    network: str
    gpus: int
    nodes: int
    arrival_s: float
    finish_s: float
    waited_s: float
    sent_s: float

    @property
    def jct_s(self) -> float:
        return self.finish_s - self.arrival_s


@dataclass(frozen=True)
class ContentionRun:
    """One simulation: a placement and a discipline on one seed's workload. `discipline_counts`: how often look-ahead took which."""

    policy: str
    placement: str
    seed: int
    jobs: tuple[JobRun, ...]
    discipline_counts: dict[str, int] = field(default_factory=dict)

    @property
    def jct_s(self) -> float:
        """Return the mean job completion time."""
        return statistics.fmean(j.jct_s for j in self.jobs)

    @property
    def makespan_s(self) -> float:
        return max(j.finish_s for j in self.jobs) - min(j.arrival_s for j in self.jobs)

    def percentile_s(self, share: float) -> float:
        """Return the JCT that `share` of the jobs do not exceed (nearest rank)."""
        ordered = sorted(j.jct_s for j in self.jobs)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def parse_policy(name: str) -> tuple[str, Discipline | LookAhead]:
    """Parse `[PLACEMENT+]DISCIPLINE` into (placement, what decides). Raises UsageError."""
    placement, plus, discipline = name.rpartition("+")
    placement = placement if plus else PLACEMENT
    find_placer(placement)
    return placement, LookAhead() if discipline == LOOK_AHEAD else make_discipline(discipline)


def run_contention(policies: Sequence[str], seed: int, setup: Setup | None = None) -> list[ContentionRun]:
    """Return one Run per policy, all on the same jobs.

    A policy is a discipline (srsf-T, ada-srsf, each also with -time and -reserve; look-ahead), with a placement before it if not lwf-1:
    `first-fit+srsf-1`. Raises UsageError.
    """
    setup = (setup or Setup()).check()
    jobs, machine = setup.workload(seed), setup.machine()
    runs = []
    for placement, decides in [parse_policy(name) for name in policies]:
        engine = Engine(machine, jobs, find_placer(placement), CANDIDATES[0])
        counts: dict[str, int] = {}
        if isinstance(decides, LookAhead):
            counts = decides.run(engine)
        else:
            engine.set_discipline(decides)
            engine.advance()
        runs.append(ContentionRun(decides.name, placement, seed, _jobs(engine), counts))
    return runs


def _jobs(engine: Engine) -> tuple[JobRun, ...]:
    size = engine.machine.gpus
    return tuple(
        JobRun(
            job.job_id,
            job.network,
            job.gpus,
            len({g // size for g in engine.where[i]}),
            job.arrival_ms / 1000.0,
            engine.finish[i] / 1000.0,
            engine.waited[i] / 1000.0,
            engine.sent[i] / 1000.0,
        )
        for i, job in enumerate(engine.jobs)
    )


def summary(run: ContentionRun) -> dict[str, object]:
    """Return the numbers of one Run: means and percentiles in seconds, JCT by number of GPUs."""
    many = [j for j in run.jobs if j.nodes > 1]
    return {
        "policy": run.policy,
        "placement": run.placement,
        "seed": run.seed,
        "jobs": len(run.jobs),
        "multi_node_jobs": len(many),
        "mean_jct_s": run.jct_s,
        "median_jct_s": run.percentile_s(0.5),
        "p95_jct_s": run.percentile_s(0.95),
        "makespan_s": run.makespan_s,
        "multi_node_jct_s": statistics.fmean(j.jct_s for j in many) if many else None,
        "waited_s": statistics.fmean(j.waited_s for j in many) if many else 0.0,
        "sending_s": statistics.fmean(j.sent_s for j in many) if many else 0.0,
        "jct_s_by_gpus": {
            str(g): statistics.fmean(some) for g, _ in MIX if (some := [j.jct_s for j in run.jobs if j.gpus == g])
        },
        "chosen": run.discipline_counts,
    }


def to_json(runs: Sequence[ContentionRun], jobs: bool = False) -> str:
    """Return a JSON list with the summary of each Run and, with `jobs`, every job's figures."""
    return json.dumps([summary(r) | ({"job_runs": [asdict(j) for j in r.jobs]} if jobs else {}) for r in runs])


HEADER = (
    "policy",
    "placement",
    "seed",
    "mean JCT s",
    "median s",
    "95 % s",
    "makespan s",
    "multi-node JCT s",
    "gated s",
    "sending s",
)


def rows(runs: Sequence[ContentionRun]) -> list[tuple[str, ...]]:
    """Return the table's cells as text, one row a Run, in HEADER's order."""
    text_rows = []
    for run in runs:
        s = summary(run)
        names = ("mean_jct_s", "median_jct_s", "p95_jct_s", "makespan_s", "multi_node_jct_s", "waited_s", "sending_s")
        figures = [f"{v:.1f}" if isinstance(v := s[n], float) else "-" for n in names]
        text_rows.append((run.policy, run.placement, str(run.seed), *figures))
    return text_rows


def table(runs: Sequence[ContentionRun]) -> str:
    """Return the table as aligned text, names to the left, numbers to the right."""
    lines = [HEADER, *rows(runs)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    return "\n".join(
        "  ".join(
            c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
