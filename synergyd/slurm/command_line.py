"""The backend that always works: Slurm's own commands, argv lists, fixed-width formats."""

from __future__ import annotations

import logging
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from synergy_core.usage import PastRun
from synergy_core.wire import admin_comment

from synergyd.control.arrivals import JobCounts
from synergyd.slurm.accounting import known_user, owners_token, read_rules
from synergyd.slurm.admin_comments import NO_JOB, AdminComments
from synergyd.slurm.client import DeniedError, SlurmError
from synergyd.slurm.columns import (
    JOB_OPTIONS,
    JOB_WIDE,
    NODE_FIELDS,
    NODE_WIDE,
    count,
    job_fields,
    job_row,
    node_names,
    node_row,
    parse_node_state,
    value,
)
from synergyd.slurm.commands import Commands
from synergyd.slurm.pace import make_token_bucket
from synergyd.slurm.parsed.array_rows import MERGES_TASKS, TASK_FIELDS, may_hide, separate_tasks
from synergyd.slurm.parsed.associations import ALL_PRIVATE, AccountingRules
from synergyd.slurm.parsed.launcher_steps import launcher_steps
from synergyd.slurm.parsed.node_states import UNHEARD
from synergyd.slurm.parsed.partitions import partition_rows
from synergyd.slurm.parsed.reservations import SHIELD_FLAGS, SHIELD_S
from synergyd.slurm.parsed.rows import JobRow, PartitionRow, SlurmNodeRow, config_values
from synergyd.slurm.parsed.switches import leaf_switches
from synergyd.slurm.past_runs import read_mail, read_past_runs
from synergyd.slurm.rights import demand_rights

log = logging.getLogger("synergyd")
#: scancel sleeps 5 s and asks anew where the job is in transition: it could hit the next incarnation
SIGNAL_TIMEOUT_S = 4.0
START_TIMEOUT_S = 4.0  # less than a takeover took with SlurmctldTimeout=5 (6 s, 22.05.8)
DELAY_IDS = 500  # jobs of one scontrol: a few milliseconds each
NODE_LIST_BYTES = 16384  # for a list that is read by itself
WIDE_IDS = 200  # job ids of one such second read: bounds its memory
HIDDEN_IDS = 5000  # in one read of array tasks that other rows stood for
DENIED = re.compile(r"Invalid user id|Access/permission denied", re.IGNORECASE)
NO_SCRIPT = re.compile(r"Invalid job id|Job script not specified", re.IGNORECASE)
NOT_PENDING = re.compile(r"no longer pending|already finished|Invalid job id|: No error", re.IGNORECASE)
# a job, an array's task, some of its tasks, or a component of a heterogeneous job
_NAMED = re.compile(r"[0-9]{1,10}(_([0-9]+|\[[0-9,:-]+\])|\+[0-9]+)?\Z")
SUBMISSIONS_TIMEOUT_S = 5.0  # nothing waits for this answer
_COUNTS = re.compile(rb"^Jobs (submitted|completed|canceled|failed): *([0-9]{1,18})$", re.MULTILINE)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}\Z")
_KEY = re.compile(r"[A-Za-z]+\Z")


