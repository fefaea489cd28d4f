"""The run's results as one table: what was measured, of what was predicted."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Result = dict[str, Any]
_SAVE = (("save", "save"), ("beside", "save beside training"), ("load", "load"))


def collected(results: Sequence[Mapping[str, Any]], rows_path: Path, bad: Mapping[str, str]) -> Result:
    """The JSON object of a run from its sections' lines; the rows go to `rows_path`. `bad`: sections that did not end well."""
    import torch

    from tests.gpu import device, step_rows

    parts: dict[str, dict[str, Any]] = {}
    rows: list[Result] = []
    failed = [f"{name}: {why}" for name, why in bad.items()]
    for line in results:
        if "number" in line:
            rows.append(line["found"])
        elif "error" in line:
            failed.append(f"{line['section']}, {line['part']}: {line['error']}")
        else:
            parts.setdefault(line["section"], {})[line["part"]] = line["found"]
    step_rows.write(rows_path, rows)
    measured = [row for row in rows if not row.get("oom")]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": device.name(),
        "torch": torch.__version__,
        "parts": parts,
        "out_of_memory": [row["row_id"] for row in rows if row.get("oom")],
        "predictions": step_rows.predicted(rows_path) if measured else [],
        "failed": failed,
    }


def markdown(found: Mapping[str, Any]) -> str:
    """A page of tables, in the order of the sections."""
    parts = found["parts"]
    lines = [f"{found['date']}, {found['machine']}, torch {found['torch']}", ""]
    lines += _table(("What", "Measured"), _summary(parts, found))
    if found["predictions"]:
        lines += ["", *_table(("Setting", "step, s", "predicted", "off", "peak, GB", "predicted", "off"), _rows(found))]
    lines += ["", *_table(("Shape", "measured"), _shapes(parts.get("hardware", {})))]
    if found["failed"]:
        lines += ["", *(f"- failed: {why}" for why in found["failed"])]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("\n", " ").replace("|", "/") for cell in cells) + " |"

    return [line(head), line(["---"] * len(head)), *(line(row) for row in rows)]


def off(measured: float, predicted: float) -> float:
    return predicted / measured - 1


def errors(predictions: Sequence[Mapping[str, Any]], measured: str, predicted: str) -> str:
    """Mean and worst error of what both are known of, and its sign."""
    pairs = [off(p[measured], p[predicted]) for p in predictions if p[measured]]
    if not pairs:
        return "not measured"
    mean = statistics.fmean(map(abs, pairs))
    return (
        f"{len(pairs)} settings: mean {mean:.1%}, worst {max(pairs, key=abs):+.1%}, bias {statistics.fmean(pairs):+.1%}"
    )


def _summary(parts: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, str]]:
    from tests.gpu.overhead import shares

    rows: list[tuple[str, str]] = []
    for software in ("plain", "megatron"):
        of = parts.get(software, {})
        for part, value in of.items():
            if part.startswith("overhead"):
                text = ", ".join(f"{way} {share:+.2%}" for way, share in shares(value).items())
                rows.append((f"{software}, {part}", f"{text} of a step of {value['without']:.4f} s"))
        if of.get("checkpoint"):
            rows.append((f"{software}, checkpoint", _checkpoint(of["checkpoint"])))
    for software in ("pytorch", "megatron"):
        some = [p for p in found["predictions"] if p["row_id"].startswith(software)]
        rows.append((f"{software}, predicted step time", errors(some, "step_s", "predicted_s")))
        rows.append((f"{software}, predicted peak memory", errors(some, "peak_bytes", "predicted_bytes")))
    for name, value in parts.get("restart", {}).items():
        if name == "checkpoint in memory":
            rows.append((f"pytorch, {name}", _checkpoint(value)))
            continue
        phases = ", ".join(f"{key[:-2]} {value[key]:.2f}" for key in value if key.endswith("_s"))
        warm = "forked" if value["warm"] else "a new Python"
        rows.append((f"{name}, seconds", f"{phases}; {warm}; went on from step {value['went_on_from_step']}"))
    for name, value in parts.get("adapters", {}).items():
        rows.append((name, ", ".join(f"{key} {_short(number)}" for key, number in value.items())))
    for name, value in parts.get("counters", {}).items():
        rows.append((f"NVML, {name}", ", ".join(f"{key} {_short(number)}" for key, number in value.items())))
    figures = parts.get("hardware", {}).get("figures")
    if figures:
        text = ", ".join(f"{key} {_short(number)}" for key, number in figures["figures"].items())
        rows.append(("synergyctl profiles measure", text))
    for point in parts.get("hardware", {}).get("one-rank all-reduce", ()):
        rows.append((f"one-rank all-reduce of {point['bytes']:.0f} bytes", f"{point['seconds'] * 1e6:.1f} us"))
    return rows


def _checkpoint(value: Mapping[str, float]) -> str:
    text = ", ".join(f"{words} {value[f'{k}_s']:.2f} s ({value[f'{k}_gb_per_s']:.2f} GB/s)" for k, words in _SAVE)
    return f"{value['gb']:.2f} GB: {text}; training held up for {value['held_s']:.2f} s"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rows(found: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    for p in found["predictions"]:
        memory = ("-", "-", "-")
        if p["peak_bytes"]:
            measured, said = p["peak_bytes"], p["predicted_bytes"]
            memory = (f"{measured / 1e9:.2f}", f"{said / 1e9:.2f}", f"{off(measured, said):+.1%}")
        time = (f"{p['step_s']:.4f}", f"{p['predicted_s']:.4f}", f"{off(p['step_s'], p['predicted_s']):+.1%}")
        yield (p["row_id"], *time, *memory)


def _shapes(parts: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for which in "mnk":
        points = [p for p in parts.get("alignment", ()) if p["varied"] == which]
        if points:
            yield f"GEMM, {which} varied, TFLOP/s", ", ".join(f"{p[which]}: {p['tflops']:.0f}" for p in points)
    for p in parts.get("layers", ()):
        yield f"GEMM {p['varied']}, {p['m']} x {p['n']} x {p['k']}", f"{p['tflops']:.0f} TFLOP/s"
    for p in parts.get("attention", ()):
        yield (
            f"attention, {p['heads']} heads of {p['width']}",
            f"{p['forward_tflops']:.0f} TFLOP/s forward, {p['backward_tflops']:.0f} backward",
        )
    sweeps: dict[tuple[int, int], list[str]] = {}
    for p in parts.get("waves", ()):
        sweeps.setdefault((p["n"], p["k"]), []).append(f"{p['m']}: {p['tflops']:.0f}")
    for (n, k), texts in sweeps.items():
        yield f"GEMM M x {n} x {k}, M: TFLOP/s", ", ".join(texts)
