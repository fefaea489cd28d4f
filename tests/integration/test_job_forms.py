"""Arrays, dependencies, heterogeneous jobs and the other ways to ask for GPUs, on one real cluster with one daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon_site import Shim, empty_queue, explain, sizes, status, until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.slurm_output import gres, release, row_of
from tests.throwaway.synergy import Synergyd, make_cluster

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def shim() -> list[Shim]:
    return []


@pytest.fixture(scope="module")
def daemons() -> list[Synergyd]:
    """The last one runs."""
    return []


@pytest.fixture(scope="module")
def site(shim: list[Shim], daemons: list[Synergyd]) -> Iterator[SlurmCluster]:
    """Two nodes of four GPUs, and the daemon."""
    with make_cluster([NodeGroup("cpu", 2, 4)]) as cluster:
        shim.append(Shim(cluster))
        daemons.append(Synergyd(cluster, environment=shim[0].environment))
        try:
            until_beat(cluster)
            yield cluster
        finally:
            daemons[-1].stop()


@pytest.fixture(autouse=True)
def emptied(site: SlurmCluster) -> Iterator[None]:
    yield
    empty_queue(site)


def chain_script(cluster: SlurmCluster, ledger: Path, *, live: bool) -> str:
    """Each task trains 30 steps more than the one before, from its checkpoint, and on until ledger.go is there; `ledger` has a line for
    each start and end. Without `live`, every change of its size is a requeue."""
    config, checkpoint = cluster.folder / "config.json", ledger.with_suffix(".checkpoint")
    config.write_text(json.dumps(light_job.MODEL))
    job = Path(light_job.__file__).resolve()
    say = f"$SLURM_ARRAY_TASK_ID ${{SLURM_RESTART_COUNT:-0}} $SLURM_JOB_ID >> {ledger}"
    return (
        f"#!/bin/bash\n#SBATCH --job-name=chain --gres=gpu:2 --nodes=1 --open-mode=append --output={ledger}.out.%a\n"
        f"#SYNERGY model={config} global_batch=8 micro_batch=1 checkpoint={checkpoint} min_gpus=1 max_gpus=8\n"
        f"export GOES_ON_UNTIL={ledger}.go SYNERGY_IN_PLACE={int(live)}\n"
        f"echo start {say}\n"
        f"srun synergy-launch --runner python --checkpoint {checkpoint} {job} +30 || exit 1\n"
        f"echo end {say}\n"
    )


def test_a_chain_runs_task_after_task_each_resized_as_any_job(
    site: SlurmCluster, shim: list[Shim], daemons: list[Synergyd]
) -> None:
    ledger = site.folder / "chain"
    array = site.sbatch(chain_script(site, ledger, live=False), "--array=1-3%1")
    site.wait_for(lambda: ledger.exists() and ledger.read_text().endswith("\n"), 120, "the first task to start")
    own = int(ledger.read_text().split()[3])
    assert own != array
    after = site.sbatch("#!/bin/bash\ntrue\n", f"--dependency=afterok:{array}_1", "--output=/dev/null")
    waits = light_job.submit(
        site, "waits", gpus=1, directive="max_gpus=1", options=(f"--dependency=afterok:{array}_1",), steps=1
    )
    until_steps(site, own)
    site.wait_for(lambda: sizes(site, own) == [8], 150, "the first task to have both nodes")
    other = light_job.submit(site, "other", gpus=4, directive="min_gpus=4 max_gpus=4")
    site.wait_for(lambda: sizes(site, own, other) == [4, 4], 150, "the task to make way")
    site.wait_for(lambda: ledger.read_text().count("\n") > 1, 60, "its second start")
    text = ledger.read_text()
    assert text == f"start 1 0 {own}\nstart 1 1 {own}\n", "the second task did not wait for it"
    assert [site.state(i) for i in (after, waits)] == ["PENDING", "PENDING"], "a job that is resized has not ended"
    row = row_of(site, waits)
    assert row["state_reason"] == "Dependency"
    assert row["eligible_time"] - row["submit_time"] < 60, "put off by sbatch's grace alone, not parked"
    # a daemon that Slurm does not tell the throttle any more: the array's record has one task left
    daemons[-1].kill()
    daemons.append(Synergyd(site, environment=shim[0].environment))
    Path(f"{ledger}.go").touch()
    site.wait_for(lambda: ledger.read_text().count("end") == 3, 240, "all three tasks to end")
    lines = [int(line.split()[1]) for line in ledger.read_text().splitlines()]
    assert lines == sorted(lines), "no task began before the one before it had ended"
    told = json.loads(site.run("synergyctl", "explain", f"{array}_1", "--json").stdout)
    assert told["job_id"] == own, "a task that has ended is known by its name"
    order = [tuple(map(int, line.split()[1:3])) for line in ledger.read_text().splitlines() if line.startswith("start")]
    assert order == sorted(order) and {task for task, _ in order} == {1, 2, 3}
    ended = {"COMPLETING", "COMPLETED", ""}  # "": Slurm has forgotten it
    site.wait_for(lambda: {site.state(after), site.state(waits)} <= ended, 120, "those that waited for it to end")
    # nothing was written to the array's id, which names all of its tasks and is the last one's own
    # (not in AdminComment, whose `asked=` has numbers too)
    words = [word.removeprefix("JobId=") for call in shim[0].writes() for word in call]
    named = [w for word in words if "=" not in word for w in re.split(r",(?![^\[]*\])", word)]
    ours = [n for n in named if re.match(rf"{array}\b|{array}_", n)]
    assert ours and all(re.match(rf"{array}_(\d+(\.\d+)?|\[[\d,-]+\])$", n) for n in ours), ours
    assert str(own) not in named


def test_a_task_of_a_chain_makes_way_live(site: SlurmCluster) -> None:
    ledger = site.folder / "live-chain"
    site.sbatch(chain_script(site, ledger, live=True), "--array=1-2%1")
    site.wait_for(lambda: ledger.exists() and ledger.read_text().endswith("\n"), 120, "the first task to start")
    own = int(ledger.read_text().split()[3])
    until_steps(site, own)
    site.wait_for(lambda: sizes(site, own) == [8], 150, "the first task to have both nodes")
    site.wait_for(lambda: (explain(site, own)["report"]["in_place"] or {}).get("live"), 60, "its nodes to hear orders")
    other = light_job.submit(site, "other", gpus=4, directive="min_gpus=4 max_gpus=4")
    site.wait_for(lambda: sizes(site, own, other) == [4, 4], 150, "the task to make way")
    until_steps(site, own, other)
    Path(f"{ledger}.go").touch()
    site.wait_for(lambda: ledger.read_text().count("end") == 2, 240, "both tasks to end")
    assert [line.split()[:3] for line in ledger.read_text().splitlines()][:2] == [
        ["start", "1", "0"],
        ["end", "1", "0"],
    ]


REQUESTS = (
    (("-N1", "-n4", "-c2", "--gpus-per-task=1"), "gpu:4"),
    (("-N2", "--ntasks-per-node=4", "--gpus=8"), "gpu:4"),
    (("-N1", "--gpus=3"), "gpu:3"),
    (("-N2", "-n4", "--gpus-per-node=cpu:2", "--cpus-per-gpu=3"), "gpu:cpu:2"),
    (("-N1", "--ntasks-per-gpu=1", "--gpus-per-node=4"), "gpu:4"),
)


def test_other_requests_get_what_they_would_have_got(site: SlurmCluster) -> None:
    """Each beside the same job without the #SYNERGY line, and paused, so that its own size is what starts."""
    body = "sleep 300\nsrun synergy-launch train.py\n"
    heads = ("#!/bin/bash\n", "#!/bin/bash\n#SYNERGY max_gpus=8\n")
    pairs = [[site.sbatch(h + body, "--hold", "--output=/dev/null", *o) for h in heads] for o, _ in REQUESTS]
    site.wait_for(lambda: {ours for _, ours in pairs} <= status(site).keys(), 60, "the jobs to be known")
    for (plain, ours), (options, request) in zip(pairs, REQUESTS, strict=True):
        words = "squeue", "-h", "-j", str(ours), "-O", "tres-per-node:24,NumTasks:6"
        wanted = [gres(request), options[0][2:]]
        site.wait_for(lambda w=words, x=wanted: site.run(*w).stdout.split() == x, 60, f"{options}: {wanted}")  # type: ignore[misc]
        site.run("synergyctl", "pause", str(ours))
        got = []
        for job in (plain, ours):
            site.run("scontrol", "update", f"JobId={job}", "StartTime=now")
            site.run("scontrol", "release", str(job))
            site.wait_for(lambda job=job: site.state(job) == "RUNNING", 120, f"{options} to start")  # type: ignore[misc]
            row = row_of(site, job)
            gpus = re.findall(r"gpu:cpu:(\d+)", json.dumps(row["gres_detail"]))
            got.append((row["nodes"], row["cpus"], gpus))
            site.run("scancel", str(job))
            site.wait_for(lambda job=job: site.state(job) in ("CANCELLED", ""), 120, "its end")  # type: ignore[misc]
        if release() == (24, 11) and "--ntasks-per-gpu=1" in options:
            got = [(nodes, 0, gpus) for nodes, _, gpus in got]  # there the plain job has one CPU for all of its tasks
        assert got[0] == got[1] and got[0][2], options