class CommandLine(Commands):
    """Reader and writer through scontrol, squeue, sinfo and scancel.

    `environment` is added to the daemon's own (tests name a throwaway cluster by SLURM_CONF). Calls are counted in `calls`.
    `writing` is entered around the start of each call that changes jobs, and may raise SlurmError instead.
    `slurm_release`: (22, 5) of Slurm 22.05, where it is known.
    Raises SlurmError from every method, and DeniedError where Slurm does not let this user read scripts or change jobs.
    """

    name = "command line"

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        writing: Callable[[], AbstractContextManager[None]] = nullcontext,
        slurm_release: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(environment, timeout_s)
        self._writing = writing
        self._comments = AdminComments(self.run)
        self._slurm_release = self._told_release = slurm_release
        self._config = ""  # as `partitions` read it last
        self._may_take_over = False  # there are several slurmctlds, as `partitions` read last
        self.private = ALL_PRIVATE  # as `accounting_rules` read last
        self._limits = False  # Slurm holds jobs to limits, as `accounting_rules` read last
        self._tokens = self._no_tokens = False  # it may write in an owner's name by a token; such a token was refused

    # -- reads -----------------------------------------------------------------------------------------------------

    def version(self) -> str:
        words = self.run("scontrol", "--version").decode(errors="replace").split()
        return words[-1] if words else ""

    def demand_rights(self, *, writes: bool) -> None:
        """Raise DeniedError if this user has too few rights. From then on Slurm's limit on requests is kept to."""
        config = demand_rights(self.run, writes=writes)
        self.pace = self.pace or make_token_bucket(config)

    def jobs(self) -> tuple[JobRow, ...]:
        try:
            return self._jobs()
        except SlurmError:
            self._slurm_release = self._told_release  # it may come back as another release
            raise

    def jobs_of_user(self, uid: int) -> tuple[JobRow, ...]:
        return self._jobs("-u", str(int(uid)))

    def job(self, job_id: int, *, ended: bool = False) -> JobRow | None:
        try:
            rows = self._jobs("-j", str(int(job_id)), *(("-t", "all") if ended else ()))
        except SlurmError as error:
            if NO_JOB.search(error.what):
                return None
            raise
        return next((r for r in rows if r.job_id == job_id), None)

    def nodes(self) -> tuple[SlurmNodeRow, ...]:
        """Return all nodes that are in a partition: sinfo knows no others."""
        rows = self.table("sinfo", NODE_FIELDS, "-a", "-N")
        if any(full & NODE_WIDE.keys() for _, full in rows):
            rows = self.table("sinfo", _with_widths(NODE_FIELDS, NODE_WIDE), "-a", "-N")
        nodes: dict[str, SlurmNodeRow] = {}
        for f, _ in rows:
            name = f["NodeList"]
            nodes[name] = node_row(f, nodes[name].partitions if name in nodes else ())
        return tuple(nodes.values())

    def partitions(self, *, again: bool = True) -> tuple[PartitionRow, ...]:
        """Read the partitions in two calls: the partitions, and (`again`) the cluster's own defaults."""
        text = self.run("scontrol", "show", "partition", "--all", "--oneliner").decode(errors="replace")
        if again or not self._config:
            self._config = self.run("scontrol", "show", "config").decode(errors="replace")
            self._may_take_over = "SlurmctldHost[1]" in config_values(self._config)
        return partition_rows(text, self._config)

    def unheard(self, nodes: Sequence[str]) -> frozenset[str]:
        if not self._may_take_over:
            return frozenset()
        fields = [(name, width) for name, width in NODE_FIELDS if name in ("NodeList", "StateComplete", "Version")]
        rows = self.table("sinfo", fields, "-a", "-N", *(("-n", ",".join(nodes)) if nodes else ()))
        return frozenset(f["NodeList"] for f, _ in rows if parse_node_state(f) == UNHEARD)

    def leaf_switches(self) -> dict[str, str]:
        """Read from `scontrol show topology` the switches of level 0, the blocks, rings or tori that nodes are in."""
        try:
            lines = self.run("scontrol", "show", "topology").decode(errors="replace").splitlines()
        except SlurmError as error:
            if error.transient:
                raise
            return {}  # no topology plugin
        leaves, problems = leaf_switches(lines)
        for problem in problems:
            log.warning("topology: %s", problem)
        return leaves

    def reservations(self) -> str:
        return self.run("scontrol", "show", "reservation", "--oneliner").decode(errors="replace")

    def job_counts(self) -> JobCounts:
        counts = {m[1]: int(m[2]) for m in _COUNTS.finditer(self.run("sdiag", timeout_s=SUBMISSIONS_TIMEOUT_S))}
        if b"submitted" not in counts:
            raise SlurmError("sdiag", "tells no jobs submitted", transient=False)
        return JobCounts(counts.pop(b"submitted"), sum(counts.values()))

    def node_lists(self, job_ids: Sequence[int]) -> Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Read the lists in one call or two: only squeue's short format has the excluded nodes.

        `-j` with several ids reads the queue and filters.
        """
        lists = self._node_lists(job_ids)
        # an array's record stands for its pending tasks from 23.02 on (`array_rows`), unless it is not asked for
        unread = [i for i in job_ids if i not in lists]
        return {**lists, **self._node_lists(unread)} if lists and unread else lists

    def _node_lists(self, job_ids: Sequence[int]) -> dict[int, tuple[tuple[str, ...], tuple[str, ...]]]:
        by_job = {}
        for i in range(0, len(job_ids), WIDE_IDS):
            ids = ",".join(str(int(n)) for n in job_ids[i : i + WIDE_IDS])
            fields = (("%A", 12), ("%n", NODE_LIST_BYTES), ("%x", NODE_LIST_BYTES))
            try:
                rows = self.table("squeue", fields, "-a", "-j", ids)
            except SlurmError as error:
                if NO_JOB.search(error.what):
                    continue
                raise
            for f, _ in rows:
                required_nodes, excluded_nodes = (node_names(value(f[k]), int(f["%A"])) for k in ("%n", "%x"))
                by_job[int(f["%A"])] = required_nodes, excluded_nodes
        return {i: lists for i, lists in by_job.items() if i in set(job_ids)}

    def accounting_rules(self) -> AccountingRules:
        rules = read_rules(self.run)
        self._limits, self._tokens = rules.limits, rules.tokens and not self._no_tokens
        self.private = rules.private
        return rules

    def associations(self) -> str:
        return self.run("scontrol", "show", "assoc_mgr", "flags=assoc,qos").decode(errors="replace")

    def past_runs(self, from_s: float, to_s: float) -> Iterator[PastRun]:
        return read_past_runs(self.run, from_s, to_s)

    def read_mail(self, job: int | str) -> tuple[str, str]:
        return read_mail(self.run, _check_name(job))

    def read_own_mail(self, job_id: int) -> tuple[str, str]:
        """Return (MailUser, MailType) as the job's user set them, also while a resize keeps mails from being sent."""
        user, types = self.read_mail(job_id)
        stamp = admin_comment.decode(self.admin_comment(job_id)) if user else None
        return user, (stamp.mail if stamp is not None else "") or types

    def required_nodes(self, job_id: int) -> tuple[str, ...]:
        rows = self.table("squeue", (("JobID", 12), ("ReqNodes", 65536)), "-a", "-j", str(int(job_id)))
        return node_names(next((f["ReqNodes"] for f, _ in rows if f["JobID"] == str(job_id)), ""), job_id)

    def admin_comments(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        return self._comments.read(job_ids)

    def admin_comment(self, job_id: int) -> str:
        return self._comments.read_one(job_id)

    def batch_script(self, job_id: int) -> str | None:
        try:
            return (
                self.run("scontrol", "write", "batch_script", str(int(job_id)), "-")
                .decode(errors="replace")
                .replace("\0", "")
            )
        except SlurmError as error:
            _check_denied(error)
            if NO_SCRIPT.search(error.what):
                return None
            raise  # nothing is known of its script

    # -- writes ----------------------------------------------------------------------------------------------------

    def update(self, job: int | str, fields: Mapping[str, str], *, within_s: float = math.inf) -> None:
        self._check_fields(fields)
        # one that waited for another slurmctld would let the job start on nodes that have not registered there
        timeout_s = START_TIMEOUT_S if self._may_take_over and fields.get("StartTime") == "now" else within_s
        words = (f"JobId={_check_name(job)}", *(f"{k}={v}" for k, v in fields.items()))
        self._write("scontrol", "update", *words, timeout_s=timeout_s)

    @property
    def acts_as_owner(self) -> bool:
        return os.geteuid() == 0 or self._tokens

    def update_size(self, job: int | str, uid: int, fields: Mapping[str, str]) -> None:
        # after an update by root or SlurmUser, Slurm takes the limits on CPUs as lifted by an admin for the job's whole life
        # (job_mgr.c: limit_set)
        ours = {k: v for k, v in fields.items() if k == "AdminComment"}  # the owner may not write it
        size = {k: v for k, v in fields.items() if k not in ours}
        if not (self._limits and uid and size and self.acts_as_owner):
            self.update(job, fields)
            return
        self._check_fields(size)
        words = (f"JobId={_check_name(job)}", *(f"{k}={v}" for k, v in size.items()))
        # a denial to the owner says nothing about this user's rights: no DeniedError
        # slurmctld believes root that the update is the owner's: no process runs as that user, who could hold it
        as_root = os.geteuid() == 0
        uid_option = (f"--uid={known_user(uid)}",) if as_root else ()
        token = "" if as_root else self._token(uid)
        self.run("scontrol", *uid_option, "update", *words, start=self._writing, token=token)
        if ours:
            self.update(job, ours)

    def _token(self, uid: int) -> str:
        """Return the owner's token. If Slurm gives none, limits are checked before each update from now on (`acts_as_owner`)."""
        try:
            return owners_token(self.run, uid)
        except SlurmError as error:
            if error.transient:
                raise
            self._tokens, self._no_tokens = False, True
            what = f"{error.what}; limits of accounts are checked before updates instead"
            raise SlurmError(error.where, what, transient=True) from None

    def delay(self, jobs: Sequence[int | str], seconds: int) -> None:
        # scontrol makes a request for each: beyond Slurm's limit it would sleep before the rest
        at_once = DELAY_IDS if self.pace is None else min(DELAY_IDS, self.pace.at_once)
        for i in range(0, len(jobs), at_once):
            ids = ",".join(_check_name(n) for n in jobs[i : i + at_once])
            # it says a line for each of those that have left, and puts off the others
            self._write("scontrol", "update", f"JobId={ids}", f"StartTime=now+{int(seconds)}", fine=NOT_PENDING)

    def release(self, job: int | str) -> None:
        self._write("scontrol", "release", _check_name(job))

    def requeue(self, job: int | str, *, failed: bool = False) -> None:
        # without `incomplete` a job that has just ended by itself would run a second time
        self._write("scontrol", "requeue", *(() if failed else ("incomplete",)), _check_name(job))

    def step_wait_s(self) -> float:
        if not self._config:
            self._config = self.run("scontrol", "show", "config").decode(errors="replace")
        return float(count(config_values(self._config).get("WaitTime", "").split(" ")[0]))

    def keep_nodes(self, job: int | str, nodes: Sequence[str]) -> None:
        fields = {"ReqNodeList": ",".join(nodes)}
        self._check_fields(fields)
        with tempfile.TemporaryDirectory(
            prefix="synergy-resize-"
        ) as folder:  # scontrol writes scripts for the job's shell there
            self._write(
                "scontrol", "update", f"JobId={_check_name(job)}", f"ReqNodeList={fields['ReqNodeList']}", folder=folder
            )

    def power_up(self, nodes: Sequence[str]) -> None:
        if not nodes or any(not _NODE.match(name) for name in nodes):
            raise SlurmError("scontrol update", f"{', '.join(nodes)!r} are no names of nodes", transient=False)
        # a denial for nodes says nothing about this user's rights over jobs: no DeniedError
        self.run("scontrol", "update", f"NodeName={','.join(nodes)}", "State=POWER_UP", start=self._writing)

    def reserve(self, name: str, nodes: Sequence[str], user: str) -> None:
        if not nodes or any(not _NODE.match(node) for node in nodes):
            raise SlurmError("scontrol create", f"{', '.join(nodes)!r} are no names of nodes", transient=False)
        what = f"ReservationName={name}", f"Nodes={','.join(nodes)}", f"Users={user}"
        when = "StartTime=now", f"Duration={SHIELD_S // 60}", f"Flags={','.join(SHIELD_FLAGS)}"
        # a denial for reservations says nothing about this user's rights over jobs: no DeniedError
        self.run("scontrol", "create", "reservation", *what, *when, start=self._writing)

    def unreserve(self, name: str) -> None:
        self.run("scontrol", "delete", f"ReservationName={name}", start=self._writing)

    def drain(self, node: str, reason: str) -> None:
        if not _NODE.match(node) or any(not c.isprintable() for c in reason):
            raise SlurmError("scontrol update", f"{node!r}, {reason!r} are no node and reason", transient=False)
        self._write("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def end_allocation(self, job: int | str) -> None:
        self._write("scancel", _check_name(job), timeout_s=SIGNAL_TIMEOUT_S)

    def signal_launchers(self, job: int | str, name: str) -> None:
        # never the job, nor a step that is none of ours: whoever does not handle the signal dies of it
        text = self.run("squeue", "-a", "-s", "-h", "-j", _check_name(job), "-o", "%i %j").decode(errors="replace")
        steps = launcher_steps(text)
        if not steps:
            raise SlurmError("squeue -s", f"which step of job {job} trains is not to be seen", transient=True)
        self._write("scancel", f"--signal={name}", *steps, timeout_s=SIGNAL_TIMEOUT_S)

    @staticmethod
    def _check_fields(fields: Mapping[str, str]) -> None:
        for key, text in fields.items():
            if not _KEY.match(key) or any(not c.isprintable() for c in text):
                raise SlurmError("scontrol update", f"{key}={text!r} is no field and value for it", transient=False)

    def _write(
        self,
        *argv: str,
        timeout_s: float = math.inf,
        fine: re.Pattern[str] | None = None,
        folder: str | None = None,
    ) -> None:
        try:
            self.run(*argv, timeout_s=timeout_s, fine=fine, start=self._writing, folder=folder)
        except SlurmError as error:
            _check_denied(error)
            raise

    # -- inside ----------------------------------------------------------------------------------------------------

    def _jobs(self, *options: str) -> tuple[JobRow, ...]:
        fields = job_fields(self._own_release())
        rows = self._rows(fields, *options)
        if self._own_release() >= MERGES_TASKS and may_hide(rows):
            rows, hidden_ids = separate_tasks(
                rows, [f for f, _ in self.table("squeue", TASK_FIELDS, "-a", "-r", *options)]
            )
            rows += self._read_rows(hidden_ids, fields, HIDDEN_IDS)
        return tuple(rows)

    def _rows(self, fields: Sequence[tuple[str, int]], *options: str) -> list[JobRow]:
        cut: list[int] = []
        rows: list[JobRow] = []
        wide = _with_widths(fields, JOB_WIDE)
        for f, full in self.table("squeue", fields, *JOB_OPTIONS, *options):
            if full & JOB_WIDE.keys() and wide != fields:
                cut.append(count(f["JobID"]))
            else:
                rows.append(job_row(f))
        return rows + self._read_rows(cut, wide, WIDE_IDS)

    def _read_rows(self, job_ids: Sequence[int], fields: Sequence[tuple[str, int]], at_once: int) -> list[JobRow]:
        rows: list[JobRow] = []
        for i in range(0, len(job_ids), at_once):
            ids = job_ids[i : i + at_once]
            try:
                batch = self._rows(fields, "-j", ",".join(map(str, ids)))
            except SlurmError as error:
                if NO_JOB.search(error.what):  # it has left in between
                    continue
                raise
            # an id of an array or a heterogeneous job names its other parts too
            rows.extend(row for row in batch if row.job_id in ids)
        return rows

    def _own_release(self) -> tuple[int, int]:
        """Return (22, 5) for 22.05.8. Slurm is asked once."""
        if self._slurm_release is None:
            first, second = re.findall(r"\d+", f"{self.version()} 0 0")[:2]
            if int(first):
                self._slurm_release = int(first), int(second)
            return int(first), int(second)
        return self._slurm_release


def _check_name(job: int | str) -> str:
    """Return the job's name as text. Raises SlurmError for what names no job."""
    if not _NAMED.match(str(job)):
        raise SlurmError("job", f"{job!r} names no job", transient=False)
    return str(job)


def _check_denied(error: SlurmError) -> None:
    if DENIED.search(error.what):
        what = f"uid {os.geteuid()} may not manage jobs ({error.what.splitlines()[0]})"
        raise DeniedError(error.where, what, "run synergyd as root, SlurmUser, or with AdminLevel=Admin") from None


def _with_widths(fields: Sequence[tuple[str, int]], wide: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((name, wide.get(name, width)) for name, width in fields)
