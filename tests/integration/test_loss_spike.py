"""A loss spike: the run goes back past the examples that led to it, exactly, on other numbers of ranks and in a job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Plan
from synergy_launch.agent import run_folder

from tests.integration import training_ranks
from tests.integration.daemon_site import explain, story, until_beat
from tests.integration.spiking_run import BATCH, INTERVAL, trained_numbers
from tests.integration.training_ranks import Call
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]
CHECKPOINT = INTERVAL  # the only one that is a hundred steps older than the spike; the next is that of step 160
# those of a hundred steps before the spike, and of a hundred from its first one on
SKIPPED = range(100 * BATCH, 300 * BATCH)


def call(tmp_path: Path, folder: str, steps: int) -> Call:
    return Call(
        "tests.integration.spiking_run:train", steps, str(tmp_path / folder / "seen"), str(tmp_path / "checkpoints")
    )


def test_the_examples_are_skipped_on_other_numbers_of_ranks_too(tmp_path: Path) -> None:
    run_dir = tmp_path / "job" / "run"
    run_dir.mkdir(parents=True)
    run_folder.note_mending(run_dir)
    environment = {"SYNERGY_RUN_DIR": str(run_dir), "SYNERGY_SKIP_SPIKES": "1"}
    for world, steps, code in [(2, 400, 1), (4, 250, 0), (1, 300, 0)]:
        (tmp_path / str(world)).mkdir()
        training_ranks.run(
            tmp_path / f"ranks{world}", world, call(tmp_path, str(world), steps), environment=environment, code=code
        )
        if code:
            told = run_folder.read_noted_spike(run_dir)
            assert told is not None and told.first_example is not None and told.last_example is not None
            skipped = range(told.first_example, told.last_example + 1)
            assert (told.step, skipped, told.checkpoint_step) == (201, SKIPPED, CHECKPOINT)
    assert trained_numbers(tmp_path / "4" / "seen", CHECKPOINT + 1, 250) == [
        n for n in range(CHECKPOINT * BATCH, 250 * BATCH + len(SKIPPED)) if n not in SKIPPED
    ], "each example once but for those that are skipped"
    end = 250 * BATCH + len(SKIPPED)
    assert trained_numbers(tmp_path / "1" / "seen", 251, 300) == list(range(end, end + 50 * BATCH))
    log = [json.loads(line) for line in (run_dir.parent / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [*range(1, 211), *range(CHECKPOINT + 1, 301)]
    assert log[199]["loss"] < 1 < 100 < log[201]["loss"] and log[-1]["loss"] < 1
    reference = tmp_path / "reference" / "run"
    reference.mkdir(parents=True)
    apart = Call(
        "tests.integration.spiking_run:train", 300, str(reference / "seen"), skipped=((SKIPPED[0], SKIPPED[-1]),)
    )
    training_ranks.run(tmp_path / "apart", 1, apart, environment={"SYNERGY_RUN_DIR": str(reference)})
    never = [json.loads(line) for line in (reference.parent / "steps.jsonl").read_text().splitlines()]
    lineage = [*log[:CHECKPOINT], *log[210:]]
    assert [line["step"] for line in lineage] == [line["step"] for line in never]
    difference = max(abs(a["loss"] - b["loss"]) for a, b in zip(lineage, never, strict=True))
    print(f"losses differ by {difference:.2g} at most from those of a run that never had these examples")
    assert difference < 1e-5
    meta = json.loads((tmp_path / "checkpoints" / "step_00000300" / "complete").read_text())["meta"]
    assert meta["samples"] == 300 * BATCH and meta["agent"]["spikes"]["skipped"] == [[SKIPPED[0], SKIPPED[-1]]]


def test_a_megatron_run_skips_them_under_any_plan(tmp_path: Path) -> None:
    by_hand = Call("tests.integration.spiking_run:train_gpt", Plan(dp=2, global_batch=4), 4, shift=(8, 12))
    skips = Call("tests.integration.spiking_run:train_gpt", Plan(pp=2, global_batch=4), 4, skipped=((8, 19),))
    expected, _ = training_ranks.run(tmp_path / "by_hand", 2, by_hand)
    losses, _ = training_ranks.run(tmp_path / "skips", 2, skips)
    assert losses == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with make_cluster([NodeGroup("cpu", 2, 1)], epoch_s=1) as cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


def submit(cluster: SlurmCluster, name: str, more: str) -> int:
    folder = cluster.folder / name
    script = (
        f"#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:1 --open-mode=append\n"
        f"#SYNERGY min_gpus=2 max_gpus=2 global_batch={BATCH} checkpoint={folder}/checkpoints {more}\n"
        f"srun synergy-launch -m tests.integration.spiking_run 100000 {folder}/seen 0.02\n"
    )
    (folder / "checkpoints").mkdir(parents=True)
    return cluster.sbatch(script, f"--output={folder}/out")


def steps(cluster: SlurmCluster, name: str) -> list[dict[str, float]]:
    path = cluster.folder / name / "checkpoints" / "steps.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def last_step(cluster: SlurmCluster, name: str) -> int:
    return int((steps(cluster, name) or [{"step": 0}])[-1]["step"])


def codes(told: dict[str, Any]) -> list[tuple[str, str]]:
    """What explain says of the loss, each with what follows; on a busy machine a rank may be slow as well."""
    losses = (one for one in told["diagnoses"] if one["code"].startswith("loss-"))
    return [(one["code"], one["fields"]["because"]["code"]) for one in losses]


@pytest.mark.slurm
def test_a_job_goes_back_with_leave_and_is_only_told_without(cluster: SlurmCluster) -> None:
    job = submit(cluster, "with", "skip_spikes=yes")
    try:
        cluster.wait_for(lambda: "without examples" in story(cluster, job), 240, "the return")
        cluster.wait_for(lambda: last_step(cluster, "with") >= 230, 240, "steps after it")
        log = steps(cluster, "with")
        again = next(i for i, line in enumerate(log) if i and line["step"] < log[i - 1]["step"])
        print(f"trains again {log[again]['time'] - log[again - 1]['time']:.1f} s after its last step")
        told = explain(cluster, job)
        assert codes(told) == [("loss-spike", "spike-skipped")]
        assert any("without examples" in line for line in told["warnings"])
        assert told["report"]["restarts"] == 0, "in place"
        numbers = trained_numbers(cluster.folder / "with" / "seen", 1, 225)
        assert numbers == [n for n in range(225 * BATCH + len(SKIPPED)) if n not in SKIPPED]
    except BaseException:
        print((cluster.folder / "with" / "out").read_text()[-6000:])
        raise
    finally:
        cluster.run("scancel", str(job))
    job = submit(cluster, "without", "")
    try:
        cluster.wait_for(lambda: codes(explain(cluster, job)), 240, "the spike in explain")
        first = next(line["time"] for line in steps(cluster, "without") if line["step"] == 201)
        print(f"explain shows the spike {time.time() - first:.1f} s after its first step")
        cluster.wait_for(lambda: "no skip_spikes=yes" in story(cluster, job), 60, "the story")
        assert codes(explain(cluster, job)) == [("loss-spike", "spike-not-allowed")]
        cluster.wait_for(lambda: last_step(cluster, "without") >= 230, 60, "steps after it")
        numbers = trained_numbers(cluster.folder / "without" / "seen", 1, 225)
        assert numbers == list(range(225 * BATCH))
    finally:
        cluster.run("scancel", str(job))
