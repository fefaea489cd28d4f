"""Slurm's rows and what is known of each job -> the records that decisions are made from. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from synergy_core.records import Cluster, Directive, Job, JobState, Node, Plan, Shape

from synergyd.control.power_up import RESUME_TIMEOUT_S
from synergyd.slurm.parsed.job_forms import squeue_name
from synergyd.slurm.parsed.needs import MORE_NODES, needs_of, open_partitions, placement_obstacle, read_room
from synergyd.slurm.parsed.node_states import read_offer
from synergyd.slurm.parsed.rows import JobRow, PartitionRow, SlurmNodeRow, gpu_items, parse_gpus

_STATES = {
    "PENDING": JobState.PENDING, "RUNNING": JobState.RUNNING, "COMPLETING": JobState.COMPLETING, "SUSPENDED": JobState.SUSPENDED,
    "CONFIGURING": JobState.RUNNING, "RESIZING": JobState.RUNNING, "SIGNALING": JobState.RUNNING, "STAGE_OUT": JobState.COMPLETING,
    "STOPPED": JobState.SUSPENDED, "REQUEUED": JobState.PENDING, "REQUEUE_HOLD": JobState.PENDING, "REQUEUE_FED": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING, "RESV_DEL_HOLD": JobState.PENDING, "POWER_UP_NODE": JobState.RUNNING,
    **dict.fromkeys(
        ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED"),
        JobState.DONE,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class SubmittedJob:
    """The facts learnt of a job when it was first seen: its directive, or why that is wrong; the size of its sbatch line."""

    directive: Directive | None
    error: str
    requested_shape: Shape
    cpus_per_node: int
    # tasks of its sbatch line where they are more than one a node: such a job keeps its size
    own_tasks: int | None = None
    note: str = ""  # an operator's own AdminComment, kept
    nodelist: tuple[str, ...] = ()  # its user's own --nodelist, which our ReqNodeList keeps
    excluded: tuple[str, ...] = ()  # its --exclude
    time_limit_s: float | None = None  # as on its sbatch line
    continuations: int = 0  # number of times that it began again
    throttle: int = 0  # its array's
    mail: str = ""  # MailType as its user set it, while a resize keeps some of its mails from being sent
    #: the plugin put off its start, which may come from then on; None: it did not, or no more
    put_off_s: float | None = None
    #: why its script would not get to its training again, so that it keeps its size; "" where nothing is seen
    second_run: str = ""
    uid: int = 0  # its owner's
    leader: int = 0  # leader of the heterogeneous job that it is a component of; 0: it is none
    batches: tuple[int, int] | None = None  # Job.batches as it was last found, of a job with adapt=yes

    def keeps_batch(self, plan: Plan | None) -> bool:
        """Return whether the global batch of `plan` is nobody's choice, so that the script keeps its own."""
        if plan is None or self.directive is None or self.directive.global_batch:
            return False
        if not self.directive.adapt or self.batches is None:
            return True
        return not self.batches[0] <= plan.global_batch <= self.batches[1]


def state_from_row(row: JobRow) -> JobState:
    """Return Slurm's state, as far as Synergy tells states apart.

    A state that is not known (of a newer Slurm) counts as COMPLETING: such a job is neither forgotten nor written
    to.
    """
    return _STATES.get(row.state.split("+")[0].upper(), JobState.COMPLETING)


def has_launch_failed(row: JobRow) -> bool:
    """Return whether Slurm holds the job because slurmd did not start it: nobody asked for that hold."""
    is_held = state_from_row(row) is JobState.PENDING and row.priority == 0
    return is_held and row.reason.lower().replace(" ", "_") == "launch_failed_requeued_held"


def gpuless(row: JobRow, limits: Mapping[str, PartitionRow]) -> bool:
    """Return whether Slurm has started the job without the GPUs that it asks for, and it runs so or has failed so.

    Return False if Slurm does not count GPUs (AccountingStorageTRES): then no record shows it. `limits`: partitions
    by name.
    """
    partition, began = limits.get(row.partition), state_from_row(row) is JobState.RUNNING or row.state == "FAILED"
    counts = partition is not None and bool(partition.gpus)
    return counts and began and bool(row.node_names) and not row.tres_gpus and parse_gpus(row.tres_per_node)[1] > 0


def node_from_row(row: SlurmNodeRow) -> Node:
    """Return one node, seen for the first of its types of GPUs; `up` only in states that take new jobs."""
    return nodes_from_row(row)[0]


