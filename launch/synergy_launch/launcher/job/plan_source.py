"""The sources of the job's plan and the daemon's address: the daemon's file, else AdminComment."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.wire import plan_file
from synergy_core.wire.plan_file import PlanFile

from synergy_launch.launcher.job.allocation import slurm_name


def find_plan_file(job_id: int | None, environment: Mapping[str, str]) -> tuple[PlanFile | None, str]:
    """Return the plan file of $SYNERGY_PLAN or of the state folder, else the one in AdminComment; and a remark when one was unusable.

    Raises UsageError for a wrong $SYNERGY_PLAN outside Slurm.
    """
    if job_id is None:
        path_text = environment.get("SYNERGY_PLAN", "")
        return (plan_file.read(Path(path_text), 0), "") if path_text else (None, "")
    path, remark = plan_file.path_in_job(job_id, environment), ""
    if _can_exist(path):
        try:
            return plan_file.read(path, job_id), ""
        except UsageError as error:
            remark = str(error)
    try:
        return plan_file.from_admin_comment(_admin_comment(slurm_name(job_id, environment)), job_id), remark
    except UsageError as error:
        return None, str(error)


def _can_exist(path: Path) -> bool:
    """Return False only if the path surely does not exist; a folder without permission is reported when it is read."""
    try:
        return path.exists()
    except OSError:
        return True


def _admin_comment(name: str) -> str:
    if not shutil.which("scontrol"):
        return ""
    show = ["scontrol", "show", "job", name]
    try:
        done = subprocess.run(show, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # a job name with a newline could imitate this line; it could only lead its own owner's job astray
    comments = [x.strip() for x in done.stdout.splitlines() if x.strip().startswith("AdminComment=")]
    return comments[-1].removeprefix("AdminComment=") if comments else ""
