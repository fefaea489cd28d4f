"""The backend that always works: Slurm's own commands, argv lists, fixed-width formats."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from launch.hostlist import expand
from synergyd.slurm.client import DeniedError, SlurmError
from synergyd.slurm.rows import JobRow, NodeRow

# Fixed widths, so that a job name with a newline or a separator in it can't shift or forge a row.
JOB_FIELDS: tuple[tuple[str, int], ...] = (
    ("JobID", 12), ("ArrayTaskID", 12), ("HetJobID", 12), ("State", 20), ("Reason", 48), ("UserID", 12), ("UserName", 40),
    ("Partition", 64), ("NumNodes", 12), ("NumCPUs", 12), ("NumTasks", 12), ("tres-alloc", 160), ("tres-per-node", 96),
    ("tres-per-job", 48), ("tres-per-socket", 48), ("tres-per-task", 48), ("NodeList", 1024), ("SubmitTime", 14),
    ("StartTime", 14), ("EligibleTime", 14), ("RestartCnt", 8), ("Requeue", 4), ("PriorityLong", 14), ("BatchFlag", 4), ("Name", 64),
)  # fmt: skip
NODE_FIELDS: tuple[tuple[str, int], ...] = (
    ("NodeList", 128), ("StateComplete", 96), ("Gres", 256), ("GresUsed", 256), ("Features", 256), ("PartitionName", 64), ("Reason", 96),
)  # fmt: skip
TRANSIENT = re.compile(
    r"timed out|Unable to contact|connection refused|Connection refused|Socket timed out|Zero Bytes|Transport endpoint|"
    r"temporarily|Job is in the process of|being set|try again|busy|Unexpected message|not responding|completing|backup",
    re.IGNORECASE,
)
# Variables of the daemon's own environment that would change what the commands print or do.
OUTER = ("SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SLURM_JOB", "SLURM_CLUSTERS", "SLURM_BITSTR_LEN")
DENIED = re.compile(r"Invalid user id|Access/permission denied", re.IGNORECASE)
NO_JOB = re.compile(r"Invalid job id|already completing or completed", re.IGNORECASE)
_KEY = re.compile(r"[A-Za-z]+\Z")


class CommandLine:
    """Reader and writer through scontrol, squeue, sinfo and scancel.

    `environment` is added to the daemon's own (tests name a throwaway cluster by SLURM_CONF). Calls are counted in `calls`.
    Raises SlurmError from every method, and DeniedError where Slurm does not let this user read scripts or change jobs.
    """

    name = "command line"

    def __init__(self, environment: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> None:
        outer = {k: v for k, v in os.environ.items() if not k.startswith(OUTER)}
        # seconds since 1970 in every time field, and messages in the language that TRANSIENT knows
        self._environment = {**outer, **(environment or {}), "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"}
        self._timeout_s = timeout_s
        self.calls = 0

    # -- reads -----------------------------------------------------------------------------------------------------

    def version(self) -> str:
        words = self._run("scontrol", "--version").decode(errors="replace").split()
        return words[-1] if words else ""

    def jobs(self) -> tuple[JobRow, ...]:
        return self._jobs()

    def job(self, job_id: int) -> JobRow | None:
        try:
            rows = self._jobs("-j", str(int(job_id)))
        except SlurmError as error:
            if NO_JOB.search(error.what):
                return None
            raise
        return next((r for r in rows if r.job_id == job_id), None)

    def nodes(self) -> tuple[NodeRow, ...]:
        found: dict[str, NodeRow] = {}
        for f in self._table("sinfo", NODE_FIELDS, "-a", "-N"):
            name = f["NodeList"]
            partitions = found[name].partitions if name in found else ()
            found[name] = NodeRow(
                name=name,
                state=f["StateComplete"],
                gres=f["Gres"],
                gres_used=f["GresUsed"],
                features=tuple(x for x in f["Features"].split(",") if x and x != "(null)"),
                partitions=(*partitions, f["PartitionName"]),
                reason="" if f["Reason"] == "none" else f["Reason"],
            )
        return tuple(found.values())

    def required_nodes(self, job_id: int) -> tuple[str, ...]:
        rows = list(self._table("squeue", (("JobID", 12), ("ReqNodes", 8192)), "-a", "-j", str(int(job_id))))
        return _names(rows[0]["ReqNodes"], job_id) if rows else ()

    def admin_comments(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        """One read of the whole queue as JSON: 22.05's squeue has no format field for AdminComment."""
        if not job_ids:
            return {}
        wanted = set(job_ids)
        try:
            data = json.loads(self._run("squeue", "-a", "--json").decode(errors="replace"))
            rows = [(int(j["job_id"]), j.get("admin_comment") or "") for j in data["jobs"]]
        except (ValueError, KeyError, TypeError) as error:
            raise SlurmError("squeue --json", f"answer not understood ({error})", transient=True) from None
        return {i: str(text) for i, text in rows if i in wanted and text}

    def batch_script(self, job_id: int) -> str | None:
        try:
            return (
                self._run("scontrol", "write", "batch_script", str(int(job_id)), "-")
                .decode(errors="replace")
                .replace("\0", "")
            )
        except SlurmError as error:
            if error.transient:
                raise
            _check_denied(error)
            return None

    # -- writes ----------------------------------------------------------------------------------------------------

    def update(self, job_id: int, fields: Mapping[str, str]) -> None:
        for key, value in fields.items():
            if not _KEY.match(key) or any(not c.isprintable() for c in value):
                raise SlurmError("scontrol update", f"{key}={value!r} is no field and value for it", transient=False)
        self._write("scontrol", "update", f"JobId={int(job_id)}", *(f"{k}={v}" for k, v in fields.items()))

    def requeue(self, job_id: int) -> None:
        # without `incomplete` a job that has just ended by itself would run a second time
        self._write("scontrol", "requeue", "incomplete", str(int(job_id)))

    def signal(self, job_id: int, name: str) -> None:
        # not --full: the batch shell would get it too, and bash without a trap for USR2 ends, and the job with it
        self._write("scancel", f"--signal={name}", str(int(job_id)))

    def _write(self, *argv: str) -> None:
        try:
            self._run(*argv)
        except SlurmError as error:
            _check_denied(error)
            raise

    # -- inside ----------------------------------------------------------------------------------------------------

    def _jobs(self, *options: str, wide: bool = False) -> tuple[JobRow, ...]:
        fields = tuple((n, 65536 if wide and n == "NodeList" else w) for n, w in JOB_FIELDS)
        rows: list[JobRow] = []
        for f in self._table("squeue", fields, "-a", *options):
            if not f["JobID"].isdecimal() or not f["UserID"].isdecimal():
                raise SlurmError(
                    "squeue", f"answer not understood (job id {f['JobID']!r}, uid {f['UserID']!r})", transient=False
                )
            job_id = int(f["JobID"])
            if not wide and len(f["NodeList"].encode()) >= 1024:  # cut: read this one job again
                rows.extend(self._wide(job_id))
                continue
            tres = dict(x.partition("=")[::2] for x in f["tres-alloc"].split(","))
            other = ",".join(
                f[k] for k in ("tres-per-job", "tres-per-socket", "tres-per-task") if f[k] not in ("", "N/A")
            )
            rows.append(
                JobRow(
                    job_id=job_id,
                    name=f["Name"],
                    user=f["UserName"],
                    uid=int(f["UserID"]),
                    partition=f["Partition"],
                    state=f["State"],
                    reason=f["Reason"],
                    num_nodes=_count(tres.get("node") or f["NumNodes"]),
                    num_cpus=_count(tres.get("cpu") or f["NumCPUs"]),
                    num_tasks=_count(f["NumTasks"]),
                    tres_per_node="" if f["tres-per-node"] == "N/A" else f["tres-per-node"],
                    tres_other=other,
                    node_names=_names(f["NodeList"], job_id),
                    submit_s=float(f["SubmitTime"]) if f["SubmitTime"].isdigit() else 0.0,
                    start_s=float(f["StartTime"]) if f["StartTime"].isdigit() else None,
                    eligible_s=float(f["EligibleTime"]) if f["EligibleTime"].isdigit() else None,
                    restarts=_count(f["RestartCnt"]),
                    requeue=f["Requeue"] == "1",
                    priority=_count(f["PriorityLong"]),
                    batch=f["BatchFlag"] == "1",
                    array=f["ArrayTaskID"] not in ("", "N/A"),
                    het=f["HetJobID"] not in ("", "N/A"),
                )
            )
        return tuple(rows)

    def _wide(self, job_id: int) -> tuple[JobRow, ...]:
        try:
            return self._jobs("-j", str(job_id), wide=True)
        except SlurmError as error:
            if NO_JOB.search(error.what):  # it ended meanwhile
                return ()
            raise

    def _table(self, program: str, fields: Sequence[tuple[str, int]], *options: str) -> list[dict[str, str]]:
        """Rows of a fixed-width format, cut by byte offsets. Raises SlurmError when a row has another length."""
        out = self._run(program, "-h", *options, "-O", ",".join(f"{name}:{width}" for name, width in fields))
        length = sum(width for _, width in fields) + 1
        if len(out) % length:
            raise SlurmError(
                program, f"{len(out)} bytes are no whole number of rows of {length} bytes", transient=False
            )
        rows = []
        for start in range(0, len(out), length):
            row, position = {}, start
            for name, width in fields:
                row[name] = out[position : position + width].decode(errors="replace").strip()
                position += width
            rows.append(row)
        return rows

    def _run(self, *argv: str) -> bytes:
        self.calls += 1
        try:
            done = subprocess.run(
                argv,
                env=self._environment,
                capture_output=True,
                timeout=self._timeout_s,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlurmError(argv[0], f"no answer within {self._timeout_s:g} s", transient=True) from None
        except OSError as error:
            raise SlurmError(argv[0], f"can't be run: {error.strerror}", transient=False) from None
        text = done.stderr.decode(errors="replace").strip()
        if done.returncode or text.startswith(f"{argv[0]}: error"):
            raise SlurmError(
                " ".join(argv[:3]), text or f"exit {done.returncode}", transient=bool(TRANSIENT.search(text))
            )
        return done.stdout


def _check_denied(error: SlurmError) -> None:
    if DENIED.search(error.what):
        what = f"uid {os.geteuid()} may not manage jobs ({error.what.splitlines()[0]})"
        raise DeniedError(error.where, what, "run synergyd as root, SlurmUser, or with AdminLevel=Admin") from None


def _count(text: str) -> int:
    """A count as Slurm prints it: `12`, `1-4`, `2K`, `N/A`."""
    head = text.partition("-")[0]
    if head[-1:] in "KM" and head[:-1].replace(".", "", 1).isdigit():
        return int(float(head[:-1]) * (1024 if head[-1] == "K" else 1024**2))
    return int(head) if head.isdigit() else 0


def _names(text: str, job_id: int) -> tuple[str, ...]:
    try:
        return expand(text)
    except ValueError as error:
        raise SlurmError(f"job {job_id}", str(error), transient=False) from None
