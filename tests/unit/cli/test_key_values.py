"""`--set KEY=VALUE`, and the options of the last release that became keys of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError

from synergyd.cli.planning.plan import plan
from synergyd.cli.shared.key_values import key_values

TYPES: dict[str, click.ParamType] = {"tp": click.IntRange(1), "on": click.BOOL}  # type: ignore[type-arg]
GOOD = ("--model", "gpt2", "--gpus", "8", "--gpu-type", "a100", "--global-batch", "64", "--top", "1", "--json")


def test_values_have_their_types_and_the_last_counts() -> None:
    assert key_values(["tp=2", "on=yes", "tp=4"], TYPES) == {"tp": 4, "on": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pt=2", "--set: no key is called 'pt'; one of: tp, on"),
        ("tp=0", "--set tp: 0 is not in the range x>=1."),
        ("tp", "--set tp: '' is not a valid integer"),
    ],
)
def test_a_wrong_value_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as told:
        key_values([text], TYPES)
    assert str(told.value).startswith(message)


@pytest.mark.parametrize("old", [("--tp", "2", "--micro-batch=4"), ("--micro-batch", "4", "--tp=2")])
def test_options_of_the_last_release_still_work(old: Sequence[str]) -> None:
    rows = []
    for words in (old, ("--set", "tp=2", "--set", "micro_batch=4")):
        done = CliRunner().invoke(plan, [*GOOD, *words])
        assert done.exit_code == 0, done.output
        rows.append(json.loads(done.output)["counts"][0]["rows"])
    assert rows[0] == rows[1]
    told = rows[0][0]["cell"]["plan"]
    assert (told["tp"], told["micro_batch"]) == (2, 4)


def test_an_old_option_without_its_value_is_told() -> None:
    done = CliRunner().invoke(plan, [*GOOD, "--tp"])
    assert done.exit_code == 2 and "Traceback" not in done.output
