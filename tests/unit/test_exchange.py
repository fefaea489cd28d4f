"""The words for what replicas exchange."""

import pytest

from synergyd.errors import UsageError
from synergyd.exchange import EXACT, KINDS, Exchange, exchange

SAID = {
    "exact": EXACT,
    "local:8": Exchange("local", period=8),
    "local:10000:outer": Exchange("local", period=10_000, outer=True),
    "delayed": Exchange("delayed"),
    "compressed:bf16": Exchange("compressed"),
    "compressed:powersgd-4": Exchange("compressed", rank=4),
}


@pytest.mark.parametrize("text", SAID)
def test_is_read_as_it_is_written(text: str) -> None:
    assert exchange(text, "here") == SAID[text]
    assert str(SAID[text]) == text


def test_every_kind_has_a_word() -> None:
    assert {way.kind for way in SAID.values()} == set(KINDS)


WRONG = ["", "local", "local:0", "local:10001", "local:8:inner", "local:٣", "exact\n"]
WRONG += ["compressed", "compressed:powersgd-0", "compressed:powersgd-65"]


@pytest.mark.parametrize("text", WRONG)
def test_anything_else_is_refused_with_what_is_right(text: str) -> None:
    with pytest.raises(UsageError, match="local:64:outer"):
        exchange(text, "SYNERGY_COMM")
