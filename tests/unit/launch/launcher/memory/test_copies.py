"""The launchers of three nodes that hold memory checkpoints for one another, over real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_core.wire.plan_file import PlanFile
from synergy_launch.agent.checkpoint import Checkpoint, verify
from synergy_launch.agent.memory_folder import ACKNOWLEDGED, DISCARDED, OWN, RESUME, seal_part
from synergy_launch.launcher.failures.plan_guard import PlanGuard
from synergy_launch.launcher.group import launcher_group as groups
from synergy_launch.launcher.group.launcher_group import LauncherGroup
from synergy_launch.launcher.in_place import Restarts
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.memory import copies as memory_copies
from synergy_launch.launcher.memory.copies import VARIABLE, MemoryCopies, make_memory_copies

NODES = ("n1", "n2", "n3")
SECRET = "0123456789abcdef"
ENVIRONMENT = {VARIABLE: "1", "SYNERGY_JOB_SECRET": SECRET}


def at(rank: int, nodes: tuple[str, ...] = NODES) -> JobAllocation:
    return JobAllocation(job_id=9, restarts=0, nodes=nodes, node_rank=rank, gpus=1, in_step=True, leader=rank == 0)


class Node:
    """One launcher of the job, and what its processes would leave."""

    def __init__(self, rank: int, root: Path) -> None:
        self.root, self.rank = root, rank
        root.mkdir()
        self.group = LauncherGroup(at(rank), "127.0.0.1", 1000, SECRET.encode())
        copies = make_memory_copies(ENVIRONMENT, at(rank), root)
        assert copies is not None
        self.copies: MemoryCopies = copies
        self.folder = Path()

    def begin(self, run: int, nodes: tuple[str, ...] = NODES) -> None:
        environment = self.copies.begin_run(self.group, at(nodes.index(NODES[self.rank]), nodes), run)
        self.folder = Path(environment["SYNERGY_MEMORY_DIR"])

    def write(self, step: int) -> Path:
        folder = self.folder / OWN / f"step_{step:08d}"
        folder.mkdir()
        (folder / f"__{self.rank}_0.distcp").write_bytes(f"{self.rank} {step}".encode() * 1000)
        seal_part(folder, step, {"kind": "test"} if self.rank == 0 else None)
        return folder

    @property
    def acknowledged(self) -> int:
        path = self.folder / ACKNOWLEDGED
        return int(path.read_text()) if path.exists() else 0

    @property
    def resumed(self) -> list[Checkpoint]:
        found = [verify(folder)[0] for folder in sorted((self.folder / RESUME).iterdir())]
        return [one for one in found if one is not None]

    def close(self) -> None:
        self.group.close()
        self.copies.close()


def until(nodes: list[Node], true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        for node in nodes:
            node.group.poll()
            node.copies.poll(node.group)
        time.sleep(0.01)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Node]]:
    """Connected, in the job's first run, with a memory checkpoint of step 10 that counts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    monkeypatch.setattr(groups, "meeting_ports", lambda secret, job, restarts, run: (port,))
    monkeypatch.setattr(groups, "_AGAIN_S", 0.05)
    monkeypatch.setattr(memory_copies, "_AGAIN_S", 0.05)
    made = [Node(rank, tmp_path / NODES[rank]) for rank in range(3)]
    for node in made:
        node.begin(0)
    copy(made, 10)
    yield made
    for node in made:
        node.close()
    assert [list(node.root.iterdir()) for node in made] == [[], [], []]


def copy(nodes: list[Node], step: int) -> None:
    for node in nodes:
        node.write(step)
    until(nodes, lambda: all(node.acknowledged == step for node in nodes))


def lose(nodes: list[Node], *ranks: int) -> list[Node]:
    """Return the nodes that remain when those of `ranks` have gone."""
    for rank in ranks:
        nodes[rank].close()
    remaining = [node for node in nodes if node.rank not in ranks]
    until(remaining, lambda: nodes[0].group.lost_ranks == set(ranks))
    return remaining


