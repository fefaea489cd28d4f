"""The page: the files of static/, read once, with headers under which a browser runs nothing else."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# scripts and styles of this service alone, none of them inline; nothing is sent elsewhere; no page may frame it
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again with its ETag: a new version shows at once
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True)
class File:
    """One of the page's files."""

    plain: bytes
    gzip_bytes: bytes
    etag: str
    kind: str


def read_files() -> dict[str, File]:
    """Read the files, by name."""
    by_name = {}
    for entry in files("synergyd.rest").joinpath("static").iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            plain = entry.read_bytes()
            etag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
            by_name[entry.name] = File(plain, gzip.compress(plain, 9, mtime=0), etag, kind)
    return by_name


def routes() -> list[Route]:
    """Return the routes of the page. No caller has to be known for them: they hold nothing of the cluster."""
    served_files = read_files()

    async def answer(request: Request) -> Response:
        file = served_files.get(request.path_params.get("name", "index.html"))
        if file is None:
            raise HTTPException(404, "there is no such file")
        headers = {**HEADERS, "ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.gzip_bytes, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.kind)
        return Response(file.plain, headers=headers, media_type=file.kind)

    async def begin(_: Request) -> Response:
        return RedirectResponse("page/", 307)

    return [Route("/", begin), Route("/page/", answer), Route("/page/{name}", answer)]