def test_a_job_by_task_is_resized_and_trains(site: SlurmCluster) -> None:
    options = ("--gres=none", "--nodes=1", "-n2", "--gpus-per-task=1")
    job = light_job.submit(site, directive="max_gpus=8", options=options)
    until_steps(site, job)
    site.wait_for(lambda: sizes(site, job) == [8], 60, "all GPUs")
    assert "synergy: step 0: tp=1 pp=1 dp=8" in light_job.output(site, job)


def het_script(cluster: SlurmCluster, name: str, first: str = "--nodelist=n1") -> str:
    """A component without GPUs, and one that trains on two, until NAME.go is there where it is to end."""
    config, checkpoint = cluster.folder / "config.json", cluster.folder / f"{name}.checkpoint"
    config.write_text(json.dumps(light_job.MODEL))
    job = Path(light_job.__file__).resolve()
    return (
        f"#!/bin/bash\n#SBATCH --job-name=het --nodes=1 {first} --open-mode=append --output={cluster.folder}/{name}.out\n"
        "#SBATCH hetjob\n#SBATCH --job-name=het --nodes=1 --gres=gpu:2\n"
        f"#SYNERGY model={config} global_batch=8 micro_batch=1 checkpoint={checkpoint} min_gpus=1 max_gpus=8\n"
        "echo start $SLURM_RESTART_COUNT on $SLURM_JOB_NODELIST and $SLURM_JOB_NODELIST_HET_GROUP_1\n"
        f"export GOES_ON_UNTIL={cluster.folder}/{name}.go\n"
        "srun --het-group=0 sleep 600 &\n"
        f"srun --het-group=1 synergy-launch --runner python --checkpoint {checkpoint} {job} 30 || exit 1\n"
        "echo end\nkill %1\nexit 0\n"
    )


