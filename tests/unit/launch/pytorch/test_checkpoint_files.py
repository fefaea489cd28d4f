"""Files of torch.distributed.checkpoint: what one side writes the other reads, torch's own and ours alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from synergy_launch.pytorch import checkpoint_files
from synergy_launch.pytorch.checkpoint_files import CheckpointReader, CheckpointWriter
from synergy_launch.pytorch.training_state import HostCopy
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.futures import Future

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
LARGE = (1 << 26) // 4 + 3  # floats: more than one piece of the buffer


def state() -> dict[str, Any]:
    torch.manual_seed(7)
    return {
        "large": torch.randn(LARGE),
        "half": torch.randn(100, 3).bfloat16(),
        "transposed": torch.randn(40, 30).t(),
        "every other": torch.randn(10, 8)[:, ::2],
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False]),
        "count": torch.arange(7),
        "complex": torch.randn(5, dtype=torch.complex64),
        "step": 5,
        "words": "a b",
    }


def zeros() -> dict[str, Any]:
    return {name: torch.zeros_like(one) if torch.is_tensor(one) else "" for name, one in state().items()}


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]) if torch.is_tensor(value) else value == other[name], name


class Asked:
    """What was left to torch's own reader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        usual = FileSystemReader.read_data

        def read_data(reader: FileSystemReader, plan: LoadPlan, planner: Any) -> Future[None]:
            self.names |= {item.storage_index.fqn for item in plan.items}
            return usual(reader, plan, planner)

        monkeypatch.setattr(FileSystemReader, "read_data", read_data)


@pytest.mark.parametrize("writer", [FileSystemWriter, CheckpointWriter])
@pytest.mark.parametrize("reader", [FileSystemReader, CheckpointReader])
def test_each_reads_what_the_other_wrote(writer: Any, reader: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    save(state(), storage_writer=writer(folder), no_dist=True)
    loaded = zeros()
    load(loaded, storage_reader=reader(folder), no_dist=True)
    assert_equal(loaded, state())


def test_torch_reads_nothing_but_what_is_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path / "saved")
    save(state(), storage_writer=CheckpointWriter(folder), no_dist=True)
    asked = Asked(monkeypatch)
    load(zeros(), storage_reader=CheckpointReader(folder), no_dist=True)
    assert asked.names == {"step", "words"}


