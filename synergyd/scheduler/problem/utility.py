"""The objective: the value of a job's Cell as one number (`value`). records.Objective lists its terms.

Normalised goodput s = goodput / goodput at the size asked for. The utility is (s^p - 1)/p, log s at p = 0 (Nash bargaining;
Sia, SOSP'23, uses s^p with p = -0.5), times the job's weight. The goodput of a change of a running job is multiplied by Sia's
restart factor, so a change is chosen only if it gains more than its restart costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from synergy_core.records import Cell, Shape

from synergyd.scheduler.problem.cell_index import CellIndex, RelativeGoodput
from synergyd.scheduler.problem.records import Allocation, JobRequest, Objective, Problem

_EXPONENTS = (-3.0, 1.0)  # below -3 a solver's tolerance covers the jobs that are well off; above 1 starves others
_SMALLEST = 1e-6  # normalised goodput below this counts as this: keeps log and powers finite
_LOWEST = -1e4
_SLOWLY = 0.01
_STOP_MARGIN = 0.1


def utility(s: float, terms: Objective) -> float:
    """Return the utility of normalised goodput `s`: `power_utility`, or Sia's sign(p) s^p (SOSP'23, section 3.4: minimised for p < 0)."""
    if terms.form != "sia":
        return power_utility(s, terms.exponent)
    p = min(max(terms.exponent, _EXPONENTS[0]), _EXPONENTS[1])
    return math.copysign(max(s, _SMALLEST) ** p, p)


def utilities(s: NDArray[np.float64], terms: Objective) -> NDArray[np.float64]:
    """Apply `utility` to each element of an array, and return an array of the same shape."""
    p = min(max(terms.exponent, _EXPONENTS[0]), _EXPONENTS[1])
    s = np.maximum(s, _SMALLEST)
    if terms.form == "sia":
        return np.asarray(np.copysign(s**p, p))
    if abs(p) < 1e-9:
        return np.asarray(np.log(s))
    value = (s**p - 1.0) / p
    low = np.minimum(value, _LOWEST)
    return np.asarray(np.where(value >= _LOWEST, value, _LOWEST * (1.0 + _SLOWLY * np.log(low / _LOWEST))))


def waiting_utility(job: JobRequest, terms: Objective) -> float:
    """Return the utility of waiting, without the weight.

    It is that at `wait_share` of the least goodput of any Cell, so that any start is better by a finite amount, and weights
    still decide under overload. In Sia's form it is -lambda.
    """
    if terms.form == "sia":
        return -terms.wait_cost
    return power_utility(terms.wait_share * job.relative[CellIndex.build(job.cells).least], terms.exponent)


def power_utility(s: float, exponent: float) -> float:
    """Return (s^p - 1)/p, log(s) at p = 0; p is held within [-3, 1]. Values below -1e4 fall on more slowly."""
    p = min(max(exponent, _EXPONENTS[0]), _EXPONENTS[1])
    s = max(s, _SMALLEST)
    if abs(p) < 1e-9:
        return math.log(s)
    value = (s**p - 1.0) / p
    return value if value >= _LOWEST else _LOWEST * (1.0 + _SLOWLY * math.log(value / _LOWEST))


def restart_discount(age_s: float, restarts: int, cost_s: float) -> float:
    """Return Sia's r = (T - N*S)/(T + S), held within [0, 1]: age T, restarts so far N, restart cost S (all seconds but N)."""
    if cost_s <= 0:
        return 1.0
    age_s = max(age_s, 0.0)
    return min(max((age_s - restarts * cost_s) / (age_s + cost_s), 0.0), 1.0)


def restart_factor(job: JobRequest, index: int) -> float:
    """Return the factor on the goodput of cells[index] where a running job takes it anew.

    It is `discount`, and at most the mean share of its goodput that is left until the job ends, where the work left is known:
    W/(S + W/g) over g = 1/(1 + g S/W), W sequences left. For Cells that need no requeue both are of a smaller S.
    """
    if job.current is None:
        return 1.0
    share = job.live_share if index in job.live_cells else 1.0
    discount = scale_discount(job.discount, share)
    return min(discount, 1.0 / (1.0 + share * job.restart_drag * job.cells[index].goodput))


