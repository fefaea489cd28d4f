"""The plugin inside a real slurmctld: what sbatch says, what is stamped, and who is left alone."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synergyd.daemon import heartbeat
from synergyd.slurm.directives.setup import NOT_LOADED
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.slurm_output import row_of
from tests.throwaway.synergy import PLUGINS, hook, make_cluster

pytestmark = pytest.mark.slurm
CASES = json.loads((Path(__file__).parents[1] / "cases" / "directives.json").read_text())
GRACE_S = 40
NOBODY = 65534
GOOD = "#SYNERGY min_gpus=1 max_gpus=4\n"


@pytest.fixture(scope="module")
def started() -> Iterator[SlurmCluster]:
    with make_cluster() as cluster:
        cluster.folder.chmod(0o1777)  # for the scripts and output of another user
        yield cluster


@pytest.fixture
def slurm(started: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster with a heartbeat just written, as if a daemon ran; the queue is emptied afterwards."""
    beat(started)
    yield started
    started.run("scancel", "--user=root", check=False)
    started.run("scancel", "--user=nobody", check=False)


def beat(cluster: SlurmCluster, age_s: float = 0.0) -> None:
    heartbeat.write(cluster.state_dir, time.time() - age_s, GRACE_S)


def script(lines: str, body: str = "true\n") -> str:
    return f"#!/bin/bash\n#SBATCH --gres=gpu:1 --output=/dev/null\n{lines}{body}"


def queued(cluster: SlurmCluster) -> set[str]:
    return set(cluster.run("squeue", "-h", "-t", "all", "-o", "%i").stdout.split())


def refused(cluster: SlurmCluster, text: str | bytes, *options: str, **kwargs: Any) -> list[str]:
    """Submits what must be refused; the lines on the user's terminal that are Synergy's. No job is left behind."""
    path = cluster.folder / f"bad-{time.monotonic_ns()}.sh"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
    before = queued(cluster)
    done = cluster.run("sbatch", *options, str(path), check=False, **kwargs)
    assert done.returncode == 1, (text, done)
    assert queued(cluster) <= before  # Slurm may have forgotten one that ended long ago
    lines = [x.removeprefix("sbatch: error: ") for x in done.stderr.splitlines()]
    assert lines.pop() == "Batch job submission failed: Unspecified error", (text, done.stderr)
    return lines


def starts_at_once(cluster: SlurmCluster, job_id: int) -> None:
    cluster.wait_for(lambda: cluster.state(job_id) in ("RUNNING", "COMPLETING", "COMPLETED"), 120, "the job to start")


def waits(cluster: SlurmCluster, job_id: int) -> float:
    """The job is pending until its begin time; returns the seconds from its submission to that."""
    time.sleep(1.5)  # several rounds of this cluster's scheduler
    row = row_of(cluster, job_id)
    assert (row["job_state"], row["state_reason"]) == ("PENDING", "BeginTime"), row
    return float(row["eligible_time"] - row["submit_time"])


# -- refusals ------------------------------------------------------------------------------------------------------------


def practical(case: dict[str, Any]) -> tuple[bytes, str] | None:
    """A wrong case's script with a first line that sbatch takes, and the error with its line numbers one higher.

    None for the scripts that sbatch itself refuses: with DOS line ends or NUL, or above its size limit.
    """
    parts = case["script"] if isinstance(case["script"], list) else [case["script"]]
    text = "".join(p if isinstance(p, str) else p[0] * p[1] for p in parts)
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = text.encode("utf-8", "surrogatepass")
    if b"\r" in raw or b"\0" in raw or len(raw) > 100_000:
        return None
    line = re.sub(r"(?<=\bline )\d+", lambda m: str(int(m[0]) + 1), case["error"])
    return b"#!/bin/sh\n" + raw, line


def test_each_wrong_directive_is_refused_with_its_line(slurm: SlurmCluster) -> None:
    wrong, tried = [], 0
    for case in CASES:
        given = practical(case) if "error" in case else None
        if given is None:
            continue
        tried += 1
        told = refused(slurm, given[0])
        if told != [given[1]]:
            wrong.append((case["name"], told, given[1]))
    assert not wrong
    assert tried > 60


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--no-requeue",), "--no-requeue keeps Synergy from resizing; drop --no-requeue, or write resize=no"),
        (("--gres=none",), "the job asks for no GPUs; write --gres=gpu:N (GPUs per node), or resize=no"),
    ],
)
def test_jobs_that_could_not_be_resized_are_refused(slurm: SlurmCluster, options: tuple[str, ...], told: str) -> None:
    assert refused(slurm, script(GOOD), *options) == [f"#SYNERGY in script line 3: {told}"]


