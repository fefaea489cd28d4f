"""The limits that Slurm's associations and QOS leave to Synergy's jobs: Slurm's records in, limits of the allocation out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synergy_core.records import Cluster, JobState, Shape

from synergyd.scheduler.problem.gpu_limits import NO_SLURM_LIMITS, SlurmLimits
from synergyd.scheduler.problem.records import GPUS, Rate, UsageLimit
from synergyd.slurm.client import SlurmError, SlurmWriter
from synergyd.slurm.parsed.associations import (
    AccountingRules,
    Association,
    Associations,
    HolderLimits,
    Limits,
    Qos,
    QosRules,
    Tres,
    Usage,
    parse,
)
from synergyd.slurm.parsed.rows import JobRow, PartitionRow
from synergyd.slurm.parsed.snapshot import SubmittedJob, shape_from_row, state_from_row

log = logging.getLogger("synergyd")
RULES_S = 600.0  # between two looks at what changes seldom: three or four calls
_ONE_JOB = Rate(per_job=1.0, per_gpu=0.0)
_UNITS = {"gres/gpu": "GPUs", "cpu": "CPUs", "mem": "MiB of memory", "node": "nodes"}
_USING = (JobState.RUNNING, JobState.SUSPENDED)  # states of the jobs that Slurm counts


@dataclass(frozen=True, kw_only=True)
class JobUse:
    """A Synergy job as limits see it. Memory is MiB; minutes are of its time limit, None if it has none."""

    job_id: int
    account: str
    user: str
    uid: int
    partition: str
    qos: str
    #: the shape it holds if Slurm counts it, else None
    holds: Shape | None
    requested_shape: Shape
    cpus_per_node: float
    cpus_per_gpu: float = 0.0
    memory_per_node: float = 0.0
    memory_per_gpu: float = 0.0
    limit_min: float | None = None
    #: minutes until a running job ends at the latest
    left_min: float | None = None

    @property
    def limit_key(self) -> Hashable:
        """Return everything but the job's id."""
        whose = self.account, self.user, self.uid, self.partition, self.qos
        size = (
            self.holds,
            self.requested_shape,
            self.cpus_per_node,
            self.cpus_per_gpu,
            self.memory_per_node,
            self.memory_per_gpu,
        )
        return *whose, *size, self.limit_min, self.left_min


def describe_use(
    row: JobRow,
    submitted_job: SubmittedJob,
    gpu_type_of_node: Mapping[str, str],
    now_s: float,
    partitions: Mapping[str, PartitionRow],
) -> JobUse:
    """Return the JobUse that a row of the queue describes."""
    using = state_from_row(row) in _USING
    nodes = max(1, row.num_nodes)
    per_gpu, memory = float(row.cpus_per_gpu), row.memory_mib / nodes
    memory_per_gpu = per_gpu * row.min_memory_mib if row.memory_per_cpu else float(row.memory_per_gpu_mib)
    # where Slurm does not count memory, it charges a running job none, though a pending job's TRES has it (22.05)
    if not any(p.counts_memory for name in row.partition.split(",") if (p := partitions.get(name))):
        memory = memory_per_gpu = 0.0
    limit_s, end_s = row.time_limit_s, row.end_s
    return JobUse(
        job_id=row.job_id,
        account=row.account,
        user=row.user,
        uid=row.uid,
        partition=row.partition,
        qos=row.qos,
        holds=shape_from_row(row, gpu_type_of_node) if using else None,
        requested_shape=submitted_job.requested_shape,
        # if a job asks by GPU, the CPUs of a node are those of the size that it had when it was first seen
        cpus_per_node=1.0 if per_gpu else row.num_cpus / nodes if using else float(submitted_job.cpus_per_node),
        cpus_per_gpu=per_gpu,
        memory_per_node=0.0 if memory_per_gpu else memory,
        memory_per_gpu=memory_per_gpu,
        limit_min=None if limit_s is None else limit_s / 60,
        left_min=max(0.0, (end_s - now_s) / 60) if using and end_s is not None else None,
    )


