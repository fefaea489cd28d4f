from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.records import Plan, Shape
from synergy_core.wire.admin_comment import MARK, AdminCommentStamp, decode, encode
from synergy_core.wire.plan_file import from_admin_comment

from synergyd.slurm.directives.directive import DirectiveError, directive_key_values, parse_script, read_stamp

PLAN = Plan(tp=2, pp=2, dp=2, micro_batch=2, global_batch=16, recompute="full", sequence_parallel=True)
plans = st.builds(
    lambda tp, pp, dp, mb, n, rc, sp, do: Plan(tp, pp, dp, mb, dp * mb * n, rc, sp, do),
    *[st.integers(1, 64)] * 5, st.sampled_from(["none", "selective", "full"]), st.booleans(), st.integers(0, 3),
)  # fmt: skip
names = st.from_regex(r"[a-z_]{1,9}", fullmatch=True)
values = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
stamps = st.builds(
    AdminCommentStamp,
    st.lists(st.tuples(names, values), max_size=4).map(tuple),
    requested_shape=st.none()
    | st.builds(Shape, st.sampled_from(["", "a100", "h100-80gb"]), st.integers(1, 4096), st.integers(0, 16)),
    cpus_per_node=st.none() | st.integers(1, 512),
    plan=st.none() | plans,
    report=st.sampled_from(["", "ctl:7321", "[fe80::1]:7321"]),
    own_tasks=st.none() | st.integers(1, 99),
    time_limit_s=st.none() | st.integers(0, 10**8),
    continuations=st.integers(0, 1000),
    nodelist=st.sampled_from([(), ("n1",), ("gpu-01.site", "gpu_2")]),
)


def test_the_text_as_documented() -> None:
    words = (("model", "llama2-7b"), ("min_gpus", "4"))
    asked = Shape("a100", 2, 8)
    stamp = AdminCommentStamp(
        words, requested_shape=asked, cpus_per_node=16, plan=PLAN, report="ctl:7321", own_tasks=32
    )
    assert encode(stamp) == (
        "synergy:1 model=llama2-7b min_gpus=4 | asked=a100,2,8 cpus=16 tasks=32 "
        "plan=tp:2,pp:2,dp:2,mb:2,gb:16,rc:full,sp:1,zs:1 report=ctl:7321"
    )
    assert "cpus=16 nodes=n1,n2 plan=" in encode(replace(stamp, own_tasks=None, nodelist=("n1", "n2")))
    assert decode("synergy:1 | asked=a100,2,8 nodes=n1;n2") == AdminCommentStamp(requested_shape=asked), (
        "a name that is none"
    )
    assert encode(AdminCommentStamp()) == MARK
    assert encode(AdminCommentStamp(report="a:1")) == "synergy:1 | report=a:1"
    assert encode(AdminCommentStamp(report="a:1", daemon_uid=64030)) == "synergy:1 | report=a:1 by=64030"
    assert decode("synergy:1 | report=a:1 by=64030") == AdminCommentStamp(report="a:1", daemon_uid=64030)
    assert decode("synergy:1 | report=a:1 by=-3") == AdminCommentStamp(report="a:1")
    assert encode(AdminCommentStamp(time_limit_s=3600, continuations=2)) == "synergy:1 | time=3600,2"
    assert encode(AdminCommentStamp(continuations=1)) == "synergy:1 | time=-,1"
    assert decode("synergy:1 | time=-60,1") == decode("synergy:1 | time=60") == AdminCommentStamp()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(stamps)
def test_round_trip(stamp: AdminCommentStamp) -> None:
    text = encode(stamp)
    assert decode(text) == stamp
    assert text.isprintable() and "\n" not in text


@settings(max_examples=60, deadline=None)
@given(stamps)
def test_the_launcher_reads_the_same(stamp: AdminCommentStamp) -> None:
    handover = from_admin_comment(encode(stamp), 7)
    if stamp.plan is None and not stamp.report:
        assert handover is None
    else:
        assert handover is not None and (handover.plan, handover.report) == (stamp.plan, stamp.report)


