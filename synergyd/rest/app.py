"""The service's resources over HTTP. Every answer but a refusal needs a known caller; see identity.py."""

from __future__ import annotations

import asyncio
import json
import logging
import pwd
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from synergy_core.errors import SetupError, SynergyError, UnavailableError, UsageError, one_line
from synergy_core.masking import hide_invisible
from synergy_core.steering import Steering, format_steering, with_changes
from synergy_core.wire import munge
from synergy_core.wire.codec import encode

from synergyd import __version__
from synergyd.rest import parameters
from synergyd.rest.caller import Owner, SlurmRights, commands, commands_all, sees, sees_all, sees_nodes
from synergyd.rest.feed import Answer, Feed, encode_answer
from synergyd.rest.identity import Identity, UnknownCallerError
from synergyd.rest.openapi import openapi
from synergyd.rest.page import routes as page_routes
from synergyd.rest.recording import recording
from synergyd.rest.sessions import LinkUsedError
from synergyd.rest.slurm_rights import RightsReader, run_text
from synergyd.rest.usage import job_usage, sees_all_usage, usage, would_have
from synergyd.rest.what_if import BusyError, WhatIfs, read_request
from synergyd.settings import Settings
from synergyd.slurm.parsed.job_end import read_job_end
from synergyd.store.store import Store
from synergyd.views.chart_records import CallerJson
from synergyd.views.explain import collect as collect_explain
from synergyd.views.steering import set_paused, set_steering
from synergyd.views.timeline import Timeline, Visible

MAX_BODY_BYTES = 16 * 1024
BODY_S = 10.0
MAX_WAIT_S = 25.0  # of one long poll
WAITS_A_USER = 64  # that wait at once; beyond it they are told to come back
DATABASE_THREADS = 8
LONG_READS = 2  # at once, of megabytes: the other threads and the memory are for short ones
LONG_READS_A_USER = 2  # that run or wait
DATABASE_AWAY = "Synergy's database", "can't be read by its REST service", "ask the cluster's admin, whose log says why"
log = logging.getLogger("synergyrestd")
T = TypeVar("T")


@dataclass(frozen=True)
class AppState:
    """The objects that the handlers work with."""

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
        """Call `what`, which talks to the database, in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self.database, what, *arguments)

    async def read_long(self, user: str, what: Callable[..., T], *arguments: object) -> T:
        """Call `read` for something that may take seconds. Raises BusyError."""
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


Handler = Callable[[AppState, Request, str, bytes], Awaitable[Response]]


def application(store: Store, identity: Identity, rights: RightsReader, what_ifs: WhatIfs | None = None) -> Starlette:
    """Return the ASGI application."""
    threads = ThreadPoolExecutor(DATABASE_THREADS, "database")
    what_ifs = what_ifs or WhatIfs(Settings())
    door = AppState(store, Feed(store, threads), identity, rights, Counter(), threads, Timeline(store), what_ifs)

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
        Route("/v1/page-link", _endpoint(door, _page_link), methods=["POST"]),
        Route("/v1/session", _session(door), methods=["POST"]),
        Route("/v1/me", _endpoint(door, _me)),
        Route("/v1/status", _endpoint(door, _status)),
        Route("/v1/recording", _endpoint(door, _recording)),
        Route("/v1/usage", _endpoint(door, _usage)),
        Route("/v1/report", _endpoint(door, _usage)),  # its name in 0.2
        Route("/v1/would-have", _endpoint(door, _would_have)),
        Route("/v1/cluster", _endpoint(door, _cluster)),
        Route("/v1/history", _endpoint(door, _history)),
        Route("/v1/what-if", _endpoint(door, _what_if), methods=["GET", "POST", "DELETE"]),
        Route("/v1/jobs/{job_id}/history", _endpoint(door, _job_history)),
        Route("/v1/jobs/{job_id}/explain", _endpoint(door, _explain)),
        Route("/v1/jobs/{job_id}/usage", _endpoint(door, _job_usage)),
        Route("/v1/jobs/{job_id}/steering", _endpoint(door, _steering), methods=["GET", "PUT"]),
        Route("/v1/jobs/{job_id}/pause", _endpoint(door, _pause), methods=["POST"]),
        Route("/v1/jobs/{job_id}/resume", _endpoint(door, _resume), methods=["POST"]),
        *page_routes(),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _http_problem})
    return app


def problem(status: int, error: SynergyError, **headers: str) -> Response:
    """Return an answer of application/problem+json (RFC 9457) that says where, what, and what would be right."""
    body = {"status": status, "title": error.what, "where": error.where, "right": error.right, "detail": str(error)}
    header_texts = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(body, status, header_texts, media_type="application/problem+json")


async def _http_problem(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else "the service failed"
    return problem(status, UsageError("request", one_line(detail, 200), "GET /v1/openapi.json tells what there is"))


def _endpoint(door: AppState, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that reads the body within bounds, finds out who asks, and turns every error into an answer."""

    async def answer(request: Request) -> Response:
        try:
            body = await asyncio.wait_for(_body(request), BODY_S)
            target = request.scope["raw_path"].decode("ascii", "replace")
            if query := request.scope["query_string"].decode("ascii", "replace"):
                target += f"?{query}"
            headers = {name.lower(): value for name, value in request.headers.items()}
            caller = partial(door.identity.caller, request.method, target, headers, body, near=_is_near(request))
            user = await asyncio.to_thread(caller)
            return await handler(door, request, user, body)
        except UnknownCallerError as error:
            return problem(401, error, WWW_Authenticate="Munge, Bearer")
        except TimeoutError:
            return problem(408, UsageError("body", f"did not come within {BODY_S:.0f} s", "send it at once"))
        except UnavailableError as error:
            return problem(503, error, Retry_After="5")
        except SetupError as error:  # how to put it right is for the admin, who reads the log
            log.warning("%s", error)
            return problem(503, UnavailableError(*DATABASE_AWAY), Retry_After="30")
        except BusyError as error:
            return problem(429, error, Retry_After="10")
        except SynergyError as error:
            return problem(400, error)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it

    return answer