def scale_discount(discount: float, times: float) -> float:
    """Return Sia's r for a restart cost `times` as high: r = 1/(1 + c) becomes 1/(1 + c times). 0 (no change pays) stays."""
    return discount / (discount + (1.0 - discount) * times) if discount > 0.0 else 0.0


def with_delay(job: JobRequest, cost_s: float, delay_s: float, left_s: float | None) -> JobRequest:
    """Return the running job as a change looks to it that takes `delay_s` more than a restart of `cost_s`.

    Sia's T + S and the time that its limit leaves (`left_s`; None: no limit) are both less that much. All are seconds.
    """
    spent_s = max(job.age_s, 0.0) + cost_s
    discount = job.discount * (spent_s / (spent_s + delay_s) if spent_s + delay_s > 0 else 1.0)
    if left_s is not None:
        discount *= max(0.0, left_s - cost_s - delay_s) / (left_s - cost_s) if left_s > cost_s else 0.0
    drag = job.restart_drag * (cost_s + delay_s) / cost_s if cost_s > 0 else job.restart_drag
    return replace(job, discount=discount, restart_drag=drag)


def restart_cost_s(job: JobRequest, problem: Problem) -> float:
    """Return the seconds that a restart of the job is expected to cost: its own, the setting's where nothing is known."""
    return job.restart.cost.mean_s or problem.restart_cost_s


def payback_s(now: float, then: float, cost_s: float) -> float:
    """Return the seconds of running at goodput `then` that make up for `cost_s` seconds without any, against going on at `now`."""
    return cost_s * now / (then - now) if then > now else math.inf


def find_requested_cell(cells: Sequence[Cell], asked_shape: Shape) -> int | None:
    """Return the index of the best Cell of the size asked for, see CellIndex.requested_index."""
    return CellIndex.build(cells).find_asked_size(asked_shape)


def same_shape(have: Shape, want: Shape) -> bool:
    """Return whether the shapes are equal, where no GPU type in `want` means any."""
    return (have.nodes, have.gpus_per_node) == (want.nodes, want.gpus_per_node) and want.gpu_type in ("", have.gpu_type)


def smallest(cells: Sequence[Cell]) -> int:
    """Return the index of the Cell with the fewest GPUs; of several, the one with the best goodput."""
    return CellIndex.build(cells).smallest


def relative_goodputs(cells: Sequence[Cell], requested_cell: int | None) -> Sequence[float]:
    """Return each Cell's goodput over that of the size asked for, over the smallest Cell's where that is not feasible."""
    return RelativeGoodput(cells, cells[smallest(cells) if requested_cell is None else requested_cell].goodput)


def relative_goodput(cell: Cell, cells: Sequence[Cell], requested_cell: int | None) -> float | None:
    """Return `cell`'s goodput over that of the size asked for, for display, or None where either is not known."""
    if requested_cell is None or cells[requested_cell].goodput <= 0 or cell.goodput <= 0:
        return None
    return cell.goodput / cells[requested_cell].goodput


def value(job: JobRequest, choice: int | None, stays: bool, terms: Objective, slowdown: float = 1.0) -> float:
    """Return what one job adds to the objective: its weighted utility, and `need_bonus` where the choice meets its need.

    `choice` is the index of its Cell, None if it waits (a running job: if it is stopped). With `stays` it goes on as it
    runs, on its nodes; else it starts or changes, and a change has its restart factor. `slowdown` >= 1 multiplies its
    step time, for links that it shares.
    """
    if choice is None:
        return job.weight * waiting_utility(job, terms) if job.current is None else stop_value(job, terms)
    utility_of_cell = cell_utility(job, choice, stays, terms, slowdown)
    return job.weight * utility_of_cell + need_bonus(job, choice, stays, terms, slowdown)


