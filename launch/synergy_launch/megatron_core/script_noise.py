"""The gradient noise scale of a Megatron script that is not ours, from the DistributedDataParallel that it makes.

Two squared norms of each measured step, of a sample of the gradient (synergy_launch.batch.gradient_sample):

| a step has | small batch | seen |
|---|---|---|
| two or more micro-batches | one micro-batch of one replica, of the first few | when its gradient has been added to main_grad |
| one micro-batch or none that shows its own gradient, several replicas | one replica | just before Megatron's gradient reduction |
| one micro-batch or none that shows its own gradient, one replica | the step | two steps one after the other |

The large batch is the step itself: main_grad after the reduction, of which a rank of the distributed optimizer holds a slice.
With context parallelism a replica's gradient is the sum over its cp ranks, so the samples are summed there first. Parameters that
every tensor-parallel rank holds whole count once, stages are summed.

Left out: experts (their ranks see other tokens), embeddings that are tied or that multi-token prediction shares (with pp > 1 their
copies are summed late), and of tp > 1 the norms' parameters with sequence parallelism, and those of queries and keys (each rank has a
part of their gradient).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from synergy_launch.batch.gradient_sample import BUDGET, GradientSample
from synergy_launch.batch.noise_scale import NoiseScale
from synergy_launch.links.gated_script import say
from synergy_launch.megatron_core.gradient_norms import reduced_slices
from synergy_launch.megatron_core.script_batch import is_capturing_graphs

SHARE = 0.005  # the share of a run's time that measuring may take
_LARGE = 8  # least steps from one measured step to the next for a model larger than the sample, as in gradient_sample
_MOST = 64
_COUNTED = 4  # micro-batches of a measured step that are looked at


class Mode(Enum):
    """The way in which the small batch of a step is seen."""

    NONE = "none"
    MICRO = "micro-batches"
    REPLICA = "replicas"
    PAIR = "two steps"


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """The degrees of this run. `cp_group`: the ranks that share a replica's sequences."""

    dp: int
    cp: int
    tp: int
    cp_group: Any = None


@dataclass(frozen=True)
class StepSize:
    """The size of the step that begins: micro-batches a replica, and sequences of one."""

    micro_batches: int
    micro_batch: int


