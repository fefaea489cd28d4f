"""The agent: the part of Synergy inside each training process.

It times steps, writes the status file that the launcher reports from, and sees to it that all ranks checkpoint, wait
and stop at the same step boundary. It talks to the launcher through the environment, signals and files only:

| from the launcher | meaning |
|---|---|
| SYNERGY_RUN_DIR | folder of status.json and of checkpoint-request (an integer that grows by one per request) |
| SYNERGY_PLAN_JSON | the Plan; absent: all ranks are data parallel |
| SYNERGY_RESTARTS | incarnation number |
| SYNERGY_CHECKPOINT_DIR | where checkpoints live, before the script's own argument |
| SYNERGY_HOLD_S | seconds to wait after a requested checkpoint, so that a requeue at once loses no step (20) |
| SYNERGY_GRACE_S | seconds between SIGTERM and SIGKILL: no save is begun that would take longer (25) |
| SYNERGY_STEP_LOG | one JSON line a step; relative to the run folder's parent (steps.jsonl) |
| SYNERGY_BACKGROUND_SAVES | 0: training waits for every checkpoint until it is written (1) |
| SYNERGY_GLOBAL_BATCH | LO:HI: the run may choose its own global batch in this range; told: a daemon does |
| SYNERGY_LINK_ARBITER | host:port to ask before an all-reduce between nodes (synergy_launch.links.hooks); absent: none is asked |
| SYNERGY_LINK_ARBITER_UID | the daemon's uid: only it, root and the job's own user are believed to be the arbiter |
| batch | file in the run folder: the global and micro-batch to go on with, as JSON; the daemon's choice |
| SIGUSR2 | checkpoint now and go on |
| SIGTERM | finish the step, checkpoint, exit 0 |

Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from synergy_launch.agent import failure_log, straggler
from synergy_launch.agent.background_save import BackgroundSave, Staged
from synergy_launch.agent.checkpoint import CheckpointError, Checkpoints, FoundCheckpoint
from synergy_launch.agent.checkpoint_schedule import CheckpointSchedule
from synergy_launch.agent.collectives import Collectives, OneProcess
from synergy_launch.agent.run_folder import proposed_batch
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.agent.straggler import Stragglers
from synergy_launch.batch.tuner import BatchTuner
from synergyd.errors import SynergyError, one_line
from synergyd.records import ModelSpec, Plan

STATUS = "status.json"
REQUEST = "checkpoint-request"
_STATUS_EVERY_S = 0.5
_BATCH_BITS = 31
_WARM_UP_STEPS = 2  # the first steps after a start pay for allocation, compilation and connections
_WORDS_S = 2.0  # before the grace is over: for the status file and a clean end


class StepTimer:
    """Median duration of the recent steps; the first ones after a start don't count."""

    def __init__(self, window: int = 20, skip: int = _WARM_UP_STEPS) -> None:
        self._recent: deque[float] = deque(maxlen=window)
        self._skip = skip

    def add(self, seconds: float) -> None:
        if self._skip:
            self._skip -= 1
        else:
            self._recent.append(seconds)

    @property
    def median_s(self) -> float | None:
        return statistics.median(self._recent) if self._recent else None


@dataclass(frozen=True)
class Boundary:
    """What all ranks have agreed on after `step`. `save`: a checkpoint of it is wanted before `Agent.act`."""

    step: int
    request: int = 0
    stop: bool = False
    save: bool = True


