"""The words for what replicas exchange."""

from dataclasses import asdict

import pytest
from synergy_core.errors import UsageError
from synergy_core.exchange import EXACT, KINDS, Exchange, parse_exchange
from synergy_core.records import Directive, Plan
from synergy_core.wire.codec import decode
from synergy_core.wire.plan import PLAN_CHECKS, plan_from_text

SAID = {
    "exact": EXACT,
    "local:8": Exchange("local", period=8),
    "local:10000": Exchange("local", period=10_000),
    "compressed:bf16": Exchange("compressed"),
}


@pytest.mark.parametrize("text", SAID)
def test_is_read_as_it_is_written(text: str) -> None:
    assert parse_exchange(text, "here") == SAID[text]
    assert str(SAID[text]) == text


def test_every_kind_has_a_word() -> None:
    assert {way.kind for way in SAID.values()} == set(KINDS)


@pytest.mark.parametrize("text", ["delayed", "local:8:outer", "compressed:powersgd-4"])
def test_what_the_last_release_had_is_exact(text: str) -> None:
    assert parse_exchange(text, "here") == EXACT
    plan = asdict(Plan(dp=2, global_batch=4)) | {"exchange": text}
    assert decode(Plan, plan, "stored", PLAN_CHECKS) == Plan(dp=2, global_batch=4)
    assert plan_from_text(f"tp:1,pp:1,dp:2,mb:1,gb:4,ex:{text}") == Plan(dp=2, global_batch=4)
    assert decode(Directive, {"comm": ["local", "delayed"]}, "stored").comm == ("local",)


WRONG = ["", "local", "local:0", "local:10001", "local:8:inner", "local:٣", "exact\n", "compressed", "compressed:fp8"]


@pytest.mark.parametrize("text", WRONG)
def test_anything_else_is_refused_with_what_is_right(text: str) -> None:
    with pytest.raises(UsageError, match="local:8"):
        parse_exchange(text, "SYNERGY_COMM")
