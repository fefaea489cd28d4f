"""`synergyctl simulate` on made-up jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError
from synergy_sim.cli import simulate as simulate_module
from synergy_sim.cli.simulate import parse_groups, parse_policies, simulate_verb, with_costs
from synergy_sim.records import Costs

from synergyd.cli.shared.key_values import FiniteRange
from synergyd.cli.synergyctl import cli

SMALL = ["--trace", "generate:12,1", "--nodes", "2", "--gpus-per-node", "4"]
KEYS = {"jobs", "finished", "avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "restarts_per_job", "worst_ftf"}


@pytest.mark.slow
def test_json_holds_every_policy_and_the_bound(tmp_path: Path) -> None:
    path, picture = tmp_path / "out.json", tmp_path / "out.png"
    arguments = [*SMALL, "--policy", "tiresias,fifo", "--json", str(path), "--plot", str(picture)]
    done = CliRunner().invoke(cli, ["simulate", *arguments])
    assert (done.exit_code, done.exception) == (0, None)
    assert "no scheduler can beat" in done.output and "tiresias" in done.output
    found = json.loads(path.read_text())
    assert list(found["policies"]) == ["tiresias", "fifo"]
    for one in found["policies"].values():
        assert set(one) >= KEYS | {"unfair_share", "decision_ms_median"}
        assert one["jobs"] == one["finished"] == 12
        assert one["avg_jct_s"] >= found["lower_bound_avg_jct_s"] > 0
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_json_on_stdout_is_all_there_is() -> None:
    done = CliRunner().invoke(simulate_verb, [*SMALL, "--policy", "fifo", "--json", "-"])
    assert json.loads(done.stdout)["policies"]["fifo"]["finished"] == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "none"], "--trace: 'none' is not KIND:PATH"),
        (["--trace", "pollux:/nowhere.csv"], "/nowhere.csv: can't be read"),
        ([*SMALL, "--policy", "best"], "--policy: no policy is called 'best'"),
        ([*SMALL, "--types", "a100=2"], "--types: 'a100=2' is not TYPE=NODESxGPUS"),
        ([*SMALL, "--types", "a100=2x4,t4=1x1", "--policy", "tiresias"], "--policy: tiresias knows one GPU type only"),
        ([*SMALL, "--set", "RestartCost=30"], "--set: restartcost has an option of its own; give --resize-cost"),
        ([*SMALL, "--epoch", "nan"], "--set: Epoch=nan is not right; Epoch takes 1 s to 1 day"),
        ([*SMALL, "--fairness=inf"], "--set: Fairness=inf is not right"),
        ([*SMALL, "--set", "MaxGrowth=2"], "--set: MaxGrowth has no effect any more; a job grows where it gains"),
        ([*SMALL, "--set", "ShortFirst=9"], "--set: ShortFirst=9 is not right"),
        ([*SMALL, "--policy", "fifo", "--json", "/nowhere/x.json"], "--json: /nowhere/x.json can't be written"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(simulate_verb, arguments)
    assert done.exit_code == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("option", ["--start-cost", "--resize-cost"])
@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_numbers_are_finite(option: str, text: str) -> None:
    done = CliRunner().invoke(simulate_verb, [*SMALL, "--policy", "fifo", option, text])
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    wrong = "is not a finite number" if text == "nan" else "is not in the range"
    assert done.stderr.splitlines()[-1].startswith(f"Error: Invalid value for '{option}': {text} {wrong}")


def test_an_unbounded_range_takes_no_infinity() -> None:
    with pytest.raises(click.BadParameter, match="inf is not a finite number"):
        FiniteRange(min=0).convert("inf", None, None)
    assert FiniteRange(min=0).convert("1e300", None, None) == 1e300


def test_formatting_of_the_options() -> None:
    assert parse_groups("a100=8x8,t4=16x4") == {"a100": (8, 8), "t4": (16, 4)}
    for text in ("a100=0x8", "a100=8x", "=8x8", "a=1x1,a=1x1"):
        with pytest.raises(UsageError, match="--types"):
            parse_groups(text)
    assert parse_policies("fifo, synergy,fifo") == ["fifo", "synergy"]
    assert with_costs(Costs(), None, None) == Costs()
    assert with_costs(Costs(), 5.0, 60.0) == Costs(5.0, 16.0, 4.0, 40.0)


@pytest.mark.slow
def test_a_run_in_a_pipe_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_module, "SILENT_S", 0.0)
    done = CliRunner().invoke(simulate_verb, [*SMALL, "--policy", "fifo", "--json", "-"])
    assert re.search(r"^fifo: \d+ of 12 jobs at \d+\.\d h$", done.stderr, re.MULTILINE)
