"""The REST service under load: latency of status and explain, and what watchers cost an epoch.

    python -m tests.benchmarks.watchers [--jobs 10000] [--watchers 500] [--epochs 20]

`latency`: a database as a daemon with N jobs leaves it, a real synergyrestd on it, each request with a munge credential of its own,
one after the other over the Unix socket: the whole status, one job's status, explain. An epoch is written every two seconds
meanwhile, so that the service reads anew. `epochs`: a real daemon on a throwaway cluster with a few hundred jobs, an epoch every two
seconds; seconds of its epochs with no watcher and with all of them, each a client of its own that long-polls the whole status.
The service runs at the niceness of its unit. The watchers, who would be elsewhere, run here too, at the lowest priority.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select
from synergy_core.wire import munge
from synergy_core.wire.munge import request_digest

from synergyd.cli.shared.rest_client import RestClient
from synergyd.control.decision_log import JobStatus
from synergyd.store.records import EpochRecord, StoredEvent, StoredLifecycle, StoredReport
from synergyd.store.store import Store, open_store
from synergyd.store.tables import EpochRow
from tests.throwaway.slurm import MissingProgram, NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster, synergyd
from tests.unit.store.store_world import REPORT, decision

TARGET = "/v1/status?wait=25"
STORY = 12  # lines of a job's story
QUEUE = 300  # jobs of the real daemon


def _unit_niceness() -> int:
    unit = Path(__file__).parents[2] / "slurm_plugins/synergyrestd.service"
    return next(int(line.partition("=")[2]) for line in unit.read_text().splitlines() if line.startswith("Nice="))


@contextmanager
def service(cluster: SlurmCluster, *options: str) -> Iterator[None]:
    """A synergyrestd of the cluster."""
    with (cluster.folder / "log" / "synergyrestd.log").open("ab") as log:
        process = subprocess.Popen(
            ["nice", "-n", str(_unit_niceness()), "synergyrestd", *options], env=cluster.env, stdout=log, stderr=log
        )
    try:
        cluster.wait_for((cluster.state_dir / "rest.sock").is_socket, 60, "the service")
        yield
    finally:
        process.terminate()
        process.wait(20)


def fill(store: Store, jobs: int, at_s: float) -> EpochRecord:
    """A database with so many jobs. Returns the epoch, to be written again and again."""
    ids = range(1, jobs + 1)
    rows = tuple(
        JobStatus(job_id=i, name=f"train-{i}", user="root", state="PENDING", lifecycle="QUEUED", gpus=0, asked_gpus=8, account="a",
                  why="it waits: jobs that gain more hold the GPUs", action="wait")
        for i in ids
    )  # fmt: skip
    epoch = EpochRecord(at_s, 0.5, False, tuple(decision(i) for i in ids), present=rows)
    store.save_epoch(epoch)
    store.put_lifecycles(StoredLifecycle(i, at_s, "QUEUED", {}, at_s) for i in ids)
    store.put_reports(StoredReport(REPORT, at_s) for _ in range(1))
    store.append_events(
        [StoredEvent(i, at_s + n, "QUEUED", "Observed", f"line {n}") for i in ids for n in range(STORY)]
    )
    return epoch


def timed(ask: Callable[[], object], times: int) -> dict[str, float]:
    took = []
    for _ in range(times):
        began_s = time.perf_counter()
        ask()
        took.append(time.perf_counter() - began_s)
    took.sort()
    return {"p50_ms": round(1e3 * statistics.median(took), 1), "p99_ms": round(1e3 * took[int(0.99 * len(took))], 1)}


def latency(jobs: int) -> dict[str, Any]:
    """Of a status of all, of one, and of explain, while epochs are written."""
    with make_cluster((NodeGroup("a100", 1, 4),), plugin=False) as cluster:
        url = f"sqlite:///{cluster.folder / 'many.db'}"
        with open_store(url, create=True) as store:
            fill(store, jobs, 1000.0)
        writer = multiprocessing.get_context("spawn").Process(target=_write_epochs, args=(url, jobs), daemon=True)
        with service(cluster, "--database", url), munge_of(cluster):
            client = RestClient(cluster.state_dir / "rest.sock")
            client.ask("GET", "/v1/status")
            writer.start()
            try:
                return {
                    "jobs": jobs,
                    "status": timed(lambda: client.ask("GET", "/v1/status"), 100),
                    "status of one": timed(lambda: client.ask("GET", f"/v1/status?job={jobs // 2}"), 200),
                    "explain": timed(lambda: client.ask("GET", f"/v1/jobs/{jobs // 2}/explain"), 200),
                }
            finally:
                writer.terminate()


def _write_epochs(url: str, jobs: int) -> None:
    row = JobStatus(job_id=1, name="a", user="root", state="PENDING", lifecycle="QUEUED", gpus=0, asked_gpus=8)
    rows = tuple(replace(row, job_id=i) for i in range(1, jobs + 1))
    with open_store(url) as store:
        for n in range(10_000):
            store.save_epoch(EpochRecord(2000.0 + n, 0.5, False, (), present=rows))
            time.sleep(2.0)


@contextmanager
def munge_of(cluster: SlurmCluster) -> Iterator[None]:
    """This process's credentials come from the cluster's munged."""
    before = os.environ.get("MUNGE_SOCKET")
    os.environ["MUNGE_SOCKET"] = str(cluster.munge_socket)
    try:
        yield
    finally:
        if before is None:
            del os.environ["MUNGE_SOCKET"]
        else:
            os.environ["MUNGE_SOCKET"] = before


def epochs(watchers: int, count: int) -> dict[str, Any]:
    """Seconds of a real daemon's epochs without watchers and with them."""
    with make_cluster((NodeGroup("a100", 4, 8),), epoch_s=2) as cluster, synergyd(cluster) as daemon, munge_of(cluster):
        script = cluster.folder / "job.sh"
        script.write_text(
            "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:4 -o /dev/null\n"
            "#SYNERGY min_gpus=4 max_gpus=16 global_batch=64 micro_batch=1\nsleep 86400\n"
        )
        names = f"{script}\n" * QUEUE
        cluster.run("xargs", "-P", "4", "-n", "1", "sbatch", "-Q", input=names, timeout_s=600)
        url = f"sqlite:///{cluster.state_dir / 'synergy.db'}"
        cluster.wait_for((cluster.state_dir / "heartbeat").is_file, 60, "the daemon's first epoch")
        with open_store(url) as store, service(cluster):
            cluster.wait_for(lambda: _present(store) >= QUEUE, 300, "all jobs\n" + daemon.tail())
            _wait_epochs(store, 5)
            without = _wait_epochs(store, count)
            news = multiprocessing.get_context("spawn").Value("i", 0)
            clients = multiprocessing.get_context("spawn").Process(
                target=_watch_all,
                args=(str(cluster.state_dir / "rest.sock"), str(cluster.munge_socket), watchers, news),
            )
            clients.start()
            try:
                _wait_epochs(store, 5)
                before, with_all = news.value, _wait_epochs(store, count)
                heard = news.value - before
            finally:
                clients.terminate()
        return {
            "jobs": QUEUE,
            "watchers": watchers,
            "median_s": [round(statistics.median(x), 3) for x in (without, with_all)],
            "worst_s": [round(max(x), 3) for x in (without, with_all)],
            "answers an epoch": round(heard / count, 1),
        }


