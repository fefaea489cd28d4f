"""`synergy-launch --try`: what is tried, where it writes, and when two runs are the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_launch.launcher.trial import Subject, moved, read_subject
from synergy_launch.launcher.trial_table import StepRecord, compare, format_table, merge

ALONE = [StepRecord(n, 1.0 / n, 0.01 * n, tuple(range(8 * n, 8 * n + 8))) for n in range(1, 9)]


def test_a_run_that_goes_on_as_before() -> None:
    found = compare(ALONE, ALONE[:7], 4)
    assert found.is_good and (found.saved, found.last, found.examples) == (4, 7, 56)
    assert "56 seen once: the same" in "\n".join(format_table(found, (2, 1)))


def test_each_difference_is_named() -> None:
    def after(**changes: object) -> list[StepRecord]:
        return [*ALONE[:4], *(replace(record, **changes) for record in ALONE[4:])]  # type: ignore[arg-type]

    batch = compare(ALONE, after(rows=(1, 2)), 4)
    assert not batch.is_same_batch and "8 | 2 | DIFFERS" in "\n".join(format_table(batch, (2, 1)))
    again = compare(ALONE, [*ALONE[:4], *(replace(r, rows=ALONE[r.step - 5].rows) for r in ALONE[4:])], 4)
    assert (again.repeated, again.skipped, again.is_good) == (32, 32, False)
    assert "32 seen again, 32 not seen, of 64: DIFFERS" in "\n".join(format_table(again, (2, 1)))
    assert not compare(ALONE, after(rate=0.5), 4).is_same_rate
    assert not compare(ALONE, after(loss=9.0), 4).is_alike
    assert not compare(ALONE, after(loss=None), 4).is_good
    with pytest.raises(ValueError, match="no step after 4"):
        compare(ALONE, ALONE[:4], 4)


def test_other_random_numbers_are_no_difference() -> None:
    """Dropout: the mean of the losses differs by less than they scatter. Augmented inputs: no example is the same twice."""
    noisy = [
        replace(r, loss=(r.loss or 0) + 0.004 * (-1) ** r.step * (r.step > 4), rows=tuple(i + 1 for i in r.rows))
        for r in ALONE
    ]
    found = compare(ALONE, noisy, 4)
    assert found.is_good and not found.is_same_loss and found.has_random_inputs
    text = "\n".join(format_table(found, (2, 1)))
    assert "alike (other random numbers)" in text and "random inputs: not known" in text


def test_a_script_without_a_seed_tells_nothing_by_its_loss() -> None:
    found = compare(ALONE, [replace(r, loss=9.0) for r in ALONE], 4)
    assert found.has_random_losses and found.is_good
    assert "random (no seed): not known" in "\n".join(format_table(found, (2, 1)))


def test_ranks_are_merged_as_far_as_all_have_come() -> None:
    lines = [{"step": n, "loss": float(n), "rate": 0.1, "rows": [n]} for n in (1, 2)]
    found = merge([lines, [{**lines[0], "loss": 3.0, "rows": [0]}]], after=4)
    assert found == [StepRecord(5, 2.0, 0.1, (0, 1))]
    assert merge([[{**lines[0], "loss": None}]])[0].loss is None


def test_checkpoints_of_the_users_runs_are_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    subject = Subject(
        words=(str(script), "--out=/data/run1", "--init", "/data/run1/x.pt", "--in", "/data/run12"), gpus=2
    )
    found = moved(replace(subject, checkpoint="/data/run1/", loop="global:8"), tmp_path / "new")
    assert found.words[1:] == (f"--out={tmp_path}/new", "--init", f"{tmp_path}/new/x.pt", "--in", "/data/run12")
    assert found.checkpoint == str(tmp_path / "new")
    with pytest.raises(UsageError, match="/data/other is not in the script's arguments"):
        moved(replace(subject, checkpoint="/data/other", loop="global:8"), tmp_path / "other")
    script.write_text("from transformers import Trainer\nTrainer(model).train()\n")
    hugging = replace(subject, words=(str(script), "--output_dir", "/data/out"))
    assert moved(hugging, tmp_path / "hf").words[1:] == ("--output_dir", f"{tmp_path}/hf")
    with pytest.raises(UsageError, match="the folder of its checkpoints is not in the script's arguments"):
        moved(replace(hugging, words=(str(script),)), tmp_path / "hf2")


def test_a_batch_script_says_what_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SLURM_GPUS_ON_NODE", raising=False)
    batch = tmp_path / "train.sh"
    text = (
        "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:a100:4\n#SYNERGY max_gpus=8 loop=global:40,resume:--resume\n"
        "#SYNERGY checkpoint=/data/run1\nsrun synergy-launch train.py --out /data/run1\n"
    )
    batch.write_text(text)
    found = read_subject(str(batch), (), False, "", "auto")
    assert found == Subject(
        words=("train.py", "--out", "/data/run1"), gpus=4, checkpoint="/data/run1", loop="global:40,resume:--resume"
    )
    batch.write_text(text.replace("--out /", "--out $HOME/"))
    with pytest.raises(UsageError, match="its command has shell variables"):
        read_subject(str(batch), (), False, "", "auto")
    found = read_subject("torchrun", ("--nproc-per-node", "8", "train.py", "-x"), False, "/c", "auto")
    assert found == Subject(words=("train.py", "-x"), gpus=8, checkpoint="/c")
    with pytest.raises(UsageError, match="one node with 2 GPUs or more, not 1 with 1"):
        read_subject("torchrun", ("--nproc-per-node", "1", "train.py"), False, "", "auto")