def nodes_from_row(row: SlurmNodeRow, whole_cores: bool = True) -> tuple[Node, ...]:
    """Return a node once for each of its types of GPUs. Without `whole_cores` Slurm gives out single threads."""
    offer = read_offer(row.state)
    totals: dict[str, int] = {}
    for kind, count in gpu_items(row.gres):
        totals[kind] = totals.get(kind, 0) + count
    if any(totals.get(kind, 0) for kind in totals if kind):
        totals.pop("", None)  # the untyped total of the same GPUs
    room, used_room = read_room(row)
    nodes = []
    for kind, gpus in sorted(totals.items(), key=lambda item: item[1] == 0) or [("", 0)]:
        in_use = sum(count for other, count in gpu_items(row.gres_used) if other in ("", kind))
        nodes.append(
            Node(
                row.name,
                kind or "gpu",
                gpus,
                min(in_use, gpus),
                offer.up,
                row.partitions,
                row.features,
                row.reason,
                room=room,
                used=used_room,
                threads_per_core=row.threads_per_core if whole_cores else 1,
                tmp_disk_mib=row.tmp_disk_mib,
                wakeable=offer.wakeable,
                waking=offer.waking,
                reserved=offer.reserved,
            )
        )
    return tuple(nodes)


def leaks(rows: Iterable[SlurmNodeRow], jobs: Iterable[JobRow]) -> dict[str, int]:
    """Return by node the GPUs that Slurm counts as in use there although no job is. Slurm itself gives them to nobody either."""
    nodes_in_use = {name for job in jobs if state_from_row(job) is not JobState.DONE for name in job.node_names}
    used_gpus = {r.name: sum(count for _, count in gpu_items(r.gres_used)) for r in rows if r.name not in nodes_in_use}
    return {name: count for name, count in used_gpus.items() if count}


def with_leaks(cluster: Cluster, gpus_by_node: Mapping[str, int]) -> Cluster:
    """Return the cluster with what `leaks` found."""
    if not gpus_by_node:
        return cluster
    return Cluster(tuple(replace(n, leaked=gpus_by_node.get(n.name, 0)) for n in cluster.nodes))


def cluster_from_rows(
    rows: Iterable[SlurmNodeRow],
    partitions: tuple[str, ...] = (),
    leaves: Mapping[str, str] | None = None,
    limits: Mapping[str, PartitionRow] | None = None,
) -> Cluster:
    """Return all nodes with GPUs in the partitions named (all, if none is).

    `leaves`: leaf switch by node name; `limits`: partitions by name.
    """
    kept_nodes = []
    timeouts = {name: p.resume_timeout_s for name, p in (limits or {}).items() if p.resume_timeout_s}
    for row in rows:
        wake_s = max((timeouts[p] for p in row.partitions if p in timeouts), default=RESUME_TIMEOUT_S)
        cores = not any(name in (limits or {}) and not (limits or {})[name].whole_cores for name in row.partitions)
        leaf = (leaves or {}).get(row.name, "")
        nodes = nodes_from_row(row, cores)
        kept_nodes += [replace(node, leaf=leaf, wake_s=wake_s if node.wakeable else 0.0) for node in nodes]
    return Cluster(tuple(n for n in kept_nodes if n.gpus and (not partitions or set(partitions) & set(n.partitions))))


def shape_from_row(row: JobRow, gpu_type_of_node: Mapping[str, str]) -> Shape:
    """Return what the job holds or asks for; the type is '' if it asks for any and has none yet."""
    kind, count = parse_gpus(row.tres_per_node)
    if row.node_names:
        kind = gpu_type_of_node.get(row.node_names[0], kind)
    return Shape(kind, max(1, row.num_nodes), count)


def is_as_submitted(row: JobRow, submission: SubmittedJob) -> bool:
    """Return whether the pending job asks for the size and the nodes of its sbatch line, so that nothing else can start."""
    now = shape_from_row(row, {})
    size = (now.nodes, now.gpus_per_node) == (
        submission.requested_shape.nodes,
        submission.requested_shape.gpus_per_node,
    )
    return size and row.req_nodes == submission.nodelist


def _is_in(row: JobRow, partitions: tuple[str, ...]) -> bool:
    """Return whether the job runs in one of these partitions (all, if none is named), or waits for several of which one is here."""
    return not partitions or not set(partitions).isdisjoint(row.partition.split(","))


def is_managed(row: JobRow, words: tuple[str, ...]) -> bool:
    """Return whether the job is one of those that the setting Partitions names: partitions, user/NAME, account/NAME."""
    partitions = tuple(word for word in words if "/" not in word)
    owners = {word for word in words if "/" in word}
    return _is_in(row, partitions) and (
        not owners or not owners.isdisjoint((f"user/{row.user}", f"account/{row.account}"))
    )


def not_resizable(row: JobRow, directive: Directive) -> str:
    """Return why this job keeps the size it asked for, or ''."""
    if not directive.resize:
        return "its directive says resize=no"
    if not row.batch:
        return "it is no batch job (salloc or srun)"
    if not row.requeue:
        return "it may not be requeued (--no-requeue)"
    if parse_gpus(row.tres_per_node)[1] == 0 or gpu_items(row.tres_other):
        return "it asks for GPUs by job, task or socket, or for none: ask by node, --gres=gpu:N"
    if row.num_tasks > row.num_nodes:
        return f"it has {row.num_tasks} tasks on {row.num_nodes} nodes: one task a node is needed (srun synergy-launch)"
    return ""