def _present(store: Store) -> int:
    latest = store.latest_epoch()
    return len(latest.present) if latest else 0


def _wait_epochs(store: Store, count: int) -> list[float]:
    """Seconds of the next `count` epochs."""

    def all_of() -> list[float]:
        with store.engine.connect() as connection:
            return list(connection.execute(select(EpochRow.duration_s).order_by(EpochRow.id)).scalars())

    begin = len(all_of())
    while len(found := all_of()) < begin + count:
        time.sleep(0.5)
    return found[begin : begin + count]


def _watch_all(socket_path: str, munge_socket: str, watchers: int, news: Any) -> None:
    os.nice(19)

    async def watch() -> None:
        etag = ""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(socket_path)
                credential = munge.encode(request_digest("GET", TARGET, b""), munge_socket)
                head = f"GET {TARGET} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: gzip\r\n"
                head += f"Authorization: Munge {credential}\r\n" + (f"If-None-Match: {etag}\r\n" if etag else "")
                writer.write(head.encode() + b"\r\n")
                answer = await reader.read(-1)
                writer.close()
                fields = answer.partition(b"\r\n\r\n")[0].decode("latin-1").lower()
                if fields.startswith("http/1.1 200"):
                    with news.get_lock():
                        news.value += 1
                    etag = fields.partition("etag: ")[2].partition("\r\n")[0]
                elif not fields.startswith("http/1.1 304"):
                    await asyncio.sleep(1.0)
            except OSError:
                await asyncio.sleep(1.0)

    async def all_of_them() -> None:
        await asyncio.gather(*(watch() for _ in range(watchers)))

    asyncio.run(all_of_them())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--watchers", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    try:
        print(json.dumps(latency(arguments.jobs)), flush=True)
        print(json.dumps(epochs(arguments.watchers, arguments.epochs)))
    except MissingProgram as missing:
        print(missing, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
