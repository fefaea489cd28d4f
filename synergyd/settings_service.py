"""The admin's settings of the daemon as a service: where it stores, listens, and whom it tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from synergyd.notice import EVENTS
from synergyd.setting import about
from synergyd.setting_types import DATABASE, FLAG, HOST, NAMES, PORT, WEB, duration, path, some_of


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """The values; see `synergyd.settings.Settings`."""

    database: str = field(
        default="",
        metadata=about(
            "Database",
            DATABASE,
            "Where profiles and decisions are stored: an SQLAlchemy URL. Keep the password out of it: put it into a .pgpass "
            "file, or name such a file as PGPASSFILE in /etc/default/synergyd. Of PostgreSQL `?schema=NAME` names the schema to use; "
            "`{cluster}` stands for the ClusterName, so that one line serves clusters that share a database.",
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
    early_epochs: bool = field(
        default=True,
        metadata=about(
            "EarlyEpochs",
            FLAG,
            "An epoch comes early when a job was submitted, or has ended while another waits for Synergy to start it: as often as a "
            "fifth of the time suffices for. Not under the peers' policies, whose rounds are part of them.",
        ),
    )
    partitions: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Partitions",
            NAMES,
            "The partitions that Synergy looks at: jobs in them, and those that wait for several of which one is here.",
            unset="all",
            example="gpu,gpu-long",
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
            "The file that `synergyctl profiles fit` wrote from this cluster's measured rows. It comes over the built-in GPU "
            "figures.",
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
            "slurmctld host. Jobs read their plans here where compute nodes see the folder, and from AdminComment elsewhere.",
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
            "The port of the REST service (synergyrestd). synergyctl asks it from login nodes, at ReportHost or else at "
            "SlurmctldHost. 0: it serves on its Unix socket in StateDir alone.",
        ),
    )
    keep_usage_s: float = field(
        default=400 * 86400.0,
        metadata=about(
            "KeepUsage",
            duration(86400, 36500 * 86400, "1 day or more, such as 400d"),
            "For how long the GPU hours of jobs are kept for `synergyctl usage`: a row a job, restart and day.",
        ),
    )
    notice_url: str = field(
        default="",
        metadata=about(
            "NoticeUrl",
            WEB,
            "Notices of all jobs are posted there as JSON, signed with NoticeSecretFile. Redirects are not followed.",
            unset="no webhook",
            example="https://chat.example.org/hooks/synergy",
        ),
    )
    notice_secret_file: Path | None = field(
        default=None,
        metadata=about(
            "NoticeSecretFile",
            path("an absolute path of a file with 16 bytes or more that only its owner can read"),
            "The key of the signature of what is posted to NoticeUrl, which needs one. White space at its end does not count.",
            unset="none",
            example="/etc/synergy/notice.key",
        ),
    )
    notice_events: tuple[str, ...] = field(
        default=EVENTS,
        metadata=about(
            "NoticeEvents",
            some_of(EVENTS),
            "What is posted to NoticeUrl: resize, a job runs on another size; hold, it was stopped or its start failed for good; "
            "ban, a plan failed and is not taken again; deadline, it can't be met.",
        ),
    )
    mail_prog: Path | None = field(
        default=None,
        metadata=about(
            "MailProg",
            path("an absolute path of a program, such as /usr/bin/mail"),
            "Sends notices to owners who ask for them by notify= or --mail-type, called as Slurm calls its MailProg: "
            "-s SUBJECT ADDRESS, with the text on its standard input.",
            unset="no mail",
            example="/usr/bin/mail",
        ),
    )
