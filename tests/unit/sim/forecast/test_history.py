"""A history as sacct prints it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_sim.forecast.history import COLUMNS, History, read_history
from synergy_sim.tables import parse_table

ROW = {
    "JobIDRaw": "1", "User": "ann", "Submit": "1000", "Eligible": "1000", "Start": "1100", "ElapsedRaw": "600",
    "TimelimitRaw": "60", "AllocTRES": "billing=8,cpu=8,gres/gpu:a100=8,gres/gpu=8,node=2", "NNodes": "2",
    "NodeList": "n[1-2]", "State": "COMPLETED",
}  # fmt: skip


def history(rows: Sequence[dict[str, str]], sinfo: str = "", days: float = 30.0) -> History:
    lines = ["|".join(COLUMNS) + "\n"] + ["|".join({**ROW, **row}[name] for name in COLUMNS) + "\n" for row in rows]
    return read_history(parse_table(Path("history.txt"), lines, COLUMNS, "|"), days, sinfo)


def test_a_job_is_read_with_its_gpus_nodes_and_limit() -> None:
    (job,) = history([{}]).jobs
    assert (job.user, job.ready_s, job.start_s, job.seconds, job.limit_s) == ("ann", 1000.0, 1100.0, 600.0, 3600.0)
    assert (job.gpu_type, job.nodes, job.each, job.names) == ("a100", 2, 4, ("n1", "n2"))


def test_times_may_be_written_for_people() -> None:
    (job,) = history(
        [{"Submit": "2026-03-01T12:00:00", "Eligible": "2026-03-01T12:00:00", "Start": "2026-03-01T12:01:00"}]
    ).jobs
    assert job.start_s - job.ready_s == 60.0


def test_a_job_waits_from_when_it_may_start() -> None:
    """Its dependency or --begin is not the queue's fault."""
    assert history([{"Eligible": "1090"}]).jobs[0].ready_s == 1090.0
    assert history([{"Eligible": "Unknown"}]).jobs[0].ready_s == 1000.0


def test_jobs_without_gpus_or_a_run_are_left_out_and_waiting_ones_counted() -> None:
    found = history(
        [{}, {"AllocTRES": "cpu=8"}, {"ElapsedRaw": "0"}, {"Start": "Unknown", "State": "PENDING", "AllocTRES": ""}]
    )
    assert (len(found.jobs), found.waiting) == (1, 1)


def test_gpus_without_a_type_have_that_of_their_nodes() -> None:
    untyped = {"AllocTRES": "gres/gpu=8"}
    assert history([untyped]).jobs[0].gpu_type == "gpu"
    sinfo = "n1|gpu:h100:8(S:0-1)\nn1|gpu:h100:8(S:0-1)\nn2|gpu:h100:8\nn3|gpu:v100:4,shard:8\nn4|(null)\n"
    found = history([untyped], sinfo)
    assert found.jobs[0].gpu_type == "h100"
    assert (found.nodes, found.source) == ({"h100": (8, 8)}, "sinfo")


def test_without_sinfo_nodes_have_as_many_gpus_as_were_in_use_at_once() -> None:
    beside = {"NodeList": "n1", "NNodes": "1", "AllocTRES": "gres/gpu:a100=3", "Start": "1200"}
    after = {**beside, "Start": "1700"}
    found = history([{}, beside, after])
    assert found.nodes == {"a100": (7, 7)}


def test_jobs_that_overlap_by_a_second_held_the_same_gpus() -> None:
    found = history([{}, {"Start": "1699"}])
    assert found.nodes == {"a100": (4, 4)}


def test_jobs_larger_than_the_cluster_are_counted() -> None:
    found = history([{}, {"AllocTRES": "gres/gpu:a100=2"}], "n1|gpu:a100:2\nn2|gpu:a100:2\n")
    assert (len(found.jobs), found.too_large) == (1, 1)


def test_the_span_counts_back_from_the_last_end() -> None:
    early, late = {"Submit": "0", "Eligible": "1", "Start": "1"}, {"Start": str(3 * 86400), "Eligible": str(3 * 86400)}
    found = history([early, late, {**early, "ElapsedRaw": str(3 * 86400)}], days=1.0)
    assert found.from_s == found.to_s - 86400
    assert [job.seconds for job in found.jobs] == [3 * 86400.0, 600.0]
    assert len(found.forecast_jobs) == 1  # the other one ran before


def test_unlimited_jobs_and_running_ones() -> None:
    (job,) = history([{"TimelimitRaw": "UNLIMITED", "State": "RUNNING"}]).jobs
    assert job.limit_s == math.inf
    assert job.goes_on


@pytest.mark.parametrize("row", [{"NNodes": "x"}, {"NNodes": "9"}, {"NodeList": "n[1-"}])
def test_rows_that_make_no_sense_are_counted(row: dict[str, str]) -> None:
    found = history([{}, row])
    assert (len(found.jobs), found.unreadable) == (1, 1)


def test_a_wrong_time_is_named_with_its_line() -> None:
    with pytest.raises(UsageError, match=r"history.txt:2: column Start: 'soon' is not a time"):
        history([{"Start": "soon"}])


def test_a_short_history_counts_the_job_that_starts_first() -> None:
    """It begins with that job; one that had waited for long counts as of the time before, whose jobs are not all there."""
    first = {"Eligible": "1000", "Start": "1001"}
    assert len(history([first, {"Eligible": "1000", "Start": "1002"}]).forecast_jobs) == 2
    assert [
        job.start_s for job in history([{"Eligible": "100", "Start": "1001"}, {"Eligible": "1005"}]).forecast_jobs
    ] == [1100.0]
