"""AdminComment, for which 22.05's squeue has no column.

Many jobs are read from JSON; if Slurm writes none, from scontrol.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from synergyd.slurm.client import SlurmError

log = logging.getLogger("synergyd")
FEW = 4  # new jobs whose AdminComment is read one by one; a read of the whole queue as JSON costs as much as an epoch's own
NO_JOB = re.compile(r"Invalid job id|already completing or completed", re.IGNORECASE)
_RECORD = re.compile(r"^(?=JobId=)", re.MULTILINE)  # splits `scontrol show job`
_ID = re.compile(r"JobId=([0-9]{1,10}) ")
_ADMIN_COMMENT = re.compile(r"^   AdminComment=(.*)", re.MULTILINE)


class AdminComments:
    """The AdminComments read by `run(*argv)`, which gives what a command prints.

    Raises what it raises, and SlurmError.
    """

    def __init__(self, run: Callable[..., bytes]) -> None:
        self._run = run
        self.no_json = ""  # why the queue is not read as JSON, as Slurm says it

    def read(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        """Return the AdminComments by job id, for those jobs that have one. A few jobs are read one by one."""
        comments = self._read_all(job_ids) if len(job_ids) > FEW else self._singly(job_ids)
        return {i: text for i, text in comments.items() if text}

    def _singly(self, job_ids: Iterable[int]) -> dict[int, str]:
        """Read the comments of the jobs that have not left, one by one. One job's text stops nobody else's epoch."""
        comments = {}
        for job_id in job_ids:
            try:
                comments[job_id] = self.read_one(job_id)
            except SlurmError as error:
                if NO_JOB.search(error.what):
                    continue
                if error.transient:
                    raise
                log.warning("%s", error)
        return comments

    def read_one(self, job_id: int) -> str:
        """Read one job's comment from `scontrol show job`.

        This is cheap however long the queue is: an array's id shows all of its tasks. A line end in another field
        may make a line that looks like an AdminComment: then the whole queue is read as JSON.
        """
        text = self._run("scontrol", "show", "job", str(int(job_id))).decode(errors="replace")
        if not _ADMIN_COMMENT.search(text):
            return ""
        comments = parse_comments(text).get(int(job_id), ["", ""])
        if len(comments) == 1 and (comments[0] or self.no_json):
            return comments[0]
        if self.no_json:
            what = "its AdminComment can't be told from its other fields, which have line ends, without JSON"
            raise SlurmError(f"job {job_id}", what, transient=False)
        return self._read_all([job_id]).get(job_id, "")

    def _read_all(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        if self.no_json:
            return self._by_scontrol(job_ids)
        try:
            text = self._run("squeue", "-a", "--json").decode(errors="replace")
        except SlurmError as error:
            if error.transient:
                raise
            self.no_json = error.what
            log.warning("AdminComment is read through scontrol: %s", error)
            return self._by_scontrol(job_ids)
        ids = set(job_ids)
        try:
            rows = [(int(j["job_id"]), j.get("admin_comment") or "") for j in json.loads(text)["jobs"]]
        except (ValueError, KeyError, TypeError) as error:
            raise SlurmError("squeue --json", f"answer not understood ({error})", transient=True) from None
        return {i: str(comment) for i, comment in rows if i in ids and comment}

    def _by_scontrol(self, job_ids: Iterable[int]) -> Mapping[int, str]:
        """Read all jobs at once. A job whose record is forged in another's job name is read by itself; one that forged its own has none."""
        comments = parse_comments(self._run("scontrol", "show", "job", "--all").decode(errors="replace"))
        sure = {i: comments[i][0] for i in job_ids if len(comments.get(i, ())) == 1}
        return sure | self._singly(i for i in job_ids if len(comments.get(i, ())) > 1)


def parse_comments(text: str) -> dict[int, list[str]]:
    """Return by job id the AdminComments of its records in what `scontrol show job` prints.

    There is one, which is "" if the job has none. There are several if some field with a line end looks like a
    record or an AdminComment.
    """
    by_job: dict[int, list[str]] = {}
    for record in _RECORD.split(text):
        if match := _ID.match(record):
            comments = [c.rstrip(" ") for c in _ADMIN_COMMENT.findall(record)]
            by_job.setdefault(int(match[1]), []).extend(comments or [""])
    return by_job
