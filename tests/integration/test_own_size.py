"""A script without an agent runs at the size that its user asked for, whatever its #SYNERGY line allows; on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon_site import explain, status, until_beat, until_epochs
from tests.throwaway import light_job
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import make_cluster, synergyd

pytestmark = pytest.mark.slurm

# torch's own tutorial: an unmodified data-parallel script
SCRIPT = """
import os, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo", timeout=timedelta(seconds=120))
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while not Path(sys.argv[2]).exists():
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        with open(sys.argv[1], "a") as log:
            log.write(f"{os.environ.get('SLURM_RESTART_COUNT', '0')} {dist.get_world_size()}\\n")
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Two nodes of four GPUs, and a daemon."""
    cluster = make_cluster(epoch_s=1)
    with cluster, synergyd(cluster):
        until_beat(cluster)
        yield cluster


def worlds(log: Path) -> list[str]:
    """(restarts, processes) of the steps, as the script has written them."""
    return sorted(set(log.read_text().splitlines())) if log.exists() else []


def test_an_unmodified_script_keeps_its_two_gpus_over_a_requeue_and_the_next_submission(site: SlurmCluster) -> None:
    script, end = site.folder / "plain.py", site.folder / "end"
    script.write_text(SCRIPT)

    def submit(log: Path) -> int:
        batch = (
            "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:2 --open-mode=append\n#SYNERGY max_gpus=4\n"
            f"srun synergy-launch {script} {log} {end}\n"
        )
        return site.sbatch(batch, "--job-name=plain-ddp", f"--output={site.folder}/plain.out")

    first = site.folder / "first.log"
    job = submit(first)
    site.wait_for(lambda: worlds(first) == ["0 2"], 120, "its steps on two GPUs")
    until_epochs(site, 3)
    row = status(site)[job]
    assert (row["gpus"], row["plan"], row["global_batch"]) == (2, None, None) and "no agent has reported" in row["hint"]
    told = explain(site, job)
    assert "no run of this program has reported" in told["decision"]["why"]
    assert told["decision"]["cell"] is None and "plan      its script's own" in told["lines"]
    site.run("scontrol", "requeue", str(job))
    site.wait_for(lambda: "1 2" in worlds(first), 180, "its steps after the requeue")
    second = site.folder / "second.log"
    again = submit(second)
    site.wait_for(lambda: worlds(second) != [], 120, "the next submission's steps")
    until_epochs(site, 2)
    assert (worlds(first), worlds(second)) == (["0 2", "1 2"], ["0 2"])
    end.touch()
    site.wait_for(lambda: not {site.state(job), site.state(again)} & {"RUNNING", "COMPLETING"}, 90, "their ends")


def test_a_script_that_never_calls_the_launcher_is_told_and_left_alone(site: SlurmCluster) -> None:
    script = site.folder / "bare.sh"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:2\n#SYNERGY\nsleep 600\n")
    done = site.run("sbatch", "--parsable", "--output=/dev/null", str(script))
    job = int(done.stdout.split(";")[0])
    assert "never calls synergy-launch" in done.stderr
    assert "keeps the size it asks for" in site.run("synergyctl", "check", str(script)).stdout
    site.wait_for(lambda: site.state(job) == "RUNNING", 60, "its start")
    until_epochs(site, 3)
    row = status(site)[job]
    assert (row["gpus"], row["plan"], row_of(site, job)["restart_cnt"]) == (2, None, 0)
    site.run("scancel", str(job))


def test_an_agents_program_starts_at_its_size_and_grows_once_it_has_reported(site: SlurmCluster) -> None:
    """The first run pays a restart; the next one starts where it should."""
    job = light_job.submit(site, "learner", gpus=1, directive="min_gpus=1 max_gpus=4")
    site.wait_for(lambda: (status(site).get(job) or {}).get("gpus") == 4, 180, "it to have grown")
    assert row_of(site, job)["restart_cnt"] == 1
    site.run("scancel", str(job))
    site.wait_for(lambda: site.state(job) in ("", "CANCELLED"), 60, "its end")
    again = light_job.submit(site, "learner2", gpus=1, directive="min_gpus=1 max_gpus=4")
    site.wait_for(lambda: (status(site).get(again) or {}).get("gpus") == 4, 120, "the next one's start")
    assert row_of(site, again)["restart_cnt"] == 0
    site.run("scancel", str(again))
