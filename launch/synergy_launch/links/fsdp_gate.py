"""A gate for FSDP2's gradient reduce-scatters between nodes, once a step.

The first of the backward pass asks, the last one's arrival gives the links back.

Only the mesh's first rank asks. Every other rank waits for it in a collective: its shard group in the reduce-scatter, the replicas of
HSDP in the all-reduce behind that. All-gathers of parameters are not gated: they are needed at once.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from synergy_launch.links import hooks, link_gate
from synergy_launch.links.link_gate import LinkGate


def gate_fsdp(model: torch.nn.Module, environment: Mapping[str, str] | None = None) -> LinkGate | None:
    """Gate, as `hooks.gate_ddp` does, a model that `fully_shard` has been called on."""
    env = os.environ if environment is None else environment
    if not env.get(link_gate.ADDRESS):
        return None
    try:
        groups = _groups(model)
        ranks = [int(rank) for rank in groups[0].mesh_info.mesh.mesh.flatten().tolist()] if groups else []
        if not ranks or dist.get_rank() != ranks[0] or not hooks.is_across_nodes(ranks, env):
            return None
        gate = link_gate.from_environment(env, channel=ranks[0])
        if gate is not None:
            FsdpGate(groups, sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad), gate)
            weakref.finalize(model, gate.close).atexit = False
        return gate
    except AttributeError as error:  # this torch differs inside
        print(f"synergy: reduce-scatters are not gated: {error}"[:200], file=sys.stderr, flush=True)
        return None


def _groups(model: torch.nn.Module) -> list[Any]:
    """Return FSDP's parameter groups of all modules; none where the model has no FSDP2 in it. Raises AttributeError."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:  # an older torch
        return []
    groups: list[Any] = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            several = getattr(state, "_fsdp_param_groups", None)
            groups += [state._fsdp_param_group] if several is None else several
    return [group for group in groups if group is not None]


class FsdpGate:
    """The gate of one model, in its groups' `post_backward` and `finalize_backward`."""

    def __init__(self, groups: Sequence[Any], size_bytes: int, gate: LinkGate) -> None:
        self._gate, self._bytes, self._ends = gate, size_bytes, hooks.MessageEnds(gate)
        self._count = len(groups)
        self._begun: set[int] = set()  # groups whose gradients have been reduced in the step under way
        self._ended: set[int] = set()
        for number, group in enumerate(groups):
            group.post_backward = self._wrap_reduce(number, group, group.post_backward)
            group.finalize_backward = self._wrap_finalize(number, group.finalize_backward)

    def _wrap_reduce(self, number: int, group: Any, reduce: Callable[..., Any]) -> Callable[..., Any]:
        def ask_and_reduce(*args: Any) -> Any:
            if group.reduce_grads and not hooks._is_capturing():
                if not self._begun or number in self._begun:
                    self._ask()
                self._begun.add(number)
            return reduce(*args)

        return ask_and_reduce

    def _ask(self) -> None:
        self._begun.clear()
        self._ended.clear()
        if not self._gate.is_asking:  # nor does the GPU have to be waited for
            return
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # kernels are queued: is the message really ready?
        if self._ends.wait_until_reported():
            self._gate.begin(self._bytes)

    def _wrap_finalize(self, number: int, finalize: Callable[[], Any]) -> Callable[[], Any]:
        def finalize_and_end() -> Any:
            result = finalize()
            self._ended.add(number)
            if self._begun and len(self._ended) == self._count:
                self._begun.clear()
                self._ends.end()
            return result

        return finalize_and_end
