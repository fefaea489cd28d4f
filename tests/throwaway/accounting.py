"""slurmdbd and MariaDB for a throwaway Slurm cluster: in the cluster's folder, on its ports, gone with it.

    with SlurmCluster(accounting=Accounting(("add account chem GrpTRES=gres/gpu=4", "add user root account=chem"))) as cluster:
        cluster.sacctmgr("modify account chem set GrpTRES=gres/gpu=2")

Never touches a MariaDB or a slurmdbd that is installed and in use: own folder, own ports, a password of its own.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.throwaway.slurm import SlurmCluster

PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")
# a user of each Debian, without rights of its own. Not nobody: of slurmdbd's users Slurm 26.05 counts none of that name (uid.c)
OTHER, OTHER_UID = "backup", 34
USER, DATABASE = "synergy", "slurm_acct_db"
# behind the ports of slurmctld, slurmd and the daemon's reports in the cluster's block
DBD_PORT, SQL_PORT = 92, 93


def missing_programs() -> list[str]:
    """Names of the programs of accounting that this machine lacks."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [p for p in PROGRAMS if shutil.which(p, path=path) is None]


@dataclass(frozen=True)
class Accounting:
    """`commands`: what sacctmgr is told before the nodes start. `enforce`: AccountingStorageEnforce."""

    commands: Sequence[str] = ()
    enforce: str = "associations,limits,qos"

    def slurm_conf(self, cluster: SlurmCluster) -> list[str]:
        """The lines of slurm.conf."""
        return [
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost=127.0.0.1\nAccountingStoragePort={cluster.port + DBD_PORT}",
            f"AccountingStoragePass={cluster.munge_socket}",
            f"AccountingStorageEnforce={self.enforce}",
            "AccountingStorageTRES=gres/gpu",
            "PriorityType=priority/multifactor\nPriorityWeightAge=1000\nPriorityWeightFairshare=100",
        ]

    def start(self, cluster: SlurmCluster) -> None:
        """MariaDB and slurmdbd, with the cluster's name in it. munged runs already. Raises RuntimeError with the log's tail."""
        folder, password = cluster.folder / "sql", secrets.token_hex(12)
        folder.mkdir(mode=0o700)
        user, host = getpass.getuser(), socket.gethostname().split(".")[0]
        common = ["--no-defaults", f"--datadir={folder}/data", f"--user={user}"]
        cluster.run(
            "mariadb-install-db",
            *common,
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            timeout_s=240,
        )
        first = folder / "init.sql"
        first.write_text(
            f"CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{password}';\n"
            f"GRANT ALL ON {DATABASE}.* TO '{USER}'@'127.0.0.1';\n"
        )
        own = [f"--socket={folder}/socket", f"--pid-file={folder}/pid", f"--init-file={first}", "--skip-name-resolve"]
        # small and fast: nothing here outlives the cluster
        light = ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0"]
        port = cluster.port + SQL_PORT
        cluster.spawn("mariadbd", [*common, *own, *light, "--bind-address=127.0.0.1", f"--port={port}"])
        cluster.wait_for(lambda: _listens(port), 60, "MariaDB to listen")
        conf = cluster.folder / "slurmdbd.conf"
        conf.touch(mode=0o600)  # slurmdbd refuses a password that others can read
        lines = [
            f"AuthType=auth/munge\nAuthInfo=socket={cluster.munge_socket}",
            f"DbdHost={host}\nDbdAddr=127.0.0.1\nDbdPort={cluster.port + DBD_PORT}\nSlurmUser={user}",
            f"LogFile={cluster.folder}/log/slurmdbd.log\nPidFile={cluster.folder}/slurmdbd.pid",
            f"StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={port}",
            f"StorageUser={USER}\nStoragePass={password}\nStorageLoc={DATABASE}",
        ]
        conf.write_text("\n".join(lines) + "\n")
        cluster.spawn("slurmdbd", ["-D"])
        cluster.wait_for(lambda: _listens(cluster.port + DBD_PORT), 60, "slurmdbd to listen")
        cluster.sacctmgr("add cluster throwaway")

    def fill(self, cluster: SlurmCluster) -> None:
        """Tells sacctmgr `commands`: slurmctld, which runs by now, has told slurmdbd which TRES there are."""
        for command in self.commands:
            cluster.sacctmgr(command)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
