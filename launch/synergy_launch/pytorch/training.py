"""Synergy in a plain PyTorch training loop: DDP, FSDP2 with tensor, context and pipeline parallel, or one process.

    dist.init_process_group()
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters())
    with SynergyTask(model, optimizer, global_batch=64, checkpoint="/shared/run1") as task:
        for inputs, labels in task.batches(dataset, steps=1000):
            task.step(loss_function(model(inputs), labels))

The data-parallel degree and the global batch may differ from one start to the next, and the batch from one step to the
next: the order of the examples does not, the learning rate follows (synergy_launch.batch.learning_rate).
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from synergy_core.errors import UsageError
from synergy_core.exchange import EXACT, parse_exchange
from synergy_core.records import ModelSpec, Plan
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import DeviceMesh

from synergy_launch.agent.agent import Agent
from synergy_launch.agent.background_save import StagedPart
from synergy_launch.agent.checkpoint import Checkpoint, error_cause
from synergy_launch.agent.collectives import Collectives, OneProcess, TorchCollectives
from synergy_launch.agent.early_requests import ignore_early_requests
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.agent.user_errors import exit_on_error
from synergy_launch.batch.learning_rate import at_batch
from synergy_launch.batch.noise_scale import NoiseScale
from synergy_launch.communication.choice import choose_exchange, set_up_communication
from synergy_launch.links.fsdp_gate import gate_fsdp
from synergy_launch.links.hooks import gate_ddp
from synergy_launch.pytorch.batch_loop import BatchLoop, make_following
from synergy_launch.pytorch.checkpoint_files import CheckpointWriter
from synergy_launch.pytorch.device import device_memory, peak_memory
from synergy_launch.pytorch.forward_timer import ForwardTimer
from synergy_launch.pytorch.gradient_norms import GradientNorms, clip_gradients
from synergy_launch.pytorch.kernels import detect_kernels
from synergy_launch.pytorch.mesh import data_rank, mesh_degrees
from synergy_launch.pytorch.rng_state import load_random, save_random
from synergy_launch.pytorch.run_plan import resumed_plan, run_plan
from synergy_launch.pytorch.run_settings import check_split, run_settings
from synergy_launch.pytorch.training_state import HostCopy, TrainingState, without_warnings

if TYPE_CHECKING:
    from synergy_launch.pytorch.pipeline import Pipeline


class SynergyTask(BatchLoop):
    """One rank's side of a run. All ranks make it, after the process group, with the same arguments.

    `global_batch` (examples) is the batch that the optimizer's learning rate was tuned for. It and `micro_batch` (None:
    the global batch over the ranks) hold where Synergy gave no plan. At another batch the rate follows `lr_rule`
    (adascale, sqrt, linear, none; "": the usual one of the optimizer), and `count` is what schedules and the run's end
    are counted in (examples, progress; "": progress under adascale, else examples). With `batch_range` (low, high)
    the run chooses its batch itself, unless a daemon does.
    `checkpoint` is the folder of checkpoints, before which SYNERGY_CHECKPOINT_DIR comes; `checkpoint_interval` in
    steps, 0: on request and at the end, None: as often as loses least; between them training goes on while one is written
    from a copy in host memory, unless SYNERGY_BACKGROUND_SAVES=0. `scheduler` is kept with the optimizer and stepped once for every
    `global_batch` examples. `clip` bounds the norm of the gradient; `scaler` is a torch.amp.GradScaler, if losses need
    one. `tokens_per_sample` turns samples into the tokens that are reported. `mesh` is plan_mesh()'s, of a model that is
    cut over its dimension tp and shared out over data_mesh(mesh); with `model_spec` the scheduler knows what a tp costs,
    and chooses it. `pipeline` (synergy_launch.Pipeline) means that the script can cut its model into stages over pp, `cp` that it can
    cut its sequences over cp: the scheduler may then choose these degrees too. `comm` lets DDP's replicas exchange less, such as
    local:8 (synergy_core.exchange), where Synergy told nothing; "": exact.

    A mistake in the arguments or the environment ends the process with one line and exit code 2; SIGTERM, after a
    checkpoint, with code 0, from inside `batches`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        global_batch: int,
        micro_batch: int | None = None,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        checkpoint_interval: int | None = None,
        scheduler: Any = None,
        clip: float | None = None,
        scaler: Any = None,
        tokens_per_sample: int = 1,
        lr_rule: str = "",
        count: str = "",
        batch_range: tuple[int, int] | None = None,
        mesh: DeviceMesh | None = None,
        model_spec: ModelSpec | None = None,
        comm: str = "",
        pipeline: Pipeline | None = None,
        cp: bool = False,
    ) -> None:
        self.model, self.optimizer, self.scheduler, self.seed, self.clip = model, optimizer, scheduler, seed, clip
        self.scaler = scaler
        self._tokens_per_sample = tokens_per_sample
        together = dist.is_available() and dist.is_initialized()
        with exit_on_error():
            world = dist.get_world_size() if together else 1
            of = mesh_degrees(mesh, world)
            tied = model_spec is not None and model_spec.tied_embeddings
            settings = run_settings(model, optimizer, scaler, batch_range, mesh, world, pipeline is not None, cp, tied)
            check_split(of, scaler, pipeline is not None, cp, tied)
            self.following = make_following(optimizer, global_batch, lr_rule, count)
            self.plan = run_plan(settings, of, global_batch, micro_batch)
            self.exchange, why = choose_exchange(settings.exchange, comm, model, optimizer, of.dp)
            self._data_rank = data_rank(dist.get_rank() if together else 0, of)
            self._pipeline = pipeline if of.pp > 1 else None  # the schedule of one stage is a loop's own
            self.ranks: Collectives = TorchCollectives() if together else OneProcess()
            self.agent = Agent(
                settings,
                self.plan,
                self.ranks,
                peak_memory=peak_memory,
                device_memory=device_memory,
                exchanges_less=True,  # what can't is in the settings
            )
            self.agent.install_signals()
            if why:
                self.agent.note(why)
            newest = self.agent.find_checkpoint(Path(checkpoint) if checkpoint else None).checkpoint
            self.noise = NoiseScale()
            self._state = TrainingState(model, optimizer, by_name=pipeline is not None)
            if newest is not None:
                self._resume(newest, settings)
            self.plan = self.agent.find_bounded_plan(self.following.base)
        self._beside: dist.ProcessGroup | None = None  # for what is written while training goes on
        self._copy = HostCopy()
        self._losses: list[torch.Tensor] = []
        self._norms = GradientNorms(model, self.plan)
        self._own = ForwardTimer()
        if self._pipeline is not None:
            self._begin_pipeline(self._pipeline)
        self.agent.start(
            self.step_count,
            save=self._save,
            stage=self._stage,
            checkpoint_interval=checkpoint_interval,
            resharding=mesh is not None,
            model=model_spec,
            tokens=self.samples * tokens_per_sample,
            base_batch=self.following.base,
            peers=pipeline.stage if pipeline is not None else 0,
            kernels=detect_kernels(model, optimizer),
        )
        self._note_batch()
        self.link_gate = gate_ddp(model) or gate_fsdp(model)
        self._begin_communication(newest)

    def _resume(self, newest: Checkpoint, settings: AgentSettings) -> None:
        self._load(newest)
        self.plan = self.agent.plan = resumed_plan(self.plan, settings, newest.meta.get("batch"))

    def _begin_pipeline(self, pipeline: Pipeline) -> None:
        pipeline.follow(self.plan.micro_batches)
        # without the waits for other stages
        self.model.register_forward_pre_hook(lambda *_: self._own.begin())
        self.model.register_forward_hook(lambda *_: self._own.end())

    def _begin_communication(self, newest: Checkpoint | None) -> None:
        self.less = set_up_communication(self.exchange, self.model, self.optimizer, self.link_gate)
        self._less_kept: dict[str, Any] | None = newest.meta.get("comm") if newest is not None else None
        if self.less is not None:
            if newest is not None and self._less_kept is not None:
                self._resume_communication(newest, self._less_kept)
            self._follow()

    def __exit__(self, *error: Any) -> None:
        if self.link_gate is not None:
            self.link_gate.close()
        super().__exit__(*error)

    def _loader_plan(self) -> Plan:
        plan = self.plan
        return plan if self._pipeline is None else replace(plan, micro_batch=plan.global_batch // plan.dp)

    def _before_step(self) -> None:
        if self.less is not None and self.less.begin(self._rate(), self.samples / self.following.base):
            self._follow()

    def _micro_batch_context(self, micro_step: int) -> contextlib.AbstractContextManager[Any]:
        if self.less is not None and self.less.skips_averaging:
            return self.less.replicas.model.no_sync()
        return self._norms.sync_context(micro_step)

    def _prepare_batch(self, batch: Any) -> Any:
        self._own.begin()
        return batch

    def step(self, loss: torch.Tensor) -> None:
        """Run the backward pass of one micro-batch's mean loss.

        On the last one of a step also make the optimizer's step. With a pipeline `loss` is its answer for the step,
        whose backward pass is done.
        """
        self._losses.append(loss.detach())
        if self._pipeline is None and not self._backward(loss):
            return
        losses = torch.stack(self._losses).mean()
        self._losses.clear()
        scale, less = self._scale(), self.less
        mean, sums = self._norms.take(losses, 1.0 / scale)
        more = less.gradients() if less is not None else []
        mean = mean * self.plan.pp / self.ranks.world  # each stage but the last has 0
        shares = [mean, sums.small, sums.big, self._norms.vote]
        loss_all, small, big, votes, *measured = self.ranks.total([*shares, *more])
        b_small, b_big = self._norms.agreed_batches(votes)
        each = self.ranks.world if less is not None and less.skips_averaging else 1  # the norms are each replica's own
        if less is not None:
            less.take_sums(measured)
        self.noise.update(small / each, big / each, b_small, b_big)
        rate, noise = self._rate(), self.noise.value
        self._update()
        if less is not None:
            less.after_step(rate)
        for _ in range(self.following.advance(self.plan.global_batch, noise)):
            if self.scheduler is not None:
                self.scheduler.step()
        self.step_count += 1
        self._go_on = self.agent.after_step(
            self.step_count,
            loss=loss_all,
            tokens=self.samples * self._tokens_per_sample,
            noise_scale=noise,
            comm_efficiency=less.efficiency if less is not None and less.active else None,
            round_over=less is None or less.round_over,
            own_s=self._own.take(),
            done=self.following.examples_done,
            total=self.following.total,
            samples=self.samples,
            finite=self.scaler is not None or math.isfinite(big),  # a scaler leaves such a step out
        )
        if less is not None and less.active:
            self.agent.record_exchange(less.exchange_in_use)
        changed = self.agent.take_batch()
        if changed is not None:
            self._settle()  # what is under way is of the batch before
            self.plan = changed
            if self._pipeline is not None:
                self._pipeline.follow(changed.micro_batches)
            self._follow()
            self._note_batch()

    def _backward(self, loss: torch.Tensor) -> bool:
        """Run the backward pass of one micro-batch; return whether it is the step's last one."""
        self._own.end()
        count = self.plan.micro_batches
        scaled = loss / count if self.scaler is None else self.scaler.scale(loss / count)
        scaled.backward()
        self._norms.after_backward(len(self._losses))
        return len(self._losses) == count

    def _update(self) -> None:
        """Make a step with the present gradients."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.clip is not None:
            clip_gradients(self.model, self.clip, self._pipeline.group if self._pipeline is not None else None)
        with at_batch(self.optimizer.param_groups, self.following, self.plan.global_batch, self.noise.value):
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
        self.optimizer.zero_grad()

    def _scale(self) -> float:
        scale = float(self.scaler.get_scale()) if self.scaler is not None else 1.0
        return scale if scale > 0 else 1.0

    def _rate(self) -> float:
        """Return the schedule's learning rate, for the tuned batch."""
        return max(float(group.get("lr", 0.0)) for group in self.optimizer.param_groups)

    def _follow(self) -> None:
        """Make norms and reports follow the plan, and what the replicas exchange now."""
        less, plan = self.less, self.plan
        if less is not None and less.skips_averaging:  # each as a run of its own
            plan = replace(plan, dp=1, global_batch=plan.global_batch // plan.dp)
        self._norms.follow(plan)
        self.agent.record_exchange(less.exchange_in_use if less is not None and less.active else EXACT)

    def _settle(self) -> None:
        """Bring all replicas to the same state, so that a run that goes on and one that starts from it do the same."""
        if self.less is not None:
            self.less.settle()
            if self.scaler is not None and self.less.skips_averaging:  # an overflow may have been one replica's own
                self.scaler.load_state_dict(self.ranks.broadcast(self.scaler.state_dict()))
            self._follow()  # pairs of steps begin anew after a start

    def _note_batch(self) -> None:
        words = self.following.format_factors(self.plan.global_batch, self.noise.value)
        if words:
            self.agent.note(words)

    def _full_state(self) -> dict[str, Any]:
        self._settle()
        return self._state.read()

    def _save(self, folder: Path) -> Mapping[str, Any]:
        with without_warnings():
            alone = isinstance(self.ranks, OneProcess)
            dcp_save(self._full_state(), storage_writer=CheckpointWriter(folder), no_dist=alone)
        save_random(folder, self.ranks)
        return self._meta()

    def _stage(self, folder: Path) -> StagedPart:
        alone = isinstance(self.ranks, OneProcess)
        if self._beside is None and not alone:
            self._beside = dist.new_group(backend="gloo")
        if alone:  # warned of in the thread that writes, which no context of this one reaches
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        state = self._full_state()
        error = self._copy.obstacle(state) or self._save_random_state(folder)
        if self.ranks.maximum([1 if error else 0])[0]:  # all or none: a rank that stays away would block the others
            self._copy.close()  # nothing is staged any more
            raise RuntimeError(error or "another rank can't copy its part")
        try:
            with without_warnings():
                written = async_save(
                    state,
                    storage_writer=CheckpointWriter(folder),
                    process_group=self._beside,
                    no_dist=alone,
                    **self._copy.options(state),
                )
        except BaseException:
            self._copy.close()
            raise
        assert isinstance(written, Future)
        return StagedPart(self._meta(), written.result)

    def _save_random_state(self, folder: Path) -> str:
        """Save the random generators; return why they can't be saved, "" if they are."""
        try:
            save_random(folder, self.ranks)
        except Exception as error:
            return error_cause(error)
        return ""

    def _meta(self) -> Mapping[str, Any]:
        comm = self._less_kept  # for the replicas that may come again
        if self.less is not None:
            comm = {"exchange": str(self.exchange), **self.less.state()}
        if comm:
            comm = {**comm, "tensors": []}  # which 0.2.0 looks for
        return {
            **({"comm": comm} if comm else {}),
            "kind": "pytorch",
            "by_name": self._state.by_name,
            "batch": [self.plan.global_batch, self.plan.micro_batch],
            **self.following.state(),
            "noise": self.noise.state(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "scaler": self.scaler.state_dict() if self.scaler is not None else None,
        }

    def _load(self, checkpoint: Checkpoint) -> None:
        where = f"checkpoint {checkpoint.path}"
        if checkpoint.meta.get("kind") != "pytorch":
            raise UsageError(where, "was not written by a plain PyTorch run", "name another folder")
        by_name = bool(checkpoint.meta.get("by_name"))
        try:
            self._state.load(checkpoint.path, by_name, alone=isinstance(self.ranks, OneProcess))
        except (Exception, CheckpointException) as error:
            # It is intact (its digests match), so it holds another model or optimizer.
            what = f"does not fit this model and optimizer: {error_cause(error)}"
            raise UsageError(where, what, "use what it was made with, or another folder") from error
        if self.scheduler is not None and checkpoint.meta.get("scheduler"):
            self.scheduler.load_state_dict(checkpoint.meta["scheduler"])
        if self.scaler is not None and checkpoint.meta.get("scaler"):
            self.scaler.load_state_dict(checkpoint.meta["scaler"])
        self.step_count = checkpoint.step
        batch_note = self.following.restore(checkpoint.meta)
        if batch_note:
            self.agent.note(batch_note)
        self.noise.restore(checkpoint.meta["noise"])
        load_random(checkpoint.path, self.ranks)

    def _resume_communication(self, checkpoint: Checkpoint, replica_state: Mapping[str, Any]) -> None:
        """Go on where the replicas were, if they exchanged in the same way."""
        assert self.less is not None
        before = parse_exchange(str(replica_state["exchange"]), f"checkpoint {checkpoint.path}")
        if before.kind == self.exchange.kind:
            self.less.restore(replica_state)


ignore_early_requests()
