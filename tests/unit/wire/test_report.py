from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.accepts import NOTHING_MORE, Accepts
from synergy_core.errors import UnavailableError, UsageError, one_line
from synergy_core.job_report import EarlyFailure, Fault, InPlace, LossSpike, Report
from synergy_core.kernels import LOCAL, Kernels
from synergy_core.records import ModelSpec, Plan
from synergy_core.wire import munge, report
from synergy_core.wire.codec import encode
from synergy_core.wire.report import MAX_BYTES, from_json, send, status_to_report, to_json

from tests.unit.wire.test_admin_comment import plans

BASE: dict[str, Any] = {"job_id": 7, "restarts": 0, "step": 1}
MODEL: dict[str, Any] = {
    "name": "m",
    "layers": 2,
    "hidden": 8,
    "heads": 2,
    "kv_heads": 2,
    "ffn": 16,
    "vocab": 99,
    "seq": 32,
}


def load(**values: Any) -> Report:
    return from_json(json.dumps({**BASE, **values}).encode())


_sizes = st.integers(1, 10_000_000)
models = st.builds(
    ModelSpec,
    st.text(alphabet="abcXYZ-_ 12", max_size=30),
    *[_sizes] * 7,
    gated=st.booleans(),
    tied_embeddings=st.booleans(),
)
reports = st.builds(
    Report,
    job_id=st.integers(1, 2**32),
    restarts=st.integers(0, 10**6),
    step=st.integers(0, 10**12),
    step_s=st.none() | st.floats(1e-6, 86_400),
    loss=st.none() | st.floats(-1e9, 1e9),
    tokens=st.none() | st.integers(0, 10**18),
    noise_scale=st.none() | st.floats(1e-6, 1e12),
    peak_memory_bytes=st.none() | st.integers(0, 10**13),
    checkpoint_step=st.none() | st.integers(0, 10**12),
    checkpoint_requests=st.integers(0, 10**6),
    plan=st.none() | plans,
    resharding=st.booleans(),
    model=st.none() | models,
    done=st.none() | st.floats(0, 1e15),
    total=st.none() | st.floats(0, 1e15),
    accepts=st.builds(
        Accepts,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "bf16", "fp16", "fp32", "fp8"]),
        st.booleans(),
    ),
    note=st.text(alphabet="abc ü'\"$()", max_size=60),
    comm=st.sampled_from(["", "local:8", "compressed:bf16"]),
    comm_efficiency=st.none() | st.floats(1e-6, 1),
).map(lambda r: r if r.plan is None else replace(r, plan=replace(r.plan, exchange=r.comm or "exact")))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(reports)
def test_round_trip(sent: Report) -> None:
    payload = to_json(sent)
    assert from_json(payload) == sent and len(payload) <= MAX_BYTES


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(list(asdict(Report(1, 0, 0)))),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["tp", "dp", "name", "layers", "x"]), inner, max_size=3)
            ),
            max_leaves=6,
        ),
    )
)
def test_no_json_does_worse_than_a_usage_error(data: dict[str, Any]) -> None:
    for values in (data, {**BASE, **data}):
        try:
            found = from_json(json.dumps(values).encode())
        except UsageError as error:
            assert "\n" not in str(error) and len(str(error)) < 600
        else:
            assert all(v is None or math.isfinite(v) for v in (found.loss, found.step_s, found.noise_scale))


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"null", b"[]", b"7", b'"x"', b"\xff\xfe{}", b"\x00", b"[" * 60_000, b'{"a":' * 10_000, b"{}" + b" " * MAX_BYTES,
     b'{"job_id": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_hostile_bytes(payload: bytes) -> None:
    with pytest.raises(UsageError) as error:
        from_json(payload)
    assert str(error.value).startswith("report: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["job_id", "restarts", "step"])
def test_what_every_report_needs(missing: str) -> None:
    with pytest.raises(UsageError, match=f"{missing} is missing"):
        load(**{missing: None})


@pytest.mark.parametrize(
    "name, value",
    [
        ("job_id", 0), ("job_id", -1), ("job_id", 2**32 + 1), ("job_id", "7"), ("job_id", 7.0), ("job_id", True), ("restarts", -1),
        ("restarts", 10**7), ("step", -1), ("step", 1.5), ("step", [1]), ("step", {"a": 1}), ("step", 10**400), ("loss", math.nan),
        ("loss", math.inf), ("loss", -math.inf), ("loss", 1e300), ("loss", 10**400), ("loss", "1"), ("loss", False), ("step_s", 0),
        ("step_s", -1.0), ("step_s", 1e6), ("noise_scale", 0), ("noise_scale", math.nan), ("tokens", 2**63), ("tokens", 1e3),
        ("peak_memory_bytes", -5), ("peak_memory_bytes", 10**14), ("checkpoint_requests", 10**9), ("checkpoint_step", "last"),
    ],
)  # fmt: skip
def test_out_of_bounds_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UsageError) as error:
        load(**{name: value})
    assert f"report: {name} is " in str(error.value) and len(str(error.value)) < 200