def _is_near(request: Request) -> bool:
    """Return whether the request came over the Unix socket or from this host."""
    if request.client is None or not request.client.host:
        return True
    address = ip_address(request.client.host.partition("%")[0])
    ipv4 = getattr(address, "ipv4_mapped", None)
    return bool((ipv4 or address).is_loopback)


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


async def _status(door: AppState, request: Request, user: str, _body: bytes) -> Response:
    """Return all jobs that the caller may see. With If-None-Match and ?wait=SECONDS the answer comes once there is news."""
    job_id = parameters.number(request, "job", None, parameters.MAX_JOB_ID)
    wait_s = min(parameters.number(request, "wait", 0, 3600) or 0, MAX_WAIT_S)
    known_etag = request.headers.get("if-none-match", "")
    edition = await door.feed.newest()
    end_s = time.monotonic() + wait_s
    rights = await asyncio.to_thread(door.rights.rights)
    if wait_s and door.waits[user] >= WAITS_A_USER and not commands_all(user, rights):
        return problem(429, UsageError(user, "waits in too many places", "watch from fewer"), Retry_After="5")
    door.waits[user] += 1
    try:
        while True:
            answer = edition.answer(user, rights, job_id)
            if known_etag != answer.etag or (left_s := end_s - time.monotonic()) <= 0:
                break
            edition = await door.feed.wait_for_next(edition, left_s)
            rights = await asyncio.to_thread(door.rights.rights)
    finally:
        door.waits[user] -= 1
        if not door.waits[user]:
            del door.waits[user]
    if job_id is not None:
        owner = edition.owner(job_id)
        if owner is None or not sees(user, owner, rights):
            return _no_such_job(job_id)
    return _not_modified(answer) if known_etag == answer.etag else _send(request, answer)


def _not_modified(answer: Answer) -> Response:
    return Response(status_code=304, headers={"ETag": answer.etag})


def _send(request: Request, answer: Answer) -> Response:
    headers = {"ETag": answer.etag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            answer.gzip_bytes, headers={**headers, "Content-Encoding": "gzip"}, media_type="application/json"
        )
    return Response(answer.plain, headers=headers, media_type="application/json")


async def _page_link(door: AppState, _request: Request, user: str, _body: bytes) -> Response:
    """Return a link's secret in a munge credential that the caller alone can open: the answer may cross a network in clear."""
    secret = door.identity.sessions.make_link(user).encode()
    uid = pwd.getpwnam(user).pw_uid
    link = await asyncio.to_thread(munge.encode, secret, door.identity.munge_socket, uid)
    return JSONResponse({"link": link, "user": user})


