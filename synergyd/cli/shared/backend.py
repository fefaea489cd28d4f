"""The place where a verb reads and steers jobs: the daemon's database itself (root on its host), or the REST service."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

from synergy_core.errors import UsageError
from synergy_core.steering import Steering, parse_steering
from synergy_core.wire.codec import decode, encode

from synergyd.cli.shared.job_names import find_job_id, find_job_id_among
from synergyd.cli.shared.rest_client import RestClient
from synergyd.views.json_records import ExplainJson, StatusJson

if TYPE_CHECKING:
    from synergyd.store.records import Recording
    from synergyd.store.store import Store
    from synergyd.views.json_records import JobUsageJson, UsageJson

_WATCH_S = 1.0
_POLL_S = 20


class Backend(Protocol):
    """Access to jobs. All methods raise SynergyError: no such job, not one's own, nobody answers."""

    def job_id(self, name: str) -> int:
        """Return the id of the job whose name JOB_NAME let through."""
        ...

    def status(self, job_id: int | None) -> StatusJson: ...

    def watch(self, job_id: int | None) -> Iterator[StatusJson]:
        """Yield the status each time that there is news, for ever."""
        ...

    def explain(self, job_id: int) -> ExplainJson: ...

    def set_paused(self, job_id: int, paused: bool) -> None: ...

    def usage(self, from_s: float, to_s: float, user: str, account: str) -> UsageJson:
        """Return the GPU hours of a span, of `user` and `account` if they are named."""
        ...

    def job_usage(self, job_id: int) -> JobUsageJson:
        """Return all incarnations of a job."""
        ...

    def recording(self) -> tuple[str, Recording]:
        """Return the source of the recording, for messages, and the past of the whole queue."""
        ...

    def steer(self, job_id: int, changes: Sequence[str]) -> Steering:
        """Set `changes`, texts of `key=value`. Return what holds afterwards."""
        ...


class DatabaseBackend:
    """Access to jobs in an open store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def job_id(self, name: str) -> int:
        return find_job_id(self._store, name)

    def status(self, job_id: int | None) -> StatusJson:
        from synergyd.views.status import collect

        return collect(self._store, job_id)

    def watch(self, job_id: int | None) -> Iterator[StatusJson]:
        while True:
            yield self.status(job_id)
            time.sleep(_WATCH_S)

    def explain(self, job_id: int) -> ExplainJson:
        from synergyd.views.explain import collect

        return collect(self._store, job_id)

    def usage(self, from_s: float, to_s: float, user: str, account: str) -> UsageJson:
        from synergyd.views.usage import collect

        return collect(self._store, from_s, to_s, user, account)

    def job_usage(self, job_id: int) -> JobUsageJson:
        from synergyd.views.usage import collect_job

        return collect_job(self._store, job_id)

    def recording(self) -> tuple[str, Recording]:
        return self._store.where, self._store.recording()

    def set_paused(self, job_id: int, paused: bool) -> None:
        from synergyd.views.steering import set_paused

        self._demand_known(job_id)
        set_paused(self._store, job_id, paused, getpass.getuser(), time.time())

    def steer(self, job_id: int, changes: Sequence[str]) -> Steering:
        from synergyd.views.steering import set_steering

        self._demand_known(job_id)
        before = self._store.steering(job_id) or Steering()
        after = parse_steering(f"job {job_id}", changes, before)
        set_steering(self._store, job_id, after, getpass.getuser(), time.time())
        return after

    def _demand_known(self, job_id: int) -> None:
        if self._store.lifecycle(job_id) is None and not self._store.decisions_of(job_id, 1):
            raise UsageError(
                f"job {job_id}", "was never seen by the daemon", "synergyctl status lists the jobs it knows"
            )


class RestBackend:
    """Access to jobs over the REST service."""

    def __init__(self, client: RestClient) -> None:
        self._client = client

    def job_id(self, name: str) -> int:
        return find_job_id_among(self.status(None).jobs, name)

    def status(self, job_id: int | None) -> StatusJson:
        _, body = self._client.ask("GET", _status_path(job_id))
        return decode(StatusJson, body, "status")

    def watch(self, job_id: int | None) -> Iterator[StatusJson]:
        etag = ""
        while True:
            etag, body = self._client.ask("GET", _status_path(job_id, _POLL_S), etag=etag)
            if body is not None:
                yield decode(StatusJson, body, "status")

    def explain(self, job_id: int) -> ExplainJson:
        return decode(ExplainJson, self._client.ask("GET", f"/v1/jobs/{job_id}/explain")[1], "explain")

    def usage(self, from_s: float, to_s: float, user: str, account: str) -> UsageJson:
        from synergyd.views.json_records import UsageJson

        query = urlencode({"from": int(from_s), "to": int(to_s), "user": user, "account": account})
        return decode(UsageJson, self._client.ask("GET", f"/v1/usage?{query}")[1], "usage")

    def job_usage(self, job_id: int) -> JobUsageJson:
        from synergyd.views.json_records import JobUsageJson

        return decode(JobUsageJson, self._client.ask("GET", f"/v1/jobs/{job_id}/usage")[1], "usage")

    def recording(self) -> tuple[str, Recording]:
        from synergyd.views.recording import RecordingJson, from_json

        return "the queue", from_json(decode(RecordingJson, self._client.ask("GET", "/v1/recording")[1], "recording"))

    def set_paused(self, job_id: int, paused: bool) -> None:
        self._client.ask("POST", f"/v1/jobs/{job_id}/{'pause' if paused else 'resume'}")

    def steer(self, job_id: int, changes: Sequence[str]) -> Steering:
        path = f"/v1/jobs/{job_id}/steering"
        etag, body = self._client.ask("GET", path)
        before = decode(Steering, body, "steering")
        after = parse_steering(f"job {job_id}", changes, before)
        _, answer = self._client.ask("PUT", path, encode(after), match=etag)
        return decode(Steering, answer, "steering")


def _status_path(job_id: int | None, wait_s: int = 0) -> str:
    query = [f"job={job_id}"] if job_id is not None else []
    query += [f"wait={wait_s}"] if wait_s else []
    return "/v1/status" + ("?" + "&".join(query) if query else "")


@contextmanager
def open_database_backend(store: Store) -> Iterator[Backend]:
    with store:
        yield DatabaseBackend(store)
