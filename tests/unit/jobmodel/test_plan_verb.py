"""`synergyctl plan`: tables, JSON, exit codes."""

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from synergy_core.errors import UsageError
from synergy_core.link_names import LINK_CLASSES
from synergy_core.records import Plan

from synergyd.cli.planning.plan import gpu_counts, plan
from synergyd.cli.planning.plot import best, curves, split
from synergyd.jobmodel.model.hardware import link_figures
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.plan_table import plan_table

GOOD = ["--model", "gpt2", "--gpu-type", "a100", "--gpus", "1:8", "--global-batch", "64"]


def run(*argv: str) -> Result:
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


def test_columns_are_whole_at_80_and_the_first_view_has_seven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run(
        "--model", "llama3-405b", "--gpu-type", "h100", "--gpus", "2048", "--global-batch", "2048", "--top", "4"
    )
    lines = result.output.splitlines()
    headers = [line for line in lines if "tokens/s" in line]
    assert all(len(line) <= 80 for line in lines) and "…" not in result.output
    assert len(re.split("  +", headers[0].strip())) == 7
    for word in ("plan", "step s", "+- %", "tokens/s", "MFU %", "OOM %"):
        assert word in headers[0]


def test_the_measurement_that_narrows_the_prediction_most_is_one_line() -> None:
    def sigmas(*argv: str) -> tuple[float, float, str]:
        result = run("--model", "gpt3-13b", "--gpu-type", "a100", "--top", "3", "--set", "tp=2", *argv)
        (line,) = [line for line in result.output.splitlines() if line.startswith("+- ")]
        numbers = re.fullmatch(r"\+- (\d+) % becomes (\d+) % by measuring (.*)", line)
        assert numbers
        return float(numbers[1]), float(numbers[2]), numbers[3]

    unknown, narrowed, _ = sigmas("--gpus", "64", "--set", "pp=4")
    known, _, what = sigmas("--gpus", "64", "--set", "pp=4", "--set", "inter=ib-hdr/8")
    assert narrowed < unknown and known < unknown and "step" in what
    # within a node the network is nothing to measure
    assert sigmas("--gpus", "8")[0] < unknown


def test_kernels_are_assumed_unless_they_are_given() -> None:
    def shown(*argv: str) -> tuple[float, str]:
        options = ("--model", "gpt3-1.3b", "--gpu-type", "a100", "--gpus", "8", "--top", "1")
        data = json.loads(run(*options, *argv, "--json").output)
        return data["counts"][0]["rows"][0]["cell"]["step_s"], run(*options, *argv).output

    fused_s, assumed = shown()
    local_s, known = shown("--set", "kernels=local")
    assert local_s > 1.1 * fused_s
    assert "assumed: fused attention, norms, activations, gradient sums, optimizer" in assumed
    assert "--set kernels=local: no Transformer Engine; fused softmax" in known and "assumed" not in known
    assert " cp 2" not in known  # which needs Transformer Engine