def test_resize_no_admits_them(slurm: SlurmCluster) -> None:
    job_id = slurm.sbatch(script("#SYNERGY resize=no\n"), "--no-requeue", "--ntasks-per-node=2")
    row = row_of(slurm, job_id)
    assert (row["admin_comment"], row["requeue"]) == ("synergy:1 resize=no", False)


# -- stamps --------------------------------------------------------------------------------------------------------------


def test_stamp_requeue_state_folder_and_comment(slurm: SlurmCluster) -> None:
    out = slurm.folder / "environment"
    job_id = slurm.sbatch(script(GOOD, "env\n"), "--comment", '{"reaper": 1} synergy:1', f"--output={out}")
    row = row_of(slurm, job_id)
    assert row["admin_comment"] == "synergy:1 min_gpus=1 max_gpus=4"
    assert row["comment"] == '{"reaper": 1} synergy:1'
    assert row["requeue"] is True
    slurm.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    slurm.wait_for(lambda: out.exists() and slurm.state(job_id) == "COMPLETED", 120, "the job to end")
    assert f"SYNERGY_STATE_DIR={slurm.state_dir}" in out.read_text().splitlines()


def test_a_plain_users_job_is_stamped_and_refused_alike(slurm: SlurmCluster) -> None:
    as_nobody: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": slurm.folder}
    row = row_of(slurm, slurm.sbatch(script(GOOD), **as_nobody))
    assert row["user_id"] == NOBODY
    assert row["admin_comment"] == "synergy:1 min_gpus=1 max_gpus=4"
    assert refused(slurm, script("#SYNERGY tp=0\n"), **as_nobody) == [
        "#SYNERGY in script line 3: tp='0' is not right; tp takes a whole number from 1 to 1024, for example tp=2"
    ]
    # and can't forge it afterwards
    done = slurm.run("scontrol", "update", f"JobId={row['job_id']}", "AdminComment=x", check=False, **as_nobody)
    assert done.returncode == 1
    assert row_of(slurm, row["job_id"])["admin_comment"] == "synergy:1 min_gpus=1 max_gpus=4"


def test_right_cases_are_stamped(slurm: SlurmCluster) -> None:
    tried = 0
    for case in CASES:
        text = case["script"]
        if not case.get("ok") or not isinstance(text, str) or "\r" in text or "date local" in case["name"]:
            continue
        tried += 1
        given = f"#!/bin/sh\n{text}\n" if not text.startswith("#!") else text
        options = ("--hold", "--ntasks-per-node=1", "--gres=gpu:1")
        row = row_of(slurm, slurm.sbatch(given, *options))
        assert row["admin_comment"] == case["stamp"], case["name"]
    assert tried > 12


# -- jobs that are not Synergy's -----------------------------------------------------------------------------------------


def test_jobs_without_a_directive_are_untouched(slurm: SlurmCluster) -> None:
    plain = [
        slurm.sbatch(script("", "echo\n#SYNERGY colour=red\n"), "--comment=mine"),  # after the first command
        slurm.sbatch(script("#synergy tp=0\n# SYNERGY tp=0\n"), "--comment=mine", "--no-requeue"),
    ]
    requeues = []
    for job_id in plain:
        starts_at_once(slurm, job_id)
        row = row_of(slurm, job_id)
        assert (row["admin_comment"], row["comment"]) == ("", "mine")
        assert row["eligible_time"] == row["submit_time"]
        requeues.append(row["requeue"])
    assert requeues == [True, False]
    assert slurm.run("sbatch", "--array=1-2", "--wrap", "true", "--output=/dev/null").returncode == 0
    assert slurm.run("sbatch", "--wrap", "true", "--output=/dev/null", ":", "-n1").returncode == 0
    assert slurm.run("srun", "-n1", "echo", "#SYNERGY colour=red").stdout == "#SYNERGY colour=red\n"


