"""torch.distributed.checkpoint's files, read and written without its detours; their layout stays torch's.

Reading: torch unpacks every tensor into memory that it then gives back to the system. On virtual machines the page faults alone hold it
to 0.5 to 1 GB/s (one H100: 13.4 GB took 14 s, docs/design/measurements/gpu.md). Here each tensor's bytes go where they belong, by way of
one buffer; torch tells where they lie if it loads a tensor without them, and where it does not, its own reader reads. Writing: torch
computes a CRC-32 of all bytes, which takes as long as the rest and is not looked at by `torch.load`; the seal of a checkpoint has its own
digests (agent/checkpoint.py).
"""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.utils import _create_file_view
from torch.futures import Future

_PIECE_BYTES = 1 << 26
_THREADS = 4  # of a process: while one reads, others copy to the GPU


class CheckpointWriter(FileSystemWriter):
    """A writer for `torch.distributed.checkpoint.save` and `async_save`. It has one thread: torch drops the errors of any others."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Write this rank's part."""
        with without_crc():
            return super().write_data(plan, planner)


@contextmanager
def without_crc() -> Iterator[None]:
    """Save tensors without CRC-32 in this block, and in other threads meanwhile: `torch.load` takes them, `unzip` warns."""
    if not hasattr(torch.serialization, "set_crc32_options"):  # before torch 2.6
        yield
        return
    usual = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(usual)


class CheckpointReader(FileSystemReader):
    """A reader for `torch.distributed.checkpoint.load`."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what `plan` lists into the tensors of `planner`."""
        return read_data(self, plan, planner)


