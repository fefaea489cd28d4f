"""A GPT on megatron-core, trained and checkpointed under any plan: the same run whatever its (tp, pp, dp).

Initial weights are drawn per parameter by its global name, samples by their number in the run, and checkpoints are
torch_dist ones that load under any other degrees. Works on GPUs (NCCL) and, through
synergy_launch.megatron_core.cpu_backend, on CPUs (gloo).
"""

from __future__ import annotations

import math
import os
import queue
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from synergy_core.errors import UsageError
from synergy_core.kernels import Kernels
from synergy_core.records import ModelSpec, Plan
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.api import CheckpointException

from synergy_launch.agent.background_save import StagedPart
from synergy_launch.agent.checkpoint import Checkpoint, error_cause
from synergy_launch.agent.collectives import TorchCollectives
from synergy_launch.batch.data_order import NOTHING_SKIPPED, SkippedSamples, rank_samples
from synergy_launch.batch.learning_rate import Following, at_batch
from synergy_launch.links.hooks import gate_megatron
from synergy_launch.megatron_core import checkpoint_reading
from synergy_launch.megatron_core.gradient_norms import GradientNoise
from synergy_launch.megatron_core.model import CPU, METADATA, build_model, check_model, initialise, transformer_config
from synergy_launch.megatron_core.optimizer_state import load_optimizer, optimizer_state
from synergy_launch.pytorch.checkpoint_files import without_crc
from synergy_launch.pytorch.forward_timer import ForwardTimer
from synergy_launch.pytorch.kernels import detect_kernels

with warnings.catch_warnings(action="ignore"):  # importable on a CPU too, since megatron_core.model was imported
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import USING_PYTORCH_OPTIMIZER, OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func


