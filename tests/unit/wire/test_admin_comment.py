from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergyd.records import Plan, Shape
from synergyd.slurm.directive import canonical, parse_script, parse_stamp
from synergyd.wire.admin_comment import MARK, AdminCommentStamp, read, write
from synergyd.wire.plan_file import from_admin_comment

PLAN = Plan(tp=2, pp=2, dp=2, micro_batch=2, global_batch=16, recompute="full", sequence_parallel=True)
plans = st.builds(
    lambda tp, pp, dp, mb, n, rc, sp, do: Plan(tp, pp, dp, mb, dp * mb * n, rc, sp, do),
    *[st.integers(1, 64)] * 5, st.sampled_from(["none", "selective", "full"]), st.booleans(), st.integers(0, 3),
)  # fmt: skip
words = st.text(
    alphabet=st.characters(codec="ascii", exclude_categories=["C", "Z"], exclude_characters="|"), min_size=1, max_size=9
)
stamps = st.builds(
    AdminCommentStamp,
    st.lists(words, max_size=4).map(" ".join),
    st.none() | st.builds(Shape, st.sampled_from(["", "a100", "h100-80gb"]), st.integers(1, 4096), st.integers(0, 16)),
    st.none() | st.integers(1, 512),
    st.none() | plans,
    st.sampled_from(["", "ctl:7321", "[fe80::1]:7321"]),
    st.none() | st.integers(1, 99),
    st.just(""),
)


def test_the_text_as_documented() -> None:
    stamp = AdminCommentStamp("model=llama2-7b min_gpus=4", Shape("a100", 2, 8), 16, PLAN, "ctl:7321", 32)
    assert write(stamp) == (
        "synergy:1 model=llama2-7b min_gpus=4 | asked=a100,2,8 cpus=16 tasks=32 "
        "plan=tp:2,pp:2,dp:2,mb:2,gb:16,rc:full,sp:1,zs:1 report=ctl:7321"
    )
    assert write(AdminCommentStamp("")) == MARK
    assert write(AdminCommentStamp("", report="a:1")) == "synergy:1 | report=a:1"
    assert write(AdminCommentStamp("", report="a:1", by=64030)) == "synergy:1 | report=a:1 by=64030"
    assert read("synergy:1 | report=a:1 by=64030") == AdminCommentStamp("", report="a:1", by=64030)
    assert read("synergy:1 | report=a:1 by=-3") == AdminCommentStamp("", report="a:1")


@settings(max_examples=150, deadline=None)
@given(stamps)
def test_round_trip(stamp: AdminCommentStamp) -> None:
    text = write(stamp)
    assert read(text) == stamp
    assert text.isprintable() and "\n" not in text


@settings(max_examples=60, deadline=None)
@given(stamps)
def test_the_launcher_reads_the_same(stamp: AdminCommentStamp) -> None:
    handover = from_admin_comment(write(stamp), 7)
    if stamp.plan is None and not stamp.report:
        assert handover is None
    else:
        assert handover is not None and (handover.plan, handover.report) == (stamp.plan, stamp.report)


@pytest.mark.parametrize(
    "text", ["", "synergy:", "synergy:10 min_gpus=4 | plan=tp:1", "x synergy:1", "synergy:1|", "my own note"]
)
def test_others_text_is_none(text: str) -> None:
    assert read(text) is None
    assert from_admin_comment(text, 7) is None


@pytest.mark.parametrize(
    "own",
    ["asked=a100,2", "asked=a100,0,8", "asked=a100,²,8", "asked=a100,x,y", "asked=", "asked=a,1,2,3", "asked=a," + "9" * 5000 + ",1",
     "cpus=0", "cpus=²", "cpus=-1", "cpus=", "tasks=²", "plan=", "plan=tp:0", "plan=tp:²", "plan=sp:maybe", "plan=nonsense",
     "plan=tp:2,xx:1",
     "plan=dp:4,gb:3", "plan=tp:" + "9" * 5000, "unknown=1", "=", "x"],
)  # fmt: skip
def test_fields_without_sense_are_dropped(own: str) -> None:
    assert read(f"{MARK} min_gpus=4 | {own}") == AdminCommentStamp("min_gpus=4")
    assert read(f"{MARK} | {own} report=ctl:1") == AdminCommentStamp("", report="ctl:1")


def test_a_user_cannot_write_the_daemons_part_through_the_directive() -> None:
    directive = parse_script("#!/bin/sh\n#SYNERGY checkpoint='/x | asked=a100,64,8 plan=tp:8'\n")
    assert directive is not None
    comment = canonical(directive).removeprefix(MARK).strip()
    stamp = AdminCommentStamp(comment, Shape("a100", 1, 1))
    assert read(write(stamp)) == stamp
    assert parse_stamp(write(stamp)) == directive
