"""Messages of jobs and the link arbiter: one TCP connection, one munge credential, then plain lines.

| from the job | from the arbiter |
|---|---|
| a munge credential around a Hello in JSON | `hello CREDENTIAL`, munge's around the welcome's words, or `no REASON` and the end |
| `ask N MB EXPOSED_S` (0: not known yet) | `go N` at once, or `wait N` at once and `go N` later; `free N`: go, and don't ask for FREE_S |
| `done N` | nothing |

N counts a connection's questions, so that a late answer is not mistaken for that to a newer one. The welcome has the longest time to a
grant, and the nonce of the Hello: another process on that port does not know it, and gets no question.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from synergy_core.errors import UsageError, format_value
from synergy_core.wire.codec import decode, encode

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
    """The sender of questions: one reduction group (`channel`) of one incarnation of a job, and the job's nodes."""

    job_id: int
    restarts: int
    nodes: tuple[str, ...]
    channel: int = 0
    #: this connection's
    nonce: str = ""


@dataclass(frozen=True)
class Question:
    """Question `number`: a message of `size_mb`."""

    number: int
    size_mb: float
    #: the least number of seconds that one of the latest messages took, or 0 if there was none
    exposed_s: float


@dataclass(frozen=True)
class MessageEnded:
    """The notice that the message of question `number` has arrived."""

    number: int


def encode_hello(hello: Hello) -> bytes:
    """Return the bytes that go into the credential."""
    return json.dumps(encode(hello), separators=(",", ":")).encode()


def read_hello(payload: bytes) -> Hello:
    """Read what a stranger sent. Raises UsageError naming the field."""
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
            return f"{name} is {format_value(getattr(hello, name))}; expected a whole number from {low} to {high}"
    if not 1 <= len(hello.nodes) <= MAX_NODES or not all(_NODE.match(name) for name in hello.nodes):
        return f"nodes is no list of 1 to {MAX_NODES} node names"
    return "" if _NONCE.match(hello.nonce) else "nonce is no hexadecimal number"


def welcome_text(hello: Hello, bound_s: float) -> bytes:
    """Return what goes into the arbiter's credential for this very connection."""
    return f"synergy-links {hello.job_id} {hello.restarts} {hello.channel} {hello.nonce or '-'} {bound_s:.6f}".encode()


def welcome_line(credential: str) -> bytes:
    return f"hello {credential}\n".encode("ascii")


def read_welcome(line: bytes) -> str | None:
    """Return the credential in an arbiter's welcome; None where it is none."""
    word, _, text = line.decode("ascii", "replace").strip().partition(" ")
    return text if word == "hello" and text else None


def read_welcome_bound(words: bytes, hello: Hello) -> float | None:
    """Return the arbiter's bound from what was in its credential; None where that is no welcome to `hello`."""
    text = words.decode("ascii", "replace").rpartition(" ")[2]
    if not _DECIMAL.match(text) or words != welcome_text(hello, float(text)):
        return None
    return float(text)


def ask_line(asking: Question) -> bytes:
    return b"ask %d %.6f %.6f\n" % (asking.number, asking.size_mb, asking.exposed_s)


def done_line(number: int) -> bytes:
    return b"done %d\n" % number


def read_question(line: bytes) -> Question | MessageEnded:
    """Read a job's line. Raises UsageError for any other."""
    words = _split_line(line)
    if len(words) == 2 and words[0] == "done" and _WHOLE.match(words[1]):
        return MessageEnded(int(words[1]))
    if len(words) == 4 and words[0] == "ask" and _WHOLE.match(words[1]) and all(_DECIMAL.match(w) for w in words[2:]):
        size_mb, exposed_s = float(words[2]), float(words[3])
        if size_mb <= MAX_MB and exposed_s <= 86_400 and math.isfinite(size_mb):
            return Question(int(words[1]), size_mb, exposed_s)
    raise UsageError("line", f"{line[:40]!r} is no question", "ask N MB SECONDS, or done N")


def answer_line(word: str, number: int) -> bytes:
    """Return the line of an answer. `word` is go, free or wait."""
    return f"{word} {number}\n".encode()


def read_answer(line: bytes) -> tuple[str, int] | None:
    """Return (go, free or wait, number); None for any other line."""
    words = _split_line(line)
    if len(words) == 2 and words[0] in ("go", "free", "wait") and _WHOLE.match(words[1]):
        return words[0], int(words[1])
    return None


def _split_line(line: bytes) -> list[str]:
    """Return the words of a line, none of one that is too long."""
    return line.decode("ascii", "replace").split() if len(line) <= MAX_LINE_BYTES else []
