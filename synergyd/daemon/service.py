"""The daemon's run: epochs at their time, ticks in between, back-off when Slurm is away, a clean end on SIGTERM."""

from __future__ import annotations

import errno
import gc
import logging
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from synergy_core.errors import SynergyError, UnavailableError, UsageError
from synergy_core.wire.job_key import SecretFile

from synergyd.daemon import heartbeat
from synergyd.daemon.dependencies import DaemonDependencies
from synergyd.daemon.heartbeat import StateDirWitness
from synergyd.daemon.journal import Journal, start_message
from synergyd.daemon.lease_keeper import LeaseKeeper
from synergyd.daemon.links.process import LinkProcess
from synergyd.daemon.loop import Daemon
from synergyd.daemon.metrics import PrometheusMetrics
from synergyd.daemon.notices.sender import start_notices
from synergyd.daemon.ports.report_inbox import ReportInbox
from synergyd.daemon.start_keeper import StartKeeper
from synergyd.daemon.usage_keeper import ASK_S, UsageKeeper
from synergyd.settings import Settings
from synergyd.slurm.backends import open_reader
from synergyd.slurm.client import SlurmReader
from synergyd.slurm.command_line import CommandLine
from synergyd.store import private_file
from synergyd.store.buffer import BufferedStore
from synergyd.store.leader import Leader
from synergyd.store.store import open_store

_COLLECT_EVERY = 500  # epochs
log = logging.getLogger("synergyd")
KEEP_S, PRUNE_EVERY_S = 30 * 86400.0, 86400.0  # history in the database
KEEP_USAGE_S = 400 * 86400.0  # GPU hours: this year and the last one's same month
# Longest wait of an all-reduce for its turn: the time that the daemon takes to fail, and far above a turn's own length.
LINK_WAIT_S = 0.5
# Others open what they need in StateDir by name (the heartbeat, a plan, the REST service's socket). They can't list it.
STATE_DIR_MODE = 0o711
BUSY_TICK_S, CALM_TICK_S, STAND_BY_TICK_S, MAX_BACK_OFF_S = 0.3, 1.0, 0.5, 300.0


def _spare_collector(epochs: int) -> None:
    """Tell the collector to pass over the millions of Cells that stay from epoch to epoch.

    Otherwise it would walk through them in the middle of a decision. Now and then it looks at everything after all.

    What this epoch left behind is collected first: freezing garbage would keep it until then.
    """
    if epochs % _COLLECT_EVERY == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def run(
    settings: Settings, *, once: bool = False, on_epoch: Callable[[Daemon], None] | None = None, cluster: str = ""
) -> int:
    """Run until SIGTERM or SIGINT (or for one epoch). Return the exit code. Raise UsageError for wrong settings.

    `cluster`: its name, if the database may hold others'.
    """
    prepare_state_dir(settings)
    url = settings.database_url()
    leader = Leader(url, clock=time.time, witness=StateDirWitness(settings.state_dir), cluster=cluster)
    keeper = LeaseKeeper(leader, heartbeat.compute_grace_s(settings.epoch_s), waited_s=lambda: writer.paced_s())
    writer = CommandLine(writing=keeper.guard_write)
    reader, why = open_reader({}, line=writer)
    log.info("%s", start_message(settings, f"{reader.name} ({why})"))
    store = BufferedStore(
        lambda: open_store(url, create=not settings.database, cluster=cluster), time.monotonic, term=lambda: leader.term
    )

    def leads() -> bool:
        # if this machine was stopped with its clocks, the store is the first to know of a later term
        return keeper.leads() and keeper.term > store.fenced_term

    metrics = PrometheusMetrics(settings.metrics_port)
    metrics.tell_leading(leads)
    dependencies = _open_dependencies(
        settings, reader, writer, store, keeper, leads, has_inbox=not (once and settings.dry_run)
    )
    # a dry run sends its daily account; beside a daemon that acts, that one sends it
    sends = (lambda: not heartbeat.is_beating(settings.state_dir, time.time())) if settings.dry_run else leads
    notices = start_notices(settings, lambda: open_store(url), CommandLine().read_own_mail, sends)
    daemon = Daemon(settings, dependencies)
    with _stopped_by_signals() as stop:
        try:
            may = partial(writer.demand_rights, writes=not settings.dry_run)
            return _loop(daemon, keeper, metrics, stop, once, on_epoch, may)
        finally:
            daemon.close()
            if leads():
                heartbeat.remove(settings.state_dir)
            for part in (
                dependencies.usage,
                dependencies.starts,
                notices,
                store,
                keeper,
                dependencies.inbox,
                dependencies.links,
            ):
                if part is not None:
                    part.close()


