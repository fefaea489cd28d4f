"""Synergy's best estimate of a step against the best that Alpa measured: `python -m tests.benchmarks.arena_rows --data DIR`.

DIR holds alpa_optimal_iter_time.csv (model, size, batch, GPU type, nodes, GPUs a node, the best step that Alpa's search
found and ran), collective_latency.csv and prof_database_h100_l20.json of the Arena artifact. What is given there and what
is assumed:
- bert's sizes, sequence length (1024), fp16, 16 micro-batches and recomputed activations are the artifact's own defaults
  (runtime/crius_worker/jax/configs.py and train.py). The weight update is shared out (`prefer_reduce_scatter`).
- The plan of each optimum is not recorded. So the estimate is the fastest of all tp x pp x dp that fit, and a fit takes
  the plan that is fastest by the parameters so far, a few times over.
- Link rates come from collective_latency.csv, as `synergyctl profiles measure` would give them; no step time is in them.
- The optima are as good as that search was. bert on 2 x 2 A100 takes the same time as on 1 x 4 within 0.1 %, though two such
  nodes are 30 times slower linked; 8 A40 take as long as 4 at 1.3B; steps on 4 V100 grow by more than the batch does. No row
  is left out for that.
- wide_resnet is no transformer: it goes to the throughput model (Pollux), which learns from the same size's other rows.
The artifact's own estimates (estimated_3d_plans.csv) are only compared with, never learnt from. A row that is scored is never
fitted: whole model sizes, GPU counts, GPU types, or single rows are held out.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
from synergy_core.errors import UsageError
from synergy_core.records import Measurement, ModelSpec, Plan, Shape

from synergyd.jobmodel.fit import residual
from synergyd.jobmodel.fit.measured_runs import MeasuredRun
from synergyd.jobmodel.fit.parameters import TIME, batch
from synergyd.jobmodel.fit.predictor import Predictor, fit_predictor
from synergyd.jobmodel.model.arrays import Floats
from synergyd.jobmodel.model.hardware import GIB, canonical, figures
from synergyd.jobmodel.model.memory import peak_parts
from synergyd.jobmodel.model.throughput import fit_throughput as throughput_fitted

MICRO_BATCHES = 16
_ROUNDS = 4
_BIG = 2**26  # bytes above which a collective shows its link's rate
_SIZES = {"760M": (24, 1536, 16), "1.3B": (24, 2048, 32), "2.6B": (32, 2560, 32), "6.7B": (32, 4096, 32)}
_SIZES["15B"] = (48, 5120, 40)
_TYPES = {"a100": "a100-40"}  # the artifact's device_infos.json: HGX A100 40GB


@dataclass(frozen=True)
class Optimum:
    """One measured optimum; `step_s` is None where the search found no plan that runs."""

    family: str
    size: str
    batch: int
    shape: Shape
    step_s: float | None

    @property
    def gpus(self) -> int:
        return self.shape.gpus


def read_optima(folder: Path) -> list[Optimum]:
    """All measured optima of `folder`. Raises UsageError."""
    try:
        with (folder / "alpa_optimal_iter_time.csv").open(newline="") as file:
            found = [
                _optimum(r["model"], r["params"], r["global_batch"], r["gpu_type"], r["num_nodes"], r["gpus_per_node"],
                         float(r["iter_time_s"]))
                for r in csv.DictReader(file)
            ]  # fmt: skip
        newer = json.loads((folder / "prof_database_h100_l20.json").read_text())["optimal"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(str(folder), f"cannot be read: {error}", "give the folder of Arena's measurements") from None
    for name, places in newer.items():
        family, size, global_batch = name.rsplit("_", 2)
        for place, values in places.items():
            _, gpu_type, nodes, _, each, _ = place.split("_")
            found.append(_optimum(family, size, global_batch, gpu_type, nodes, each, float(values[2])))
    return found


def _optimum(family: str, size: str, batch_: str, gpu_type: str, nodes: str, each: str, step_s: float) -> Optimum:
    name = canonical(_TYPES.get(gpu_type, gpu_type)) or gpu_type
    shape = Shape(name, int(nodes), int(each))
    return Optimum(family, size, int(batch_), shape, step_s if step_s > 0 else None)


def link_rates(folder: Path) -> dict[str, dict[str, float]]:
    """Figures of each GPU type's links from its measured all-reduces (bus rates, 1e9 bytes/s): in the node of all its
    GPUs, between nodes of groups with one GPU on each node while the node's other GPUs do the same."""
    rates: dict[tuple[str, str], list[float]] = {}
    with (folder / "collective_latency.csv").open(newline="") as file:
        for r in csv.DictReader(file):
            size = int(r["num_elements"]) * (2 if r["dtype"] == "float16" else 4)
            if r["op"] != "all-reduce" or r["dtype"] not in ("float16", "float32") or size < _BIG:
                continue
            nodes, gpu_type, _, _, each = r["file"].split("_")[:5]
            group = json.loads(r["groups"])
            ranks = len(group[0])
            first = int(nodes) == 1 and len(group) == 1
            across = int(nodes) > 1 and ranks == int(nodes) and len(group) == int(each) and group[0][1] == int(each)
            if first or across:
                rate = 2 * (ranks - 1) / ranks * size / float(r["latency_s"]) / 1e9
                rates.setdefault((gpu_type, "intra_gbs" if first else "inter_gbs"), []).append(rate)
    result: dict[str, dict[str, float]] = {}
    for (gpu_type, figure), some in rates.items():
        name = canonical(_TYPES.get(gpu_type, gpu_type))
        if name is not None:
            gpu = figures(name)
            share = gpu.link_efficiency if figure == "intra_gbs" else gpu.inter_efficiency
            result.setdefault(name, {})[figure] = float(np.median(some)) / share
    return result


