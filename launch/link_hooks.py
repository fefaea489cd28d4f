"""Gates a training job's gradient all-reduce between nodes: DDP by a communication hook, Megatron's DDP at its grad sync.

Once a step, not once a bucket: the rule weighs whole messages, and one question a step costs least. The first bucket that is ready
asks; the last one's arrival gives the links back.

No deadlock is possible. Only the first rank of each reduction group asks (rank 0, where the job is data parallel alone), in place,
and then starts just the collectives that it would have started; all others ask nothing, start theirs and find them waiting for that
rank. So every rank starts the same collectives in the same order, whatever the arbiter says, and no rank needs to know whether
another one asks. Which ranks share a node is worked out from torchrun's own variables, without a collective.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from launch import link_gate
from launch.link_gate import LinkGate


def crosses_nodes(ranks: Sequence[int], environment: Mapping[str, str]) -> bool:
    """Whether these global ranks are on several nodes: torchrun numbers them node by node."""
    try:
        local = int(environment.get("LOCAL_WORLD_SIZE") or environment["WORLD_SIZE"])
        return len({rank // local for rank in ranks}) > 1
    except (KeyError, ValueError, ZeroDivisionError):
        return False


def gate_ddp(model: torch.nn.Module, environment: Mapping[str, str] | None = None) -> LinkGate | None:
    """Gates `model` where the launcher asks for it, this rank is the one that asks, and the ranks are on several nodes.

    A communication hook of the script's own, registered before or after, keeps its place.
    """
    env = os.environ if environment is None else environment
    if not env.get(link_gate.ADDRESS) or not isinstance(model, DistributedDataParallel):
        return None
    group = model.process_group
    ranks = dist.get_process_group_ranks(group)
    if dist.get_rank() != ranks[0] or not crosses_nodes(ranks, env) or model._comm_hooks:
        return None  # a hook that is there already can't be wrapped: that run is not gated
    gate = link_gate.from_environment(env)
    if gate is None:
        return None
    try:
        DdpGate(model, gate).install()
    except RuntimeError:  # one of torch's built-in hooks is there
        gate.close()
        return None
    return gate


class DdpGate:
    """The communication hook of one DistributedDataParallel on the rank that asks."""

    def __init__(self, model: DistributedDataParallel, gate: LinkGate) -> None:
        self._model, self._gate, self._world = model, gate, dist.get_world_size(model.process_group)
        self._bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        self._inner: Callable[[Any], Any] = self._mean
        self._ends = Ends(gate)

    def install(self) -> None:
        """Raises RuntimeError where the model has a hook already."""
        model: Any = self._model
        model.register_comm_hook(None, lambda _state, bucket: self._hook(bucket))
        # torch takes one hook a model: a script's own, which comes later, is called from here
        model.register_comm_hook = self._register

    def _register(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        self._inner = lambda bucket: hook(state, bucket)

    def _hook(self, bucket: Any) -> Any:
        if bucket.index() == 0:
            self._ends.settled()
            if bucket.buffer().is_cuda:
                torch.cuda.current_stream().synchronize()  # kernels are queued: is the message really ready?
            self._gate.begin(self._bytes)
        reduced = self._inner(bucket)
        return reduced.then(self._arrived) if bucket.is_last() else reduced

    def _arrived(self, reduced: Any) -> Any:
        self._ends.end()
        value = reduced.value()
        return value[0] if isinstance(value, list) else value

    def _mean(self, bucket: Any) -> Any:
        """What DDP does without a hook."""
        tensor = bucket.buffer().div_(self._world)
        work: Any = dist.all_reduce(tensor, group=self._model.process_group, async_op=True)
        return work.get_future().then(lambda reduced: reduced.value()[0])


class MegatronGate:
    """Asks before the first bucket of a step that Megatron's DDP chunks reduce, and gives back when all have been.

    `copies`: groups that reduce over the same links at the same time (tp).
    """

    def __init__(self, chunks: Sequence[Any], gate: LinkGate, copies: int = 1) -> None:
        self.gate, self._copies, self._ends = gate, copies, Ends(gate)
        self._chunks = self._bytes = 0
        self._left = 0  # chunks whose grad sync is not over
        for chunk in chunks:
            self.add(chunk)

    def add(self, chunk: Any) -> None:
        """One more chunk, which has not trained yet."""
        self._chunks += 1
        chunk.synergy_gate = self
        for group in _bucket_groups(chunk):
            sizes = [bucket.grad_data.numel() * bucket.grad_data.element_size() for bucket in group.buckets]
            self._bytes += self._copies * sum(sizes)
            group.start_grad_sync = self._before(group.start_grad_sync)
        chunk.finish_grad_sync = self._after(chunk.finish_grad_sync)

    def close(self) -> None:
        """Lets the arbiter go; nothing is gated any more."""
        self.gate.close()

    def _before(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def begin_and_start(*args: Any, **kwargs: Any) -> Any:
            if not self._left:
                self._left = self._chunks
                self._ends.settled()
                if torch.cuda.is_available():
                    torch.cuda.current_stream().synchronize()
                self.gate.begin(self._bytes)
            return start(*args, **kwargs)

        return begin_and_start

    def _after(self, finish: Callable[..., Any]) -> Callable[..., Any]:
        def finish_and_end(*args: Any, **kwargs: Any) -> Any:
            found = finish(*args, **kwargs)
            if self._left:
                self._left -= 1
                if not self._left:
                    self._ends.end()
            return found

        return finish_and_end


def gate_megatron(
    chunks: Sequence[Any], group: Any, copies: int = 1, environment: Mapping[str, str] | None = None
) -> MegatronGate | None:
    """As `gate_ddp`, for the chunks of Megatron's DistributedDataParallel that reduce over `group`, unless they are gated already.
    Every group has a channel of its own at the arbiter, named by its first rank; the job's links are free when the last of them is."""
    env = os.environ if environment is None else environment
    if not env.get(link_gate.ADDRESS) or any(hasattr(chunk, "synergy_gate") for chunk in chunks):
        return None
    ranks = dist.get_process_group_ranks(group)
    if dist.get_rank() != ranks[0] or not crosses_nodes(ranks, env):
        return None
    gate = link_gate.from_environment(env, channel=ranks[0])
    return MegatronGate(chunks, gate, copies) if gate is not None else None


class Ends:
    """Tells a gate that its message has arrived: at once on a CPU, when the GPU's stream has come so far on a GPU."""

    def __init__(self, gate: LinkGate) -> None:
        self._gate = gate
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._told = threading.Event()
        self._told.set()
        self._thread: threading.Thread | None = None

    def end(self) -> None:
        """What the present stream was given last is the end of the message."""
        if not torch.cuda.is_available():
            self._gate.end()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="synergy-link-ends", daemon=True)
            self._thread.start()
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._told.clear()
        self._events.put(event)

    def settled(self) -> None:
        """Waits until the end before has been told, so that it is not taken for that of the next message."""
        self._told.wait()

    def _watch(self) -> None:
        while True:
            self._events.get().synchronize()
            self._gate.end()
            self._told.set()


def _bucket_groups(chunk: Any) -> list[Any]:
    return [*chunk.bucket_groups, *getattr(chunk, "expert_parallel_bucket_groups", [])]