class _Bound(NamedTuple):
    """One limit on one job. `used_amount`: by everything that Slurm counts; `is_per_job`: of this job alone."""

    kind: str
    name: str
    slurm: str
    tres: str
    unit: str
    limit: float
    used_amount: float
    rate: Rate
    is_per_job: bool = False
    at_least: bool = False
    #: what this job has of `used`; None: by `rate`
    holds: float | None = None


class _Source(NamedTuple):
    """The holder of limits: an association or a QOS."""

    kind: str
    name: str
    limits: Limits


@dataclass(frozen=True)
class Accounting:
    """One reading of Slurm's accounting."""

    rules: AccountingRules = field(default_factory=AccountingRules)
    associations: Associations = field(default_factory=Associations)

    def limits(self, uses: Iterable[JobUse], cluster: Cluster) -> SlurmLimits:
        """Return the limits on Synergy's jobs in the queue."""
        if not len(self.associations):
            return NO_SLURM_LIMITS
        whole = {kind: gpus for kind, gpus, *_ in sorted(cluster.kinds, key=lambda kind: kind[1])}
        shared: dict[tuple[str, ...], _Shared] = {}
        own: dict[int, tuple[UsageLimit, ...]] = {}
        stuck: dict[int, str] = {}
        fair_shares: dict[int, float] = {}
        kinds: dict[Hashable, _Alike] = {}
        for use in uses:
            key = use.limit_key
            if key not in kinds:
                kinds[key] = self._common_limits(use, max(whole.values(), default=0))
            kind = kinds[key]
            if kind.fair_share is not None:
                fair_shares[use.job_id] = kind.fair_share
            if kind.restart_obstacle:
                stuck[use.job_id] = kind.restart_obstacle
            for name, bound in kind.shared_limits:
                shared.setdefault(name, _Shared(bound)).add(bound, use)
            if kind.job_limits:
                own[use.job_id] = kind.job_limits
        return SlurmLimits(
            shared_limits=tuple(limit.build() for limit in shared.values()),
            job_limits=own,
            restart_obstacles=stuck,
            fair_shares=fair_shares,
        )

    def _common_limits(self, use: JobUse, whole: int) -> _Alike:
        leaf = self.associations.find(use.account, use.user, use.partition)
        fair_share = None if leaf is None else leaf.fair_share
        if not self.rules.limits:
            return _Alike(fair_share=fair_share)
        bounds = list(self._bounds(use, leaf, whole))
        shared = [((b.kind, b.name, b.slurm, b.tres), b) for b in bounds if not b.is_per_job]
        stuck = ""
        if use.holds is not None:
            if leaf is None:
                stuck = f"Slurm has no association of {use.user} with account {use.account} any more"
            over = next((b for _, b in shared if b.used_amount > b.limit), None)
            if over is not None:
                more = f"{over.kind} {over.name} has {over.used_amount:g} {over.unit} and may have {over.limit:g}"
                stuck = f"{more} ({over.slurm}), so after a restart it would wait"
        own = tuple(_own_limit(b) for b in bounds if b.is_per_job)
        return _Alike(fair_share=fair_share, restart_obstacle=stuck, shared_limits=shared, job_limits=own)

    def _bounds(self, use: JobUse, leaf: Association | None, whole: int) -> Iterator[_Bound]:
        """Yield every limit on one job. Where a QOS sets one, those of associations do not count (Slurm: acct_policy.c)."""
        quality = [_Source("QOS", q.name, q) for q in self._qos(use)]
        chain = [] if leaf is None else [_source(a) for a in self.associations.chain(leaf)]
        rates = _Rates(use, whole)
        for source, tres, usage in _in_force(quality, chain, lambda of: of.tres):
            yield from rates.bounds(source, "GrpTRES", tres, usage)
        for source, tres, usage in _in_force(quality, chain, lambda of: of.run_mins):
            yield from rates.minutes(source, "GrpTRESRunMins", tres, usage)
        for source, tres, usage in _in_force(quality, chain, lambda of: of.mins):
            yield from self._minute_bounds(rates, source, tres, usage)
        for source, _, usage in _in_force(quality, chain, lambda of: {"": of.jobs}):
            yield from _jobs(source.kind, source.name, "GrpJobs", usage)
        for source, _, usage in _in_force(quality, chain, lambda of: {"": of.wall_min}):
            yield from self._wall(use, source, usage)
        yield from self._holders(use, leaf, rates)
        last = chain[:1]
        for source, tres, usage in _in_force(quality, last, lambda of: of.job_tres):
            yield from rates.bounds(source, "MaxTRESPerJob", tres, usage, own=True)
        for source, tres, usage in _in_force(quality, last, lambda of: of.node_tres):
            yield from rates.bounds(source, "MaxTRESPerNode", tres, usage, own=True, one_node=True)
        for source, tres, usage in _in_force(quality, [], lambda of: of.least_tres):
            yield from rates.bounds(source, "MinTRESPerJob", tres, usage, own=True, at_least=True)
        for source, tres, usage in _in_force(quality, last, lambda of: of.job_mins):
            yield from rates.minutes(source, "MaxTRESMinsPerJob", tres, usage, own=True)
        for source, _, usage in _in_force(quality, last, lambda of: {"": Usage(of.job_wall_min)}):
            if use.limit_min is not None and usage.limit is not None:
                rate = Rate(per_job=use.limit_min, per_gpu=0.0)
                yield _Bound(
                    source.kind, source.name, "MaxWall", "", "minutes", usage.limit, 0.0, rate, is_per_job=True
                )

    def _qos(self, use: JobUse) -> list[Qos]:
        """Return the QOS that bind the job, in the order of their precedence."""
        of_partition = self.rules.partition_qos.get(use.partition.split(",")[0], "")
        names = [of_partition, use.qos]
        if self._qos_rules(use.qos).over_partition:
            names.reverse()
        return [self.associations.qos[name] for name in dict.fromkeys(names) if name in self.associations.qos]

    def _qos_rules(self, name: str) -> QosRules:
        return self.rules.qos.get(name, QosRules())

    def _holders(self, use: JobUse, leaf: Association | None, rates: _Rates) -> Iterator[_Bound]:
        """Yield the limits on one user's and one account's jobs in a QOS, and MaxJobs of the association where no QOS sets it."""
        limit_keys: set[tuple[str, str]] = set()
        for qos in self._qos(use):
            rules = self._qos_rules(qos.name)
            user = _holder(qos.users.get(use.uid), rules.user)
            account = _holder(qos.accounts.get(use.account), rules.account)
            for kind, name, what, holder in (
                ("user", use.user, "User", user),
                ("account", use.account, "Account", account),
            ):
                source = _Source(kind, f"{name} in QOS {qos.name}", qos)
                for tres, usage in holder.tres.items():
                    if (what, tres) not in limit_keys:
                        yield from rates.bounds(source, f"MaxTRESPer{what}", tres, usage)
                if (what, "") not in limit_keys:
                    yield from _jobs(source.kind, source.name, f"MaxJobsPer{what}", holder.jobs)
                limit_keys |= {(what, tres) for tres in holder.tres}
                limit_keys |= {(what, "")} if holder.jobs.limit is not None else set()
        if leaf is not None and ("User", "") not in limit_keys:
            source = _source(leaf)
            yield from _jobs(source.kind, source.name, "MaxJobs", leaf.user_jobs)

    def _minute_bounds(self, rates: _Rates, source: _Source, tres: str, usage: Usage) -> Iterator[_Bound]:
        """Yield the bounds of GrpTRESMins.

        Without `safe` Slurm starts any job while some minutes are left: only growth is held to what is left.
        """
        if self.rules.safe:
            running = source.limits.run_mins.get(tres, Usage()).used
            usage = Usage(usage.limit, usage.used + running)
            yield from rates.minutes(source, "GrpTRESMins", tres, usage)
            return
        for bound in rates.minutes(source, "GrpTRESMins", tres, usage, own=True):
            requested_shape, left_min = rates.use.requested_shape, bound.limit - bound.used_amount
            enough = (
                bound.rate.count_use(requested_shape.gpu_type, requested_shape.nodes, requested_shape.gpus_per_node)
                if left_min > 0
                else 0.0
            )
            yield bound._replace(limit=max(left_min, enough, 0.0), used_amount=0.0)

    def _wall(self, use: JobUse, source: _Source, usage: Usage) -> Iterator[_Bound]:
        if usage.limit is None or use.limit_min is None or (usage.used < usage.limit and not self.rules.safe):
            return
        rate, left_min = Rate(per_job=use.limit_min, per_gpu=0.0), max(0.0, usage.limit - usage.used)
        yield _Bound(source.kind, source.name, "GrpWall", "", "minutes", left_min, 0.0, rate, is_per_job=True)


