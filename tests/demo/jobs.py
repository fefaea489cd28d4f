"""The demo's jobs: what a user would submit."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.throwaway.slurm import SlurmCluster

GPT = "synergy_launch.examples.gpt"
PLAIN = "synergy_launch.examples.ddp"


@dataclass(frozen=True)
class DemoJob:
    """A job of the demo. `module` is one of synergy_launch.examples; `directive` what stands behind #SYNERGY."""

    name: str
    module: str
    gpus: int
    directive: str
    arguments: tuple[str, ...]
    hidden: int = 64
    seq: int = 64

    def config(self) -> str:
        """The model as a Hugging Face config.json, which the directive names."""
        sizes = {"n_layer": 4, "n_embd": self.hidden, "n_head": 4, "n_positions": self.seq, "vocab_size": 256}
        return json.dumps({"model_type": "gpt2", **sizes})

    def command(self) -> str:
        """What stands behind synergy-launch's own options."""
        sizes = ("--hidden", str(self.hidden), "--seq", str(self.seq)) if self.module == GPT else ()
        return " ".join(shlex.quote(a) for a in ("-m", self.module, *self.arguments, *sizes))

    def script(self, checkpoint: Path) -> str:
        """The batch script, as a user would write it."""
        model = f"model={checkpoint.parent / 'config.json'} " if self.module == GPT else ""
        return (
            "#!/bin/bash\n"
            f"#SBATCH --job-name={self.name} --nodes=1 --gres=gpu:{self.gpus} --open-mode=append\n"
            f"#SYNERGY {model}{self.directive} checkpoint={checkpoint}\n"
            f"srun synergy-launch --checkpoint {shlex.quote(str(checkpoint))} {self.command()}\n"
        )


# A batch of two on four GPUs leaves no room for dp 4: that job must change tp or pp to grow.
FIRST = (
    DemoJob("gpt-narrow", GPT, 4, "min_gpus=1 max_gpus=4 global_batch=2 micro_batch=1",
            ("--steps", "4000", "--global-batch", "2", "--step-delay", "0.2", "--checkpoint-interval", "200"),
            hidden=128, seq=128),
    DemoJob("gpt-wide", GPT, 2, "min_gpus=1 max_gpus=2 global_batch=8",
            ("--steps", "4000", "--global-batch", "8", "--step-delay", "0.2", "--checkpoint-interval", "200")),
    DemoJob("plain-ddp", PLAIN, 2, "min_gpus=2 max_gpus=2 global_batch=32",
            ("--steps", "4000", "--global-batch", "32", "--step-delay", "0.2", "--checkpoint-interval", "200")),
)  # fmt: skip
FOURTH = DemoJob("gpt-short", GPT, 4, "min_gpus=4 max_gpus=4 global_batch=4 weight=2",
                 ("--steps", "40", "--global-batch", "4", "--step-delay", "0.1"))  # fmt: skip
FOURTH_STEPS = 40


def submit(cluster: SlurmCluster, job: DemoJob, *options: str) -> int:
    """Submit a job as a user would, with more options of sbatch. Return its id; its checkpoints and output lie in the cluster's folder."""
    folder = work_folder(cluster, job)
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(job.config())
    return cluster.sbatch(job.script(folder / "checkpoints"), "-o", str(folder / "output"), *options)


def work_folder(cluster: SlurmCluster, job: DemoJob) -> Path:
    """Where a job's checkpoints, step log and output lie."""
    return cluster.folder / "jobs" / job.name
