"""synergyd on a real cluster with light jobs: what it decides, what it writes, and what it shows."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from synergy_core.wire import plan_file

from synergyd import __version__
from synergyd.daemon import heartbeat
from tests.integration.daemon_site import (
    ELASTIC,
    Shim,
    explain,
    shown,
    sizes,
    status,
    until_beat,
    until_epochs,
    until_steps,
)
from tests.throwaway import light_job
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.slurm_output import queue, row_of
from tests.throwaway.synergy import remember_programs, synergyd

pytestmark = pytest.mark.slurm


# -- dry run, once -------------------------------------------------------------------------------------------------------


def test_dry_run_decides_stores_explains_and_touches_nothing(bare: SlurmCluster) -> None:
    jobs = [light_job.submit(bare, f"j{i}", directive=ELASTIC) for i in range(3)]
    plain = light_job.submit(bare, "plain", directive=None)
    bare.wait_for(lambda: [bare.state(i) for i in jobs] == ["RUNNING", "RUNNING", "PENDING"], 60, "two jobs to run")
    looks = [shown(bare)]

    def settled() -> bool:
        time.sleep(1)
        looks.append(shown(bare))
        return looks[-1] == looks[-2]

    bare.wait_for(settled, 60, "Slurm to have written down all that comes with a start")
    before, shim = looks[-1], Shim(bare)
    with synergyd(bare, "--dry-run", environment=shim.environment) as daemon:
        bare.wait_for(lambda: len(status(bare)) == 3, 60, "the jobs to be known")
        until_epochs(bare, 3)
        assert not (bare.state_dir / heartbeat.NAME).exists()
        assert daemon.process.poll() is None
    done = bare.run("synergyd", "--dry-run", "--once", env={**bare.env, **shim.environment})
    assert "Traceback" not in done.stderr
    assert shown(bare) == before
    assert shim.writes() == []
    assert sorted(p.name for p in (bare.state_dir / "plans").iterdir()) == []
    found = json.loads(bare.run("synergyctl", "status", "--json").stdout)
    assert found["dry_run"] is True and found["plain_jobs"] == 1
    assert "1 plain job with GPUs, without a #SYNERGY line: " in bare.run("synergyctl", "status").stdout
    account = json.loads(bare.run("synergyctl", "usage", "--would-have", "--json").stdout)
    assert {job["job_id"] for job in account["jobs"]} >= set(jobs)
    journal = daemon.log.read_text()
    assert f"synergyd {__version__}: dry run, no job is touched; reads through " in journal and "Epoch=1s" in journal
    assert sorted(j["job_id"] for j in found["jobs"]) == jobs
    told = explain(bare, jobs[2])
    assert told["dry_run"] is True
    assert told["decision"]["action"] in ("wait", "start")
    assert "(dry run)" in bare.run("synergyctl", "explain", str(jobs[2])).stdout
    assert "Waits for 4 GPUs on 1 node" in bare.run("synergyctl", "explain", str(plain)).stdout


def test_a_dry_run_takes_reports_and_leaves_nothing_behind(site: SlurmCluster) -> None:
    site.conf.write_text(site.conf.read_text() + "\n#SYNERGY DryRun=yes\n")
    # as on a cluster with the default StateDir; the plugin sets it for a daemon that acts
    job_id = light_job.submit(site, directive=ELASTIC, options=(f"--export=ALL,SYNERGY_STATE_DIR={site.state_dir}",))
    shim = Shim(site)
    with synergyd(site, environment=shim.environment):
        until_steps(site, job_id)
        assert shim.writes() == []
        assert plan_file.read(plan_file.plan_path(site.state_dir, job_id), job_id).only_reports
    assert [p.name for p in (site.state_dir / "plans").iterdir() if p.suffix == ".json"] == []
    assert status(site)[job_id]["gpus"] == status(site)[job_id]["asked_gpus"]


def test_once_starts_what_it_decided_and_takes_its_heartbeat_away(site: SlurmCluster) -> None:
    remember_programs(site)
    heartbeat.write(site.state_dir, time.time(), 30)  # as if a daemon ran: the job waits for a decision
    job_id = light_job.submit(site, directive=ELASTIC, gpus=2)
    time.sleep(1)
    assert site.state(job_id) == "PENDING"
    assert site.run("synergyd", "--once").returncode == 0
    site.wait_for(lambda: site.state(job_id) == "RUNNING", 60, "the job to start")
    site.wait_for(lambda: "synergy: step 0: tp=1 pp=1 dp=4" in light_job.output(site, job_id), 120, "the plan's use")
    assert not (site.state_dir / heartbeat.NAME).exists()
    # nobody leads any more: a new job runs at once, as a plain one
    plain = light_job.submit(site, directive=ELASTIC, gpus=2)
    site.wait_for(lambda: site.state(plain) == "RUNNING", 60, "the plain job to start")
    row = row_of(site, plain)
    assert row["eligible_time"] - row["submit_time"] < 5, "it was put off"


# -- who is written to ---------------------------------------------------------------------------------------------------


def test_no_write_goes_to_jobs_without_a_directive(site: SlurmCluster) -> None:
    shim = Shim(site)
    with synergyd(site, environment=shim.environment) as daemon:
        until_beat(site)
        plain = [light_job.submit(site, f"plain{i}", directive=None, gpus=g) for i, g in enumerate((1, 1, 4))]
        plain.append(site.sbatch("#!/bin/bash\nsleep 60\n", "--array=1-2", "--output=/dev/null"))
        plain.append(site.sbatch("#!/bin/bash\nsleep 60\n", "--hold", "--output=/dev/null"))
        shell = subprocess.Popen(["srun", "-n1", "sleep", "60"], env=site.env)
        ours = [light_job.submit(site, f"ours{i}", directive=ELASTIC, gpus=2) for i in range(3)]
        site.wait_for(lambda: set(ours) <= shim.written(), 90, "all three to be written to\n" + daemon.tail())
        time.sleep(3)
        shell.terminate()
        shell.wait(60)
    assert shim.written() == set(ours)
    comments = {r["job_id"]: r["admin_comment"] for r in queue(site)}
    assert all(not text for i, text in comments.items() if i not in ours)


def test_jobs_that_grew_give_back_what_plain_jobs_wait_for(site: SlurmCluster) -> None:
    with synergyd(site):
        until_beat(site)
        grown = [light_job.submit(site, f"grown{i}", gpus=1, directive=ELASTIC) for i in range(2)]
        site.wait_for(lambda: sizes(site, *grown) == [4, 4], 180, "both jobs to have all GPUs")
        until_steps(site, *grown)
        plain = [light_job.submit(site, f"plain{i}", directive=None, gpus=3) for i in range(2)]
        site.wait_for(lambda: {site.state(i) for i in plain} == {"RUNNING"}, 180, "the plain jobs to start")
        site.wait_for(lambda: sizes(site, *grown) == [1, 1], 180, "both jobs to go on with what they asked for")
        for job_id in grown:
            assert any("-> 1 cpu GPU" in e["detail"] for e in explain(site, job_id)["story"])


def test_the_daemon_reads_directives_where_the_plugin_is_absent(bare: SlurmCluster) -> None:
    wrong = light_job.submit(bare, "wrong", directive="tp=0", gpus=1)
    het = light_job.submit(bare, "het", directive=ELASTIC, gpus=1, options=(":", "--gres=gpu:1"))
    jobs = [light_job.submit(bare, f"j{i}", directive=ELASTIC) for i in range(3)]
    shim = Shim(bare)
    with synergyd(bare, environment=shim.environment) as daemon:
        bare.wait_for(lambda: set(jobs) <= set(status(bare)), 60, "the jobs to be known")
        told = explain(bare, wrong)
        assert "tp='0' is not right; tp takes a whole number from 1 to 1024" in told["decision"]["why"]
        rows = queue(bare)
        members = [r["job_id"] for r in rows if het <= r["job_id"] < jobs[0]]
        assert len(members) == 2
        assert "2 of its components ask for GPUs" in explain(bare, het)["decision"]["why"]
        # those that wait do so without a hold, and get GPUs when the others' agents have been told where to report
        bare.wait_for(
            lambda: all(status(bare)[i]["state"] == "RUNNING" for i in jobs), 240, "all to run\n" + daemon.tail()
        )
    assert not shim.written() & {wrong, *members}


def test_impossible_min_gpus_is_said_and_not_held(site: SlurmCluster) -> None:
    with synergyd(site):
        until_beat(site)
        job_id = light_job.submit(site, directive="min_gpus=64 max_gpus=128", gpus=4)
        site.wait_for(lambda: job_id in status(site), 60, "the job to be known")
        why = explain(site, job_id)["decision"]["why"]
        assert "64" in why and "8" in why, why
        row = row_of(site, job_id)
        assert row["priority"] != 0
        first = row["eligible_time"]
        assert first - row["submit_time"] < 60
        time.sleep(3)
        assert row_of(site, job_id)["eligible_time"] <= first, "put off again and again"


def test_pause_and_resume(site: SlurmCluster) -> None:
    with synergyd(site) as daemon:
        until_beat(site)
        first = [light_job.submit(site, f"first{i}", directive=ELASTIC) for i in range(2)]
        until_steps(site, *first)
        for job_id in first:
            assert site.run("synergyctl", "pause", str(job_id)).stdout == (
                f"job {job_id}: paused; it keeps its present size\n"
            )
        late = light_job.submit(site, "late", directive=ELASTIC)
        site.wait_for(lambda: late in status(site), 60, "the late job to be known")
        until_epochs(site, 4)
        found = status(site)
        assert [found[i]["gpus"] for i in (*first, late)] == [4, 4, 0]
        assert [found[i]["paused"] for i in (*first, late)] == [True, True, False]
        assert "paused" in explain(site, first[0])["decision"]["why"]
        site.run("synergyctl", "resume", str(first[0]))
        site.wait_for(lambda: sizes(site, *first, late) == [2, 4, 2], 180, "a resize\n" + daemon.tail())
        assert status(site)[first[0]]["restarts"] == 1
        assert status(site)[first[1]]["restarts"] == 0


def test_a_job_that_can_not_shrink_is_stopped_for_a_weightier_one_and_goes_on_where_it_was(site: SlurmCluster) -> None:
    whole = "min_gpus=4 max_gpus=4"
    with synergyd(site) as daemon:
        until_beat(site)
        first = [light_job.submit(site, f"first{i}", directive=whole) for i in range(2)]
        until_steps(site, *first)
        late = light_job.submit(site, "late", directive=f"{whole} weight=50")
        site.wait_for(lambda: sizes(site, late) == [4], 180, "the weightier job\n" + daemon.tail())
        (stopped,) = [i for i in first if status(site)[i]["gpus"] == 0]
        (other,) = [i for i in first if i != stopped]
        assert row_of(site, stopped)["job_state"] == "PENDING"
        told = explain(site, stopped)
        assert any("preemption decided: 4 cpu GPUs" in str(event) for event in told["story"]), told["story"]
        before = status(site)[stopped]["step"]
        site.run("scancel", str(late))
        site.wait_for(lambda: sizes(site, *first) == [4, 4], 150, "its second start\n" + daemon.tail())
        until_steps(site, stopped, steps=before + 1)
        found = status(site)
        assert (found[stopped]["restarts"], found[other]["restarts"]) == (1, 0)


def test_the_users_own_hold_and_begin_time_are_respected(site: SlurmCluster) -> None:
    with synergyd(site):
        until_beat(site)
        held = light_job.submit(site, "held", directive=ELASTIC, options=("--hold",))
        later = light_job.submit(site, "later", directive=ELASTIC, options=("--begin=now+3600",))
        site.wait_for(lambda: {held, later} <= set(status(site)), 60, "the jobs to be known")
        until_epochs(site, 3)
        row = row_of(site, held)
        assert (row["priority"], row["state_reason"]) == (0, "JobHeldUser")
        row = row_of(site, later)
        # sbatch counts from its own start, Slurm from when it has the job
        assert abs(row["eligible_time"] - row["submit_time"] - 3600) <= 20
        assert "held" in explain(site, held)["decision"]["why"]
        assert "begin" in explain(site, later)["decision"]["why"]
        site.run("scontrol", "release", str(held))
        site.wait_for(lambda: site.state(held) == "RUNNING", 180, "the released job to start")


# -- what it shows -------------------------------------------------------------------------------------------------------


def test_every_verb_shows_what_happened(site: SlurmCluster) -> None:
    with synergyd(site) as daemon:
        until_beat(site)
        job_id = light_job.submit(site, "shown", directive=ELASTIC, gpus=2)
        until_steps(site, job_id)
        site.wait_for(lambda: explain(site, job_id)["decision"]["action"] == "keep", 60, "the next decision")
        table = site.run("synergyctl", "status").stdout
        assert re.search(rf"^{job_id} +shown +root +running ", table, re.MULTILINE), table
        one = json.loads(site.run("synergyctl", "status", str(job_id), "--json").stdout)["jobs"]
        assert [(j["job_id"], j["gpus"], j["asked_gpus"], j["plan"]["dp"]) for j in one] == [(job_id, 4, 2, 4)]
        told = explain(site, job_id)
        assert told["decision"]["why"] and told["alternatives"] and told["report"]["checkpoint_requests"] == 0
        states = [e["state"] for e in told["story"]]
        assert states[-1] == "RUNNING" and "RELEASED" in states
        text = site.run("synergyctl", "explain", str(job_id)).stdout
        for words in ("  Keeps 4 cpu GPUs on one node", "\nalternatives\n", "\nstory\n", told["story"][-1]["detail"]):
            assert words in text
        script = site.run("synergyctl", "render", str(job_id)).stdout
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        assert str(Path(light_job.__file__).resolve()) in script
        plan = ("plan", "--model", "llama2-7b", "--gpus", "8", "--gpu-type", "a100")
        assert "tp" in site.run("synergyctl", *plan).stdout.lower()
        assert json.loads(site.run("synergyctl", *plan, "--json").stdout)
        config = json.loads(site.run("synergyctl", "config", "check", "--json").stdout)
        origins = {s["key"]: (s["value"], s["origin"]) for s in config["settings"]}
        number = 1 + next(i for i, x in enumerate(site.conf.read_text().splitlines()) if "StateDir=" in x)
        assert origins["StateDir"] == (str(site.state_dir), f"{site.conf}:{number}")
        assert {p["severity"] for p in config["problems"]} <= {"warning"}, config["problems"]
        assert site.run("synergyctl", "config", "check").stdout.startswith("All is well")
        assert "as needed" in site.run("synergyctl", "db", "current").stdout
        assert "Traceback" not in daemon.log.read_text()
