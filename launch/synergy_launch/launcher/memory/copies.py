"""Memory checkpoints, as the launchers hold them: each node's part on the node and on the next one of the run.

The processes of a node leave their part in its launcher's folder on tmpfs (agent/memory_saves.py). Its launcher sends it to the launcher
of the next node and reports to the first node when that one has it. When all parts are held twice, the first node acknowledges the
checkpoint to all. After a failure it names the latest one of which the remaining launchers hold all parts, and every launcher fetches
what it lacks before the next run starts. A run goes on from it only if it is newer than the last good checkpoint on disk.

Between the launchers, as JSON on their connections (group/launcher_group.py), where NAME is a node, RUN and STEP mean a memory checkpoint:

    {"port": PORT}                                                     to the first node: where this one takes parts
    {"next": [NAME, ADDRESS, PORT], "run": RUN}                        where to send the parts of that run
    {"held": [RUN, STEP]}                                              to the first node: the sender's part is held twice
    {"off": REASON}                                                    to the first node: the next one can't hold a part
    {"acknowledged": [RUN, STEP]}                                      it counts
    {"discard": true}                                                  the run goes back on purpose: none is to be used
    {"resume": RUN, "from": [RUN, STEP], "parts": {NAME: [[ADDRESS, PORT], ...]}}   what run RUN goes on from, and where each part is
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click
from synergy_core.errors import SynergyError, UsageError

from synergy_launch.agent.checkpoint import step_folder
from synergy_launch.agent.memory_folder import (
    ACKNOWLEDGED,
    DISCARDED,
    OWN,
    RESUME,
    Part,
    folder_bytes,
    is_file_name,
    read_part,
    room_obstacle,
    seal_whole,
)
from synergy_launch.agent.settings import MEMORY_DIR
from synergy_launch.launcher.group.launcher_group import LauncherGroup
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.job.job_secret import key_of_incarnation, read_secret
from synergy_launch.launcher.memory.folders import ROOT, LauncherFolder
from synergy_launch.launcher.memory.generations import (
    Generation,
    Ledger,
    choose_generation,
    is_worth_keeping,
    next_node,
)
from synergy_launch.launcher.memory.transfer import PartName, PartServer, fetch_part, send_part

#: "1": the state of a job on several nodes is also held in host memory, on two nodes each
VARIABLE = "SYNERGY_MEMORY_COPIES"
_HELD = "held"
_AGAIN_S = 2.0
#: of a record: half of a line between launchers (group/launcher_group.py), since the next one may come with it. About 400 nodes
_MOST_RECORD_BYTES = 32_768
_MOST_FAILURES = 5  # of sending one part; then memory checkpoints end
_FETCHES = 4  # at once
_WHERE = "memory checkpoint"


def make_memory_copies(
    environment: Mapping[str, str], allocation: JobAllocation, root: Path = ROOT
) -> MemoryCopies | None:
    """Return this node's side of the job's memory checkpoints, or None where the user wants none or the node can't hold any.

    Raises UsageError for a value of VARIABLE that says neither.
    """
    choice, secret = environment.get(VARIABLE, ""), read_secret(environment)
    if choice not in ("", "0", "1"):
        raise UsageError(VARIABLE, f"is {choice[:40]!r}", "0 or 1")
    if choice != "1":
        return None
    if not secret:
        click.echo("synergy-launch: no memory checkpoints: the job has no SYNERGY_JOB_SECRET", err=True)
        return None
    try:
        folder = LauncherFolder(f"{allocation.job_id}-{allocation.restarts}-{allocation.node_rank}", root)
        return MemoryCopies(allocation, secret, folder)
    except (OSError, SynergyError) as error:
        why = f"{root} ({error.strerror})" if isinstance(error, OSError) else str(error)
        click.echo(f"synergy-launch: no memory checkpoints: {why}", err=True)
        return None


class _NodeShelf:
    """The parts under one launcher's folder: those of its own node, and those of the nodes before it."""

    def __init__(self, base: Path, node: str, is_intact: Callable[[], bool]) -> None:
        self._base, self._node, self._is_intact = base, node, is_intact

    def find(self, name: PartName) -> Path | None:
        """Return the folder of the part, or None where it is not here."""
        path = step_folder(self.own(name.run) if name.node == self._node else self._neighbours(name), name.step)
        return path if read_part(path) is not None else None

    def obstacle(self, part: Part) -> str:
        """Return why a neighbour's part can't be held here, or ""."""
        if not self._is_intact():
            return "its folder is gone"
        return room_obstacle(self._base, folder_bytes(self._base) + part.size_bytes)

    def place(self, name: PartName) -> Path:
        """Return the folder for a neighbour's part."""
        return step_folder(self._neighbours(name), name.step)

    def own(self, run: int) -> Path:
        return self.run_folder(run) / OWN

    def run_folder(self, run: int) -> Path:
        return self._base / f"run-{run}"

    def prune(self, acknowledged: list[tuple[int, int]]) -> None:
        """Remove the parts that nobody can need any more."""
        for path in (*self._base.glob(f"run-*/{OWN}/step_*"), *self._base.glob(f"run-*/{_HELD}/*/step_*")):
            run = path.relative_to(self._base).parts[0].removeprefix("run-")
            if not is_worth_keeping((int(run), int(path.name.removeprefix("step_"))), acknowledged):
                shutil.rmtree(path, ignore_errors=True)

    def discard(self) -> None:
        """Remove all parts."""
        for path in (*self._base.glob(f"run-*/{OWN}/step_*"), *self._base.glob(f"run-*/{_HELD}")):
            shutil.rmtree(path, ignore_errors=True)

    def _neighbours(self, name: PartName) -> Path:
        return self.run_folder(name.run) / _HELD / name.node


