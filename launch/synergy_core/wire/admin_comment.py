"""The content of an AdminComment.

The plugin stamps the job's directive; behind ` | ` is the daemon's part: the requested size, the plan, where to report.

    synergy:1 model=llama2-7b min_gpus=4 | asked=a100,2,8 cpus=16 nodes=n7 plan=tp:4,pp:1,... report=ctl:7321 by=64030

So a daemon with an empty database still knows each job's requested size, and a launcher needs no shared folder. The daemon's keys are
`asked` (GPU type, nodes, GPUs per node), `cpus`, `tasks` and `nodes` of the sbatch line, `time` (its limit in seconds, and how often
the job has begun again), `begin` (--begin, written by the plugin), `throttle` (tasks of its array at once), `mail` (MailType while a
resize suppresses mails), `plan`, `comm` (how its replicas exchange gradients), `batch=own` (the script keeps its global batch),
`note` (an operator's AdminComment), `report` and `links` (host:port that takes reports, of the link arbiter), and `by` (the daemon's
uid). A wrong value counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from urllib.parse import unquote_to_bytes

from synergy_core.errors import UsageError, format_value
from synergy_core.exchange import EXACT, parse_exchange
from synergy_core.records import Plan, Shape
from synergy_core.wire.plan import plan_from_text, plan_text

MARK = "synergy:1"
MAX_CHARACTERS = 64 * 1024  # the part of a comment that is read; the rest is ignored
NOTE_CHARACTERS = 1024  # the part of an operator's own text that is kept
_UID = re.compile(r"[0-9]{1,10}\Z")
_WHOLE = re.compile(r"[0-9]{1,9}\Z")
_TIME = re.compile(r"(-|[0-9]{1,9}),[0-9]{1,6}\Z", re.ASCII)
_ADDRESS = re.compile(r"[A-Za-z0-9_.\-\[\]:]+:\d{1,5}\Z", re.ASCII)
_ENCODED = re.compile(rb"[^A-Za-z0-9_./:,+@-]")  # stamped as %XX, other bytes as they are
_MAIL = re.compile(r"[A-Z0-9_,]{1,200}\Z")
_NODES = re.compile(r"[A-Za-z0-9_.,-]+\Z")
_DAMAGED = re.compile(r"%(?![0-9A-F]{2})")


@dataclass(frozen=True)
class AdminCommentStamp:
    """The content of an AdminComment. A wrong field counts as absent; `mistakes` names it."""

    #: keys and values of the directive, in order; None: a value that can't be decoded
    directive: tuple[tuple[str, str | None], ...] = ()
    _: KW_ONLY
    #: the requested size
    requested_shape: Shape | None = None
    #: CPUs of the sbatch line
    cpus_per_node: int | None = None
    #: tasks of the sbatch line, if more than one per node
    own_tasks: int | None = None
    #: --nodelist of the sbatch line
    nodelist: tuple[str, ...] = ()
    plan: Plan | None = None
    #: the script keeps its own global batch; the plan's is a guess
    own_batch: bool = False
    #: an operator's own AdminComment, percent-encoded by the plugin
    note: str = ""
    #: host:port that takes reports
    report: str = ""
    #: the uid of the daemon at `report` and `links`
    daemon_uid: int | None = None
    #: host:port of the link arbiter
    links: str = ""
    #: time limit of the sbatch line, seconds; None: none, or not known
    time_limit_s: int | None = None
    #: number of times that it began again
    continuations: int = 0
    #: tasks of its array that may run at once; 0: any number
    throttle: int = 0
    #: MailType of the job's user, while a resize suppresses some mails
    mail: str = ""
    #: --begin of the sbatch line if later than the submission, seconds since 1970; written only by the plugin
    begin_s: int | None = None
    #: mistakes in fields of the daemon's part, by the field's name
    mistakes: Mapping[str, str] = field(default_factory=dict, compare=False)


def encode(stamp: AdminCommentStamp) -> str:
    """Return the text of a stamp: ASCII, the directive's values percent-encoded."""
    words = [f"{name}={_percent_encode(value)}" for name, value in stamp.directive if value is not None]
    own = []
    if stamp.requested_shape is not None:
        own.append(
            f"asked={stamp.requested_shape.gpu_type or '-'},{stamp.requested_shape.nodes},{stamp.requested_shape.gpus_per_node}"
        )
    if stamp.cpus_per_node is not None:
        own.append(f"cpus={stamp.cpus_per_node}")
    if stamp.own_tasks is not None:
        own.append(f"tasks={stamp.own_tasks}")
    if stamp.time_limit_s is not None or stamp.continuations:
        own.append(f"time={'-' if stamp.time_limit_s is None else stamp.time_limit_s},{stamp.continuations}")
    if stamp.throttle:
        own.append(f"throttle={stamp.throttle}")
    if stamp.mail:
        own.append(f"mail={stamp.mail}")
    if stamp.nodelist:
        own.append(f"nodes={','.join(stamp.nodelist)}")
    if stamp.plan is not None:
        # the exchange of its replicas stands by itself: a launcher that knows nothing of it reads the plan too
        own.append(f"plan={plan_text(replace(stamp.plan, exchange=str(EXACT)))}")
        own += [f"comm={stamp.plan.exchange}"] * (stamp.plan.exchange != str(EXACT))
    if stamp.own_batch:
        own.append("batch=own")
    if stamp.note:
        own.append(f"note={stamp.note}")
    if stamp.report:
        own.append(f"report={stamp.report}")
    if (stamp.report or stamp.links) and stamp.daemon_uid is not None:
        own.append(f"by={stamp.daemon_uid}")
    if stamp.links:
        own.append(f"links={stamp.links}")
    return " ".join([MARK, *words, *(["|", *own] if own else ())])


