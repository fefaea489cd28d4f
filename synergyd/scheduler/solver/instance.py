"""The allocation as numbers: jobs x columns over shared rows, at most one column a job.

    maximise sum of utility[c] over the chosen columns c, at most one a job (none: 0)
    so that  sum of use[kind[c]] <= limit, row by row.

A kind is what a column takes: its row of `use`. There are few kinds (GPU type x size), so a column is two numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from synergy_core.errors import UsageError

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

_CHUNK = 65_536  # columns looked at at a time: their temporaries stay in the processor's cache


@dataclass(frozen=True)
class Instance:
    """N jobs, nnz columns, K kinds, R rows. Job j's columns are `indptr[j]:indptr[j + 1]`.

    `kind` [nnz] < K; `utility` [nnz], finite; `use` [K, R] >= 0; `limit` [R] >= 0; `previous` [N]: column or -1.
    """

    indptr: Ints
    kind: Ints
    utility: Floats
    use: Floats
    limit: Floats
    previous: Ints | None = None

    @property
    def jobs(self) -> int:
        return len(self.indptr) - 1

    def costs(self, prices: Floats) -> Floats:
        """Return the price of each kind [K], infinite where it is more than there is."""
        costs: Floats = self.use @ prices
        costs[(self.use > self.limit).any(axis=1)] = np.inf
        return costs

    def chunks(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first job, end job, first column, end column) of pieces of about 65,536 columns."""
        first, ptr = 0, self.indptr
        while first < self.jobs:
            end = int(np.searchsorted(ptr, ptr[first] + _CHUNK, side="right")) - 1
            end = min(max(end, first + 1), self.jobs)
            yield first, end, int(ptr[first]), int(ptr[end])
            first = end

    def rows(self, jobs: Ints) -> Instance:
        """Return the same problem with those jobs only, limits in proportion."""
        lens = self.indptr[jobs + 1] - self.indptr[jobs]
        ptr = pointers(lens)
        at = np.repeat(self.indptr[jobs] - ptr[:-1], lens) + np.arange(ptr[-1])
        return Instance(ptr, self.kind[at], self.utility[at], self.use, self.limit * (len(jobs) / self.jobs))


def pointers(lens: Ints) -> Ints:
    """Turn row lengths [n] into CSR pointers [n + 1]."""
    ptr = np.zeros(len(lens) + 1, dtype=np.intp)
    np.cumsum(lens, out=ptr[1:])
    return ptr


def segment_max(values: Floats, ptr: Ints, least: float = 0.0) -> Floats:
    """Return the largest value of each segment, at least `least`; `least` for empty segments."""
    largest = np.full(len(ptr) - 1, least)
    if len(values):
        full = np.flatnonzero(ptr[1:] > ptr[:-1])
        largest[full] = np.maximum(np.maximum.reduceat(values, ptr[full]), least)
    return largest


def instance(
    indptr: ArrayLike,
    gpu_type: ArrayLike,
    gpus: ArrayLike,
    utility: ArrayLike,
    capacity: ArrayLike,
    previous: ArrayLike | None = None,
) -> Instance:
    """Return the problem of GPU counts alone: one row a type. Shapes [N+1], [nnz], [nnz], [nnz], [T], [N].

    Columns with a utility that is not finite are never chosen. Raises UsageError for arrays that do not fit together.
    """
    ptr = _to_integers("indptr", indptr)
    types, counts = _to_integers("gpu_type", gpu_type), _to_integers("gpus", gpus)
    values, limit = _real("utility", utility), _real("capacity", capacity)
    nnz = len(values)
    if len(ptr) == 0 or ptr[0] != 0 or ptr[-1] != nnz or (np.diff(ptr) < 0).any():
        raise UsageError("indptr", "does not divide the columns among jobs", f"from 0 to {nnz}, never falling")
    if len(types) != nnz or len(counts) != nnz:
        raise UsageError("gpu_type, gpus, utility", "differ in length", f"{nnz} entries each")
    if not np.isfinite(limit).all() or (limit < 0).any():
        raise UsageError("capacity", "is negative or not a number", "GPUs of each type")
    if nnz and (types.min() < 0 or types.max() >= len(limit)):
        raise UsageError("gpu_type", "names a type that has no capacity", f"0 to {len(limit) - 1}")
    if nnz and counts.min() < 0:
        raise UsageError("gpus", "is negative", "GPUs of each column")
    if nnz and not np.isfinite(values.sum()):
        values = np.where(np.isfinite(values), values, -1.0)
    kind, use = _kinds(types, counts, limit)
    before = None if previous is None else _to_integers("previous", previous)
    if before is not None and (len(before) != len(ptr) - 1 or (before < -1).any() or (before >= max(nnz, 1)).any()):
        raise UsageError("previous", "is not one column or -1 for each job", f"{len(ptr) - 1} entries")
    return Instance(ptr, kind, values, use, limit, before)


def _kinds(types: Ints, counts: Ints, limit: Floats) -> tuple[Ints, Floats]:
    """Assign a number to each distinct (type, GPUs). Counts above every capacity are one: they are never chosen."""
    most = int(limit.max(initial=0)) + 1
    if len(counts) and counts.max() > most:
        counts = np.minimum(counts, most)
    width = int(counts.max(initial=0)) + 1
    code = types * width
    code += counts
    distinct_codes = np.flatnonzero(np.bincount(code, minlength=1))
    if len(code) == 0:
        distinct_codes = distinct_codes[:0]
    number = np.zeros(width * max(len(limit), 1) + 1, dtype=np.intp)
    number[distinct_codes] = np.arange(len(distinct_codes))
    use = np.zeros((len(distinct_codes), len(limit)))
    use[np.arange(len(distinct_codes)), distinct_codes // width] = distinct_codes % width
    np.take(number, code, out=code, mode="clip")
    return code, use


def _to_integers(name: str, values: ArrayLike) -> Ints:
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.number)):
        raise UsageError(name, "is not a list of whole numbers", "one number an entry")
    whole = array.astype(np.intp, copy=False)
    if not np.issubdtype(array.dtype, np.integer) and array.size and not (whole == array).all():
        raise UsageError(name, "has entries that are not whole", "whole numbers")
    return whole


def _real(name: str, values: ArrayLike) -> Floats:
    array: NDArray[Any] = np.asarray(values)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.number)):
        raise UsageError(name, "is not a list of numbers", "one number an entry")
    return np.ascontiguousarray(array, dtype=np.float64)