class _Rates:
    """The use that one job makes of each TRES."""

    def __init__(self, use: JobUse, whole: int) -> None:
        self.use = use
        self._rates = {
            "cpu": Rate(0.0, use.cpus_per_node, use.cpus_per_gpu),
            "node": Rate(0.0, 1.0, 0.0, whole_node_gpus=whole),
            "gres/gpu": GPUS,
        }
        if use.memory_per_node or use.memory_per_gpu:
            self._rates["mem"] = Rate(0.0, use.memory_per_node, use.memory_per_gpu)

    def rate_for(self, tres: str) -> Rate | None:
        """Return the rate of a TRES, or None if it does not depend on a job's GPUs as far as is known: Slurm looks after it."""
        if tres.startswith("gres/gpu:"):
            return GPUS._replace(gpu_type=tres.removeprefix("gres/gpu:"))
        return self._rates.get(tres)

    def bounds(
        self, source: _Source, slurm: str, tres: str, usage: Usage, *, own: bool = False, at_least: bool = False,
        one_node: bool = False,
    ) -> Iterator[_Bound]:  # fmt: skip
        rate = self.rate_for(tres)
        if rate is not None and usage.limit is not None:
            rate = rate._replace(one_node=one_node, whole_node_gpus=0 if own else rate.whole_node_gpus)
            unit = _unit(tres)
            yield _Bound(source.kind, source.name, slurm, tres, unit, usage.limit, usage.used, rate, own, at_least)

    def minutes(self, source: _Source, slurm: str, tres: str, usage: Usage, *, own: bool = False) -> Iterator[_Bound]:
        """Yield the limit on the minutes of the job's time limit, or nothing for a job without one."""
        rate, use = self.rate_for(tres), self.use
        if rate is None or usage.limit is None or use.limit_min is None:
            return
        holds = None
        if use.holds is not None:
            left_min = use.limit_min if use.left_min is None else use.left_min
            holds = left_min * rate.count_use(use.holds.gpu_type, use.holds.nodes, use.holds.gpus_per_node)
        unit = f"minutes of {_unit(tres)}"
        rate = rate.times(use.limit_min)
        yield _Bound(source.kind, source.name, slurm, tres, unit, usage.limit, usage.used, rate, own, holds=holds)


