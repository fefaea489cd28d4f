"""Prometheus metrics of the daemon."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter as Count
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from synergy_core.errors import UsageError
from synergy_core.usage import Totals

from synergyd import __version__
from synergyd.daemon.job_metrics import JobMetrics
from synergyd.daemon.links.sessions import ArbiterCounts
from synergyd.daemon.loop import Daemon
from synergyd.daemon.ports.bounded_server import BoundedServer, ServerBounds
from synergyd.daemon.ports.refusals import Refusals
from synergyd.store.records import EpochRecord

log = logging.getLogger("synergyd.metrics")
# from the few milliseconds of a local call to the time-out of 30 s
_CALL_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_BOUNDS = ServerBounds(max_bytes=8192, max_open=64, max_source=32, workers=1)
_HEAD = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"


class PrometheusMetrics:
    """The metrics, served on `port` (0 = not at all). Raises UsageError when the port can't be had."""

    def __init__(self, port: int) -> None:
        registry = CollectorRegistry()
        self._define_epoch_metrics(registry)
        self._define_job_metrics(registry)
        self._define_gain_metrics(registry)
        self._define_store_metrics(registry)
        self._define_link_metrics(registry)
        self._job_metrics = JobMetrics(registry)
        self._registry = registry
        self._server = self._listen(port) if port else None

    def _define_epoch_metrics(self, registry: CollectorRegistry) -> None:
        self._duration = Gauge("synergy_epoch_duration_seconds", "Duration of the last epoch", registry=registry)
        self._last = Gauge(
            "synergy_epoch_time_seconds", "Start of the last epoch, seconds since 1970", registry=registry
        )
        self._failures = Counter(
            "synergy_epoch_failures", "Epochs that failed because Slurm was away", registry=registry
        )
        self._stages = Gauge(
            "synergy_decision_stage_seconds",
            "Duration of the last decision, by stage (docs/concepts/epoch.md)",
            ["stage"],
            registry=registry,
        )
        self._phases = Gauge(
            "synergy_epoch_phase_seconds",
            "Duration of the last epoch, by phase: observe, model, decide, act, store",
            ["phase"],
            registry=registry,
        )
        self._slurm = Histogram(
            "synergy_slurm_call_seconds",
            "Duration of the daemon's calls to Slurm, also failed ones",
            ["command"],
            registry=registry,
            buckets=_CALL_BUCKETS,
        )
        self._leads = Gauge("synergy_leads", "1 if this daemon leads and acts, 0 if it stands by", registry=registry)

    def _define_job_metrics(self, registry: CollectorRegistry) -> None:
        self._jobs = Gauge("synergy_jobs", "Jobs with a directive, by lifecycle state", ["state"], registry=registry)
        self._decisions = Counter("synergy_decisions", "Decisions by action", ["action"], registry=registry)
        self._plain_jobs = Gauge("synergy_plain_jobs", "Plain jobs with GPUs that wait or run", registry=registry)
        self._plain_gpus = Gauge("synergy_plain_job_gpus", "GPUs that plain jobs hold", registry=registry)
        self._nodes = Gauge(
            "synergy_node_penalty",
            "Penalty of bad nodes, 0 to 1; only the worst one if PrivateData hides nodes",
            ["node"],
            registry=registry,
        )
        self._refused = Counter("synergy_reports_refused", "Refused reports", ["cause"], registry=registry)
        self._refused_told: dict[str, int] = {}

    def _define_gain_metrics(self, registry: CollectorRegistry) -> None:
        self._info = Gauge("synergy_info", "1; mode: acts or dry-run", ["version", "mode"], registry=registry)
        self._gain = Gauge(
            "synergy_gain_ratio",
            "Gain of this month (0.11 is 11 %), as in synergyctl usage, or of a dry run",
            ["mode"],
            registry=registry,
        )
        self._gain_sigma = Gauge(
            "synergy_gain_sigma_ratio", "One sigma of synergy_gain_ratio", ["mode"], registry=registry
        )
        self._audit = Gauge(
            "synergy_gain_seconds",
            "Job seconds that this month's audited changes saved, as predicted and as measured",
            ["basis"],
            registry=registry,
        )

    def _define_store_metrics(self, registry: CollectorRegistry) -> None:
        self._lag = Gauge("synergy_store_lag_rows", "Rows that wait for the database", registry=registry)
        self._lag_s = Gauge(
            "synergy_store_lag_seconds",
            "Age of the oldest row that waits for the database",
            registry=registry,
        )
        self._healthy = Gauge("synergy_store_healthy", "1 if the database answered the last time", registry=registry)
        self._outages = Counter(
            "synergy_store_outages", "Times that the database was away or damaged", registry=registry
        )
        self._outages_told = 0

    def _define_link_metrics(self, registry: CollectorRegistry) -> None:
        names = {
            "asked": Counter("synergy_link_asks", "Questions to the link arbiter", registry=registry),
            "at_once": Counter("synergy_link_at_once", "Questions granted at once", registry=registry),
            "waited": Counter("synergy_link_waited", "Questions that had to wait", registry=registry),
            "bound": Counter("synergy_link_timed_out", "Questions granted after the longest wait", registry=registry),
            "refused": Counter("synergy_link_refused", "Refused connections to the arbiter", registry=registry),
        }
        self._links, self._links_told = names, ArbiterCounts()
        self._connections = Gauge("synergy_link_connections", "Open connections to the arbiter", registry=registry)

    def _listen(self, port: int) -> BoundedServer:
        refusals = Refusals(log, "metrics request")
        try:
            return BoundedServer(("", port), b"\r\n\r\n", self._page, refusals, _BOUNDS)
        except OSError as error:
            where = f"MetricsPort {port}"
            raise UsageError(where, f"can't be listened on ({error.strerror})", "choose a free port") from None

    def tell_leading(self, leads: Callable[[], bool]) -> None:
        """Set the function that tells whether this daemon leads. It is asked at each look at the page: leadership may end at any time."""
        self._leads.set_function(lambda: float(leads()))

    def epoch(self, record: EpochRecord, daemon: Daemon) -> None:
        """Update the metrics after an epoch."""
        self._duration.set(record.duration_s)
        self._last.set(record.started_s)
        self._jobs.clear()
        for state, count in Count(life.state.value for life in daemon.controller.lifecycles.values()).items():
            self._jobs.labels(state).set(count)
        for action, count in Count(d.action.value for d in daemon.decisions).items():
            self._decisions.labels(action).inc(count)
        self._job_metrics.epoch(daemon, record.started_s)
        self._set_gain(daemon)
        self._plain_jobs.set(daemon.plain_jobs)
        self._plain_gpus.set(daemon.plain_held_gpus)
        self._nodes.clear()
        worst, shows_names = dict[str, float](), "nodes" not in daemon.dependencies.writer.private
        for name, penalty in daemon.controller.faults.nodes.penalties(record.started_s + record.duration_s).items():
            worst[name if shows_names else ""] = max(penalty, worst.get(name if shows_names else "", 0.0))
        for name, penalty in worst.items():
            self._nodes.labels(name).set(penalty)
        self._lag.set(daemon.dependencies.store.lag)
        self._lag_s.set(daemon.dependencies.store.lag_s)
        for phase, seconds in daemon.dependencies.phases.seconds.items():
            self._phases.labels(phase).set(seconds)
        for stage, seconds in daemon.dependencies.phases.stages.items():
            self._stages.labels(stage).set(seconds)
        for took in {
            id(t): t
            for c in (daemon.dependencies.reader, daemon.dependencies.writer)
            if (t := getattr(c, "took", None))
        }.values():
            while took:
                command, seconds = took.popleft()
                self._slurm.labels(command).observe(seconds)
        outages = daemon.dependencies.store.outages
        self._outages.inc(outages - self._outages_told)
        self._outages_told = outages
        self._healthy.set(1.0 if daemon.dependencies.store.is_healthy else 0.0)
        if daemon.dependencies.links is not None:
            self.set_link_counts(*daemon.dependencies.links.counts())
        for cause, number in getattr(daemon.dependencies.inbox, "refusals", {}).items():
            self._refused.labels(cause).inc(number - self._refused_told.get(cause, 0))
            self._refused_told[cause] = number

    def _set_gain(self, daemon: Daemon) -> None:
        """Set the headline number, which `synergyctl status` and `usage` and the page show too."""
        mode = "dry-run" if daemon.settings.dry_run else "acts"
        self._info.labels(__version__, mode).set(1)
        usage = daemon.dependencies.usage
        month = daemon.dry_run.month if daemon.settings.dry_run else usage.month if usage is not None else None
        if month is not None and month.gain is not None:
            self._gain.labels(mode).set(month.gain)
            self._gain_sigma.labels(mode).set(month.gain_sigma)
        if isinstance(month, Totals) and month.prediction_error is not None:
            self._audit.labels("predicted").set(3600.0 * month.predicted_h)
            self._audit.labels("measured").set(3600.0 * month.measured_h)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    def _page(self, request: bytes, _source: str) -> bytes:
        """Return the answer to an HTTP request: the metrics, whatever path is asked for."""
        method = request.partition(b" ")[0]
        if method not in (b"GET", b"HEAD"):
            return _HEAD % (b"405 Method Not Allowed", b"text/plain", 0)
        page = generate_latest(self._registry)
        head = _HEAD % (b"200 OK", CONTENT_TYPE_LATEST.encode(), len(page))
        return head if method == b"HEAD" else head + page

    def set_link_counts(self, counts: ArbiterCounts, connections: int) -> None:
        """Add what the link arbiter has counted since the daemon's start, and set its open connections."""
        before, self._links_told = self._links_told, counts
        more = {f.name: getattr(counts, f.name) - getattr(before, f.name) for f in dataclasses.fields(counts)}
        more["at_once"] = more["asked"] - more["waited"]
        for name, number in more.items():
            self._links[name].inc(max(0, number))
        self._connections.set(connections)

    def count_failure(self) -> None:
        """Count an epoch that Slurm cut short."""
        self._failures.inc()