def test_nothing_fits_is_one_line_and_exit_two() -> None:
    argv = ["--model", "gpt3-175b", "--gpu-type", "v100", "--gpus"]
    result = run(*argv, "1:8")
    assert result.exit_code == 2 and result.output.count("\n") == 1
    said = (
        r"8 GPUs: gpt3-175b does not fit v100: the leanest plan \(tp 8, .*\) needs ([0-9.]+) GiB a GPU of 29.5 usable, "
    )
    said += r"([0-9.]+) of it optimizer; more GPUs .* would help; ([0-9]+) GPUs would do"
    found = re.search(said, result.output)
    assert found and float(found[1]) > float(found[2]) > 29.5
    enough = int(found[3])
    assert run(*argv, str(enough)).exit_code == 0 and run(*argv, str(enough // 2)).exit_code == 2
    data = run(*argv, "8", "--json")
    assert data.exit_code == 2 and "does not fit" in json.loads(data.output)["counts"][0]["why_none"]
    # degrees that no count of GPUs can have
    odd = run(*argv, "8", "--global-batch", "7", "--pp", "1", "--micro-batch", "7")
    assert odd.exit_code == 2 and odd.output.count("\n") == 1


def test_the_leanest_plan_that_did_not_fit_is_told() -> None:
    result = run("--model", "llama3-70b", "--gpu-type", "h100", "--gpus", "64", "--top", "1")
    assert result.exit_code == 0
    assert re.search(
        r"the leanest that did not fit: tp \d+, .* needs \d+\.\d GiB a GPU of 77\.1 usable, ", result.output
    )


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
        (["--vpp", "2", "--pp", "1"], "virtual stages need a pipeline"),
        (["--vpp", "5"], "vpp may be 1, 2, 3"),
        (["--cp", "3"], "cp may be 1, 2, 4"),
        (["--ep", "2"], "gpt2's experts: it has none"),
        (["--comm", "locally"], "some of exact, local, compressed"),
        (["--zero", "3", "--pp", "2"], "zero stage 3 with pp=2"),
        (["--precision", "fp8"], "a100 has no fp8"),
        (["--gpus", "9:15"], "no whole nodes of 8"),
        (["--figures", "/nowhere"], "cannot be read"),
        (["--inter", "carrier-pigeon"], "no link is called 'carrier-pigeon'; links are nvlink2"),
        (["--inter", "ib-hdr/0"], "write CLASS/N"),
        (["--inter", "ib-hdr/x"], "write CLASS/N"),
        (["--intra", "-5"], "is no rate"),
        (["--intra", "nan"], "is no rate"),
        (["--set", "kernels=some"], "kernels"),
        (["--set", "kernels=local", "--precision", "fp8"], "fp8 needs Transformer Engine"),
        (["--set", "kernels=local", "--cp", "2"], "cp needs Transformer Engine"),
    ],
)
def test_bad_input_is_one_line_and_exit_two(change: list[str], says: str) -> None:
    result = run(*GOOD, *change)
    assert result.exit_code == 2, result.output
    assert says in result.output and result.output.count("\n") == 1 and "Traceback" not in result.output


DDP = ("--model", "gpt3-1.3b", "--gpu-type", "a100", "--global-batch", "64", "--tp", "1", "--pp", "1", "--zero", "0")


def test_less_communication_is_shown_where_links_are_slow() -> None:
    slow = run(*DDP, "--gpus", "16", "--inter", "10gbe", "--comm", "local,compressed", "--json")
    rows = json.loads(slow.output)["counts"][0]["rows"]
    best = rows[0]["cell"]
    assert best["plan"]["exchange"].startswith(("local:", "compressed:")) and best["efficiency"] < 1
    assert [row["cell"]["goodput"] for row in rows] == sorted((row["cell"]["goodput"] for row in rows), reverse=True)
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    exact = run(*DDP, "--gpus", "16", "--inter", "10gbe", "--json")
    (first, *_) = json.loads(exact.output)["counts"][0]["rows"]
    assert first["cell"]["plan"]["exchange"] == "exact" and first["cell"]["step_s"] > best["step_s"]
    fast = run(*DDP, "--gpus", "8", "--comm", "local,compressed", "--json")
    assert {r["cell"]["plan"]["exchange"] for r in json.loads(fast.output)["counts"][0]["rows"]} == {"exact"}


def test_megatron_lm_s_script_is_not_rendered_with_it() -> None:
    result = run(*DDP, "--gpus", "16", "--inter", "10gbe", "--comm", "local", "--render")
    assert result.exit_code == 2 and "leave comm out" in result.output


def test_gpu_ranges_double() -> None:
    assert gpu_counts("8:512", 8) == [8, 16, 32, 64, 128, 256, 512]
    assert gpu_counts("8:100", 8) == [8, 16, 32, 64, 96]
    assert gpu_counts("1:16", 6) == [1, 2, 4, 6, 12]
    assert gpu_counts("20:48", 8) == [24, 32, 48]
    assert gpu_counts("3", 8) == [3]
    with pytest.raises(UsageError, match="no whole nodes of 8"):
        gpu_counts("9:15", 8)


def test_the_fixed_degrees_are_kept() -> None:
    fixed = ["--pp", "2", "--vpp", "3", "--tp", "2", "--zero", "0", "--precision", "fp16", "--micro-batch", "1"]
    result = run(*GOOD[:4], "--gpus", "8", "--global-batch", "64", *fixed, "--json")
    plans = [r["cell"]["plan"] for r in json.loads(result.output)["counts"][0]["rows"]]
    keys = ("tp", "pp", "vpp", "dp", "zero_stage", "precision", "micro_batch")
    assert [tuple(p[k] for k in keys) for p in plans] == [(2, 2, 3, 2, 0, "fp16", 1)]


