"""What Prometheus is told of jobs and accounts; names by its conventions; the dashboard and the rules name what exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from synergy_core.job_report import GpuActivity

from synergyd.daemon.job_metrics import JobMetrics
from synergyd.daemon.metrics import PrometheusMetrics
from tests.unit.daemon.daemon_world import Site

SHIPPED = Path(__file__).resolve().parents[3] / "slurm_plugins"
BOARDS = {path.name: json.loads(path.read_text()) for path in sorted(SHIPPED.glob("synergy.*.json"))}
RUNBOOKS = (SHIPPED.parent / "docs/admin/troubleshooting.md").read_text()
RULES = (SHIPPED / "synergy.rules.yml").read_text()


class ReportAnswer:
    """An epoch after another, and what was counted."""

    def __init__(self, site: Site) -> None:
        self.site, self.registry = site, CollectorRegistry()
        self.metrics = JobMetrics(self.registry)

    def epoch(self, seconds: float) -> None:
        self.site.slurm.now_s += seconds
        record = self.site.daemon.epoch()
        self.metrics.epoch(self.site.daemon, record.started_s)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def test_gpus_time_and_goodput_are_counted_by_account(tmp_path: Path) -> None:
    site = Site(tmp_path)
    told = ReportAnswer(site)
    site.slurm.submit(1, account="chem")
    site.slurm.runs(1, "n1")
    told.epoch(0)
    site.report(1)
    told.epoch(60)  # silent until here, by the reports taken when the epoch began
    told.epoch(60)
    held = told.value("synergy_account_gpus", account="chem", kind="held")
    assert held == 2 == told.value("synergy_account_gpus", account="chem", kind="asked")
    training = told.value("synergy_gpu_seconds_total", account="chem", use="training") or 0.0
    silent = told.value("synergy_gpu_seconds_total", account="chem", use="silent") or 0.0
    assert training >= 60 * held and training + silent == 120 * held
    assert told.value("synergy_idle_gpu_seconds_total") == 120 * 6  # eight GPUs, two held
    ratio = told.value("synergy_job_relative_goodput_ratio", job_id="1", account="chem")
    assert ratio and told.value("synergy_account_goodput_gpus", account="chem") == pytest.approx(ratio * 2)
    assert (told.value("synergy_resizes_total", cause="decision") or 0) == 1  # it grows


def test_speed_and_activity_of_a_job_are_series_of_its_own(tmp_path: Path) -> None:
    site = Site(tmp_path)
    told = ReportAnswer(site)
    site.slurm.submit(1, account="chem")
    site.slurm.runs(1, "n1")
    told.epoch(0)
    site.report(1, step_s=0.5, gpu_activity=GpuActivity(gpus=2, samples=6, utilisation=0.75, power_w=410.0))
    told.epoch(60)
    told.epoch(60)
    labels = {"job_id": "1", "account": "chem"}
    mfu = told.value("synergy_job_mfu_ratio", **labels)
    assert mfu and mfu == site.daemon.speeds[1].mfu
    assert told.value("synergy_job_gpu_utilisation_ratio", **labels) == 0.75
    assert told.value("synergy_job_gpu_power_watts", **labels) == 410.0


@pytest.mark.parametrize("private", ["jobs", "accounts", "usage", "nodes"])
def test_what_slurm_hides_is_named_nowhere_on_the_page(tmp_path: Path, private: str) -> None:
    """The sums are the same."""
    site = Site(tmp_path)
    site.slurm.private = frozenset((private,))
    told = ReportAnswer(site)
    site.slurm.submit(1, account="chem")
    site.slurm.runs(1, "n1")
    told.epoch(0)
    site.report(1, gpu_activity=GpuActivity(gpus=2, samples=6, utilisation=0.75, power_w=410.0))
    told.epoch(60)
    account = "chem" if private == "nodes" else ""
    assert told.value("synergy_account_gpus", account=account, kind="held") == 2
    assert told.value("synergy_account_goodput_gpus", account=account)
    assert told.value("synergy_gpu_seconds_total", account=account, use="training") == 120
    page = generate_latest(told.registry).decode()
    assert ("chem" in page) == (private == "nodes") and ('job_id="1"' in page) == (private != "jobs")


def test_the_worst_node_has_no_name_where_slurm_hides_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, metrics = Site(tmp_path), PrometheusMetrics(0)
    record = site.daemon.epoch()
    penalties = {"n1": 0.25, "n2": 0.75}
    monkeypatch.setattr(site.daemon.controller.faults.nodes, "penalties", lambda _now_s: penalties)
    for private, shown in (("jobs", penalties), ("nodes", {"": 0.75})):
        site.slurm.private = frozenset((private,))
        metrics.epoch(record, site.daemon)
        samples = [s for m in metrics._registry.collect() if m.name == "synergy_node_penalty" for s in m.samples]
        assert {s.labels["node"]: s.value for s in samples} == shown


def test_the_wait_of_a_job_counts_once_at_its_first_start(tmp_path: Path) -> None:
    site = Site(tmp_path)
    told = ReportAnswer(site)
    site.slurm.submit(2)
    site.slurm.runs(2, "n2")
    told.epoch(0)  # ran before this daemon looked: its wait is not known to be its first
    site.slurm.submit(1)
    told.epoch(10)
    site.slurm.now_s += 90
    site.slurm.runs(1, "n1")
    told.epoch(0)
    told.epoch(60)
    assert told.value("synergy_queue_seconds_count") == 1
    assert told.value("synergy_queue_seconds_sum") == pytest.approx(100)


def families() -> list[Metric]:
    return list(PrometheusMetrics(0)._registry.collect())


def test_names_and_help_follow_prometheus_conventions() -> None:
    """promtool check metrics: base units, `_total` for counters alone, help texts, no type in a name."""
    assert families()
    for metric in families():
        where = metric.name
        assert re.fullmatch(r"synergy_[a-z0-9]+(_[a-z0-9]+)*", metric.name), where
        assert metric.documentation, where
        assert not re.search(r"_(total|count|sum|bucket|gauge|counter|histogram)$", metric.name), where
        assert not re.search(r"_(milliseconds|ms|minutes|hours|days|mib|gib|kb|mb|gb|percent)(_|$)", metric.name), where
    reserved = {"instance", "job", "le", "quantile"}
    registry = CollectorRegistry()
    for metric in vars(JobMetrics(registry)).values():
        assert not reserved & set(getattr(metric, "_labelnames", ())), metric


def samples() -> set[str]:
    """Every name that an expression may use."""
    names = set()
    for metric in families():
        kinds = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(metric.type, ("",))
        names |= {metric.name + kind for kind in kinds}
    return names


def expressions() -> list[str]:
    found = re.findall(r"^\s+expr: (.+)$", RULES, re.MULTILINE)

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.extend([value["expr"]] if "expr" in value else [])
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    for board in BOARDS.values():
        walk(board)
    return found


def test_there_is_a_board_each_for_cluster_account_job_and_daemon() -> None:
    assert set(BOARDS) == {f"synergy.{name}.json" for name in ("account", "daemon", "dashboard", "job")}
    assert len({board["uid"] for board in BOARDS.values()}) == len({b["title"] for b in BOARDS.values()}) == 4


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_a_board_asks_for_nothing_at_its_import(name: str) -> None:
    """`__inputs` make Grafana ask; a variable that no list defines makes an expression empty."""
    board = BOARDS[name]
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert "__inputs" not in board and board.get("id") is None and board["schemaVersion"] >= 39
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([p["targets"] + [p["datasource"]] for p in board["panels"]])))
    assert used <= variables.keys() and "datasource" in used
    for each in variables.values():
        if each["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", each["query"]["query"]).groups()  # type: ignore[union-attr]
            assert metric in samples() and label == each["name"] and label in labels_of(metric)


def labels_of(metric: str) -> set[str]:
    registry = CollectorRegistry()
    return {
        label
        for each in vars(JobMetrics(registry)).values()
        if getattr(each, "_name", "") == metric
        for label in each._labelnames
    }


def test_every_expression_names_a_metric_that_exists() -> None:
    assert len(expressions()) >= 15
    for text in expressions():
        used = set(re.findall(r"\bsynergy_\w+", text))
        assert used and used <= samples(), text


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_every_panel_has_its_place_and_words(name: str) -> None:
    panels = BOARDS[name]["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"] and panel["description"] and panel["targets"]


def test_every_alert_says_what_to_do() -> None:
    alerts = RULES.split("- alert: ")[1:]
    assert len(alerts) >= 6
    for alert in alerts:
        for key in ("expr:", "for:", "severity:", "summary:", "description:"):
            assert key in alert, alert
        (heading,) = re.findall(r"runbook_url: docs/admin/troubleshooting\.md#([a-z-]+)$", alert, re.MULTILINE)
        assert heading in {h.lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", RUNBOOKS, re.MULTILINE)}