def bert(size: str) -> ModelSpec:
    """The artifact's bert of `size`."""
    layers, hidden, heads = _SIZES[size]
    return ModelSpec(
        name=f"bert-{size}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=4 * hidden,
        vocab=51200,
        seq=1024,
        gated=False,
        tied_embeddings=True,
        causal=False,
    )


def plans_of(one: Optimum) -> list[Plan]:
    """Every tp x pp x dp on its GPUs with 16 micro-batches; tp inside a node."""
    model, micro = bert(one.size), one.batch // MICRO_BATCHES
    result = []
    for tp in range(1, one.shape.gpus_per_node + 1):
        for pp in range(1, one.gpus + 1):
            dp = one.gpus // (tp * pp)
            whole = tp * pp * dp == one.gpus and one.shape.gpus_per_node % tp == 0
            if whole and model.heads % tp == 0 and model.layers % pp == 0 and dp and micro % dp == 0:
                result.append(
                    Plan(
                        tp=tp,
                        pp=pp,
                        dp=dp,
                        micro_batch=micro // dp,
                        global_batch=one.batch,
                        recompute="full",
                        sequence_parallel=False,
                        zero_stage=1,
                        precision="fp16",
                    )
                )
    return result


def _row(one: Optimum, plan: Plan, number: int) -> MeasuredRun:
    return MeasuredRun(
        row_id=str(number),
        file="alpa_optimal_iter_time.csv",
        line=number,
        cluster="arena",
        gpu_type=one.shape.gpu_type,
        gpus_per_node=one.shape.gpus_per_node,
        model=bert(one.size),
        plan=plan,
        time_s=one.step_s,
        memory_bytes=None,
        scores=frozenset(("time",)),
        group="",
        fused=False,
    )


@dataclass(frozen=True)
class Space:
    """All plans of all optima as arrays: plan i belongs to optimum `of[i]`, and fits where `fits[i]`."""

    optima: tuple[Optimum, ...]
    rows: tuple[MeasuredRun, ...]
    of: np.ndarray[tuple[int], np.dtype[np.int64]]
    fits: np.ndarray[tuple[int], np.dtype[np.bool_]]
    links: Mapping[str, Mapping[str, float]]

    def best(self, predictor: Predictor | None) -> tuple[Floats, list[MeasuredRun]]:
        """(fastest plan's step in seconds, that plan's row) of each optimum."""
        step = (predictor or fit_predictor((), self.links)).step_s(self.rows)
        step = np.where(self.fits, step, np.inf)
        chosen = [int(min(np.flatnonzero(self.of == j), key=lambda i: step[i])) for j in range(len(self.optima))]
        return np.array([step[i] for i in chosen]), [self.rows[i] for i in chosen]


