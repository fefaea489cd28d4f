"""Reports of a job to the daemon: one line over TCP, a JSON object in a munge credential or signed with the job's key."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from dataclasses import dataclass, fields, replace
from typing import Any

from synergy_core.errors import SynergyError, UnavailableError, UsageError, format_value, one_line
from synergy_core.exchange import EXACT, WAYS, parse_exchange
from synergy_core.job_report import SPIKE_ANSWERS, EarlyFailure, Fault, GpuActivity, InPlace, LossSpike, Report
from synergy_core.kernels import Kernels
from synergy_core.node_check import NodeCheck
from synergy_core.recompute import MODULES
from synergy_core.records import ModelSpec, Plan
from synergy_core.wire import job_key, munge
from synergy_core.wire.codec import Checks, decode, encode
from synergy_core.wire.hostlist import expand
from synergy_core.wire.job_key import SignedReport
from synergy_core.wire.line import Line
from synergy_core.wire.node_check import NODE_NAME, harmless_checks
from synergy_core.wire.plan import PLAN_CHECKS, PRECISIONS, plan_from_text, plan_text

MAX_BYTES = 64 * 1024
#: kinds of a fault that the launcher finds out: host memory, a full disk, a GPU's hardware, a network adapter, a loss spike; each with
#: the kind of an early failure that releases before 0.3 know it by
FAULTS = {"oom": "killed", "disk": "exit", "gpu": "cuda", "network": "nccl", "spike": "exit"}
#: kinds of an early failure: GPU memory, SIGKILL (host memory, as a rule), NCCL, CUDA, no first step, any other exit code
_EARLY = ("memory", "killed", "nccl", "cuda", "hang", "exit")
FAILURES = (*_EARLY, *FAULTS)
_MAX_RUNS = 100
_MAX_RESTARTS = 1_000_000  # in place, of one incarnation
_MAX_ANSWER = 64 * 1024  # an order names the nodes that stay
_RESTART, _LIVE, _JOIN = "synergy-restart", "synergy-live", "synergy-join"
_CHECKPOINT = "synergy-checkpoint"
MAX_NODES = 16  # that a report names
_MAX_RATIO = 1000.0  # a slow node's time over the others'
_MAX_SIZE = 10_000_000  # a model's size, in each direction
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\Z")
_LAUNCHER = re.compile(r"[0-9]{1,10}\.[0-9]{1,6}\Z")
_LIMITS: dict[str, tuple[float, float]] = {
    "step": (0, 1e12), "step_s": (1e-6, 86_400), "loss": (-1e9, 1e9), "tokens": (0, 1e18), "noise_scale": (1e-6, 1e12),
    "peak_memory_bytes": (0, 1e13), "checkpoint_step": (0, 1e12), "checkpoint_requests": (0, 1e6), "restarts": (0, 1e6),
    "job_id": (1, 2**32), "stalled_s": (0, 1e9), "idle_s": (0, 1e9), "done": (0, 1e15), "total": (0, 1e15),
    "trained_s": (0, 1e9), "first_step_s": (0, 1e6), "checkpoint_s": (0, 1e6), "checkpoint_bytes": (0, 1e18),
    "base_batch": (1, 2**24), "comm_efficiency": (1e-6, 1), "batch_bound": (1, 2**24), "requested": (0, 1e6),
}  # fmt: skip
_GPU_LIMITS: dict[str, tuple[float, float]] = {
    "gpus": (1, 1024), "samples": (1, 1024), "memory_bytes": (0, 1e13), "run_s": (0, 1e9),
    **dict.fromkeys(("utilisation", "sm", "tensor", "run_utilisation"), (0.0, 1.0)),
    **dict.fromkeys(("power_w", "run_power_w"), (0.0, 1e5)),
}  # fmt: skip
_SPIKE_LIMITS: dict[str, tuple[float, float]] = {
    "step": (0, 1e12), "loss": (-1e300, 1e300), "usual": (-1e300, 1e300), "checkpoint_step": (0, 1e12),
    "first_example": (0, 1e18), "last_example": (0, 1e18),
}  # fmt: skip
_WHOLE = frozenset(
    {
        "job_id",
        "restarts",
        "step",
        "tokens",
        "peak_memory_bytes",
        "checkpoint_step",
        "checkpoint_requests",
        "checkpoint_bytes",
        "base_batch",
        "batch_bound",
        "requested",
    }
)


def to_json(report: Report) -> bytes:
    """Return a report as the bytes that go into the credential."""
    return json.dumps(encode(report), separators=(",", ":")).encode()


def from_json(payload: bytes) -> Report:
    """Read a report that a stranger sent; every number is within bounds. Raises UsageError naming the field."""
    if len(payload) > MAX_BYTES:
        raise UsageError("report", f"has {len(payload)} bytes", f"expected at most {MAX_BYTES}")
    try:
        data = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise UsageError("report", f"is no JSON ({error})") from None
    if not isinstance(data, dict):
        raise UsageError("report", "is no JSON object")
    present_fields = {name: value for name, value in data.items() if value is not None}
    return _harmless(decode(Report, {**present_fields, **_forgiven(data)}, "report", _CHECKS))


def status_to_report(
    status: dict[str, Any],
    job_id: int,
    restarts: int,
    failure: EarlyFailure | None = None,
    in_place: InPlace | None = None,
    gpu_activity: GpuActivity | None = None,
    fault: Fault | None = None,
    node_checks: tuple[NodeCheck, ...] = (),
) -> Report:
    """Return a training process's status file as a report; values out of bounds are left out rather than refused."""
    report_fields: dict[str, Any] = {"job_id": job_id, "restarts": restarts, "step": 0}
    for name, (low, high) in _LIMITS.items():
        value: Any = status.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in ("job_id", "restarts") and number and low <= value <= high:
            report_fields[name] = int(value) if name in _WHOLE else float(value)
    try:
        plan = decode(Plan, status["plan"], "status", _CHECKS) if status.get("plan") else None
        model = decode(ModelSpec, status["model"], "status", _CHECKS) if status.get("model") is not None else None
    except UsageError:
        plan, model = None, None
    report = replace(decode(Report, {**report_fields, **_forgiven(status)}), plan=plan, model=model)
    spike = read_spike(status.get("spike"))
    report = replace(report, failure=failure, in_place=in_place, gpu_activity=gpu_activity, fault=fault, spike=spike)
    report = replace(report, node_checks=node_checks)
    return _harmless(report)