@dataclass(frozen=True, kw_only=True)
class _Alike:
    """The limits that are the same for all jobs that limits do not tell apart."""

    fair_share: float | None
    restart_obstacle: str = ""
    shared_limits: Sequence[tuple[tuple[str, ...], _Bound]] = ()
    job_limits: tuple[UsageLimit, ...] = ()


class _Shared:
    """One limit over several jobs, while it is put together."""

    def __init__(self, bound: _Bound) -> None:
        self._bound, self._held = bound, 0.0
        self._rates: dict[int, Rate] = {}

    def add(self, bound: _Bound, use: JobUse) -> None:
        self._rates[use.job_id] = bound.rate
        if use.holds is not None:
            by_rate = bound.rate.count_use(use.holds.gpu_type, use.holds.nodes, use.holds.gpus_per_node)
            self._held += by_rate if bound.holds is None else bound.holds

    def build(self) -> UsageLimit:
        b = self._bound
        most = max(0.0, b.limit - max(0.0, b.used_amount - self._held))
        return UsageLimit(b.kind, b.name, most, b.limit, unit=b.unit, slurm=b.slurm, rates=self._rates)


def _own_limit(b: _Bound) -> UsageLimit:
    return UsageLimit(
        b.kind, b.name, b.limit, b.limit, unit=b.unit, slurm=b.slurm, at_least=b.at_least, job_rate=b.rate
    )