def _open_dependencies(
    settings: Settings,
    reader: SlurmReader,
    writer: CommandLine,
    store: BufferedStore,
    keeper: LeaseKeeper,
    leads: Callable[[], bool],
    *,
    has_inbox: bool,
) -> DaemonDependencies:
    """Open the ports where jobs report and ask, start the threads that keep the usage, and return all that the loop needs.

    Raises UsageError if a port can't be had.
    """
    url, host = settings.database_url(), settings.report_host or socket.getfqdn()
    secret = SecretFile(settings.state_dir)
    inbox = _inbox(settings, secret) if has_inbox else None
    links = _link_arbiter(settings)
    return DaemonDependencies(
        reader=reader,
        writer=writer,
        store=store,
        inbox=inbox,
        secret=secret if inbox and not settings.dry_run else None,
        clock=time.time,
        monotonic=time.monotonic,
        report_address=f"{host}:{inbox.port}" if inbox else "",
        leads=leads,
        term=lambda: keeper.term,
        paced_s=writer.paced_s,
        links=links,
        links_address=f"{host}:{links.port}" if links else "",
        # in its own thread: a connection of its own to Slurm and to the database
        usage=UsageKeeper(
            lambda: open_store(url),
            CommandLine().past_runs,
            KEEP_USAGE_S,
            time.time,
            min(ASK_S, 5 * settings.epoch_s),
            notifies=bool(settings.notice_url or settings.mail_prog),
        ),
        starts=StartKeeper(lambda: open_store(url), CommandLine().past_runs),  # likewise
    )


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set; afterwards they do what they did before."""
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        log.info("%s: ending", signal.Signals(number).name)
        stop.set()

    previous = {n: signal.signal(n, on_signal) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _inbox(settings: Settings, secret: SecretFile) -> ReportInbox | None:
    """Return the inbox where jobs report, or None if they may not. Raises UsageError."""
    if not settings.report_port:
        return None
    try:
        return ReportInbox("", settings.report_port, secret=secret)
    except UsageError as problem:
        if not settings.dry_run:
            raise
        log.info("the dry run takes no reports: %s", problem)  # a daemon that acts has the port
        return None


def _link_arbiter(settings: Settings) -> LinkProcess | None:
    """Start the link arbiter if a port is set for it. Raise UsageError."""
    if not settings.link_arbiter_port or settings.dry_run:
        return None
    arguments = settings.link_arbiter_port, settings.link_arbiter_rule, LINK_WAIT_S
    return LinkProcess("", *arguments, settings.node_link)


def prepare_state_dir(settings: Settings) -> None:
    """Create the state folder. Raises UsageError if it can't be used."""
    try:
        if not settings.state_dir.exists():
            settings.state_dir.mkdir(parents=True, exist_ok=True)
            settings.state_dir.chmod(STATE_DIR_MODE)
        plans = settings.state_dir / "plans"
        plans.mkdir(exist_ok=True)
        plans.chmod(STATE_DIR_MODE)  # jobs read their plans as their own users, whatever the umask of this daemon
        _close_to_others(settings)
        probe = settings.state_dir / ".probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        where = f"StateDir {settings.state_dir}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            log.warning("%s: %s; jobs are not resized until there is room", where, error.strerror)
            return
        raise UsageError(
            where, f"can't be written ({error.strerror})", "name a folder that synergyd's user owns"
        ) from None


def _close_to_others(settings: Settings) -> None:
    """Take from others what an earlier version gave them: to list StateDir, and to open the SQLite database."""
    about = settings.state_dir.stat()
    if about.st_mode & 0o006 and os.geteuid() in (0, about.st_uid):
        settings.state_dir.chmod(about.st_mode & 0o7771)
    path = private_file.sqlite_file(settings.database_url())
    for file in private_file.tighten(path) if path else ():
        log.warning("%s: others could open it; now its owner alone can", file)


def _back_off_s(failures: int, epoch_s: float) -> float:
    """Return the seconds until the next try after `failures` failed tries in a row (one or more)."""
    return min(MAX_BACK_OFF_S, epoch_s * 2.0 ** min(failures - 1, 6), 2.0 ** min(failures, 10))


