"""The service's description in OpenAPI 3.1, with schemas made from the records that it gives out."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from synergy_core.steering import Steering

from synergyd import __version__
from synergyd.rest.parameters import MAX_DAYS
from synergyd.views.chart_records import CallerJson, ClusterJson, JobHistoryJson, QueueHistoryJson
from synergyd.views.json_records import ExplainJson, JobUsageJson, StatusJson, UsageJson, WouldHaveJson, field_docs
from synergyd.views.recording import RecordingJson
from synergyd.views.what_if import KEYS, WhatIfJson

_JOB = {
    "name": "job_id",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
    "description": "Slurm's job id",
}
_REFUSALS = {
    "401": "nobody knows who asks",
    "403": "the job is somebody else's",
    "404": "no such job, or one that the caller may not know of",
    "503": "Slurm or the database is away",
}
_TOO_MANY = {"429": {"description": "the caller's last such requests are not answered yet"}}

_SCHEMES = {
    "munge": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "Munge CREDENTIAL, made for this request alone: see docs/admin/rest.md",
    },
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "a token of `scontrol token`",
    },
    "slurm": {"type": "apiKey", "in": "header", "name": "X-SLURM-USER-TOKEN"},
}


@cache
def openapi() -> dict[str, Any]:
    """Return the whole description, a new one for each version of Synergy."""
    schemas: dict[str, Any] = {}
    paths = _cluster_paths(schemas) | _usage_paths(schemas) | _job_paths(schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Synergy", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SCHEMES},
        "security": [{"munge": []}, {"bearer": []}, {"slurm": []}],
    }


def _cluster_paths(schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the paths that concern all jobs; their records' schemas are added to `schemas`."""
    status = {
        "get": _operation(
            "The jobs of the last epoch that the caller may see",
            _schema(StatusJson, schemas),
            [
                _query("job", "this job alone"),
                _query(
                    "wait",
                    "with If-None-Match: answer when there is news, at the latest after so many seconds (25 at most)",
                ),
            ],
            more={"304": {"description": "nothing new since the ETag in If-None-Match"}},
        )
    }
    what_if = _schema(WhatIfJson, schemas)
    link = {"type": "object", "properties": {key: {"type": "string"} for key in ("link", "token", "user")}}
    texts = {"type": "object", "properties": {key: {"type": "string"} for key in KEYS}, "additionalProperties": False}
    request_schema = {"type": "object", "properties": {"policy": {"type": "string"}, "settings": texts}}
    busy = {"429": {"description": "the caller's last run, or too many others', are not done"}}
    return {
        "/v1/page-link": {
            "post": _operation(
                "A secret that opens a session on the page, for the caller alone",
                link,
                [],
            )
        },
        "/v1/session": {
            "post": _operation("The session that such a secret opens; 401 if it was used or has expired", link, [])
        },
        "/v1/me": {"get": _operation("Who asks, and what Slurm lets them do", _schema(CallerJson, schemas), [])},
        "/v1/status": status,
        "/v1/recording": {
            "get": _operation(
                "What is kept of the whole queue's past, for those who may see all jobs; always gzip",
                _schema(RecordingJson, schemas),
                [],
                _TOO_MANY,
            )
        },
        "/v1/cluster": {
            "get": _operation("The nodes and who holds them; 304 as for status", _schema(ClusterJson, schemas), [])
        },
        "/v1/history": {
            "get": _operation("The cluster's last day; 304 as for status", _schema(QueueHistoryJson, schemas), [])
        },
        "/v1/what-if": {
            "get": _operation("The caller's last what-if run", what_if, []),
            "post": {
                **_operation(
                    "Replay the recorded queue under a policy or settings", what_if, [], more=busy, code="202"
                ),
                "requestBody": {"required": True, "content": {"application/json": {"schema": request_schema}}},
            },
            "delete": _operation("End the caller's run", what_if, []),
        },
    }


