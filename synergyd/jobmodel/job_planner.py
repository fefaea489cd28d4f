"""The planner of one job: what it could achieve on each shape of a cluster. Pure: the same records in, the same Cells out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from synergy_core.errors import UsageError, one_line
from synergy_core.exchange import EXACT, Exchange, parse_exchange
from synergy_core.formatting import format_plan
from synergy_core.records import Cell, Cluster, Directive, Job, ModelSpec, Plan, Profile, Shape

from synergyd.jobmodel import plan_distance, unknown_model
from synergyd.jobmodel.asked_size import at_least_linear
from synergyd.jobmodel.cell_search import rank, uncertainty
from synergyd.jobmodel.exchange_choice import ExchangeChoice, limits_to_replicas, may_exchange_less
from synergyd.jobmodel.learning import level, refine_figures
from synergyd.jobmodel.memory_belief import LEARNT_SIGMA, MemoryBelief
from synergyd.jobmodel.model import throughput
from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.efficiency import UNKNOWN_NOISE
from synergyd.jobmodel.model.hardware import GIB, GpuFigures, figures, with_kernels, with_overlap
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import check_spec
from synergyd.jobmodel.model.step_time import step_time
from synergyd.jobmodel.model.throughput import PRIOR, ThroughputModel, ThroughputPrior
from synergyd.jobmodel.plan_limits import NOT_BATCH, TOO_BIG, PlanLimits, check_fixed
from synergyd.jobmodel.plan_space import enumerate_plans
from synergyd.jobmodel.shapes import allows_type, bounds, job_shapes, usable_nodes

# Sequences a GPU where neither the directive nor a report says the batch: enough that every size up to the one asked
# for divides it.
_ASSUMED_SEQUENCES = 8
# Plans of many more shapes than this at once fall out of the processor's cache, of fewer pay for more calls.
_SHAPES_AT_ONCE = 40


@dataclass(frozen=True)
class JobPlanner:
    """One job with what is known of it.

    `model` is None for a plain PyTorch job; a model that the running job reported (profile.model) is preferred.
    `figures` by GPU type as Slurm names it; types that are missing take the built-in figures. `present` is the plan
    the job runs with, or ran with last: where its checkpoint can't be resharded, its degrees besides dp are kept.
    The profile says which degrees other than tp, pp and dp the job's script takes; the other degrees stay as they are.
    `least_memory` by GPU type: measured over predicted peak memory at the least, whatever the profile says. `prior`: of a job
    whose model is not known.
    """

    job: Job
    profile: Profile
    model: ModelSpec | None
    figures: Mapping[str, GpuFigures]
    present: Plan | None = None
    least_memory: Mapping[str, float] = field(default_factory=dict)
    prior: ThroughputPrior = PRIOR

    def cells(self, cluster: Cluster) -> tuple[Cell, ...]:
        """Return all Cells of the job: the plan of best goodput for each shape (see shapes.job_shapes) and pipeline degree.

        Never raises. The result is empty if the directive contradicts itself or nothing fits, see `why_no_cell`.
        """
        if self._contradiction():
            return ()
        result: list[Cell] = []
        for gpu_type, shapes in job_shapes(self.job, cluster).items():
            type_cells = self._cells(gpu_type, shapes)
            if self._model is None:
                type_cells = at_least_linear(type_cells, self.job.asked.gpus, self.profile.measured)
            result += type_cells
        return tuple(result)

    def to_fit(self) -> throughput.FitOf | None:
        """Return what `cells` asks `throughput.fit` for, or None if it needs no fit."""
        return self._to_fit() if self._model is None and self.profile.measured else None

    def best_plan(self, shape: Shape) -> Cell | None:
        """Return the Cell of best goodput on `shape`, whether or not the job's bounds allow that size, or None if no plan fits."""
        if self._contradiction() or shape.gpus < 1:
            return None
        return max(self._cells(shape.gpu_type, [shape]), key=lambda cell: cell.goodput, default=None)

    def predict(self, shape: Shape, plan: Plan) -> tuple[float, int] | None:
        """Return (step seconds, peak bytes a GPU) of `plan` on `shape` by the model alone, for `update_profile`.

        The profile's corrections are left out. Peak is 0 where no model is known. Return None if the plan does not fit the
        shape's GPU count or its own batch.
        """
        if plan.gpus != shape.gpus or plan.gpus < 1 or plan.micro_batch < 1 or plan.micro_batches < 1:
            return None
        gpu = self._figures(shape.gpu_type)
        model = self._model
        if model is None:
            return ThroughputModel().step_s(gpu, shape, *_work(plan)), 0
        plans = from_plans([plan], shape.gpus_per_node)
        return float(step_time(model, gpu, plans).total[0]), int(peak_memory(model, gpu, plans).total[0])

    def communication_share(self, shape: Shape, plan: Plan) -> float | None:
        """Return the share of a step in which GPUs wait for communication, by the model alone, or None if no model is known."""
        if self._model is None or plan.gpus != shape.gpus or min(plan.gpus, plan.micro_batch, plan.micro_batches) < 1:
            return None
        step = step_time(self._model, self._figures(shape.gpu_type), from_plans([plan], shape.gpus_per_node))
        return float((step.tp[0] + step.pp[0] + step.dp[0]) / step.total[0])

    def expected_step_s(self, shape: Shape, plan: Plan) -> float | None:
        """Return the seconds of a step of `plan` on `shape` after all that the profile has learnt, as a Cell would state them.

        Return None if the plan does not fit the shape's GPU count or its own batch.
        """
        bare = self.predict(shape, plan)
        if bare is None:
            return None
        model, measured = self._model, self.profile.measured
        if model is not None:
            plans = from_plans([plan], shape.gpus_per_node)
            speed = self._find_speed(shape.gpu_type)[0]
            return float(step_time(model, self._refine_figures(shape.gpu_type), plans).total[0]) / speed
        if not measured:
            return bare[0] / self._find_speed(shape.gpu_type)[0]
        fit = throughput.fit(*self._to_fit())
        return unknown_model.expected_step_s(self._figures(shape.gpu_type), shape, plan, fit)

    def why_no_cell(self, cluster: Cluster) -> str:
        """Return one line that tells the user why `cells` is empty, or "" if it is not."""
        if self.job.directive_error:
            return self.job.directive_error
        if contradiction := self._contradiction():
            return contradiction
        nodes = usable_nodes(self.job, cluster)
        if not nodes:
            place = f" in partition {self.job.partition}" if self.job.partition else ""
            feature_clause = (
                f" with the features that it asks for ({one_line(self.job.features, 60)})" if self.job.features else ""
            )
            return f"no node with GPUs is up{place}{feature_clause}"
        types = sorted({gpu_type for gpu_type, _ in nodes})
        have = {t: sum(gpus * count for (own, gpus), count in nodes.items() if own == t) for t in types}
        allowed = {t: count for t, count in have.items() if allows_type(self.job, t)}
        low, high = bounds(self.job)
        if not allowed:
            gpu_types = ",".join(self.job.directive.gpu_types) if self.job.directive else ""
            return f"gpu_types={gpu_types}: no usable node has them; the cluster has {', '.join(have)}"
        if low > high:
            return f"min_gpus={low} is above max_gpus={high}"
        if low > max(allowed.values()):
            largest = ", ".join(f"{count} {t}" for t, count in allowed.items())
            return f"min_gpus={low} is more GPUs of one type than the cluster has for this job ({largest})"
        shapes = job_shapes(self.job, cluster)
        if not shapes:
            return f"no whole-node or power-of-two size lies in {low} to {high} GPUs; widen min_gpus or max_gpus"
        if any(self._cells(gpu_type, some) for gpu_type, some in shapes.items()):
            return ""
        return self._nothing_fits(shapes)

    @property
    def _model(self) -> ModelSpec | None:
        """Return the reported model if it can exist, else the named one."""
        if self.profile.model is not None:
            try:
                return check_spec(self.profile.model, "report")
            except UsageError:
                return self.model
        return self.model

    def _figures(self, gpu_type: str) -> GpuFigures:
        gpu_figures = self.figures.get(gpu_type) or figures(gpu_type)
        if self.profile.kernels is not None:
            gpu_figures = with_kernels(gpu_figures, self.profile.kernels)
        return with_overlap(gpu_figures) if self.profile.accepts.overlap else gpu_figures

    def _to_fit(self) -> throughput.FitOf:
        measured = self.profile.measured
        return measured, tuple(self._figures(m.shape.gpu_type) for m in measured), self.prior

    def _refine_figures(self, gpu_type: str) -> GpuFigures:
        """Return the type's figures, moved by what the job's plans have measured on it."""
        gpu, model = self._figures(gpu_type), self._model
        if model is None:
            return gpu
        return refine_figures(model, gpu, self.profile.measured, self._find_speed(gpu_type)[0])

    def _find_speed(self, gpu_type: str) -> tuple[float, int]:
        """Return (speed, samples) of the profile, as far as they hold for `gpu_type`.

        On a type that the job, or jobs like it, have run on, this is what was measured there. On another type, half of the
        correction's logarithm is taken to be the job's own and half the other hardware's, and the prediction is as uncertain as
        one without reports.
        """
        profile, model = self.profile, self._model
        if model is not None and (own := level(model, self._figures(gpu_type), profile.measured)) is not None:
            return own
        if not profile.measured or any(m.shape.gpu_type == gpu_type for m in profile.measured):
            return profile.speed, profile.samples
        return profile.speed**0.5, 0

    def _memory(self, gpu_type: str) -> MemoryBelief:
        """Return what the job's own peaks on `gpu_type` (or the lack of any so far) say about the peaks of other plans."""
        gpu, memory_factor, least = self._figures(gpu_type), self.profile.memory, self.least_memory.get(gpu_type, 0.0)
        ran, model = [m for m in self.profile.measured if m.shape.gpu_type == gpu_type], self._model
        peak = 0.0
        # a plan that failed for more than what was learnt makes those just below it no safer for another that ran
        if ran and model is not None and least <= memory_factor:
            plans = from_plans([m.plan for m in ran], [m.shape.gpus_per_node for m in ran])
            peak = float(peak_memory(model, gpu, plans).total.max())
        # exactly 1 is what a profile has whose memory was never measured; that a plan failed tells a bound, no peak
        is_measured = memory_factor != 1.0
        return MemoryBelief(
            max(memory_factor, least), min(LEARNT_SIGMA if is_measured else 1.0, gpu.memory_uncertainty), peak
        )

    def _directive(self) -> Directive:
        return self.job.directive or Directive()

    @property
    def _reshardable(self) -> bool:
        reshard = self._directive().reshard
        return self.profile.resharding if reshard is None else reshard

    def _batch(self) -> int:
        """Return the batch that the job has now.

        This is the reported one, else the low end of its range, else an assumed one that the asked-for GPUs divide.
        """
        directive = self._directive()
        if self.profile.global_batch:
            low, high = self.job.batches or (0, self.profile.global_batch)
            return max(low, min(high, self.profile.global_batch))
        if self.job.batch_range:
            return self.job.batch_range[0]
        return self.job.asked.gpus * _ASSUMED_SEQUENCES * (directive.micro_batch or 1)

    def limits(self) -> PlanLimits:
        """Return what the search may choose from.

        The batch moves only inside the directive's range and once a noise scale is known. Until then a size takes the next larger one that
        it divides (efficiency.UNKNOWN_NOISE) if the requested GPUs do not divide the present one.
        """
        directive = self._directive()
        batch = self._batch()
        low, high = self.job.batch_range or (batch, batch)
        if self.profile.noise_scale is None:  # one outside the range, or a fixed one, stays
            low, high = batch, high if low <= batch < high and batch % self.job.asked.gpus else batch
        present, accepts = self.present or Plan(), self.profile.accepts
        limits = PlanLimits(
            low,
            high,
            batch_unit=self._batch_unit(low, high),
            micro_batch=present.micro_batch if self.present and accepts.own_micro else directive.micro_batch,
            max_micro_batch=directive.max_micro_batch,
            tp=directive.tp or (present.tp if accepts.own_tp else None),
            pp=directive.pp or (1 if accepts.single_stage else None),
            vpp=None if accepts.vpp else present.vpp,
            cp=None if accepts.cp else present.cp,
            ep=None if accepts.ep else present.ep,
            precisions=(accepts.precision or present.precision,),
            uneven=accepts.uneven,
            a2a=accepts.a2a,
            shards=accepts.shard,
            blocks=accepts.blocks,
            modules=tuple(accepts.modules.split("+")) if accepts.modules else (),
            recompute=present.recompute if accepts.own_recompute else None,
            zero_stages=(0,) if accepts.whole_optimizer else (1,),
        )
        if self.present is not None and not self._reshardable:
            degrees = {name: getattr(present, name) for name in ("tp", "pp", "vpp", "cp", "ep")}
            limits = replace(limits, **degrees, zero_stages=(present.zero_stage,), shards=False)
        if present.shard and not limits.shards:
            limits = replace(limits, groups=present.dp * present.cp // present.shard)
        return limits

    def _batch_unit(self, low: int, high: int) -> int:
        """Return the number that a batch from `low` to `high` must be a multiple of, and replicas must divide, by the job's reports."""
        base = self.profile.base_batch if self.profile.accepts.in_multiples else None
        return base if base and high // base * base >= low else 1

    def _contradiction(self) -> str:
        """Return what the fixed degrees contradict, or "" if nothing."""
        if self.job.directive_error:
            return self.job.directive_error
        try:
            check_fixed(self._model, self.limits(), "directive", bounds(self.job)[1])
        except UsageError as error:
            return str(error)
        return ""

    def _smallest_batch(self) -> int:
        """Return M0 of the statistical efficiency."""
        has_range_and_noise = self.job.batch_range is not None and self.profile.noise_scale is not None
        return self.job.batch_range[0] if self.job.batch_range and has_range_and_noise else self._batch()

    def _cells(self, gpu_type: str, shapes: Sequence[Shape]) -> list[Cell]:
        exact_cells, choice = self._exchanging(gpu_type, shapes, EXACT), self.exchange
        if not choice.considered_options:
            return exact_cells
        return exact_cells + choice.make_cells(exact_cells, lambda option: self._exchanging(gpu_type, shapes, option))

    def _exchanging(self, gpu_type: str, shapes: Sequence[Shape], option: Exchange) -> list[Cell]:
        """Return the best Cells where replicas exchange by `option`. Its effect on what an example is worth is not counted."""
        gpu, model, limits, profile = self._refine_figures(gpu_type), self._model, self.limits(), self.profile
        if option != EXACT:
            if (alone := limits_to_replicas(limits)) is None:
                return []
            limits, shapes = alone, [shape for shape in shapes if may_exchange_less(gpu, shape)]
        speed, samples = self._find_speed(gpu_type)
        # a fixed batch has one efficiency for all plans: it counts as 1
        noise = (
            None if limits.low == limits.high else UNKNOWN_NOISE if profile.noise_scale is None else profile.noise_scale
        )
        if model is None:
            return unknown_model.cells(
                gpu,
                shapes,
                limits,
                self.job.asked.gpus,
                noise_scale=noise,
                smallest_batch=self._smallest_batch(),
                present_batch=self._batch(),
                fit=throughput.fit(*self._to_fit()),
                # the fit to the measurements has the level in it
                speed=1.0 if profile.measured else speed,
                option=option,
            )
        memory = self._memory(gpu_type)
        present = None if noise is None else self._batch()
        best = _best_cells(model, gpu, tuple(shapes), limits, noise, self._smallest_batch(), memory, option, present)
        on_type = any(m.shape.gpu_type == gpu_type for m in profile.measured)
        if samples and not on_type:  # reports of which no plan is known
            sigmas = (uncertainty(gpu.uncertainty, samples),) * len(best)
        else:
            sigmas = plan_distance.sigmas(model, self._figures(gpu_type), profile.measured, best)
        return [_scale_to_speed(cell, speed, sigma) for cell, sigma in zip(best, sigmas, strict=True)]

    @property
    def exchange(self) -> ExchangeChoice:
        """Return which options of less communication the job may be given."""
        return ExchangeChoice.build(self.job, self.profile, self.present)

    def exchange_remark(self) -> str:
        """Return why a running job that allows less communication has none, with a leading blank.

        Return "" if it has, or allows none.
        """
        shape = self.job.shape
        if not self.exchange.options:
            return self.exchange.remark((), lambda option: ())
        exact = self._exchanging(shape.gpu_type, [shape], EXACT)
        return self.exchange.remark(exact, lambda option: self._exchanging(shape.gpu_type, [shape], option))

    def _nothing_fits(self, shapes: Mapping[str, Sequence[Shape]]) -> str:
        """Return why no plan on any of `shapes` is valid."""
        model, limits = self._model, self.limits()
        fixed = {"tp": limits.tp, "pp": limits.pp}
        fixed |= {key: value for key in ("vpp", "cp", "ep") if (value := getattr(limits, key)) and value > 1}
        degrees = "".join(f" {key}={value}" for key, value in fixed.items() if value)
        batch = (
            f"global_batch={limits.low}" if limits.low == limits.high else f"global_batch={limits.low}:{limits.high}"
        )
        micro = f" micro_batch={limits.micro_batch}" if limits.micro_batch else ""
        sizes = sorted({s.gpus for some in shapes.values() for s in some})
        sized = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        if model is None:
            return f"no size of {sized} GPUs divides {batch}{micro}{degrees} evenly"
        closest: list[tuple[float, str]] = []
        batches = False
        for gpu_type, some in shapes.items():
            gpu = self._figures(gpu_type)
            candidates = enumerate_plans(model, gpu, some, limits, self._memory(gpu_type))
            batches |= candidates.ruled_out[NOT_BATCH] > 0 and candidates.ruled_out[TOO_BIG] == 0
            if candidates.closest is not None:
                peak, parts, plan = candidates.closest
                closest.append((peak - gpu.usable_bytes, memory_reason(model, gpu, peak, parts, plan)))
        if closest:
            return min(closest)[1]
        if batches:
            return f"no plan on {sized} GPUs divides {batch}{micro}{degrees} evenly; change global_batch or micro_batch"
        return f"no tp x pp that {model.name} allows{degrees and ' with' + degrees} divides {sized} GPUs inside a node"


@lru_cache(maxsize=4096)
def _best_cells(
    model: ModelSpec,
    gpu: GpuFigures,
    shapes: tuple[Shape, ...],
    limits: PlanLimits,
    noise_scale: float | None,
    smallest_batch: int,
    memory: MemoryBelief,
    option: Exchange,
    present_batch: int | None,
) -> tuple[Cell, ...]:
    """Return the best Cell of every shape and pipeline degree, all replicas exchanging by `option`, at speed 1.

    A job's speed scales all of them alike, so it changes no plan's rank, and jobs that differ in speed alone share one search.
    """
    result: list[Cell] = []
    for start in range(0, len(shapes), _SHAPES_AT_ONCE):
        some = shapes[start : start + _SHAPES_AT_ONCE]
        ranked = rank(
            model,
            gpu,
            some,
            limits,
            noise_scale=noise_scale,
            smallest_batch=smallest_batch,
            memory=memory,
            cells_only=True,
            option=option,
            present_batch=present_batch,
        )
        result += ranked.best_cells()
    return tuple(result)


def _work(plan: Plan) -> tuple[int, int, int, Exchange]:
    """Return what a plan of replicas alone is to ThroughputModel."""
    return plan.dp, plan.micro_batch, plan.micro_batches, parse_exchange(plan.exchange, "plan")


def _scale_to_speed(cell: Cell, speed: float, sigma: float) -> Cell:
    return Cell(
        cell.shape,
        cell.plan,
        cell.throughput * speed,
        cell.efficiency,
        cell.goodput * speed,
        cell.step_s / speed,
        cell.memory_bytes,
        sigma,
        cell.sync_s / speed,
    )


def memory_reason(model: ModelSpec, gpu: GpuFigures, peak: float, parts: Mapping[str, float], plan: Plan) -> str:
    """Return which part of the memory is over where nothing fits, and what would help."""
    largest = max(parts, key=lambda name: parts[name])
    helps = {
        "weights": "more GPUs (higher tp or pp) or GPUs with more memory",
        "optimizer": "more GPUs or GPUs with more memory",
        "activations": "a shorter sequence, a smaller micro_batch or more GPUs",
        "logits": "a smaller micro_batch or a higher tp",
    }.get(largest, "GPUs with more memory")
    return (
        f"{model.name} does not fit {gpu.gpu_type}: the leanest plan ({format_plan(plan)}) {needs(gpu, peak, parts)}; "
        f"{helps} would help"
    )


def needs(gpu: GpuFigures, peak: float, parts: Mapping[str, float]) -> str:
    """Return text such as `needs 90.1 GiB a GPU of 77.1 usable, 60.2 of it activations`."""
    largest = max(parts, key=lambda name: parts[name])
    return f"needs {peak / GIB:.1f} GiB a GPU of {gpu.usable_bytes / GIB:.1f} usable, {parts[largest] / GIB:.1f} of it {largest}"
