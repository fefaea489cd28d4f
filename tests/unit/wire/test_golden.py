"""What daemons, launchers and databases of 0.1.0 wrote, to the byte: it is written so today, and reads back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.accepts import Accepts
from synergy_core.errors import UsageError
from synergy_core.job_report import EarlyFailure, InPlace, Report
from synergy_core.reasons import text_reason
from synergy_core.records import (
    Action,
    Alternative,
    Cell,
    Decision,
    Measurement,
    ModelSpec,
    Plan,
    Profile,
    Shape,
)
from synergy_core.shared_links import SharedLink, Sharing
from synergy_core.wire import admin_comment, codec, plan_file, report
from synergy_core.wire.admin_comment import AdminCommentStamp
from synergy_core.wire.link_protocol import Hello, encode_hello, read_hello
from synergy_core.wire.plan import PLAN_CHECKS, plan_from_text, plan_text
from synergy_core.wire.plan_file import PlanFile

from synergyd.control.resize.instructions import Target
from synergyd.control.resize.launch_failure import LastStart, LaunchFailures
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, validate
from synergyd.control.resize.start_time import WrittenStart
from synergyd.slurm.directives.directive import directive_key_values, parse_script, read_stamp

PLAN = Plan(2, 2, 4, 2, 64, "full", True, 0, 2, 2, 4, "fp8")
PLAN_JSON = (
    '{"tp": 2, "pp": 2, "dp": 4, "micro_batch": 2, "global_batch": 64, "recompute": "full", "sequence_parallel": true, '
    '"zero_stage": 0, "vpp": 2, "cp": 2, "ep": 4, "precision": "fp8"}'
)
SMALL = Plan(tp=2, dp=2, global_batch=8)
SMALL_JSON = (
    '{"tp": 2, "pp": 1, "dp": 2, "micro_batch": 1, "global_batch": 8, "recompute": "none", "sequence_parallel": false, '
    '"zero_stage": 1, "vpp": 1, "cp": 1, "ep": 1, "precision": "bf16"}'
)
LATER = replace(
    PLAN, exchange="local:8", recompute_layers=3, zero_stage=1, shard=4, cp_comm="a2a"
)  # what came after 0.1.0
LATER_JSON = PLAN_JSON.replace(
    "}", ', "exchange": "local:8", "recompute_layers": 3, "shard": 4, "cp_comm": "a2a"}'
).replace('stage": 0', 'stage": 1')
MODEL = ModelSpec("gpt-mini", 4, 128, 4, 2, 512, 1000, 256, gated=True)
MODEL_JSON = (
    '{"name": "gpt-mini", "layers": 4, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 1000, "seq": 256, '
    '"gated": true, "tied_embeddings": true, "experts": 0, "top_k": 0, "shared_ffn": 0, "moe_every": 1, "head_dim": 0, '
    '"causal": true, "dense_layers": 0, "dense_ffn": 0, "kv_lora": 0, "q_lora": 0, "rope_dim": 0, "value_dim": 0, "mtp_layers": 0}'
)
SCRIPT = (
    "#SYNERGY model='my model.json' min_gpus=4 checkpoint='/daten/übung 1/~x%' gpu_types=a100,h100 weight=2.50 "
    "global_batch=64:512 deadline=1796126400\n"
)
STAMPED = (
    "synergy:1 model=my%20model.json min_gpus=4 gpu_types=a100,h100 global_batch=64:512 weight=2.5 "
    "checkpoint=/daten/%C3%BCbung%201/%7Ex%25 deadline=1796126400"
)


def compact(text: str) -> str:
    return text.replace(": ", ":").replace(", ", ",")


@pytest.mark.parametrize(
    ("own", "rest"),
    [
        ({}, ""),
        (
            {"requested_shape": Shape("", 1, 0), "plan": Plan(dp=2, global_batch=4)},
            " | asked=-,1,0 plan=tp:1,pp:1,dp:2,mb:1,gb:4,rc:none,sp:0,zs:1",
        ),
        (
            {"requested_shape": Shape("", 1, 0), "plan": Plan(dp=2, global_batch=4), "own_batch": True},
            " | asked=-,1,0 plan=tp:1,pp:1,dp:2,mb:1,gb:4,rc:none,sp:0,zs:1 batch=own",
        ),
        (
            {"requested_shape": Shape("", 1, 0), "plan": Plan(dp=2, global_batch=4, exchange="local:8")},
            " | asked=-,1,0 plan=tp:1,pp:1,dp:2,mb:1,gb:4,rc:none,sp:0,zs:1 comm=local:8",
        ),
        (
            {"requested_shape": Shape("a100", 2, 8), "cpus_per_node": 16, "plan": PLAN, "report": "[fe80::1]:7321", "own_tasks": 32,
             "note": "ticket%207%20%7C", "daemon_uid": 64030, "links": "ctl:7322", "throttle": 3},
            " | asked=a100,2,8 cpus=16 tasks=32 throttle=3 plan=tp:2,pp:2,dp:4,mb:2,gb:64,rc:full,sp:1,zs:0,vp:2,cp:2,ep:4,pr:fp8 "
            "note=ticket%207%20%7C report=[fe80::1]:7321 by=64030 links=ctl:7322",
        ),
    ],
)  # fmt: skip
def test_admin_comment(own: dict[str, Any], rest: str) -> None:
    directive = parse_script(SCRIPT)
    assert directive is not None
    stamp = AdminCommentStamp(directive_key_values(directive), **own)
    assert admin_comment.encode(stamp) == STAMPED + rest
    assert admin_comment.decode(STAMPED + rest) == stamp and read_stamp(stamp.directive) == directive


def test_plan_file(tmp_path: Path) -> None:
    text = (
        '{"asked": {"gpu_type": "a100", "gpus_per_node": 8, "nodes": 2}, "by": 64030, '
        '"checkpoint": "/daten/\\u00fcbung 1", "format": 1, "job_id": 7, "links": "ctl:7322", "own_batch": true, "plan": {"cp": 2, '
        '"dp": 4, "ep": 4, "global_batch": 64, "micro_batch": 2, "pp": 2, "precision": "fp8", "recompute": "full", '
        '"sequence_parallel": true, "tp": 2, "vpp": 2, "zero_stage": 0}, "report": "ctl:7321"}\n'
    )
    told = PlanFile(7, PLAN, "ctl:7321", "/daten/übung 1", 64030, "ctl:7322", Shape("a100", 2, 8), own_batch=True)
    path = plan_file.write(told, tmp_path)
    assert path.read_text() == text and plan_file.read(path, 7) == told
    bare = (
        '{"asked": null, "by": null, "checkpoint": "", "format": 1, "job_id": 7, "links": "", "own_batch": false, '
        '"plan": null, "report": ""}\n'
    )
    assert plan_file.write(PlanFile(7), tmp_path).read_text() == bare and plan_file.read(path, 7) == PlanFile(7)
    looped = replace(told, loop="gpu:--batch_size")
    assert plan_file.read(plan_file.write(looped, tmp_path), 7) == looped
    path.write_text(text.replace('"own_batch": true, ', ""))
    assert plan_file.read(path, 7) == replace(told, own_batch=False), "as an older daemon wrote it"


def test_report() -> None:
    sent = Report(
        7, 1, 1200, 0.5, 2.25, 10**12, 100.0, 5 * 10**10, 1100, 2, replace(PLAN, exchange="local:8"),
        True, MODEL, "note", Accepts(True, False, True, "fp8"),
        ("n1",), None, 320.0, 6400.0, True, EarlyFailure(kind="memory", code=1, number=1, plan=PLAN, goes_on=True),
        640.5, 9.0, 4.5, 10**6,
        (1.25,), 600.0, False, InPlace(number=3, order=1, crashes=1, code=7, step=1150), 64, "local:8", 0.9,
        None, "0.1", True, 3, True,
    )  # fmt: skip
    text = (
        '{"job_id":7,"restarts":1,"step":1200,"step_s":0.5,"loss":2.25,"tokens":1000000000000,"noise_scale":100.0,'
        '"peak_memory_bytes":50000000000,"checkpoint_step":1100,"checkpoint_requests":2,'
        '"plan":' + compact(PLAN_JSON).replace('"fp8"', '"fp8","exchange":"local:8"')
        + ',"resharding":true,"model":' + compact(MODEL_JSON) + ',"note":"note","accepts":{"vpp":true,"cp":false,"ep":true,'
        '"precision":"fp8","uneven":false,"overlap":false,"single_stage":false},'
        '"slow_nodes":["n1"],"stalled_s":null,"done":320.0,"total":6400.0,"rebatching":true,"failure":{"kind":"memory","code":1,'
        '"number":1,"plan":' + compact(PLAN_JSON) + ',"goes_on":true,"next_plan":null},"trained_s":640.5,'
        '"first_step_s":9.0,"checkpoint_s":4.5,"checkpoint_bytes":1000000,"slow_times":[1.25],"idle_s":600.0,"silent":false,'
        '"in_place":{"number":3,"order":1,"crashes":1,"code":7,"step":1150},"base_batch":64,"comm":"local:8","comm_efficiency":0.9,'
        '"batch_bound":null,"launcher":"0.1","listens":true,"requested":3,"ended":true}'
    )  # fmt: skip
    assert report.to_json(sent).decode() == text
    assert report.from_json(text.encode()) == sent
    assert codec.decode(Report, json.loads(text)) == sent  # as the store keeps it
    before = json.loads(text)  # of an agent that does not tell what restarts take
    for name in (
        "trained_s",
        "first_step_s",
        "checkpoint_s",
        "checkpoint_bytes",
        "base_batch",
        "comm",
        "comm_efficiency",
    ):
        del before[name]
    older = replace(
        sent,
        plan=PLAN,
        trained_s=None,
        first_step_s=None,
        checkpoint_s=None,
        checkpoint_bytes=None,
        base_batch=None,
        comm="",
        comm_efficiency=None,
    )
    assert report.from_json(json.dumps(before).encode()) == older


def test_hello() -> None:
    payload = b'{"job_id":7,"restarts":2,"nodes":["n1","n2"],"channel":3,"nonce":"0f"}'
    assert encode_hello(Hello(7, 2, ("n1", "n2"), 3, "0f")) == payload
    assert read_hello(payload) == Hello(7, 2, ("n1", "n2"), 3, "0f")
    assert read_hello(b'{"job_id":7,"restarts":2,"nodes":["n1"]}') == Hello(7, 2, ("n1",))


CELL_JSON = (
    f'{{"shape": {{"gpu_type": "a100", "nodes": 1, "gpus_per_node": 4}}, "plan": {SMALL_JSON}, "throughput": 10.0, '
    '"efficiency": 0.9, "goodput": 9.0, "step_s": 0.8, "memory_bytes": 8589934592, "uncertainty": 0.0, "sync_s": 0.0}'
)
LIFE_JSON = (
    '{"job_id": 7, "submit_s": 1.5, "state": "CHECKPOINTING", "since_s": 2.5, "restarts": 3, "target": {"shape": {"gpu_type": '
    f'"a100", "nodes": 2, "gpus_per_node": 4}}, "nodes": ["n1", "n2"], "plan": {SMALL_JSON}}}, "origin": {{"shape": '
    '{"gpu_type": "a100", "nodes": 2, "gpus_per_node": 4}, "nodes": [], "plan": null}, "sent_s": 1.0, "asked_s": 2.0, '
    f'"acks_before": 4, "attempts": 1, "retry_after_s": 9.0, "plan": {SMALL_JSON}, "cause": "more", "ended_s": 8.5, '
    '"unanswered": 2, "stopping": true, "started": {"restarts": 2, "nodes": ["n1"]}, "failures": {"count": 1, "restarts": 3, '
    '"lifted": true, "nodes": ["n1"], "until_s": 9.5}, "written": {"restarts": 3, "low_s": 5.0, "high_s": 6.0, "before_s": 4.0}}'
)
CELL = Cell(Shape("a100", 1, 4), SMALL, 10.0, 0.9, 9.0, 0.8, 2**33)
TARGET = Target(Shape("a100", 2, 4), ("n1", "n2"), SMALL)
LIFE = JobLifecycle(
    7, 1.5, ResizeState.CHECKPOINTING, 2.5, 3, TARGET, replace(TARGET, nodes=(), plan=None), 1.0, 2.0, 4, 1, 9.0, SMALL,
    "more", 8.5, 2, True, LastStart(restarts=2, nodes=("n1",)),
    LaunchFailures(count=1, restarts=3, lifted=True, nodes=("n1",), until_s=9.5),
    WrittenStart(restarts=3, low_s=5.0, high_s=6.0, before_s=4.0),
)  # fmt: skip


def test_names_since_0_2_are_written_as_0_2_reads_them_and_read_under_both() -> None:
    life = replace(LIFE, state=ResizeState.PARKED, in_place=True, lost_races=2, left_to_slurm_reason="Priority")
    data = codec.encode(life)
    assert (data["state"], data["restarts"], data["stays"], data["missed"], data["left"]) == (
        "HELD",
        3,
        True,
        2,
        "Priority",
    )
    assert not {"incarnation", "written_start", "start_attempt", "restart_history"} & set(data)
    assert codec.decode(JobLifecycle, data) == life
    old_to_new = {
        "restarts": "incarnation",
        "written": "written_start",
        "rung": "start_attempt",
        "left": "left_to_slurm_reason",
        "restart": "restart_history",
        "stays": "in_place",
        "missed": "lost_races",
    }
    new = {old_to_new.get(name, name): value for name, value in data.items()} | {"state": "PARKED"}
    assert codec.decode(JobLifecycle, new) == life


def test_what_came_later_is_written_where_it_says_something() -> None:
    """A plan without it is written as by 0.1.0, and one that 0.1.0 wrote reads as a plan without it."""
    assert json.dumps(codec.encode(PLAN)) == PLAN_JSON and json.dumps(codec.encode(LATER)) == LATER_JSON
    assert codec.decode(Plan, json.loads(LATER_JSON), "plan", PLAN_CHECKS) == LATER
    assert (
        plan_text(LATER) == plan_text(replace(PLAN, zero_stage=1)) + ",ex:local:8,rl:3,sh:4,cc:a2a"
        and plan_from_text(plan_text(LATER)) == LATER
    )
    modules = replace(SMALL, recompute="layernorm+mlp")
    assert plan_from_text(plan_text(modules)) == modules
    said = Accepts(exact_only=True, blocks=True, modules="layernorm+mlp", shard=True, a2a=True)
    assert codec.encode(said) == {
        **codec.encode(Accepts()),
        "exact_only": True,
        "blocks": True,
        "modules": "layernorm+mlp",
        "shard": True,
        "a2a": True,
    }


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (CELL, CELL_JSON),
        (LIFE, LIFE_JSON),
        (
            Decision(7, Action.RESIZE, CELL, ("n1",), text_reason("grows"), 1.5, (Alternative(CELL, text_reason("less")[0]),),
                     (("goodput", 0.5),), 0.9, Sharing(1.25, "nic:n1", (SharedLink("nic:n1", (8,)),))),
            f'{{"job_id": 7, "action": "resize", "cell": {CELL_JSON}, "node_names": ["n1"], '
            '"reasons": [{"code": "text", "fields": {"text": "grows"}}], '
            f'"relative_goodput": 1.5, "alternatives": [{{"cell": {CELL_JSON}, '
            '"reason": {"code": "text", "fields": {"text": "less"}}}], "worth": [["goodput", 0.5]], '
            '"fairness": 0.9, "sharing": {"slowdown": 1.25, "worst": "nic:n1", "links": [{"link": "nic:n1", "jobs": [8]}]}}',
        ),
        (
            Profile(0.9, 1.1, 17, float("inf"), True, MODEL, 64, (Measurement(PLAN, Shape("a100", 1, 8), 1.25),),
                    Accepts(True, False, True, "fp8")),
            f'{{"speed": 0.9, "memory": 1.1, "samples": 17, "noise_scale": "inf", "resharding": true, "model": {MODEL_JSON}, '
            f'"global_batch": 64, "measured": [{{"plan": {PLAN_JSON}, "shape": {{"gpu_type": "a100", "nodes": 1, '
            '"gpus_per_node": 8}, "step_s": 1.25, "samples": 1, "comm_efficiency": null}], "accepts": {"vpp": true, "cp": false, '
            '"ep": true, '
            '"precision": "fp8", "uneven": false, "overlap": false, "single_stage": false}}',
        ),
    ],
)  # fmt: skip
def test_what_the_store_keeps(record: Any, text: str) -> None:
    """A field may be added with a default; none of those that a store may hold already changes."""
    encoded = codec.encode(record)
    assert json.dumps({name: encoded[name] for name in json.loads(text)}) == text
    assert codec.decode(type(record), json.loads(text)) == record


def test_a_stored_lifecycle_is_checked_and_may_lack_what_came_later() -> None:
    checks = {**PLAN_CHECKS, JobLifecycle: validate}
    data = json.loads(LIFE_JSON)
    assert codec.decode(JobLifecycle, data, "lifecycle", checks) == LIFE
    early = {"job_id": 7, "submit_s": 1.5, "state": "RUNNING"}
    assert codec.decode(JobLifecycle, early, "lifecycle", checks) == JobLifecycle(7, 1.5, ResizeState.RUNNING)
    for change, text in (
        ({"target": None, "stopping": False}, "lifecycle: state CHECKPOINTING without a target"),
        ({"state": "NOWHERE"}, "lifecycle: state is 'NOWHERE'; expected one of QUEUED, "),
        ({"plan": {"tp": 0}}, "lifecycle: plan.tp is 0; expected a whole number from 1 to 100000000"),
        ({"target": {"shape": {}}}, "lifecycle: target.shape.gpu_type is missing"),
        ({"attempts": -1}, "lifecycle: negative count"),
    ):
        with pytest.raises(UsageError) as error:
            codec.decode(JobLifecycle, {**data, **change}, "lifecycle", checks)
        assert str(error.value).startswith(text)