def space(optima: Sequence[Optimum], links: Mapping[str, Mapping[str, float]]) -> Space:
    """The plans of those optima that some plan of the model fits."""
    rows: list[MeasuredRun] = []
    of: list[int] = []
    for j, one in enumerate(optima):
        for plan in plans_of(one):
            rows.append(_row(one, plan, len(rows)))
            of.append(j)
    given = batch(rows, links)
    peak = peak_parts(given.model, given.gpu, given.plans).total
    fits = peak <= np.array([figures(row.gpu_type).memory_gib for row in rows]) * GIB
    return Space(tuple(optima), tuple(rows), np.array(of), fits, links)


def learnt(known: Space, train: Sequence[int]) -> Predictor:
    """What the optima at `train` teach. Their plans are taken to be the fastest by the parameters so far, without what
    the residual makes of single plans."""
    predictor = fit_predictor((), known.links)
    for _ in range(_ROUNDS):
        formulas = replace(predictor, time=replace(predictor.time, residual=residual.empty(len(TIME))))
        chosen = known.best(formulas)[1]
        predictor = fit_predictor([chosen[j] for j in train], known.links)
    return predictor


@dataclass(frozen=True)
class Found:
    """Fractions: median, mean and bias of estimate / measured optimum - 1."""

    rows: int
    median: float
    mean: float
    p90: float
    bias: float


def found(signed: Sequence[float]) -> Found:
    off = np.abs(np.array(signed))
    mean, p90 = float(off.mean()), float(np.percentile(off, 90))
    return Found(len(off), float(np.median(off)), mean, p90, float(np.mean(signed)))


def held_out(known: Space, key: Callable[[Optimum], Hashable] | None) -> list[float]:
    """estimate / measured - 1 of each optimum, all of its `key` held out; without a key nothing is fitted."""
    timed = [j for j, one in enumerate(known.optima) if one.step_s is not None]
    signed = np.zeros(len(known.optima))
    parts = {key(known.optima[j]) if key else None for j in timed}
    for part in sorted(parts, key=repr):
        test = [j for j in timed if key is None or key(known.optima[j]) == part]
        train = [] if key is None else [j for j in timed if key(known.optima[j]) != part]
        estimate = known.best(learnt(known, train) if train else None)[0]
        for j in test:
            signed[j] = estimate[j] / (known.optima[j].step_s or 1.0) - 1
    return [float(signed[j]) for j in timed]


def peers(folder: Path, optima: Sequence[Optimum]) -> list[float | None]:
    """The artifact's own best estimate over the measured optimum, minus 1; None where it has none."""
    best: dict[tuple[str, str, str, str, int, int], float] = {}
    with (folder / "estimated_3d_plans.csv").open(newline="") as file:
        for r in csv.DictReader(file):
            name = canonical(_TYPES.get(r["gpu_type"], r["gpu_type"])) or r["gpu_type"]
            place = (r["model"], r["params"], r["global_batch"], name, int(r["num_nodes"]), int(r["gpus_per_node"]))
            best[place] = min(best.get(place, np.inf), float(r["iter_time_s"]))
    result: list[float | None] = []
    for one in optima:
        shape = one.shape
        place = (one.family, one.size, str(one.batch), shape.gpu_type, shape.nodes, shape.gpus_per_node)
        known = best.get(place, np.inf)
        result.append(known / one.step_s - 1 if one.step_s and np.isfinite(known) else None)
    return result