def _session(door: AppState) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that exchanges a one-time link for a session. No caller has to be known for it: the link is the proof."""

    async def answer(request: Request) -> Response:
        if not _is_near(request):
            return problem(401, UsageError("link", "came over the network in clear", "use https or an ssh tunnel"))
        try:
            body = _json(await asyncio.wait_for(_body(request), BODY_S))
            link = body.get("link") if isinstance(body, dict) else None
            user, token = door.identity.sessions.open_session(link if isinstance(link, str) else "")
        except LinkUsedError as error:
            return problem(401, error)
        except TimeoutError:
            return problem(408, UsageError("body", f"did not come within {BODY_S:.0f} s", "send it at once"))
        except ClientDisconnect:
            return Response(status_code=499)
        return JSONResponse({"token": token, "user": user}, headers={"Cache-Control": "no-store"})

    return answer


async def _me(door: AppState, _request: Request, user: str, _body: bytes) -> Response:
    rights = await asyncio.to_thread(door.rights.rights)
    caller = CallerJson(
        user=user,
        commands_all=commands_all(user, rights),
        sees_all=sees_all(user, rights),
        coordinates=tuple(sorted(rights.accounts_of.get(user, ()))),
    )
    return JSONResponse(encode(caller))


async def _cluster(door: AppState, request: Request, user: str, _body: bytes) -> Response:
    rights = await asyncio.to_thread(door.rights.rights)
    if not sees_nodes(user, rights):
        return problem(403, UsageError("cluster", "Slurm shows you no nodes (PrivateData=nodes)", "ask an operator"))

    visible, reasons = _visible(user, rights), sees_all(user, rights)
    make_answer = _chart(door, "cluster", reasons, lambda: door.timeline.cluster(visible, reasons))
    return _answer_if_changed(request, await door.read(make_answer))


async def _history(door: AppState, request: Request, user: str, _body: bytes) -> Response:
    rights = await asyncio.to_thread(door.rights.rights)
    visible = _visible(user, rights)
    make_answer = _chart(door, "history", sees_all(user, rights), lambda: door.timeline.history(visible))
    return _answer_if_changed(request, await door.read(make_answer))


def _chart(door: AppState, kind: str, is_shared: bool, make: Callable[[], object]) -> Callable[[], Answer]:
    """Return what makes an answer. `is_shared`: it is the same for all who see all jobs, and is made once an epoch for them."""

    def make_answer() -> Answer:
        edition = door.timeline.edition()
        cached = door.charts.get(kind) if is_shared else None
        if cached is not None and cached[0] == edition:
            return cached[1]
        answer = encode_answer(json.dumps(encode(make())).encode())
        if is_shared:
            door.charts[kind] = (edition, answer)
        return answer

    return make_answer


def _answer_if_changed(request: Request, answer: Answer) -> Response:
    return _not_modified(answer) if request.headers.get("if-none-match") == answer.etag else _send(request, answer)


def _visible(user: str, rights: SlurmRights) -> Visible:
    return lambda owner, account: sees(user, Owner(user=owner, account=account), rights)


async def _job_history(door: AppState, request: Request, user: str, _body: bytes) -> Response:
    job_id = parameters.job_id(request)
    if not await _may_know(door, user, job_id):
        return _no_such_job(job_id)
    return JSONResponse(encode(await door.read(door.timeline.job, job_id)))


async def _what_if(door: AppState, request: Request, user: str, body: bytes) -> Response:
    """Return the caller's last run (GET), begin one (POST) or end it (DELETE). Only for users who see all jobs, whose figures it shows."""
    if not sees_all(user, await asyncio.to_thread(door.rights.rights)):
        return problem(403, UsageError("what-if", "replays all users' jobs (PrivateData=jobs)", "ask an operator"))
    if request.method == "DELETE":
        return JSONResponse(encode(await door.what_ifs.stop(user)))
    if request.method == "GET":
        return JSONResponse(encode(replace(door.what_ifs.last_run(user), now=door.what_ifs.present())))
    return JSONResponse(encode(await door.what_ifs.start(user, read_request(_json(body)))), 202)


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


async def _may_know(door: AppState, user: str, job_id: int) -> bool:
    """Return whether the caller may know of the job, even after it has left the queue."""
    owner = (await door.feed.newest()).owner(job_id)
    if owner is None and (owners := await door.read(door.store.owner, job_id)):
        owner = Owner(user=owners[0], account=owners[1])
    return sees(user, owner, await asyncio.to_thread(door.rights.rights))