@pytest.mark.parametrize(
    "text", ["", "synergy:", "synergy:10 min_gpus=4 | plan=tp:1", "x synergy:1", "synergy:1|", "my own note"]
)
def test_others_text_is_none(text: str) -> None:
    assert decode(text) is None
    assert from_admin_comment(text, 7) is None


@pytest.mark.parametrize(
    "own",
    ["asked=a100,2", "asked=a100,0,8", "asked=a100,²,8", "asked=a100,x,y", "asked=", "asked=a,1,2,3", "asked=a," + "9" * 5000 + ",1",
     "cpus=0", "cpus=²", "cpus=-1", "cpus=", "tasks=²", "plan=", "plan=tp:0", "plan=tp:²", "plan=sp:maybe", "plan=nonsense",
     "plan=tp:2,xx:1",
     "plan=dp:4,gb:3", "plan=tp:" + "9" * 5000, "unknown=1", "=", "x"],
)  # fmt: skip
def test_fields_without_sense_are_dropped(own: str) -> None:
    assert decode(f"{MARK} min_gpus=4 | {own}") == AdminCommentStamp((("min_gpus", "4"),))
    assert decode(f"{MARK} | {own} report=ctl:1") == AdminCommentStamp(report="ctl:1")


def test_a_user_cannot_write_the_daemons_part_through_the_directive() -> None:
    directive = parse_script("#!/bin/sh\n#SYNERGY checkpoint='/x | asked=a100,64,8 plan=tp:8'\n")
    assert directive is not None
    stamp = AdminCommentStamp(directive_key_values(directive), requested_shape=Shape("a100", 1, 1))
    assert decode(encode(stamp)) == stamp
    assert read_stamp(stamp.directive) == directive


@pytest.mark.parametrize(
    ("own", "mistakes"),
    [
        ("asked=a100,2", {"asked": "asked='a100,2'; expected TYPE,NODES,GPUS"}),
        ("plan=tp:0", {"plan": "plan: tp is 0; expected a whole number from 1 to 100000000"}),
        ("plan=tp:2,pp", {"plan": "plan: pp is ''; expected a whole number"}),
        ("cpus=-1 by=x", {"cpus": "cpus='-1'; expected a whole number", "by": "by='x'; expected a uid"}),
        ("report=$(x) links=:1", {"report": "report='$(x)'; expected HOST:PORT", "links": "links=':1'; expected HOST:PORT"}),
        ("cpus=4 report=ctl:1", {}),
    ],
)  # fmt: skip
def test_a_field_without_sense_is_named(own: str, mistakes: dict[str, str]) -> None:
    stamp = decode(f"{MARK} | {own}")
    assert stamp is not None and stamp.mistakes == mistakes


WHOLE = encode(
    AdminCommentStamp(
        (("model", "gpt2"), ("checkpoint", "/ü")),
        requested_shape=Shape("a", 1, 2),
        plan=PLAN,
        report="c:1",
        daemon_uid=7,
    )
)


@pytest.mark.parametrize(
    "text",
    [
        *(WHOLE[:n] for n in range(len(MARK), len(WHOLE), 3)),
        f"{MARK} " + "x" * 10_000_000,
        f"{MARK} model=" + "%41" * 3_000_000,
        f"{MARK} " + "tp=2 " * 2_000_000 + "| plan=tp:1",
        f"{MARK} model=gpt2 | " + "cpus=x " * 1_500_000,
        f"{MARK} | plan=" + "tp:1," * 2_000_000,
        f"{MARK} model=\xff\udcff | asked=\udcff,1,1",
        f"{MARK} | plan=gb:\x00 report=\x1b[2J by=\u0663",
    ],
    ids=range(len(range(len(MARK), len(WHOLE), 3)) + 7),
)
def test_whatever_it_holds_costs_a_line_and_little_time(text: str) -> None:
    began = time.process_time()
    stamp = decode(text)
    assert stamp is not None and all(m.isprintable() and len(m) < 300 for m in stamp.mistakes.values())
    with contextlib.suppress(DirectiveError):
        read_stamp(stamp.directive)
    with contextlib.suppress(UsageError):
        from_admin_comment(text, 7)
    assert time.process_time() - began < 3.0