def start_process_group() -> TorchCollectives:
    """Start torch.distributed from torchrun's environment, or for this process alone (NCCL on GPUs, else gloo)."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if not dist.is_initialized() and "RANK" in os.environ:
        dist.init_process_group(backend)
    elif not dist.is_initialized():
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    return TorchCollectives()


class MegatronRun:
    """Model, optimizer and data order of one run under one plan.

    `sample(number)` gives the `seq + 1` token ids of that sample of the run. `distributed_optimizer` None: the plan's
    on GPUs, the plain one on CPUs, whose state reshards without repair. A checkpoint's kind comes before both.
    `lr` was tuned for `base_batch` (None: the plan's own), and follows `lr_rule` at the plan's batch; `schedule` gives a
    factor on it from the examples seen, as `count` counts them (synergy_launch.batch.learning_rate). `skipped`: samples to leave out.
    """

    def __init__(
        self,
        spec: ModelSpec,
        plan: Plan,
        ranks: TorchCollectives,
        sample: Callable[[int], Any],
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        clip: float = 1.0,
        seed: int = 0,
        bf16: bool = False,
        distributed_optimizer: bool | None = None,
        checkpoint: Checkpoint | None = None,
        noise: bool = True,
        base_batch: int | None = None,
        lr_rule: str = "sqrt",
        count: str = "examples",
        schedule: Callable[[float], float] = lambda examples: 1.0,
        skipped: SkippedSamples = NOTHING_SKIPPED,
    ) -> None:
        check_model(spec, plan)
        self.following = Following(base_batch or plan.global_batch, lr_rule, count)
        self.schedule, self.skipped = schedule, skipped
        self.note = ""  # what a user should know of how the run goes on
        self.spec, self.plan, self.ranks, self.sample, self.lr = spec, plan, ranks, sample, lr
        if distributed_optimizer is None:
            distributed_optimizer = plan.distributed_optimizer and torch.cuda.is_available()
        if checkpoint is not None:
            # The two kinds of optimizer can't read each other's state.
            distributed_optimizer = bool(checkpoint.meta.get("distributed_optimizer", distributed_optimizer))
        self.distributed_optimizer = distributed_optimizer
        self.device = torch.device("cuda", torch.cuda.current_device()) if CPU is None else torch.device("cpu")
        self.step = 0
        self.forward_timer = ForwardTimer()  # without the waits for other stages
        parallel_state.initialize_model_parallel(plan.tp, plan.pp, create_gloo_process_groups=True)
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
        self.dp_rank: int = parallel_state.get_data_parallel_rank()
        self.stage: int = parallel_state.get_pipeline_model_parallel_rank()
        self.last = bool(parallel_state.is_pipeline_last_stage())
        self.tp_rank: int = parallel_state.get_tensor_model_parallel_rank()
        dtype = torch.bfloat16 if bf16 else torch.float32
        self.config = transformer_config(spec, plan, dtype)
        model = build_model(spec, self.config, self.device)
        if checkpoint is None:
            initialise(model, seed, spec.layers)
        self.model = DistributedDataParallel(
            config=self.config,
            ddp_config=DistributedDataParallelConfig(
                grad_reduce_in_fp32=True,
                overlap_grad_reduce=False,
                use_distributed_optimizer=distributed_optimizer,
            ),
            module=model,
        )
        self.noise = (
            GradientNoise(self.model, plan, ranks, spec.tied_embeddings, distributed_optimizer) if noise else None
        )
        self.config.finalize_model_grads_func = (
            self.noise.wrap(finalize_model_grads) if self.noise else finalize_model_grads
        )
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=lr,
                weight_decay=weight_decay,
                adam_beta2=0.95,
                clip_grad=clip,
                bf16=bf16,
                params_dtype=dtype,
                use_distributed_optimizer=distributed_optimizer,
            ),
            [self.model],
        )
        if checkpoint is not None:
            self._load(checkpoint)
        reducers = parallel_state.get_data_parallel_group(with_context_parallel=True)
        self.link_gate = gate_megatron([self.model], reducers, copies=plan.tp)

    def train_step(self) -> float:
        """Train one optimizer step on the next global batch; return its mean loss, the same number on every rank."""
        plan = self.plan
        numbers = rank_samples(self.samples, plan.global_batch, plan.dp, self.dp_rank, plan.micro_batch)
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=iter(numbers),
            model=[self.model],
            num_microbatches=plan.micro_batches,
            seq_length=self.spec.seq,
            micro_batch_size=plan.micro_batch,
            forward_only=False,
        )
        rate = self.lr * self.schedule(self.following.examples_done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # decoupled: Megatron's own default, which the groups of Apex and Transformer Engine do not carry
        with at_batch(self.optimizer.param_groups, self.following, plan.global_batch, self.noise_scale, True):
            self.optimizer.step()
        mine = math.fsum(float(entry["loss"]) for entry in losses) if self.last and self.tp_rank == 0 else 0.0
        self.step += 1
        self.following.advance(plan.global_batch, self.noise_scale)
        return self.ranks.total([mine / (plan.micro_batches * plan.dp)])[0]

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write a checkpoint that any other plan can load; return the metadata to keep with it."""
        # A save that is waited for needs no queue between processes; Megatron's own takes 5 s to start one for it.
        filesystem_async._results_queue = queue.Queue()
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
        with _without_warnings(), without_crc():
            dist_checkpointing.save(self._state(is_loading=False), str(folder), strategy, content_metadata=METADATA)
        return self._meta()

    def stage_save(self, folder: Path) -> StagedPart:
        """Copy the state for a checkpoint that is written while training goes on."""
        results: queue.Queue[Any] = queue.Queue()
        filesystem_async._results_queue = results
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
        with _without_warnings():
            request = dist_checkpointing.save(
                self._state(is_loading=False),
                str(folder),
                strategy,
                async_sharded_save=True,
                content_metadata=METADATA,
            )
            buckets = request.preload_fn() if request.preload_fn is not None else []
        if CPU is not None:  # "moved to the host", where training goes on with the same memory
            buckets = [(f, k, (items, [(i, t.clone()) for i, t in tensors])) for f, k, (items, tensors) in buckets]
        transforms = request.async_fn.args[0] if request.async_fn is not None else []

        def write() -> None:
            # Megatron's own writer forks a process for this, which is safe only while no other thread runs
            written: dict[int, Any] = {}
            for number, bucket in enumerate(buckets):
                done: queue.Queue[Any] = queue.Queue()
                count: queue.Queue[int] = queue.Queue()
                count.put(number)
                with without_crc():
                    filesystem_async.FileSystemWriterAsync.write_preloaded_data(
                        transforms, number, bucket, done, count, use_fsync=True
                    )
                written[number] = done.get_nowait()[1]
                if isinstance(written[number], Exception):
                    raise written[number]
            if buckets:
                results.put(written)

        def finish() -> None:
            with _without_warnings():
                for last in request.finalize_fns:
                    last()

        return StagedPart(self._meta(), write, finish)

    def _meta(self) -> Mapping[str, Any]:
        return {
            "kind": "megatron",
            **self.following.state(),
            "distributed_optimizer": self.distributed_optimizer,
            "noise": self.noise.scale.state() if self.noise else None,
        }

    def close(self) -> None:
        """Take Megatron's groups down; another run may follow in this process."""
        if self.link_gate is not None:
            self.link_gate.close()
        parallel_state.destroy_model_parallel()

    def follow(self, plan: Plan) -> None:
        """Train with this plan, which differs in its batch alone, from the next step on."""
        self.plan = plan
        if self.noise:
            self.noise.follow(plan)

    @property
    def samples(self) -> int:
        return self.following.samples

    @property
    def tokens(self) -> int:
        return self.samples * self.spec.seq

    @property
    def noise_scale(self) -> float | None:
        return self.noise.scale.value if self.noise else None

    @property
    def kernels(self) -> Kernels:
        """Return the kernels of the local layers that `transformer_config` asks for."""
        return replace(
            detect_kernels(self.model),
            attention=False,
            softmax=bool(self.config.masked_softmax_fusion or not self.config.attention_softmax_in_fp32),
            pointwise=bool(self.config.bias_activation_fusion and self.config.bias_dropout_fusion),
            accumulation=bool(self.config.gradient_accumulation_fusion),
            optimizer=not USING_PYTORCH_OPTIMIZER,
        )

    def _load(self, checkpoint: Checkpoint) -> None:
        if checkpoint.meta.get("kind") != "megatron":
            raise UsageError(
                f"checkpoint {checkpoint.path}", "was not written by a Megatron run", "name another folder"
            )
        checkpoint_reading.install()
        state = self._state(is_loading=True)
        try:
            with _without_warnings():
                loaded = dist_checkpointing.load(state, str(checkpoint.path))
        except (Exception, CheckpointException) as error:
            # It is intact (its digests match), so what it holds is another model.
            what = f"does not fit this model: {error_cause(error)}"
            raise UsageError(f"checkpoint {checkpoint.path}", what, "use the model sizes it was made with") from error
        self.model.module.load_state_dict(loaded["model"])
        load_optimizer(self.optimizer, loaded["optimizer"])
        self.step = checkpoint.step
        self.note = self.following.restore(checkpoint.meta)
        if self.noise and checkpoint.meta.get("noise"):
            self.noise.scale.restore(checkpoint.meta["noise"])

    def _state(self, is_loading: bool) -> dict[str, Any]:
        state: dict[str, Any] = {"model": self.model.module.sharded_state_dict(metadata=METADATA)}
        state["optimizer"] = optimizer_state(self.optimizer, state, is_loading, METADATA)
        return state

    def _forward(self, numbers: Any, model: Any) -> tuple[Any, Any]:
        """Run Megatron's forward_step: return (output, function of the output that gives the loss)."""
        rows = [list(self.sample(self.skipped.number(number))) for number in next(numbers)]
        window = torch.tensor(rows, dtype=torch.long, device=self.device)
        tokens, labels = window[:, :-1].contiguous(), window[:, 1:].contiguous()
        positions = torch.arange(self.spec.seq, device=self.device).expand(len(rows), -1)
        mask = torch.ones((1, 1, self.spec.seq, self.spec.seq), dtype=torch.bool, device=self.device).triu(1)
        self.forward_timer.begin()
        output = model(tokens, positions, mask, labels=labels)
        self.forward_timer.end()
        return output, partial(_mean_loss)


def _without_warnings() -> warnings.catch_warnings[None]:
    """Return a context that hides Megatron's warnings of what torch will drop some day, which would bury a user's own output."""
    return warnings.catch_warnings(action="ignore")


def _mean_loss(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    # A copy: Megatron divides the loss in place.
    return loss, {"loss": loss.detach().clone()}
