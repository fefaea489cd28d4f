"""A script's own loop, which saves and loads its own checkpoint, as `loop=` of the directive describes it.

`loop=global:N`: the script shares out N (examples, or passes of gradient accumulation) over its processes by itself. `loop=gpu:NAME`: the
argument or environment variable NAME holds the share of one GPU, which is set so that the global batch stays. `,resume:WORD`: the
script's argument with which it goes on from its checkpoint.

Rank 0 counts the optimizer's steps and reports them. It notes what the script saves under `checkpoint=`, and answers a checkpoint request
when the next step's gradients are there and before the weights change: whatever the script saved before is then complete. So the run
loses no step. The place in the data is the script's own: what it repeats after a start is said in examples.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.records import Plan

from synergy_launch.agent.agent import Agent, Boundary
from synergy_launch.agent.checkpoint import Checkpoint, CheckpointError, Checkpoints, FoundCheckpoint, error_cause
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.agent.settings import ASKED_GPUS, LOOP, AgentSettings, read_number
from synergy_launch.auto.optimizer_steps import is_state_made

FILE = "synergy-loop.json"  # beside the script's checkpoint: the job and the step that it is of
_LOOP = re.compile(
    r"(?:global:(?P<total>[1-9][0-9]{0,8})|gpu:(?P<name>-{0,2}[A-Za-z_][\w.-]*))(?:,resume:(?P<resume>[^,\s]+))?"
)


@dataclass(frozen=True)
class OwnLoop:
    """What `loop=` says: `total` shares of all GPUs, or the `name` of that of one; the argument with which the script resumes."""

    total: int = 0
    name: str = ""
    resume: str = ""

    @classmethod
    def parse(cls, text: str) -> OwnLoop:
        """Read the value of `loop=`. Raises UsageError."""
        match = _LOOP.fullmatch(text)
        if match is None:
            right = "global:N or gpu:NAME, and resume:ARGUMENT behind a comma, such as loop=gpu:--batch_size"
            raise UsageError("loop=", f"{text!r} is not right", right)
        return cls(int(match["total"] or 0), match["name"] or "", match["resume"] or "")

    @property
    def is_variable(self) -> bool:
        """Return whether NAME is an environment variable: in capitals, without dashes or dots."""
        return re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.name) is not None

    def apply(
        self, argv: list[str], environment: MutableMapping[str, str], requested_gpus: int, world: int, resumes: bool
    ) -> int:
        """Set the share of each of `world` GPUs, in place, where the script's own is for `requested_gpus`. Return the share.

        `argv`: the script's arguments. `resumes`: the run goes on from a checkpoint. Raises UsageError where the batch can't be kept.
        """
        if resumes and self.resume and self.resume not in argv:
            argv.append(self.resume)
        if self.total:
            if self.total % world:
                raise UsageError(
                    "loop=", f"{self.total} can't be shared out to {world} GPUs", "a number that they divide"
                )
            return self.total // world
        at, text = self._find(argv, environment)
        if not text.isdecimal() or int(text) < 1:
            raise UsageError("loop=", f"{self.name} is {text!r}", "a whole number in the script's command line")
        share, rest = divmod(int(text) * requested_gpus, world)
        if rest or not share:
            what = f"{self.name} {text} on {requested_gpus} GPUs can't be kept on {world}"
            raise UsageError("loop=", what, f"{self.name} x GPUs must be a multiple of each number of GPUs")
        if at < 0:
            environment[self.name] = str(share)
        else:
            head, equals, _ = argv[at].partition("=")
            argv[at] = f"{head}={share}" if equals else str(share)
        return share

    def _find(self, argv: list[str], environment: Mapping[str, str]) -> tuple[int, str]:
        """Return where the share stands in the arguments (-1: in the environment), and its text. Raises UsageError."""
        if self.is_variable:
            return -1, environment.get(self.name, "")
        for i in range(len(argv) - 1, -1, -1):
            head, equals, value = argv[i].partition("=")
            if head == self.name and equals:
                return i, value
            if head == self.name and i + 1 < len(argv):
                return i + 1, argv[i + 1]
        raise UsageError(
            "loop=", f"{self.name} is not in the script's arguments", f"write {self.name} N behind the script"
        )


class LoopCheckpoints(Checkpoints):
    """The checkpoints that a script writes and loads by itself in `directory`; beside them a note of the job and the step.

    Only a checkpoint of the same job counts: one of an earlier job is the script's own business.
    """

    def __init__(self, directory: Path, job: str) -> None:
        super().__init__(directory, OneProcess())
        self.job = job
        self.bytes: int | None = None  # of the files that the script saved last

    def find(self) -> FoundCheckpoint:
        note = read_note(self.directory)
        if not note or note.get("job") != self.job:
            return FoundCheckpoint(None)
        meta = note.get("meta")
        return FoundCheckpoint(Checkpoint(self.directory, int(note["step"]), meta if isinstance(meta, dict) else {}))

    def save(self, step: int, write: Callable[[Path], Mapping[str, Any]]) -> None:
        """Note that what the script has saved is of `step`. Raises CheckpointError."""
        fresh = self.directory / f".{FILE}"
        try:
            text = json.dumps({"job": self.job, "step": step, "meta": dict(write(self.directory))})
            fresh.write_text(text + "\n", encoding="utf-8")
            fresh.replace(self.directory / FILE)
        except OSError as error:
            raise CheckpointError(f"checkpoint of step {step}", error_cause(error)) from error

    def size_bytes(self, step: int) -> int | None:
        return self.bytes


def read_note(folder: Path) -> dict[str, Any]:
    """Return the note beside a script's checkpoint, or {} if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {**note, "step": int(note["step"])}
    return {}


