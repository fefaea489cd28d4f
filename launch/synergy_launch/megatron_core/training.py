"""A GPT on megatron-core, trained and checkpointed under any plan: the same run whatever its (tp, pp, dp).

Initial weights are drawn per parameter by its global name, samples by their number in the run, and checkpoints are
torch_dist ones that load under any other degrees. Works on GPUs (NCCL) and, through synergy_launch.megatron_core.cpu_backend, on CPUs
(gloo).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import queue
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.api import CheckpointException

from synergy_launch.agent.background_save import Staged
from synergy_launch.agent.checkpoint import Checkpoint, reason
from synergy_launch.agent.collectives import TorchCollectives
from synergy_launch.agent.settings import check_degrees
from synergy_launch.batch.data_order import rank_samples
from synergy_launch.batch.learning_rate import Following, at_batch
from synergy_launch.megatron_core import cpu_backend
from synergy_launch.pytorch.forward_timer import ForwardTimer
from synergyd.errors import UsageError
from synergyd.records import ModelSpec, Plan

# Megatron orders communication before computation by it when tp > 1; it must be there before CUDA starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

with warnings.catch_warnings():
    # "Transformer Engine and Apex are not installed": Megatron's own fallbacks are what is wanted then.
    warnings.simplefilter("ignore")
    CPU = cpu_backend.install()  # before the rest of megatron is imported; None where there is a GPU
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.enums import ModelType
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

from synergy_launch.links.hooks import gate_megatron
from synergy_launch.megatron_core.gradient_norms import GradientNoise
from synergy_launch.megatron_core.optimizer_state import load_optimizer, optimizer_state

METADATA = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}
_INIT_STD = 0.02
# Two matrices feed each residual stream; theirs are scaled by 1/sqrt(2 layers), as GPT-2's and Megatron's are.
_RESIDUAL = ("linear_proj.weight", "linear_fc2.weight")


def start_process_group() -> TorchCollectives:
    """torch.distributed from torchrun's environment, or of this process alone (NCCL on GPUs, else gloo)."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if not dist.is_initialized() and "RANK" in os.environ:
        dist.init_process_group(backend)
    elif not dist.is_initialized():
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    return TorchCollectives()


def check_model(spec: ModelSpec, plan: Plan) -> None:
    """Raises UsageError, in one line, where `plan` can't divide the model."""
    where = f"plan tp={plan.tp} pp={plan.pp} dp={plan.dp}"
    check_degrees(plan, ("tp", "pp"), "plan")
    if spec.experts:
        raise UsageError("model", f"{spec.experts} experts", "this script trains dense models")
    if spec.hidden % spec.heads:
        raise UsageError("model", f"{spec.heads} heads can't divide a hidden size of {spec.hidden}", "a multiple")
    if spec.heads % spec.kv_heads:
        raise UsageError("model", f"{spec.kv_heads} key-value heads can't divide {spec.heads} heads", "a divisor")
    for name, size in (("heads", spec.heads), ("key-value heads", spec.kv_heads), ("MLP width", spec.ffn)):
        if size % plan.tp:
            raise UsageError(where, f"tp={plan.tp} can't divide {size} {name}", f"tp must be a divisor of {size}")
    if spec.layers % plan.pp:
        raise UsageError(where, f"pp={plan.pp} can't divide {spec.layers} layers", f"pp must divide {spec.layers}")
    if padded_vocab(spec) % plan.tp:
        raise UsageError(where, f"tp={plan.tp} can't divide a vocabulary of {padded_vocab(spec)}", "a power of two")
    if plan.sequence_parallel and spec.seq % plan.tp:
        raise UsageError(where, f"tp={plan.tp} can't divide sequences of {spec.seq}", f"tp must divide {spec.seq}")