class Agent:
    """One rank's agent. All ranks construct it, and call `start`, `after_step` and `finish` at the same points.

    `save(folder)` is given to `start`: it writes a checkpoint on all ranks and returns metadata to keep with it. So may
    `stage(folder)` be, which copies the state, for checkpoints that are written while training goes on
    (synergy_launch.agent.background_save): periodic ones; those that were asked for, and the last one, are waited for.
    """

    def __init__(
        self,
        settings: AgentSettings,
        plan: Plan,
        ranks: Collectives | None = None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        peak_memory: Callable[[], int | None] = lambda: None,
        device_memory: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.plan = plan
        self.ranks: Collectives = OneProcess() if ranks is None else ranks
        self.checkpoints: Checkpoints | None = None
        self._clock, self._monotonic, self._sleep, self._peak_memory = clock, monotonic, sleep, peak_memory
        self._device_memory = device_memory
        self._timer = StepTimer()
        self._mark = monotonic()
        self._status_at = -math.inf
        self._stop = False  # set by the SIGTERM handler
        self._signalled = False  # set by the SIGUSR2 handler
        self._acknowledged = 0
        self._save: Callable[[Path], Mapping[str, Any]] | None = None
        self._stage: Callable[[Path], Staged] | None = None
        self._background: BackgroundSave | None = None
        self._held_s = 0.0  # by the checkpoint under way
        self._spent_s = 0.0  # on a checkpoint before the agent was asked for it
        self._cadence = CheckpointSchedule()
        self._tuner: BatchTuner | None = None
        self._stragglers: Stragglers | None = None
        self._batch: tuple[int, int] | None = None  # (global, micro) that all ranks agreed to go on with
        self._refused: tuple[int, int] | None = None
        self._status: dict[str, Any] = {
            "step": 0,
            "step_s": None,
            "loss": None,
            "tokens": None,
            "noise_scale": None,
            "peak_memory_bytes": None,
            "done": None,
            "total": None,
            "checkpoint_step": None,
            "checkpoint_requests": 0,
            "plan": asdict(plan),
            "restarts": settings.restarts,
            "resharding": False,
            "rebatching": False,
            "slow_nodes": [],
            "model": None,
            "accepts": settings.accepts,
            "state": "starting",
            "note": "",
        }
        self._write_status()

    # -- set-up -----------------------------------------------------------------------------------------------------

    def install_signals(self) -> None:
        """Handlers that only set a flag: whatever is under way, a save included, is finished first."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGUSR2, self._on_usr2)

    def find_checkpoint(self, directory: Path | None) -> FoundCheckpoint:
        """Where to go on from. The launcher's folder comes before `directory`, the script's own argument."""
        folder = self.settings.checkpoint_dir or directory
        return FoundCheckpoint(None) if folder is None else self.find_in(Checkpoints(folder.absolute(), self.ranks))

    def find_in(self, checkpoints: Checkpoints) -> FoundCheckpoint:
        """Where to go on from in `checkpoints`, which those of this run join."""
        self.checkpoints = checkpoints
        found = self.checkpoints.find()
        if found.note:
            self.note(found.note)
        if found.checkpoint is not None:
            step = found.checkpoint.step
            self._cadence.take(found.checkpoint.meta.get("agent"), failure_log.read(self.checkpoints.directory, step))
            self.ranks.barrier()  # all have read it before it is overwritten
            self._note_ending(step, clean=False)
        return found

    def start(
        self,
        step: int,
        *,
        save: Callable[[Path], Mapping[str, Any]] | None = None,
        stage: Callable[[Path], Staged] | None = None,
        checkpoint_interval: int | None = 0,
        resharding: bool = False,
        model: ModelSpec | None = None,
        tokens: int | None = None,
        base_batch: int | None = None,
        peers: int | None = None,
    ) -> None:
        """Training goes on after `step` finished steps.

        `checkpoint_interval` in steps; 0: only when asked, and at the end; None: as often as loses least (interval).
        `peers` names the ranks that do the same work as this one (such as its pipeline stage): `after_step` is then told
        each step's `own_s`, on all ranks, and slow nodes are found. `base_batch` (M0) says that the script asks
        `take_batch` after each step: its batch may change while it runs.
        """
        self._save = save
        self._stage = stage if self.settings.background_saves else None
        if self.checkpoints is not None:
            self._background = BackgroundSave(self.checkpoints)
        self._status.update(
            step=step,
            plan=asdict(self.plan),
            tokens=tokens,
            resharding=resharding,
            rebatching=base_batch is not None,
            model=asdict(model) if model else None,
            checkpoint_step=step if step and self.checkpoints else None,
            state="training",
        )
        if base_batch is not None and self.settings.batch_range is not None and self.settings.rank == 0:
            self._tuner = BatchTuner(self.settings.batch_range, base_batch, self._device_memory())
        if peers is not None and self.ranks.world > 1:
            self._stragglers = Stragglers(self.ranks, peers)
        plan = self.plan
        self.say(
            f"step {step}: tp={plan.tp} pp={plan.pp} dp={plan.dp} micro_batch={plan.micro_batch} "
            f"global_batch={plan.global_batch} restarts={self.settings.restarts}"
        )
        self._write_status()
        self._mark = self._monotonic()
        self._cadence.start(checkpoint_interval, self.plan.gpus, self._mark)

    # -- each step --------------------------------------------------------------------------------------------------

    def after_step(
        self,
        step: int,
        *,
        loss: float | None,
        tokens: int | None = None,
        noise_scale: float | None = None,
        own_s: float | None = None,
        done: float | None = None,
        total: float | None = None,
    ) -> bool:
        """To be called by all ranks when `step` steps are finished. False: stop training now (SIGTERM).

        `own_s`: seconds of this rank's own work in the step, up to its first collective. `done` of `total` examples are
        trained: from these the scheduler knows when the job ends, and whether it meets its deadline.
        """
        return self.act(
            self.look(step, loss=loss, tokens=tokens, noise_scale=noise_scale, own_s=own_s, done=done, total=total)
        )

    def look(
        self,
        step: int,
        *,
        loss: float | None,
        tokens: int | None = None,
        noise_scale: float | None = None,
        own_s: float | None = None,
        done: float | None = None,
        total: float | None = None,
    ) -> Boundary:
        """The first half of `after_step`, for a training library that saves by itself and not when it is told to: where
        the boundary says `save`, `act` comes after that, else at once."""
        now = self._monotonic()
        if self._under_way and self._timer.median_s is not None:
            self._held_s += max(0.0, now - self._mark - self._timer.median_s)
        self._timer.add(now - self._mark)
        self._cadence.trained(now - self._mark)
        self._mark = now
        self._status.update(
            step=step, step_s=self._timer.median_s, loss=loss, tokens=tokens, noise_scale=noise_scale, state="training"
        )
        self._status.update(done=done, total=total)
        self._log_step(step, loss)
        if self._stragglers is not None and own_s is not None and self._stragglers.add(own_s):
            self._status["slow_nodes"] = sorted(self._stragglers.slow)
        request, stop, due = self._agree(noise_scale)
        due = due or bool(self._cadence.steps and step % self._cadence.steps == 0)
        if stop:  # as `_end` will decide, which saves if there is time
            due = self.ranks.broadcast(self.settings.grace_s > self._cadence.save_s * 1.2)
        return Boundary(step, request, stop, due or request > self._acknowledged)

    def act(self, boundary: Boundary, spent_s: float = 0.0) -> bool:
        """The second half of `after_step`. `spent_s`: what the library has taken for a checkpoint of this step."""
        step, self._spent_s = boundary.step, spent_s
        if boundary.stop:
            self._end(step)
            return False
        if boundary.request > self._acknowledged:
            go_on = self._requested(step, boundary.request)
            self._mark = self._monotonic()
            return go_on
        if boundary.save:
            self._checkpoint(step, planned=False)
            self._status["state"] = "training"
            self._write_status()
            self._mark = self._monotonic()
        elif self._monotonic() - self._status_at >= _STATUS_EVERY_S:
            self._write_status()
        return True

    def take_batch(self) -> Plan | None:
        """The plan to go on with where its batch is to change now, the same on all ranks; only its batch differs."""
        wanted, self._batch = self._batch, None
        if wanted is None or wanted == (self.plan.global_batch, self.plan.micro_batch):
            return None
        plan = replace(self.plan, global_batch=wanted[0], micro_batch=wanted[1])
        if plan.global_batch % (plan.dp * plan.micro_batch):
            if wanted != self._refused:
                self.note(f"global batch {wanted[0]} in micro-batches of {wanted[1]} does not divide on dp={plan.dp}")
            self._refused = wanted
            return None
        self.plan = plan
        self._timer = StepTimer(skip=1)
        self._status.update(plan=asdict(plan), step_s=None)
        return plan

    def finish(self) -> None:
        """All steps are done: a last checkpoint, and state `done`."""
        self._checkpoint(int(self._status["step"]))
        self._status["state"] = "done"
        self._write_status()
        self.say(f"done at step {self._status['step']}, loss {_shown(self._status['loss'])}")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """State `failed` and a note if the body raises; a user's mistake ends the process with one line and code 2."""
        try:
            yield
        except SynergyError as error:
            self._failed(str(error))
            if self.settings.rank == 0:
                print(f"synergy: {error}", file=sys.stderr, flush=True)
            raise SystemExit(2) from None
        except Exception as error:
            if self._stop:
                # Its peers got the same SIGTERM and may be gone already: nothing to debug here.
                self._failed(f"stopped by SIGTERM in the middle of a step ({type(error).__name__})")
                raise SystemExit(1) from None
            self._failed(f"{type(error).__name__}: {error}")
            raise

    def say(self, text: str) -> None:
        """One line on rank 0's standard output."""
        if self.settings.rank == 0:
            print(f"synergy: {one_line(text)}", flush=True)

    def note(self, text: str) -> None:
        """Say it, and keep it in the status until something newer is noted."""
        self._status["note"] = one_line(text)
        self.say(text)
        self._write_status()

    @property
    def stopping(self) -> bool:
        return self._stop

    # -- inside -----------------------------------------------------------------------------------------------------

    def _on_term(self, number: int, frame: object) -> None:
        self._stop = True

    def _on_usr2(self, number: int, frame: object) -> None:
        self._signalled = True

    def _agree(self, noise_scale: float | None) -> tuple[int, bool, bool]:
        """(newest checkpoint request, whether to stop, whether a checkpoint is due), the same on all ranks: one
        all-reduce of a few integers. What is written beside training gets on by this too."""
        memory = self._peak_memory()
        writing = self._background.state() if self._background is not None else [0, 0]
        answer = self.ranks.maximum(
            [self._wanted(), int(self._stop), memory or 0, self._proposal(noise_scale), int(self._due()), *writing]
        )
        if self._background is not None:
            self._written(lambda background: background.advance(answer[5], answer[6]))
        self._status["peak_memory_bytes"] = answer[2] or None
        self._batch = (answer[3] >> _BATCH_BITS, answer[3] & (1 << _BATCH_BITS) - 1) if answer[3] else None
        return answer[0], bool(answer[1]), bool(answer[4])

    def _due(self) -> bool:
        """Rank 0's clock says that it is time for a checkpoint."""
        return (
            self.settings.rank == 0
            and self._save is not None
            and self.checkpoints is not None
            and self._cadence.due(self._monotonic())
        )

    def _proposal(self, noise_scale: float | None) -> int:
        """Rank 0's batch to go on with as one number, 0 for none: the daemon's, else the run's own choice."""
        if self.settings.rank != 0 or not self._status["rebatching"]:
            return 0
        wanted = proposed_batch(self.settings.run_dir) if self.settings.run_dir is not None else None
        if wanted is None and self._tuner is not None:
            memory = self._status["peak_memory_bytes"]  # of the rank that uses most, a step ago
            plan = self._tuner.after_step(self.plan, self._timer.median_s, noise_scale, memory)
            wanted = plan.global_batch, plan.micro_batch
        if wanted is None or wanted == (self.plan.global_batch, self.plan.micro_batch):
            return 0
        return wanted[0] << _BATCH_BITS | wanted[1]

    def _wanted(self) -> int:
        """The request number this rank knows of. Where a file counts them, a signal only says: look at the file."""
        signalled, self._signalled = self._signalled, False
        if self.settings.run_dir is not None and (self.settings.local_rank == 0 or signalled):
            try:
                return int((self.settings.run_dir / REQUEST).read_text(encoding="ascii"))
            except (OSError, ValueError):
                pass  # none yet, or just being written: the next step looks again
        return self._acknowledged + 1 if signalled else 0

    def _requested(self, step: int, request: int) -> bool:
        """Checkpoint, acknowledge, hold. False: SIGTERM came meanwhile, the checkpoint is already there."""
        while request > self._acknowledged:
            good = self._checkpoint(step)
            self._acknowledged = request
            if good:
                self._status["checkpoint_requests"] = request
            else:
                self._status["state"] = "training"
                self._write_status()
                return True
            self._status["state"] = "waiting"
            self._write_status()
            request, stop = self._hold(request)
            if stop:
                self._end(step)
                return False
        self._status["state"] = "training"
        self._write_status()
        return True

    def _hold(self, request: int) -> tuple[int, bool]:
        """Wait until the time is up, a newer request or SIGTERM; the ranks leave together."""
        until = self._monotonic() + self.settings.hold_s
        while True:
            # Rank 0's clock decides when the time is up, so it goes into what is agreed on.
            over = self.ranks.rank == 0 and self._monotonic() >= until
            newest, stop, over_all = self.ranks.maximum([self._wanted(), int(self._stop), int(over)])
            if stop or over_all or newest > request:
                return newest, bool(stop)
            self._sleep(min(0.2, max(0.0, self.settings.hold_s)))

    def _end(self, step: int) -> None:
        """SIGTERM: save if there is time, say where training stopped."""
        # Rank 0's estimate decides for all, or some would save and others leave.
        until = self._monotonic() + self.settings.grace_s
        latest = until - self._cadence.save_s * 1.2
        self._settle(lambda: self._monotonic() < latest)
        in_time = self.ranks.broadcast(self._monotonic() < latest)
        if self._under_way:  # too late for this step: what is under way at least, and time to say so
            self._settle(lambda: self._monotonic() < until - _WORDS_S)
        if in_time and not self._under_way:
            self._checkpoint(step)
        saved = self._status["checkpoint_step"]
        self._status["state"] = "waiting"
        self.note(f"stopped by SIGTERM at step {step}, last checkpoint: {'none' if saved is None else f'step {saved}'}")

    def _checkpoint(self, step: int, planned: bool = True) -> bool:
        """A good checkpoint of `step` exists afterwards: True. False: it failed, and the note says why.

        `planned`: the run may end with it, and that is no failure. One that is not may be written beside training: True
        then says that it was begun.
        """
        self._settle()
        if self._status["checkpoint_step"] == step:
            if planned:
                self._note_ending(step, clean=True)
            return True
        if self._save is None or self.checkpoints is None:
            return self._no_checkpoint("no checkpoint folder was named: nothing was saved")
        self._status["state"] = "checkpointing"
        self._write_status()
        self._cadence.tried(self._monotonic() - self._spent_s)
        self._spent_s = 0.0
        save, history = self._save, self._cadence.history(planned)
        if not planned and self._begin(step, history):
            return True
        try:
            self.checkpoints.save(step, lambda folder: {**save(folder), "agent": history})
        except CheckpointError as error:
            return self._no_checkpoint(str(error))
        self._saved(step)
        return True

    def _begin(self, step: int, history: Mapping[str, Any]) -> bool:
        """A checkpoint that is written beside training has been begun. False: the script has none, or it went wrong."""
        stage, began = self._stage, self._monotonic()
        if stage is None or self._background is None:
            return False

        def staged(folder: Path) -> Staged:
            part = stage(folder)
            return replace(part, meta={**part.meta, "agent": history})

        try:
            self._background.begin(step, staged)
        except CheckpointError as error:
            self._stage = None  # the copy may be what there is no memory for
            self.note(f"{error}; from now on training waits until checkpoints are written")
            return False
        self._held_s = self._monotonic() - began
        return True

    @property
    def _under_way(self) -> bool:
        return self._background is not None and self._background.step is not None

    def _settle(self, in_time: Callable[[], bool] = lambda: True) -> None:
        """Waits for the checkpoint under way, if there is one."""
        began = self._monotonic()
        self._written(lambda background: background.wait(in_time), lambda: self._monotonic() - began)

    def _written(
        self, look: Callable[[BackgroundSave], int | None], waited_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """Takes note of a checkpoint that has become good beside training, or failed."""
        if self._background is None:
            return
        try:
            done = look(self._background)
        except CheckpointError as error:
            self._no_checkpoint(str(error))
            return
        if done is not None:
            self._saved(done, self._held_s + waited_s())

    def _saved(self, step: int, held_s: float | None = None) -> None:
        assert self.checkpoints is not None
        self._cadence.saved(self.plan.gpus, self._monotonic(), held_s)
        self._status["checkpoint_step"] = step
        took = f"{self._cadence.save_s:.2f} s" + (
            f", training held up for {held_s:.2f} s" if held_s is not None else ""
        )
        self.say(f"checkpoint of step {step} in {self.checkpoints.directory} ({took})")

    def _note_ending(self, step: int, clean: bool) -> None:
        if self.ranks.rank == 0 and self.checkpoints is not None:
            failure_log.write(self.checkpoints.directory, step, self._cadence.failures, clean)

    def _no_checkpoint(self, why: str) -> bool:
        self.note(why)
        return False

    def _failed(self, why: str) -> None:
        self._status.update(state="failed", note=one_line(why))
        self._write_status()

    def _log_step(self, step: int, loss: float | None) -> None:
        if self.settings.rank != 0 or self.settings.step_log is None:
            return
        line = {
            "step": step,
            "loss": _finite(loss),
            "restarts": self.settings.restarts,
            "tp": self.plan.tp,
            "pp": self.plan.pp,
            "dp": self.plan.dp,
            "global_batch": self.plan.global_batch,
            "time": self._clock(),
        }
        try:
            with self.settings.step_log.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
        except OSError as error:
            self._status["note"] = f"step log {self.settings.step_log}: {error.strerror}"

    def _write_status(self) -> None:
        if self.settings.rank != 0 or self.settings.run_dir is None:
            return
        self._status_at = self._monotonic()
        content = {key: _finite(value) for key, value in self._status.items()}
        slow = straggler.words(self._stragglers.slow) if self._stragglers else ""
        content["note"] = "; ".join(filter(None, (self._status["note"], slow, self._cadence.words())))
        draft = self.settings.run_dir / (STATUS + ".tmp")
        try:
            draft.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
            draft.replace(self.settings.run_dir / STATUS)
        except OSError as error:
            # A full disk must not end training; the launcher sees a status that does not move.
            print(f"synergy: status file: {error.strerror}", file=sys.stderr, flush=True)


def _finite(value: Any) -> Any:
    """None for a float that JSON can't hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(loss: float | None) -> str:
    return "unknown" if loss is None else f"{loss:.6f}"