class LoopWatch:
    """Rank 0's watch over the script's optimizer and its saves. The other ranks need none."""

    def __init__(self, loop: OwnLoop, settings: AgentSettings, share: int, store: LoopCheckpoints) -> None:
        self._loop, self._store = loop, store
        plan = replace(settings.plan or Plan(), tp=1, pp=1, cp=1, ep=1, vpp=1, shard=0, dp=settings.world)
        plan = replace(plan, global_batch=share * settings.world, micro_batch=1 if loop.total else share)
        own = {**(settings.accepts or {}), "own_size": True}  # until it has saved once
        self.agent = Agent(replace(settings, accepts=own), plan, OneProcess())
        newest = self.agent.find_checkpoint_in(store).checkpoint
        self.step = newest.step if newest is not None else 0
        self._began = self.step
        self._optimizer: Any = None  # the first that steps: it counts
        self._saved: list[Path] = []
        self._spent_s, self._request = 0.0, 0

    def begin(self) -> None:
        """Put the hooks into torch's optimizers and torch.save."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        original = torch.save

        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            began = time.monotonic()
            original(obj, f, *args, **kwargs)
            self.record_save(f, time.monotonic() - began)

        torch.save = save
        register_optimizer_step_pre_hook(lambda optimizer, *_: self.before_step(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self.after_step(optimizer))
        self.agent.start(self.step, save=lambda _: {"saved": [path.name for path in self._saved]})
        if self.step:
            trained = self.step * self.agent.plan.global_batch
            what = "examples" if not self._loop.total else f"parts of its batch of {self._loop.total}"
            self.agent.note(
                f"goes on from the script's own checkpoint of step {self.step}; the place in the data is its own: if it starts there "
                f"again, the {trained} {what} trained so far are seen twice"
            )

    def record_save(self, target: Any, spent_s: float) -> None:
        """Note a save of the script's to a path or an open file; others than those under the checkpoint folder do not count."""
        name = target if isinstance(target, str | os.PathLike) else getattr(target, "name", None)
        if not isinstance(name, str | os.PathLike):
            return
        path = Path(name).absolute()
        if self._store.directory in path.parents and self.step > self._began:
            self._saved.append(path)
            self._spent_s += spent_s

    def before_step(self, optimizer: Any) -> None:
        """Report, before the weights change, what was saved since the last step, and answer a request with it."""
        if not self._saved or optimizer is not self._optimizer or is_state_made(optimizer):
            return
        with contextlib.suppress(OSError):
            self._store.bytes = sum(path.stat().st_size for path in set(self._saved))
        status = self.agent.status
        status.update(accepts={**(status["accepts"] or {}), "own_size": False})
        self.agent.act(Boundary(self.step, self._request), self._spent_s)
        self._saved, self._spent_s = [], 0.0

    def after_step(self, optimizer: Any) -> None:
        """Count a step that trains."""
        if is_state_made(optimizer):
            return
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer:
            return
        self.step += 1
        batch = self.agent.plan.global_batch
        boundary = self.agent.look(self.step, loss=None, done=float(self.step * batch))
        self._request = boundary.request
        self.agent.act(Boundary(self.step, save=False))


def install() -> None:
    """Do what SYNERGY_LOOP says for this process. Raises UsageError."""
    text = os.environ.get(LOOP, "")
    settings = AgentSettings.from_environment()
    if not text:
        return
    loop, folder = OwnLoop.parse(text), settings.checkpoint_dir
    if folder is None:
        raise UsageError("loop=", "without checkpoint= nobody knows what the script saves", "name its folder there")
    store = LoopCheckpoints(folder.absolute(), os.environ.get("SLURM_JOB_ID", ""))
    requested_gpus = read_number(os.environ, ASKED_GPUS, int, 0) or settings.world
    resumes = store.find().checkpoint is not None
    arguments = sys.argv[1:]
    share = loop.apply(arguments, os.environ, requested_gpus, settings.world, resumes)
    sys.argv[1:] = arguments
    if settings.rank == 0:
        LoopWatch(loop, settings, share, store).begin()
