"""The daemon's hand-over to a job's launcher: the plan and where to report, in a JSON file, or without it in AdminComment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.field_marks import ADDED_AFTER_0_1
from synergy_core.ordinary_file import read_bytes
from synergy_core.records import Plan, Shape
from synergy_core.wire import admin_comment
from synergy_core.wire.codec import decode, encode
from synergy_core.wire.plan import PLAN_CHECKS

FORMAT = 1
STATE_DIR = "/var/lib/synergy"  # the default for $SYNERGY_STATE_DIR
_LIMIT_BYTES = 1 << 20
_SPARE_BYTES = 2048  # extra room in a reserved file: a plan with the largest numbers takes a quarter of that


@dataclass(frozen=True)
class PlanFile:
    """The hand-over to a launcher."""

    job_id: int
    #: for the launcher
    plan: Plan | None = None
    #: host:port of the daemon; "": do not report
    report: str = ""
    #: the directive's folder
    checkpoint: str = ""
    #: the daemon's uid: the launcher believes answers signed by it or root
    by: int | None = None
    #: host:port of the link arbiter; "": ask none
    links: str = ""
    #: the requested size
    asked: Shape | None = None
    #: the script keeps its own global batch; the plan's is a guess
    own_batch: bool = False
    #: the directive's `loop=`
    loop: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: the daemon is in a dry run: it takes reports and answers none
    only_reports: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: the directive's `skip_spikes=`
    skip_spikes: bool = field(default=False, metadata=ADDED_AFTER_0_1)

    @property
    def is_decided_about(self) -> bool:
        """Return whether a daemon that gets the job's reports acts on them."""
        return bool(self.report) and not self.only_reports


def plan_path(state_dir: Path, job_id: int) -> Path:
    """Return where the daemon writes the hand-over of a job."""
    return state_dir / "plans" / f"{int(job_id)}.json"


def path_in_job(job_id: int, environment: Mapping[str, str]) -> Path:
    """Return where the job itself finds the hand-over: $SYNERGY_PLAN, else in $SYNERGY_STATE_DIR."""
    path_text = environment.get("SYNERGY_PLAN", "")
    return Path(path_text) if path_text else plan_path(Path(environment.get("SYNERGY_STATE_DIR", STATE_DIR)), job_id)


def fresh_path(state_dir: Path, job_id: int) -> Path:
    """Return where the hand-over is written first, and where room for it is reserved."""
    path = plan_path(state_dir, job_id)
    return path.with_name(f".{path.name}.fresh")


def reserve(plan_file: PlanFile, state_dir: Path, show: Callable[[int], None] = lambda _: None) -> None:
    """Take the room that the next `write` for this job needs, whatever its plan: it succeeds on a full disk then.

    `show` is as in `write`: an ACL takes room too. Raises OSError.
    """
    fresh = _fresh(plan_file, state_dir)
    with os.fdopen(os.open(fresh, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, len(_text(plan_file)) + _SPARE_BYTES)
            show(file.fileno())
        except OSError as error:
            fresh.unlink()
            raise OSError(error.errno, error.strerror, str(fresh)) from None


def write(plan_file: PlanFile, state_dir: Path, show: Callable[[int], None] = lambda _: None) -> Path:
    """Write the file atomically, readable by this process's user and by those whom `show` lets read it. Raises OSError.

    `show` is given the open file's number.
    """
    path, fresh = plan_path(state_dir, plan_file.job_id), _fresh(plan_file, state_dir)
    # in place, not truncated first: the room that was reserved is not given back
    with os.fdopen(os.open(fresh, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(_text(plan_file))
        file.truncate()
        show(file.fileno())
    fresh.replace(path)
    return path


def _fresh(plan_file: PlanFile, state_dir: Path) -> Path:
    fresh = fresh_path(state_dir, plan_file.job_id)
    if not fresh.parent.is_dir():
        fresh.parent.mkdir(parents=True, exist_ok=True)
        fresh.parent.chmod(0o711)  # mkdir's mode is cut by the umask of a daemon that systemd started
    return fresh


def _text(plan_file: PlanFile) -> bytes:
    return (json.dumps({"format": FORMAT, **encode(plan_file)}, sort_keys=True) + "\n").encode()


def read(path: Path, job_id: int) -> PlanFile:
    """Read a hand-over file. Raises UsageError when it is not one for this job."""
    try:
        data = json.loads(read_bytes(path, _LIMIT_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(str(path), f"can't be read as a plan ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("job_id") != job_id:
        raise UsageError(str(path), f"is no plan of format {FORMAT} for job {job_id}")
    return decode(PlanFile, data, str(path), PLAN_CHECKS)


def from_admin_comment(text: str, job_id: int) -> PlanFile | None:
    """Return the hand-over inside an AdminComment, with the directive's checkpoint folder.

    Returns None where it names neither plan, address nor folder. Raises UsageError for a plan that makes no sense.
    """
    stamp = admin_comment.decode(text)
    if stamp is None:
        return None
    if "plan" in stamp.mistakes:
        raise UsageError(f"AdminComment of job {job_id}", stamp.mistakes["plan"])
    directive = dict(stamp.directive)
    checkpoint, loop = directive.get("checkpoint") or "", directive.get("loop") or ""
    if stamp.plan is None and not stamp.report and not checkpoint:
        return None
    return PlanFile(
        job_id,
        stamp.plan,
        stamp.report,
        checkpoint,
        stamp.daemon_uid,
        stamp.links,
        stamp.requested_shape,
        stamp.own_batch,
        loop,
        skip_spikes=directive.get("skip_spikes") == "yes",
    )
