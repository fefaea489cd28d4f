"""Less communication as a degree of a plan: which options a job may be given, and which of its Cells are worth an entry. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from synergy_core.exchange import EXACT, MAX_PERIOD, Exchange, parse_exchange
from synergy_core.formatting import format_exchange
from synergy_core.job_report import Report
from synergy_core.loss_trend import NO_LOSSES, LossTrend, with_loss
from synergy_core.rates import equivalent_sequences
from synergy_core.records import Cell, Job, Plan, Profile, Shape

from synergyd.jobmodel.model import exchange_cost
from synergyd.jobmodel.model.exchange_cost import TAKEN_BACK, UNMEASURED_GAIN
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.plan_limits import PlanLimits

_Key = tuple[str, int, int]
# The values that loss_trend takes as batches; the smaller one is known to be good.
_EXACT, _LESS = 1, 2
#: predicted step seconds and the like of the best plan of a shape with one option
CellsWith = Callable[[Exchange], Iterable[Cell]]


@dataclass(frozen=True)
class ExchangeChoice:
    """The exchanges that one job may be given besides the exact one.

    `present` is what it runs with. `longer` is the ratio of local steps' periods as its run makes them to the plan's (QSR, as the
    learning rate falls).
    """

    job: Job
    profile: Profile
    present: Exchange = EXACT
    longer: float = 1.0

    @classmethod
    def build(cls, job: Job, profile: Profile, plan: Plan | None) -> ExchangeChoice:
        present = parse_exchange(plan.exchange, "present plan") if plan else EXACT
        # the last measured exchange is the one that runs
        last = parse_exchange(profile.measured[-1].plan.exchange, "measured") if profile.measured else EXACT
        follows = present.kind == last.kind == "local"
        return cls(job, profile, present, max(1.0, last.period / present.period) if follows else 1.0)

    @property
    def options(self) -> tuple[Exchange, ...]:
        """Return the options that the job may take."""
        directive = self.job.directive
        if directive is None or not directive.comm or self.job.exact or self.profile.accepts.exact_only:
            return ()
        refused = self.profile.accepts.refuses.split("+")
        return tuple(option for option in exchange_cost.options(directive.comm) if option.way not in refused)

    @property
    def considered_options(self) -> tuple[Exchange, ...]:
        """Return `options`, and the option that the job runs with: going on as before has its price too."""
        options = self.options
        return options if self.present == EXACT or self.present in options else (*options, self.present)

    def runs(self, option: Exchange) -> Exchange:
        """Return what the job runs where its plan says `option`.

        The rule lengthens a period only as far as it costs no more examples, so its worth stays that of the plan's.
        """
        if option.kind != "local":
            return option
        return replace(option, period=min(MAX_PERIOD, round(option.period * self.longer)))

    def example_worth(self, option: Exchange, replicas: int) -> float:
        """Return what an example is worth under `option`, as a share of what it is worth with every gradient exchanged."""
        worth = exchange_cost.example_worth(option, replicas, self.profile.measured)
        return worth if option == EXACT or option in self.options else min(worth, TAKEN_BACK)

    def make_cells(self, exact: Sequence[Cell], cells: CellsWith) -> list[Cell]:
        """Return the Cells to add to the `exact` ones.

        For each shape this is the best option that may be taken, where it predicts clearly more than the best exact plan, and
        than what the job runs with, which is added on its own shape. `cells(option)`: the best plan of each shape that runs
        `option`, with an example's worth not counted.
        """
        least: dict[_Key, float] = {}
        for cell in exact:
            least[_key(cell.shape)] = max(least.get(_key(cell.shape), 0.0), cell.goodput)
        priced = {
            option: [self._price_cell(cell, option) for cell in cells(self.runs(option))]
            for option in self.considered_options
        }
        present = [cell for cell in priced.get(self.present, ()) if cell.shape == self.job.shape]
        best: dict[_Key, Cell] = {}
        for option in self.options:
            for cell in priced[option]:
                key = _key(cell.shape)
                need = least.get(key, 0.0)
                if option == self.present:
                    if cell.shape == self.job.shape:
                        continue
                elif not self._is_known(option):
                    need = UNMEASURED_GAIN * max(need, *(c.goodput for c in present if c.shape == cell.shape), 0.0)
                if cell.goodput > max(need, best[key].goodput if key in best else 0.0):
                    best[key] = cell
        return [*best.values(), *present]

    def _is_known(self, option: Exchange) -> bool:
        return exchange_cost.is_measured(option, self.profile.measured)

    def _price_cell(self, cell: Cell, option: Exchange) -> Cell:
        worth = self.example_worth(option, cell.plan.dp)
        return replace(
            cell,
            plan=replace(cell.plan, exchange=str(option)),
            efficiency=cell.efficiency * worth,
            goodput=cell.goodput * worth,
        )

    def remark(self, exact: Sequence[Cell], cells: CellsWith) -> str:
        """Return a sentence on why no option was taken for a running job that allows some, with a leading blank.

        Return "" where one is taken, or none is allowed.
        """
        directive = self.job.directive
        if directive is None or not set(directive.comm) - {"exact"} or self.present != EXACT:
            return ""
        prefix = f" comm={','.join(directive.comm)} changes nothing:"
        if self.job.exact:
            return f"{prefix} {self.job.exact}."
        if not self.options:
            return f"{prefix} its program exchanges every gradient in every step."
        here = [c for c in exact if c.shape == self.job.shape]
        offered = [
            self._price_cell(c, o) for o in self.options for c in cells(self.runs(o)) if c.shape == self.job.shape
        ]
        if not here or not offered:
            return f"{prefix} its replicas have no slow link between them."
        best, base = max(offered, key=lambda c: c.goodput), max(here, key=lambda c: c.goodput)
        if best.goodput > UNMEASURED_GAIN * base.goodput:
            return ""
        return f"{prefix} {format_exchange(best, base)} gain too little."


def _key(shape: Shape) -> _Key:
    return shape.gpu_type, shape.nodes, shape.gpus_per_node


def with_exchange(job: Job, exact_only: bool, allowed: Sequence[str]) -> Job:
    """Return `job` with what it may exchange now. `exact_only`: JobLifecycle's; `allowed`: kinds (Settings.comm_options)."""
    directive = job.directive
    if directive is None or not set(directive.comm) - {"exact"}:
        return job
    if exact_only:
        return replace(job, exact="its loss did worse with less communication")
    kinds = tuple(kind for kind in directive.comm if kind in allowed)
    if not set(kinds) - {"exact"}:
        return replace(job, exact="none of it is allowed here")
    return job if kinds == directive.comm else replace(job, directive=replace(directive, comm=kinds))