def go_on(nodes: list[Node], run: int, after_step: int) -> int | None:
    """Start run `run` on `nodes` after a failure. Return the step of the memory checkpoint that was offered."""
    step = nodes[0].copies.offer(nodes[0].group, run, after_step)
    if step is not None:
        until(nodes, lambda: all(node.copies._resume is not None for node in nodes))
    names = tuple(NODES[node.rank] for node in nodes)
    for node in nodes:
        node.begin(run, names)
    return step


def test_one_counts_only_when_the_neighbours_hold_it(nodes: list[Node]) -> None:
    for node in nodes[:2]:
        node.write(20)
    held = nodes[2].copies._folder.path / "run-0" / "held" / "n2" / "step_00000020" / "part"
    until(nodes, held.exists)
    assert [node.acknowledged for node in nodes] == [10, 10, 10], "n3 has not written its part"
    nodes[2].write(20)
    until(nodes, lambda: all(node.acknowledged == 20 for node in nodes))


def test_two_are_kept(nodes: list[Node]) -> None:
    copy(nodes, 20)
    copy(nodes, 30)
    for node in nodes:
        steps = sorted({path.name for path in node.copies._folder.path.rglob("step_*")})
        assert steps == ["step_00000020", "step_00000030"]


def test_every_node_has_the_whole_after_a_loss(nodes: list[Node]) -> None:
    copy(nodes, 20)
    nodes[0].write(30)  # not held by all
    remaining = lose(nodes, 1)
    assert go_on(remaining, 1, 5) == 20
    for node in remaining:
        (whole,) = node.resumed
        assert (whole.step, whole.meta) == (20, {"kind": "test"})
        assert (whole.path / "__1_0.distcp").read_bytes() == b"1 20" * 1000
    copy(remaining, 25)
    assert go_on(remaining, 2, 5) == 25


def test_a_crash_uses_it_with_all_nodes(nodes: list[Node]) -> None:
    assert go_on(nodes, 1, 5) == 10
    assert [node.resumed[0].step for node in nodes] == [10, 10, 10]


@pytest.mark.parametrize("saved", [5, 10])
def test_a_lost_node_is_answered_from_memory_if_that_is_newer(nodes: list[Node], saved: int) -> None:
    first, third = nodes[0], nodes[2]
    plan = PlanFile(9, Plan(dp=3, global_batch=24))
    guards = {node.rank: PlanGuard(at(node.rank), plan, None) for node in (first, third)}
    runs = {node.rank: Restarts(at(node.rank), None, group=node.group, memory=node.copies) for node in (first, third)}
    for step in (1, 100):
        status = {"state": "training", "step": step, "checkpoint_step": saved}
        guards[0].look(status)
        runs[0].look(status)
    until(nodes, lambda: third.group.mends)
    lose(nodes, 1)
    assert runs[0].has_lost_node and runs[0].begin_next_run(137, guards[0])
    assert runs[2].begin_next_run(137, guards[2])
    origin = " from its memory checkpoint of step 10" if saved < 10 else ""
    assert runs[0].message == f"n2 lost: started again in place on n1, n3{origin}"
    for node in (first, third):
        node.folder = Path(runs[node.rank].memory_environment()["SYNERGY_MEMORY_DIR"])
        assert [one.step for one in node.resumed] == [10] * (saved < 10)


def test_two_lost_neighbours_leave_the_checkpoint_on_disk(nodes: list[Node]) -> None:
    remaining = lose(nodes, 1, 2)
    assert remaining[0].copies.offer(remaining[0].group, 1, 5) is None


def test_one_as_old_as_on_disk_is_not_used(nodes: list[Node]) -> None:
    assert go_on(nodes, 1, 10) is None and nodes[2].resumed == []


def test_a_run_that_goes_back_on_purpose_uses_none(nodes: list[Node]) -> None:
    (nodes[0].folder / DISCARDED).touch()
    assert go_on(nodes, 1, 5) is None
    until(nodes, lambda: not any(list(node.copies._folder.path.rglob("step_*")) for node in nodes))
    assert go_on(nodes, 2, 5) is None, "nor does a later one"


