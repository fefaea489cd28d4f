"""A daemon over a cluster in memory and a real SQLite store: what its unit tests drive."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from synergy_core.job_report import Report
from synergy_core.records import Action, Decision, JobState, Plan, Profile
from synergy_core.wire.job_key import SecretFile
from synergy_core.wire.report import ReportAnswer

from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState
from synergyd.control.state.size_changes import SizeChanges
from synergyd.daemon.dependencies import DaemonDependencies
from synergyd.daemon.loop import Daemon
from synergyd.daemon.ports.report_inbox import ReceivedReport, ReportInbox
from synergyd.settings import Settings
from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.rows import JobRow, SlurmNodeRow
from synergyd.slurm.parsed.snapshot import state_from_row
from synergyd.store.buffer import BufferedStore
from synergyd.store.store import Store, open_store
from tests.unit.slurm.fake_slurm import FakeSlurm, row

START_S = 1_000_000.0
SCRIPT = "#!/bin/bash\n#SYNERGY model=gpt2 global_batch=256 max_gpus=4 checkpoint=/ckpt\nsrun synergy-launch train.py\n"


@dataclass
class FakeCluster(FakeSlurm):
    """`FakeSlurm` with scripts and bulk reads. `gpus` by node; a running job lies on nodes that the test names."""

    name: str = "memory"
    now_s: float = START_S
    scripts: dict[int, str | None] = field(default_factory=dict)
    unreadable: dict[int, bool] = field(default_factory=dict)  # job -> transient
    gpus: dict[str, int] = field(default_factory=lambda: {"n1": 4, "n2": 4})
    scripts_read: list[int] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)  # of nodes that are not just idle or in use

    def version(self) -> str:
        return "22.05.8"

    def demand_rights(self, *, writes: bool) -> None:
        """All rights."""

    def paced_s(self) -> float:
        """Nothing is limited."""
        return 0.0

    def past_runs(self, from_s: float, to_s: float) -> tuple[()]:
        """Without slurmdbd."""
        return ()

    def read_own_mail(self, job_id: int) -> tuple[str, str]:
        return "", ""

    def jobs_now(self) -> tuple[JobRow, ...]:
        self._reach("squeue")
        return tuple(r for r in self.jobs.values() if state_from_row(r) is not JobState.DONE)  # as squeue

    def nodes(self) -> tuple[SlurmNodeRow, ...]:
        self._reach("sinfo")
        rows = []
        for name, gpus in self.gpus.items():
            used = sum(
                int(j.tres_per_node.rpartition(":")[2])
                for j in self.jobs.values()
                if name in j.node_names and j.tres_per_node
            )
            state = self.states.get(name, "mixed" if used else "idle")
            rows.append(SlurmNodeRow(name, state, f"gpu:a100:{gpus}", f"gpu:a100:{used}", (), ("main",), ""))
        return tuple(rows)

    def batch_script(self, job_id: int) -> str | None:
        self._reach("scontrol write")
        self.scripts_read.append(job_id)
        if job_id in self.unreadable:
            raise SlurmError("scontrol write", "no script today", transient=self.unreadable[job_id])
        return self.scripts.get(job_id, "#!/bin/bash\nsrun sleep 1\n")

    def _set_field(self, job_id: int, key: str, value: str) -> None:
        if key == "AdminComment":  # the one field that Slurm changes of a running job too
            self.comments[job_id] = value
        else:
            super()._set_field(job_id, key, value)

    # -- what tests do -------------------------------------------------------------------------------------------------

    def submit(self, job_id: int, script: str | None = SCRIPT, **changes: object) -> None:
        self.submitted += 1
        self.jobs[job_id] = row(job_id, submit_s=self.now_s, eligible_s=self.now_s, **changes)
        self.scripts[job_id] = script

    def runs(self, job_id: int, *nodes: str) -> None:
        self.set(job_id, state="RUNNING", start_s=self.now_s, node_names=nodes, num_nodes=len(nodes))

    def written_to(self) -> set[int]:
        """Jobs that any write named."""
        return {int(job_id) for call in self.calls for job_id in call[1].split(",")}


class _Reader:
    """The cluster as a SlurmReader: `FakeSlurm.jobs` is a table, a reader's is a call."""

    name = "memory"

    def __init__(self, cluster: FakeCluster) -> None:
        self.version, self.jobs, self.nodes = cluster.version, cluster.jobs_now, cluster.nodes


class Post:
    """An inbox without a network."""

    def __init__(self) -> None:
        self.waiting: list[ReceivedReport] = []
        self.answers: dict[tuple[int, int], tuple[int, ReportAnswer]] = {}

    def take(self) -> list[ReceivedReport]:
        taken, self.waiting = self.waiting, []
        return taken

    def tell(
        self, answers: Mapping[tuple[int, int], tuple[int, ReportAnswer]], owners: Mapping[tuple[int, int], int]
    ) -> None:
        self.answers = dict(answers)


