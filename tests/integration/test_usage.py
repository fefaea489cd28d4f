"""GPU hours that Synergy keeps, against Slurm's own accounting."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from synergy_core.wire.hostlist import expand

from synergyd.store.store import open_store
from tests.integration.daemon_site import sizes, until_beat, until_steps
from tests.integration.test_in_place import last_step, shown
from tests.integration.test_live_growth import queue
from tests.integration.test_live_shrink import GPUS, small, wide
from tests.throwaway import accounting, light_job
from tests.throwaway.accounting import Accounting
from tests.throwaway.power import cloud_settings
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, remember_programs, synergyd

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(accounting.missing_programs()), reason=f"not here: {accounting.missing_programs()}"),
]
ACCOUNTS = ("add account chem", "add account physics", "add user root account=chem,physics defaultaccount=chem")
COLUMNS = "JobIDRaw,Account,State,Start,End,ElapsedRaw,AllocTRES"


LEDGER = [
    f"{name}_gpu_h" for name in ("training", "start", "checkpoint", "resize", "failure", "straggler", "idle", "unknown")
]


def runs_of(cluster: SlurmCluster, columns: str) -> str:
    """A line for each incarnation of any job."""
    return cluster.run("sacct", "-a", "-D", "-X", "-n", "-P", "-S", "2000-01-01", f"--format={columns}").stdout


def sacct(cluster: SlurmCluster) -> dict[str, float]:
    """GPU seconds by account, "runs": the incarnations that held GPUs, and "open": those without an end."""
    found: dict[str, float] = {"runs": 0, "open": 0}
    for line in runs_of(cluster, "Account,ElapsedRaw,AllocTRES,End").splitlines():
        account, elapsed, tres, end = line.split("|")
        gpus = re.search(r"gres/gpu=(\d+)", tres)
        found["open"] += end == "Unknown"  # slurmdbd hears of an end a little later
        if gpus and int(elapsed):
            found[account] = found.get(account, 0.0) + int(elapsed) * int(gpus[1])
            found["runs"] += 1
    return found


def ended(cluster: SlurmCluster, job_id: int) -> str:
    """The job's state as sacct has it: squeue forgets a job half a minute after its end."""
    return cluster.run("sacct", "-X", "-n", "-P", "-j", str(job_id), "--format=State").stdout.strip()


def begun(cluster: SlurmCluster, job_id: int) -> bool:
    """Whether slurmdbd knows of its start: of a run that is requeued before that sacct never tells the length."""
    return cluster.run("sacct", "-X", "-n", "-P", "-j", str(job_id), "--format=Start").stdout.strip()[:1].isdigit()


def reported(cluster: SlurmCluster) -> dict[str, float]:
    """The same by the ledger of `synergyctl usage`: what the held hours of this month went into, added up."""
    rows = json.loads(cluster.run("synergyctl", "usage", "--json").stdout)["rows"]
    return {row["account"]: sum(row["losses"][name] for name in LEDGER) * 3600 for row in rows}


def het_script(folder: Path) -> str:
    return (
        f"#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:1 --output={folder}/het.out\n#SBATCH hetjob\n"
        "#SBATCH --nodes=1 --gres=gpu:2\nsleep 6\n"
    )


