"""Reservations out of scontrol's text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergyd.slurm.parsed.reservations import SHIELD_S, Shield, read_reservations, read_shields

# as 22.05.8 printed them
MAINT = (
    "ReservationName=maint StartTime=1795320772 EndTime=1795321072 Duration=00:05:00 Nodes=n[2-3] NodeCnt=2 CoreCnt=128 "
    "Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES TRES=cpu=128 Users=root Groups=(null) Accounts=(null) "
    "Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)"
)
CPUS = {"n1": 64, "n2": 64, "n3": 64}


def test_a_reservation_of_whole_nodes() -> None:
    (found,) = read_reservations(MAINT + "\n", CPUS)
    assert (found.name, found.start_s, found.end_s) == ("maint", 1795320772.0, 1795321072.0)
    assert found.nodes == {"n2", "n3"}


@pytest.mark.parametrize(
    "text",
    [
        "No reservations in the system\n",
        "",
        MAINT.replace("Nodes=n[2-3]", "Nodes=(null)"),
        MAINT.replace("StartTime=1795320772", "StartTime=Unknown"),
        MAINT.replace("EndTime=1795321072", "EndTime=1795320772"),
        MAINT.replace("n[2-3]", "n[2-"),
    ],
)
def test_what_bars_nobody_from_whole_nodes(text: str) -> None:
    assert read_reservations(text, CPUS) == ()


@pytest.mark.parametrize(
    ("text", "bars", "holds", "ends_jobs"),
    [
        (MAINT, True, "", True),
        (MAINT.replace("TRES=cpu=128", "TRES=cpu=4"), False, "a part of its nodes' CPUs is reserved", True),
        (MAINT.replace("MAINT,", "MAGNETIC,"), False, "", True),
        (MAINT.replace("MAINT,", "FLEX,"), True, "", False),
        (MAINT.replace("MAINT,", "REPLACE_DOWN,"), True, "", True),
        (MAINT.replace("MAINT,", "REPLACE,"), True, "Slurm replaces its nodes as jobs take them (REPLACE)", True),
    ],
)
def test_what_its_flags_mean(text: str, bars: bool, holds: str, ends_jobs: bool) -> None:
    (found,) = read_reservations(text, CPUS)
    assert (found.bars, found.holds, found.ends_jobs) == (bars, holds, ends_jobs)


def test_a_later_word_forges_nothing() -> None:
    (found,) = read_reservations(MAINT + " Comment=x StartTime=1 Nodes=n9", CPUS)
    assert found.start_s == 1795320772.0 and found.nodes == {"n2", "n3"}


_words = st.sampled_from(
    ["ReservationName=", "StartTime=", "EndTime=", "Nodes=", "TRES=", "cpu=", "n[1-3]", "17", " ", "\n", "[", ","]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_words | st.text(max_size=4), max_size=30).map("".join))
def test_any_text_gives_reservations(text: str) -> None:
    for found in read_reservations(text, CPUS) + read_reservations(MAINT[:40] + text, CPUS):
        assert found.nodes and found.end_s > found.start_s


# as 22.05.8 printed it
SHIELD = (
    "ReservationName=synergy-7 StartTime=1795320772 EndTime=1795321072 Duration=00:05:00 Nodes=n1 NodeCnt=1 CoreCnt=64 "
    "Features=(null) PartitionName=main Flags=OVERLAP,IGNORE_JOBS,SPEC_NODES TRES=cpu=64 Users=root Groups=(null) Accounts=(null)"
)


def test_our_own_reservations_are_no_reservations_to_a_decision() -> None:
    assert read_shields(f"{MAINT}\n{SHIELD}\n") == (Shield(7, "root", frozenset({"n1"})),)
    assert [r.name for r in read_reservations(f"{MAINT}\n{SHIELD}\n", CPUS)] == ["maint"]


@pytest.mark.parametrize(
    "text",
    [
        SHIELD.replace("synergy-7", "synergy-x"),
        SHIELD.replace("synergy-7", "my-synergy-7"),
        SHIELD.replace("EndTime=1795321072", f"EndTime={1795320772 + SHIELD_S + 1}"),
        SHIELD.replace("IGNORE_JOBS,", ""),
        SHIELD.replace("Users=root", "Users=(null),ann"),
        SHIELD.replace("Users=root", "Users="),
    ],
)
def test_what_somebody_else_made_is_none_of_ours(text: str) -> None:
    assert read_shields(text) == () and len(read_reservations(text, CPUS)) == 1