@functools.cache
def _empty_database() -> bytes:
    """Migrated once: that takes longer than most tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "synergy.db"
        open_store(f"sqlite:///{path}", create=True).close()
        return path.read_bytes()


class Site:
    """One cluster, one state folder with its database; daemons come and go."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.slurm = FakeCluster()
        self.post = Post()
        self.leads, self.term = True, 1
        self.knows_programs = True
        self.set_s = 0.0  # by how much the clock was set
        self.away = False
        usual = Settings(state_dir=folder, epoch_s=60.0, restart_cost_s=1.0, max_weight=1000.0)
        self.settings = replace(usual, **settings)  # type: ignore[arg-type]
        self.url = self.settings.database_url()
        folder.mkdir(exist_ok=True)
        (folder / "synergy.db").write_bytes(_empty_database())
        self.daemon = self.start()

    def start(self, **settings: object) -> Daemon:
        """A new daemon process: nothing but the store, the files and Slurm is left of the one before."""
        store = BufferedStore(lambda: open_store(self.url, create=True), lambda: self.slurm.now_s)
        dependencies = DaemonDependencies(
            reader=_Reader(self.slurm),
            writer=self.slurm,
            store=store,
            inbox=cast(ReportInbox, self.post),
            secret=SecretFile(self.folder),
            clock=lambda: self.slurm.now_s,
            monotonic=lambda: self.slurm.now_s - self.set_s,
            report_address="ctl:7321",
            leads=lambda: self.leads,
            term=lambda: self.term,
        )
        self.daemon = Daemon(replace(self.settings, **settings), dependencies)  # type: ignore[arg-type]
        # as if an agent of each program had reported before; test_unknown_programs.py has programs that nobody knows
        self.daemon.controller.size_changes = SizeChanges(assumed=self.knows_programs)
        return self.daemon

    def epoch(self, seconds: float = 0.0) -> dict[int, Decision]:
        self.slurm.now_s += seconds
        self.daemon.epoch()
        assert self.daemon.controller.validate() == ""
        return {d.job_id: d for d in self.daemon.decisions}

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes, on the cluster too (jobs that Slurm may start get the nodes that they require)."""
        self.slurm.pass_time(seconds)
        for job_id, job in list(self.slurm.jobs.items()):
            if job.state == "RUNNING" and not job.node_names:
                self.slurm.set(job_id, node_names=self.slurm.required_nodes(job_id) or ("n1",))
        self.daemon.tick()
        assert self.daemon.controller.validate() == ""

    def set_clock(self, by_s: float) -> None:
        """Somebody sets the clock, of Slurm's host too. A start time that is over there stays so."""
        self.slurm.now_s += by_s
        self.set_s += by_s
        self.slurm._ends = {i: (at_s + by_s, again) for i, (at_s, again) in self.slurm._ends.items()}

    def report(self, job_id: int, uid: int = 1000, /, **values: object) -> None:
        made = Report(
            job_id, self.slurm.jobs[job_id].restarts, 10, step_s=0.5, plan=Plan(dp=2, micro_batch=8, global_batch=256)
        )
        self.post.waiting.append(ReceivedReport(replace(made, **values), uid))  # type: ignore[arg-type]

    def life(self, job_id: int) -> JobLifecycle:
        return self.daemon.controller.jobs[job_id].lifecycle

    def store(self) -> Store:
        return open_store(self.url)

    def story(self, job_id: int) -> str:
        with self.store() as store:
            return "\n".join(e.detail for e in store.story(job_id))

    def running(self, job_id: int, *nodes: str) -> None:
        """A job that was started by Slurm as it asked, and whose agent reports."""
        self.slurm.submit(job_id)
        self.slurm.runs(job_id, *nodes)
        self.epoch()
        self.report(job_id)


def believed(site: Site, *job_ids: int) -> list[Profile]:
    """What the daemon believes of the jobs, as its last epoch saw them."""
    controller = site.daemon.controller
    profiles = controller.believed_profiles([job for t in controller.jobs.values() if (job := t.job) is not None])
    return [profiles[i] for i in job_ids]


def acted(decisions: dict[int, Decision]) -> dict[int, str]:
    return {i: d.action.value for i, d in decisions.items() if d.action is not Action.KEEP}


def grow(site: Site) -> None:
    """Job 1 runs on two GPUs of n1, and an epoch decides that it shall have four."""
    site.running(1, "n1")
    decided = site.epoch(60)[1]
    assert decided.action is Action.RESIZE and decided.cell is not None and decided.cell.shape.gpus == 4
    assert site.life(1).state is ResizeState.CHECKPOINTING
