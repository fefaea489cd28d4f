"""The queue's past over HTTP, for a replay on the caller's machine."""

from __future__ import annotations

import gzip
import json

from starlette.responses import Response

from synergyd.store.store import Store
from synergyd.views.recording import as_json
from synergyd.wire.codec import encode


def recording(store: Store) -> Response:
    """Talks to the database, and compresses: megabytes of a long queue."""
    body = gzip.compress(json.dumps(encode(as_json(store.recording()))).encode(), 1)
    return Response(body, headers={"Content-Encoding": "gzip"}, media_type="application/json")
