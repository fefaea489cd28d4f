"""Measured step time and peak memory by setting, as rows of `synergyctl profiles fit`, and what the model says of them unfitted."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from synergy_core.records import ModelSpec, Plan

from tests.gpu import device, gpt
from tests.gpu.sizes import Setting

COLUMNS = (
    "row_id", "source", "model", "params_b", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq", "gpu_type",
    "gpus_per_node", "n_gpus", "tp", "pp", "vpp", "cp", "dp", "ep", "micro_batch", "global_batch", "recompute", "seq_parallel",
    "zero_stage", "precision", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "iter_time_s", "mem_gb", "note", "score_as",
    "group", "iter_time_how",
)  # fmt: skip
_STEPS = 3
Row = dict[str, Any]


def row(software: str, spec: ModelSpec, setting: Setting, seconds: list[float], peak_bytes: int) -> Row:
    """One setting's line."""
    backend = "flash" if setting.fused else "unfused"
    batch = setting.micro_batch * setting.micro_batches
    step_s = statistics.median(seconds)
    name = f"{software}-b{setting.micro_batch}x{setting.micro_batches}-s{setting.seq}-{setting.recompute}-{backend}"
    return {
        "row_id": name,
        "source": f"synergy-{software} tests.gpu",
        "model": spec.name,
        "params_b": (12 * spec.layers * spec.hidden**2 + spec.vocab * spec.hidden) / 1e9,
        **{key: getattr(spec, key) for key in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab")},
        "seq": setting.seq,
        "gpu_type": device.gpu_type(),
        **dict.fromkeys(("gpus_per_node", "n_gpus", "tp", "pp", "vpp", "cp", "dp", "ep"), 1),
        "micro_batch": setting.micro_batch,
        "global_batch": batch,
        "recompute": setting.recompute,
        "seq_parallel": 0,
        "zero_stage": 0,
        "precision": "bf16",
        "tokens_per_s_per_gpu": round(batch * setting.seq / step_s, 1),
        "iter_time_s": round(step_s, 6),
        "mem_gb": round(peak_bytes / 1e9, 4) or None,
        "note": f"--attention-backend={backend} torch {torch.__version__} on {device.name()}; peak as torch allocated it",
        "score_as": "time+plan+mem" if peak_bytes else "time+plan",
        "group": f"{software}|{setting.seq}|{batch}",
        "iter_time_how": f"median of {_STEPS} steps, {min(seconds):.5f} to {max(seconds):.5f}",
    }


def measured(
    software: str, spec: ModelSpec, settings: Iterable[Setting], prepare: Callable[[Setting], Callable[[], Any]]
) -> Iterator[Row]:
    """A row of each setting that fits; of one that does not, a row without a time. `prepare` gives the step to time."""
    for setting in settings:
        device.reset_peak()
        try:
            step = prepare(setting)
            for _ in range(2):
                step()
            seconds = [device.seconds_of_steps(step, 1) for _ in range(_STEPS)]
        except torch.OutOfMemoryError:
            step = None
            device.free_memory()
            yield {"row_id": f"{software} {setting}", "oom": True}
            continue
        yield row(software, spec, setting, seconds, device.peak_bytes())


def plain(spec: ModelSpec, settings: tuple[Setting, ...]) -> Iterator[Row]:
    """Of the plain PyTorch GPT: fp32 weights, gradients and moments (16 bytes a parameter), bf16 autocast."""
    model = gpt.make(spec, max(s.seq for s in settings))
    optimizer = gpt.adamw(model)

    def prepare(setting: Setting) -> Callable[[], None]:
        optimizer.zero_grad()
        model.use(fused=setting.fused, recompute=setting.recompute == "full")
        rows = torch.randint(0, spec.vocab, (setting.micro_batch, setting.seq + 1), device=device.DEVICE)

        def step() -> None:
            for _ in range(setting.micro_batches):
                (model(rows) / setting.micro_batches).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return measured("pytorch", spec, settings, prepare)


def megatron(run: Any, settings: tuple[Setting, ...], use: Callable[[Any, Setting], None]) -> Iterator[Row]:
    """Of a MegatronRun; `use` sets recompute and attention of it."""
    spec = run.spec

    def prepare(setting: Setting) -> Callable[[], Any]:
        run.spec = replace(spec, seq=setting.seq)
        run.follow(Plan(micro_batch=setting.micro_batch, global_batch=setting.micro_batch * setting.micro_batches))
        use(run, setting)
        step: Callable[[], Any] = run.train_step
        return step

    try:
        yield from measured("megatron", spec, settings, prepare)
    finally:
        run.spec = spec


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """The rows that were measured, as a CSV file."""
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        writer.writerows({c: line.get(c) for c in COLUMNS} for line in rows if not line.get("oom"))


def predicted(path: Path) -> list[dict[str, Any]]:
    """(row_id, measured and predicted seconds and bytes) of the rows in `path`, by the model that no row was fitted to."""
    from synergyd.jobmodel.fit.measured_runs import read_rows
    from synergyd.jobmodel.fit.predictor import fit_predictor

    rows = read_rows(path)
    cold = fit_predictor(())
    return [
        {
            "row_id": line.row_id,
            "step_s": line.time_s,
            "predicted_s": float(step_s),
            "peak_bytes": line.memory_bytes,
            "predicted_bytes": float(peak),
        }
        for line, step_s, peak in zip(rows, cold.step_s(rows), cold.peak_bytes(rows), strict=True)
    ]
