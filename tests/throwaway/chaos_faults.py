"""The faults of a chaos run, by kind. Each takes something away when it is entered, and ends when it is left.

What has ended is started again by `Site.recover`, as systemd would. Not here: slurmd away for longer than SlurmdTimeout while
its steps run on (Slurm itself then runs the job twice), the machine's own clock, and links between slurmctld and slurmd.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.throwaway import chaos_jobs as users
from tests.throwaway.chaos_jobs import Jobs
from tests.throwaway.chaos_site import Site, send_all
from tests.throwaway.stall import KINDS as CALLS

SAVE_S = 6.0  # slurmctld writes its state 5 s after a change at the latest: what it has not, no restart brings back


@dataclass
class Struck:
    """What a fault hit. `leader`: the daemon that led was taken away."""

    what: str = ""
    leader: bool = False
    at_s: float = 0.0  # monotonic


Fault = Callable[[Site, Jobs, Random, Struck], AbstractContextManager[None]]
KINDS: dict[str, Fault] = {}


def _kind(name: str) -> Callable[[Callable[[Site, Jobs, Random, Struck], Iterator[None]]], None]:
    def keep(work: Callable[[Site, Jobs, Random, Struck], Iterator[None]]) -> None:
        KINDS[name] = contextmanager(work)

    return keep


def kinds(site: Site) -> list[str]:
    """Those that can happen on this site."""
    other = "sqlite-" if site.postgres is not None else "postgresql-"
    return [k for k in KINDS if not k.startswith(other)]


# -- the daemons -------------------------------------------------------------------------------------------------------


@_kind("synergyd-killed")
def _daemon_killed(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    daemon = site.daemon(rng.choice(("leader", "leader", "standby")))
    struck.what, struck.leader = daemon.name, daemon is site.leader()
    daemon.kill()
    yield
    daemon.start()


@_kind("synergyd-restarted")
def _daemon_restarted(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    daemon = site.daemon(rng.choice(("leader", "standby")))
    struck.what, struck.leader = daemon.name, daemon is site.leader()
    daemon.kill(signal.SIGTERM)
    daemon.start()
    yield


@_kind("synergyd-stopped")
def _daemon_stopped(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    daemon = site.daemon(rng.choice(("leader", "leader", "standby")))
    struck.what, struck.leader = daemon.name, daemon is site.leader()
    daemon.send(signal.SIGSTOP)
    yield
    daemon.send(signal.SIGCONT)


@_kind("clock")
def _clock(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    daemon, offset_s = site.daemon("leader"), rng.choice((-3600.0, -60.0, 60.0, 3600.0))
    struck.what = f"{daemon.name} {offset_s:+.0f} s"
    daemon.set_clock(offset_s)
    yield
    daemon.set_clock(0.0)


# -- Slurm -------------------------------------------------------------------------------------------------------------


def _settled_sbatch(jobs: Jobs) -> None:
    time.sleep(max(0.0, jobs.submitted_s + SAVE_S - time.monotonic()))


@_kind("slurmctld-killed")
def _controller_killed(site: Site, jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    _settled_sbatch(jobs)
    site.cluster.kill("slurmctld")
    for job in jobs.all:
        job.expected.clear()  # slurmctld itself may have lost it
    yield


@_kind("slurmctld-restarted")
def _controller_restarted(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    site.cluster.kill("slurmctld", signal.SIGTERM)
    yield


@_kind("slurmctld-stopped")
def _controller_stopped(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    yield from _stopped(site, "slurmctld")


@_kind("slurmd-killed")
def _slurmd_killed(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    struck.what = _node(site, rng)
    if struck.what:
        site.cluster.kill(struck.what)
    yield


@_kind("slurmd-restarted")
def _slurmd_restarted(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    struck.what = _node(site, rng)
    if struck.what:
        site.cluster.kill(struck.what, signal.SIGTERM)
        site.cluster.start_node(struck.what)
    yield


@_kind("slurmd-stopped")
def _slurmd_stopped(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    struck.what = _node(site, rng)
    yield from _stopped(site, struck.what)


@_kind("node-without-power")
def _power(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    struck.what = _node(site, rng)
    if struck.what:
        site.power_off(struck.what)
        site.did("scontrol", "update", f"NodeName={struck.what}", "State=DOWN", "Reason=power", timeout_s=5)
    yield


@_kind("munged-killed")
def _munged_killed(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    if not site.cluster.ended("munged"):
        site.cluster.kill("munged")
        site.cluster.munge_socket.unlink(missing_ok=True)
    yield


@_kind("munged-restarted")
def _munged_restarted(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    if not site.cluster.ended("munged"):
        site.cluster.kill("munged", signal.SIGTERM)
    yield


@_kind("munged-stopped")
def _munged_stopped(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    yield from _stopped(site, "munged")


def _stopped(site: Site, name: str) -> Iterator[None]:
    here = bool(name) and not site.cluster.ended(name)
    if here:
        site.cluster.send(name, signal.SIGSTOP)
    yield
    if here and not site.cluster.ended(name):
        site.cluster.send(name, signal.SIGCONT)


def _node(site: Site, rng: Random) -> str:
    """A node whose slurmd runs; "" if there is none."""
    found = [n for n in site.cluster.node_names if not site.cluster.ended(n)]
    return found[rng.randrange(1000) % len(found)] if found else ""


# -- database, disk, networks ------------------------------------------------------------------------------------------


@_kind("postgresql-killed")
def _postgres_killed(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    assert site.postgres is not None
    site.postgres.stop()
    yield


@_kind("postgresql-restarted")
def _postgres_restarted(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    assert site.postgres is not None
    site.postgres.stop(clean=True)
    site.postgres.start()
    yield


@_kind("postgresql-stopped")
def _postgres_stopped(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    pid = site.postgres.pid if site.postgres is not None else None
    if pid:
        send_all(pid, signal.SIGSTOP)
    yield
    if pid:
        send_all(pid, signal.SIGCONT)


@_kind("postgresql-cut-off")
def _database_cut_off(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    """One daemon does not reach the database; the other one does."""
    daemon, mode = site.daemon(rng.choice(("leader", "leader", "standby"))), rng.choice(("cut", "silent"))
    struck.what, struck.leader = f"{daemon.name} {mode}", daemon is site.leader()
    assert daemon.database is not None
    daemon.database.mode = mode
    yield
    daemon.database.mode = "open"


@_kind("sqlite-locked")
def _sqlite_locked(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(_file(site), isolation_level=None, timeout=10)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:  # the disk is full
            yield
            return
        yield
        connection.execute("ROLLBACK")


@_kind("sqlite-moved-away")
def _sqlite_moved(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    file = _file(site)
    away = file.with_suffix(".away")
    file.replace(away)
    yield
    away.replace(file)


@_kind("disk-full")
def _disk_full(site: Site, _jobs: Jobs, _rng: Random, _struck: Struck) -> Iterator[None]:
    filler = site.cluster.state_dir / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, b"x" * size)
    finally:
        os.close(descriptor)
    yield
    filler.unlink()


@_kind("slurmctld-cut-off")
def _slurm_cut_off(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    """One daemon does not reach slurmctld; the other one does."""
    daemon, mode = site.daemon(rng.choice(("leader", "leader", "standby"))), rng.choice(("cut", "silent"))
    struck.what = f"{daemon.name} {mode}"
    daemon.slurm.mode = mode
    yield
    daemon.slurm.mode = "open"


def _file(site: Site) -> Path:
    return Path(site.url.removeprefix("sqlite:///"))


# -- Slurm's commands --------------------------------------------------------------------------------------------------


@_kind("command-fails")
def _command_fails(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    call = rng.choice(CALLS)
    message = rng.choice(("slurm_update error: Unspecified error", "error: Socket timed out on send/recv operation"))
    struck.what = f"{call}: {message.rpartition(': ')[2]}"
    site.stalls.fail(call, message)
    yield
    site.stalls.clear()


@_kind("command-hangs")
def _command_hangs(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    struck.what = rng.choice(CALLS)
    site.stalls.set(struck.what, "before")
    yield
    site.stalls.clear()


@_kind("command-answers-late")
def _command_late(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    struck.what = rng.choice(CALLS)
    site.stalls.set(struck.what, "after")
    yield
    site.stalls.clear()


# -- users -------------------------------------------------------------------------------------------------------------


@_kind("user-cancels")
def _cancels(_site: Site, jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    if job := jobs.pick(rng):
        struck.what = f"job {job.job_id}"
        users.cancel(jobs, job)
    yield


@_kind("user-cancels-joined-nodes")
def _cancels_joined(site: Site, _jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    """The allocation through which nodes have joined a running job, while that job goes on."""
    shown = site.run("squeue", "-h", "-o", "%i %j")
    rows = shown.stdout.splitlines() if shown else []
    if beside := [row.split() for row in rows if "synergy-nodes-of-" in row]:
        job_id, name = rng.choice(beside)
        struck.what = f"job {job_id}, {name}"
        site.run("scancel", job_id)
    yield


@_kind("user-requeues")
def _requeues(_site: Site, jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    if job := jobs.pick(rng):
        struck.what = f"job {job.job_id}"
        users.requeue(jobs, job)
    yield


@_kind("user-holds")
def _holds(_site: Site, jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    job = jobs.pick(rng)
    if job is not None:
        struck.what = f"job {job.job_id}"
        users.hold(jobs, job)
    yield
    if job is not None:
        jobs.to_release.append(job)  # again and again, until it is seen to be released: Slurm may be away


@_kind("user-updates")
def _updates(_site: Site, jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    if job := jobs.pick(rng):
        struck.what = f"job {job.job_id}"
        users.update(jobs, job, rng)
    yield


@_kind("user-releases")
def _releases(_site: Site, jobs: Jobs, rng: Random, struck: Struck) -> Iterator[None]:
    if job := jobs.pick(rng):
        struck.what = f"job {job.job_id}"
        users.release(jobs, job)
    yield