@pytest.mark.parametrize(
    "name, value", [("step_s", 1e-6), ("step_s", 86_400), ("loss", -1e9), ("tokens", 10**18), ("step", 0), ("loss", 3)]
)
def test_the_bounds_themselves_are_within(name: str, value: float) -> None:
    assert getattr(load(**{name: value}), name) == value


@pytest.mark.parametrize(
    "plan",
    [[], 0, "x", {"tp": 0}, {"tp": 10**400}, {"tp": 10**12}, {"tp": True}, {"recompute": "x" * 1000},
     {"sequence_parallel": [[]]}],
)  # fmt: skip
def test_a_plan_out_of_bounds_is_refused(plan: object) -> None:
    with pytest.raises(UsageError) as error:
        load(plan=plan)
    assert "report: plan" in str(error.value) and len(str(error.value)) < 200


def test_a_plan_that_does_not_divide_its_batch_is_refused() -> None:
    with pytest.raises(UsageError, match=r"plan\.global_batch 4 is no multiple of dp 3 x micro_batch 1"):
        load(plan={"dp": 3, "global_batch": 4})


@pytest.mark.parametrize("field", ["loss", "note", "plan", "model", "resharding", "future"])
def test_whatever_depth_json_can_read_is_answered(field: str) -> None:
    for depth in (200, 600, 900, 960, 980, 990, 5000):
        for inner in ("[" * depth + "]" * depth, '{"tp":' + "[" * depth + "]" * depth + "}"):
            payload = f'{{"job_id":7,"restarts":0,"step":1,"{field}":{inner}}}'.encode()
            with contextlib.suppress(UsageError):
                assert from_json(payload).note == ""


@pytest.mark.parametrize(
    "change",
    [{"name": 7}, {"name": None}, {"layers": 0}, {"layers": True}, {"layers": "2"}, {"hidden": 10**8}, {"heads": 10**400}, {"vocab": None},
     {"seq": 1.5}],
)  # fmt: skip
def test_a_model_out_of_bounds_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"report: model\." + next(iter(change))):
        load(model={**MODEL, **change})


def test_a_model_with_fields_missing_or_of_the_wrong_kind_is_refused() -> None:
    wrong: tuple[Any, ...] = ({}, {"name": "m"}, {k: v for k, v in MODEL.items() if k != "name"}, [], "gpt", 7)
    for model in wrong:
        with pytest.raises(UsageError, match="model"):
            load(model=model)
    assert load(model=MODEL).model == ModelSpec(**MODEL)


