"""The dependencies of the daemon's loop: everything that it reaches of the world outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from synergy_core.wire.job_key import SecretFile

from synergyd.daemon.links.process import LinkProcess
from synergyd.daemon.phases import Phases
from synergyd.daemon.ports.report_inbox import ReportInbox
from synergyd.daemon.start_keeper import StartKeeper
from synergyd.daemon.usage_keeper import UsageKeeper
from synergyd.slurm.client import SlurmReader, SlurmWriter
from synergyd.store.buffer import BufferedStore


@dataclass(frozen=True, kw_only=True)
class DaemonDependencies:
    """The dependencies of one daemon.

    Tests put narrow fakes in. `clock`: seconds since 1970; `monotonic`: seconds, whatever somebody sets that clock to
    (None: nobody does); `leads`: may this daemon act now? `term`: of its leadership. `paced_s`: for how many seconds in
    all calls to Slurm have waited for their turn. `secret`: the inbox's own too; None hands no keys out.
    """

    reader: SlurmReader
    writer: SlurmWriter
    store: BufferedStore
    inbox: ReportInbox | None
    clock: Callable[[], float]
    report_address: str = ""
    leads: Callable[[], bool] = lambda: True
    term: Callable[[], int] = lambda: 0
    paced_s: Callable[[], float] = lambda: 0.0
    links: LinkProcess | None = None
    links_address: str = ""
    monotonic: Callable[[], float] | None = None
    usage: UsageKeeper | None = None
    starts: StartKeeper | None = None
    secret: SecretFile | None = None
    phases: Phases = field(default_factory=Phases)