def test_hours_held_are_those_of_sacct() -> None:
    """Resized, requeued, cancelled, failed, heterogeneous and short jobs, a daemon that dies in between. Each is seen COMPLETING for
    some epochs: of one that is being requeued Slurm then shows a planned end."""
    cluster = make_cluster(epoch_s=2)
    cluster.accounting = Accounting(ACCOUNTS)
    epilog = cluster.folder / "epilog"
    epilog.write_text("#!/bin/sh\nsleep 6\n")
    epilog.chmod(0o755)
    cluster.slurm_conf = (*cluster.slurm_conf, f"Epilog={epilog}")
    with cluster:
        with synergyd(cluster) as first:
            until_beat(cluster)
            options = ("--requeue", "--time=60")
            resized = light_job.submit(cluster, gpus=2, directive="min_gpus=1 max_gpus=8", options=options)
            until_steps(cluster, resized, timeout_s=150)
            cluster.wait_for(lambda: sizes(cluster, resized) == [8], 150, "all GPUs to be its")
            cluster.wait_for(lambda: begun(cluster, resized), 60, "its start in the accounts")
            plain = "#!/bin/bash\n#SBATCH --gres=gpu:2 --nodes=1 --output=/dev/null\n"
            failed = cluster.sbatch(f"{plain}sleep 4\nexit 3\n", "--account=physics")
            again = cluster.sbatch(f"{plain}sleep 300\n", "--account=physics", "--requeue")
            cluster.wait_for(lambda: cluster.state(again) == "RUNNING", 150, "the resize that makes room")
            first.kill()
        with synergyd(cluster):
            short = cluster.sbatch(f"{plain}sleep 1\n", "--account=physics")
            cluster.wait_for(lambda: ended(cluster, short) == "COMPLETED", 150, "the short job's end")
            # its components share no node, and so it may wait until one of the two is free again: after those that need less
            cluster.sbatch(het_script(cluster.folder), "--account=physics")
            cluster.wait_for(lambda: ended(cluster, failed) == "FAILED", 60, "the failed job's end")
            cluster.wait_for(lambda: begun(cluster, again), 60, "its start in the accounts")
            cluster.run("scontrol", "requeue", str(again))
            # Slurm waits for two minutes after a requeue, and fails a job that starts again in the same second
            cluster.wait_for(lambda: cluster.state(again) == "PENDING", 60, "the end of its Epilog")
            soon = ("scontrol", "update", f"JobId={again}", "StartTime=now+3")
            cluster.wait_for(lambda: cluster.run(*soon, check=False).returncode == 0, 120, "its return into the queue")
            cluster.wait_for(lambda: cluster.state(again) == "RUNNING", 150, "the requeued job's second start")
            cluster.wait_for(lambda: restarted_at(cluster, resized) is not None, 150, "training on what is left")
            until_steps(cluster, resized, steps=(restarted_at(cluster, resized) or 0) + 40, timeout_s=150)
            cluster.run("scancel", str(again), str(resized))
            cluster.wait_for(lambda: not cluster.run("squeue", "-h").stdout.strip(), 120, "the last job's end")
            until_equal(cluster)
            assert sacct(cluster)["runs"] >= 7
            check_table(cluster)
            runs = check_job(cluster, resized)
            assert len({run["gpus"] for run in runs}) > 1, "it was resized"
            assert all(run["state"] == "REQUEUED" for run in runs[:-1]) and runs[-1]["state"] == "CANCELLED"
            assert len(check_job(cluster, again)) == 2


def test_hours_of_nodes_that_were_powered_up_are_those_of_sacct() -> None:
    """Slurm sets the start anew once they are there, of a run that the daemon has seen begin before."""
    cluster = make_cluster((NodeGroup("cpu", 1, 1), NodeGroup("cpu", 1, 4, cloud=True)), epoch_s=1)
    cluster.slurm_conf = (*cluster.slurm_conf, *cloud_settings(cluster, resume_timeout_s=60))
    cluster.accounting = Accounting(ACCOUNTS)
    with cluster, synergyd(cluster):
        until_beat(cluster)
        plain = "#!/bin/bash\n#SBATCH --gres=gpu:4 --nodes=1 --output=/dev/null\nsleep 4\n"
        sky = cluster.sbatch(plain, "--account=chem")
        cluster.wait_for(lambda: ended(cluster, sky) == "COMPLETED", 240, "its end")
        until_equal(cluster)


def test_a_change_is_told_with_what_was_predicted_of_it_and_what_reports_measured() -> None:
    """A second job makes the first one share the GPUs. light_job is as fast as it has GPUs."""
    cluster = make_cluster(epoch_s=1)
    with cluster, synergyd(cluster):
        until_beat(cluster)
        first = light_job.submit(cluster, gpus=2, directive="min_gpus=1 max_gpus=8")
        until_steps(cluster, first, steps=20, timeout_s=150)
        cluster.wait_for(lambda: sizes(cluster, first) == [8], 150, "all GPUs to be its")
        until_steps(cluster, first, steps=40, timeout_s=150)
        second = light_job.submit(cluster, gpus=2, directive="min_gpus=1 max_gpus=8")
        until_steps(cluster, second, steps=20, timeout_s=150)
        cluster.wait_for(lambda: restarted_at(cluster, first) is not None, 150, "its restart")
        until_steps(cluster, first, steps=(restarted_at(cluster, first) or 0) + 30, timeout_s=150)
        cluster.run("scancel", str(first), str(second))
        cluster.wait_for(lambda: not cluster.run("squeue", "-h").stdout.strip(), 120, "their ends")
        cluster.wait_for(
            lambda: usage_of(cluster, first)["incarnations"][-1]["end_s"] is not None, 60, "the epoch that misses it"
        )
        total, runs = usage_of(cluster, first)["total"], usage_of(cluster, first)["incarnations"]
        assert total["changes"] >= total["audited"] >= 1 and total["audited_h"] > 0, (total, runs)
        changed = [run for run in runs if run["predicted"] is not None and run["measured"] is not None]
        before = {run["start_s"]: earlier for earlier, run in pairwise(runs)}
        for run in changed:
            ratio = run["gpus"] / before[run["start_s"]]["gpus"]
            assert 0.4 < run["measured"] / ratio < 2.5 and (ratio == 1 or (run["predicted"] > 1) == (ratio > 1)), runs
        assert total["change_h"] > 0 and total["prediction_error"] is not None
        assert "as measured" in cluster.run("synergyctl", "usage").stdout


