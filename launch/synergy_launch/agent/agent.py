"""The agent: the part of Synergy inside each training process.

It times steps, writes the status file that the launcher reports from, and makes all ranks checkpoint, wait and stop at the
same step boundary. It talks to the launcher through the environment, signals and files only:

| from the launcher | meaning |
|---|---|
| SYNERGY_RUN_DIR | folder of status.json and of checkpoint-request (an integer that grows by one per request) |
| SYNERGY_PLAN_JSON | the Plan; absent: all ranks are data parallel |
| SYNERGY_OWN_BATCH | 1: nobody chose the plan's global batch |
| SYNERGY_RESTARTS | incarnation number |
| SYNERGY_CHECKPOINT_DIR | where checkpoints live, before the script's own argument |
| SYNERGY_MEMORY_DIR | this node's folder for memory checkpoints of this run (synergy_launch.agent.memory_saves); absent: none |
| SYNERGY_HOLD_S | seconds to wait after a requested checkpoint, so that a requeue at once loses no step (20) |
| SYNERGY_GRACE_S | seconds between SIGTERM and SIGKILL: a save that would take longer is not begun (25) |
| SYNERGY_STEP_LOG | one JSON line a step; relative to the run folder's parent (steps.jsonl) |
| SYNERGY_BACKGROUND_SAVES | 0: training waits for every checkpoint until it is written (1) |
| SYNERGY_SKIP_SPIKES | 1: the run may go back after a loss spike (synergy_launch.agent.loss_spike) |
| SYNERGY_COMM | how replicas exchange gradients (synergy_core.exchange); absent: exact |
| SYNERGY_GLOBAL_BATCH | LO:HI: the run may choose its own global batch in this range; `told`: a daemon chooses |
| SYNERGY_LINK_ARBITER | host:port to ask before an all-reduce between nodes (synergy_launch.links.hooks); absent: none is asked |
| SYNERGY_LINK_ARBITER_UID | the daemon's uid: only it, root and the job's own user are accepted as the arbiter |
| batch | file in the run folder: the global and micro-batch to go on with, as JSON; the daemon's choice |
| SIGUSR2 | checkpoint now and go on |
| SIGTERM | finish the step, checkpoint, exit 0 |

Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import gc
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypedDict, Unpack

from synergy_core.errors import SynergyError, one_line
from synergy_core.exchange import EXACT, Exchange
from synergy_core.job_report import LossSpike
from synergy_core.kernels import Kernels
from synergy_core.records import ModelSpec, Plan

from synergy_launch.agent import loss_spike, lost_loss, run_folder, straggler
from synergy_launch.agent.checkpoint import Checkpoint, CheckpointError, Checkpoints, FoundCheckpoint
from synergy_launch.agent.checkpointer import DISK_DUE, MEMORY_DUE, Checkpointer, Save, Stage
from synergy_launch.agent.collectives import Collectives, OneProcess
from synergy_launch.agent.full_disk import is_full_disk, with_free_space
from synergy_launch.agent.loss_spike import SpikeWatch
from synergy_launch.agent.lost_loss import LostLoss
from synergy_launch.agent.run_folder import REQUEST, note_full_disk, read_proposed_batch
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.agent.status_file import StatusFile
from synergy_launch.agent.step_timer import StepTimer
from synergy_launch.agent.straggler import Stragglers
from synergy_launch.batch.data_order import SkippedSamples
from synergy_launch.batch.tuner import BatchTuner

_BATCH_BITS = 31
_LAST_WRITES_S = 2.0  # the part of the grace for the status file and a clean end


@dataclass(frozen=True)
class Boundary:
    """The state after `step` that all ranks have agreed on. `save`: a checkpoint of it is wanted before `Agent.act`.

    `to_memory`: a memory checkpoint of it is due.
    """

    step: int
    request: int = 0
    stop: bool = False
    save: bool = True
    to_memory: bool = False


class StepFigures(TypedDict, total=False):
    """The figures that a script may give of a finished step, besides its loss."""

    #: the tokens of the whole run
    tokens: int | None
    #: in samples
    noise_scale: float | None
    #: an example's progress relative to exact communication
    comm_efficiency: float | None
    #: False: the replicas step alone, and an average ends this round of steps; its time counts as each one's mean (True)
    round_over: bool
    #: seconds of this rank's own work in the step, up to its first collective
    own_s: float | None
    #: examples trained, of `total`: from these the scheduler knows when the job ends, and whether it meets its deadline
    done: float | None
    total: float | None
    #: its gradient was finite
    finite: bool
    #: samples of the run's order trained so far, by a loop that leaves out `Agent.skipped`
    samples: int


class Agent:
    """One rank's agent. All ranks construct it, and call `start`, `after_step` and `finish` at the same points.

    `save(folder)` is given to `start`: it writes a checkpoint on all ranks and returns metadata to keep with it. `stage(folder)` may be
    given too: it copies the state, for checkpoints that are written while training goes on (synergy_launch.agent.background_save). Periodic
    checkpoints are written so; training waits for those that were asked for, and for the last one.
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
        exchanges_less: bool = False,
    ) -> None:
        if not exchanges_less:  # no plan may count on an exchange that the loop does not do
            settings = replace(settings, accepts={**(settings.accepts or {}), "exact_only": True})
        self.settings, self.plan = settings, plan
        self.ranks: Collectives = OneProcess() if ranks is None else ranks
        self.status = StatusFile(settings, plan, clock, monotonic)
        self.checkpointer = Checkpointer(settings, plan.gpus, self.status, monotonic)
        self.stragglers: Stragglers | None = None
        self._clock, self._monotonic, self._sleep = clock, monotonic, sleep
        self._peak_memory, self._device_memory = peak_memory, device_memory
        self._timer = StepTimer()
        self._mark = self._began = monotonic()
        self._stop = self._signalled = False  # set by the handlers of SIGTERM and SIGUSR2
        self._acknowledged = 0
        self._tuner: BatchTuner | None = None
        self._batch: tuple[int, int] | None = None  # (global, micro) that all ranks agreed to go on with
        self._refused: tuple[int, int] | None = None
        self._lost = LostLoss()
        self._spikes = SpikeWatch()
        self._may_skip = False  # rank 0 may go back to skip the examples that led to a spike
        self._is_postponed = False  # a checkpoint that was due at a harmful state
        self.checkpointer.more_history = lambda: {"spikes": self._spikes.state()}
        self.status.remarks = self._progress_notes
        self.status.write()

    # -- set-up -----------------------------------------------------------------------------------------------------

    def install_signals(self) -> None:
        """Install handlers that only set a flag: whatever is under way, a save included, is finished first."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGUSR2, self._on_usr2)

    def find_checkpoint(self, directory: Path | None) -> FoundCheckpoint:
        """Return the checkpoint to go on from. The launcher's folder comes before `directory`, the script's own argument."""
        folder = self.settings.checkpoint_dir or directory
        return (
            FoundCheckpoint(None)
            if folder is None
            else self.find_checkpoint_in(Checkpoints(folder.absolute(), self.ranks))
        )

    def find_bounded_plan(self, base_batch: int) -> Plan:
        """Return the plan for the very first step, its batch cut down to one that an earlier run has borne.

        Call it after checkpoints were looked for.
        """
        store = self.checkpointer.store
        self._lost = LostLoss(base_batch, self.ranks.broadcast(lost_loss.read(store.directory)) if store else None)
        if (batch := self._lost.limit_batch(self.plan, None)) is not None:
            self.plan = replace(self.plan, global_batch=batch[0], micro_batch=batch[1])
        return self.plan

    def find_checkpoint_in(self, checkpoints: Checkpoints) -> FoundCheckpoint:
        """Return the checkpoint to go on from in `checkpoints`, where this run's will lie too."""
        result = self.checkpointer.find_checkpoint(checkpoints)
        history = result.checkpoint.meta.get("agent") if result.checkpoint is not None else None
        self._spikes = SpikeWatch(history.get("spikes") if isinstance(history, dict) else None)
        return result

    @property
    def skipped(self) -> SkippedSamples:
        """Return the samples that the run leaves out, once checkpoints were looked for."""
        return self._spikes.skipped

    def start(
        self,
        step: int,
        *,
        save: Save | None = None,
        stage: Stage | None = None,
        checkpoint_interval: int | None = 0,
        resharding: bool = False,
        model: ModelSpec | None = None,
        tokens: int | None = None,
        base_batch: int | None = None,
        peers: int | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        """Start the agent; training goes on after `step` finished steps.

        `checkpoint_interval` is in steps; 0: on request and at the end only; None: the interval that loses least
        (synergy_launch.agent.checkpoint_interval). `base_batch` (M0) means that the script asks `take_batch` after each step: its batch may
        change while it runs. `peers` numbers the ranks that do the same work as this one (such as its pipeline stage): all ranks then give
        each step's `own_s`, and slow nodes are found. `kernels`: those of the run, as far as its adapter sees them.
        """
        plan = self.plan
        store = self.checkpointer.store
        if not self._lost.is_of(base_batch):
            self._lost = LostLoss(base_batch, lost_loss.read(store.directory if store else None))
        self.status.update(
            step=step,
            plan=asdict(plan),
            batch_bound=self._lost.bound,
            tokens=tokens,
            resharding=resharding,
            rebatching=base_batch is not None,
            base_batch=base_batch,
            model=asdict(model) if model else None,
            kernels=asdict(kernels) if kernels else None,
            checkpoint_step=self.checkpointer.durable_step(step),
        )
        self._show_spike()
        if base_batch is not None and self.settings.batch_range is not None and self.settings.rank == 0:
            self._tuner = BatchTuner(self.settings.batch_range, base_batch, self._device_memory())
        if peers is not None and self.ranks.world > 1:
            self.stragglers = Stragglers(self.ranks, peers)
        self.status.say(
            f"step {step}: tp={plan.tp} pp={plan.pp}{f' cp={plan.cp}' * (plan.cp > 1)} dp={plan.dp} micro_batch={plan.micro_batch} "
            f"global_batch={plan.global_batch} restarts={self.settings.restarts}"
        )
        self.status.enter("training")
        self._mark = self._began = self._monotonic()
        self.checkpointer.start(save, stage, checkpoint_interval, self._mark)

    # -- each step --------------------------------------------------------------------------------------------------

    def after_step(self, step: int, *, loss: float | None, **figures: Unpack[StepFigures]) -> bool:
        """Record a finished step; all ranks call it when `step` steps are finished. Return False to stop training now (SIGTERM).

        `loss`: the mean over the global batch, None where the script does not know it.
        """
        return self.act(self.look(step, loss=loss, **figures))

    def look(self, step: int, *, loss: float | None, **figures: Unpack[StepFigures]) -> Boundary:
        """Do the first half of `after_step`, for a training library that saves by itself and not when it is called.

        Where the boundary has `save`, call `act` after the library has saved, else at once.
        """
        now = self._monotonic()
        self.checkpointer.add_step(now - self._mark, self._timer.median_s)
        self._timer.add(now - self._mark, figures.get("round_over", True))
        self._mark = now
        if self.status["first_step_s"] is None:
            self.status.update(first_step_s=now - self._began)
        own_s, noise_scale = figures.get("own_s"), figures.get("noise_scale")
        self.status.update(
            step=step,
            step_s=self._timer.median_s,
            trained_s=now - self._began,
            loss=loss,
            tokens=figures.get("tokens"),
            noise_scale=noise_scale,
            comm_efficiency=figures.get("comm_efficiency"),
            done=figures.get("done"),
            total=figures.get("total"),
            state="training",
        )
        self.status.log_step(self.plan)
        if self.stragglers is not None and own_s is not None and self.stragglers.add(own_s):
            slow = sorted(self.stragglers.slow.items())
            self.status.update(slow_nodes=[node for node, _ in slow], slow_times=[times for _, times in slow])
        number = loss is None or math.isfinite(loss)
        finite = number and figures.get("finite", True)
        self._lost.record_step(finite)
        self._spikes.record_step(step, loss, self.plan.global_batch, finite=finite, samples=figures.get("samples"))
        request, stop, clock_due = self._agree(noise_scale)
        if self._lost.is_lost_for_good and not stop:
            self._go_back()
        if self._spikes.is_due and not stop:
            self._answer_spike(step)
        self._show_spike()
        due = clock_due == DISK_DUE or self.checkpointer.is_due_by_step(step) or self._is_postponed
        self._is_postponed = due and self._is_state_harmful
        if self._is_state_harmful:
            return Boundary(step, stop=stop, save=False)  # a good checkpoint is not replaced, and a request waits
        if stop:  # `_end` decides it: it saves if there is time
            due = self.ranks.broadcast(self.settings.grace_s > self.checkpointer.expected_save_s)
        return Boundary(step, request, stop, due or request > self._acknowledged, to_memory=clock_due == MEMORY_DUE)

    def act(self, boundary: Boundary, spent_s: float = 0.0) -> bool:
        """Do the second half of `after_step`. `spent_s`: the seconds that the library has taken for a checkpoint of this step."""
        step = boundary.step
        self.checkpointer.add_library_time(spent_s)
        if boundary.stop:
            self._end(step)
            return False
        if boundary.request > self._acknowledged:
            go_on = self._serve_request(step, boundary.request)
            self._mark = self._monotonic()
            return go_on
        if boundary.save:
            self.checkpointer.checkpoint(step, planned=False)
            self.status.enter("training")
            self._mark = self._monotonic()
        else:
            if boundary.to_memory:
                self.checkpointer.copy_to_memory(step)
                self._mark = self._monotonic()
            self.status.write_if_due()
        return True

    def take_batch(self, unit: int = 0) -> Plan | None:
        """Return the plan to go on with if its batch is to change now, else None; the same on all ranks.

        Only its batch differs. `unit`: the batch can only be a multiple of it, the largest up to the one planned, and the micro-batch
        stays.
        """
        batch, self._batch = self._batch, None
        if batch is not None and unit:
            batch = max(unit, batch[0] // unit * unit), self.plan.micro_batch
        if batch is None or batch == (self.plan.global_batch, self.plan.micro_batch):
            return None
        plan = replace(self.plan, global_batch=batch[0], micro_batch=batch[1])
        if plan.global_batch % (plan.dp * plan.micro_batch):
            if batch != self._refused:
                self.note(f"global batch {batch[0]} in micro-batches of {batch[1]} does not divide on dp={plan.dp}")
            self._refused = batch
            return None
        self.plan = plan
        self._timer = StepTimer(skip=1)
        self.status.update(plan=asdict(plan), step_s=None)
        return plan

    def record_exchange(self, comm: Exchange) -> None:
        """Record that the replicas exchange their gradients by `comm` from the next step on."""
        text = "" if comm == EXACT else str(comm)
        if self.status["comm"] != text:
            self._timer = StepTimer(skip=1)
            self.status.update(comm=text, step_s=None)

    def finish(self) -> None:
        """Take a last checkpoint and enter state `done`: all steps are done."""
        step, loss = self.status["step"], self.status["loss"]
        self.checkpointer.checkpoint(int(step))
        self.status.enter("done")
        self.status.say(f"done at step {step}, loss {'unknown' if loss is None else f'{loss:.6f}'}")
        if signal.getsignal(signal.SIGUSR2) == self._on_usr2:
            with contextlib.suppress(ValueError):  # not the main thread
                # Python takes handlers away before it ends: a late request would kill the process, and fail a finished job
                signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Enter state `failed` with a note if the body raises; a user's mistake ends the process with one line and code 2."""
        try:
            yield
        except SynergyError as error:
            message = self._note_full_disk(error, str(error))
            self._enter_failed_state(message)
            if self.settings.rank == 0:
                print(f"synergy: {message}", file=sys.stderr, flush=True)
            raise SystemExit(2) from None
        except Exception as error:
            if self._stop:
                # Its peers got the same SIGTERM and may have ended already: this is no fault of the script's.
                self._enter_failed_state(f"stopped by SIGTERM in the middle of a step ({type(error).__name__})")
                raise SystemExit(1) from None
            self._enter_failed_state(self._note_full_disk(error, f"{type(error).__name__}: {error}"))
            raise

    def note(self, text: str) -> None:
        """Print a line, and keep it in the status until something newer is noted."""
        self.status.note(text)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _on_term(self, _number: int, _frame: object) -> None:
        self._stop = True

    def _on_usr2(self, _number: int, _frame: object) -> None:
        self._signalled = True

    def _agree(self, noise_scale: float | None) -> tuple[int, bool, int]:
        """Return (newest checkpoint request, whether to stop, which checkpoint is due by the clock), the same on all ranks.

        Takes one all-reduce of a few integers. Also brings a checkpoint in the background further.
        """
        own_values = [self._newest_request(), int(self._stop), self._peak_memory() or 0]
        own_values += [self._proposal(noise_scale), self.checkpointer.due_by_clock, *self.checkpointer.state()]
        own_values.append(self._lost.in_a_row)  # a rank may not know the loss
        skips = int(self._spikes.can_skip and self.settings.skip_spikes)
        own_values += [self._spikes.steps, skips] if self.ranks.rank == 0 else [0, 0]
        request, stop, peak_bytes, batch, due, busy, failed, lost_steps, spiky, skips = self.ranks.maximum(own_values)
        self._spikes.agree(spiky)
        self._may_skip = bool(skips)
        self._lost.record_lost_steps(lost_steps, self.plan.global_batch)
        self.checkpointer.advance(busy, failed)
        self.status.update(peak_memory_bytes=peak_bytes or None)
        self._batch = (batch >> _BATCH_BITS, batch & (1 << _BATCH_BITS) - 1) if batch else None
        return request, bool(stop), due

    def _proposal(self, noise_scale: float | None) -> int:
        """Return rank 0's batch to go on with as one number, 0 for none: the daemon's, else the run's own choice."""
        if self.settings.rank != 0 or not self.status["rebatching"]:
            return 0
        batch = read_proposed_batch(self.settings.run_dir) if self.settings.run_dir is not None else None
        if batch is None and self._tuner is not None:
            peak_bytes = self.status["peak_memory_bytes"]  # the figure of the rank that uses most, a step ago
            loss = self.status["step"], self.status["loss"]
            limits = self._tuner.limits
            plan = self._tuner.after_step(self.plan, self._timer.median_s, noise_scale, peak_bytes, loss)
            if self._tuner.limits != limits:
                self.note(
                    f"global batch {self.plan.global_batch} is taken back to {plan.global_batch}: the loss does worse"
                )
            batch = plan.global_batch, plan.micro_batch
        batch = self._lost.limit_batch(self.plan, batch)
        if batch is None or batch == (self.plan.global_batch, self.plan.micro_batch):
            return 0
        return batch[0] << _BATCH_BITS | batch[1]

    def _go_back(self) -> None:
        """End the run, to go on from its last checkpoint, since the loss is lost for good; without a checkpoint shrink its batch."""
        self.checkpointer.settle()  # a checkpoint of an earlier step
        bound, store = self._lost.tighten_bound(), self.checkpointer.store
        saved = self.status["checkpoint_step"]
        if saved is not None:
            self._discard_memory()
        if store is not None and self.ranks.rank == 0:
            lost_loss.write(store.directory, bound)
        self.status.update(batch_bound=bound)
        if saved is None:
            self._lost.note_no_way_back()
            self.note(self._lost.format_loss_note())
            return
        self.status.enter("failed")
        self.note(f"{self._lost.format_loss_note()}, from the checkpoint of step {saved}")
        raise SystemExit(1)

    @property
    def _is_state_harmful(self) -> bool:
        """Return whether the present state is not to replace a good checkpoint, to which the run may go back soon."""
        return self._lost.is_harmful or (self._spikes.is_open and self._may_skip)

    def _show_spike(self) -> None:
        self.status.update(spike=asdict(self._spikes.spike) if self._spikes.spike else None)

    def _answer_spike(self, step: int) -> None:
        """End the run, to go on from a checkpoint from before the spike that lasts, or note why it goes on."""
        self.checkpointer.settle()  # a checkpoint of an earlier step
        obstacle = self._spike_obstacle() if self.ranks.rank == 0 else ""
        spike, why = self.ranks.broadcast((self._spikes.spike, obstacle))
        store = self.checkpointer.store
        if not why and store is not None:
            states: list[dict[str, Any]] = []  # rank 0's

            def amend(good: Checkpoint) -> dict[str, Any] | None:
                samples, history = good.meta.get("samples"), good.meta.get("agent") or {}
                if not isinstance(samples, int) or not 0 <= samples < self._spikes.samples:
                    return None
                states.append(
                    self._spikes.state_after_return(good.step, samples, history.get("spikes"), step, self._clock())
                )
                return {**good.meta, "agent": {**history, "spikes": states[-1]}}

            try:
                back = store.go_back(lambda steps: loss_spike.rank_steps(steps, spike.step), amend)
            except CheckpointError as error:
                back = None
                self.note(str(error))
            if back is not None:
                self._end_for_spike(LossSpike(**self.ranks.broadcast(states[-1]["spike"] if states else None)))
            why = "no-checkpoint"
        spike = replace(spike, answer=why)
        self._spikes.note_answer(spike)
        self.status.say(spike.describe())

    def _spike_obstacle(self) -> str:
        """Return why the run goes on in spite of the spike, as far as this rank knows: one of SPIKE_ANSWERS, or ""."""
        run_dir = self.settings.run_dir
        if not self._spikes.can_skip:
            return "own-order"
        if not self.settings.skip_spikes:
            return "not-allowed"
        if self.checkpointer.store is None or self.checkpointer.save is None:
            return "no-checkpoint"
        if run_dir is None or not run_folder.is_mended(run_dir):
            return "no-restart"
        return self._spikes.obstacle(self._clock())

    def _discard_memory(self) -> None:
        """Note on all nodes that no memory checkpoint is to undo what follows, before the first rank ends."""
        self.checkpointer.discard_memory()
        self.ranks.barrier()

    def _end_for_spike(self, spike: LossSpike) -> NoReturn:
        self._discard_memory()
        if self.settings.run_dir is not None and self.settings.local_rank == 0:
            with contextlib.suppress(OSError):
                run_folder.note_spike(self.settings.run_dir, spike)
        self.status.update(spike=asdict(spike), checkpoint_step=spike.checkpoint_step)
        self.status.enter("failed")
        self.note(spike.describe())
        raise SystemExit(1)

    def _newest_request(self) -> int:
        """Return the request number this rank knows of. Where a file counts them, a signal only means: look at the file."""
        signalled, self._signalled = self._signalled, False
        if self.settings.run_dir is not None and (self.settings.local_rank == 0 or signalled):
            try:
                return int((self.settings.run_dir / REQUEST).read_text(encoding="ascii"))
            except (OSError, ValueError):
                pass  # none yet, or just being written: the next step looks again
        return self._acknowledged + 1 if signalled else 0

    def _serve_request(self, step: int, request: int) -> bool:
        """Take a checkpoint, acknowledge it and hold. Return False if SIGTERM came meanwhile; the checkpoint is already there."""
        while request > self._acknowledged:
            good = self.checkpointer.checkpoint(step)
            self._acknowledged = request
            if not good:
                break
            self.status.update(checkpoint_requests=request)
            self.status.enter("waiting")
            request, stop = self._hold(request)
            if stop:
                self._end(step)
                return False
        self.status.enter("training")
        return True

    def _hold(self, request: int) -> tuple[int, bool]:
        """Wait until the time is up, or for a newer request or SIGTERM; the ranks leave together."""
        until = self._monotonic() + self.settings.hold_s
        while True:
            # Rank 0's clock decides when the time is up, so it is part of the agreement.
            over = self.ranks.rank == 0 and self._monotonic() >= until
            newest, stop, over_all = self.ranks.maximum([self._newest_request(), int(self._stop), int(over)])
            if stop or over_all or newest > request:
                return newest, bool(stop)
            self._sleep(min(0.2, max(0.0, self.settings.hold_s)))

    def _end(self, step: int) -> None:
        """Save after SIGTERM if there is time, and note where training stopped."""
        saves = self.checkpointer
        # Rank 0's estimate decides for all, or some would save and others leave.
        until = self._monotonic() + self.settings.grace_s
        latest = until - saves.expected_save_s
        saves.settle(lambda: self._monotonic() < latest)
        in_time = self.ranks.broadcast(self._monotonic() < latest)
        if saves.is_under_way:  # too late for this step: complete the checkpoint under way, and leave time for the note
            saves.settle(lambda: self._monotonic() < until - _LAST_WRITES_S)
        if in_time and not saves.is_under_way and not self._is_state_harmful:
            saves.checkpoint(step)
        saved = self.status["checkpoint_step"]
        self.status.update(state="waiting")
        self.note(f"stopped by SIGTERM at step {step}, last checkpoint: {'none' if saved is None else f'step {saved}'}")
        # Python looks through all that was imported before it ends: 1.0 of 1.1 s with torch and megatron-core (measured), and the next
        # run of a restart in place waits for it
        gc.freeze()

    def _note_full_disk(self, error: Exception, text: str) -> str:
        """Return `text`, with the free space where `error` says that a disk is full; the launcher then learns of it too."""
        if not is_full_disk(text):
            return text
        store = self.checkpointer.store
        folder = store.directory if store is not None else Path.cwd()
        if isinstance(error, OSError) and isinstance(error.filename, str):
            folder = Path(error.filename).absolute().parent
        if self.settings.run_dir is not None:
            with contextlib.suppress(OSError):  # the run folder may lie on the same disk
                note_full_disk(self.settings.run_dir, folder)
        return with_free_space(text, folder)

    def _enter_failed_state(self, why: str) -> None:
        self.status.update(note=one_line(why))
        self.status.enter("failed")

    def _progress_notes(self) -> tuple[str, str]:
        slow = straggler.format_slow_nodes(self.stragglers.slow) if self.stragglers else ""
        return slow, self.checkpointer.schedule.format()