def test_what_a_restart_by_an_order_went_back_behind_is_not_used(nodes: list[Node]) -> None:
    (nodes[0].folder / DISCARDED).touch()
    for node in nodes:
        node.begin(1)
    assert go_on(nodes, 2, 5) is None


def truncate(node: Node, part: str) -> None:
    """Cut the file short that `node` holds of `part`."""
    path = node.copies._folder.path / "run-0" / part / "step_00000010"
    with next(path.glob("*.distcp")).open("r+b") as stream:
        stream.truncate(10)


@pytest.mark.parametrize(("rank", "part"), [(1, "own"), (1, "held/n1")])
def test_a_truncated_part_comes_from_the_other_node(nodes: list[Node], rank: int, part: str) -> None:
    truncate(nodes[rank], part)
    assert go_on(nodes, 1, 5) == 10
    assert [node.resumed[0].step for node in nodes] == [10, 10, 10]


def test_a_part_that_is_truncated_on_both_nodes_is_not_used(
    nodes: list[Node], capsys: pytest.CaptureFixture[str]
) -> None:
    truncate(nodes[1], "own")
    truncate(nodes[2], "held/n2")
    assert go_on(nodes, 1, 5) == 10
    assert [node.resumed for node in nodes] == [[], [], []]
    assert sorted(capsys.readouterr().err.splitlines()) == [
        f"synergy-launch: {name} goes on from disk: memory checkpoint: it is not there" for name in NODES
    ]


def test_a_neighbour_without_room_ends_them_with_one_line(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory_copies, "room_obstacle", lambda folder, needed: "they would take 9.00 GiB of /dev/shm")
    for node in nodes:
        node.write(20)
    until(nodes, lambda: nodes[0].copies._is_off)
    for _ in range(20):
        until(nodes, lambda: True)
    assert [node.acknowledged for node in nodes] == [10, 10, 10]
    assert capsys.readouterr().err == (
        "synergy-launch: no more memory checkpoints, those on disk go on: memory checkpoint: "
        "they would take 9.00 GiB of /dev/shm\n"
    )


def test_records_that_no_launcher_sends_change_nothing(nodes: list[Node]) -> None:
    to_first: list[dict[str, Any]] = [{"port": "x"}, {"port": 0}, {"held": [0]}, {"held": [0, "x"]}, {"held": None}]
    to_others: list[dict[str, Any]] = [
        {"next": ["n2"]}, {"next": ["n2", "h", -1], "run": 0}, {"acknowledged": "x"}, {"acknowledged": 3}, {"more": 1},
    ]  # fmt: skip
    for record in to_first:
        nodes[1].group.send_memory_record(record)
    for record in to_others:
        nodes[0].group.send_memory_record(record)
    copy(nodes, 20)
    nodes[0].group.send_memory_record({"resume": 1, "from": [0, 20], "parts": {"../../n1": [["127.0.0.1", 9]]}})
    until(nodes, lambda: nodes[1].copies._resume is not None)
    nodes[1].begin(1)
    assert nodes[1].resumed == []


def test_they_are_off_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_memory_copies({"SYNERGY_JOB_SECRET": SECRET}, at(0), tmp_path) is None
    assert make_memory_copies({**ENVIRONMENT, VARIABLE: "0"}, at(0), tmp_path) is None
    with pytest.raises(UsageError, match="0 or 1"):
        make_memory_copies({**ENVIRONMENT, VARIABLE: "yes"}, at(0), tmp_path)
    assert make_memory_copies({VARIABLE: "1"}, at(0), tmp_path) is None
    assert make_memory_copies(ENVIRONMENT, at(0), tmp_path / "none") is None
    assert capsys.readouterr().err.splitlines() == [
        "synergy-launch: no memory checkpoints: the job has no SYNERGY_JOB_SECRET",
        f"synergy-launch: no memory checkpoints: {tmp_path / 'none'} (No such file or directory)",
    ]
