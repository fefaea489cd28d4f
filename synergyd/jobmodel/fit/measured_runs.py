"""Measured training rows: CSV files of step times and peak memory with their full configuration, checked line by line.

Columns: row_id, source, model, layers, hidden, ffn, heads, kv_heads, vocab, seq, gpu_type, gpus_per_node, n_gpus, tp, pp,
vpp, cp, dp, ep, micro_batch, global_batch, recompute, seq_parallel, zero_stage, precision, iter_time_s, mem_gb (1e9
bytes), score_as, group. Optional: software (megatron, deepspeed, fsdp, nemo), shard_ranks (over which the optimizer is shared out),
inter_gbs (a GPU's share of the network, 1e9 bytes/s, where it is known), experts, top_k, oom (1: out of memory, and no time); note, in
which Megatron's flags (--swiglu, --attention-backend=...) and "last rank" (what mem_gb was measured on) are understood, and without those
columns DeepSpeed's name and zero1=N too. Columns that are not known are passed over.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.ordinary_file import read_lines
from synergy_core.records import ModelSpec, Plan

from synergyd.jobmodel.model.hardware import canonical, known_types
from synergyd.jobmodel.model.spec import check_spec

_FILE_LIMIT = 8 << 20  # bytes: some 40,000 rows
_MODEL = ("model", "layers", "hidden", "heads", "seq")
_DEGREES = ("n_gpus", "tp", "pp", "dp", "micro_batch", "global_batch", "recompute")
_NEEDED = ("row_id", "source", *_MODEL, "gpu_type", "gpus_per_node", *_DEGREES, "iter_time_s")
_RECOMPUTE = {"": "none", "none": "none", "full": "full", "selective": "selective", "selective-ac": "operators"}
# Words of precisions, the first that a text contains: bf16, amp_bf16, bfloat16, bf16-mixed, fp16, 16-mixed, tf32, mxfp8, fp8_cs, ...
# (fp8 first: "bf16 with fp8 GEMMs" is fp8).
_PRECISION = (
    ("fp8", re.compile(r"fp8|float8|e4m3|e5m2")),
    ("bf16", re.compile(r"bf16|bfloat16|brain")),
    ("fp16", re.compile(r"fp16|float16|half|^16-|^16$|^o[12]$")),
    ("fp32", re.compile(r"fp32|tf32|float32|single|full|^32")),
    ("bf16", re.compile(r"^$|mixed|amp")),
)
_FLAG = {"": False, "0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}
_UNTIED = "--untie-embeddings-and-output-weights"
_BACKENDS = {
    "--attention-backend=unfused": False,
    "--attention-backend=local": False,
    "--attention-backend=flash": True,
    "--attention-backend=fused": True,
    "--use-flash-attn": True,
    "--transformer-impl=local": False,
}
_SOFTWARE = ("megatron", "deepspeed", "fsdp", "nemo")
_DEEPSPEED = ("deepspeed", "zero-3", "zero3")  # in a text, where no column says it
_SHARD_GROUP = re.compile(r"\bzero1=([0-9]{1,6})\b")  # InternEvo's, -1 for all ranks
_SINCE_HOPPER = ("h100", "h200", "gh200", "b200", "gb200", "b300", "gb300", "mi300", "l40", "l4", "rtx4090")
_LONGEST_UNFUSED = 4096
_DEFAULT_VOCAB = 51200  # GPT-2's 50257, padded as Megatron pads it for 8 tensor ranks
_TIME_LIMIT = 1e6  # seconds a step
_MEMORY_LIMIT = 1e5  # GB a GPU
_RATE_LIMIT = 1e6  # 1e9 bytes/s


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One measurement. `cluster` is the source's first word, which stands for its cluster and software.

    `time_s` and `memory_bytes` are None where not measured. `scores` says what the row may be scored for (time, plan, mem).
    """

    row_id: str
    file: str
    line: int
    cluster: str
    gpu_type: str  # canonical
    gpus_per_node: int
    model: ModelSpec
    plan: Plan
    time_s: float | None
    memory_bytes: float | None
    scores: frozenset[str]
    group: str
    fused: bool | None = None  # whether attention is fused, None: not known
    out_of_memory: bool = False  # it did not run (column `oom`)
    deepspeed: bool = False  # ZeRO-3 by DeepSpeed, not FSDP
    overlaps: bool = False  # its traffic is behind compute, as NeMo's recipes have it (column `software`)
    shard_ranks: int = 0  # ranks over which ZeRO shares out, 0: all data-parallel ones
    inter_gbs: float | None = None  # None: the network is not known
    last_stage: bool = False  # the peak is the last pipeline rank's, not the fullest one's

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def job(self) -> tuple[str, str, str, int, int, int]:
        """Return what rows of one model on one cluster have in common, whatever their sequence length and plan."""
        model = self.model
        return (self.cluster, self.gpu_type, model.name, model.layers, model.hidden, model.vocab)