def cell_utility(job: JobRequest, index: int, stays: bool, terms: Objective, slowdown: float = 1.0) -> float:
    """Return the utility of cells[index], see `value`, without weight and bonus."""
    held_up = job.node_slowdown if index == job.current else 1.0
    factor = 1.0 / held_up if stays else restart_factor(job, index)
    return utility(factor * job.relative[index] / slowdown, terms)


def need_bonus(job: JobRequest, index: int, stays: bool, terms: Objective, slowdown: float = 1.0) -> float:
    """Return `need_bonus` where cells[index] reaches the goodput that the job needs first; 0 elsewhere."""
    need = job.needed_goodput if stays or job.current is None else job.need_after_restart
    return terms.need_bonus if 0.0 < need <= job.cells[index].goodput / slowdown else 0.0


def stay_value(job: JobRequest, terms: Objective) -> float:
    """Return `value` of changing nothing: of the current Cell if the job runs, of waiting if not."""
    return value(job, job.current, True, terms)


def change_value(job: JobRequest, index: int, terms: Objective) -> float:
    """Return `value` of taking cells[index] anew: a start, or a change of a running job.

    The current Cell on other nodes is a change too.
    """
    return value(job, index, False, terms)


def stop_value(job: JobRequest, terms: Objective) -> float:
    """Return `value` of stopping a running job.

    This is the value of waiting, with its restart factor since it will start anew, less a margin, so that no job is stopped for
    one of equal value.
    """
    if terms.form == "sia":
        return job.weight * (waiting_utility(job, terms) - _STOP_MARGIN)
    factor = (1.0 - _STOP_MARGIN) * restart_factor(job, job.current or 0) ** 2
    least = job.relative[CellIndex.build(job.cells).least]
    return job.weight * power_utility(factor * terms.wait_share * least, terms.exponent)


def value_terms(
    job: JobRequest, choice: int | None, stays: bool, terms: Objective, slowdown: float = 1.0
) -> tuple[tuple[str, float], ...]:
    """Return the terms that add up to `value`, as (name, number), without those that are 0."""
    if choice is None:
        parts = {"waiting": waiting_utility(job, terms)}
        if job.current is not None:
            parts["restart"] = stop_value(job, terms) / job.weight - parts["waiting"]
    else:
        goodput = cell_utility(job, choice, True, terms)
        restarted = cell_utility(job, choice, stays, terms)
        shared = cell_utility(job, choice, stays, terms, slowdown)
        parts = {"goodput": goodput, "restart": restarted - goodput, "links": shared - restarted}
    total, plain_weight = sum(parts.values()), job.weight / job.length_factor
    parts["weight"] = (plain_weight - 1.0) * total
    parts["short"] = plain_weight * (job.length_factor - 1.0) * total
    parts["need"] = 0.0 if choice is None else need_bonus(job, choice, stays, terms, slowdown)
    return tuple((name, number) for name, number in parts.items() if number)


def is_growth_refused(job: JobRequest, index: int, terms: Objective) -> bool:
    """Return whether cells[index] would take a running job beyond `max_growth` times its present GPUs."""
    if job.current is None or terms.max_growth <= 0:
        return False
    now = job.cells[job.current].shape.gpus
    return job.cells[index].shape.gpus > max(now, terms.max_growth * now)


def objective(problem: Problem, choice: Sequence[int | None], moved: frozenset[int]) -> float:
    """Return the sum of the values of all jobs, those that wait included."""
    total = 0.0
    for index, (job, picked) in enumerate(zip(problem.jobs, choice, strict=True)):
        total += value(job, picked, picked == job.current and index not in moved, problem.terms)
    return total


def allocation(
    problem: Problem,
    choice: Sequence[int | None],
    moved: frozenset[int] = frozenset(),
    upper_bound: float = math.inf,
    optimal: bool = False,
) -> Allocation:
    """Return an Allocation with its objective computed."""
    total = objective(problem, choice, moved)
    return Allocation(tuple(choice), moved, total, max(upper_bound, total), optimal)
