"""A short profiling run with torch: GEMM curve, attention, device memory, collectives by size; and the hardware figures that follow.

The clock is given, so that all but torch itself is a pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from synergy_core.errors import UsageError

from synergyd.jobmodel.model.hardware import GIB, GpuFigures, figures

Clock = Callable[[], float]

_LEAST_S = 0.02  # least seconds of each timing, so that the clock and the launch of the first kernel do not count
_TIMINGS = 3


@dataclass(frozen=True)
class Timing:
    """One measurement: `amount` in FLOPs or bytes, and the seconds that it took."""

    amount: float
    seconds: float


@dataclass(frozen=True)
class AllReduceTimings:
    """All-reduces over `ranks` ranks, `local` of them on each node; a point's amount is bytes a rank."""

    ranks: int
    local: int
    points: tuple[Timing, ...]

    @property
    def crosses_nodes(self) -> bool:
        """Return whether the all-reduce left the node."""
        return self.ranks > self.local


@dataclass(frozen=True, kw_only=True)
class DeviceMeasurement:
    """The measurements of one device. Empty tuples: not measured."""

    device: str  # as torch names it
    dtype: str
    gemm: tuple[Timing, ...]
    gemm_fp32: tuple[Timing, ...] = ()
    gemm_fp8: tuple[Timing, ...] = ()
    attention: tuple[Timing, ...] = ()
    copy: tuple[Timing, ...] = ()  # bytes read and written
    memory_bytes: int = 0
    collectives: tuple[AllReduceTimings, ...] = ()


def line(points: Sequence[Timing]) -> tuple[float, float]:
    """Fit (seconds before the first unit, units a second) to amounts and times.

    The fit is least squares on relative errors, with neither value negative. Raises UsageError where time does not grow with the
    amount.
    """
    amount = np.array([p.amount for p in points], dtype=np.float64)
    seconds = np.array([p.seconds for p in points], dtype=np.float64)
    if len(points) < 2 or not np.all(seconds > 0) or np.ptp(amount) == 0:
        raise UsageError("measurement", f"{len(points)} usable points", "two different sizes are needed")
    weight = 1 / seconds
    (start, slope), *_ = np.linalg.lstsq(np.stack([weight, amount * weight], axis=1), np.ones_like(weight), rcond=None)
    if start < 0:
        start, slope = 0.0, float((amount * weight).sum() / ((amount * weight) ** 2).sum())
    if slope <= 0:
        raise UsageError("measurement", "larger sizes take no longer", "something else was running: measure again")
    return float(start), 1 / float(slope)


