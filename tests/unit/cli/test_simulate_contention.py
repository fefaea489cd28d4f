"""`synergyctl simulate --workload contention`."""

from __future__ import annotations

import json
import statistics

import pytest
from click.testing import CliRunner
from synergy_sim.cli.contention import mean_over_seeds
from synergy_sim.cli.simulate import simulate_verb
from synergy_sim.contention.run import Setup, run_contention

from synergyd.cli.synergyctl import cli

SMALL = ["--workload", "contention", "--jobs", "12", "--scale", "2"]


def test_the_table_and_the_json_tell_what_was_run() -> None:
    arguments = [
        *SMALL,
        "--policy",
        "srsf-1, first-fit+ada-srsf,look-ahead",
        "--seeds",
        "2",
        "--seed",
        "7",
        "--json",
        "-",
    ]
    done = CliRunner().invoke(cli, ["simulate", *arguments])
    assert (done.exit_code, done.exception) == (0, None)
    told = json.loads(done.stdout)
    assert list(told["policies"]) == ["srsf-1", "first-fit+ada-srsf", "look-ahead"]
    setup = Setup(jobs=12, scale=2.0)
    assert told["setup"]["nodes"] == 16 and told["setup"]["scale"] == 2.0
    for name, one in told["policies"].items():
        own = [run_contention([name], seed, setup)[0].jct_s for seed in (7, 8)]
        assert [run["mean_jct_s"] for run in one["runs"]] == own
        assert one["mean_jct_s"] == statistics.fmean(own) and one["mean_jct_sd_s"] == statistics.stdev(own)
    assert told["policies"]["srsf-1"]["of_first"] == 1.0
    shown = CliRunner().invoke(cli, ["simulate", *arguments[:-2]])
    assert "12 jobs on 16 x 4 GPUs, 10gbe; 2 seeds from 7" in shown.output
    assert "ada-srsf" in shown.output and "first-fit" in shown.output


def test_one_node_has_no_links_to_share() -> None:
    runs = run_contention(["srsf-1"], 1, Setup(jobs=4, scale=1, nodes=1))
    told = mean_over_seeds(runs, runs)
    assert told["multi_node_jct_s"] is None and told["sending_s"] == 0.0 and told["mean_jct_sd_s"] == 0.0
    done = CliRunner().invoke(
        simulate_verb, ["--workload=contention", "--jobs", "4", "--nodes", "1", "--policy", "srsf-1"]
    )
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "traffic"], "--workload: no workload is called 'traffic'; one of: contention"),
        ([*SMALL, "--policy", "fifo"], "--policy: no discipline 'fifo'; some of: srsf-1, srsf-2, srsf-3, ada-srsf, look-ahead"),
        ([*SMALL, "--policy", "best-fit+srsf-1"], "--policy: no placement 'best-fit'"),
        ([*SMALL, "--policy", ","], "--policy: names none"),
        ([*SMALL, "--link", "token-ring"], "--set link: no figures for 'token-ring'; one of 1gbe"),
        ([*SMALL, "--load", "0"], "--set load: 0.0 is no use; a number above 0"),
        ([*SMALL, "--link", "nvlink4"], "--set link: no figures for 'nvlink4'; one of 1gbe, 10gbe"),
        ([*SMALL, "--scale", "nan"], "--set scale: nan is no use"),
        ([*SMALL, "--penalty", "inf"], "--set penalty: inf is no use"),
        ([*SMALL, "--penalty", "-1"], "--set penalty: -1.0 is no use"),
        ([*SMALL, "--policy", "srsf-1", "--json", "/nowhere/x.json"], "--json: /nowhere/x.json can't be written"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["simulate", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_options_of_the_one_are_not_those_of_the_other() -> None:
    done = CliRunner().invoke(cli, ["simulate", *SMALL, "--trace", "generate:4"])
    assert done.exit_code == 2 and "No such option" in done.stderr
    done = CliRunner().invoke(cli, ["simulate", "--scale", "2", "--trace", "generate:4"])
    assert done.exit_code == 2 and "No such option" in done.stderr
    assert "look-ahead" in CliRunner().invoke(cli, ["simulate", "--workload", "contention", "--help"]).output
    assert "--workload contention" in CliRunner().invoke(cli, ["simulate", "--help"]).output