def _log_standby_cause(cause: str, before: str) -> str:
    """Log why this daemon stands by if that differs from `before` ("" if it does not stand by). Return `cause`."""
    if cause and cause != before:
        log.info("standing by: %s", cause)
    return cause


def _loop(
    daemon: Daemon,
    keeper: LeaseKeeper,
    metrics: PrometheusMetrics,
    stop: threading.Event,
    once: bool,
    on_epoch: Callable[[Daemon], None] | None,
    may: Callable[[], None] = lambda: None,
) -> int:
    """Run epochs and ticks until `stop`.

    `may` raises DeniedError if Slurm will not let this daemon do its work, SlurmError if Slurm is away.
    """
    settings, failures, next_epoch_s, pruned_s = daemon.settings, 0, 0.0, -PRUNE_EVERY_S
    # makes the default database, and reports a wrong URL at once
    if not daemon.dependencies.store.refresh() and once:
        raise UnavailableError("", daemon.dependencies.store.problem)  # nothing could be stored, and nobody leads
    if not settings.dry_run:  # looking must not keep the daemon that acts from leading
        keeper.start()
    away, stood_by, epochs, led = "", "", 0, False
    journal = Journal(time.monotonic())
    while not stop.is_set():
        now_s, early = time.monotonic(), False
        try:
            leads = keeper.begin_turn()
            if leads != led:
                log.info("leads in term %d", keeper.term) if leads else log.warning(
                    "leads no longer: %s", keeper.problem
                )
                next_epoch_s = now_s if leads else next_epoch_s  # a daemon that takes over decides at once
            led = leads
            if now_s >= next_epoch_s or (early := daemon.needs_early_epoch and not once):
                standing = "" if settings.dry_run or leads else keeper.problem or "another synergyd leads"
                stood_by = _log_standby_cause(standing, stood_by)
                if not epochs:
                    may()
                record = daemon.epoch()
                keeper.note_completed_epoch()
                metrics.epoch(record, daemon)
                if line := journal.note_epoch(record, daemon, time.monotonic()):
                    log.info("%s", line)
                epochs += 1
                _spare_collector(epochs)
                if now_s - pruned_s >= PRUNE_EVERY_S:
                    pruned_s = now_s
                    daemon.dependencies.store.prune(time.time() - KEEP_S)
                if bool(away) != bool(daemon.dependencies.store.problem):
                    away = daemon.dependencies.store.problem
                    log.warning("database: %s", away + "; decisions wait to be stored" if away else "is back")
                if on_epoch:
                    on_epoch(daemon)
                failures = 0
                if not early:  # one that is comes besides
                    # jittered, so that several daemons on several clusters of one site do not poll in step
                    next_epoch_s = now_s + settings.epoch_s * random.uniform(0.95, 1.05)
                if once and not daemon.is_resizing:
                    return 0
            else:
                daemon.tick()
                if once and not daemon.is_resizing:
                    return 0
        except Exception as error:
            if isinstance(error, SynergyError) and not isinstance(error, UnavailableError):
                raise
            is_due = now_s >= next_epoch_s
            failures += is_due
            back_off = _back_off_s(max(1, failures), settings.epoch_s)
            if is_due or early:  # ticks, and what comes early, come many times: theirs must not put off the next epoch
                next_epoch_s = now_s + back_off if is_due else min(next_epoch_s, now_s + back_off)
            metrics.count_failure()
            journal.note_failure()
            if isinstance(error, UnavailableError):
                log.warning("%s; next try in %.0f s", error, back_off)
            else:  # a fault of ours: it must not stop what all other jobs need
                log.exception("this look at the cluster failed; next try in %.0f s", back_off)
            if once:
                return 1
            stop.wait(min(back_off, 1.0))
        _wait_for_tick(daemon, stop, next_epoch_s, stands_by=not led and not settings.dry_run)
    return 0


def _wait_for_tick(daemon: Daemon, stop: threading.Event, next_epoch_s: float, *, stands_by: bool) -> None:
    """Wait until `stop`, the next tick or the next epoch; with a resize under way until a report arrives, too."""
    wait_s = BUSY_TICK_S if daemon.is_resizing else min(CALM_TICK_S, max(0.05, next_epoch_s - time.monotonic()))
    if stands_by:
        wait_s = min(wait_s, STAND_BY_TICK_S)
    inbox = daemon.dependencies.inbox
    if inbox is None or not daemon.is_resizing:
        stop.wait(wait_s)
    else:
        inbox.arrived.wait(wait_s)
        stop.wait(0.05)  # many reports at once are one tick: each tick asks Slurm
