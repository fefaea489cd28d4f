"""`loop=` applied to a script's arguments and environment, and the note beside its checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synergy_core.errors import UsageError
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.auto.optimizer_steps import is_state_made
from synergy_launch.auto.own_loop import FILE, LoopCheckpoints, LoopWatch, OwnLoop, read_note

from synergyd.slurm.directives.grammar import BY_NAME


@pytest.mark.parametrize(
    ("loop", "before", "after", "share"),
    [
        ("gpu:--batch_size", ["--batch_size", "8", "--lr", "1"], ["--batch_size", "16", "--lr", "1"], 16),
        ("gpu:--batch-size", ["--batch-size=8"], ["--batch-size=16"], 16),
        ("gpu:trainer_config.batch_size", ["trainer_config.batch_size=8"], ["trainer_config.batch_size=16"], 16),
        ("gpu:-b", ["-b", "4", "-b", "6"], ["-b", "4", "-b", "12"], 12),  # the last one counts
        ("gpu:--b,resume:--resume", ["--b", "1"], ["--b", "2", "--resume"], 2),
        ("gpu:--b,resume:--resume", ["--b", "1", "--resume"], ["--b", "2", "--resume"], 2),
        ("global:40,resume:--init_from=resume", ["a"], ["a", "--init_from=resume"], 20),
    ],
)
def test_the_global_batch_of_four_gpus_on_two(loop: str, before: list[str], after: list[str], share: int) -> None:
    argv, environment = list(before), {"X": "1"}
    assert OwnLoop.parse(loop).apply(argv, environment, 4, 2, resumes=True) == share
    assert (argv, environment) == (after, {"X": "1"})


def test_a_variable_and_a_first_start() -> None:
    argv, environment = ["t"], {"BATCH": "8"}
    assert OwnLoop.parse("gpu:BATCH,resume:-r").apply(argv, environment, 2, 4, resumes=False) == 4
    assert (argv, environment) == (["t"], {"BATCH": "4"})


@pytest.mark.parametrize(
    ("loop", "argv", "message"),
    [
        ("gpu:--b", ["--b", "3"], r"--b 3 on 2 GPUs can't be kept on 4; --b x GPUs must be a multiple"),
        ("gpu:--b", ["--c", "3"], r"--b is not in the script's arguments; write --b N behind the script"),
        ("gpu:--b", ["--b", "big"], r"--b is 'big'; a whole number"),
        ("gpu:BATCH", [], r"BATCH is ''; a whole number"),
        ("global:6", [], r"6 can't be shared out to 4 GPUs"),
    ],
)
def test_a_batch_that_can_not_be_kept_is_one_line(loop: str, argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        OwnLoop.parse(loop).apply(list(argv), {}, 2, 4, resumes=False)


def test_the_example_of_the_directive_is_right_and_others_are_not() -> None:
    assert OwnLoop.parse(BY_NAME["loop"].example) == OwnLoop(0, "--batch_size", "--resume")
    for text in ("", "global", "global:0", "gpu:", "gpu:---a", "gpu:a b", "gpu:a,resume:", "resume:a"):
        with pytest.raises(UsageError, match="is not right"):
            OwnLoop.parse(text)


def test_only_a_checkpoint_of_the_same_job_counts(tmp_path: Path) -> None:
    LoopCheckpoints(tmp_path, "7").save(12, lambda _: {"a": 1})
    newest = LoopCheckpoints(tmp_path, "7").find().checkpoint
    assert newest is not None and (newest.step, newest.meta) == (12, {"a": 1})
    assert LoopCheckpoints(tmp_path, "8").find().checkpoint is None
    (tmp_path / FILE).write_text("{")
    assert read_note(tmp_path) == {} and LoopCheckpoints(tmp_path, "7").find().checkpoint is None


def test_a_request_is_answered_before_the_weights_change_after_all_files_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    settings = AgentSettings(run_dir=run_dir, checkpoint_dir=tmp_path, hold_s=0.0)
    watch = LoopWatch(OwnLoop.parse("gpu:--b"), settings, 8, LoopCheckpoints(tmp_path, "7"))
    first, other = (SimpleNamespace(param_groups=[{"lr": 0.1}]) for _ in range(2))
    watch.agent.start(0, save=lambda _: {})

    def step() -> None:
        watch.before_step(first)
        watch.before_step(other)
        watch.after_step(first)
        watch.after_step(other)

    def status(name: str) -> Any:
        return watch.agent.status[name]

    step()
    (run_dir / "checkpoint-request").write_text("1")
    step()
    assert (status("step"), status("checkpoint_requests"), status("accepts")["own_size"]) == (2, 0, True)
    watch.record_save("/elsewhere/model.pt", 0.1)
    step()
    assert status("checkpoint_requests") == 0
    for name in ("model.pt", "optimizer.pt"):
        (tmp_path / name).write_bytes(b"12345")
        watch.record_save(tmp_path / name, 0.1)
        assert status("checkpoint_requests") == 0
    step()
    assert (status("checkpoint_step"), status("checkpoint_requests"), status("checkpoint_bytes")) == (3, 1, 10)
    assert status("accepts")["own_size"] is False and read_note(tmp_path)["step"] == 3 and status("step") == 4


def test_a_step_that_only_makes_the_optimizers_state_is_none() -> None:
    """As torch.distributed.checkpoint takes one before it loads a state; a schedule may begin at the rate 0."""
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    counted: list[bool] = []
    handle = optimizer.register_step_post_hook(lambda each, *_: counted.append(not is_state_made(each)))
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    _init_optim_state(optimizer)
    assert counted == [False] and optimizer.param_groups[0]["lr"] == 0.1
    for rate in (0.0, 0.1):
        optimizer.param_groups[0]["lr"] = rate
        weight.square().sum().backward()
        optimizer.step()
    handle.remove()
    assert counted == [False, True, True]