class IncompleteError(UsageError):
    """A row that is incomplete, contradicts itself or has a word that is not known. The others can still be used."""


def read_rows(path: Path, passed_over: list[str] | None = None) -> tuple[MeasuredRun, ...]:
    """Return the rows of one CSV file that are complete enough to predict them, in the file's order.

    Rows whose score_as names nothing that is understood (e.g. `time-partial`: the source leaves out the micro-batch) are left
    out. Raises UsageError naming file and line: unreadable, missing columns, not a number, negative, unknown GPU type, recompute
    or precision, a needed cell that is empty, degrees that contradict each other. If a list `passed_over` is given, the last
    three only add their line to it.
    """
    where = str(path)
    reader = csv.DictReader(read_lines(path, _FILE_LIMIT), strict=False)
    try:
        columns = reader.fieldnames or []
        missing = [name for name in _NEEDED if name not in columns]
        if missing:
            raise UsageError(f"{where}:1", f"missing columns {', '.join(missing)}", f"needed are {', '.join(_NEEDED)}")
        rows: list[MeasuredRun] = []
        line_by_id: dict[str, int] = {}
        for cells in reader:
            try:
                row = _row(cells, path.name, f"{where}:{reader.line_num}", reader.line_num)
            except IncompleteError as error:
                if passed_over is None:
                    raise
                passed_over.append(str(error))
                continue
            if row is None:
                continue
            if row.row_id in line_by_id:
                raise UsageError(
                    f"{where}:{row.line}",
                    f"row_id {row.row_id} is on line {line_by_id[row.row_id]} too",
                    "each row needs an id of its own",
                )
            line_by_id[row.row_id] = row.line
            rows.append(row)
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(where, f"cannot be read: {what}", "give a CSV file of measured rows") from None
    except csv.Error as error:
        raise UsageError(f"{where}:{reader.line_num}", f"not CSV: {error}", "give a CSV file") from None
    return tuple(rows)


def read_files(paths: Iterable[Path], passed_over: list[str] | None = None) -> tuple[MeasuredRun, ...]:
    """Return the rows of all `paths`, with files of the same name told apart by their path.

    Raises UsageError as `read_rows` does, and if no row is left.
    """
    files = list(paths)
    many = Counter(path.name for path in files)
    rows: list[MeasuredRun] = []
    for path in dict.fromkeys(files):
        of_file = read_rows(path, passed_over)
        rows += of_file if many[path.name] == 1 else (replace(row, file=str(path)) for row in of_file)
    if not rows:
        raise UsageError(", ".join(map(str, files)), "no row that can be used", "rows need score_as time, plan or mem")
    return tuple(rows)


class _CsvLine:
    """One line's cells by column, with errors that name the line."""

    def __init__(self, cells: Mapping[str | None, str | None], where: str) -> None:
        self.cells, self.where = cells, where

    def text(self, name: str) -> str:
        value = self.cells.get(name)
        return value.strip() if isinstance(value, str) else ""

    def whole_number(self, name: str, default: int | None = None) -> int:
        text = self.text(name)
        if not text:
            if default is None:
                raise IncompleteError(self.where, f"{name} is empty", "it must be a whole number of at least 1")
            return default
        value = self.number(name)
        if value is None or value != int(value) or not 1 <= value <= 1e9:
            raise UsageError(self.where, f"{name} is {text}", "it must be a whole number of at least 1")
        return int(value)

    def number(self, name: str) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise UsageError(self.where, f"{name} is {text!r}", "it must be a number") from None
        if not math.isfinite(value):
            raise UsageError(self.where, f"{name} is {text}", "it must be finite")
        return value

    def positive(self, name: str, limit: float) -> float | None:
        value = self.number(name)
        if value is not None and not 0 < value <= limit:
            raise UsageError(
                self.where, f"{name} is {self.text(name)}", f"it must be positive and at most {limit:g}, or empty"
            )
        return value

    def flag(self, name: str) -> bool:
        text = self.text(name).lower()
        if text not in _FLAG:
            raise UsageError(self.where, f"{name} is {self.text(name)!r}", "it must be 0 or 1")
        return _FLAG[text]

    def choice(self, name: str, choices: Mapping[str, str]) -> str:
        text = self.text(name).lower()
        if text not in choices:
            raise IncompleteError(
                self.where, f"{name} is {self.text(name)!r}", f"known are {', '.join(k for k in choices if k)}"
            )
        return choices[text]