def test_the_gpu_component_of_a_heterogeneous_job_is_resized(site: SlurmCluster, shim: list[Shim]) -> None:
    leader = site.sbatch(het_script(site, "het"))
    part = leader + 1
    after = site.sbatch("#!/bin/bash\ntrue\n", f"--dependency=afterok:{leader}", "--output=/dev/null")
    until_steps(site, part)
    assert json.loads(site.run("synergyctl", "explain", f"{leader}+1", "--json").stdout)["job_id"] == part
    site.wait_for(lambda: sizes(site, part) == [4], 60, "the whole node that the other component left")
    other = light_job.submit(site, "other", gpus=2, directive="min_gpus=2 max_gpus=2", options=("--nodelist=n2",))
    site.wait_for(lambda: row_of(site, other)["job_state"] == "RUNNING", 150, "the component to make way")
    until_steps(site, part)
    site.wait_for(lambda: sizes(site, part) == [2], 150, "the component on what is left")
    assert site.state(after) == "PENDING"
    (site.folder / "het.go").touch()
    site.wait_for(lambda: row_of(site, part)["job_state"] == "COMPLETED", 150, "its end")
    site.wait_for(lambda: row_of(site, leader)["job_state"] == "COMPLETED", 60, "the leader's end")
    site.wait_for(lambda: site.state(after) in ("COMPLETING", "COMPLETED"), 60, "the job that waited for it")
    text = (site.folder / "het.out").read_text()
    assert [x for x in text.splitlines() if x.split()[0] in ("start", "end")] == [
        "start on n1 and n2",
        "start 1 on n1 and n2",
        "end",
    ]
    # the other component's size is nobody's business
    sized = [call for call in shim[0].writes() if any(word.startswith("NumNodes=") for word in call)]
    assert not any(f"JobId={leader}" in call for call in sized)


