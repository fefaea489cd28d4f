"""A real Slurm cluster on this machine, in its own folder and on its own ports: munged, slurmctld and N slurmds.

Started in seconds, stopped without traces, several at once. It reads no file of an installed Slurm and writes none: every
program is given its own slurm.conf, munge socket and state folder.

    python -m tests.throwaway.slurm --nodes a100:2x4,v100:1x2      # runs until Ctrl-C, prints the SLURM_CONF to export
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.paths import python_path
from tests.throwaway import controllers
from tests.throwaway.accounting import DBD_PORT, SQL_PORT, Accounting
from tests.throwaway.accounting import missing_programs as missing_for_accounting
from tests.throwaway.slurm_output import release

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "squeue", "sinfo", "sbatch", "srun", "scancel")
PORT_FIRST, PORT_LAST, PORT_BLOCK = 20000, 31900, 100


class MissingProgram(RuntimeError):
    """Slurm or munge is not installed here; the text says what to install."""


@dataclass(frozen=True)
class NodeGroup:
    """`nodes` nodes with `gpus` GPUs of type `gpu_type` each, and `features` (names with commas between) beside that type's name.
    Those of a `cloud` sleep until Slurm powers them up (power.py)."""

    gpu_type: str
    nodes: int
    gpus: int
    features: str = ""
    cloud: bool = False

    @classmethod
    def parse(cls, text: str) -> NodeGroup:
        """`a100:2x4` -> 2 nodes with 4 a100 each. Raises ValueError."""
        gpu_type, _, size = text.partition(":")
        nodes, _, gpus = size.partition("x")
        if not gpu_type or not nodes.isdigit() or not gpus.isdigit():
            raise ValueError(f"--nodes {text!r}: expected TYPE:NODESxGPUS such as a100:2x4")
        return cls(gpu_type, int(nodes), int(gpus))


def missing_programs() -> list[str]:
    """Names of Slurm and munge programs that this machine lacks."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [p for p in PROGRAMS if shutil.which(p, path=path) is None]