def may_exchange_less(gpu: GpuFigures, shape: Shape) -> bool:
    """Return whether replicas on `shape` meet over a link that may be slow."""
    return shape.gpus > 1 and exchange_cost.slow_links(shape.nodes, gpu.intra_gbs)


def limits_to_replicas(limits: PlanLimits) -> PlanLimits | None:
    """Return `limits` for plans of whole replicas whose parameters are not sharded (DDP), or None if the limits rule these out."""
    if any((getattr(limits, name) or 1) > 1 for name in ("tp", "pp", "vpp", "cp", "ep")):
        return None
    return replace(limits, tp=1, pp=1, vpp=1, cp=1, ep=1, zero_stages=(0,), uneven=False)


def after_exchange(trend: LossTrend, report: Report, noise_scale: float | None) -> LossTrend:
    """Return the trend of the job's loss after a report.

    Losses with less communication are on trial against the losses before, with all of it. Once the trial is passed, or where there
    were no losses before, nothing is compared until every gradient is exchanged again.
    """
    if report.plan is None:
        return trend
    level = _EXACT if report.plan.exchange == "exact" else _LESS
    if level == _EXACT and trend.good == _LESS:
        trend = NO_LOSSES
    batch = report.plan.global_batch
    step_worth = float(batch) if noise_scale is None else equivalent_sequences(1.0, batch, noise_scale)
    return with_loss(trend, report.step, report.loss, level, step_worth)
