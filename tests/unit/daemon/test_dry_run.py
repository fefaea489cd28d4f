"""A dry run counts what it would have changed: for jobs with a line, and for plain ones as if they had one."""

from __future__ import annotations

from pathlib import Path

import pytest
from synergy_core.wire import plan_file
from synergy_core.would_have import WouldHave, totals

from synergyd.daemon import heartbeat
from synergyd.daemon.notices.mail import letter, recipient
from synergyd.jobmodel.prior_cells import SHARED_VARIANCE
from synergyd.views.status import collect
from tests.unit.daemon.daemon_world import START_S, Site

PLAIN = "#!/bin/bash\nsrun python train.py\n"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "state", dry_run=True, restart_cost_s=10.0)


def accounts(site: Site) -> dict[int, WouldHave]:
    with site.store() as store:
        return {row.job_id: row for row in store.would_have(0.0)}


def test_plain_jobs_count_as_if_they_had_a_line(site: Site) -> None:
    site.slurm.gpus = {"n1": 4, "n2": 4}
    site.slurm.submit(1, PLAIN, tres_per_node="gres:gpu:2")
    site.slurm.runs(1, "n1")
    site.slurm.submit(2, PLAIN, tres_per_node="gres:gpu:1")  # on one GPU, as the forecast leaves them
    site.slurm.runs(2, "n2")
    site.epoch()
    for _ in range(10):
        site.epoch(60)
    (row,) = accounts(site).values()
    assert row.job_id == 1 and not row.has_line and row.asked_gpus == 2 and row.wanted_gpus == 4
    assert row.ran_s == 600.0 and row.changes == 1
    # two GPUs are free beside it: four are 1.5 times as fast by the prior, and one restart is paid
    assert 1.3 * 600 < row.useful_s < 1.8 * 600 and 0 < row.sigma_s < row.saved_s
    with site.store() as store:
        shown = collect(store)
    assert (len(shown.jobs), shown.plain_jobs, shown.plain_held_gpus) == (0, 2, 3)
    assert site.slurm.written_to() == set()


def test_plain_jobs_of_users_whom_synergy_is_not_for_do_not_count(tmp_path: Path) -> None:
    site = Site(tmp_path / "state", dry_run=True, partitions=("user/mina",))
    site.slurm.gpus = {"n1": 4, "n2": 4}
    for job_id, node, user in ((1, "n1", "mina"), (2, "n2", "ada")):
        site.slurm.submit(job_id, PLAIN, tres_per_node="gres:gpu:2", user=user)
        site.slurm.runs(job_id, node)
    site.epoch()
    site.epoch(60)
    assert accounts(site).keys() == {1}


def test_a_plain_job_that_waits_would_start_sooner_on_less(site: Site) -> None:
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, PLAIN, tres_per_node="gres:gpu:3")
    site.slurm.runs(1, "n1")
    site.slurm.submit(2, PLAIN, tres_per_node="gres:gpu:4")
    site.epoch()
    for _ in range(5):
        site.epoch(60)
    found = accounts(site)
    assert found[2].waited_s == 300.0 and found[2].sooner_s == 300.0 and found[2].ran_s == 0.0


def test_a_job_with_a_line_counts_by_its_own_decisions(site: Site) -> None:
    site.start(restart_cost_s=1.0)
    site.running(1, "n1")
    site.slurm.submit(2, PLAIN, tres_per_node="gres:gpu:4")
    site.slurm.runs(2, "n2")
    wanted = [site.epoch(60)[1] for _ in range(3)][-1]
    assert wanted.cell is not None and wanted.relative_goodput is not None
    row = accounts(site)[1]
    assert row.has_line and row.wanted_gpus == wanted.cell.shape.gpus == 4
    assert accounts(site)[2].has_line is False  # and what a plain job would be given changes nothing for it


def test_a_restart_of_the_daemon_goes_on_and_an_absence_counts_nothing(site: Site) -> None:
    site.slurm.submit(1, PLAIN, tres_per_node="gres:gpu:2")
    site.slurm.runs(1, "n1")
    site.epoch()
    site.epoch(60)
    site.start()
    site.epoch(86_400)
    assert accounts(site)[1].ran_s == 60.0 and accounts(site)[1].from_s == START_S
    site.epoch(60)
    assert accounts(site)[1].ran_s == 120.0


def test_jobs_with_a_line_are_told_where_to_report_and_nothing_in_slurm_changes(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.runs(1, "n1")
    site.slurm.submit(2, PLAIN, tres_per_node="gres:gpu:4")
    site.slurm.runs(2, "n2")
    site.epoch()
    handed = plan_file.read(plan_file.plan_path(site.folder, 1), 1)
    assert handed.report == "ctl:7321" and handed.only_reports and not handed.is_decided_about and handed.plan is None
    assert not plan_file.plan_path(site.folder, 2).exists()
    site.report(1, loss=2.5)
    site.epoch(60)
    with site.store() as store:
        (job,) = collect(store).jobs
    assert (job.step, job.loss) == (10, 2.5) and site.slurm.written_to() == set()
    site.daemon.close()
    assert not plan_file.plan_path(site.folder, 1).exists()


def test_beside_a_daemon_that_acts_it_tells_jobs_nothing(site: Site) -> None:
    heartbeat.write(site.folder, site.slurm.now_s, 180)
    site.slurm.submit(1)
    site.slurm.runs(1, "n1")
    site.epoch()
    assert not plan_file.plan_path(site.folder, 1).exists()


def test_a_job_that_a_dry_run_knows_is_taken_over_by_a_daemon_that_acts(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.runs(1, "n1")
    site.epoch()
    site.start(dry_run=False)
    site.epoch(60)
    assert plan_file.read(plan_file.plan_path(site.folder, 1), 1).is_decided_about


def test_each_day_a_notice_says_what_would_have_been_gained_job_by_job(tmp_path: Path) -> None:
    site = Site(tmp_path / "state", dry_run=True, mail_prog=Path("/bin/true"))
    site.slurm.submit(1, PLAIN, tres_per_node="gres:gpu:2", name="a plain\njob")
    site.slurm.runs(1, "n1")
    for _ in range(26):
        site.epoch(3600)
    with site.store() as store:
        (waiting,) = store.due_notices(site.slurm.now_s, 10)
    assert (waiting.notice.event, waiting.notice.job_id) == ("dry-run", 0)
    subject, body = letter(waiting.notice)
    assert (
        subject.startswith("Synergy dry run: gain +")
        and "job 1 (a plain\\njob) of ann, without a line: 2 GPUs asked for, 8" in body
    )
    assert recipient(waiting.notice, "somebody@else", "ALL") == waiting.notice.user


def test_sigmas_of_plain_jobs_have_a_part_in_common() -> None:
    job = WouldHave(
        job_id=1, submit_s=0.0, name="a", user="ann", account="", asked_gpus=2, has_line=False, from_s=0.0, to_s=3600.0,
        ran_s=3600.0, useful_s=5400.0, sigma_s=720.0,
    )  # fmt: skip
    assert totals([job], SHARED_VARIANCE).gain == 0.5 and totals([job], SHARED_VARIANCE).gain_sigma == pytest.approx(
        0.2
    )
    many = totals([job] * 100, SHARED_VARIANCE)
    assert many.gain_sigma == pytest.approx(0.2 * (SHARED_VARIANCE + (1 - SHARED_VARIANCE) / 100) ** 0.5)