def test_torch_reads_where_it_does_not_tell_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As releases of torch do that do not know a load without data."""
    folder = str(tmp_path / "saved")
    save(state(), storage_writer=CheckpointWriter(folder), no_dist=True)
    asked, usual = Asked(monkeypatch), torch.load

    def old_load(file: Any, map_location: str = "cpu", **more: Any) -> Any:
        loaded = usual(file, map_location="cpu", **more)
        return loaded.to("meta") if map_location == "meta" else loaded

    monkeypatch.setattr(torch, "load", old_load)
    checkpoint_files._tells_places.cache_clear()
    loaded = zeros()
    load(loaded, storage_reader=CheckpointReader(folder), no_dist=True)
    checkpoint_files._tells_places.cache_clear()
    assert_equal(loaded, state())
    assert {"large", "half", "step"} < asked.names


def test_another_type_is_converted(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    save({"w": torch.randn(9, 5)}, storage_writer=CheckpointWriter(folder), no_dist=True)
    single, half = {"w": torch.zeros(9, 5)}, {"w": torch.zeros(9, 5).bfloat16()}
    load(single, storage_reader=CheckpointReader(folder), no_dist=True)
    load(half, storage_reader=CheckpointReader(folder), no_dist=True)
    assert torch.equal(half["w"], single["w"].bfloat16()) and single["w"].any()


class Corner:
    """A planner that wants rows 2 and 3 of columns 1 to 3, as another degree of parallelism would."""

    def __init__(self) -> None:
        self.part, self.committed = torch.zeros(2, 3), 0

    def resolve_tensor(self, _: ReadItem) -> torch.Tensor:
        return self.part

    def commit_tensor(self, *_: object) -> None:
        self.committed += 1


def test_a_part_of_what_is_stored(tmp_path: Path) -> None:
    whole = torch.arange(30.0).view(6, 5)
    save({"w": whole}, storage_writer=CheckpointWriter(str(tmp_path / "saved")), no_dist=True)
    reader, planner = CheckpointReader(str(tmp_path / "saved")), Corner()
    reader.set_up_storage_reader(reader.read_metadata(), is_coordinator=True)
    (index,) = reader.storage_data
    item = ReadItem(
        LoadItemType.TENSOR, MetadataIndex("w"), torch.Size((0, 0)), index, torch.Size((2, 1)), torch.Size((2, 3))
    )
    reader.read_data(LoadPlan([item]), planner).wait()  # type: ignore[arg-type]
    assert torch.equal(planner.part, whole[2:4, 1:4]) and planner.committed == 1


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    save({"w": torch.randn(1 << 20)}, storage_writer=CheckpointWriter(str(folder)), no_dist=True)
    file = max(folder.glob("*.distcp"), key=lambda one: one.stat().st_size)
    with file.open("rb+") as stream:
        stream.truncate(file.stat().st_size // 2)
    with pytest.raises(CheckpointException):
        load({"w": torch.zeros(1 << 20)}, storage_reader=CheckpointReader(str(folder)), no_dist=True)


def test_checksums_are_left_out_of_checkpoints_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    during: list[bool] = []
    usual = FileSystemWriter.write_data

    def write_data(writer: FileSystemWriter, *arguments: Any) -> Any:
        during.append(torch.serialization.get_crc32_options())
        return usual(writer, *arguments)

    monkeypatch.setattr(FileSystemWriter, "write_data", write_data)
    save({"w": torch.randn(8)}, storage_writer=CheckpointWriter(str(tmp_path / "saved")), no_dist=True)
    assert (during, torch.serialization.get_crc32_options()) == ([False], True)


def test_values_that_are_not_their_bytes(tmp_path: Path) -> None:
    conjugate = torch.randn(5, dtype=torch.complex64).conj()
    saved = {"conjugate": conjugate, "negative": conjugate.imag}
    assert conjugate.is_conj() and conjugate.imag.is_neg()
    folder = str(tmp_path / "saved")
    save(saved, storage_writer=CheckpointWriter(folder), no_dist=True)
    loaded = {"conjugate": torch.zeros(5, dtype=torch.complex64), "negative": torch.zeros(5)}
    load(loaded, storage_reader=CheckpointReader(folder), no_dist=True)
    assert_equal(loaded, saved)


def test_a_default_device_of_the_script_does_not_matter(tmp_path: Path) -> None:
    whole = torch.arange(30.0).view(6, 5)
    save({"w": whole}, storage_writer=CheckpointWriter(str(tmp_path / "saved")), no_dist=True)
    double = {"w": torch.zeros(6, 5, dtype=torch.float64)}
    with torch.device("meta"):
        load(double, storage_reader=CheckpointReader(str(tmp_path / "saved")), no_dist=True)
    assert torch.equal(double["w"], whole.double())


def test_an_error_of_writing_ends_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch drops what happens in a writer's threads beside the first."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    many = {str(number): torch.randn(8) for number in range(8)}
    with pytest.raises(CheckpointException, match="No space left"):
        save(many, storage_writer=CheckpointWriter(str(tmp_path / "saved")), no_dist=True)


def test_the_memory_of_a_copy_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, weights = HostCopy(), {"model": {"w": torch.ones(1 << 10)}}
    first = copies.options(weights)["async_stager"].stage(weights)
    weights["model"]["w"] += 1
    second = copies.options(weights)["async_stager"].stage(weights)
    assert first["model"]["w"].data_ptr() == second["model"]["w"].data_ptr() != weights["model"]["w"].data_ptr()
    assert torch.equal(second["model"]["w"], torch.full((1 << 10,), 2.0))
    monkeypatch.setattr("synergy_launch.pytorch.training_state.read_free_bytes", lambda: 4096)
    assert copies.obstacle(weights) == ""  # half of what would be left without the copy that is there
    monkeypatch.setattr("synergy_launch.pytorch.training_state.read_free_bytes", lambda: 4095)
    assert copies.obstacle(weights)
    copies.close()
    monkeypatch.setattr("synergy_launch.pytorch.training_state.read_free_bytes", lambda: 8191)
    assert copies.obstacle(weights)
