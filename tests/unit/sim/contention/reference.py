"""The contention model played plainly, in exact fractions: every pass an event, every rest recomputed. Slow, and independent of
the engine's shortcuts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from synergy_sim.contention.workload import JobSpec

from synergyd.links.disciplines import AdmissionRule
from synergyd.links.model import Link

F = Fraction


def finishes(
    jobs: Sequence[JobSpec], where: Sequence[Sequence[int]], per_node: int, b: int, h: int, rule: AdmissionRule
) -> list[float]:
    """Finish time of every job; `where` the GPUs of each, `b` and `h` whole ms/MB."""
    now = F(0)
    nodes = [sorted({g // per_node for g in gpus}) for gpus in where]
    left = [j.iterations for j in jobs]
    finish: list[Fraction | None] = [None] * len(jobs)
    # (job, worker) -> forward | backward | done; a GPU -> (job, worker, end)
    phase: dict[tuple[int, int], str] = {}
    busy: dict[int, tuple[int, int, Fraction]] = {}
    flow: dict[int, Fraction] = {}
    waiting: set[int] = set()

    def service(j: int) -> tuple[float, int]:
        return left[j] * jobs[j].step_ms * jobs[j].gpus, j

    def sharers(j: int) -> int:
        return max(sum(n in nodes[o] for o in flow) for n in nodes[j])

    def cost(j: int) -> int:
        k = sharers(j)
        return k * b + (k - 1) * h

    def next_iteration(j: int) -> None:
        left[j] -= 1
        if left[j] == 0:
            finish[j] = now
        for w in range(jobs[j].gpus):
            phase[j, w] = "forward" if left[j] else "over"

    arrived: set[int] = set()
    while None in finish:
        for j, job in enumerate(jobs):
            if j not in arrived and job.arrival_ms <= now:
                arrived.add(j)
                for w in range(job.gpus):
                    phase[j, w] = "forward"
        for g, (j, w, end) in list(busy.items()):
            if end == now:
                del busy[g]
                phase[j, w] = {"forwarding": "backward", "backwarding": "done"}[phase[j, w]]
        for j in [j for j in flow if flow[j] == 0]:
            del flow[j]
            next_iteration(j)
        for j in sorted(arrived):
            if finish[j] is None and all(phase[j, w] == "done" for w in range(jobs[j].gpus)):
                if len(nodes[j]) == 1:
                    next_iteration(j)
                elif j not in flow:
                    waiting.add(j)
        for j in sorted(waiting, key=service):
            rests = [float(flow[o]) for o in flow if set(nodes[o]) & set(nodes[j])]
            if rule.admits(jobs[j].message_mb, sharers(j) if flow else 0, rests, Link(b, h)):
                waiting.discard(j)
                flow[j] = F(jobs[j].message_mb)
        for g in range(1 + max(g for gpus in where for g in gpus)):
            ready = [
                (service(j), w)
                for j in arrived
                for w in range(jobs[j].gpus)
                if where[j][w] == g and phase[j, w] in ("forward", "backward")
            ]
            if g not in busy and ready:
                (_, j), w = min(ready)
                length = jobs[j].forward_ms if phase[j, w] == "forward" else jobs[j].backward_ms
                phase[j, w] += "ing"
                busy[g] = (j, w, now + F(length))
        ends = [end for *_, end in busy.values()] + [now + flow[j] * cost(j) for j in flow]
        ends += [F(job.arrival_ms) for j, job in enumerate(jobs) if j not in arrived]
        if not ends:
            break
        then = min(ends)
        paces = {j: cost(j) for j in flow}
        for j, each in paces.items():
            flow[j] -= (then - now) / each
        now = then
    return [float(x) for x in finish if x is not None]
