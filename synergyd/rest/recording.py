"""The queue's past over HTTP, for a replay on the caller's machine."""

from __future__ import annotations

import gzip
import json

from starlette.responses import Response
from synergy_core.wire.codec import encode

from synergyd.store.store import Store
from synergyd.views.recording import as_json


def recording(store: Store) -> Response:
    """Return the recording, compressed: megabytes for a long queue. Talks to the database."""
    body = gzip.compress(json.dumps(encode(as_json(store.recording()))).encode(), 1)
    return Response(body, headers={"Content-Encoding": "gzip"}, media_type="application/json")
