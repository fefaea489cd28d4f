"""What the daemon hands to a job's launcher: the plan and where to report. As a JSON file; where there is none, in AdminComment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from synergyd.errors import UsageError
from synergyd.ordinary_file import read_bytes
from synergyd.records import Plan, Shape
from synergyd.wire import admin_comment
from synergyd.wire.codec import decode, encode
from synergyd.wire.plan import PLAN_CHECKS

FORMAT = 1
STATE_DIR = "/var/lib/synergy"  # where $SYNERGY_STATE_DIR says nothing else
_LIMIT_BYTES = 1 << 20
_SPARE_BYTES = 2048  # of a reserved file: a plan that is not known yet, with the largest numbers, is a quarter of that


@dataclass(frozen=True)
class PlanFile:
    """`plan` for the launcher, `report` = host:port of the daemon ("" = do not report), `checkpoint` the directive's folder,
    `links` = host:port of the link arbiter ("" = ask none).

    `by` is the daemon's uid, whose signed answers the launcher believes besides root's. `asked` is the size of the sbatch line.
    `own_batch`: nobody chose the plan's global batch, which is a guess: the script keeps its own.
    """

    job_id: int
    plan: Plan | None = None
    report: str = ""
    checkpoint: str = ""
    by: int | None = None
    links: str = ""
    asked: Shape | None = None
    own_batch: bool = False


def plan_path(state_dir: Path, job_id: int) -> Path:
    """Where the daemon writes the hand-over of a job."""
    return state_dir / "plans" / f"{int(job_id)}.json"


def path_in_job(job_id: int, environment: Mapping[str, str]) -> Path:
    """Where the job itself finds it: $SYNERGY_PLAN, else in $SYNERGY_STATE_DIR."""
    named = environment.get("SYNERGY_PLAN", "")
    return Path(named) if named else plan_path(Path(environment.get("SYNERGY_STATE_DIR", STATE_DIR)), job_id)


def fresh_path(state_dir: Path, job_id: int) -> Path:
    """Where it is written first, and where room for it is reserved."""
    path = plan_path(state_dir, job_id)
    return path.with_name(f".{path.name}.fresh")


def reserve(given: PlanFile, state_dir: Path, show: Callable[[int], None] = lambda _: None) -> None:
    """Take the room that the next `write` for this job needs, whatever its plan: it succeeds on a full disk then. `show` as there: an
    ACL takes room too. Raises OSError."""
    fresh = _fresh(given, state_dir)
    with os.fdopen(os.open(fresh, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, len(_text(given)) + _SPARE_BYTES)
            show(file.fileno())
        except OSError as error:
            fresh.unlink()
            raise OSError(error.errno, error.strerror, str(fresh)) from None


def write(given: PlanFile, state_dir: Path, show: Callable[[int], None] = lambda _: None) -> Path:
    """Write the file atomically, for this process's user alone, and for whom `show` lets read it, given the open file's number. Raises
    OSError."""
    path, fresh = plan_path(state_dir, given.job_id), _fresh(given, state_dir)
    # in place, not truncated first: the room that was reserved is not given back
    with os.fdopen(os.open(fresh, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(_text(given))
        file.truncate()
        show(file.fileno())
    fresh.replace(path)
    return path


def _fresh(given: PlanFile, state_dir: Path) -> Path:
    fresh = fresh_path(state_dir, given.job_id)
    if not fresh.parent.is_dir():
        fresh.parent.mkdir(parents=True, exist_ok=True)
        fresh.parent.chmod(0o711)  # mkdir's mode is cut by the umask of a daemon that systemd started
    return fresh


def _text(given: PlanFile) -> bytes:
    return (json.dumps({"format": FORMAT, **encode(given)}, sort_keys=True) + "\n").encode()


def read(path: Path, job_id: int) -> PlanFile:
    """Reads a hand-over file; raises UsageError when it is not one for this job."""
    try:
        data = json.loads(read_bytes(path, _LIMIT_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(str(path), f"can't be read as a plan ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("job_id") != job_id:
        raise UsageError(str(path), f"is no plan of format {FORMAT} for job {job_id}")
    return decode(PlanFile, data, str(path), PLAN_CHECKS)


def from_admin_comment(text: str, job_id: int) -> PlanFile | None:
    """The hand-over inside an AdminComment, with the directive's checkpoint folder; None where it names neither plan, address
    nor folder. Raises UsageError for a plan that makes no sense."""
    stamp = admin_comment.decode(text)
    if stamp is None:
        return None
    if "plan" in stamp.mistakes:
        raise UsageError(f"AdminComment of job {job_id}", stamp.mistakes["plan"])
    checkpoint = dict(stamp.directive).get("checkpoint") or ""
    if stamp.plan is None and not stamp.report and not checkpoint:
        return None
    return PlanFile(job_id, stamp.plan, stamp.report, checkpoint, stamp.by, stamp.links, stamp.asked, stamp.own_batch)
