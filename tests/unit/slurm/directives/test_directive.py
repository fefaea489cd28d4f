"""The directive from both sides: synergyd/slurm/directives/directive.py and slurm_plugins/synergy.lua over the same cases."""

from __future__ import annotations

import dataclasses
import json
import os
import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synergy_core.records import Directive
from synergy_core.wire import admin_comment
from synergy_core.wire.admin_comment import AdminCommentStamp

from synergyd.slurm.directives import grammar
from synergyd.slurm.directives.directive import DirectiveError, directive_key_values, notes, parse_script, read_stamp
from tests.unit.plugin.lua_runtimes import ROOT, checkers

CASES: list[dict[str, Any]] = json.loads((ROOT / "tests" / "cases" / "directives.json").read_text())
LUAS = checkers()
QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


def canonical(directive: Directive) -> str:
    return admin_comment.encode(AdminCommentStamp(directive_key_values(directive)))


def parse_stamp(text: str) -> Directive | None:
    stamp = admin_comment.decode(text)
    return None if stamp is None else read_stamp(stamp.directive)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    if before is None:
        os.environ.pop("TZ")
    else:
        os.environ["TZ"] = before
    time.tzset()


def script_of(case: dict[str, Any]) -> str:
    parts = case["script"] if isinstance(case["script"], list) else [case["script"]]
    return "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts)


def script_bytes(script: str) -> bytes:
    try:
        return script.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return script.encode("utf-8", "surrogatepass")


def expected(case: dict[str, Any]) -> Directive | None:
    if case["ok"] is None:
        return None
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in case["ok"].items()
    }
    return Directive(**fields)


def python_says(script: str) -> bytes:
    """The Python reader's answer in the form of the Lua module's check()."""
    try:
        directive = parse_script(script)
    except DirectiveError as error:
        return b"error " + str(error).encode()
    return b"none" if directive is None else b"ok " + canonical(directive).encode("ascii")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_python_reads_the_cases(case: dict[str, Any]) -> None:
    script = script_of(case)
    if "error" in case:
        with pytest.raises(DirectiveError) as caught:
            parse_script(script)
        text = str(caught.value)
        assert text == case["error"]
        assert text.isascii() and text.isprintable() and len(text) <= 500
        return
    directive = parse_script(script)
    assert directive == expected(case)
    if directive is not None:
        assert canonical(directive) == case["stamp"]
        assert parse_stamp(case["stamp"]) == directive
        assert parse_stamp(case["stamp"] + " | tp=999 \x00 anything") == directive


@pytest.mark.slow
@pytest.mark.skipif(not LUAS, reason="neither lua5.3 nor lupa is installed")
@pytest.mark.parametrize("lua", LUAS)
def test_lua_reads_the_cases(lua: str) -> None:
    answers = LUAS[lua]([script_bytes(script_of(case)) for case in CASES])
    assert len(answers) == len(CASES)
    for case, answer in zip(CASES, answers, strict=True):
        passed = "ok " + case["stamp"] if "stamp" in case else "none"
        assert answer.decode() == ("error " + case["error"] if "error" in case else passed), case["name"]


def test_every_key_and_message_of_the_readers_has_a_case() -> None:
    said = {name for case in CASES for name in (case.get("ok") or {})}
    assert said == {field.name for field in dataclasses.fields(Directive)}
    errors = " ".join(case.get("error", "") for case in CASES)
    of_plugin = {
        "array",
        "het",
        "het_first",
        "tasks",
        "gpus",
        "no_gpus",
        "mixed_gpus",
        "one_size",
        "no_requeue",
        "internal",
        "late",
        "no_launch",
        "unread_line",
        "odd_line",
        "retired",  # a remark: the line is read
        "retired_word",
    }
    for code, (what, _right) in grammar.MESSAGES.items():
        if code in of_plugin | {"stamp"}:
            continue
        longest = max((literal for literal, *_ in string.Formatter().parse(what)), key=len)
        assert longest in errors, code


def test_the_committed_lua_grammar_is_up_to_date() -> None:
    committed = (ROOT / "slurm_plugins" / "synergy_grammar.lua").read_text(encoding="ascii")
    assert committed == grammar.lua(), (
        "run python -m synergyd.slurm.directives.grammar --lua --write slurm_plugins/synergy_grammar.lua"
    )


def test_grammar_writes_the_file_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grammar.main(["--lua", "--write", str(tmp_path / "g.lua")])
    grammar.main(["--lua"])
    assert capsys.readouterr().out == (tmp_path / "g.lua").read_text()