def decode(text: str) -> AdminCommentStamp | None:
    """Return the stamp of a text that `encode` wrote; None where the text is not Synergy's. Never raises."""
    if text != MARK and not text.startswith(MARK + " "):
        return None
    directive, _, own = text[len(MARK) : MAX_CHARACTERS].partition(" | ")
    fields = dict(word.partition("=")[::2] for word in own.split())
    mistakes: dict[str, str] = {}

    def dropped(name: str, right: str) -> None:
        mistakes[name] = f"{name}={format_value(fields[name])}; expected {right}"

    def matching(name: str, pattern: re.Pattern[str], right: str) -> str:
        value = fields.get(name, "")
        if value and not pattern.match(value):
            dropped(name, right)
        return value if pattern.match(value) else ""

    def count(name: str) -> int | None:
        number = int(matching(name, _WHOLE, "a whole number") or 0)
        return number or None

    requested_shape, plan = None, None
    gpu_type, *sizes = fields.get("asked", "").split(",")
    if len(sizes) == 2 and all(_WHOLE.match(n) for n in sizes) and int(sizes[0]) > 0:
        requested_shape = Shape("" if gpu_type == "-" else gpu_type, int(sizes[0]), int(sizes[1]))
    elif "asked" in fields:
        dropped("asked", "TYPE,NODES,GPUS")
    limit, _, continued = matching("time", _TIME, "SECONDS,TIMES").partition(",")
    if fields.get("plan"):
        try:
            plan = plan_from_text(fields["plan"])
        except UsageError as error:
            mistakes["plan"] = str(error)
    if plan is not None and fields.get("comm"):
        try:
            plan = replace(plan, exchange=str(parse_exchange(fields["comm"], "comm")))
        except UsageError as error:
            mistakes["comm"] = str(error)
    by, begin = matching("by", _UID, "a uid"), matching("begin", _UID, "seconds since 1970")
    return AdminCommentStamp(
        tuple(_parse_word(word) for word in directive.split()),
        requested_shape=requested_shape,
        cpus_per_node=count("cpus"),
        own_tasks=count("tasks"),
        nodelist=tuple(x for x in matching("nodes", _NODES, "names of nodes").split(",") if x),
        plan=plan,
        own_batch=fields.get("batch") == "own",
        note=fields.get("note", ""),
        report=matching("report", _ADDRESS, "HOST:PORT"),
        daemon_uid=int(by) if by else None,
        links=matching("links", _ADDRESS, "HOST:PORT"),
        time_limit_s=int(limit) if limit.isdigit() else None,
        continuations=int(continued or 0),
        throttle=count("throttle") or 0,
        mail=matching("mail", _MAIL, "types of mail"),
        begin_s=int(begin) if begin else None,
        mistakes=mistakes,
    )


def read_note(text: str) -> str | None:
    """Return what an operator says in an AdminComment, as a stamp keeps it (`note=`); None where it is empty.

    This is the note of Synergy's own stamp, or all of a text that somebody wrote in its place.
    """
    if not text.strip():
        return None
    stamp = decode(text)
    return _percent_encode(text.strip()[:NOTE_CHARACTERS]) if stamp is None else stamp.note


def _percent_encode(value: str) -> str:
    raw = value.encode("utf-8", "surrogateescape")
    return _ENCODED.sub(lambda match: b"%%%02X" % match[0][0], raw).decode("ascii")


def _parse_word(word: str) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    if not equals or not value or not value.isascii() or _DAMAGED.search(value):
        return name, None
    return name, unquote_to_bytes(value).decode("utf-8", "surrogateescape")