def padded_vocab(spec: ModelSpec) -> int:
    """The vocabulary as laid out: a multiple of 128 on every plan, or padding would change losses with tp."""
    return -(-spec.vocab // 128) * 128


class MegatronRun:
    """Model, optimizer and data order of one run under one plan.

    `sample(number)` gives the `seq + 1` token ids of that sample of the run. `distributed_optimizer` None: as the plan
    says on GPUs, the plain one on CPUs, whose state reshards without repair; a checkpoint's kind comes before both.
    `lr` was tuned for `base_batch` (None: the plan's own), and follows `lr_rule` at the plan's batch; `schedule` gives a
    factor on it from the examples seen, as `count` counts them (synergy_launch.batch.learning_rate).
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
    ) -> None:
        check_model(spec, plan)
        self.following = Following(base_batch or plan.global_batch, lr_rule, count)
        self.schedule = schedule
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
        self.own = ForwardTimer()  # of the forward passes, without the waits for other stages
        parallel_state.initialize_model_parallel(plan.tp, plan.pp, create_gloo_process_groups=True)
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
        self.dp_rank: int = parallel_state.get_data_parallel_rank()
        self.stage: int = parallel_state.get_pipeline_model_parallel_rank()
        self.first = bool(parallel_state.is_pipeline_first_stage())
        self.last = bool(parallel_state.is_pipeline_last_stage())
        self.tp_rank: int = parallel_state.get_tensor_model_parallel_rank()
        dtype = torch.bfloat16 if bf16 else torch.float32
        self.config = _transformer_config(spec, plan, dtype)
        model = GPTModel(
            config=self.config,
            transformer_layer_spec=_layers(self.config),
            vocab_size=padded_vocab(spec),
            max_sequence_length=spec.seq,
            pre_process=self.first,
            post_process=self.last,
            share_embeddings_and_output_weights=spec.tied_embeddings,
            position_embedding_type="rope",
        )
        model.model_type = ModelType.encoder_or_decoder
        model.to(self.device, dtype)
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
        """One optimizer step on the next global batch; its mean loss, the same number on every rank."""
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
        rate = self.lr * self.schedule(self.following.done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # decoupled: Megatron's own default, which Apex's and Transformer Engine's groups do not tell
        with at_batch(self.optimizer.param_groups, self.following, plan.global_batch, self.noise_scale, True):
            self.optimizer.step()
        mine = math.fsum(float(entry["loss"]) for entry in losses) if self.last and self.tp_rank == 0 else 0.0
        self.step += 1
        self.following.advance(plan.global_batch, self.noise_scale)
        return self.ranks.total([mine / (plan.micro_batches * plan.dp)])[0]

    def save(self, folder: Path) -> Mapping[str, Any]:
        """Write a checkpoint that any other plan can load; the metadata to keep with it."""
        # A save that is waited for needs no queue between processes; Megatron's own takes 5 s to start one for it.
        filesystem_async._results_queue = queue.Queue()
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
        with _quiet():
            dist_checkpointing.save(self._state(is_loading=False), str(folder), strategy, content_metadata=METADATA)
        return self._meta()

    def stage_save(self, folder: Path) -> Staged:
        """Copy the state for a checkpoint that is written while training goes on."""
        results: queue.Queue[Any] = queue.Queue()
        filesystem_async._results_queue = results
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
        with _quiet():
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
            found: dict[int, Any] = {}
            for number, bucket in enumerate(buckets):
                done: queue.Queue[Any] = queue.Queue()
                count: queue.Queue[int] = queue.Queue()
                count.put(number)
                filesystem_async.FileSystemWriterAsync.write_preloaded_data(
                    transforms, number, bucket, done, count, use_fsync=True
                )
                found[number] = done.get_nowait()[1]
                if isinstance(found[number], Exception):
                    raise found[number]
            if buckets:
                results.put(found)

        def finish() -> None:
            with _quiet():
                for last in request.finalize_fns:
                    last()

        return Staged(self._meta(), write, finish)

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
        """From the next step on train with this plan, which differs in its batch alone."""
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

    def _load(self, checkpoint: Checkpoint) -> None:
        if checkpoint.meta.get("kind") != "megatron":
            raise UsageError(
                f"checkpoint {checkpoint.path}", "was not written by a Megatron run", "name another folder"
            )
        state = self._state(is_loading=True)
        try:
            with _quiet():
                loaded = dist_checkpointing.load(state, str(checkpoint.path))
        except (Exception, CheckpointException) as error:
            # It is intact (its digests match), so what it holds is another model.
            what = f"does not fit this model: {reason(error)}"
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
        """Megatron's forward_step: (output, function of the output that gives the loss)."""
        rows = [list(self.sample(number)) for number in next(numbers)]
        window = torch.tensor(rows, dtype=torch.long, device=self.device)
        tokens, labels = window[:, :-1].contiguous(), window[:, 1:].contiguous()
        positions = torch.arange(self.spec.seq, device=self.device).expand(len(rows), -1)
        mask = torch.ones((1, 1, self.spec.seq, self.spec.seq), dtype=torch.bool, device=self.device).triu(1)
        self.own.begin()
        output = model(tokens, positions, mask, labels=labels)
        self.own.end()
        return output, partial(_mean_loss)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Megatron's warnings of what torch will drop some day: they would bury a user's own output."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _mean_loss(output: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = output.float().mean()
    # A copy: Megatron divides the loss in place.
    return loss, {"loss": loss.detach().clone()}


def _transformer_config(spec: ModelSpec, plan: Plan, dtype: torch.dtype) -> TransformerConfig:
    recompute: dict[str, Any] = {}
    if plan.recompute == "full":
        recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    elif plan.recompute == "selective":
        recompute = {"recompute_granularity": "selective"}
    elif plan.recompute != "none":
        raise UsageError("plan", f"recompute={plan.recompute}", "none, selective or full")
    with _quiet():
        return TransformerConfig(
            num_layers=spec.layers,
            hidden_size=spec.hidden,
            num_attention_heads=spec.heads,
            num_query_groups=spec.kv_heads,
            ffn_hidden_size=spec.ffn,
            gated_linear_unit=spec.gated,
            activation_func=torch.nn.functional.silu if spec.gated else torch.nn.functional.gelu,
            add_bias_linear=not spec.gated,
            normalization="RMSNorm" if spec.gated else "LayerNorm",
            # Dropout would draw other numbers on other plans.
            hidden_dropout=0.0,
            attention_dropout=0.0,
            tensor_model_parallel_size=plan.tp,
            pipeline_model_parallel_size=plan.pp,
            sequence_parallel=plan.sequence_parallel and plan.tp > 1,
            params_dtype=dtype,
            pipeline_dtype=dtype,
            bf16=dtype is torch.bfloat16,
            use_cpu_initialization=True,
            # Not skipped although initialise() overwrites it: it also marks what is split, for clipping counts by that.
            perform_initialization=True,
            # Fusions need apex, Transformer Engine or a compiler.
            gradient_accumulation_fusion=False,
            bias_dropout_fusion=False,
            bias_activation_fusion=False,
            masked_softmax_fusion=False,
            apply_rope_fusion=False,
            **recompute,
        )


class _TorchNorm:
    """torch's norm in every place of the model, on all machines alike; made as Megatron makes its own.

    Megatron's wrapper of it refuses sequence parallelism, which asks only that the parameters be marked: their
    gradients are then summed over the tensor-parallel ranks, each of which has seen a part of the sequence.
    """

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **others: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm: torch.nn.Module = kind(hidden_size, eps=eps)
        for parameter in norm.parameters():
            setattr(parameter, "sequence_parallel", config.sequence_parallel)  # noqa: B010
        return norm


def _layers(config: TransformerConfig) -> Any:
    """What this pipeline stage is made of."""
    layer = get_gpt_layer_local_spec(normalization=config.normalization)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = _TorchNorm
    return TransformerBlockSubmodules([layer] * get_num_layers_to_build(config), _TorchNorm)


@torch.no_grad()
def initialise(model: Any, seed: int, layers: int) -> None:
    """Draw every weight from a generator seeded by its global name (and layer): the same model on every plan.

    Matrices: normal, std 0.02, those that feed the residual stream 0.02 / sqrt(2 layers) (Radford et al. 2019,
    section 2.3); norms one, biases zero.
    """
    for part in _sharded_tensors(model.sharded_state_dict(metadata=METADATA)):
        assert part.data is not None
        lead = part.prepend_axis_num
        shape = tuple(part.global_shape[lead:])
        if len(shape) < 2:
            part.data.fill_(1.0 if "norm" in part.key and part.key.endswith("weight") else 0.0)
            continue
        name = f"{seed}/{part.key}/{tuple(part.global_offset[:lead])}"
        generator = torch.Generator("cpu")
        generator.manual_seed(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big"))
        std = _INIT_STD / math.sqrt(2 * layers) if part.key.endswith(_RESIDUAL) else _INIT_STD
        full = torch.randn(shape, generator=generator, device="cpu") * std
        for axis, (offset, size) in enumerate(zip(part.global_offset[lead:], part.local_shape, strict=True)):
            full = full.narrow(axis, offset, size)
        part.data.copy_(full)


def _sharded_tensors(state: Any) -> list[Any]:
    """All sharded tensors in `state`; those that factories would make (a gated MLP's halves) view the same memory."""
    found: list[Any] = []
    for value in state.values() if isinstance(state, dict) else state if isinstance(state, list) else [state]:
        if isinstance(value, ShardedTensorFactory):
            value = value.build()
        if isinstance(value, ShardedTensor):
            found.append(value)
        elif isinstance(value, dict | list):
            found.extend(_sharded_tensors(value))
    return found
