"""Carries out the lifecycle's instructions through Slurm, and reads back what was written. The only writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launch import handover
from synergyd.lifecycle import AskCheckpoint, Done, Instruction, Park, Refused, Release, Requeue, Target, Update
from synergyd.records import JobState, Plan
from synergyd.slurm import stamp
from synergyd.slurm.client import SlurmError, SlurmWriter
from synergyd.slurm.observe import Known, state_of
from synergyd.slurm.rows import gpus_of

CHECKPOINT_SIGNAL = "USR2"  # NCCL may catch USR1


@dataclass(frozen=True)
class Actuator:
    """`report` is the address jobs report to ("" = none); `known` tells each job's own size."""

    slurm: SlurmWriter
    state_dir: Path
    report: str
    known: Mapping[int, Known]

    def carry_out(self, instruction: Instruction) -> Done | Refused:
        """Never raises for anything Slurm or the file system does. Only jobs with a directive are ever written to."""
        job_id = instruction.job_id
        known = self.known.get(job_id)
        if known is None or known.directive is None:
            return Refused(instruction, f"job {job_id} has no directive: it is not Synergy's", transient=False)
        try:
            error = self._do(instruction, known)
        except SlurmError as problem:
            return Refused(instruction, str(problem), problem.transient)
        except OSError as problem:
            return Refused(instruction, f"{problem.filename}: {problem.strerror}", transient=True)
        return Refused(instruction, *error) if error else Done(instruction)

    def adopt(self, job_id: int, plan: Plan | None) -> None:
        """Tells a running job that Synergy did not start where to report. Raises SlurmError, OSError."""
        known = self.known[job_id]
        if known.directive is None:
            return
        self._hand_over(job_id, known, plan)
        self.slurm.update(job_id, {"AdminComment": self._stamp(known, plan)})

    def _hand_over(self, job_id: int, known: Known, plan: Plan | None) -> None:
        folder = (known.directive.checkpoint if known.directive else None) or ""
        handover.write(handover.Handover(job_id, plan, self.report, folder), self.state_dir)

    def _do(self, instruction: Instruction, known: Known) -> tuple[str, bool] | None:
        """None when done, else (why not, transient)."""
        job_id = instruction.job_id
        row = self.slurm.job(job_id)
        if row is None:
            return "it has left the queue", True  # the next observation says so too, and ends the story
        state = state_of(row)
        match instruction:
            case AskCheckpoint(restarts=restarts):
                if state is not JobState.RUNNING or row.restarts != restarts:
                    return f"it is {row.state}, restart {row.restarts}", True
                self.slurm.signal(job_id, CHECKPOINT_SIGNAL)
            case Requeue(restarts=restarts):
                if row.restarts == restarts and state is JobState.RUNNING:
                    self.slurm.requeue(job_id)
            case Park(park_s=park_s):
                if state is not JobState.PENDING:
                    return f"it is {row.state}", True
                self.slurm.update(job_id, {"StartTime": f"now+{int(park_s)}", "AdminComment": self._stamp(known, None)})
            case Update(target=target, park_s=park_s):
                if state is not JobState.PENDING:
                    return f"it is {row.state}", True
                self._hand_over(job_id, known, target.plan)
                typed = gpus_of(row.tres_per_node)[0]
                self.slurm.update(job_id, self._fields(target, known, typed, park_s))
                return self._difference(job_id, target)
            case Release():
                if state is JobState.PENDING:
                    self.slurm.update(job_id, {"StartTime": "now"})
        return None

    def _fields(self, target: Target, known: Known, typed: str, park_s: float) -> dict[str, str]:
        shape = target.shape
        kind = f":{typed}" if typed else ""
        return {
            "StartTime": f"now+{int(park_s)}",
            # Slurm refuses a node count that the present task count does not allow: both in one update
            "NumTasks": str(shape.nodes),
            "NumNodes": f"{shape.nodes}-{shape.nodes}",
            "NumCPUs": str(shape.nodes * known.cpus_per_node),
            "TresPerNode": f"gres:gpu{kind}:{shape.gpus_per_node}",
            "ReqNodeList": ",".join(target.nodes),
            "AdminComment": self._stamp(known, target.plan),
        }

    def _stamp(self, known: Known, plan: Plan | None) -> str:
        return stamp.write(stamp.Stamp(known.comment, known.asked, known.cpus_per_node, plan, self.report))

    def _difference(self, job_id: int, target: Target) -> tuple[str, bool] | None:
        """Reads the job back: an update is not atomic, and some fields are ignored in silence."""
        row = self.slurm.job(job_id)
        if row is None or state_of(row) is not JobState.PENDING:
            return "it was no longer pending when it was read back", True
        shape, gpus = target.shape, gpus_of(row.tres_per_node)[1]
        if (row.num_nodes, gpus) != (shape.nodes, shape.gpus_per_node):
            return f"read back {row.num_nodes} nodes x {gpus} GPUs, wanted {shape.nodes} x {shape.gpus_per_node}", False
        if target.nodes:
            nodes = self.slurm.required_nodes(job_id)
            if set(nodes) != set(target.nodes):
                return f"read back ReqNodeList {','.join(nodes) or 'empty'}, wanted {','.join(target.nodes)}", False
        return None