# Characters that decide something in a directive, and a few that should not.
PIECES = st.one_of(
    st.sampled_from([key.name for key in grammar.KEYS]),
    st.sampled_from(
        [
            "#SYNERGY ",
            "\n#SYNERGY ",
            "\n",
            "=",
            " ",
            "\t",
            '"',
            "'",
            "#",
            ":",
            ",",
            ".",
            "-",
            "$",
            "~",
            "%",
            "0",
            "1",
            "12",
        ]
    ),
    st.sampled_from(
        ["yes", "no", "2026-12-01T12:00", "Z", "+01:00", "a100", "/c", "64:128", "1.50", "2026-02-29T00:00"]
    ),
    st.text(max_size=3),
)
PAIRS = st.builds(
    lambda key, value, quote: f"{key}={quote}{value}{quote} ",
    st.sampled_from([key.name for key in grammar.KEYS]),
    st.one_of(
        st.sampled_from(["1", "2", "8", "64:128", "1.50", "yes", "no", "a100,h100", "/c d", "2027-03-28T02:30", "1.0"]),
        st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,7}|:[0-9]{1,4})?", fullmatch=True),
        st.from_regex(
            r"20[0-9]{2}-(0[0-9]|1[0-3])-[0-3][0-9]T[0-2][0-9]:[0-6][0-9](:[0-6][0-9])?(Z|[+-][01][0-9]:[0-6]0)?"
        ),
        st.text(max_size=5),
    ),
    st.sampled_from(["", '"', "'"]),
)
SCRIPTS = st.lists(st.one_of(PIECES, PAIRS), max_size=12).map(lambda parts: "#SYNERGY " + "".join(parts))


@pytest.mark.slow
@pytest.mark.skipif(not LUAS, reason="neither lua5.3 nor lupa is installed")
@pytest.mark.parametrize("lua", [name for name in LUAS if name != "lua5.3 program"])
@settings(max_examples=200, deadline=None, suppress_health_check=QUIET)
@given(script=SCRIPTS)
def test_both_readers_agree_on_any_script(lua: str, script: str) -> None:
    assert LUAS[lua]([script_bytes(script)]) == [python_says(script)]


# Scripts around the bound on the header, with everything that decides something within a few bytes of it.
AROUND = st.lists(
    st.sampled_from(["\n", "#", " ", "#SYNERGY", "\n#SYNERGY", "\n#SYNERGY tp=2\n", "X", "\ntrue\n", "\u00fc", "\r"]),
    min_size=1,
    max_size=8,
).map("".join)


@pytest.mark.slow
@pytest.mark.skipif(not LUAS, reason="neither lua5.3 nor lupa is installed")
@pytest.mark.parametrize("lua", [name for name in LUAS if name != "lua5.3 program"])
@settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
@given(top=AROUND, filler=st.sampled_from("#\n Y"), short=st.integers(-2, 40), end=AROUND)
def test_both_readers_agree_around_the_bound_on_the_header(
    lua: str, top: str, filler: str, short: int, end: str
) -> None:
    script = "#" + top + filler * (grammar.MAX_HEADER - len(top.encode()) - short) + end
    assert LUAS[lua]([script_bytes(script)]) == [python_says(script)]


@pytest.mark.skipif("lupa lua51" not in LUAS, reason="lupa is not installed")
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
def test_both_readers_agree_on_local_time(zone: str) -> None:
    os.environ["TZ"] = zone
    time.tzset()
    # Winter, summer, an hour that Berlin's change of clocks skips, one that it repeats.
    scripts = [f"#SYNERGY deadline={day}" for day in ("2027-01-05T12:00", "2027-07-05T12:00:01")]
    scripts += [f"#SYNERGY deadline={day}" for day in ("2027-03-28T02:30", "2027-10-31T02:30", "2027-03-14T02:15")]
    assert LUAS["lupa lua51"]([script_bytes(script) for script in scripts]) == [
        python_says(script) for script in scripts
    ]


def paths(limit: int) -> st.SearchStrategy[str]:
    plain = st.text(st.sampled_from(string.ascii_letters + '/._ |%=#"\\;&*ü模'), min_size=1, max_size=limit)
    return plain.filter(lambda text: not text.startswith("-"))