def _row(cells: Mapping[str | None, str | None], file: str, where: str, line: int) -> MeasuredRun | None:
    read = _CsvLine(cells, where)
    words = (
        {word.strip() for word in read.text("score_as").replace(",", "+").split("+")} if "score_as" in cells else set()
    )
    scores = frozenset(words & {"time", "plan", "mem"}) if "score_as" in cells else frozenset(("time", "plan", "mem"))
    time_s = read.positive("iter_time_s", _TIME_LIMIT)
    memory = read.positive("mem_gb", _MEMORY_LIMIT)
    gpu_type = canonical(read.text("gpu_type"))
    if gpu_type is None:
        what = f"GPU type {read.text('gpu_type')!r} is not known"
        raise IncompleteError(where, what, f"known are {', '.join(known_types())}")
    failed = read.flag("oom")
    if not scores or (time_s is None and memory is None and not failed):
        return None
    row_id = read.text("row_id")
    if not row_id:
        raise UsageError(where, "row_id is empty", "each row needs an id of its own")
    flags = frozenset(read.text("note").split())
    text = f"{read.text('source')} {read.text('note')}".lower()
    plan = _plan(read)
    if plan.gpus != read.whole_number("n_gpus"):
        what = f"tp x pp x cp x dp is {plan.gpus}, n_gpus {read.text('n_gpus')}"
        raise IncompleteError(where, what, "they must be equal")
    if plan.micro_batches < 1:
        what = f"global_batch {plan.global_batch} is less than dp x micro_batch"
        raise IncompleteError(where, what, "it must be a multiple of dp x micro_batch")
    model = check_spec(_model(read, flags), where)
    return MeasuredRun(
        row_id=row_id,
        file=file,
        line=line,
        cluster=_cluster(read.text("source")),
        gpu_type=gpu_type,
        gpus_per_node=read.whole_number("gpus_per_node"),
        model=model,
        plan=plan,
        time_s=time_s,
        memory_bytes=None if memory is None else memory * 1e9,
        scores=scores,
        group=read.text("group"),
        fused=_is_fused(flags, model, plan, gpu_type),
        out_of_memory=failed,
        deepspeed=_software(read, text) == "deepspeed" and plan.zero_stage == 3,
        overlaps=_software(read, text) == "nemo",
        shard_ranks=_shard_ranks(read, text, plan),
        inter_gbs=read.positive("inter_gbs", _RATE_LIMIT),
        last_stage="last rank" in read.text("note").lower(),
    )


def _is_fused(flags: frozenset[str], model: ModelSpec, plan: Plan, gpu_type: str) -> bool | None:
    """Return whether attention was fused (FlashAttention, 2022).

    Flags decide first. It was never fused with selective recompute, which would free nothing. It was always fused in recent runs:
    GPUs since Hopper, fp8, FSDP, Llama's kind of model, long sequences.
    """
    for flag, kind in _BACKENDS.items():
        if flag in flags:
            return kind
    if plan.recompute == "selective":
        return False
    young = gpu_type.startswith(_SINCE_HOPPER) or plan.precision == "fp8" or plan.zero_stage == 3
    if young or model.gated or model.kv_heads < model.heads or model.seq > _LONGEST_UNFUSED:
        return True
    return None


def _software(read: _CsvLine, text: str) -> str:
    """Return the column `software`, or what `text` says in its place."""
    if column := read.text("software").lower():
        if column not in _SOFTWARE:
            what = f"software is {read.text('software')!r}"
            raise IncompleteError(read.where, what, f"known are {', '.join(_SOFTWARE)}")
        return column
    return "deepspeed" if "fsdp" not in text and any(word in text for word in _DEEPSPEED) else ""


def _shard_ranks(read: _CsvLine, text: str, plan: Plan) -> int:
    """Return the column `shard_ranks`, or what `text` says in its place; 0: all ranks."""
    in_text = _SHARD_GROUP.search(text)
    size = read.whole_number("shard_ranks", int(in_text[1]) if in_text else 0)
    return size if plan.zero_stage in (1, 2) and 0 < size < plan.dp * plan.cp and plan.dp * plan.cp % size == 0 else 0


def _cluster(source: str) -> str:
    """Return the cluster that a measurement belongs to: the source's first word (a repository or a first author)."""
    words = source.split()
    return words[0].lower() if words else "unknown"


