"""The last epoch's jobs, read once for all who ask and rendered once: the answer to `status`, filtered by the rights of the caller."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from synergy_core.errors import SynergyError
from synergy_core.masking import hide_invisible
from synergy_core.wire.codec import encode

from synergyd.control.decision_log import JobStatus
from synergyd.rest.caller import Owner, SlurmRights, sees, sees_all, sees_nodes
from synergyd.store.store import Store
from synergyd.views.json_records import StatusJson
from synergyd.views.status import collect

log = logging.getLogger("synergyrestd")
LOOK_S = 0.5  # between two looks at the database, where somebody waits
SPARE = 3.0  # a look that took long is followed by so many times its length without one
IDLE_S = 30.0  # nobody has asked for so long: nobody is looked for


@dataclass(frozen=True)
class Answer:
    """A body with its ETag, plain and compressed."""

    etag: str
    plain: bytes
    gzip_bytes: bytes


def encode_answer(plain: bytes) -> Answer:
    return Answer(f'"{hashlib.sha256(plain).hexdigest()[:32]}"', plain, gzip.compress(plain, 1))


@dataclass
class Edition:
    """The jobs as one look at the database showed them."""

    head: bytes = b"{}"  # the answer's fields but `jobs`, for those who may see all jobs and nodes
    others_head: bytes = b"{}"  # and for all others: what befell a node tells of jobs
    jobs: dict[int, tuple[Owner, bytes]] = field(default_factory=dict)
    _answers: dict[object, Answer] = field(
        default_factory=dict
    )  # by user ("" for who sees all), whether nodes are told, job
    _rights: SlurmRights | None = None  # that the answers were made for

    def owner(self, job_id: int) -> Owner | None:
        """Return the owner of a job, or None for a job that is not in the queue any more."""
        job = self.jobs.get(job_id)
        return job[0] if job else None

    def visible(self, user: str, rights: SlurmRights) -> Callable[[int], bool]:
        """Return a function that tells whether the user may know of a job in the queue."""
        return lambda job_id: sees(user, self.owner(job_id), rights)

    def _filter_body(self, user: str, rights: SlurmRights, body: bytes) -> bytes:
        return json.dumps(hide_invisible(json.loads(body), self.visible(user, rights))).encode()

    def answer(self, user: str, rights: SlurmRights, job_id: int | None) -> Answer:
        """Return all jobs that the user may see, or the one. Users who may see all share one answer."""
        if rights != self._rights:
            self._answers, self._rights = {}, rights
        whose = "" if sees_all(user, rights) else user
        nodes = not whose and sees_nodes(user, rights)
        key = (whose, nodes, job_id)
        if key not in self._answers:
            view = self.jobs.items() if job_id is None else [(job_id, self.jobs[job_id])] if job_id in self.jobs else []
            bodies = [body for _, (owner, body) in view if not whose or sees(user, owner, rights)]
            bodies = [self._filter_body(user, rights, body) for body in bodies] if whose else bodies
            head = self.head if nodes else self.others_head
            plain = head[:-1] + b', "jobs": [' + b",\n".join(bodies) + b"]}"
            answer = encode_answer(plain)
            if job_id is not None and job_id not in self.jobs:
                return answer  # any number may be asked for
            self._answers[key] = answer
        return self._answers[key]


def edition(store: Store) -> Edition:
    """Read an Edition from the database. Raises SynergyError while the database is away."""
    now = collect(store)
    jobs = {row.job_id: (_owner(row), json.dumps(encode(row)).encode()) for row in now.jobs}
    return Edition(_head(now), _head(replace(now, bad_nodes=())), jobs)


def _head(now: StatusJson) -> bytes:
    head = encode(replace(now, jobs=()))
    del head["jobs"]
    return json.dumps(head).encode()


def _owner(row: JobStatus) -> Owner:
    return Owner(user=row.user, account=row.account)


class Feed:
    """The keeper of the newest Edition while there are readers. In the event loop's thread; the database is read in another."""

    def __init__(self, store: Store, threads: Executor) -> None:
        self._store, self._threads = store, threads
        self._edition: Edition | None = None
        self._version: Mapping[str, object] | tuple[object, ...] | None = None
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()
        self._asked_s = self._read_s = -IDLE_S
        self.problem = ""

    async def newest(self) -> Edition:
        """Return the newest edition: at most LOOK_S old, or as old as the database's absence.

        Raises SynergyError if there never was one.
        """
        self._asked_s = time.monotonic()
        if self._edition is None or self._asked_s - self._read_s > IDLE_S:
            try:
                await self._look()
            except SynergyError as error:
                self.problem, self._read_s = str(error), time.monotonic()  # not asked again for each request
                if self._edition is None:
                    raise
        assert self._edition is not None
        return self._edition

    async def wait_for_next(self, edition: Edition, within_s: float) -> Edition:
        """Return the next edition, or the same one if none comes within `within_s` seconds."""
        self._asked_s = time.monotonic()
        end_s = self._asked_s + within_s
        while self._edition is edition and (left_s := end_s - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except TimeoutError:
                break
        return self._edition or edition

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            began_s = time.monotonic()
            if began_s - self._asked_s < IDLE_S:
                try:
                    await self._look()
                except SynergyError as error:
                    self.problem = str(error)
                except Exception:  # a fault of ours must not leave all watchers with an old edition for ever
                    log.exception("the last epoch can't be shown")
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(LOOK_S, SPARE * took_s))

    async def _look(self) -> None:
        async with self._reading:
            loop = asyncio.get_running_loop()
            version = await loop.run_in_executor(self._threads, self._store.version)
            if self._edition is None or version != self._version:
                self._edition = await loop.run_in_executor(self._threads, edition, self._store)
                self._version = version
                self._changed.set()
                self._changed = asyncio.Event()
            self._read_s, self.problem = time.monotonic(), ""