def read_data(reader: FileSystemReader, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
    """Do what `reader.read_data` does, which may also be replaced by this function in its class."""
    if not _tells_places():
        return FileSystemReader.read_data(reader, plan, planner)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()  # the threads have streams of their own
    items = [_Item(reader, item) for item in plan.items]
    # of another planner it is not known whether it can be asked by several threads
    threads = min(_THREADS, _cpus(), len(items)) if type(planner) is DefaultLoadPlanner else 1
    plain = [item.request for share in _run(_shares(items, threads), planner) for item in share]
    if plain:
        return FileSystemReader.read_data(reader, LoadPlan(plain, plan.storage_data, plan.planner_data), planner)
    done: Future[None] = Future()
    done.set_result(None)
    return done


@cache
def _tells_places() -> bool:
    """Return whether this torch tells where the bytes of a tensor lie that it loads without them."""
    file = io.BytesIO()
    torch.save(torch.zeros(1, device="cpu"), file)
    file.seek(0)
    return _place(torch.load(file, map_location="meta", weights_only=True)) is not None


def _place(layout: torch.Tensor) -> int | None:
    """Return the offset of the bytes of a tensor loaded without them, as the documentation of torch.load says."""
    return getattr(layout.untyped_storage(), "_checkpoint_offset", None)


class _Item:
    """A request, and where its bytes lie."""

    def __init__(self, reader: FileSystemReader, request: ReadItem) -> None:
        self.request = request
        self.place: Any = reader.storage_data[request.storage_index]
        self.path = Path(reader.path) / self.place.relative_path
        self.is_plain = request.type == LoadItemType.BYTE_IO or bool(getattr(self.place, "transform_descriptors", None))


def _cpus() -> int:
    """Return the CPUs of this process, of which the node's other ranks take their share."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def _shares(items: Sequence[_Item], number: int) -> list[list[_Item]]:
    """Return the items in `number` parts of about the same size, each in the order of the files."""
    parts: list[list[_Item]] = [[] for _ in range(max(1, number))]
    sizes = [0] * len(parts)
    for item in sorted(items, key=lambda one: -one.place.length):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(item)
        sizes[smallest] += item.place.length
    return [sorted(part, key=lambda one: (one.path, one.place.offset)) for part in parts]


def _run(shares: Sequence[Sequence[_Item]], planner: LoadPlanner) -> Iterator[list[_Item]]:
    """Read each share in a thread of its own; yield what is left to torch's reader."""
    if len(shares) == 1:
        yield _read_share(shares[0], planner, threading.Lock())
        return
    alone = threading.Lock()
    with ThreadPoolExecutor(len(shares), thread_name_prefix="synergy-load") as pool:
        yield from pool.map(lambda share: _read_share(share, planner, alone), shares)


def _read_share(items: Sequence[_Item], planner: LoadPlanner, alone: threading.Lock) -> list[_Item]:
    """Read the items one after another. Return those left to torch. `alone`: held while a whole stored tensor is in memory."""
    plain: list[_Item] = []
    pinned = _PinnedBuffer()
    for path, some in groupby(items, key=lambda one: one.path):
        with path.open("rb", buffering=0) as stream:
            plain += [item for item in some if item.is_plain or not _read_tensor(item, stream, planner, pinned, alone)]
    return plain


class _PinnedBuffer:
    """Memory by way of which one thread's bytes go to a GPU, made when a tensor of one comes."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None

    def tensor(self, target: torch.Tensor) -> torch.Tensor:
        """Return the buffer, as bytes."""
        if self._memory is None:
            self._memory = torch.empty(_PIECE_BYTES, dtype=torch.uint8, device="cpu", pin_memory=target.is_cuda)
        return self._memory


def _read_tensor(item: _Item, stream: Any, planner: LoadPlanner, pinned: _PinnedBuffer, alone: threading.Lock) -> bool:
    """Read one tensor. Return False where torch does not tell its place, or its kind is not a plain one."""
    view: Any = _create_file_view(stream, item.place.offset, item.place.length)
    layout = torch.load(view, map_location="meta", weights_only=True)
    start, size_bytes = _place(layout), layout.untyped_storage().nbytes()
    if start is None or start + size_bytes > item.place.length or not _is_ordinary(layout):
        return False
    request = item.request
    target = planner.resolve_tensor(request).detach()
    if tuple(target.size()) != tuple(request.lengths):
        raise AssertionError(
            f"{request.storage_index}: {tuple(request.lengths)} is stored, {tuple(target.size())} wanted"
        )
    position = item.place.offset + start
    if _is_whole(layout, target):
        _read_into(target, stream, position, pinned)
    else:  # a part of what is stored, or in another order
        with alone:
            stored = torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
            _fill(stored.numpy().data, stream, position)
            values = stored.view(layout.dtype).as_strided(layout.size(), layout.stride(), layout.storage_offset())
            part = narrow_tensor_by_index(values, request.storage_offsets, request.lengths)
            if part.size() != target.size():
                raise AssertionError(
                    f"{request.storage_index}: {tuple(part.size())} is stored, {tuple(target.size())} wanted"
                )
            target.copy_(part)
    planner.commit_tensor(request, target)
    return True


def _is_ordinary(layout: torch.Tensor) -> bool:
    """Return whether the bytes are a tensor's values as they are."""
    dense = type(layout) is torch.Tensor and layout.layout is torch.strided and not layout.is_quantized
    return dense and not layout.is_conj() and not layout.is_neg()


def _is_whole(layout: torch.Tensor, target: torch.Tensor) -> bool:
    """Return whether the stored bytes are those of `target`, in its order."""
    same = type(target) is torch.Tensor and layout.dtype == target.dtype and layout.size() == target.size()
    whole = layout.untyped_storage().nbytes() == math.prod(layout.size()) * layout.dtype.itemsize
    return (
        same
        and whole
        and layout.is_contiguous()
        and target.is_contiguous()
        and not (target.is_conj() or target.is_neg())
    )


def _read_into(target: torch.Tensor, stream: Any, position: int, pinned: _PinnedBuffer) -> None:
    if target.numel() == 0:
        return
    flat = target.view(-1).view(torch.uint8)
    if target.device.type == "cpu":
        _fill(flat.numpy().data, stream, position)
        return
    with torch.cuda.device_of(target):  # type: ignore[no-untyped-call]  # a thread begins on the first GPU
        buffer = pinned.tensor(target)
        for first in range(0, len(flat), len(buffer)):
            piece = flat[first : first + len(buffer)]
            _fill(buffer.numpy().data[: len(piece)], stream, position + first)
            piece.copy_(buffer[: len(piece)])


def _fill(memory: memoryview, stream: Any, position: int) -> None:
    stream.seek(position)
    filled = 0
    while filled < len(memory):
        number = stream.readinto(memory[filled:])
        if not number:
            raise EOFError(f"{stream.name} ends {len(memory) - filled} bytes too early")
        filled += number
