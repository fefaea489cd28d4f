"""10,000 scripts through both readers of the directive: they agree to the letter. And AdminComment's stamps."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from synergy_core.wire import admin_comment, plan_file

from synergyd.slurm.directives.directive import DirectiveError, read_stamp
from tests.unit.fuzz.checking import check, corpus
from tests.unit.fuzz.generators import mutations
from tests.unit.plugin.lua_runtimes import in_process
from tests.unit.slurm.directives.test_directive import CASES, python_says, script_bytes, script_of

SCRIPTS = [script for case in CASES if len(script := script_bytes(script_of(case))) < 1000]
STAMPS = [
    *(case["stamp"].encode() for case in CASES if "stamp" in case),
    b"synergy:1 model=llama2-7b min_gpus=4 | asked=a100,2,8 cpus=16 tasks=4 plan=tp:4,pp:1,dp:2,mb:1,gb:32,rc:none,sp:1,zs:1 "
    b"note=by%20hand report=ctl:7321 by=64030 links=[::1]:7322",
    b"synergy:1 checkpoint=/scratch/%C3%BC | plan=tp:2,pp:1,dp:4,mb:1,gb:32,rc:full,sp:0,zs:1,vp:2,cp:1,ep:2,pr:fp8",
]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """The machine's time zone: both readers ask libc about local times."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("lua", "zone", "count"),
    [("lua51", "UTC", 10_000), ("lua51", "America/Sao_Paulo", 2_000), ("lua53", "UTC", 2_000), ("lua54", "UTC", 2_000)],
    indirect=["zone"],
)
def test_both_readers_say_the_same(lua: str, zone: None, count: int) -> None:
    check_lua = in_process(lua)
    if check_lua is None:
        pytest.skip(f"lupa has no {lua} here")
    scripts = [*corpus("directive"), *mutations(SCRIPTS, count, 1 + count)]
    kinds = set()
    for script, theirs in zip(scripts, check_lua(scripts), strict=True):
        ours = python_says(script.decode("utf-8", "surrogateescape"))
        assert ours == theirs, script
        kinds.add(ours.partition(b" ")[0])
        text = ours.decode("ascii")
        assert len(text) <= 1100 and text.isprintable()
    assert kinds == {b"none", b"ok", b"error"}


def test_stamps() -> None:
    def read(given: bytes) -> None:
        text = given.decode("utf-8", "surrogateescape")
        stamp = admin_comment.decode(text)
        for mistake in () if stamp is None else stamp.mistakes.values():
            assert len(mistake) < 1600 and mistake.isprintable()
        again = None if stamp is None else admin_comment.decode(admin_comment.encode(stamp))
        directive = None if stamp is None else read_stamp(stamp.directive)
        if directive is not None:
            assert again is not None and read_stamp(again.directive) == directive

    check(read, "admin_comment", mutations(STAMPS, 10_000, 2), (DirectiveError,))


def test_the_plan_in_a_stamp() -> None:
    check(
        lambda given: plan_file.from_admin_comment(given.decode("utf-8", "surrogateescape"), 7),
        "admin_comment",
        mutations(STAMPS, 10_000, 3),
    )