class _Sending:
    """A part on its way to the next node, in a thread. `why`: the reason for which it was refused, "" otherwise."""

    def __init__(self, name: PartName, send: Callable[[], None]) -> None:
        self.name, self.is_held, self.why = name, False, ""
        self._send = send
        self._thread = threading.Thread(target=self._run, name="memory checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._send()
            self.is_held = True
        except SynergyError as error:
            self.why = str(error)
        except OSError:  # the other side may be lost: the first node sees to that
            pass


class MemoryCopies:
    """One launcher's side of the job's memory checkpoints.

    Call `begin_run` before each run, `poll` often, and on the first node `offer` before the others learn of a run that follows a failure.
    """

    def __init__(self, allocation: JobAllocation, secret: bytes, folder: LauncherFolder) -> None:
        self._folder = folder
        self._name = allocation.nodes[allocation.node_rank]
        self._shelf = _NodeShelf(folder.path, self._name, lambda: folder.is_intact)
        self._key = key_of_incarnation(secret, allocation.job_id or 0, allocation.restarts)
        self._server = PartServer(self._key, secret, self._shelf)
        self._nodes: tuple[str, ...] = ()
        self._run = 0
        self._is_announced = False  # over the present connection to the first node
        self._next: tuple[int, tuple[str, int]] | None = None  # the run, and where its parts go
        self._sending: _Sending | None = None
        self._failures, self._retry_at = 0, 0.0
        self._sent = 0  # the latest step of this run that is held twice
        self._acknowledged: list[tuple[int, int]] = []  # (run, step), oldest first
        self._resume: Mapping[str, Any] | None = None
        self._is_off = False
        # on the first node
        self._ports: dict[str, int] = {}
        self._ledger = Ledger()

    # -- each run ------------------------------------------------------------------------------------------------------

    def begin_run(self, group: LauncherGroup, allocation: JobAllocation, run: int) -> dict[str, str]:
        """Return the addition to the environment of run `run` on the nodes of `allocation`, when what it goes on from lies here."""
        self._read(group)
        self._discard_if_asked(group)
        self._nodes, self._run, self._sent, self._sending, self._failures = allocation.nodes, run, 0, None, 0
        self._is_off = False
        folder = self._shelf.run_folder(run)
        if not self._folder.is_intact:  # whoever made another in its place could put a state of theirs into it
            self._is_off, self._resume = True, None
            return {MEMORY_DIR: ""}
        for path in self._folder.path.glob(f"run-*/{RESUME}"):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in (folder, folder / OWN, folder / RESUME):
                path.mkdir(exist_ok=True)
        if self._resume is not None and self._resume.get("resume") == run:
            self._fetch(self._resume, folder / RESUME)
        self._resume = None
        if group.first:
            self._tell_next(group)
        # ranks that torchrun started again in the same run would take steps anew, and parts of two trainings have one name
        return {MEMORY_DIR: str(folder), "PET_MAX_RESTARTS": "0"}

    def poll(self, group: LauncherGroup) -> None:
        """Read what the other launchers say, and send this node's newest part to the next one."""
        if not group.first and group.is_connected and not self._is_announced:
            group.send_memory_record({"port": self._server.port})
        self._is_announced = group.is_connected
        self._read(group)
        with contextlib.suppress(OSError):  # the folder is removed as soon as the job ends
            self._follow_sending(group)

    def offer(self, group: LauncherGroup, run: int, after_step: int) -> int | None:
        """Have run `run` go on from a memory checkpoint of a later step than `after_step`, and tell all nodes. Return its step.

        Returns None if there is none, or if the run ended to go back on purpose. Only for the first node.
        """
        self._read(group)
        self._discard_if_asked(group)
        for rank in group.lost_ranks:  # a launcher that comes to that node later holds nothing
            self._ports.pop(group.members[rank], None)
        addresses = self._addresses(group)
        choice = choose_generation(self._ledger.offerable, set(addresses), after_step)
        if choice is None:
            return None
        generation, sources = choice
        parts = {node: [list(addresses[holder]) for holder in holders] for node, holders in sources.items()}
        record = {"resume": run, "from": [generation.run, generation.step], "parts": parts}
        if len(json.dumps(record)) > _MOST_RECORD_BYTES:
            return None
        self._resume = record
        self._ledger.note_offer(generation)
        group.send_memory_record(record)
        return generation.step

    def close(self) -> None:
        """Remove everything."""
        self._server.close()
        self._folder.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _read(self, group: LauncherGroup) -> None:
        records, group.memory_records = group.memory_records, []
        for rank, record in records:
            with contextlib.suppress(KeyError, ValueError, TypeError, IndexError, OSError):
                self._take_as_first(group, rank, record) if group.first else self._take(record)

    def _take_as_first(self, group: LauncherGroup, rank: int, record: Mapping[str, Any]) -> None:
        node = group.members[rank]
        if "port" in record:
            self._ports[node] = _port(record["port"])
            self._tell_next(group)
        elif "held" in record:
            self._note_held(group, node, *map(int, record["held"]))
        elif "off" in record:
            self._end(str(record["off"]))

    def _take(self, record: Mapping[str, Any]) -> None:
        if "next" in record:
            _, address, port = record["next"]
            self._next = int(record["run"]), (str(address), _port(port))
        elif "acknowledged" in record:
            run, step = map(int, record["acknowledged"])
            self._acknowledge(run, step)
        elif "resume" in record:
            self._resume = record
        elif "discard" in record:
            self._discard()

    def _addresses(self, group: LauncherGroup) -> dict[str, tuple[str, int]]:
        """Return where the launchers that are connected take parts, by node."""
        addresses = {self._name: (group.address, self._server.port)}
        for rank in group.ranks - group.lost_ranks:
            node = group.members[rank]
            if node in self._ports and (address := group.find_peer_address(rank)):
                addresses[node] = address, self._ports[node]
        return addresses

    def _tell_next(self, group: LauncherGroup) -> None:
        """Tell each node of the run where its parts go, once all can take some."""
        if self._is_off or len(self._nodes) < 2 or not set(self._nodes) <= {self._name, *self._ports}:
            return  # most of the calls, one for each node that names its port
        addresses = self._addresses(group)
        if not set(self._nodes) <= set(addresses):
            return
        for node in self._nodes:
            receiver = next_node(self._nodes, node)
            if node == self._name:
                self._next = self._run, addresses[receiver]
            else:
                record = {"next": [receiver, *addresses[receiver]], "run": self._run}
                group.send_memory_record(record, group.members.index(node))

    def _follow_sending(self, group: LauncherGroup) -> None:
        """Begin or end the transfer of this node's newest part."""
        if (sending := self._sending) is not None:
            if not sending.is_over:
                return
            self._sending = None
            if sending.is_held:
                self._sent, self._failures = sending.name.step, 0
                run, step = sending.name.run, sending.name.step
                if group.first:
                    self._note_held(group, self._name, run, step)
                else:
                    group.send_memory_record({"held": [run, step]})
            else:
                self._failures += 1
                self._retry_at = time.monotonic() + _AGAIN_S
                if sending.why or self._failures >= _MOST_FAILURES:
                    self._report_end(group, sending.why or "the next node can't take a part")
        if self._is_off or self._next is None or self._next[0] != self._run or time.monotonic() < self._retry_at:
            return
        for folder in sorted(self._shelf.own(self._run).glob("step_*"), reverse=True)[:1]:
            part = read_part(folder)
            if part is not None and part.step > self._sent:
                name, address = PartName(run=self._run, step=part.step, node=self._name), self._next[1]
                self._sending = _Sending(name, partial(send_part, address, self._key, name, folder, part))

    def _note_held(self, group: LauncherGroup, node: str, run: int, step: int) -> None:
        if run != self._run or self._is_off:
            return
        if self._ledger.add_part(Generation(step=step, run=run, nodes=self._nodes), node):
            self._acknowledge(run, step)
            group.send_memory_record({"acknowledged": [run, step]})

    def _acknowledge(self, run: int, step: int) -> None:
        self._acknowledged.append((run, step))
        self._shelf.prune(self._acknowledged)
        with contextlib.suppress(OSError):
            draft = self._shelf.run_folder(run) / f".{ACKNOWLEDGED}"
            draft.write_text(f"{step}\n", encoding="ascii")
            draft.replace(self._shelf.run_folder(run) / ACKNOWLEDGED)

    def _report_end(self, group: LauncherGroup, why: str) -> None:
        if group.first:
            self._end(why)
        else:
            self._is_off = True
            group.send_memory_record({"off": why})

    def _end(self, why: str) -> None:
        """Take no more memory checkpoints: nothing is acknowledged any more, and the processes wait for that."""
        if not self._is_off:
            self._is_off = True
            click.echo(f"synergy-launch: no more memory checkpoints, those on disk go on: {why[:300]}", err=True)

    def _discard_if_asked(self, group: LauncherGroup) -> None:
        """Forget all memory checkpoints on all nodes if the run has ended to go back on purpose."""
        if group.first and (self._shelf.run_folder(self._run) / DISCARDED).exists():
            self._discard()
            group.send_memory_record({"discard": True})

    def _discard(self) -> None:
        self._ledger.discard()
        self._acknowledged, self._resume = [], None
        self._shelf.discard()

    def _fetch(self, record: Mapping[str, Any], folder: Path) -> None:
        """Put the checkpoint of `record` together in `folder`; where it can't be, the run goes on from disk."""
        whole = Path()
        try:
            run, step = map(int, record["from"])
            whole = step_folder(folder, step)
            whole.mkdir()
            places = {
                str(node): [(str(address), _port(port)) for address, port in holders]
                for node, holders in record["parts"].items()
            }
            if not all(is_file_name(node) for node in places):
                raise ValueError
            with ThreadPoolExecutor(_FETCHES, thread_name_prefix="memory-checkpoint") as pool:
                names = [PartName(run=run, step=step, node=node) for node in places]
                parts = list(pool.map(lambda name: self._fetch_part(name, places[name.node], whole), names))
            seal_whole(whole, parts)
        except (OSError, SynergyError, KeyError, ValueError, TypeError, IndexError) as error:
            shutil.rmtree(whole, ignore_errors=True)
            why = str(error) if isinstance(error, SynergyError) else f"{_WHERE}: {error}"
            click.echo(f"synergy-launch: {self._name} goes on from disk: {why[:300]}", err=True)

    def _fetch_part(self, name: PartName, addresses: Sequence[tuple[str, int]], whole: Path) -> Part:
        """Return the part `name`, whose files lie in `whole` then, from this node or the first of `addresses` that has it."""
        here = self._shelf.find(name)
        part = read_part(here) if here is not None else None
        if here is not None and part is not None:
            for file in part.files:  # the processes check the digests
                os.link(here / file.name, whole / file.name)
            return part

        def check(part: Part) -> None:
            if why := self._shelf.obstacle(part):
                raise UsageError(_WHERE, why)

        problem: OSError | SynergyError = UsageError(_WHERE, "no node has a part of it")
        for address in addresses:
            try:
                return fetch_part(address, self._key, name, whole, check)
            except (OSError, SynergyError) as error:
                problem = error
        raise problem


def _port(value: Any) -> int:
    """Return a port that another launcher has named. Raises ValueError."""
    if not isinstance(value, int) or not 0 < value < 65_536:
        raise ValueError(value)
    return value