def test_a_mixture_of_experts_and_memory_by_part() -> None:
    result = run("--model", "mixtral-8x7b", "--gpu-type", "h100", "--gpus", "64", "--top", "40", "--json")
    rows = json.loads(result.output)["counts"][0]["rows"]
    assert {r["cell"]["plan"]["ep"] for r in rows} & {2, 4, 8}
    for row in rows:
        assert sum(row["memory"].values()) == pytest.approx(row["cell"]["memory_bytes"], rel=1e-6)
    text = run("--model", "mixtral-8x7b", "--gpu-type", "h100", "--gpus", "64", "--top", "40").output
    for word in ("ep ", "GiB a GPU, of 77.1 usable", "weights", "activa", "in all"):
        assert word in text
    # columns that are the same as ever are not shown
    assert "vpp " not in run(*GOOD, "--top", "1").output


def test_figures_of_a_file_are_used(tmp_path: Path) -> None:
    path = tmp_path / "a100.toml"
    path.write_text("[a100]\npeak_tflops = 3.12\n")
    slow, fast = (
        json.loads(run(*GOOD[:4], "--gpus", "1", "--global-batch", "8", "--json", *more).output)["counts"][0]["rows"][0]
        for more in (["--figures", str(path)], [])
    )
    assert slow["cell"]["step_s"] > 10 * fast["cell"]["step_s"]


def test_links_by_name_and_by_number(tmp_path: Path) -> None:
    def step(*more: str) -> float:
        argv = ["--model", "gpt3-13b", "--gpu-type", "a100", "--gpus", "32", "--tp", "2", "--json", *more]
        return float(json.loads(run(*argv).output)["counts"][0]["rows"][0]["cell"]["step_s"])

    assert step("--inter", "eth-25/8") > 1.2 * step("--inter", "ib-hdr") and step("--intra", "pcie4") > step()
    pipeline = ("--pp", "4")  # whose traffic nothing hides
    assert step("--inter", "ib-hdr/4", *pipeline) != step("--inter", "6.25", *pipeline)  # the class brings its latency
    path = tmp_path / "f.toml"
    path.write_text("[A100]\npeak_tflops = 100\nintra_gbs = 1\n")
    # the option comes before the file, whose other figures stay
    assert step("--figures", str(path), "--intra", "300") > 2 * step()
    assert step("--figures", str(path)) > step("--figures", str(path), "--intra", "300")
    assert link_figures("IB-HDR/4", "inter") == {"inter_gbs": 6.25, "inter_latency_s": LINK_CLASSES["ib-hdr"].latency_s}
    assert link_figures("eth-100", "inter") == link_figures("100gbe", "inter") != link_figures("roce-100", "inter")
    assert link_figures("4x10GbE/2", "inter") == {"inter_gbs": 2.5, "inter_latency_s": LINK_CLASSES["10gbe"].latency_s}


def test_plot_without_matplotlib_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(*GOOD, "--plot", str(tmp_path / "p.png"))
    assert result.exit_code == 2 and result.output.count("\n") == 1
    assert "matplotlib is not installed; pip install 'synergy-slurm[plot]'" in result.output


def test_the_curves_of_a_plot() -> None:
    table = plan_table(load_model("gpt3-6.7b"), "a100-40", [8, 16, 32, 64], 8, (256, 256), top=1000)
    drawn, winners = curves(table), best(table)
    assert [gpus for gpus, _ in winners] == [8, 16, 32, 64]
    # winners are drawn first, and each curve is of the best plan of its split
    assert set(list(drawn)[: len({name for _, name in winners})]) == {name for _, name in winners}
    for gpus, name in winners:
        rates = {n: dict(points).get(gpus, 0.0) for n, points in drawn.items()}
        assert rates[name] == next(c.rows[0].tokens_per_s for c in table.counts if c.gpus == gpus)
    assert split(Plan(2, 4, 1, vpp=2, zero_stage=1)) == "tp 2 pp 4 vpp 2"
    assert split(Plan(dp=8, zero_stage=3)) == "tp 1 pp 1 ZeRO-3"


@pytest.mark.slow
def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run(*GOOD, "--top", "1", "--plot", str(tmp_path / "p.png"))
    assert result.exit_code == 0 and (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    # asked for one plan of each of four GPU counts, times and memory
    assert len([line for line in result.output.splitlines() if re.match(" *1  ", line)]) == 12
    for path in (tmp_path / "no" / "p.png", tmp_path / "p.nope"):
        result = run(*GOOD, "--plot", str(path))
        assert result.exit_code == 2 and "can't be written" in result.output and result.output.count("\n") == 1


def test_help_is_worth_reading() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for word in ("Examples:", "--noise-scale", "Exit code", "goodput"):
        assert word in result.output