def _forgiven(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields whose wrong values are no reason to refuse a report: what is not clearly said counts as not said."""
    accepts_value = data.get("accepts")
    accepts = accepts_value if isinstance(accepts_value, dict) else {}
    precision, modules, refuses = (accepts.get(name) for name in ("precision", "modules", "refuses"))
    note, nodes = data.get("note"), data.get("slow_nodes")
    names = nodes[:MAX_NODES] if isinstance(nodes, list) else []
    names = [name for name in names if isinstance(name, str) and NODE_NAME.match(name)]
    times = data.get("slow_times")
    has_valid_times = isinstance(times, list) and len(times) == len(names) and all(map(_is_ratio, times))
    kernels = data.get("kernels")
    return {
        "kernels": _known_kernels(kernels) if isinstance(kernels, dict) else None,
        "accepts": {
            **{
                name: accepts.get(name) is True
                for name in (
                    *("vpp", "cp", "ep", "uneven", "overlap", "single_stage"),
                    *("exact_only", "blocks", "shard", "a2a", "own_recompute", "own_tp", "whole_optimizer", "own_size"),
                    *("own_micro", "in_multiples"),
                )
            },
            "precision": precision if isinstance(precision, str) and precision in PRECISIONS else "",
            "refuses": "+".join(w for w in WAYS if isinstance(refuses, str) and w in refuses.split("+")),
            "modules": "+".join(m for m in MODULES if isinstance(modules, str) and m in modules.split("+")),
        },
        "resharding": data.get("resharding") is True,
        "rebatching": data.get("rebatching") is True,
        "note": one_line(note[:300], 300) if isinstance(note, str) else "",
        "slow_nodes": names,
        "slow_times": times if has_valid_times else [],
        "silent": data.get("silent") is True,
        "listens": data.get("listens") is True,
        "ended": data.get("ended") is True,
        "launcher": name if isinstance(name := data.get("launcher"), str) and _LAUNCHER.match(name) else "",
        "comm": _exchange_text(data.get("comm")),
    }


def _known_kernels(data: dict[str, Any]) -> dict[str, bool] | None:
    """Return what is clearly said of the kernels, or None if nothing is."""
    kernels = {f.name: data[f.name] for f in fields(Kernels) if isinstance(data.get(f.name), bool)}
    return kernels or None


def _exchange_text(value: object) -> str:
    """Return the exchange as `str(Exchange)` writes it; "" for exact, and for what is none."""
    try:
        exchange = parse_exchange(value, "comm") if isinstance(value, str) else EXACT
    except UsageError:
        return ""
    return "" if exchange == EXACT else str(exchange)


def _is_ratio(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1.0 <= value <= _MAX_RATIO


def _harmless(report: Report) -> Report:
    """Return the report with the model's name safe for a terminal and a log line, and the plan with the exchange that was reported.

    The training process is told its plan without the exchange.
    """
    if report.plan is not None and report.plan.exchange != (report.comm or str(EXACT)):
        report = replace(report, plan=replace(report.plan, exchange=report.comm or str(EXACT)))
    if report.in_place is not None:
        report = replace(report, in_place=_harmless_in_place(report.in_place))
    if (failure := report.failure) is not None and failure.kind not in _EARLY:
        report = replace(report, failure=replace(failure, kind=FAULTS.get(failure.kind, "exit")))
    if report.fault is not None:
        report = replace(report, fault=harmless_fault(report.fault))
    if report.spike is not None and not _is_sound(report.spike):
        report = replace(report, spike=None)
    if report.node_checks:
        report = replace(report, node_checks=harmless_checks(report.node_checks))
    if report.model is None:
        return report
    return replace(report, model=replace(report.model, name=one_line(report.model.name, 100)))


def _harmless_in_place(in_place: InPlace) -> InPlace:
    """Return `in_place` with text that is safe for a terminal, and without a cause that only a newer version knows."""
    return replace(
        in_place,
        join_refusal=one_line(in_place.join_refusal[:300], 200),
        cause=in_place.cause if in_place.cause in FAILURES else "",
        crash_nodes=_names_of_nodes(in_place.crash_nodes),
        lost_nodes=_names_of_nodes(in_place.lost_nodes),
    )


def harmless_fault(fault: Fault) -> Fault | None:
    """Return `fault` with text that is safe for a terminal, or None if its kind is not known here or a number is out of bounds."""
    limits = {"run": _MAX_RESTARTS, "xid": 9999, "ecc_errors": 10**9, "free_bytes": 10**18}
    if fault.kind not in FAULTS or not all(0 <= (getattr(fault, name) or 0) <= high for name, high in limits.items()):
        return None
    if (fault.spike is not None) != (fault.kind == "spike") or (fault.spike is not None and not _is_sound(fault.spike)):
        return None
    return replace(
        fault,
        node=fault.node if NODE_NAME.match(fault.node) else "",
        pci_address=fault.pci_address if _PCI_ADDRESS.match(fault.pci_address) else "",
        folder=one_line(fault.folder[:300], 200),
        adapter=one_line(fault.adapter[:100], 60),
    )


def _is_sound(spike: LossSpike) -> bool:
    """Return whether the spike's answer is known here and its numbers are within bounds."""
    numbers = ((getattr(spike, name), limits) for name, limits in _SPIKE_LIMITS.items())
    return spike.answer in SPIKE_ANSWERS and all(n is None or low <= n <= high for n, (low, high) in numbers)


def read_spike(data: object) -> LossSpike | None:
    """Return the loss spike in a training process's JSON; None where there is none, or none that makes sense."""
    try:
        spike = decode(LossSpike, data, "spike") if data is not None else None
    except UsageError:
        return None
    return spike if spike is not None and _is_sound(spike) else None


def _names_of_nodes(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names[:MAX_NODES] if NODE_NAME.match(name))


def _report_problem(report: Report) -> str:
    for name, (low, high) in _LIMITS.items():
        value = getattr(report, name)
        if value is not None and not low <= value <= high:  # false for NaN too
            return f"{name} is {format_value(value)}; expected {low:g} to {high:g}"
    return ""


def _failure_problem(failure: EarlyFailure) -> str:
    for name, low, high in (("code", 0, 255), ("number", 1, _MAX_RUNS)):
        if not low <= getattr(failure, name) <= high:
            return f"{name} is {format_value(getattr(failure, name))}; expected {low} to {high}"
    return ""


def _in_place_problem(in_place: InPlace) -> str:
    limits = {"number": _MAX_RESTARTS, "order": _MAX_RESTARTS, "crashes": _MAX_RESTARTS, "code": 255, "step": 10**12}
    limits["joined"] = _MAX_RESTARTS
    for name, high in limits.items():
        if not 0 <= getattr(in_place, name) <= high:
            return f"{name} is {format_value(getattr(in_place, name))}; expected 0 to {high}"
    return ""


def _gpu_activity_problem(activity: GpuActivity) -> str:
    for name, (low, high) in _GPU_LIMITS.items():
        value = getattr(activity, name)
        if value is not None and not low <= value <= high:  # false for NaN too
            return f"{name} is {format_value(value)}; expected {low:g} to {high:g}"
    return ""


def _model_problem(model: ModelSpec) -> str:
    for field in fields(ModelSpec):
        value, least = getattr(model, field.name), 0 if field.default == 0 else 1  # such as experts: 0 is a dense model
        if type(value) is int and not least <= value <= _MAX_SIZE:
            return f"{field.name} is {format_value(value)}; expected a whole number from {least} to {_MAX_SIZE}"
    return ""


_CHECKS: Checks = {
    **PLAN_CHECKS,
    Report: _report_problem,
    ModelSpec: _model_problem,
    EarlyFailure: _failure_problem,
    InPlace: _in_place_problem,
    GpuActivity: _gpu_activity_problem,
}


@dataclass(frozen=True)
class ReportAnswer:
    """The content of an answer to a report: go on with `plan`'s batch.

    With an `order` (1, 2, ...): start again in place with `plan`. With a `request`: take checkpoints until so many of this incarnation
    were taken on request (and `plan` says nothing). `nodes`, with an order: those that the job goes on with, the first node among them;
    the others end with exit code 0. Empty: all. `joins`, with an order and nodes: bring in those that the job lacks; it goes on as it is.
    """

    plan: Plan
    order: int = 0
    request: int = 0
    nodes: tuple[str, ...] = ()
    joins: bool = False


def answer_line(
    answer: ReportAnswer | None,
    job_id: int = 0,
    restarts: int = 0,
    munge_socket: str = "",
    signed: SignedReport | None = None,
) -> bytes:
    """Return the daemon's line for a report it took: `ok`, and what this incarnation is told. Raises UnavailableError.

    What it is told is said in a munge credential; to a report that was `signed` with a key it is signed with that key. So whoever else
    listens on the port can say nothing but `ok`, which changes nothing; most answers have none and cost nothing.
    """
    if answer is None:
        return b"ok\n"
    words = _answer_text(answer, job_id, restarts).encode()
    return f"ok {signed.answer(words, time.time()) if signed else munge.encode(words, munge_socket)}\n".encode()


def read_answer(line: bytes, to: Report, by: int | None, signed: SignedReport | None = None) -> ReportAnswer | None:
    """Return what an answer to the report `to` tells, or None for anything that can't be believed.

    It is believed where munge vouches that the daemon's user `by`, or root, said it to this very incarnation, or where it answers the
    report that was `signed` with a key, by that key.
    """
    word, _, text = line.decode("ascii", "replace").strip().partition(" ")
    if word != "ok" or not text.startswith(job_key.PREFIX if signed else "MUNGE:"):
        return None
    try:
        if signed:
            payload, trusted = signed.verify_answer(text), True
        else:
            credential = munge.decode(text)
            payload, trusted = credential.payload, credential.uid in (0, by)
        message = payload.decode("ascii")
        words = message.split(" ")
        number = (
            words[3]
            if words[0] in (_RESTART, _LIVE, _JOIN, _CHECKPOINT) and len(words) > 3 and len(words[3]) < 8
            else "0"
        )
        count = int(number) if number.isdecimal() else 0
        nodes = expand(words[4], "answer") if words[0] in (_LIVE, _JOIN) and len(words) == 6 else ()
        answer = (
            ReportAnswer(Plan(), request=count)
            if words[0] == _CHECKPOINT
            else ReportAnswer(plan_from_text(words[-1], "answer"), count, nodes=nodes, joins=words[0] == _JOIN)
        )
    except (SynergyError, UnicodeDecodeError):
        return None
    return answer if trusted and message == _answer_text(answer, to.job_id, to.restarts) else None


def _answer_text(answer: ReportAnswer, job_id: int, restarts: int) -> str:
    if answer.request:
        return f"{_CHECKPOINT} {job_id} {restarts} {answer.request}"
    if answer.order and answer.nodes:
        word = _JOIN if answer.joins else _LIVE
        return f"{word} {job_id} {restarts} {answer.order} {','.join(answer.nodes)} {plan_text(answer.plan)}"
    if answer.order:
        return f"{_RESTART} {job_id} {restarts} {answer.order} {plan_text(answer.plan)}"
    return f"synergy-answer {job_id} {restarts} {plan_text(answer.plan)}"


def send(
    report: Report, address: str, by: int | None = None, timeout_s: float = 5.0, line: Line | None = None
) -> ReportAnswer | None:
    """Send one report to `host:port`. Return what the daemon tells the job, if anything.

    `by`: the daemon's uid; only it and root are believed. A report is delivered when the daemon has answered `ok`, within
    `timeout_s` of the call. Raises UnavailableError where it is not; the job never depends on it. Without munge it is signed with
    the key that this incarnation was handed. A `line` holds the connection afterwards, on which the daemon may knock.
    """
    host, _, port = address.rpartition(":")
    words, signed = _sign_report(report)
    deadline_s = time.monotonic() + timeout_s
    try:
        with contextlib.ExitStack() as closing:
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
            closing.enter_context(connection)
            connection.sendall(words)
            if line is None:
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            while b"\n" not in answer and len(answer) < _MAX_ANSWER:
                connection.settimeout(max(0.001, deadline_s - time.monotonic()))
                if not (more := connection.recv(_MAX_ANSWER)):
                    break
                answer += more
            if line is not None and answer.startswith(b"ok") and b"\n" in answer:
                closing.pop_all()
                line.take(connection, answer.partition(b"\n")[2])
    except (OSError, ValueError, OverflowError) as error:  # the last one: a port above 65535
        raise UnavailableError(f"daemon at {address}", f"report not delivered ({error})") from None
    if answer.partition(b"\n")[0].split()[:1] != [b"ok"]:
        heard = repr(answer[:40]) if answer else "nothing"
        raise UnavailableError(f"daemon at {address}", f"report not delivered (answered {heard} in place of ok)")
    return read_answer(answer, report, by, signed)


def _sign_report(report: Report) -> tuple[bytes, SignedReport | None]:
    """Return the report as a line that says whose it is, and what signed it where munge did not. Raises UnavailableError."""
    try:
        return munge.encode(to_json(report)).encode() + b"\n", None
    except UnavailableError:
        key = job_key.find_key(report.job_id, report.restarts, os.environ)
        if key is None:
            raise
        line, signed = job_key.sign_report(key, to_json(report), time.time())
        return line.encode() + b"\n", signed