def test_text_is_cut_and_made_harmless() -> None:
    found = load(note="\x1b[2J\n" + "n" * 10_000, model={**MODEL, "name": "m\n" * 500})
    assert found.note.isprintable() and len(found.note) <= 300 and "\\n" in found.note
    assert found.model is not None and found.model.name.isprintable() and len(found.model.name) <= 100
    assert from_json(b'{"job_id":7,"restarts":0,"step":1,"note":"\\ud800"}').note == "\\ud800"
    assert load(note=["a"]).note == "" and load(resharding="yes").resharding is False
    assert load(accepts=[1]).accepts == load(accepts={"vpp": 1, "precision": "int4"}).accepts == NOTHING_MORE
    names = {
        field.name: True for field in fields(NOTHING_MORE) if field.name not in ("precision", "modules", "refuses")
    }
    assert load(accepts={"modules": "mlp+rm -rf+layernorm"}).accepts == Accepts(modules="layernorm+mlp")
    assert load(accepts={"modules": 7, "refuses": ["local"]}).accepts == NOTHING_MORE
    assert load(accepts={"refuses": "delayed+;ls+local+compressed:bf16"}).accepts == Accepts(
        refuses="local+compressed:bf16"
    )
    assert asdict(load(accepts=names).accepts) == asdict(NOTHING_MORE) | names, (
        "each degree that a script takes is heard"
    )


def test_the_exchange_is_one_that_is_known() -> None:
    assert load(comm="local:08").comm == "local:8", "as it is filed"
    for said in ("exact", "local", "x" * 5000, 7, ["local:8"], None):
        assert load(comm=said).comm == ""
    for efficiency in (0, 1.01, math.nan):
        with pytest.raises(UsageError, match="comm_efficiency"):
            load(comm="local:8", comm_efficiency=efficiency)


def test_a_plan_has_the_exchange_that_was_reported() -> None:
    told = asdict(Plan(dp=2, global_batch=4))
    del told["exchange"]  # as training processes are told it
    assert load(plan=told, comm="local:8").plan == Plan(dp=2, global_batch=4, exchange="local:8")
    assert load(plan={**told, "exchange": "local:8"}).plan == Plan(dp=2, global_batch=4)
    found = status_to_report({"plan": told, "comm": "local:4", "step": 1}, 7, 0)
    assert found.plan is not None and found.plan.exchange == "local:4"
    old = status_to_report({"plan": told, "comm": "delayed", "step": 1}, 7, 0)  # a launcher of 0.2.0
    assert old.plan is not None and old.plan.exchange == "exact"


def test_unknown_fields_are_ignored() -> None:
    assert load(future={"x": 1}) == Report(7, 0, 1)


# -- a training process's status -----------------------------------------------------------------------------------


def test_a_status_keeps_what_is_within_bounds() -> None:
    status = {
        "step": 5, "step_s": 0.5, "loss": math.nan, "tokens": 10**400, "noise_scale": math.inf, "peak_memory_bytes": 2.0**30, "job_id": 99,
        "restarts": 99, "checkpoint_requests": True, "checkpoint_step": "x", "plan": {"tp": 0}, "note": None, "resharding": 1,
    }  # fmt: skip
    found = status_to_report(status, 7, 3)
    assert found == Report(7, 3, 5, step_s=0.5, peak_memory_bytes=2**30)
    assert isinstance(found.peak_memory_bytes, int)


@settings(max_examples=80, deadline=None)
@given(reports)
def test_a_status_of_an_agent_is_the_report(sent: Report) -> None:
    found = status_to_report(json.loads(to_json(sent)), sent.job_id, sent.restarts)
    assert found == sent
    assert from_json(to_json(found)) == found


# -- sending -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_munge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(munge, "encode", lambda payload: "CRED:" + payload.decode())


def test_send_is_one_line(no_munge: None) -> None:
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            connection, _ = server.accept()
            with connection:
                got.append(b"".join(iter(lambda: connection.recv(4096), b"")))
                connection.sendall(b"ok\n")

        thread = threading.Thread(target=accept)
        thread.start()
        send(Report(7, 0, 1), f"127.0.0.1:{server.getsockname()[1]}")
        thread.join(5)
    assert got[0].count(b"\n") == 1 and got[0].startswith(b"CRED:{") and got[0].endswith(b"\n")


