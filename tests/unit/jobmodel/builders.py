"""Jobs and nodes as the tests of one job's plans have them."""

from __future__ import annotations

from typing import Any

from synergy_core.records import Directive, Job, JobState, Node, Shape


def nodes(gpu_type: str, count: int, gpus: int, **extra: Any) -> tuple[Node, ...]:
    """`count` of them in partition gpu."""
    return tuple(Node(f"{gpu_type}-{i}", gpu_type, gpus, partitions=("gpu",), **extra) for i in range(count))


def job(shape: Shape, state: JobState = JobState.PENDING, **directive: Any) -> Job:
    """Job 7 on, or asking for, `shape`; its batch is 64 unless the directive says another."""
    chosen = Directive(**{"global_batch": (64, 64), **directive})
    return Job(7, "j", "u", 1, "gpu", state, "", 0.0, None, None, 0, shape=shape, asked=shape, directive=chosen)