def derive_figures(measured: DeviceMeasurement, gpu_type: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return (figure -> number, figure -> how it came about) for `hardware.figures`' overrides.

    For a built-in type the peaks are known and efficiencies are measured. For another type the peaks are chosen so that the
    default efficiencies give the measured rates. Links are always treated this way. The figures' meaning is step_time.py's: a
    GEMM takes kernel_s + FLOPs / (peak * gemm_efficiency), a ring of n ranks (n-1)/n bytes / rate + latency * (1 + log2 n) / 2.
    """
    base = figures(gpu_type)
    values: dict[str, float] = {}
    remarks: dict[str, str] = {}

    def add(name: str, value: float, remark: str) -> None:
        values[name], remarks[name] = value, remark

    kernel_s, rate = line(measured.gemm)
    nominal = base.peak_tflops * 1e12
    if base.note or rate > nominal:
        add("peak_tflops", rate / base.gemm_efficiency / 1e12, f"{rate / 1e12:.3g} TFLOP/s in {measured.dtype} GEMMs")
    else:
        add("gemm_efficiency", rate / nominal, f"{rate / 1e12:.3g} TFLOP/s in {measured.dtype} GEMMs")
    # zero is allowed, but a kernel takes some time
    add("kernel_s", max(kernel_s, 1e-7), "a GEMM before its first FLOP")
    if measured.gemm_fp32:
        add("fp32_speed", line(measured.gemm_fp32)[1] / rate, "fp32 GEMMs over those")
    if measured.gemm_fp8:
        add("fp8_speedup", line(measured.gemm_fp8)[1] / rate, "fp8 GEMMs over those")
    if measured.attention:
        share = line(measured.attention)[1] / rate
        add("attention_efficiency", min(share, 1.0), "fused causal attention over GEMMs")
    if measured.copy:
        _add_bandwidth(measured, base, add)
    if measured.memory_bytes:
        add("memory_gib", measured.memory_bytes / GIB, "device memory")
    for collective in measured.collectives:
        _add_link(collective, base, add)
    return values, remarks


def _add_bandwidth(measured: DeviceMeasurement, base: GpuFigures, add: Callable[[str, float, str], None]) -> None:
    _, rate = line(measured.copy)
    remark = f"{rate / 1e9:.4g} GB/s copying device memory, reads and writes counted"
    if base.note or rate > base.bandwidth_gbs * 1e9:
        add("bandwidth_gbs", rate / base.bandwidth_efficiency / 1e9, remark)
    else:
        add("bandwidth_efficiency", rate / (base.bandwidth_gbs * 1e9), remark)


def _add_link(collective: AllReduceTimings, base: GpuFigures, add: Callable[[str, float, str], None]) -> None:
    n = collective.ranks
    start, rate = line([Timing(2 * p.amount * (n - 1) / n, p.seconds) for p in collective.points])
    latency = max(start / (1 + float(np.log2(n))), 1e-7)
    text = f"all-reduce over {n} ranks, {collective.local} a node: {rate / 1e9:.4g} GB/s on the links"
    if collective.crosses_nodes:
        # step_time.py's rate of a group with several members on a node
        ports = collective.local**base.rail_use
        add("inter_gbs", rate / ports / base.inter_efficiency / 1e9, text)
        add("inter_latency_s", latency, "a collective before its first byte moves, between nodes")
    else:
        add("intra_gbs", rate / base.link_efficiency / 1e9, text)
        add("intra_latency_s", latency, "a collective before its first byte moves, in the node")


def report(measured: DeviceMeasurement) -> str:
    """Return the measurements as readable lines."""
    lines = [f"{measured.device}, {measured.dtype}"]

    def rows(title: str, points: Sequence[Timing], unit: str, scale: float) -> None:
        if points:
            lines.append(title)
            lines.extend(
                f"  {p.amount:12.4g} in {p.seconds:10.3g} s: {p.amount / p.seconds / scale:10.4g} {unit}"
                for p in points
            )

    rows(f"GEMM {measured.dtype}, FLOPs", measured.gemm, "TFLOP/s", 1e12)
    rows("GEMM fp32, FLOPs", measured.gemm_fp32, "TFLOP/s", 1e12)
    rows("GEMM fp8, FLOPs", measured.gemm_fp8, "TFLOP/s", 1e12)
    rows("causal attention, FLOPs", measured.attention, "TFLOP/s", 1e12)
    rows("copy, bytes read and written", measured.copy, "GB/s", 1e9)
    for collective in measured.collectives:
        title = f"all-reduce over {collective.ranks} ranks, {collective.local} a node, bytes"
        rows(title, collective.points, "GB/s", 1e9)
    return "\n".join(lines)


def conf_line(gpu_type: str, measured: Mapping[str, float]) -> str:
    """Return the slurm.conf line of the same figures. It takes the five main ones, so an efficiency is put into its peak."""
    base = figures(gpu_type)
    main = {
        n: measured[n]
        for n in ("peak_tflops", "memory_gib", "bandwidth_gbs", "intra_gbs", "inter_gbs")
        if n in measured
    }
    if "gemm_efficiency" in measured:
        main["peak_tflops"] = base.peak_tflops * measured["gemm_efficiency"] / base.gemm_efficiency
    if "bandwidth_efficiency" in measured:
        main["bandwidth_gbs"] = base.bandwidth_gbs * measured["bandwidth_efficiency"] / base.bandwidth_efficiency
    return f"#SYNERGY GpuType={gpu_type} " + " ".join(f"{name}={max(value, 0.001):.4g}" for name, value in main.items())


def time_call(
    call: Callable[[], object], settle: Callable[[], object], clock: Clock, least_s: float = _LEAST_S
) -> float:
    """Return the seconds of one `call`: the best of three timings, each of as many calls as take `least_s`.

    `settle` waits until the device is done.
    """
    call()
    settle()
    repeats = 1
    while True:
        start = clock()
        for _ in range(repeats):
            call()
        settle()
        spent = clock() - start
        if spent >= least_s or repeats >= 1 << 16:
            break
        repeats = repeats * 2 if spent <= 0 else min(1 << 16, max(repeats + 1, int(1.2 * repeats * least_s / spent)))
    best = spent / repeats
    for _ in range(_TIMINGS - 1):
        start = clock()
        for _ in range(repeats):
            call()
        settle()
        best = min(best, (clock() - start) / repeats)
    return best


def make_settle(torch: Any, device: str) -> Callable[[], object]:
    """Return a function that waits for the device."""
    settle: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    return settle


def gemms(torch: Any, device: str, dtype: Any, sizes: Sequence[int], clock: Clock) -> tuple[Timing, ...]:
    """Time square GEMMs of n x n x n, 2 n^3 FLOPs each."""
    settle, points = make_settle(torch, device), []
    for n in sizes:
        a = torch.randn(n, n, device=device).to(dtype)
        b, out = torch.randn(n, n, device=device).to(dtype), torch.empty(n, n, device=device, dtype=dtype)
        points.append(Timing(2.0 * n**3, time_call(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), settle, clock)))  # type: ignore[misc]
    return tuple(points)


def gemms_fp8(torch: Any, sizes: Sequence[int], clock: Clock) -> tuple[Timing, ...]:
    """Time the same GEMMs in fp8 (e4m3) through torch._scaled_mm. Return nothing where the GPU or torch lacks it."""
    if not hasattr(torch, "_scaled_mm") or torch.cuda.get_device_capability() < (8, 9):
        return ()
    settle, points = make_settle(torch, "cuda"), []
    scale = torch.ones((), device="cuda")
    try:
        for n in sizes:
            a = torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn)
            b = torch.randn(n, n, device="cuda").to(torch.float8_e4m3fn).t()  # the second operand is column-major

            def call(a: Any = a, b: Any = b) -> object:
                result: object = torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
                return result

            points.append(Timing(2.0 * n**3, time_call(call, settle, clock)))
    except (RuntimeError, TypeError, AttributeError):
        return ()  # a build of torch without it, or with other arguments
    return tuple(points)


def attention(torch: Any, device: str, dtype: Any, lengths: Sequence[int], clock: Clock) -> tuple[Timing, ...]:
    """Time causal attention of 16 heads of 128, forward: 2 s^2 h FLOPs a sequence, as step_time.py counts them."""
    settle, points = make_settle(torch, device), []
    for s in lengths:
        q, k, v = (torch.randn(1, 16, s, 128, device=device).to(dtype) for _ in range(3))

        def call(q: Any = q, k: Any = k, v: Any = v) -> object:
            result: object = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return result

        points.append(Timing(2.0 * s * s * 16 * 128, time_call(call, settle, clock)))
    return tuple(points)


def copies(torch: Any, device: str, sizes: Sequence[int], clock: Clock) -> tuple[Timing, ...]:
    """Time copies of `sizes` bytes inside the device's memory, larger than its caches. Each byte is read and written."""
    settle, points = make_settle(torch, device), []
    for size in sizes:
        a = torch.ones(size // 4, device=device)
        b = torch.empty_like(a)
        points.append(Timing(2.0 * size, time_call(lambda a=a, b=b: b.copy_(a), settle, clock)))  # type: ignore[misc]
    return tuple(points)


def all_reduces(
    torch: Any, device: str, group: Any, ranks: int, sizes: Sequence[int], clock: Clock, repeats: int = 5
) -> tuple[Timing, ...]:
    """Time all-reduces of `sizes` bytes a rank over `group`.

    Every rank calls this. The best of `repeats` counts (the slowest rank's time, which all of them then know).
    """
    import torch.distributed as dist

    settle, points = make_settle(torch, device), []
    for size in sizes:
        data = torch.ones(size // 4, device=device)
        dist.all_reduce(data, group=group)
        best = float("inf")
        for _ in range(repeats):
            dist.barrier(group=group)
            settle()
            start = clock()
            dist.all_reduce(data, group=group)
            settle()
            spent = torch.tensor([clock() - start], dtype=torch.float64, device=device)
            dist.all_reduce(spent, op=dist.ReduceOp.MAX, group=group)
            best = min(best, float(spent))
            data.fill_(1.0)
        points.append(Timing(float(size), best))
    return tuple(points)


def one_device(torch: Any, device: str, clock: Clock) -> DeviceMeasurement:
    """Measure everything but the collectives, in about ten seconds."""
    if device == "cpu":
        return DeviceMeasurement(
            device=f"CPU, {torch.get_num_threads()} threads",
            dtype="fp32",
            gemm=gemms(torch, "cpu", torch.float32, (64, 128, 256, 512, 1024), clock),
            copy=copies(torch, "cpu", (1 << 26, 1 << 27), clock),
        )
    about = torch.cuda.get_device_properties(torch.cuda.current_device())
    bf16 = torch.cuda.get_device_capability() >= (8, 0)
    dtype = torch.bfloat16 if bf16 else torch.float16
    sizes = (512, 1024, 2048, 4096, 8192)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # TF32, as training code sets it
    try:
        full = gemms(torch, "cuda", torch.float32, sizes[1:], clock)
    finally:
        torch.set_float32_matmul_precision(before)
    return DeviceMeasurement(
        device=about.name,
        dtype="bf16" if bf16 else "fp16",
        gemm=gemms(torch, "cuda", dtype, sizes, clock),
        gemm_fp32=full,
        gemm_fp8=gemms_fp8(torch, sizes[1:], clock),
        attention=attention(torch, "cuda", dtype, (1024, 2048, 4096, 8192), clock) if bf16 else (),
        copy=copies(torch, "cuda", (1 << 28, 1 << 30), clock),
        memory_bytes=int(about.total_memory),
    )