@pytest.mark.parametrize(
    "address",
    ["", "host", "127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1:-1", ":" * 5, "a" * 70 + ".invalid:1", "127.0.0.1:1"],
)
def test_an_address_that_does_not_answer_is_one_clear_line(no_munge: None, address: str) -> None:
    with pytest.raises(UnavailableError) as error:
        send(Report(7, 0, 1), address, timeout_s=1)
    assert "report not delivered" in str(error.value) and "\n" not in str(error.value)


def test_one_line_is_what_bounds_text() -> None:
    assert one_line("a\x00\u202eb\ud800", 300).isprintable()
    assert report.MAX_BYTES == 65536


FAILED = {"kind": "memory", "code": 1, "number": 1, "plan": {"dp": 2, "global_batch": 4}, "goes_on": True}


def test_a_failure_is_taken_within_bounds() -> None:
    failure = load(failure=FAILED).failure
    assert isinstance(failure, EarlyFailure) and failure.plan is not None and failure.plan.dp == 2
    assert status_to_report({}, 7, 0, failure).failure == failure
    for change in (
        {"kind": 7},
        {"code": 256},
        {"number": 0},
        {"number": 10**9},
        {"plan": {"tp": 0}},
        {"code": "1"},
    ):
        with pytest.raises(UsageError, match=next(iter(change))):
            load(failure={**FAILED, **change})


def test_the_cause_of_a_crash_is_read_back_and_is_absent_for_older_daemons() -> None:
    crash = InPlace(number=1, crashes=1, code=137, step=9, cause="killed", crash_nodes=("n2", "n3"), lost_nodes=("n3",))
    assert from_json(to_json(Report(7, 0, 1, in_place=crash))).in_place == crash
    said = json.loads(to_json(Report(7, 0, 1, in_place=InPlace(number=1, crashes=1, code=9))))["in_place"]
    assert not {"cause", "crash_nodes", "lost_nodes"} & set(said), "what an older version wrote"


def test_a_kind_of_failure_that_only_a_newer_launcher_knows_is_any_other_exit() -> None:
    for kind, known in (("magic", "exit"), ("oom", "killed"), ("gpu", "cuda")):
        assert load(failure={**FAILED, "kind": kind}).failure == EarlyFailure(
            kind=known, code=1, number=1, plan=Plan(dp=2, global_batch=4), goes_on=True
        )


LINK = Fault(kind="network", node="n2", adapter="mlx5_0 port 1")
GPU = Fault(kind="gpu", run=1, node="n2", xid=79, pci_address="0000:3b:00")


def test_a_fault_is_read_back_and_is_absent_for_older_daemons() -> None:
    for fault in (GPU, LINK, Fault(kind="disk", folder="/ckpt", free_bytes=0), Fault(kind="oom", node="n1")):
        assert from_json(to_json(Report(7, 0, 1, fault=fault))).fault == fault
        assert status_to_report({}, 7, 0, fault=fault).fault == fault
    assert "fault" not in json.loads(to_json(Report(7, 0, 1)))


SPIKE = LossSpike(step=201, loss=9.0, usual=2.0, answer="skipped", checkpoint_step=80, first_example=1, last_example=9)


def test_a_loss_spike_is_read_back_and_is_absent_for_older_daemons() -> None:
    fault = Fault(kind="spike", node="n1", spike=SPIKE)
    report = from_json(to_json(Report(7, 0, 210, spike=SPIKE, fault=fault)))
    assert (report.spike, report.fault) == (SPIKE, fault)
    assert status_to_report({"spike": encode(SPIKE)}, 7, 0).spike == SPIKE
    assert "spike" not in json.loads(to_json(Report(7, 0, 1)))