@st.composite
def directives(draw: st.DrawFn) -> Directive:
    """Any directive that a script can say."""
    tp, pp = draw(st.sampled_from([None, 1, 2, 8])), draw(st.sampled_from([None, 1, 2, 3]))
    per = (tp or 1) * (pp or 1)
    most = draw(st.none() | st.integers(per, 4096))
    least = draw(st.none() | st.integers(1, most // per * per if most else 65536))
    batch = draw(st.none() | st.tuples(st.integers(1, 999), st.integers(999, 16777216)))
    resize = draw(st.booleans())
    names = st.lists(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}", fullmatch=True), max_size=4, unique=True)
    return Directive(
        model=draw(st.none() | paths(40)),
        min_gpus=least,
        max_gpus=most,
        gpu_types=tuple(draw(names)),
        global_batch=batch,
        adapt=batch is None and draw(st.booleans()),
        micro_batch=draw(st.none() | st.integers(1, 999)),
        tp=tp,
        pp=pp,
        weight=draw(st.integers(1_000, 1_000_000_000)) / 1_000_000,
        checkpoint=draw(st.none() | paths(40)),
        resize=resize,
        reshard=draw(st.sampled_from([None, False, True] if resize else [None, False])),
        deadline_s=draw(st.none() | st.integers(946684800, 4102444799).map(float)),
        continues=draw(st.integers(0, 1000)),
    )


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(directive=directives(), rest=st.text(max_size=20))
def test_stamp_reads_back(directive: Directive, rest: str) -> None:
    stamp = canonical(directive)
    assert stamp.isascii() and stamp.isprintable() and len(stamp) <= grammar.MAX_STAMP
    assert parse_stamp(stamp) == directive
    assert parse_stamp(stamp + " | " + rest) == directive


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60) | SCRIPTS.map(lambda script: "synergy:1 " + script))
def test_any_admin_comment_gives_a_directive_or_one_line(text: str) -> None:
    try:
        directive = parse_stamp(text)
    except DirectiveError as error:
        assert "\n" not in str(error) and str(error).startswith("AdminComment: ")
        return
    if directive is not None:
        assert parse_stamp(canonical(directive)) == directive


@pytest.mark.parametrize(
    "text", ["", "nvidia idle reaper", '{"a": 1}', " | synergy:1 tp=2", "synergy:2 tp=2", "synergy:x"]
)
def test_other_peoples_comments_are_no_stamp(text: str) -> None:
    assert parse_stamp(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "synergy:1 tp",
        "synergy:1 tp=two",
        "synergy:1 model=%zz",
        "synergy:1 model=%0a",
        "synergy:1 tp=1 tp=1",
        "synergy:1 tp=",
    ],
)
def test_a_damaged_stamp_is_an_error(text: str) -> None:
    with pytest.raises(DirectiveError, match=r"^AdminComment: "):
        parse_stamp(text)


def test_canonical_refuses_what_no_script_can_say() -> None:
    for directive in (
        Directive(tp=0),
        Directive(weight=0),
        Directive(checkpoint="$HOME"),
        Directive(gpu_types=("a b",)),
    ):
        with pytest.raises(DirectiveError):
            canonical(directive)


def test_notes_point_at_lines_that_are_not_read() -> None:
    script = (
        "#!/bin/sh\n#SYNERGY tp=2\n# SYNERGY pp=2\n#synergy: x\n#SYNERGYX\n# synergy is nice\necho\n#SYNERGY tp=4\n"
    )
    assert [line for line, _ in notes(script)] == [3, 4, 6, 8]
    assert "first command" in notes(script)[-1][1]


def test_a_retired_key_is_a_remark_of_check_and_is_read_in_an_old_stamp() -> None:
    script = "#!/bin/bash\n#SYNERGY tp=2 guaranteed=yes\nsrun x\n"
    assert notes(script) == ((2, "guaranteed= has no effect any more; drop it: the next release refuses it"),)
    assert read_stamp([("tp", "2"), ("guaranteed", "yes")]) == parse_script(script) == Directive(tp=2)


def test_a_kind_of_communication_that_is_gone_is_told_and_runs_exact() -> None:
    script = "#!/bin/bash\n#SYNERGY comm=delayed\n#SYNERGY tp=2\nsrun x\n"
    right = "drop it, or write comm=local,compressed"
    assert notes(script) == ((2, f"comm=delayed has no effect any more; {right}"),)
    assert read_stamp([("comm", "delayed")]).comm == parse_script(script).comm == ()  # type: ignore[union-attr]
    assert read_stamp([("comm", "delayed,local")]).comm == ("local",)
