"""The cost of sharing a link between nodes: all-reduces of one group of ranks alone, and of two groups at once over the same links.

The figures are those of links/model.py: k tasks on a link each need k*b + (k-1)*h ms for a MB. The clock is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synergy_core.errors import UsageError

from synergyd.jobmodel.model.measure import Clock, Timing, line, make_settle

_REPEATS = 5
_EACH = 4  # all-reduces of a timing
_MET = 1.5  # two that share a link take at least so many times as long as one; less, and each had a way of its own


@dataclass(frozen=True)
class PairTimings:
    """The all-reduces over `nodes` nodes, one rank of a group on each.

    `alone` are those of one group by itself, `together` those beside another group. A point's amount is bytes a rank.
    """

    nodes: int
    alone: tuple[Timing, ...]
    together: tuple[Timing, ...]


def link_figures(timings: PairTimings) -> tuple[float, float]:
    """Return (b, h) in ms for a MB of a message between two nodes.

    Over more nodes a ring sends 2 (n-1)/n as much. Raises UsageError where the two groups did not share a link.
    """
    ring = 2.0 * (timings.nodes - 1) / timings.nodes
    one, two = (1e9 / line(points)[1] / ring for points in (timings.alone, timings.together))
    if two < _MET * one:
        raise UsageError(
            "--pairs",
            f"two at once take {two / one:.2f} times as long as one",
            "they share no link: each process has a network port of its own",
        )
    return one, max(0.0, two - 2.0 * one)


def pair_timings(
    torch: Any, device: str, own: Any, first: bool, nodes: int, sizes: Sequence[int], clock: Clock
) -> PairTimings:
    """Time the all-reduces of a pair of groups.

    `own` is this rank's group, `first` whether it is the group that is measured alone. Every rank of both groups calls this.
    """
    import torch.distributed as dist

    settle = make_settle(torch, device)

    def time_all_reduce(size: int, both: bool) -> float:
        """Return the seconds of one all-reduce: the mean of the groups that take part, the slowest rank of each.

        The best of the repeats counts.
        """
        data, best = torch.ones(size // 4, device=device), float("inf")
        for _ in range(_REPEATS):
            dist.barrier()
            settle()
            start = clock()
            if first or both:
                for _ in range(_EACH):
                    dist.all_reduce(data, group=own)
                settle()
            spent = torch.tensor([clock() - start if first or both else 0.0], dtype=torch.float64, device=device)
            dist.all_reduce(spent, op=dist.ReduceOp.MAX, group=own)
            dist.all_reduce(spent)
            # each rank has added its group's
            best = min(best, float(spent) / (nodes * (1 + both)) / _EACH)
            data.fill_(1.0)
        return best

    for both in (False, True):
        time_all_reduce(sizes[0], both)  # connections
    alone, together = (
        tuple(Timing(float(size), time_all_reduce(size, both)) for size in sizes) for both in (False, True)
    )
    return PairTimings(nodes, alone, together)