def _in_force(
    quality: Sequence[_Source], chain: Sequence[_Source], pick: Callable[[Limits], Tres]
) -> Iterator[tuple[_Source, str, Usage]]:
    """Yield the usages of the first QOS that sets a TRES, else of every association of the chain that does."""
    qos_tres: set[str] = set()
    for source in quality:
        own = {tres: usage for tres, usage in pick(source.limits).items() if usage.limit is not None}
        yield from ((source, tres, usage) for tres, usage in own.items() if tres not in qos_tres)
        qos_tres |= own.keys()
    for source in chain:
        yield from (
            (source, tres, u) for tres, u in pick(source.limits).items() if u.limit is not None and tres not in qos_tres
        )


def _source(a: Association) -> _Source:
    if not a.user:
        return _Source("account", a.account, a)
    return _Source(
        "user", f"{a.user} in account {a.account}" + (f" and partition {a.partition}" if a.partition else ""), a
    )


def _jobs(kind: str, name: str, slurm: str, usage: Usage) -> Iterator[_Bound]:
    if usage.limit is not None:
        yield _Bound(kind, name, slurm, "", "jobs", usage.limit, usage.used, _ONE_JOB)


def _holder(current_limits: HolderLimits | None, rules: HolderLimits) -> HolderLimits:
    """Return the limits with what is used. Slurm shows no user or account that has had no job in the QOS."""
    if current_limits is None:
        return rules
    tres = {name: Usage(usage.limit) for name, usage in rules.tres.items()} | dict(current_limits.tres)
    return HolderLimits(jobs=current_limits.jobs if current_limits.jobs.limit is not None else rules.jobs, tres=tres)


def _unit(tres: str) -> str:
    return f"{tres.removeprefix('gres/gpu:')} GPUs" if tres.startswith("gres/gpu:") else _UNITS.get(tres, tres)


class AccountReader:
    """The reader of Slurm's accounting, which reads at most once an epoch, and not at all where nothing of it counts."""

    def __init__(self, slurm: SlurmWriter, *, fair_share: bool, clock: Callable[[], float]) -> None:
        self._slurm, self._fair_share, self._clock = slurm, fair_share, clock
        self._looked_s = -math.inf
        self._problem = ""
        self._last = Accounting()

    @property
    def has_limits(self) -> bool:
        """Return whether Slurm holds jobs to limits, as far as is known."""
        return self._last.rules.limits

    def qos_flags(self, name: str) -> frozenset[str] | None:
        """Return the flags of a QOS as it was last read, or None if they are not known."""
        rules = self._last.rules.qos.get(name)
        return rules.flags if rules is not None else None if name else frozenset()

    def read(self) -> Accounting:
        """Read Slurm's accounting. Return the last reading if Slurm does not answer."""
        rules = self._last.rules
        try:
            if self._clock() >= self._looked_s + RULES_S:
                rules = self._slurm.accounting_rules()
                self._looked_s = self._clock()
            needs_associations = rules.limits or (self._fair_share and rules.enforcement)
            self._last = Accounting(rules, parse(self._slurm.associations()) if needs_associations else Associations())
            self._problem = ""
        except SlurmError as problem:
            if str(problem) != self._problem:
                log.warning("limits of associations: %s; the last that were read hold", problem)
            self._problem = str(problem)
        return self._last