class ScriptNoise:
    """`scale` is the estimate, equal on all ranks. `size` tells the coming step's micro-batches.

    At every measured step, on all ranks alike, `propose` gives one number a rank, of which one rank's alone is not 0, and `agree`
    gets their sum. A fault on one rank ends measuring on all of them, and not the training: then `ended` is called.
    """

    def __init__(
        self,
        degrees: Degrees,
        size: Callable[[], StepSize],
        propose: Callable[[], int] = lambda: 0,
        agree: Callable[[int], None] = lambda number: None,
        ended: Callable[[], None] = lambda: None,
        share: float = SHARE,
    ) -> None:
        self.scale = NoiseScale()
        self.measured = 0  # steps
        self.spent_s = 0.0  # in measuring, of this rank
        self._degrees, self._size_of, self._share = degrees, size, share
        self._propose, self._agree, self._ended = propose, agree, ended
        self._size = StepSize(1, 1)
        self._mode = Mode.NONE  # of this step
        self._step = self._next = 0  # this one, and the next that is measured
        self._began = self._step_s = self._own_s = 0.0
        self._failed = self._off = False
        self._chunks: list[Any] = []
        self._parameters: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._nodes: list[Any] = []
        self._places = GradientSample([])
        self._squares: list[torch.Tensor] = []  # weighted, of what was seen
        self._parts: dict[int, torch.Tensor] = {}  # what was seen, where cp ranks are to be summed first
        self._before: dict[int, torch.Tensor] = {}  # main_grad after the micro-batch before
        self._fired: dict[int, int] = {}
        self._handles: list[Any] = []
        self._half = False  # the first step of a pair was seen
        self._first = torch.zeros(0, device="cpu")
        self._factors: torch.Tensor | None = None  # of the reduced gradient's sample, element by element

    # -- set-up -----------------------------------------------------------------------------------------------------

    def add(self, chunk: Any) -> None:
        """Add one more of this rank's DistributedDataParallel chunks, none of which has trained.

        Raises AttributeError for another Megatron's.
        """
        self._chunks.append(chunk)
        zero, finish = chunk.zero_grad_buffer, chunk.finish_grad_sync

        def zero_grad_buffer(*args: Any, **kwargs: Any) -> Any:
            result = zero(*args, **kwargs)
            if chunk is self._chunks[0] and not self._off:
                self._begin(chunk)
            return result

        def finish_grad_sync(*args: Any, **kwargs: Any) -> Any:
            result = finish(*args, **kwargs)
            if chunk is self._chunks[-1] and not self._off:
                self._end()
            return result

        chunk.zero_grad_buffer, chunk.finish_grad_sync = zero_grad_buffer, finish_grad_sync
        for group in chunk.bucket_groups:
            group.start_grad_sync = self._with_sampling(group)

    def stop(self) -> None:
        """Stop measuring and release what is held; to be called on all ranks at the same step."""
        self._off, self._mode = True, Mode.NONE
        self._clear()
        self._nodes, self._first, self._factors = [], torch.zeros(0, device="cpu"), None
        self._ended()

    def _with_sampling(self, group: Any) -> Callable[..., Any]:
        start = group.start_grad_sync

        def start_grad_sync(*args: Any, **kwargs: Any) -> Any:
            if self._mode is Mode.REPLICA:
                self._run_safely(partial(self._sample_before_reduction, group))
            return start(*args, **kwargs)

        return start_grad_sync

    def _run_safely(self, act: Callable[[], None]) -> None:
        if self._failed:
            return
        began = time.perf_counter()
        try:
            with torch.no_grad():
                act()
        except Exception as error:
            self._failed = True
            _say(error)
        self._own_s += time.perf_counter() - began

    def _choose_parameters(self) -> None:
        """Choose the parameters that are looked at, and what each counts."""
        weights: dict[Any, float] = {}
        for chunk in self._chunks:
            tied = any(getattr(part, "share_embeddings_and_output_weights", False) for part in chunk.module.modules())
            tied = tied or bool(getattr(chunk.config, "mtp_num_layers", None))  # the last stage has a copy
            for name, parameter in chunk.module.named_parameters():
                partial_sum = self._degrees.tp > 1 and (
                    getattr(parameter, "sequence_parallel", False) or "q_layernorm" in name or "k_layernorm" in name
                )
                if not parameter.requires_grad or not getattr(parameter, "allreduce", True) or partial_sum:
                    continue
                if not (tied and ("word_embeddings" in name or "output_layer" in name)):
                    split = getattr(parameter, "tensor_model_parallel", False)
                    weights[parameter] = 1.0 if split else 1.0 / self._degrees.tp
        self._parameters = list(weights)
        self._numbers = {parameter: number for number, parameter in enumerate(weights)}
        self._places = GradientSample(self._parameters, list(weights.values()))
        with torch.enable_grad():
            # Megatron's own hooks on the same nodes were registered before these will be
            self._nodes = [p.expand_as(p).grad_fn.next_functions[0][0] for p in self._parameters]

    # -- a step -----------------------------------------------------------------------------------------------------

    def _begin(self, chunk: Any) -> None:
        now = time.perf_counter()
        self._step_s, self._began = now - self._began if self._began else 0.0, now
        self._own_s = 0.0
        self._mode = Mode.NONE
        try:
            self._size = self._size_of()
            if self._step >= self._next:
                self._mode = self._choose_mode(chunk)
        except Exception as error:  # of a version's names: on all ranks alike
            _say(error)
            self.stop()
        if self._mode is not Mode.NONE:
            self._run_safely(self._prepare)

    def _choose_mode(self, chunk: Any) -> Mode:
        """Return the mode of the step. What decides whether ranks meet at the end of the step is the same on all of them, faults or not."""
        config, micro_batches = chunk.config, self._size.micro_batches
        graphs = is_capturing_graphs(config)
        if graphs and "full_iteration" in str(getattr(config, "cuda_graph_scope", "")):
            return Mode.NONE  # the reduction is captured too: there nothing may be read
        # gradients that are made outside of backward(), or replayed, pass no hook of autograd
        if micro_batches > 1 and not graphs and not getattr(chunk.ddp_config, "delay_wgrad_compute", False):
            return Mode.MICRO
        if self._degrees.dp > 1:
            return Mode.REPLICA
        return Mode.PAIR

    def _prepare(self) -> None:
        if not self._nodes:
            self._choose_parameters()
        self._clear()
        if self._mode is Mode.MICRO:
            for number, node in enumerate(self._nodes):
                self._handles.append(node.register_hook(partial(self._on_accumulation, number)))

    def _clear(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._squares = [], []
        self._parts, self._before, self._fired = {}, {}, {}

    @property
    def _sampled_micro_batches(self) -> int:
        """Return how often each parameter is looked at. The last micro-batch is left out, as Megatron may be reducing it already."""
        if self._mode is not Mode.MICRO or self._degrees.cp > 1:
            return 1
        return min(_COUNTED, self._size.micro_batches - 1)

    def _on_accumulation(self, number: int, *_: Any) -> None:
        if self._fired.get(number, 0) < self._sampled_micro_batches:
            self._run_safely(partial(self._look, number))

    def _look(self, number: int) -> None:
        fired = self._fired.get(number, 0)
        self._fired[number] = fired + 1
        now = self._sample(number, self._parameters[number].main_grad)
        self._see(number, now - self._before[number] if fired else now)
        if fired + 1 < self._sampled_micro_batches:
            self._before[number] = now

    def _sample_before_reduction(self, group: Any) -> None:
        """Sample main_grad before a bucket group's reduction, while it is this rank's own."""
        for bucket in group.buckets:
            for parameter in bucket.params_list:
                number = self._numbers.get(parameter)
                # the first step of overlapped reductions calls it twice
                if number is not None and number not in self._fired:
                    self._fired[number] = 1
                    self._see(number, self._sample(number, parameter.main_grad))

    def _sample(self, number: int, tensor: torch.Tensor, first: int = 0) -> torch.Tensor:
        stride = self._places.strides[number]
        return tensor.detach().reshape(-1)[-first % stride :: stride].to(torch.float32, copy=True)

    def _see(self, number: int, part: torch.Tensor) -> None:
        if self._degrees.cp > 1:
            self._parts[number] = part
        else:
            self._squares.append(self._places.weights[number] * torch.linalg.vector_norm(part).square())

    def _end(self) -> None:
        """Measure the step once its gradient is reduced. Between the guarded parts nothing may be left out: ranks wait for each other."""
        step, self._step = self._step, self._step + 1
        if self._mode is Mode.NONE:
            return
        whole: list[torch.Tensor] = []
        if self._degrees.cp > 1 and self._mode is not Mode.PAIR:
            self._run_safely(lambda: whole.append(self._whole_sample()))
            if total([float(self._failed)])[0] > 0:  # a rank has nothing to sum, or no room for it
                self.stop()
                return
            dist.all_reduce(whole[0], group=self._degrees.cp_group)
        values = [0.0] * 4
        self._run_safely(partial(self._take, whole, values))
        self._run_safely(self._clear)
        self._conclude(values, step)

    def _conclude(self, values: list[float], step: int) -> None:
        self.spent_s += self._own_s
        number = [0.0]
        self._run_safely(lambda: number.__setitem__(0, float(self._propose())))
        measured = [*values, self._own_s, self._step_s, number[0], float(self._failed)]
        small, big, missing, large, own_s, step_s, agreed, failed = total(measured)
        self.measured += 1
        if failed:
            self.stop()
            return
        size, pair = self._size, self._mode is Mode.PAIR
        batch = size.micro_batches * size.micro_batch * self._degrees.dp
        least = size.micro_batch if self._mode is Mode.MICRO else batch if pair else batch // self._degrees.dp
        self._half = pair and not self._half
        if not missing and not self._half:
            self.scale.update(small, big, least, 2 * batch if pair else batch)
        cost = own_s / step_s if step_s > 0 else 0.0
        pause = min(_MOST, max(_LARGE if large else 1, math.ceil(cost / self._share)))
        self._next = step + (1 if self._half else pause)
        self._run_safely(lambda: self._agree(round(agreed)))

    # -- the numbers ------------------------------------------------------------------------------------------------

    def _whole_sample(self) -> torch.Tensor:
        """Return what was seen, parameter after parameter, with zeros for what was not."""
        counts = [-(-p.numel() // s) for p, s in zip(self._parameters, self._places.strides, strict=True)]
        parts = (self._parts.get(n, torch.zeros(count, device=_device())) for n, count in enumerate(counts))
        return torch.cat([torch.zeros(0, device=_device()), *parts])

    def _take(self, whole: list[torch.Tensor], values: list[float]) -> None:
        """Write this rank's four numbers into `values`.

        They are its shares of the small and the large square, whether it missed a parameter, and whether its part of the model is larger
        than the sample. The device is waited for once.
        """
        degrees, size, config = self._degrees, self._size, self._chunks[0].config
        per_token = bool(getattr(config, "calculate_per_token_loss", False))
        sampled_micro_batches = self._sampled_micro_batches
        # main_grad is a mean over micro-batches, or with per-token loss a sum over all of the step's tokens
        factor = float(size.micro_batches if self._mode is Mode.MICRO else 1)
        factor *= degrees.dp if per_token else 1 / degrees.cp
        ranks = degrees.dp * degrees.cp
        zero = torch.zeros((), device=_device())
        if self._mode is Mode.PAIR:
            sums = self._compare_steps()
        elif whole:
            sums = [self._places.product(whole[0], whole[0]) if self._parameters else zero]
        else:
            sums = [torch.stack(self._squares).sum() if self._squares else zero]
        scale = config.grad_scale_func(torch.ones((), device=_device())) if config.grad_scale_func else zero + 1
        if self._mode is not Mode.PAIR:
            vector, factors = self._sample_reduced_gradient()
            sums.append(torch.dot(vector * factors, vector))
        *readings, unit = _read(*sums, scale)
        unit = unit * size.micro_batches * size.micro_batch * degrees.dp if per_token else unit
        if self._mode is Mode.PAIR:
            both, product = readings
            values[:2] = [both / unit**2, (both + product) / 2 / unit**2]
        else:
            values[:2] = [readings[0] * factor**2 / (ranks * sampled_micro_batches) / unit**2, readings[1] / unit**2]
            has_all_gradients = all(
                self._fired.get(number, 0) >= sampled_micro_batches for number in range(len(self._parameters))
            )
            values[2] = 0.0 if has_all_gradients else 1.0
        values[3] = 1.0 if sum(p.numel() for p in self._parameters) > BUDGET else 0.0

    def _compare_steps(self) -> list[torch.Tensor]:
        """Return the mean square of two steps one after the other, and their product; zeros at the first of the two."""
        now, factors = self._sample_reduced_gradient()
        before, self._first = self._first, now
        if not self._half:
            return [torch.zeros((), device=now.device)] * 2
        squares = torch.dot(before * factors, before) + torch.dot(now * factors, now)
        return [squares / 2, torch.dot(before * factors, now)]

    def _sample_reduced_gradient(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sample of this rank's part of the reduced gradient, and what each of its elements counts in the sum over all ranks."""
        ranks = self._degrees.dp * self._degrees.cp
        parts: list[torch.Tensor] = []
        weights: list[tuple[float, int]] = []

        def add(number: int, tensor: torch.Tensor, first: int, holders: int) -> None:
            part = self._sample(number, tensor, first)
            parts.append(part)
            weights.append((self._places.weights[number] * holders / ranks, part.numel()))

        for chunk in self._chunks:
            if chunk.ddp_config.use_distributed_optimizer:
                for number, part, first, holders in reduced_slices(chunk.buffers, self._numbers):
                    add(number, part, first, holders)
            else:
                for parameter in chunk.module.parameters():
                    if parameter in self._numbers:
                        add(self._numbers[parameter], parameter.main_grad, 0, 1)
        if not parts:
            return torch.zeros(0, device=_device()), torch.zeros(0, device=_device())
        vector = torch.cat(parts)
        if self._factors is None or self._factors.numel() != vector.numel():
            values = torch.tensor([w for w, _ in weights], dtype=torch.float32, device="cpu")
            counts = torch.tensor([n for _, n in weights], dtype=torch.int64, device="cpu")
            self._factors = torch.repeat_interleave(values, counts).to(vector.device)
        return vector, self._factors


def total(values: Sequence[float]) -> list[float]:
    """Return the sums over all ranks, on the device that the default group works with."""
    tensor = torch.tensor(list(values), dtype=torch.float64, device=_device())
    dist.all_reduce(tensor)
    return [float(value) for value in tensor.tolist()]


def _say(error: Exception) -> None:
    say("the gradient noise is not measured", error)


def _device() -> torch.device:
    on_gpu = "nccl" in str(dist.get_backend())
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def _read(*values: torch.Tensor) -> list[float]:
    """Read numbers that lie on the device, all in one transfer."""
    numbers: list[float] = torch.stack([value.to(_device(), torch.float64).reshape(()) for value in values]).tolist()
    return numbers
