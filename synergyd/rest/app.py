"""The service's resources over HTTP. Every answer but a refusal needs a known caller; see identity.py."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from synergyd import __version__
from synergyd.errors import SynergyError, UnavailableError, UsageError, one_line
from synergyd.masking import masked
from synergyd.rest.caller import Owner, SlurmRights, commands, commands_all, sees, sees_all, sees_nodes
from synergyd.rest.feed import Answer, Feed, answer_of
from synergyd.rest.identity import Identity, UnknownCallerError
from synergyd.rest.openapi import openapi
from synergyd.rest.page import routes as page_routes
from synergyd.rest.recording import recording
from synergyd.rest.slurm_rights import RightsReader
from synergyd.rest.usage import job_usage, sees_all_usage, usage
from synergyd.rest.what_if import BusyError, WhatIfs, checked
from synergyd.settings import Settings
from synergyd.steering import Steering, merged
from synergyd.steering import words as steering_words
from synergyd.store.store import Store
from synergyd.views.chart_records import CallerJson
from synergyd.views.explain import collect as collect_explain
from synergyd.views.steering import set_paused, set_steering
from synergyd.views.timeline import Timeline, Visible
from synergyd.wire.codec import encode

MAX_BODY_BYTES = 16 * 1024
BODY_S = 10.0
MAX_WAIT_S = 25.0  # of one long poll
WAITS_A_USER = 64  # that wait at once; beyond it they are told to come back
MAX_JOB_ID = 2**32 - 1
DATABASE_THREADS = 8
LONG_READS = 2  # at once, of megabytes: the other threads and the memory are for short ones
LONG_READS_A_USER = 2  # that run or wait
T = TypeVar("T")


@dataclass(frozen=True)
class Door:
    """What the handlers work with."""

    store: Store
    feed: Feed
    identity: Identity
    rights: RightsReader
    waits: Counter[str]
    database: (
        ThreadPoolExecutor  # apart from the threads of munge and Slurm: a database that hangs stops no other answer
    )
    timeline: Timeline
    what_ifs: WhatIfs
    charts: dict[str, tuple[int, Answer]] = field(default_factory=dict)  # for those who see all jobs
    long_reads: Counter[str] = field(default_factory=Counter)  # by user
    long_places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LONG_READS))

    async def read(self, what: Callable[..., T], *arguments: object) -> T:
        """Something that talks to the database, in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self.database, what, *arguments)

    async def read_long(self, user: str, what: Callable[..., T], *arguments: object) -> T:
        """The same of what may take seconds. Raises BusyError."""
        if self.long_reads[user] >= LONG_READS_A_USER:
            raise BusyError(user, "asks for too much at once", "wait for the answers to the last requests")
        self.long_reads[user] += 1
        try:
            async with self.long_places:
                return await self.read(what, *arguments)
        finally:
            self.long_reads[user] -= 1
            if not self.long_reads[user]:
                del self.long_reads[user]


Handler = Callable[[Door, Request, str, bytes], Awaitable[Response]]


def application(store: Store, identity: Identity, rights: RightsReader, what_ifs: WhatIfs | None = None) -> Starlette:
    """The ASGI application."""
    threads = ThreadPoolExecutor(DATABASE_THREADS, "database")
    what_ifs = what_ifs or WhatIfs(Settings())
    door = Door(store, Feed(store, threads), identity, rights, Counter(), threads, Timeline(store), what_ifs)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(door.feed.run())
        yield
        task.cancel()
        await door.what_ifs.close()
        threads.shutdown(wait=False, cancel_futures=True)

    routes = [
        Route("/v1/ping", _ping),
        Route("/v1/openapi.json", _openapi),
        Route("/v1/me", _guarded(door, _me)),
        Route("/v1/status", _guarded(door, _status)),
        Route("/v1/recording", _guarded(door, _recording)),
        Route("/v1/usage", _guarded(door, _usage)),
        Route("/v1/report", _guarded(door, _usage)),  # its name in 0.2
        Route("/v1/cluster", _guarded(door, _cluster)),
        Route("/v1/history", _guarded(door, _history)),
        Route("/v1/what-if", _guarded(door, _what_if), methods=["GET", "POST", "DELETE"]),
        Route("/v1/jobs/{job_id}/history", _guarded(door, _job_history)),
        Route("/v1/jobs/{job_id}/explain", _guarded(door, _explain)),
        Route("/v1/jobs/{job_id}/usage", _guarded(door, _job_usage)),
        Route("/v1/jobs/{job_id}/steering", _guarded(door, _steering), methods=["GET", "PUT"]),
        Route("/v1/jobs/{job_id}/pause", _guarded(door, _pause), methods=["POST"]),
        Route("/v1/jobs/{job_id}/resume", _guarded(door, _resume), methods=["POST"]),
        *page_routes(),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _http_problem})
    return app