def test_hours_of_a_job_that_shrinks_and_grows_while_it_runs_are_those_of_sacct() -> None:
    """From four nodes to two, and to four again by an allocation beside its own: without a requeue."""
    cluster = make_cluster([NodeGroup("cpu", 4, GPUS)], epoch_s=1)
    cluster.accounting = Accounting(ACCOUNTS)
    with cluster:
        remember_programs(cluster, light_jobs=("wide", "small"))
        with synergyd(cluster):
            until_beat(cluster)
            job = wide(cluster, "wide")
            other = small(cluster, 2)
            cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 2 * GPUS, 180, "steps on two nodes")
            cluster.wait_for(lambda: shown(cluster, job, "NumNodes") == "2", 60, "the return of its nodes")
            until_steps(cluster, job, steps=int(last_step(cluster, job)["step"]) + 60, timeout_s=120)
            cluster.run("scancel", str(other))
            cluster.wait_for(lambda: last_step(cluster, job).get("dp") == 4 * GPUS, 180, "steps on four nodes")
            until_steps(cluster, job, steps=int(last_step(cluster, job)["step"]) + 60, timeout_s=120)
            assert shown(cluster, job, "Restarts") == "0"
            (beside,) = (line.split()[0] for line in queue(cluster) if f"synergy-nodes-of-{job}" in line)
            cluster.run("scancel", str(job))
            cluster.wait_for(lambda: not cluster.run("squeue", "-h").stdout.strip(), 120, "their ends")
            until_equal(cluster)
            try:
                cluster.wait_for(
                    lambda: is_exact(cluster, job), 30, "equal hours"
                )  # all of Slurm's times are taken over
            except RuntimeError as error:
                with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
                    parts = "\n".join(map(str, store.usage_of([job])))
                raise AssertionError(f"{runs_of(cluster, COLUMNS)}{parts}") from error
            held_s, sizes_of_rows = held_by_sacct(cluster, job)
            usage = usage_of(cluster, job)
            print(
                held_s,
                usage["total"],
                [(r["gpus"], r["run_s"], r["state"], r["predicted"], r["measured"]) for r in usage["incarnations"]],
            )
            rows = [r for r in usage["incarnations"] if r["run_s"] >= 4]  # allocations may end some seconds apart
            assert [r["gpus"] for r in rows] == [4 * GPUS, 2 * GPUS, 4 * GPUS], usage
            assert [r["state"] for r in rows] == ["RESIZING"] * 2 + ["CANCELLED"] and usage["restarts"] == 0
            assert sorted(sizes_of_rows) == [2 * GPUS, 2 * GPUS, 4 * GPUS], "two of its own, and the one beside it"
            assert usage["total"]["changes"] == 2 and usage["total"]["audited"] >= 1 and usage["total"]["change_h"] > 0
            refused = cluster.run("synergyctl", "usage", beside, check=False)
            assert refused.returncode == 2 and f"has nodes of job {job}" in refused.stderr
            total = json.loads(cluster.run("synergyctl", "usage", "--json").stdout)["total"]
            assert total["jobs"] == len(runs_by_job(cluster)), "an allocation beside a job's own is no job"


def usage_of(cluster: SlurmCluster, job_id: int) -> dict[str, Any]:
    """What `synergyctl usage JOB` says."""
    found: dict[str, Any] = json.loads(cluster.run("synergyctl", "usage", str(job_id), "--json").stdout)
    return found


def is_exact(cluster: SlurmCluster, job_id: int) -> bool:
    """Whether the GPU seconds of a job are those of sacct, but for rounding."""
    held_gpu_h: float = usage_of(cluster, job_id)["total"]["held_gpu_h"]
    return abs(held_gpu_h * 3600 - held_by_sacct(cluster, job_id)[0]) < 0.1


def held_by_sacct(cluster: SlurmCluster, job_id: int) -> tuple[float, list[int]]:
    """GPU seconds and GPUs of all rows of a job, and of the allocations beside it."""
    found: list[tuple[int, int]] = []
    for line in runs_of(cluster, "JobIDRaw,ElapsedRaw,AllocTRES,JobName").splitlines():
        number, elapsed, tres, name = line.split("|")
        gpus = re.search(r"gres/gpu=(\d+)", tres)
        if gpus and int(elapsed) and (int(number) == job_id or name.startswith(f"synergy-nodes-of-{job_id}.")):
            found.append((int(elapsed), int(gpus[1])))
    return sum(s * g for s, g in found), [g for _, g in found]


