"""`synergyctl plan`: tables, JSON, exit codes."""

import json

import pytest
from click.testing import CliRunner

from synergyd.cli.plan import gpu_counts, plan
from synergyd.errors import UsageError

GOOD = ["--model", "gpt2", "--gpu-type", "a100", "--gpus", "1:8", "--global-batch", "64"]


def run(*argv: str):
    return CliRunner().invoke(plan, list(argv))


def test_json_has_every_gpu_count() -> None:
    result = run(*GOOD, "--top", "2", "--json")
    assert result.exit_code == 0
    data = json.loads(result.output)
    assert [c["gpus"] for c in data["counts"]] == [1, 2, 4, 8]
    row = data["counts"][3]["rows"][0]
    assert row["cell"]["plan"]["tp"] * row["cell"]["plan"]["pp"] * row["cell"]["plan"]["dp"] == 8
    assert sum(row["time"].values()) == pytest.approx(row["cell"]["step_s"])


def test_table_and_unknown_type() -> None:
    result = run("--model", "gpt2", "--gpu-type", "tpu", "--gpus", "2", "--global-batch", "16")
    assert result.exit_code == 0
    assert "gpt2 on 2 tpu" in result.output and "note: GPU type 'tpu' is not known" in result.output
    assert "plans fit" in result.output


def test_nothing_fits_is_exit_one_and_says_why() -> None:
    result = run("--model", "gpt3-175b", "--gpu-type", "v100", "--gpus", "8")
    assert result.exit_code == 1 and "does not fit v100" in result.output


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--model", "nope"], "presets are"),
        (["--gpus", "8:1"], "--gpus"),
        (["--gpus", "0"], "--gpus"),
        (["--gpus", "x"], "--gpus"),
        (["--gpus", "99999999"], "too many"),
        (["--gpus", "²"], "--gpus"),
        (["--global-batch", "5:1"], "--global-batch"),
        (["--global-batch", ""], "--global-batch"),
        (["--gpus-per-node", "0"], "gpus-per-node"),
        (["--tp", "5"], "tp may be 1, 2, 4"),
        (["--pp", "5"], "pp may be"),
        (["--micro-batch", "3"], "micro_batch=3 does not divide"),
        (["--noise-scale", "nan"], "noise-scale"),
        (["--noise-scale", "-1"], "noise-scale"),
    ],
)
def test_bad_input_is_one_line_and_exit_two(change: list[str], says: str) -> None:
    result = run(*GOOD, *change)
    assert result.exit_code == 2, result.output
    assert says in result.output and result.output.count("\n") == 1 and "Traceback" not in result.output


def test_gpu_ranges_double() -> None:
    assert gpu_counts("8:512", 8) == [8, 16, 32, 64, 128, 256, 512]
    assert gpu_counts("8:100", 8) == [8, 16, 32, 64, 96]
    assert gpu_counts("1:16", 6) == [1, 2, 4, 6, 12]
    assert gpu_counts("20:48", 8) == [24, 32, 48]
    assert gpu_counts("3", 8) == [3]
    with pytest.raises(UsageError, match="no whole nodes of 8"):
        gpu_counts("9:15", 8)


def test_help_is_worth_reading() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for word in ("Examples:", "--noise-scale", "Exit code", "goodput"):
        assert word in result.output