def problem(status: int, error: SynergyError, **headers: str) -> Response:
    """An answer of application/problem+json (RFC 9457) that says where, what, and what would be right."""
    body = {"status": status, "title": error.what, "where": error.where, "right": error.right, "detail": str(error)}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(body, status, named, media_type="application/problem+json")


async def _http_problem(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else "the service failed"
    return problem(status, UsageError("request", one_line(detail, 200), "GET /v1/openapi.json tells what there is"))


def _guarded(door: Door, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Reads the body within bounds, finds out who asks, and turns every error into an answer."""

    async def answer(request: Request) -> Response:
        try:
            body = await asyncio.wait_for(_body(request), BODY_S)
            target = request.scope["raw_path"].decode("ascii", "replace")
            if query := request.scope["query_string"].decode("ascii", "replace"):
                target += f"?{query}"
            headers = {name.lower(): value for name, value in request.headers.items()}
            caller = partial(door.identity.caller, request.method, target, headers, body, near=_near(request))
            user = await asyncio.to_thread(caller)
            return await handler(door, request, user, body)
        except UnknownCallerError as error:
            return problem(401, error, WWW_Authenticate="Munge, Bearer")
        except TimeoutError:
            return problem(408, UsageError("body", f"did not come within {BODY_S:.0f} s", "send it at once"))
        except UnavailableError as error:
            return problem(503, error, Retry_After="5")
        except BusyError as error:
            return problem(429, error, Retry_After="10")
        except SynergyError as error:
            return problem(400, error)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it

    return answer


def _near(request: Request) -> bool:
    """Over the Unix socket, or from this host."""
    if request.client is None or not request.client.host:
        return True
    address = ip_address(request.client.host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


async def _body(request: Request) -> bytes:
    read = b""
    async for part in request.stream():
        read += part
        if len(read) > MAX_BODY_BYTES:
            raise HTTPException(413, f"a body holds at most {MAX_BODY_BYTES} bytes")
    return read


async def _ping(_: Request) -> Response:
    return JSONResponse({"service": "synergyrestd", "version": __version__})


async def _openapi(_: Request) -> Response:
    return JSONResponse(openapi())


async def _status(door: Door, request: Request, user: str, _body: bytes) -> Response:
    """All jobs that the caller may see. With If-None-Match and ?wait=SECONDS the answer comes once there is news."""
    job_id = _number(request, "job", None, MAX_JOB_ID)
    wait_s = min(_number(request, "wait", 0, 3600) or 0, MAX_WAIT_S)
    known = request.headers.get("if-none-match", "")
    edition = await door.feed.newest()
    end_s = time.monotonic() + wait_s
    rights = await asyncio.to_thread(door.rights.rights)
    if wait_s and door.waits[user] >= WAITS_A_USER and not commands_all(user, rights):
        return problem(429, UsageError(user, "waits in too many places", "watch from fewer"), Retry_After="5")
    door.waits[user] += 1
    try:
        while True:
            found = edition.answer(user, rights, job_id)
            if known != found.etag or (left_s := end_s - time.monotonic()) <= 0:
                break
            edition = await door.feed.after(edition, left_s)
            rights = await asyncio.to_thread(door.rights.rights)
    finally:
        door.waits[user] -= 1
        if not door.waits[user]:
            del door.waits[user]
    if job_id is not None:
        owner = edition.owner(job_id)
        if owner is None or not sees(user, owner, rights):
            return _no_such_job(job_id)
    return _not_modified(found) if known == found.etag else _sent(request, found)


def _not_modified(found: Answer) -> Response:
    return Response(status_code=304, headers={"ETag": found.etag})


def _sent(request: Request, found: Answer) -> Response:
    headers = {"ETag": found.etag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.gzipped, headers={**headers, "Content-Encoding": "gzip"}, media_type="application/json")
    return Response(found.plain, headers=headers, media_type="application/json")


async def _me(door: Door, _request: Request, user: str, _body: bytes) -> Response:
    rights = await asyncio.to_thread(door.rights.rights)
    told = CallerJson(
        user=user,
        commands_all=commands_all(user, rights),
        sees_all=sees_all(user, rights),
        coordinates=tuple(sorted(rights.coordinated.get(user, ()))),
    )
    return JSONResponse(encode(told))


async def _cluster(door: Door, request: Request, user: str, _body: bytes) -> Response:
    rights = await asyncio.to_thread(door.rights.rights)
    if not sees_nodes(user, rights):
        return problem(403, UsageError("cluster", "Slurm shows you no nodes (PrivateData=nodes)", "ask an operator"))

    visible, reasons = _visible(user, rights), sees_all(user, rights)
    made = _chart(door, "cluster", reasons, lambda: door.timeline.cluster(visible, reasons))
    return _unless_known(request, await door.read(made))


async def _history(door: Door, request: Request, user: str, _body: bytes) -> Response:
    rights = await asyncio.to_thread(door.rights.rights)
    visible = _visible(user, rights)
    made = _chart(door, "history", sees_all(user, rights), lambda: door.timeline.history(visible))
    return _unless_known(request, await door.read(made))


def _chart(door: Door, kind: str, shared: bool, make: Callable[[], object]) -> Callable[[], Answer]:
    """Return what makes an answer. `shared`: it is the same for all who see all jobs, and is made once an epoch for them."""

    def told() -> Answer:
        edition = door.timeline.edition()
        known = door.charts.get(kind) if shared else None
        if known is not None and known[0] == edition:
            return known[1]
        made = answer_of(json.dumps(encode(make())).encode())
        if shared:
            door.charts[kind] = (edition, made)
        return made

    return told


def _unless_known(request: Request, found: Answer) -> Response:
    return _not_modified(found) if request.headers.get("if-none-match") == found.etag else _sent(request, found)


def _visible(user: str, rights: SlurmRights) -> Visible:
    return lambda owner, account: sees(user, Owner(user=owner, account=account), rights)


async def _job_history(door: Door, request: Request, user: str, _body: bytes) -> Response:
    job_id = _job_id(request)
    if not await _seen(door, user, job_id):
        return _no_such_job(job_id)
    return JSONResponse(encode(await door.read(door.timeline.job, job_id)))


async def _what_if(door: Door, request: Request, user: str, body: bytes) -> Response:
    """GET: the caller's last run. POST: begins one. DELETE: ends it. It shows all jobs' figures: for those who see all jobs."""
    if not sees_all(user, await asyncio.to_thread(door.rights.rights)):
        return problem(403, UsageError("what-if", "replays all users' jobs (PrivateData=jobs)", "ask an operator"))
    if request.method == "DELETE":
        return JSONResponse(encode(await door.what_ifs.stop(user)))
    if request.method == "GET":
        return JSONResponse(encode(door.what_ifs.of(user)))
    return JSONResponse(encode(await door.what_ifs.start(user, checked(_json(body)))), 202)


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


async def _seen(door: Door, user: str, job_id: int) -> bool:
    """May the caller know of the job, also once it has left the queue?"""
    owner = (await door.feed.newest()).owner(job_id)
    if owner is None and (known := await door.read(door.store.owner, job_id)):
        owner = Owner(user=known[0], account=known[1])
    return sees(user, owner, await asyncio.to_thread(door.rights.rights))


async def _explain(door: Door, request: Request, user: str, _body: bytes) -> Response:
    job_id = _job_id(request)
    edition = await door.feed.newest()
    if not await _seen(door, user, job_id):
        return _no_such_job(job_id)
    rights = await asyncio.to_thread(door.rights.rights)
    try:
        told = await door.read(collect_explain, door.store, job_id)
    except UsageError:
        return _no_such_job(job_id)
    shown = encode(told)
    return JSONResponse(shown if sees_all(user, rights) else masked(shown, edition.visible(user, rights)))


async def _recording(door: Door, _: Request, user: str, _body: bytes) -> Response:
    if not sees_all(user, await asyncio.to_thread(door.rights.rights)):
        return problem(403, UsageError("recording", "is of all users' jobs", "ask an operator, as PrivateData is set"))
    return await door.read_long(user, recording, door.store)


async def _usage(door: Door, request: Request, user: str, _body: bytes) -> Response:
    rights = await asyncio.to_thread(door.rights.rights)
    shared = not request.query_params and sees_all_usage(user, rights)  # the page of everybody asks for it
    made = _chart(door, "usage", shared, lambda: usage(door.store, request, user, rights))
    return _unless_known(request, await door.read_long(user, made))


async def _job_usage(door: Door, request: Request, user: str, _body: bytes) -> Response:
    job_id, rights = _job_id(request), await asyncio.to_thread(door.rights.rights)
    try:
        return JSONResponse(encode(await door.read(job_usage, door.store, job_id, user, rights)))
    except UsageError as error:
        return problem(404, error)


async def _steering(door: Door, request: Request, user: str, body: bytes) -> Response:
    """GET: what holds, with its ETag. PUT: JSON with some of min_gpus, max_gpus, weight; null gives one back to the directive."""
    job_id = _job_id(request)
    changes = request.method == "PUT"
    if refused := await _refused(door, user, job_id, changes=changes):
        return refused
    present = await door.read(door.store.steering, job_id) or Steering()
    if not changes:
        return JSONResponse(encode(present), headers={"ETag": _etag(present)})
    if request.headers.get("if-match", _etag(present)) != _etag(present):
        other = UsageError(f"job {job_id}", "somebody else has changed it since", "read it again")
        return problem(412, other, ETag=_etag(present))
    wanted = _json(body)
    if not isinstance(wanted, dict) or not wanted:
        raise UsageError("body", "is no JSON object of what to change", 'send {"min_gpus": 4}')
    after = merged(f"job {job_id}", wanted, present)
    await door.read(set_steering, door.store, job_id, after, user, time.time())
    return JSONResponse(encode(after), headers={"ETag": _etag(after)})


async def _pause(door: Door, request: Request, user: str, _body: bytes) -> Response:
    return await _set_paused(door, _job_id(request), user, paused=True)


async def _resume(door: Door, request: Request, user: str, _body: bytes) -> Response:
    return await _set_paused(door, _job_id(request), user, paused=False)


async def _set_paused(door: Door, job_id: int, user: str, *, paused: bool) -> Response:
    if refused := await _refused(door, user, job_id, changes=True):
        return refused
    await door.read(set_paused, door.store, job_id, paused, user, time.time())
    return JSONResponse({"job_id": job_id, "paused": paused})


async def _refused(door: Door, user: str, job_id: int, *, changes: bool) -> Response | None:
    """404 for a job that the caller may not know of, or that is not in the queue; 403 for one that is not the caller's."""
    edition = await door.feed.newest()
    rights, owner = await asyncio.to_thread(door.rights.rights), edition.owner(job_id)
    if owner is None or not sees(user, owner, rights):
        return _no_such_job(job_id)
    if changes and not commands(user, owner, rights):
        return problem(
            403, UsageError(f"job {job_id}", f"is not {user}'s", "ask its owner, a coordinator or an operator")
        )
    return None


def _no_such_job(job_id: int) -> Response:
    return problem(
        404, UsageError(f"job {job_id}", "is not known", "synergyctl status lists the jobs of the last epoch")
    )


def _etag(steering: Steering) -> str:
    return f'"{steering_words(steering)}"'


def _job_id(request: Request) -> int:
    text = str(request.path_params["job_id"])
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= MAX_JOB_ID):
        raise UsageError("job", f"{one_line(text, 40)!r} is no job id", "write digits alone")
    return int(text)


def _number(request: Request, name: str, default: int | None, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= most):
        raise UsageError(name, f"{one_line(text, 40)!r} is no number up to {most}", "write digits alone")
    return int(text)
