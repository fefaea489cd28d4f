"""The words that jobs and the link arbiter exchange: one TCP connection, one munge credential, then plain lines.

| from the job | from the arbiter |
|---|---|
| a munge credential around a Hello in JSON | `hello CREDENTIAL`, munge's around the welcome's words, or `no REASON` and the end |
| `ask N MB EXPOSED_S` (0: not known yet) | `go N` at once, or `wait N` at once and `go N` later; `free N`: go, and don't ask for FREE_S |
| `done N` | nothing |

N counts a connection's questions, so that a late answer is never taken for the one to a newer question. The welcome names the longest
that a grant takes, and the nonce of the Hello: whoever else listens on the port can't say it, and is asked nothing.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from synergyd.errors import UsageError, shown
from synergyd.wire.codec import decode, encode

MAX_HELLO_BYTES = 256 * 1024  # a credential with thousands of node names
MAX_LINE_BYTES = 200
MAX_NODES = 16_384
MAX_CHANNELS = 4096
MAX_MB = 1e9
LEAST_OF = 20  # messages whose least duration a question tells
FREE_S = 10.0  # as long as a job that comes to share the links may find them taken
_NONCE = re.compile(r"[0-9a-f]{0,64}\Z")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,254}\Z")
_WHOLE = re.compile(r"[0-9]{1,18}\Z")
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?\Z")


@dataclass(frozen=True)
class Hello:
    """Who asks: one reduction group (`channel`) of one incarnation of a job, and the job's nodes. `nonce`: of this connection."""

    job_id: int
    restarts: int
    nodes: tuple[str, ...]
    channel: int = 0
    nonce: str = ""


@dataclass(frozen=True)
class Asking:
    """Question `number`: a message of `size_mb`. `exposed_s`: seconds the least of its latest ones took, 0 where none did."""

    number: int
    size_mb: float
    exposed_s: float


@dataclass(frozen=True)
class Ended:
    """The message of question `number` has arrived."""

    number: int


def hello_json(hello: Hello) -> bytes:
    """What goes into the credential."""
    return json.dumps(encode(hello), separators=(",", ":")).encode()


def hello_from(payload: bytes) -> Hello:
    """Reads what a stranger sent. Raises UsageError naming the field."""
    if len(payload) > MAX_HELLO_BYTES:
        raise UsageError("hello", f"has {len(payload)} bytes", f"expected at most {MAX_HELLO_BYTES}")
    try:
        data = json.loads(payload)
    except (ValueError, RecursionError):
        raise UsageError("hello", "is no JSON") from None
    return decode(Hello, data, "hello", {Hello: _hello_problem})


def _hello_problem(hello: Hello) -> str:
    for name, low, high in (("job_id", 1, 2**32), ("restarts", 0, 10**6), ("channel", 0, MAX_CHANNELS - 1)):
        if not low <= getattr(hello, name) <= high:
            return f"{name} is {shown(getattr(hello, name))}; expected a whole number from {low} to {high}"
    if not 1 <= len(hello.nodes) <= MAX_NODES or not all(_NODE.match(name) for name in hello.nodes):
        return f"nodes is no list of 1 to {MAX_NODES} node names"
    return "" if _NONCE.match(hello.nonce) else "nonce is no hexadecimal number"


def welcome_words(hello: Hello, bound_s: float) -> bytes:
    """What goes into the arbiter's credential for this very connection."""
    return f"synergy-links {hello.job_id} {hello.restarts} {hello.channel} {hello.nonce or '-'} {bound_s:.6f}".encode()


def welcome_line(credential: str) -> bytes:
    return f"hello {credential}\n".encode("ascii")


def welcome_of(line: bytes) -> str | None:
    """The credential in an arbiter's welcome; None where it is none."""
    word, _, text = line.decode("ascii", "replace").strip().partition(" ")
    return text if word == "hello" and text else None


def bound_of(words: bytes, hello: Hello) -> float | None:
    """The arbiter's bound from what was in its credential; None where that is no welcome to `hello`."""
    text = words.decode("ascii", "replace").rpartition(" ")[2]
    if not _DECIMAL.match(text) or words != welcome_words(hello, float(text)):
        return None
    return float(text)


def ask_line(asking: Asking) -> bytes:
    return b"ask %d %.6f %.6f\n" % (asking.number, asking.size_mb, asking.exposed_s)


def done_line(number: int) -> bytes:
    return b"done %d\n" % number


def question(line: bytes) -> Asking | Ended:
    """A job's line. Raises UsageError for any other."""
    words = _words(line)
    if len(words) == 2 and words[0] == "done" and _WHOLE.match(words[1]):
        return Ended(int(words[1]))
    if len(words) == 4 and words[0] == "ask" and _WHOLE.match(words[1]) and all(_DECIMAL.match(w) for w in words[2:]):
        size_mb, exposed_s = float(words[2]), float(words[3])
        if size_mb <= MAX_MB and exposed_s <= 86_400 and math.isfinite(size_mb):
            return Asking(int(words[1]), size_mb, exposed_s)
    raise UsageError("line", f"{line[:40]!r} is no question", "ask N MB SECONDS, or done N")


def answer_line(word: str, number: int) -> bytes:
    """`word` is go, free or wait."""
    return f"{word} {number}\n".encode()


def answer(line: bytes) -> tuple[str, int] | None:
    """(go, free or wait, number); None for any other line."""
    words = _words(line)
    if len(words) == 2 and words[0] in ("go", "free", "wait") and _WHOLE.match(words[1]):
        return words[0], int(words[1])
    return None


def _words(line: bytes) -> list[str]:
    """The words of a line, none of one that is too long."""
    return line.decode("ascii", "replace").split() if len(line) <= MAX_LINE_BYTES else []
