"""What a Cell is worth to a job, as one number; policy.Terms lists what it is made of.

Normalised goodput s = goodput / goodput at the size asked for; utility (s^p - 1)/p times the job's weight, log s at
p = 0 (Nash bargaining; Sia, SOSP'23, uses s^p with p = -0.5). Changes of a running job count with their goodput times
Sia's restart factor, so a change is chosen only if it is worth its restart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from synergyd.records import Cell, Shape
from synergyd.scheduler.problem.cell_index import CellIndex, Relative
from synergyd.scheduler.problem.records import Allocation, JobRequest, Objective, Problem

_EXPONENTS = (-3.0, 1.0)  # below -3 a solver's tolerance covers the jobs that are well off; above 1 starves others
_SMALLEST = 1e-6  # normalised goodput below this counts as this: keeps log and powers finite
_LOWEST = -1e4
_SLOWLY = 0.01
_STOP_MARGIN = 0.1


def worth(s: float, terms: Objective) -> float:
    """What normalised goodput `s` is worth: `utility`, or Sia's sign(p) s^p (SOSP'23, section 3.4: minimised for p < 0)."""
    if terms.form != "sia":
        return utility(s, terms.exponent)
    p = min(max(terms.exponent, _EXPONENTS[0]), _EXPONENTS[1])
    return math.copysign(max(s, _SMALLEST) ** p, p)


def worths(s: NDArray[np.float64], terms: Objective) -> NDArray[np.float64]:
    """`worth` of many, of the same shape."""
    p = min(max(terms.exponent, _EXPONENTS[0]), _EXPONENTS[1])
    s = np.maximum(s, _SMALLEST)
    if terms.form == "sia":
        return np.asarray(np.copysign(s**p, p))
    if abs(p) < 1e-9:
        return np.asarray(np.log(s))
    value = (s**p - 1.0) / p
    low = np.minimum(value, _LOWEST)
    return np.asarray(np.where(value >= _LOWEST, value, _LOWEST * (1.0 + _SLOWLY * np.log(low / _LOWEST))))


def waiting(ask: JobRequest, terms: Objective) -> float:
    """What waiting is worth, without the weight: as at `wait_share` of the least goodput that any Cell has, so that any
    start is better; -lambda in Sia's form."""
    if terms.form == "sia":
        return -terms.wait_cost
    return utility(terms.wait_share * ask.relative[CellIndex.of(ask.cells).least], terms.exponent)


def bonus(ask: JobRequest, index: int, terms: Objective, anew: bool) -> float:
    """`need_bonus` where cells[index] reaches what the job needs first; 0 elsewhere."""
    need = ask.need_anew if anew and ask.current is not None else ask.need
    return terms.need_bonus if 0.0 < need <= ask.cells[index].goodput else 0.0


def utility(s: float, exponent: float) -> float:
    """(s^p - 1)/p, log(s) at p = 0; p is held within [-3, 1]. What lies below -1e4 goes on falling, but slowly."""
    p = min(max(exponent, _EXPONENTS[0]), _EXPONENTS[1])
    s = max(s, _SMALLEST)
    if abs(p) < 1e-9:
        return math.log(s)
    value = (s**p - 1.0) / p
    return value if value >= _LOWEST else _LOWEST * (1.0 + _SLOWLY * math.log(value / _LOWEST))


def restart_discount(age_s: float, restarts: int, cost_s: float) -> float:
    """Sia's r = (T - N*S)/(T + S), held within [0, 1]: age T, restarts so far N, restart cost S (all seconds but N)."""
    if cost_s <= 0:
        return 1.0
    age_s = max(age_s, 0.0)
    return min(max((age_s - restarts * cost_s) / (age_s + cost_s), 0.0), 1.0)


def restart_factor(ask: JobRequest, index: int) -> float:
    """What the goodput of cells[index], taken anew by a running job, is multiplied by: `discount`, and no more than what is
    left of it on average until the job ends where that is known: W/(S + W/g) over g = 1/(1 + g S/W), W sequences left."""
    if ask.current is None:
        return 1.0
    return min(ask.discount, 1.0 / (1.0 + ask.drag * ask.cells[index].goodput))


def payback_s(now: float, then: float, cost_s: float) -> float:
    """Seconds of running at goodput `then` that make up for `cost_s` seconds without any, against going on at `now`."""
    return cost_s * now / (then - now) if then > now else math.inf


def find_asked(cells: Sequence[Cell], asked: Shape) -> int | None:
    """Index of the best Cell of the size asked for, see Offers.asked."""
    return CellIndex.of(cells).asked(asked)


def same_shape(have: Shape, want: Shape) -> bool:
    """Equal shapes, where no GPU type in `want` means any."""
    return (have.nodes, have.gpus_per_node) == (want.nodes, want.gpus_per_node) and want.gpu_type in ("", have.gpu_type)