def plain(optima: Sequence[Optimum], links: Mapping[str, Mapping[str, float]]) -> list[float]:
    """estimate / measured - 1 of jobs that are no transformers: each optimum by what the same model and size reported on
    other GPU counts."""
    timed = [one for one in optima if one.step_s is not None]
    signed = []
    for one in timed:
        known = [o for o in timed if (o.family, o.size) == (one.family, one.size) and o.gpus != one.gpus]
        measured = tuple(Measurement(_data_parallel(o), o.shape, o.step_s or 0.0) for o in known)
        model = throughput_fitted(measured, tuple(figures(o.shape.gpu_type, links) for o in known))
        plan = _data_parallel(one)
        gpu = figures(one.shape.gpu_type, links)
        step = model.step_s(gpu, one.shape, plan.dp, plan.micro_batch, plan.micro_batches)
        signed.append(step / (one.step_s or 1.0) - 1)
    return signed


def _data_parallel(one: Optimum) -> Plan:
    micro = max(1, one.batch // MICRO_BATCHES // one.gpus)
    return Plan(dp=one.gpus, micro_batch=micro, global_batch=one.batch, zero_stage=0)


def out_of_memory(known: Space) -> dict[str, int]:
    """Of the optima that ran and of those where the search found no plan that runs: for how many no plan fits by the
    memory model."""
    given = batch(known.rows, known.links)
    usable = np.array([figures(row.gpu_type).usable_bytes for row in known.rows])
    fits = peak_parts(given.model, given.gpu, given.plans).total <= usable
    some = [bool(fits[known.of == j].any()) for j in range(len(known.optima))]
    ran = [one.step_s is not None for one in known.optima]
    return {
        "ran": sum(ran),
        "ran_called_oom": sum(r and not f for r, f in zip(ran, some, strict=True)),
        "failed": len(ran) - sum(ran),
        "failed_called_fit": sum(f and not r for r, f in zip(ran, some, strict=True)),
    }


SPLITS: dict[str, Callable[[Optimum], Hashable] | None] = {
    "nothing fitted": None,
    "model sizes held out": lambda one: one.size,
    "GPU counts held out": lambda one: one.gpus,
    "GPU types held out": lambda one: one.shape.gpu_type,
    "batches held out": lambda one: one.batch,
}


def score(folder: Path) -> dict[str, object]:
    """Every number, by name."""
    optima, links = read_optima(folder), link_rates(folder)
    berts = [one for one in optima if one.family == "bert"]
    result: dict[str, object] = {}
    for name, four in (("bert on a100, v100, a40, a10", True), ("bert on h100 and l20 too", False)):
        some = [one for one in berts if not four or one.shape.gpu_type not in ("h100", "l20")]
        known = space(some, links)
        timed = [one for one in some if one.step_s is not None]
        theirs = peers(folder, timed)
        for split, key in SPLITS.items():
            signed = held_out(known, key)
            result[f"{name}, {split}"] = asdict(found(signed))
            if four:
                same = [s for s, t in zip(signed, theirs, strict=True) if t is not None]
                result[f"{name}, {split}, rows that Arena estimates"] = asdict(found(same))
        if four:
            result[f"{name}, Arena's own estimate"] = asdict(found([t for t in theirs if t is not None]))
            result[f"{name}, memory"] = out_of_memory(known)
    wide = [one for one in optima if one.family == "wide_resnet" and one.shape.gpu_type not in ("h100", "l20")]
    timed = [one for one in wide if one.step_s is not None]
    result["wide_resnet by the throughput model, GPU counts held out"] = asdict(found(plain(wide, links)))
    result["wide_resnet, Arena's own estimate"] = asdict(found([t for t in peers(folder, timed) if t is not None]))
    return result


@click.command()
@click.option(
    "--data", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of arena's files."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(data: Path, as_json: bool) -> None:
    """Score the best estimate of a step against the best measured one."""
    try:
        result = score(data)
    except UsageError as error:
        click.echo(f"arena_rows: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    click.echo(f"{'percent':<78}{'rows':>6}{'median':>8}{'mean':>8}{'p90':>8}{'bias':>8}")
    for name, values in result.items():
        if isinstance(values, dict) and "median" in values:
            numbers = "".join(f"{100 * values[k]:>8.1f}" for k in ("median", "mean", "p90", "bias"))
            click.echo(f"{name:<78}{values['rows']:>6}{numbers}")
        else:
            click.echo(f"{name}: {values}")


if __name__ == "__main__":
    main()