async def _explain(door: AppState, request: Request, user: str, _body: bytes) -> Response:
    job_id = parameters.job_id(request)
    edition = await door.feed.newest()
    if not await _may_know(door, user, job_id):
        return _no_such_job(job_id)
    rights = await asyncio.to_thread(door.rights.rights)
    try:
        explanation = await door.read(collect_explain, door.store, job_id)
    except SetupError:
        raise
    except UsageError:
        return _no_such_job(job_id)
    if explanation.lifecycle is None:
        end = await asyncio.to_thread(read_job_end, run_text, job_id)
        explanation = replace(explanation, end=end)
    fields = encode(explanation)
    return JSONResponse(fields if sees_all(user, rights) else hide_invisible(fields, edition.visible(user, rights)))


async def _recording(door: AppState, _: Request, user: str, _body: bytes) -> Response:
    if not sees_all(user, await asyncio.to_thread(door.rights.rights)):
        return problem(403, UsageError("recording", "is of all users' jobs", "ask an operator, as PrivateData is set"))
    return await door.read_long(user, recording, door.store)


async def _usage(door: AppState, request: Request, user: str, _body: bytes) -> Response:
    rights = await asyncio.to_thread(door.rights.rights)
    # the page of everybody asks for this month and for days
    is_shared = set(request.query_params) <= {"days"} and sees_all_usage(user, rights)
    days = parameters.days(request)
    make_answer = _chart(
        door, f"usage of {days} days", is_shared, lambda: usage(door.store, request, days, user, rights)
    )
    return _answer_if_changed(request, await door.read_long(user, make_answer))


async def _would_have(door: AppState, request: Request, user: str, _body: bytes) -> Response:
    rights = await asyncio.to_thread(door.rights.rights)
    return JSONResponse(encode(await door.read_long(user, would_have, door.store, request, user, rights)))


async def _job_usage(door: AppState, request: Request, user: str, _body: bytes) -> Response:
    job_id, rights = parameters.job_id(request), await asyncio.to_thread(door.rights.rights)
    try:
        return JSONResponse(encode(await door.read(job_usage, door.store, job_id, user, rights)))
    except SetupError:
        raise
    except UsageError as error:
        return problem(404, error)


async def _steering(door: AppState, request: Request, user: str, body: bytes) -> Response:
    """Return what holds, with its ETag (GET), or set some of min_gpus, max_gpus, weight from JSON (PUT). A null resets to the directive."""
    job_id = parameters.job_id(request)
    changes = request.method == "PUT"
    if refusal := await _refusal(door, user, job_id, changes=changes):
        return refusal
    present = await door.read(door.store.steering, job_id) or Steering()
    if not changes:
        return JSONResponse(encode(present), headers={"ETag": _etag(present)})
    if request.headers.get("if-match", _etag(present)) != _etag(present):
        other = UsageError(f"job {job_id}", "somebody else has changed it since", "read it again")
        return problem(412, other, ETag=_etag(present))
    changes_asked = _json(body)
    if not isinstance(changes_asked, dict) or not changes_asked:
        raise UsageError("body", "is no JSON object of what to change", 'send {"min_gpus": 4}')
    after = with_changes(f"job {job_id}", changes_asked, present)
    await door.read(set_steering, door.store, job_id, after, user, time.time())
    return JSONResponse(encode(after), headers={"ETag": _etag(after)})


async def _pause(door: AppState, request: Request, user: str, _body: bytes) -> Response:
    return await _set_paused(door, parameters.job_id(request), user, paused=True)


async def _resume(door: AppState, request: Request, user: str, _body: bytes) -> Response:
    return await _set_paused(door, parameters.job_id(request), user, paused=False)


async def _set_paused(door: AppState, job_id: int, user: str, *, paused: bool) -> Response:
    if refusal := await _refusal(door, user, job_id, changes=True):
        return refusal
    await door.read(set_paused, door.store, job_id, paused, user, time.time())
    return JSONResponse({"job_id": job_id, "paused": paused})


async def _refusal(door: AppState, user: str, job_id: int, *, changes: bool) -> Response | None:
    """Return 404 for a job that the caller may not know of, or that is not in the queue, and 403 for one that is not the caller's."""
    edition = await door.feed.newest()
    rights = await asyncio.to_thread(door.rights.rights)
    owner = edition.owner(job_id) if job_id in edition.jobs else None  # others are not Synergy's to change
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
    return f'"{format_steering(steering)}"'