# -- the heartbeat -------------------------------------------------------------------------------------------------------


def test_a_fresh_heartbeat_puts_the_start_off_by_the_grace(slurm: SlurmCluster) -> None:
    assert abs(waits(slurm, slurm.sbatch(script(GOOD))) - GRACE_S) <= 8


def test_the_users_own_later_begin_time_is_kept(slurm: SlurmCluster) -> None:
    # sbatch counts from its own start, slurmctld from when it hears of the job
    assert 3600 - 60 <= waits(slurm, slurm.sbatch(script(GOOD), "--begin=now+3600")) <= 3600 + 2


@pytest.mark.parametrize("what", ["missing", "stale", "from the future", "damaged", "a folder"])
def test_without_a_fresh_heartbeat_the_job_is_a_plain_one(slurm: SlurmCluster, what: str) -> None:
    path = slurm.state_dir / heartbeat.NAME
    path.unlink()
    match what:
        case "stale":
            beat(slurm, age_s=400)
        case "from the future":
            beat(slurm, age_s=-400)
        case "damaged":
            path.write_bytes(b"\0\xff 12")
        case "a folder":
            path.mkdir()
    try:
        job_id = slurm.sbatch(script(GOOD))
        starts_at_once(slurm, job_id)
        row = row_of(slurm, job_id)
        assert (row["admin_comment"], row["eligible_time"]) == ("", row["submit_time"])
    finally:
        if path.is_dir():
            path.rmdir()


# -- a plugin that fails -------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster with a folder for another copy of the plugin; the right one is put back afterwards."""
    copy = slurm.folder / "copy"
    copy.mkdir(exist_ok=True)
    for name in ("synergy.lua", "synergy_grammar.lua"):
        (copy / name).write_text((PLUGINS / name).read_text())
    yield slurm
    install(slurm, PLUGINS)


def install(cluster: SlurmCluster, folder: Path) -> None:
    """Makes slurmctld load the module of `folder`: it does when job_submit.lua is newer than its last load."""
    path = cluster.folder / "job_submit.lua"
    path.write_text(hook(cluster.state_dir).replace(str(PLUGINS), str(folder)))
    newer = max(getattr(install, "last", 0), int(time.time())) + 2
    install.last = newer  # type: ignore[attr-defined]
    os.utime(path, (newer, newer))


LOAD = NOT_LOADED
BREAKS = {
    "a runtime error": ("synergy.lua", "local function resizable_form(job_desc)",
                        "local function resizable_form(job_desc) local x = nil; x.y = 1", "attempt to index"),
    "a grammar without messages": ("synergy_grammar.lua", "messages = messages", "messages = {}", "attempt to index"),
    "a syntax error": ("synergy.lua", "local M = {}", "local M = {", LOAD),
    "an error while loading": ("synergy.lua", "local M = {}", "error('no')", LOAD),
    "a missing module": ("synergy.lua", "", None, LOAD),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_plugin_lets_all_jobs_pass(broken: SlurmCluster, name: str) -> None:
    file, old, new, told = BREAKS[name]
    path = broken.folder / "copy" / file
    if new is None:
        path.unlink()
    else:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
    install(broken, broken.folder / "copy")
    # an unknown key: without messages even the refusal's own text fails
    lines = "#SYNERGY colour=red\n" if file == "synergy_grammar.lua" else GOOD
    path = broken.folder / "passes.sh"
    path.write_text(script(lines))
    done = broken.run("sbatch", "--parsable", str(path))
    said = [line.partition("sbatch: ")[2] or line for line in done.stderr.splitlines()]
    assert len(said) == 1, done.stderr
    if told == LOAD:
        assert said == [f"error: {LOAD}"] or said == [LOAD]
    else:
        assert "the Synergy plugin failed on this job" in said[0]
    starts_at_once(broken, int(done.stdout))
    assert row_of(broken, int(done.stdout))["admin_comment"] == ""
    plain = broken.sbatch(script(""))
    starts_at_once(broken, plain)
    assert row_of(broken, plain)["admin_comment"] == ""
    install(broken, PLUGINS)
    assert row_of(broken, broken.sbatch(script(GOOD)))["admin_comment"] == "synergy:1 min_gpus=1 max_gpus=4"