def test_a_cancelled_heterogeneous_job_is_gone(site: SlurmCluster) -> None:
    leader = site.sbatch(het_script(site, "cancelled"))
    until_steps(site, leader + 1)
    site.run("scancel", str(leader))
    site.wait_for(lambda: not {leader, leader + 1} & status(site).keys(), 120, "the daemon to forget it")
    site.wait_for(lambda: row_of(site, leader + 1)["job_state"] == "CANCELLED", 60, "its end in Slurm")


def test_a_users_begin_time_within_the_grace_is_kept(site: SlurmCluster) -> None:
    jobs = [light_job.submit(site, directive="max_gpus=2", options=("--begin=now+12",), steps=1000)]
    path = site.folder / "begin.sh"
    path.write_text(het_script(site, "begin", "--begin=now+12"))
    jobs.append(int(site.run("sbatch", "--parsable", str(path)).stdout) + 1)
    for job in jobs:
        site.wait_for(lambda i=job: row_of(site, i)["job_state"] == "RUNNING", 90, "its start")  # type: ignore[misc]
        row = row_of(site, job)
        # by sbatch's clock, which starts before Slurm has the job
        assert 6 <= row["start_time"] - row["submit_time"] < GRACE_S, row["start_time"] - row["submit_time"]


GRACE_S = 30.0  # heartbeat.grace_s_for two seconds
LEFT = (
    (("--gres=gpu:1", ":", "--gres=gpu:1"), "several components of the heterogeneous job", "2 of its components ask"),
    (("--gres=gpu:1", ":", "-N1"), "the first component of a heterogeneous job", "its first component asks"),
    (("-N1", ":", "--gpus=1"), "--gpus keeps the job at its size", "GPUs by node"),
)


def test_what_is_left_to_slurm_of_heterogeneous_jobs_is_said(site: SlurmCluster) -> None:
    path = site.folder / "het.sh"
    path.write_text("#!/bin/bash\n#SBATCH --output=/dev/null\n#SYNERGY max_gpus=4\nsleep 300\n")
    for options, said, why in LEFT:
        done = site.run("sbatch", "--parsable", *options, str(path))
        assert said in done.stderr, options
        leader = int(done.stdout)
        job = leader + (options[0] == "-N1")
        site.wait_for(lambda i=leader: row_of(site, i)["job_state"] == "RUNNING", 120, f"{options} to start")  # type: ignore[misc]
        site.wait_for(lambda i=job: i in status(site), 60, "the job to be known")  # type: ignore[misc]
        assert why in explain(site, job)["decision"]["why"], options
        row = row_of(site, leader)
        assert row["start_time"] - row["submit_time"] < GRACE_S - 2, "the daemon ended the plugin's grace"
        site.run("scancel", str(leader))