def runs_by_job(cluster: SlurmCluster) -> set[str]:
    """The jobs that held GPUs, but for allocations beside them."""
    lines = (line.split("|") for line in runs_of(cluster, "JobIDRaw,ElapsedRaw,AllocTRES,JobName").splitlines())
    return {n for n, s, tres, name in lines if int(s) and "gres/gpu=" in tres and "synergy-nodes" not in name}


def restarted_at(cluster: SlurmCluster, job_id: int) -> int | None:
    """The step of its newest report, once its restart has been measured: it trains again."""
    with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
        told, restarted = store.report(job_id), any(e.event == "Restarted" for e in store.story(job_id))
    return told.report.step if told is not None and restarted else None


def equal(cluster: SlurmCluster) -> bool:
    """Of each account within one part in a hundred."""
    slurm, ours = sacct(cluster), reported(cluster)
    del slurm["runs"]
    return (
        not slurm.pop("open")
        and slurm.keys() == ours.keys()
        and all(abs(ours[a] - s) <= 0.01 * s for a, s in slurm.items())
    )


def until_equal(cluster: SlurmCluster) -> None:
    """The daemon asks Slurm's accounts each five epochs, and 50 s after an answer that failed, which may take 30 s."""
    try:
        cluster.wait_for(lambda: equal(cluster), 240, "equal hours")
    except RuntimeError as error:
        with open_store(f"sqlite:///{cluster.state_dir}/synergy.db") as store:
            parts = "\n".join(map(str, store.usage_of(range(1, 8))))
        runs = runs_of(cluster, COLUMNS)
        raise AssertionError(f"{sacct(cluster)}, {reported(cluster)}\n{COLUMNS}\n{runs}{parts}") from error


def check_job(cluster: SlurmCluster, job_id: int) -> list[dict[str, Any]]:
    """`synergyctl usage JOB` against `sacct -D -j JOB`, once the job has left the queue; returns its incarnations."""
    columns = "Start,ElapsedRaw,AllocTRES,NodeList,State,Submit"
    lines = cluster.run("sacct", "-D", "-X", "-n", "-P", "-j", str(job_id), f"--format={columns}").stdout.splitlines()
    kept = [line.split("|") for line in lines]
    ran = sorted((row for row in kept if int(row[1]) and "gres/gpu=" in row[2]), key=itemgetter(0))
    told = json.loads(cluster.run("synergyctl", "usage", str(job_id), "--json").stdout)
    runs: list[dict[str, Any]] = told["incarnations"]
    assert len(runs) == len(ran), (runs, kept)
    gpu_s = waited_s = 0.0
    for run, (start, elapsed, tres, nodes, state, submit) in zip(runs, ran, strict=True):
        start_s, gpus = datetime.fromisoformat(start).timestamp(), int(tres.partition("gres/gpu=")[2].partition(",")[0])
        assert (run["start_s"], run["gpus"], run["nodes"]) == (start_s, gpus, list(expand(nodes))), (run, nodes)
        assert run["end_s"] == pytest.approx(start_s + int(elapsed), abs=1.0) and run["state"] == state.split()[0], (
            state
        )
        gpu_s += int(elapsed) * gpus
        waited_s += start_s - datetime.fromisoformat(submit).timestamp()
    assert told["total"]["held_gpu_h"] * 3600 == pytest.approx(gpu_s, rel=0.01)
    assert told["run_s"] == pytest.approx(sum(int(row[1]) for row in ran), rel=0.01)
    assert told["waited_s"] == pytest.approx(waited_s, abs=2.0 * len(runs))
    assert told["restarts"] == len(runs) - 1
    return runs


def check_table(cluster: SlurmCluster) -> None:
    """What the other columns say of them, and the other forms."""
    found = json.loads(cluster.run("synergyctl", "usage", "--json").stdout)
    total, chem = found["total"], next(r["usage"] for r in found["rows"] if r["account"] == "chem")
    assert chem["jobs"] == 1 and 0 < chem["asked_gpu_h"] < chem["held_gpu_h"]
    assert 0 < chem["restart_gpu_h"] < chem["held_gpu_h"] and chem["known_gpu_h"] > 0
    assert chem["known_gpu_h"] + chem["restart_gpu_h"] <= chem["held_gpu_h"] * 1.001
    assert chem["useful_gpu_h"] > 0
    assert total["held_gpu_h"] == pytest.approx(sum(r["usage"]["held_gpu_h"] for r in found["rows"]))
    text = cluster.run("synergyctl", "usage", "--csv", "--account", "physics").stdout
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["account"], row["user"]) == ("physics", "root") and float(row["useful_gpu_h"]) == 0
    shown = cluster.run("synergyctl", "usage", "--user", "root").stdout
    assert "SAVED" in shown and "chem" in shown
    assert "no GPU" in cluster.run("synergyctl", "usage", "--month", "2001-02").stdout