@pytest.mark.parametrize(
    "change", [{"answer": "rm -rf"}, {"loss": "nan"}, {"step": -1}, {"last_example": 10**30}, {"usual": "inf"}]
)
def test_a_loss_spike_that_makes_no_sense_does_not_lose_the_report(change: dict[str, Any]) -> None:
    wrong = {**encode(SPIKE), **change}
    assert load(spike=wrong).spike is None and status_to_report({"spike": wrong}, 7, 0).spike is None
    assert load(fault={**encode(Fault(kind="spike")), "spike": wrong}).fault is None
    assert load(fault=encode(Fault(kind="spike"))).fault is None
    assert load(fault={**encode(GPU), "spike": encode(SPIKE)}).fault is None
    assert status_to_report({"spike": [1]}, 7, 0).spike is None


def test_a_fault_that_can_not_be_read_does_not_lose_the_report() -> None:
    for change in ({"kind": "cosmic ray"}, {"xid": 10**6}, {"free_bytes": -1}):
        assert load(fault={**encode(GPU), **change}).fault is None
    told = load(
        fault={**encode(GPU), "pci_address": "$(reboot)", "node": "\x1b[31m", "folder": "/a\nb" + "c" * 900}
    ).fault
    assert told is not None and (told.pci_address, told.node) == ("", "")
    assert told.folder.isprintable() and len(told.folder) <= 200
    link = load(fault={**encode(LINK), "adapter": "eth0\x1b[2J" + "c" * 900}).fault
    assert link is not None and link.adapter.isprintable() and len(link.adapter) <= 60


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (GPU, "GPU 0000:3b:00 failed with XID 79 on n2"),
        (Fault(kind="gpu", ecc_errors=2), "GPU failed with 2 uncorrected ECC errors"),
        (Fault(kind="disk", folder="/ckpt", free_bytes=2**29, node="n1"), "disk full: /ckpt (0.5 GiB free) on n1"),
        (
            Fault(kind="spike", node="n1", spike=SPIKE),
            "The loss rose to 9 at step 201, far above the usual 2; the run was started again from its checkpoint of step 80, without "
            "examples 1 to 9 of its order",
        ),
        (LINK, "network adapter mlx5_0 port 1 lost its link on n2"),
        (Fault(kind="oom", node="n3"), "out of host memory: the kernel killed a process of the run on n3"),
    ],
)
def test_a_fault_in_words(fault: Fault, text: str) -> None:
    assert fault.describe() == text


def test_a_cause_that_only_a_newer_launcher_knows_does_not_lose_the_report() -> None:
    told = {"number": 1, "crashes": 1, "code": 9, "cause": "cosmic ray", "crash_nodes": ["n2", "\x1b[31m", "n3"]}
    assert load(in_place=told).in_place == InPlace(number=1, crashes=1, code=9, crash_nodes=("n2", "n3"))


def test_kernels_travel_and_what_is_not_clear_counts_as_not_said() -> None:
    sent = Report(7, 0, 1, kernels=LOCAL)
    assert from_json(to_json(sent)).kernels == LOCAL
    assert b"kernels" not in to_json(Report(7, 0, 1))  # as a launcher before 0.3 says it
    said = load(
        kernels={"attention": False, "norm": 1, "softmax": "yes", "optimizer": None, "of_a_newer_launcher": True}
    )
    assert said.kernels == Kernels(attention=False)
    unclear: tuple[object, ...] = (None, {}, [], "fused", 1, {"norm": 1}, {"of_a_newer_launcher": True})
    for nothing in unclear:
        assert load(kernels=nothing).kernels is None
        assert status_to_report({"step": 1, "kernels": nothing}, 7, 0).kernels is None
    assert status_to_report({"step": 1, "kernels": asdict(LOCAL)}, 7, 0).kernels == LOCAL