def _usage_paths(schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the paths that concern GPU hours; their records' schemas are added to `schemas`."""
    hours = _operation(
        "GPU hours and the gain by account and user, of those that the caller may know of; 304 as for status",
        _schema(UsageJson, schemas),
        [
            _query("from", "begin of the span, seconds since 1970; without from and to: this month"),
            _query("to", "its end, seconds since 1970"),
            _query(
                "days", f"in place of from and to: so many days up to today, {MAX_DAYS} at most, and each by itself"
            ),
            _query("user", "this user's alone", "string"),
            _query("account", "this account's alone", "string"),
        ],
        _TOO_MANY,
    )
    would_have = {
        **hours,
        **_operation("What a dry run would have changed, job by job", _schema(WouldHaveJson, schemas), [], _TOO_MANY),
        "parameters": hours["parameters"],
    }
    return {
        "/v1/usage": {"get": hours},
        "/v1/would-have": {"get": would_have},
        "/v1/report": {"get": {**hours, "deprecated": True}},
    }


def _job_paths(schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the paths that concern one job; their records' schemas are added to `schemas`."""
    steering = _schema(Steering, schemas)
    documents = {
        "type": "object",
        "properties": {"job_id": {"type": "integer"}, "paused": {"type": "boolean"}},
    }
    return {
        "/v1/jobs/{job_id}/history": {
            "get": _operation("The job's last day", _schema(JobHistoryJson, schemas), [_JOB])
        },
        "/v1/jobs/{job_id}/explain": {
            "get": _operation("Why the job got what it got", _schema(ExplainJson, schemas), [_JOB])
        },
        "/v1/jobs/{job_id}/usage": {
            "get": _operation("All incarnations of the job", _schema(JobUsageJson, schemas), [_JOB])
        },
        "/v1/jobs/{job_id}/steering": {
            "get": _operation("What was set for the job since sbatch", steering, [_JOB]),
            "put": {
                **_operation(
                    "Set some of it; null gives a value back to the directive. If-Match guards against a change in between",
                    steering,
                    [_JOB],
                    more={"412": {"description": "changed since the ETag in If-Match"}},
                ),
                "requestBody": {"required": True, "content": {"application/json": {"schema": steering}}},
            },
        },
        "/v1/jobs/{job_id}/pause": {"post": _operation("Leave the job at its present size", documents, [_JOB])},
        "/v1/jobs/{job_id}/resume": {"post": _operation("Let Synergy resize the job again", documents, [_JOB])},
    }


def _query(name: str, text: str, kind: str = "integer") -> dict[str, Any]:
    schema = {"type": kind, **({"minimum": 0} if kind == "integer" else {})}
    return {"name": name, "in": "query", "schema": schema, "description": text}


def _operation(
    text: str,
    schema: dict[str, Any],
    parameters: list[dict[str, Any]],
    more: dict[str, Any] | None = None,
    code: str = "200",
) -> dict[str, Any]:
    problem = {"content": {"application/problem+json": {"schema": {"type": "object"}}}}
    refusals = {code: {"description": words, **problem} for code, words in _REFUSALS.items()}
    responses = {code: {"description": text, "content": {"application/json": {"schema": schema}}}}
    return {"summary": text, "parameters": parameters, "responses": {**responses, **(more or {}), **refusals}}


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a field's type; records go into `schemas` under their names."""
    inner = get_args(kind)
    if type(None) in inner:
        (rest,) = (k for k in inner if k is not type(None))
        return {"anyOf": [_schema(rest, schemas), {"type": "null"}]}
    if get_origin(kind) is dict:
        return {"type": "object"}
    if get_origin(kind) is tuple:
        if inner[-1] is Ellipsis:
            return {"type": "array", "items": _schema(inner[0], schemas)}
        return {"type": "array", "prefixItems": [_schema(k, schemas) for k in inner], "minItems": len(inner)}
    if is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in schemas:
            schemas[kind.__name__] = {}  # a record that holds its own kind ends here
            hints, docs = get_type_hints(kind), field_docs(kind)
            schemas[kind.__name__] = {
                "type": "object",
                "description": inspect.cleandoc(kind.__doc__ or ""),
                "properties": {
                    f.name: {
                        **_schema(hints[f.name], schemas),
                        **({"description": docs[f.name]} if f.name in docs else {}),
                    }
                    for f in fields(kind)
                },
                "required": [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING],
            }
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if kind in (object, Any):
        return {}
    return {"type": {int: "integer", float: "number", str: "string", bool: "boolean"}[kind]}