@dataclass
class SlurmCluster:
    """A throwaway cluster; use it as a context manager.

    `slurm_conf` holds further lines of slurm.conf (`#SYNERGY` ones too), `job_submit` the path of a job_submit.lua,
    or the text of one. Nodes are named `n1`, `n2`, ... in the order of `groups`.
    """

    groups: Sequence[NodeGroup] = (NodeGroup("a100", 2, 4),)
    slurm_conf: Sequence[str] = ()
    job_submit: str = ""
    cpus_per_node: int = 64
    memory_mib: int = 64000  # of each node; Slurm counts its use only with `counts_memory`
    counts_memory: bool = False
    park_cred_expire_s: int = 120
    slurmd_timeout_s: int = 20
    controllers: int = 1  # slurmctlds; a second one takes over
    accounting: Accounting | None = None  # a slurmdbd of its own
    name: str = "throwaway"  # ClusterName
    slurm_user: str = field(default_factory=lambda: _user_name())  # another than root is for root alone
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="synergy-slurm-")))
    keep: bool = False
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _port_lock: int = -1
    port: int = 0

    # -- life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> SlurmCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, timeout_s: float = 120.0) -> None:
        """Starts everything, waits until every node is idle. Raises MissingProgram, RuntimeError with the log's tail."""
        missing = missing_programs()
        packages = "slurm-wlm munge"
        if self.accounting is not None:
            missing, packages = missing + missing_for_accounting(), f"{packages} slurmdbd mariadb-server"
        if missing:
            raise MissingProgram(f"missing: {', '.join(missing)}; on Debian: apt-get install {packages}")
        self.folder.chmod(0o755)
        for name in ("state", "log", "spool", "synergy", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "tmp").chmod(0o1777)
        if self.slurm_user != _user_name():
            for name in ("state", "synergy"):
                shutil.chown(self.folder / name, self.slurm_user)
        self.port = self._take_ports()
        self._write_files()
        self.start_munged()
        if self.accounting is not None:
            self.accounting.start(self)
        for number in range(1, self.controllers + 1):
            self.start_controller(number)
        if self.accounting is not None:
            self.accounting.fill(self)
        static = [name for name, group in self._group_of.items() if not group.cloud]
        for name in static:
            self.start_node(name)
        self.wait_for(lambda: set(self._idle()) >= set(static), timeout_s, "nodes to be idle")

    def stop(self) -> None:
        """Cancels all jobs, stops every process this object started, and removes the folder."""
        if not all(self.ended(controllers.key(number)) for number in range(1, self.controllers + 1)):
            with suppress(subprocess.TimeoutExpired):  # of a long queue; `_kill_steps` ends what runs
                self.run("scancel", "--full", "-s", "KILL", *self._job_ids(), check=False, timeout_s=10)
            time.sleep(0.2)
        last = ("slurmctld", "slurmdbd", "mariadbd", "munged")
        for name in sorted(self._processes, key=lambda n: last.index(n) if n in last else -1):
            self._end(name)
        self._kill_steps()
        if self._port_lock >= 0:
            os.close(self._port_lock)
            self._port_lock = -1
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start_munged(self) -> None:
        """munged with a key and socket of its own."""
        munge = self.folder / "munge"
        munge.mkdir(exist_ok=True, mode=0o755)
        key = munge / "key"
        if not key.exists():
            key.write_bytes(os.urandom(128))
            key.chmod(0o600)
        args = [
            f"--socket={self.munge_socket}",
            f"--key-file={key}",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log",
        ]
        self.spawn("munged", [*args, f"--seed-file={munge}/seed", "--force", "--foreground", "--num-threads=4"])
        self.wait_for(self.munge_socket.exists, 60, "munged's socket")

    def start_controller(self, number: int = 1, *, wait: bool = True) -> None:
        """slurmctld (again, on the same state, after `kill("slurmctld")`); a second one is `slurmctld2`."""
        words, up = [self._program("slurmctld"), "-D", "-f", str(self.conf)], "is UP"
        if self.controllers > 1:
            words, up = controllers.command(self.folder, number, words), f"at ctl{number} is UP"
        self.spawn(words[0], words[1:], key=controllers.key(number))
        if wait:
            self.wait_for(lambda: up in self.run("scontrol", "ping", check=False).stdout, 60, "slurmctld to answer")

    def start_node(self, name: str) -> None:
        """The slurmd of node `name`."""
        self.spawn("slurmd", ["-D", "-f", str(self.conf), "-N", name], key=name)

    def kill(self, name: str, sig: int = signal.SIGKILL) -> None:
        """Kills `munged`, `slurmctld` or a node's slurmd (by node name) and waits for its end."""
        process = self._processes.pop(name)
        process.send_signal(sig)
        process.wait(60)

    def send(self, name: str, sig: int) -> None:
        """Sends a signal such as SIGSTOP to one of the processes that `kill` knows."""
        self._processes[name].send_signal(sig)

    def ended(self, name: str) -> bool:
        """It was killed, or has ended by itself."""
        return name not in self._processes or self._processes[name].poll() is not None

    # -- use -------------------------------------------------------------------------------------------------------

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge" / "socket"

    @property
    def state_dir(self) -> Path:
        """A folder for synergyd's StateDir."""
        return self.folder / "synergy"

    @property
    def node_names(self) -> list[str]:
        return [f"n{i + 1}" for i in range(sum(g.nodes for g in self.groups))]

    @property
    def _group_of(self) -> dict[str, NodeGroup]:
        return dict(zip(self.node_names, (g for g in self.groups for _ in range(g.nodes)), strict=True))

    @property
    def env(self) -> dict[str, str]:
        """The environment for commands on this cluster: this Slurm's and this checkout, and none of an outer job's variables."""
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN", "SALLOC"))}
        own = {"SLURM_CONF": str(self.conf), "MUNGE_SOCKET": str(self.munge_socket), "PATH": self._path()}
        # what killed jobs leave in their temporary folder goes with the cluster
        return {**outer, **own, "TMPDIR": str(self.folder / "tmp"), "PYTHONPATH": python_path()}

    def run(
        self, *argv: str, check: bool = True, timeout_s: float = 60.0, **kwargs: object
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command with `env`; raises CalledProcessError with stderr in its text."""
        options = {"env": self.env, "capture_output": True, "text": True, "timeout": timeout_s, **kwargs}
        done = subprocess.run(argv, **options)  # type: ignore[call-overload]
        if check and done.returncode:
            raise RuntimeError(
                f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done  # type: ignore[no-any-return]

    def sbatch(self, script: Path | str, *options: str, **kwargs: object) -> int:
        """Submits a script (a path, or its text) and returns the job id. Raises RuntimeError with sbatch's message."""
        if isinstance(script, str):
            path = self.folder / f"script-{time.monotonic_ns()}.sh"
            path.write_text(script)
            path.chmod(0o755)
            script = path
        done = self.run("sbatch", "--parsable", *options, str(script), **kwargs)  # type: ignore[arg-type]
        return int(done.stdout.strip().split(";")[0])

    def sacctmgr(self, command: str) -> str:
        """Runs one sacctmgr command of plain words without asking back. Raises RuntimeError with what it said."""
        return self.run("sacctmgr", "-i", *command.split()).stdout

    def state(self, job_id: int) -> str:
        """The job's state as squeue prints it ('' when it is gone, '?' where Slurm does not answer)."""
        done = self.run("squeue", "-h", "-t", "all", "-j", str(job_id), "-o", "%T", check=False)
        return done.stdout.strip() if done.returncode == 0 or "Invalid job id" in done.stderr else "?"

    def wait_for(self, condition: Callable[[], object], timeout_s: float, what: str) -> None:
        """Waits until `condition()` is true; raises RuntimeError naming `what` and the end of the controller's log."""
        end = time.monotonic() + timeout_s
        while True:
            asked_s = time.monotonic()
            if condition():
                return
            took_s = time.monotonic() - asked_s
            dead = [n for n, p in self._processes.items() if p.poll() is not None]
            if dead or time.monotonic() > end:
                problem = f"{', '.join(dead)} ended" if dead else "time is up"
                raise RuntimeError(f"waiting for {what}: {problem}\n{self.log_tail(dead[0] if dead else 'slurmctld')}")
            time.sleep(max(0.2, 3 * took_s))  # asking takes a quarter of a processor at most: the cluster needs them

    def log_tail(self, name: str, lines: int = 15) -> str:
        path = self.folder / "log" / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # -- inside ----------------------------------------------------------------------------------------------------

    def _program(self, name: str) -> str:
        return shutil.which(name, path=self._path()) or name

    def _path(self) -> str:
        return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

    def _job_ids(self) -> list[str]:
        return self.run("squeue", "-h", "-o", "%A", check=False).stdout.split() or ["0"]

    def _idle(self) -> list[str]:
        return sorted(set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False).stdout.split()))

    def _take_ports(self) -> int:
        """The first of a block of ports that is free and locked against other throwaway clusters."""
        for first in range(PORT_FIRST, PORT_LAST, PORT_BLOCK):
            lock = os.open(Path(tempfile.gettempdir()) / f"synergy-ports-{first}.lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # the last four: daemons' report ports and those of accounting
                own = (first + 90, first + 91, first + DBD_PORT, first + SQL_PORT)
                for port in (*range(first, first + 2 + len(self.node_names)), *own):
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
            except OSError:
                os.close(lock)
                continue
            self._port_lock = lock
            return first
        raise RuntimeError("no free block of ports between 20000 and 32000")

    def _write_files(self) -> None:
        host, d, user = socket.gethostname().split(".")[0], self.folder, _user_name()
        own = d if self.slurm_user == user else d / "state"  # slurmctld gives root's rights up
        own_controllers = controllers.conf_lines(d, self.controllers) if self.controllers > 1 else [
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPidFile={own}/slurmctld.pid",
            f"SlurmctldLogFile={own if own != d else d / 'log'}/slurmctld.log",
        ]  # fmt: skip
        nodes, gres, first = [], [], 1
        for g in self.groups:
            last = first + g.nodes - 1
            names = f"n[{first}-{last}]" if g.nodes > 1 else f"n{first}"
            ports = f"[{self.port + 1 + first}-{self.port + 1 + last}]" if g.nodes > 1 else str(self.port + 1 + first)
            nodes.append(
                f"NodeName={names} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs={self.cpus_per_node} "
                f"RealMemory={self.memory_mib} Gres=gpu:{g.gpu_type}:{g.gpus} "
                f"Feature={','.join(x for x in (g.gpu_type, g.features) if x)}{' State=CLOUD' * g.cloud}"
            )
            # any character devices do: nothing opens them
            gres.append(f"NodeName={names} Name=gpu Type={g.gpu_type} File=/dev/tty[0-{g.gpus - 1}]" if g.gpus > 1 else
                        f"NodeName={names} Name=gpu Type={g.gpu_type} File=/dev/tty0")  # fmt: skip
            first = last + 1
        if self.job_submit:
            text = Path(self.job_submit).read_text() if "\n" not in self.job_submit else self.job_submit
            (d / "job_submit.lua").write_text(text)
        lines = [
            f"ClusterName={self.name}",
            *own_controllers,
            f"SlurmctldPort={self.port}",
            f"SlurmdPort={self.port + 1}",
            f"SlurmUser={self.slurm_user}",
            f"SlurmdUser={user}",
            f"StateSaveLocation={d}/state",
            f"SlurmdSpoolDir={d}/spool/%n",
            f"SlurmdPidFile={d}/slurmd-%n.pid",
            f"SlurmdLogFile={d}/log/slurmd-%n.log",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.munge_socket},cred_expire={self.park_cred_expire_s}",
            "CryptoType=crypto/munge",
            "SlurmdParameters=config_overrides",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            f"SelectTypeParameters={'CR_Core_Memory' if self.counts_memory else 'CR_Core'}",
            "GresTypes=gpu",
            "ReturnToService=2",
            "MpiDefault=none",
            "JobFileAppend=1",
            "KillWait=5",
            f"SlurmdTimeout={self.slurmd_timeout_s}",
            "SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0",
            "MaxJobCount=20000",
            "MinJobAge=300",  # a slow machine still finds the jobs that have ended
            *(
                self.accounting.slurm_conf(self)
                if self.accounting
                else ["AccountingStorageType=accounting_storage/none"]
            ),
            "JobAcctGatherType=jobacct_gather/none",
            *(["JobSubmitPlugins=lua"] if self.job_submit else []),
            *nodes,
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
            # a report port of this cluster's own; lines of `slurm_conf` may say more
            *(
                [f"#SYNERGY ReportPort={self.port + 90} ReportHost=127.0.0.1"]
                if any("#SYNERGY" in x for x in self.slurm_conf)
                else []
            ),
            *self.slurm_conf,
        ]
        self.conf.write_text("\n".join(lines) + "\n")
        (d / "gres.conf").write_text("\n".join(gres) + "\n")
        # by itself slurmd looks for a mounted one; 22.05 can't do without
        (d / "cgroup.conf").write_text("CgroupPlugin=disabled\n" if release() >= (23, 11) else "CgroupAutomount=no\n")

    def spawn(self, program: str, args: Sequence[str], key: str = "") -> None:
        log = (self.folder / "log" / f"{key or program}.log").open("ab")
        with log:
            self._processes[key or program] = subprocess.Popen(
                [self._program(program), *args],
                env=self.env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _end(self, name: str) -> None:
        process = self._processes.pop(name)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)

    def _kill_steps(self) -> None:
        """Ends step daemons and their children, which outlive slurmd, and what ResumeProgram started. They are known by this
        cluster's SLURM_CONF."""
        mark = f"SLURM_CONF={self.conf}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    # our own helpers carry the variable too: only processes of a job or slurmstepd are meant
                    environ = (entry / "environ").read_bytes()
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                ours = b"SLURM_JOB_ID=" in environ or b"slurmstepd" in command or b"slurmd" in command
                if mark in environ.split(b"\0") and ours:
                    try:
                        os.kill(int(entry.name), signal.SIGKILL)
                    except OSError:
                        continue


def _user_name() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def main() -> None:
    """Starts a cluster and keeps it until it is interrupted."""
    import argparse

    parser = argparse.ArgumentParser(description="Run a throwaway Slurm cluster on this machine until Ctrl-C.")
    parser.add_argument("--nodes", default="a100:2x4", help="TYPE:NODESxGPUS[,...], default %(default)s")
    options = parser.parse_args()
    try:
        groups = [NodeGroup.parse(text) for text in options.nodes.split(",")]
        from tests.throwaway.synergy import make_cluster

        with make_cluster(groups) as cluster:
            print(f"export SLURM_CONF={cluster.conf} MUNGE_SOCKET={cluster.munge_socket}", flush=True)
            print(cluster.run("sinfo", "-N", "-o", "%N %t %G").stdout, flush=True)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except (ValueError, MissingProgram) as error:
        raise SystemExit(f"throwaway cluster: {error}") from None


if __name__ == "__main__":
    main()
