"""The admin's settings of the daemon as a service: where it stores, listens, and whom it tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from synergyd.settings.types import DATABASE, FLAG, HOST, JOBS, PORT, WEB, about, duration, path


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """The values; see `synergyd.settings.Settings`."""

    database: str = field(
        default="",
        metadata=about(
            "Database",
            DATABASE,
            "Where profiles and decisions are stored: an SQLAlchemy URL. Keep the password out of it: put it into a .pgpass "
            "file, or name such a file as PGPASSFILE in /etc/default/synergyd. `?schema=NAME` names the schema in PostgreSQL. "
            "`{cluster}` stands for the ClusterName, so that clusters that share a database can share the line.",
            unset="an SQLite file, synergy.db in StateDir",
            example="sqlite:////var/lib/synergy/synergy.db",
        ),
    )
    epoch_s: float = field(
        default=60.0,
        metadata=about(
            "Epoch",
            duration(1, 86400, "1 s to 1 day, such as 60, 60s or 5m"),
            "The time between two decisions of the daemon.",
        ),
    )
    partitions: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Partitions",
            JOBS,
            "The partitions whose jobs Synergy manages, including jobs that name several if one is listed here. With "
            "user/NAME or account/NAME, only the jobs of these users and accounts. Others run as plain Slurm jobs.",
            unset="all",
            example="gpu,user/mina,account/physics",
        ),
    )
    dry_run: bool = field(
        default=False, metadata=about("DryRun", FLAG, "yes: decide, store and explain, but change no job.")
    )
    profile: Path | None = field(
        default=None,
        metadata=about(
            "Profile",
            path("an absolute path of what `synergyctl profiles fit` wrote"),
            "Figures of this cluster from its measured rows. They take precedence over the built-in GPU figures.",
            unset="none",
            example="/etc/slurm/synergy/cluster.profile",
        ),
    )
    state_dir: Path = field(
        default=Path("/var/lib/synergy"),
        metadata=about(
            "StateDir",
            path("an absolute path, such as /var/lib/synergy"),
            "The daemon's folder: heartbeat, plans of jobs, the SQLite file. The job_submit plugin reads the heartbeat on the "
            "slurmctld host. Jobs read their plans here if compute nodes see the folder, otherwise from AdminComment.",
        ),
    )
    metrics_port: int = field(
        default=0, metadata=about("MetricsPort", PORT, "The port where Prometheus reads metrics.")
    )
    report_port: int = field(
        default=7321,
        metadata=about(
            "ReportPort",
            PORT,
            "The port that jobs report to. 0: no job can acknowledge a checkpoint, so no job is resized.",
        ),
    )
    report_host: str = field(
        default="",
        metadata=about(
            "ReportHost",
            HOST,
            "The name or address under which jobs reach ReportPort and LinkArbiterPort.",
            unset="this host",
            example="slurmctl.example.org",
        ),
    )
    rest_port: int = field(
        default=0,
        metadata=about(
            "RestPort",
            PORT,
            "The port of the REST service (synergyrestd), which synergyctl uses from login nodes at ReportHost, or else "
            "SlurmctldHost. 0: the service listens only on its Unix socket in StateDir.",
        ),
    )
    notice_url: str = field(
        default="",
        metadata=about(
            "NoticeUrl",
            WEB,
            "Where notices of all jobs are posted as JSON, signed with the key in StateDir/notice.key. Redirects are not "
            "followed.",
            unset="no webhook",
            example="https://chat.example.org/hooks/synergy",
        ),
    )
    mail_prog: Path | None = field(
        default=None,
        metadata=about(
            "MailProg",
            path("an absolute path of a program, such as /usr/bin/mail"),
            "Sends notices to owners who ask for them by notify= or --mail-type. It is called as Slurm calls its MailProg: -s "
            "SUBJECT ADDRESS, with the text on standard input.",
            unset="no mail",
            example="/usr/bin/mail",
        ),
    )

    @property
    def partition_names(self) -> tuple[str, ...]:
        """Return the partitions in Partitions, () for all."""
        return tuple(word for word in self.partitions if "/" not in word)

    #: no line of slurm.conf sets it: simulations vary it (control/arrivals.py)
    early_epochs: bool = True