def smallest(cells: Sequence[Cell]) -> int:
    """Index of the Cell with the fewest GPUs; of several, the one with the best goodput."""
    return CellIndex.of(cells).smallest


def relative_goodputs(cells: Sequence[Cell], asked: int | None) -> Sequence[float]:
    """Each Cell's goodput over that of the size asked for, over the smallest Cell's where that is not feasible."""
    return Relative(cells, cells[smallest(cells) if asked is None else asked].goodput)


def relative_goodput(cell: Cell, cells: Sequence[Cell], asked: int | None) -> float | None:
    """`cell`'s goodput over that of the size asked for, for people; None where either is not known."""
    if asked is None or cells[asked].goodput <= 0 or cell.goodput <= 0:
        return None
    return cell.goodput / cells[asked].goodput


def stay_value(ask: JobRequest, terms: Objective) -> float:
    """Weighted utility of going on as it is: of the current Cell if it runs, of waiting if not.

    Waiting counts as `wait_share` of the least goodput that any Cell has: a first GPU is worth much, but not
    infinitely much, so that weights can still tell jobs apart under overload.
    """
    if ask.current is not None:
        return ask.weight * worth(ask.relative[ask.current], terms) + bonus(ask, ask.current, terms, anew=False)
    return ask.weight * waiting(ask, terms)


def change_value(ask: JobRequest, index: int, terms: Objective) -> float:
    """Weighted utility of getting cells[index] anew: a start, or a change of a running job with its restart factor.

    The current Cell on other nodes is a change like any other.
    """
    value = worth(restart_factor(ask, index) * ask.relative[index], terms)
    return ask.weight * value + bonus(ask, index, terms, anew=True)


def stop_value(ask: JobRequest, terms: Objective) -> float:
    """Weighted utility of a running job that is stopped: of waiting, with its restart factor, for it will start anew, and a
    margin, so that nobody is stopped for an equal."""
    if terms.form == "sia":
        return ask.weight * (waiting(ask, terms) - _STOP_MARGIN)
    factor = (1.0 - _STOP_MARGIN) * restart_factor(ask, ask.current or 0) ** 2
    return ask.weight * utility(factor * terms.wait_share * ask.relative[CellIndex.of(ask.cells).least], terms.exponent)


def parts(
    ask: JobRequest, choice: int | None, stays: bool, terms: Objective, slowdown: float = 1.0
) -> tuple[tuple[str, float], ...]:
    """The terms of the objective that one job's outcome adds up from, as (name, value); those that are 0 are left out.
    `slowdown`: of its steps, by who shares its links."""
    need = 0.0
    if choice is None:
        found = {"waiting": waiting(ask, terms)}
        if ask.current is not None:
            found["restart"] = stop_value(ask, terms) / ask.weight - found["waiting"]
    else:
        factor = 1.0 if stays else restart_factor(ask, choice)
        plain = worth(ask.relative[choice], terms)
        found = {
            "goodput": plain,
            "restart": worth(factor * ask.relative[choice], terms) - plain,
            "links": worth(factor * ask.relative[choice] / slowdown, terms)
            - worth(factor * ask.relative[choice], terms),
        }
        need = bonus(ask, choice, terms, anew=not stays)
    total, plain_weight = sum(found.values()), ask.weight / ask.short
    found["weight"] = (plain_weight - 1.0) * total
    found["short"] = plain_weight * (ask.short - 1.0) * total
    found["need"] = need
    return tuple((name, value) for name, value in found.items() if value)


def beyond_growth(ask: JobRequest, index: int, terms: Objective) -> bool:
    """Would cells[index] take a running job beyond `max_growth` times its present GPUs?"""
    if ask.current is None or terms.max_growth <= 0:
        return False
    now = ask.cells[ask.current].shape.gpus
    return ask.cells[index].shape.gpus > max(now, terms.max_growth * now)


def objective(problem: Problem, choice: Sequence[int | None], moved: frozenset[int]) -> float:
    """Sum of the weighted utilities of all jobs, those that wait included."""
    total = 0.0
    for index, (ask, picked) in enumerate(zip(problem.asks, choice, strict=True)):
        if picked == ask.current and index not in moved:
            total += stay_value(ask, problem.terms)
        elif picked is not None:
            total += change_value(ask, picked, problem.terms)
        else:
            total += stop_value(ask, problem.terms)
    return total


def allocation(
    problem: Problem,
    choice: Sequence[int | None],
    moved: frozenset[int] = frozenset(),
    upper_bound: float = math.inf,
    optimal: bool = False,
) -> Allocation:
    """An Allocation with its objective worked out."""
    value = objective(problem, choice, moved)
    return Allocation(tuple(choice), moved, value, max(upper_bound, value), optimal)