def _plan(read: _CsvLine) -> Plan:
    recompute = read.choice("recompute", _RECOMPUTE)
    zero = read.number("zero_stage")
    if zero is not None and zero not in (0, 1, 2, 3):
        raise UsageError(read.where, f"zero_stage is {read.text('zero_stage')}", "it must be 0, 1, 2 or 3")
    tp = read.whole_number("tp")
    return Plan(
        tp=tp,
        pp=read.whole_number("pp"),
        dp=read.whole_number("dp"),
        micro_batch=read.whole_number("micro_batch"),
        global_batch=read.whole_number("global_batch"),
        # Megatron's kind frees nothing where attention is fused, as it is in FSDP's programs
        recompute="operators" if recompute == "selective" and zero == 3 else recompute,
        sequence_parallel=read.flag("seq_parallel") and tp > 1,
        zero_stage=int(zero or 0),
        vpp=read.whole_number("vpp", 1),
        cp=read.whole_number("cp", 1),
        ep=read.whole_number("ep", 1),
        precision=_precision(read),
    )


def _precision(read: _CsvLine) -> str:
    text = read.text("precision").lower()
    for name, words in _PRECISION:
        if words.search(text):
            return name
    right = "known are bf16, fp16, fp32, tf32, fp8, and texts that contain them"
    raise IncompleteError(read.where, f"precision is {read.text('precision')!r}", right)


def _model(read: _CsvLine, flags: frozenset[str]) -> ModelSpec:
    """Return the row's model.

    Where no flag says whether the MLP is gated or the embeddings tied, an ffn other than 4 * hidden (or a name that says Llama or
    alike) means Llama's kind, which is gated and untied.
    """
    hidden, heads = read.whole_number("hidden"), read.whole_number("heads")
    name = read.text("model") or "model"
    ffn = read.whole_number("ffn", 0) if read.text("ffn") else 0
    llama = any(word in name.lower() for word in ("llama", "mistral", "mixtral", "qwen", "internlm", "baichuan"))
    gated = llama or "--swiglu" in flags or (ffn != 0 and ffn != 4 * hidden)
    if not ffn:
        # Llama's own rule: two thirds of 4h, rounded up to a multiple of 256
        ffn = 256 * math.ceil(8 * hidden / 3 / 256) if gated else 4 * hidden
    experts = read.whole_number("experts", 0)
    return ModelSpec(
        name=name,
        layers=read.whole_number("layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=read.whole_number("kv_heads", heads),
        ffn=ffn,
        vocab=read.whole_number("vocab", _DEFAULT_VOCAB),
        seq=read.whole_number("seq"),
        gated=gated,
        tied_embeddings=not (llama or _UNTIED in flags or (gated and "--swiglu" not in flags)),
        experts=experts,
        top_k=read.whole_number("top_k", 1) if experts else 0,
    )


def spread_hash(row_id: str) -> int:
    """Return a fixed number for `row_id` (FNV-1a with a finalizer).

    It gives the order in which rows become shots, the same on every machine.
    """
    value = 0xCBF29CE484222325
    for byte in row_id.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    value ^= value >> 32
    value = (value * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 29)


@dataclass(frozen=True)
class Shots:
    """The number of rows to learn from first.

    This is `each` of every model and cluster, or `in_all` of every cluster, over all its models.
    """

    each: int = 0
    in_all: int = 0


NO_SHOTS = Shots()


def shots(rows: Sequence[MeasuredRun], shot_counts: Shots) -> tuple[tuple[MeasuredRun, ...], tuple[MeasuredRun, ...]]:
    """Return (rows to learn from, the others).

    The rows to learn from are those whose ids hash lowest. A model and cluster (or a cluster) with no more rows than `shot_counts`
    keeps one to be scored.
    """
    groups: dict[object, list[MeasuredRun]] = {}
    for row in rows:
        groups.setdefault(row.cluster if shot_counts.in_all else row.job, []).append(row)
    shot_keys: set[tuple[str, str]] = set()
    for some in groups.values():
        ordered = sorted(some, key=lambda row: (spread_hash(row.row_id), row.row_id))
        shot_keys |= {
            (row.file, row.row_id) for row in ordered[: min(shot_counts.in_all or shot_counts.each, len(some) - 1)]
        }
    shot_rows = tuple(row for row in rows if (row.file, row.row_id) in shot_keys)
    return shot_rows, tuple(row for row in rows if (row.file, row.row_id) not in shot_keys)
