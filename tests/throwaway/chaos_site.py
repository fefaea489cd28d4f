"""Where chaos happens: a real Slurm cluster, two daemons, a database, StateDir on a small disk of its own, breakable networks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Literal

from tests.throwaway import chaos_daemon
from tests.throwaway.chaos_checks import Epoch
from tests.throwaway.postgres import Postgres
from tests.throwaway.power import power_off
from tests.throwaway.proxy import Proxy
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.stall import Stalls
from tests.throwaway.synergy import hook

Database = Literal["postgresql", "sqlite"]
NODES, GPUS = 3, 4
PARK_S = 60
DISK_MIB = 16
RECOVER_S = 90.0  # for Slurm's programs and the database to come back; generous on a busy machine
_BAD = ("down", "drain", "fail", "unknown", "inval")


class ChaosDaemon:
    """One of the two daemons: its own slurm.conf (own ports), clock, log and way to the database."""

    def __init__(self, name: str, site: Site) -> None:
        self.name, self._site = name, site
        folder = site.cluster.folder
        self.log = folder / "log" / f"synergyd-{name}.log"
        self.conf = folder / f"slurm-{name}.conf"
        self._epochs, self.clock = folder / f"epochs-{name}", folder / f"clock-{name}"
        self.slurm = Proxy(site.cluster.port)
        self.database = Proxy(site.postgres.port) if site.postgres else None
        self.process: subprocess.Popen[bytes] | None = None
        self.wanted = False  # it should run

    def start(self) -> None:
        site = self._site
        text = site.cluster.conf.read_text()
        text = text.replace(f"SlurmctldPort={site.cluster.port}\n", f"SlurmctldPort={self.slurm.port}\n")
        text = text.replace(f"ReportPort={site.cluster.port + 90}", f"ReportPort={self._report_port()}")
        self.conf.write_text(text)
        with self._epochs.open("a") as stream:
            stream.write(f"{time.monotonic():.3f} 0\n")
        environment = {
            **site.cluster.env,
            "SLURM_CONF": str(self.conf),
            "PATH": f"{site.stalls.bin}:{site.cluster.env['PATH']}",
        }
        url = site.url
        if self.database is not None and site.postgres is not None:
            url = url.replace(f":{site.postgres.port}/", f":{self.database.port}/")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                # until it has its handler, SIGUSR1 would end it
                ["env", "--ignore-signal=USR1", sys.executable, chaos_daemon.__file__, str(self._epochs), str(self.clock), url],
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.wanted = True

    def kill(self, sig: int = signal.SIGKILL) -> None:
        """SIGKILL, or SIGTERM and its end."""
        self.wanted = False
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(sig)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def send(self, sig: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(sig)

    def set_clock(self, offset_s: float) -> None:
        self.clock.write_text(str(offset_s))
        self.send(signal.SIGUSR1)

    def epochs(self) -> list[Epoch]:
        rows = [x.split() for x in self._epochs.read_text().splitlines()] if self._epochs.exists() else []
        return [Epoch(self.name, float(r[0]), r[1] == "1") for r in rows if len(r) == 2]

    def tail(self, lines: int) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def close(self) -> None:
        self.send(signal.SIGCONT)
        self.kill(signal.SIGTERM)
        self.slurm.close()
        if self.database is not None:
            self.database.close()

    def _report_port(self) -> int:
        return self._site.cluster.port + (90 if self.name == "a" else 91)


class Site:
    """Use it as a context manager. Faults take parts away (tests/throwaway/chaos_faults.py); `recover` brings all back."""

    def __init__(self, database: Database) -> None:
        self.cluster = SlurmCluster([NodeGroup("cpu", NODES, GPUS)])
        self.database = database
        self.postgres: Postgres | None = None
        self.url = ""
        self.daemons: list[ChaosDaemon] = []
        self.without_power: set[str] = set()
        self.mishaps: list[str] = []  # what ended by itself and should not
        self._stack = ExitStack()

    def __enter__(self) -> Site:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        cluster = self.cluster
        if self.database == "postgresql":
            self.postgres = self._stack.enter_context(Postgres())
            self.url = self.postgres.database()
        else:
            self.url = f"sqlite:///{cluster.state_dir}/synergy.db"
        cluster.job_submit = hook(cluster.state_dir)
        cluster.slurm_conf = (
            f"#SYNERGY StateDir={cluster.state_dir} Database={self.url} Epoch=1 RestartCost=0 CheckpointTimeout=15 Park={PARK_S}",
            # little to compute with and much to send through: 8 GPUs on two nodes are worth more than 4 on one
            "#SYNERGY GpuType=cpu peak_tflops=0.002 memory_gib=4 bandwidth_gbs=10 intra_gbs=100 inter_gbs=100",
        )
        self._stack.enter_context(cluster)
        size = f"size={DISK_MIB}m,mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(cluster.state_dir)], check=True)
        self._stack.callback(subprocess.run, ["umount", "-l", str(cluster.state_dir)], check=False)
        self.stalls = Stalls(cluster.folder / "stalls", cluster.env["PATH"])
        cluster.run("synergyctl", "db", "upgrade")
        for name in ("a", "b"):
            daemon = ChaosDaemon(name, self)
            self._stack.callback(daemon.close)
            self.daemons.append(daemon)
            daemon.start()
        cluster.wait_for(lambda: self.leader() is not None, 120, "the first epoch")

    # -- looking ---------------------------------------------------------------------------------------------------

    def epochs(self) -> list[Epoch]:
        return [e for d in self.daemons for e in d.epochs()]

    def leader(self) -> ChaosDaemon | None:
        """Who completed the last epoch as the leader."""
        acting = [e for e in self.epochs() if e.acts]
        if not acting:
            return None
        name = max(acting, key=lambda e: e.time_s).daemon
        return next(d for d in self.daemons if d.name == name)

    def daemon(self, role: str) -> ChaosDaemon:
        """The `leader` or the `standby`."""
        leader = self.leader() or self.daemons[0]
        return leader if role == "leader" else next(d for d in self.daemons if d is not leader)

    def run(self, *argv: str, timeout_s: float = 20.0) -> subprocess.CompletedProcess[str] | None:
        """A command on the cluster; None where it does not answer in time."""
        try:
            return self.cluster.run(*argv, check=False, timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def did(self, *argv: str, timeout_s: float = 20.0) -> bool:
        done = self.run(*argv, timeout_s=timeout_s)
        return done is not None and done.returncode == 0

    # -- back to order ---------------------------------------------------------------------------------------------

    def power_off(self, node: str) -> None:
        power_off(self.cluster, node)
        self.without_power.add(node)

    def recover(self) -> None:
        """Starts again whatever has ended, as systemd and an admin would, until all of it answers. Raises RuntimeError."""
        self.stalls.clear()
        end = time.monotonic() + RECOVER_S
        while problem := self._missing():
            if time.monotonic() > end:
                raise RuntimeError(f"{problem} does not come back\n{self.cluster.log_tail('slurmctld')}")
            time.sleep(0.2)

    def watch(self) -> None:
        """Notes daemons that ended by themselves, and starts them again."""
        for daemon in self.daemons:
            process = daemon.process
            if daemon.wanted and process is not None and process.poll() is not None:
                # systemd does not start it again after code 2
                text = f"synergyd {daemon.name} ended by itself with code {process.returncode}"
                if process.returncode == 2 or process.returncode < 0:
                    self.mishaps.append(text)
                daemon.start()

    def _missing(self) -> str:
        """What is away still, after having done what can be done at once; "" if all is there."""
        cluster = self.cluster
        if self.postgres is not None and not self.postgres.running:
            self.postgres.start()
        self.watch()
        for name in ("munged", "slurmctld", *(n for n in cluster.node_names if n not in self.without_power)):
            if cluster.ended(name):
                if name in cluster._processes:
                    cluster.kill(name)
                if name == "munged":
                    cluster.start_munged()
                elif name == "slurmctld":
                    cluster.start_controller(wait=False)
                else:
                    cluster.start_node(name)
                return name
        if not self.did("scontrol", "ping", timeout_s=5):
            return "slurmctld"
        for node in sorted(self.without_power):
            # said before it is back: a node that lost its power has lost its jobs
            if not self.did("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power"):
                return node
            self.without_power.discard(node)
            cluster.start_node(node)
        done = self.run("sinfo", "-h", "-N", "-o", "%N %T", timeout_s=10)
        rows = [r.split() for r in done.stdout.splitlines()] if done and done.returncode == 0 else []
        bad = [n for n, state in rows if state.endswith("*") or any(x in state for x in _BAD)]
        for node in bad:
            self.did("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return ", ".join(bad) if rows else "sinfo"


def children(pid: int) -> list[int]:
    """Process ids of the direct children."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(x) for x in path.read_text().split()] if path.exists() else []


def send_all(pid: int, sig: int) -> None:
    """A signal to a process and its direct children."""
    for each in (pid, *children(pid)):
        try:
            os.kill(each, sig)
        except ProcessLookupError:
            continue
