"""How long jobs are without a daemon: two synergyd on one real cluster, and what may befall the one that leads.

    python -m tests.benchmarks.takeover [--times 3]

Prints for each database and each fault the seconds from the fault to the first epoch that the other daemon has completed and
stored as the leader. The epoch is 60 s, so none comes by itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from synergyd.store import connect, schema
from synergyd.store.store import open_store
from tests.throwaway.postgres import Postgres
from tests.throwaway.proxy import Proxy
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import make_cluster

ELSEWHERE, CUT = "kill -9, another host", "network cut"
FAULTS = ("kill -9", ELSEWHERE, "SIGSTOP", "SIGTERM", CUT)
SIGNALS = {"kill -9": signal.SIGKILL, ELSEWHERE: signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGTERM": signal.SIGTERM}
# in a pid namespace of its own nobody can see whether it is gone
AWAY = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """`through`: the leader's URL of the database, by a way that `cut` cuts and `mend` mends."""

    cluster: SlurmCluster
    url: str
    through: str
    cut: Callable[[], None]
    mend: Callable[[], None]

    def run(self, fault: str) -> float:
        """Seconds. Raises RuntimeError if nobody takes over."""
        with ExitStack() as stack:
            began = time.time()
            before = AWAY if fault == ELSEWHERE else ()
            leader = stack.enter_context(self._daemon(0, self.through if fault == CUT else self.url, *before))
            self._until(lambda: self._last_epoch()[0] > began, "the first epoch")
            stack.enter_context(self._daemon(1, self.url))
            self._until(self._acknowledged, "the stand-by to be acknowledged")
            stack.callback(self.mend)
            at = time.time()
            if fault == CUT:
                self.cut()
            else:
                leader.send_signal(SIGNALS[fault])
            self._until(lambda: self._last_epoch()[0] > at, "the other's epoch")
            began_s, took_s = self._last_epoch()
            return began_s + took_s - at

    @contextmanager
    def _daemon(self, number: int, url: str, *before: str) -> Iterator[subprocess.Popen[bytes]]:
        conf = self.cluster.folder / f"daemon{number}.conf"
        port = self.cluster.port + 90
        conf.write_text(self.cluster.conf.read_text().replace(f"ReportPort={port}", f"ReportPort={port + number}"))
        with (self.cluster.folder / "log" / f"synergyd{number}.log").open("ab") as log:
            process = subprocess.Popen(
                [*before, "synergyd", "--conf", str(conf), "--database", url],
                env=self.cluster.env,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def _last_epoch(self) -> tuple[float, float]:
        """When it began, and how long it took, seconds."""
        with open_store(self.url) as store:
            latest = store.latest_epoch()
        return (latest.started_s, latest.duration_s) if latest else (0.0, 0.0)

    def _acknowledged(self) -> bool:
        engine = connect.make_engine(connect.parse_url(self.url), pooled=False)
        with engine.connect() as connection:
            return bool(connection.exec_driver_sql("SELECT 1 FROM standbys WHERE acknowledged > 0").all())

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + 60
        while not condition():
            if time.monotonic() > end_s:
                raise RuntimeError(f"{what} did not come within 60 s; logs: {self.cluster.folder}/log")
            time.sleep(0.05)


def main(argv: list[str]) -> int:
    """0 when every take-over was below 10 s."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.takeover")
    parser.add_argument("--times", type=int, default=3)
    times = parser.parse_args(argv).times
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    longest_s = 0.0
    with (
        make_cluster([NodeGroup("cpu", 1, 4)], epoch_s=60.0) as cluster,
        Postgres() as server,
        Proxy(server.port) as proxy,
    ):
        sqlite, postgresql = f"sqlite:///{cluster.folder}/takeover.db", server.database()
        through = postgresql.replace(f":{server.port}/", f":{proxy.port}/")
        for name, url, other in (("SQLite", sqlite, sqlite), ("PostgreSQL", postgresql, through)):
            schema.upgrade(url)
            bench = Bench(cluster=cluster, url=url, through=other, cut=proxy.silence, mend=proxy.mend)
            for fault in FAULTS if other != url else FAULTS[:-1]:
                took_s = [bench.run(fault) for _ in range(times)]
                longest_s = max(longest_s, *took_s, 0.0)
                print(
                    f"{name:<11} {fault:<22} median {statistics.median(took_s):4.1f} s, longest {max(took_s):4.1f} s",
                    flush=True,
                )
    return int(longest_s >= 10.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