def size_obstacle(row: JobRow, submitted_job: SubmittedJob) -> str:
    """Return why a job that was seen before keeps the size it asked for, or ''.

    Its own tasks are those of its sbatch line: the row's may be what a refused update left, or those of nodes that it has given back.
    """
    tasks = submitted_job.own_tasks or row.num_nodes
    return not_resizable(replace(row, num_tasks=tasks), submitted_job.directive or Directive())


def drains(row: JobRow, partitions: Mapping[str, PartitionRow]) -> str:
    """Return why a running job may not be requeued, if its partition is to be empty one day, or "" if it is not."""
    shut = row.node_names and row.partition in partitions and partitions[row.partition].state == "DRAIN"
    return f"its partition {row.partition} is DRAIN" if shut else ""


def find_overtaken_jobs(
    rows: Iterable[JobRow],
    ours: Container[int],
    before_s: float,
    gpu_type_of_node: Mapping[str, str],
    partitions_of_node: Mapping[str, Sequence[str]],
    *,
    by_ours: bool = False,
) -> frozenset[int]:
    """Return those of `ours` that wait since before `before_s` and that a job on a node of one of their partitions has passed.

    That job is not Synergy's, unless `by_ours`; it was submitted later (to whatever partition), and has GPUs already, of the type that
    they ask for if they name one. Times are Slurm's: seconds since 1970.
    """
    rows = list(rows)
    newest: dict[tuple[str, str], float] = {}  # submit time, by partition and GPU type ("": any)
    for r in rows:
        if (
            (by_ours or r.job_id not in ours)
            and r.state == "RUNNING"
            and (parse_gpus(r.tres_per_node)[1] or parse_gpus(r.tres_other)[1])
        ):
            for name in r.node_names:
                for partition in (r.partition, *partitions_of_node.get(name, ())):
                    for kind in {"", gpu_type_of_node.get(name, "")}:
                        newest[partition, kind] = max(newest.get((partition, kind), 0.0), r.submit_s)
    return frozenset(
        r.job_id
        for r in rows
        if r.job_id in ours and r.state == "PENDING" and r.priority > 0 and r.submit_s < before_s
        if any(newest.get((p, parse_gpus(r.tres_per_node)[0]), 0.0) > r.submit_s for p in r.partition.split(","))
    )


def job_from_row(
    row: JobRow,
    submission: SubmittedJob,
    gpu_type_of_node: Mapping[str, str],
    *,
    is_paused: bool,
    partitions: Mapping[str, PartitionRow] | None = None,
    groups: frozenset[str] | None = None,
    topology: bool = False,
    qos_flags: frozenset[str] | None = None,
) -> Job:
    """Return one Synergy job as Slurm shows it.

    `partitions`: limits by name, if they are known; `groups`: its user's, `qos_flags`: its QOS's, likewise;
    `topology`: the nodes' leaf switches are known.
    """
    state = state_from_row(row)
    directive, error = submission.directive, submission.error
    names, shut = open_partitions(row, submission.requested_shape.nodes, partitions or {}, groups, qos_flags)
    limits = [(partitions or {})[name] for name in names if name in (partitions or {})]
    if directive is not None and state is JobState.PENDING and (beyond := placement_obstacle(row, topology) or shut):
        directive, error = None, f"Synergy leaves the job to Slurm: {beyond}"
    why_fixed = ""
    if directive is not None:
        type_asked = parse_gpus(row.tres_per_node)[0]
        if type_asked:  # Slurm keeps a typed request's type for ever: an update to another leaves the job unrunnable
            directive = replace(directive, gpu_types=(type_asked,))
        is_closed = shut or drains(row, partitions or {})  # a running job would not start again
        why_fixed = size_obstacle(row, submission) or submission.second_run or is_closed
    shape = shape_from_row(row, gpu_type_of_node)
    return Job(
        job_id=row.job_id,
        name=row.name,
        slurm_name=squeue_name(row),
        user=row.user,
        uid=row.uid,
        partition=row.partition,
        state=state,
        reason=row.reason,
        submit_s=row.submit_s,
        start_s=row.start_s if state is not JobState.PENDING else None,
        begin_s=row.eligible_s if state is JobState.PENDING else None,
        restarts=row.restarts,
        shape=shape,
        asked=submission.requested_shape
        if submission.requested_shape.gpu_type
        else replace(submission.requested_shape, gpu_type=shape.gpu_type),
        node_names=row.node_names,
        # Slurm takes the priority of a job whose constraints it can't meet, and gives it back at the next update
        held=state is JobState.PENDING and row.priority == 0 and row.reason != "BadConstraints",
        launch_failed=has_launch_failed(row),
        paused=is_paused,
        directive=directive,
        directive_error=error,
        fixed=why_fixed,
        account=row.account,
        qos=row.qos,
        features=row.features,
        reservation=row.reservation,
        priority=float(row.priority),
        time_limit_s=row.time_limit_s,
        needs=needs_of(row, submission.cpus_per_node, limits),
        nodelist=submission.nodelist,
        exclude=tuple(sorted(submission.excluded)),
        open_partitions=",".join(names),
        max_nodes=min(
            (p.max_nodes for p in limits if p.max_nodes and MORE_NODES not in (qos_flags or ())), default=None
        ),
    )
