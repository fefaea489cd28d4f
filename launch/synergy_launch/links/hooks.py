"""Gates for a training job's gradient all-reduce between nodes: DDP by a communication hook, Megatron's DDP at its grad sync.

Once a step, not once a bucket: the rule weighs whole messages, and one question a step costs least. The first bucket that is ready
asks; the last one's arrival gives the links back.

No deadlock is possible. Only the first rank of each reduction group asks (rank 0, where the job is data parallel alone), in place,
and then starts just the collectives that it would have started; all others ask nothing, start theirs and find them waiting for that
rank. So every rank starts the same collectives in the same order, whatever the arbiter answers, and no rank needs to know whether
another one asks. Which ranks share a node is worked out from torchrun's own variables, without a collective.

A gated DDP can be copied and pickled as any other: nothing of the gate is in it, and the copy is not gated. All-reduces that a
CUDA graph captures are not gated.
"""

from __future__ import annotations

import functools
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from synergy_launch.links import link_gate
from synergy_launch.links.link_gate import LinkGate

SETTLED_S = 1.0  # seconds for the end of the previous step to be reported once the GPU has passed it
_C10D: Any = dist  # with what its stubs do not name


def is_across_nodes(ranks: Sequence[int], environment: Mapping[str, str]) -> bool:
    """Return whether these global ranks are on several nodes: torchrun numbers them node by node."""
    try:
        local = int(environment.get("LOCAL_WORLD_SIZE") or environment["WORLD_SIZE"])
        return len({rank // local for rank in ranks}) > 1
    except (KeyError, ValueError, ZeroDivisionError):
        return False


def gate_ddp(model: torch.nn.Module, environment: Mapping[str, str] | None = None) -> LinkGate | None:
    """Gate `model` if the launcher asks for it, this rank is the one that asks, and the ranks are on several nodes.

    A communication hook of the script's own, registered before or after, keeps its place.
    """
    env = os.environ if environment is None else environment
    if not env.get(link_gate.ADDRESS) or not isinstance(model, DistributedDataParallel):
        return None
    group = model.process_group
    ranks = dist.get_process_group_ranks(group)
    if dist.get_rank() != ranks[0] or not is_across_nodes(ranks, env) or model._comm_hooks:
        return None  # a hook that is there already can't be wrapped: that run is not gated
    gate = link_gate.from_environment(env)
    if gate is None:
        return None
    try:
        DdpGate(model, gate).install(model)
    except (RuntimeError, AttributeError):  # one of torch's built-in hooks is there, or this torch differs inside
        gate.close()
        return None
    return gate


class DdpGate:
    """The communication hook of one DistributedDataParallel on the rank that asks."""

    def __init__(self, model: DistributedDataParallel, gate: LinkGate) -> None:
        # not the model itself: its reducer keeps this object
        self._gate, self._group = gate, model.process_group
        self._world = dist.get_world_size(self._group)
        self._bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        self._inner: Callable[[Any], Any] = self._mean
        self._own = False  # the script has registered a hook of its own
        self._asked = False  # whether the step under way has asked
        self._ends = MessageEnds(gate)

    def install(self, model: DistributedDataParallel) -> None:
        """Install the gate in the model. Raises RuntimeError where the model has a hook already."""
        untyped_model: Any = model
        # past the model's own register_comm_hook, which would keep it in the model
        _C10D._register_comm_hook(untyped_model.reducer, self, reduce_when_allowed)
        untyped_model.logger._set_comm_hook_name(reduce_when_allowed.__qualname__)
        _GATES[model] = self
        _let_scripts_register()
        weakref.finalize(model, self._gate.close).atexit = False

    def take(self, inner: Callable[[Any], Any]) -> None:
        """Let the script's hook reduce from now on. Raises RuntimeError for a second one, as torch does."""
        if self._own:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._own, self._inner = True, inner

    def take_builtin(self, kind: Any) -> None:
        """Do as `take`, for one of torch's own hooks: what it does in C++, in Python. Raises RuntimeError for one that is unknown."""
        hook_by_kind: dict[Any, Callable[[Any], Any]] = {
            _C10D.BuiltinCommHookType.ALLREDUCE: self._mean,
            _C10D.BuiltinCommHookType.FP16_COMPRESS: lambda bucket: default_hooks.fp16_compress_hook(
                self._group, bucket
            ),
        }
        if kind not in hook_by_kind:
            raise RuntimeError(f"{kind} can't be registered where all-reduces are gated")
        self.take(hook_by_kind[kind])

    def reduce(self, bucket: Any) -> Any:
        """Reduce a bucket as the inner hook does, and ask the gate before the first bucket."""
        if _is_capturing():
            return self._inner(bucket)
        if bucket.index() == 0:
            asks = self._gate.is_asking  # else the GPU need not be waited for
            if asks and bucket.buffer().is_cuda:
                torch.cuda.current_stream().synchronize()  # kernels are queued: is the message really ready?
            self._asked = asks and self._ends.wait_until_reported()
            if self._asked:
                self._gate.begin(self._bytes)
        reduced = self._inner(bucket)
        return reduced.then(self._note_arrival) if self._asked and bucket.is_last() else reduced

    def _note_arrival(self, reduced: Any) -> Any:
        self._ends.end()
        value = reduced.value()
        return value[0] if isinstance(value, list) else value

    def _mean(self, bucket: Any) -> Any:
        """Average a bucket as DDP does without a hook."""
        tensor = bucket.buffer().div_(self._world)
        work: Any = dist.all_reduce(tensor, group=self._group, async_op=True)
        return work.get_future().then(lambda reduced: reduced.value()[0])


_GATES: weakref.WeakKeyDictionary[DistributedDataParallel, DdpGate] = weakref.WeakKeyDictionary()  # by gated model


def reduce_when_allowed(state: DdpGate, bucket: Any) -> Any:
    """Reduce a bucket of a gated model: the function that torch calls for each bucket."""
    return state.reduce(bucket)


def _let_scripts_register() -> None:
    """Make a script's hook, which comes after the gate's, be called by the gate: torch takes one hook a model.

    This is done for all models of this process, by their class: an attribute of the gated model would be pickled with it.
    """
    ddp: Any = DistributedDataParallel
    if getattr(ddp.register_comm_hook, "synergy_gates", None) is _GATES:
        return
    plain, builtin = ddp.register_comm_hook, ddp._register_builtin_comm_hook

    @functools.wraps(plain)
    def register_comm_hook(self: Any, state: Any, hook: Any) -> None:
        gate = _GATES.get(self)
        if gate is None:
            plain(self, state, hook)
            return
        self._check_comm_hook(hook)
        gate.take(lambda bucket: hook(state, bucket))
        self.logger._set_comm_hook_name(hook.__qualname__)
        self._comm_hooks.append((hook, state))

    @functools.wraps(builtin)
    def register_builtin(self: Any, comm_hook_type: Any) -> None:
        gate = _GATES.get(self)
        if gate is None:
            builtin(self, comm_hook_type)
            return
        gate.take_builtin(comm_hook_type)
        self.logger._set_comm_hook_name(str(comm_hook_type))

    ddp.register_comm_hook, ddp._register_builtin_comm_hook = register_comm_hook, register_builtin
    ddp.register_comm_hook.synergy_gates = _GATES


def _is_capturing() -> bool:
    """Return whether a CUDA graph is being captured: nothing may wait for the GPU now, and a replay does not ask."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class MegatronGate:
    """A gate that asks before the first bucket of a step that Megatron's DDP chunks reduce, and gives back when all have been.

    `copies`: groups that reduce over the same links at the same time (tp).
    """

    def __init__(self, chunks: Sequence[Any], gate: LinkGate, copies: int = 1) -> None:
        self.gate, self._copies, self._ends = gate, copies, MessageEnds(gate)
        self._chunks = self._bytes = 0
        self._left = 0  # chunks whose grad sync is not over
        for chunk in chunks:
            self.add(chunk)

    def add(self, chunk: Any) -> None:
        """Add one more chunk, which has not trained yet."""
        self._chunks += 1
        chunk.synergy_gate = self
        for group in _bucket_groups(chunk):
            sizes = [bucket.grad_data.numel() * bucket.grad_data.element_size() for bucket in group.buckets]
            self._bytes += self._copies * sum(sizes)
            group.start_grad_sync = self._wrap_start(group.start_grad_sync)
        chunk.finish_grad_sync = self._wrap_finish(chunk.finish_grad_sync)

    def close(self) -> None:
        """Let the arbiter go; nothing is gated any more."""
        self.gate.close()

    def _wrap_start(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def begin_and_start(*args: Any, **kwargs: Any) -> Any:
            if not self._left and self.gate.is_asking and not _is_capturing():
                if torch.cuda.is_available():
                    torch.cuda.current_stream().synchronize()
                if self._ends.wait_until_reported():
                    self._left = self._chunks
                    self.gate.begin(self._bytes)
            return start(*args, **kwargs)

        return begin_and_start

    def _wrap_finish(self, finish: Callable[..., Any]) -> Callable[..., Any]:
        def finish_and_end(*args: Any, **kwargs: Any) -> Any:
            result = finish(*args, **kwargs)
            if self._left:
                self._left -= 1
                if not self._left:
                    self._ends.end()
            return result

        return finish_and_end


def gate_megatron(chunks: Sequence[Any], group: Any, copies: int = 1) -> MegatronGate | None:
    """Gate, as `gate_ddp` does, the chunks of Megatron's DistributedDataParallel that reduce over `group`.

    Nothing is gated if one of them is gated already. Every group has a channel of its own at the arbiter, named by its first rank; the
    job's links are free when the last of them is.
    """
    if not os.environ.get(link_gate.ADDRESS) or any(hasattr(chunk, "synergy_gate") for chunk in chunks):
        return None
    ranks = dist.get_process_group_ranks(group)
    if dist.get_rank() != ranks[0] or not is_across_nodes(ranks, os.environ):
        return None
    gate = link_gate.from_environment(os.environ, channel=ranks[0])
    return MegatronGate(chunks, gate, copies) if gate is not None else None


class MessageEnds:
    """The ends of messages, told to a gate: at once on a CPU, when the GPU's stream has come so far on a GPU."""

    def __init__(self, gate: LinkGate) -> None:
        self._gate = gate
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reported = threading.Event()
        self._reported.set()
        self._thread: threading.Thread | None = None
        self._over = False  # an end was not reported in time

    def end(self) -> None:
        """Mark the work queued last on the present stream as the end of the message. Raises nothing: training goes on from here."""
        if not torch.cuda.is_available():
            self._gate.end()
            return
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="synergy-link-ends", daemon=True)
                thread.start()
                self._thread = thread
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        except RuntimeError:  # no more threads, or a fault of the GPU, which training sees in its own calls
            self._gate.end()
            return
        self._reported.clear()
        self._events.put(event)

    def wait_until_reported(self) -> bool:
        """Wait until the previous end has been reported, so that it is not taken for that of the next message.

        Returns False if it was not within SETTLED_S; from now on nothing is gated then.
        """
        if self._over or not self._reported.wait(SETTLED_S):
            self._over = True
            self._gate.close()
            return False
        return True

    def _watch(self) -> None:
        while True:
            event = self._events.get()
            try:
                try:
                    event.synchronize()
                finally:
                    self._gate.end()
            except Exception as error:
                print(f"synergy: an all-reduce's end is not known: {error}"[:200], file=sys.stderr, flush=True)
            finally:
                self._reported.set()


def _bucket_groups(chunk: Any) -> list[Any]:
    return [*chunk.bucket_groups, *getattr(chunk, "expert_parallel_bucket_groups", [])]
