"""A job that would gain by another batch on the GPUs it holds is told so in the answer to its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.job_report import Report
from synergy_core.records import Cell, Directive, Job, JobState, Plan, Shape
from synergy_core.wire import munge
from synergy_core.wire import report as reports
from synergy_core.wire.report import ReportAnswer
from synergy_launch.launcher.reporter import Reporter

from synergyd.control.state import rebatch
from tests.unit.daemon.daemon_world import Site

SCRIPT = (
    "#!/bin/bash\n#SYNERGY model=gpt2 global_batch=64:4096 min_gpus=2 max_gpus=2 tp=1 pp=1 checkpoint=/ckpt\n"
    "srun synergy-launch train.py\n"
)
SHAPE = Shape("a100", 1, 2)
PRESENT = Plan(dp=2, micro_batch=8, global_batch=64)
WANTED = replace(PRESENT, micro_batch=16, global_batch=256)
JOB = Job(
    7, "x", "ann", 1000, "main", JobState.RUNNING, "", 0.0, 0.0, None, 1, SHAPE, SHAPE, directive=Directive(global_batch=(64, 4096)),
)  # fmt: skip
TOLD = Report(7, 1, 10, step_s=1.0, plan=PRESENT, rebatching=True)
CELL = Cell(SHAPE, WANTED, 100.0, 0.98, 98.0, 2.56, 0)


@pytest.mark.parametrize(
    ("present", "cell", "goes_on"),
    [
        # what the search finds moves by a layer with each report
        (("full", 6), ("full", 5), True),
        (("full", 0), ("full", 5), True),
        (("full", 6), ("none", 0), True),
        (("selective", 0), ("none", 0), True),
        # that batch would not fit with what the job computes again
        (("full", 5), ("full", 6), False),
        (("none", 0), ("selective", 0), False),
        (("full", 5), ("full", 0), False),
    ],
)
def test_it_goes_on_with_what_it_computes_again(present: tuple[str, int], cell: tuple[str, int], goes_on: bool) -> None:
    def at(plan: Plan, kind: tuple[str, int]) -> Plan:
        return replace(plan, recompute=kind[0], recompute_layers=kind[1])

    told, found = replace(TOLD, plan=at(PRESENT, present)), replace(CELL, plan=at(WANTED, cell))
    for job in (JOB, replace(JOB, batches=(128, 256))):  # of its own will, and taken back
        plan = rebatch.better_batch(job, told, [found], 1e6)
        assert plan == (at(WANTED, present) if goes_on else None)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "state")


def running(site: Site) -> None:
    site.slurm.submit(1, SCRIPT, tres_per_node="gres:gpu:2")
    site.slurm.runs(1, "n1")
    site.epoch()


def noisy(site: Site, plan: Plan = PRESENT, rebatching: bool = True, step_s: float = 2.0) -> None:
    site.report(1, noise_scale=1e6, plan=plan, rebatching=rebatching, step_s=step_s)
    site.epoch(60)


@pytest.mark.slow
def test_a_job_that_would_gain_is_told_and_not_restarted(site: Site) -> None:
    running(site)
    noisy(site)
    uid, told = site.post.answers[1, 0]
    plan = told.plan
    assert plan.global_batch > 64 and (plan.tp, plan.pp, plan.dp) == (1, 1, 2)
    noisy(site)
    assert site.post.answers[1, 0] == (uid, ReportAnswer(plan))
    assert not [call for call in site.slurm.calls if call[0] in ("signal", "requeue")]
    assert site.life(1).state.value == "RUNNING"
    assert site.story(1).count("from its next step on") == 1
    noisy(site, plan, step_s=1.0 * plan.global_batch / 64)  # it has followed, and a sequence takes half the time
    assert (1, 0) not in site.post.answers


def test_one_that_can_not_follow_is_not_told(site: Site) -> None:
    running(site)
    noisy(site, rebatching=False)
    assert not site.post.answers


def test_one_that_stands_by_tells_nobody(site: Site) -> None:
    running(site)
    site.leads = False
    noisy(site)
    assert not site.post.answers


ADAPTS = SCRIPT.replace("global_batch=64:4096", "adapt=yes")


def adapting(site: Site, script: str = ADAPTS, /, **values: object) -> None:
    site.slurm.submit(1, script, tres_per_node="gres:gpu:2")
    site.slurm.runs(1, "n1")
    site.epoch()
    for _ in range(2):  # the range is known from the first report on
        site.report(
            1, **({"noise_scale": 1e6, "plan": PRESENT, "rebatching": True, "step_s": 2.0, "base_batch": 64} | values)
        )
        site.epoch(60)


def test_adapt_moves_the_batch_within_the_bound_of_the_admin(site: Site) -> None:
    adapting(site)
    assert 64 < site.post.answers[1, 0][1].plan.global_batch <= 4 * 64
    assert not [call for call in site.slurm.calls if call[0] in ("signal", "requeue")]


def test_adapt_of_a_batch_that_the_directive_names(site: Site) -> None:
    adapting(site, SCRIPT.replace("64:4096", "64 adapt=yes"), base_batch=None)
    assert 64 < site.post.answers[1, 0][1].plan.global_batch <= 4 * 64


@pytest.mark.parametrize("values", [{"base_batch": None}, {"noise_scale": None}, {"rebatching": False}])
def test_adapt_without_what_it_needs_changes_nothing(site: Site, values: dict[str, object]) -> None:
    adapting(site, **values)
    assert not site.post.answers


@pytest.mark.parametrize("noise", [None, 5.0])
def test_a_batch_that_was_only_assumed_gives_way_to_the_scripts_own(site: Site, noise: float | None) -> None:
    """Nobody has said a batch, so the job was started with another than its script's."""
    adapting(
        site, SCRIPT.replace("global_batch=64:4096 ", ""), noise_scale=noise, plan=replace(PRESENT, global_batch=16)
    )
    assert site.post.answers[1, 0][1].plan.global_batch == 64


def losing(site: Site, first: int, losses: list[float], plan: Plan) -> None:
    """One report a step, an epoch after each sixth."""
    for number, loss in enumerate(losses):
        site.report(
            1, step=first + number, loss=loss, noise_scale=1e6, plan=plan, rebatching=True, base_batch=64,
            step_s=1.0 * plan.global_batch / 64,
        )  # fmt: skip
        if number % 6 == 5:
            site.epoch(60)


@pytest.mark.parametrize("script", [ADAPTS, SCRIPT])
def test_a_loss_that_does_worse_takes_the_batch_back_for_good(site: Site, script: str) -> None:
    adapting(site, script)
    larger = replace(PRESENT, micro_batch=16, global_batch=256)
    losing(site, 20, [3.0 - 0.01 * n + 0.02 * (n % 3) for n in range(36)], PRESENT)
    losing(site, 60, [2.7 + 0.1 * n + 0.02 * (n % 3) for n in range(18)], larger)
    decision = site.epoch(60)[1]
    told = site.post.answers[1, 0][1].plan
    assert told.global_batch == 64 and site.life(1).batch_cap == 64
    assert "stays at 64 or below: its loss did worse above" in decision.why
    assert "global batch 256 is taken back, and none above 64 comes again" in site.story(1)
    losing(site, 80, [2.7 + 0.02 * (n % 3) for n in range(12)], told)  # it has followed
    assert (1, 0) not in site.post.answers
    site.start()  # another daemon does not go there either
    losing(site, 100, [2.7 + 0.02 * (n % 3) for n in range(12)], told)
    site.epoch(60)
    assert (1, 0) not in site.post.answers and site.life(1).batch_cap == 64
    assert site.story(1).count("taken back") == 1


def test_a_loss_that_was_no_number_keeps_the_batch_below_for_good(site: Site) -> None:
    """The launcher has started the run again from its checkpoint; its agent says where the bound is."""
    adapting(site, ADAPTS)
    site.report(1, step=20, plan=PRESENT, rebatching=True, base_batch=64, noise_scale=1e6, batch_bound=64)
    site.epoch(60)
    assert site.life(1).batch_cap == 64
    assert "no global batch above 64 comes again: the loss was no number there" in site.story(1)
    site.report(1, step=30, plan=PRESENT, rebatching=True, base_batch=64, noise_scale=1e6, batch_bound=64)
    site.epoch(60)
    assert (1, 0) not in site.post.answers and site.story(1).count("comes again") == 1


def test_adapt_waits_until_the_loss_can_be_compared(site: Site) -> None:
    adapting(site, loss=3.0)
    assert not site.post.answers
    losing(site, 20, [3.0 - 0.01 * n + 0.02 * (n % 3) for n in range(24)], PRESENT)
    assert site.post.answers[1, 0][1].plan.global_batch > 64


def test_a_loss_that_goes_on_as_before_or_is_not_told_keeps_the_larger_batch(site: Site) -> None:
    adapting(site)
    larger = replace(PRESENT, micro_batch=16, global_batch=256)
    losing(site, 20, [3.0 - 0.01 * n + 0.02 * (n % 3) for n in range(36)], PRESENT)
    losing(site, 60, [2.64 - 0.03 * n + 0.02 * (n % 3) for n in range(18)], larger)
    losing(site, 80, [None] * 18, larger)  # type: ignore[list-item]
    assert not site.life(1).batch_cap and "taken back" not in site.story(1)


def test_what_an_example_brings_with_less_communication_counts_for_both_batches() -> None:
    """A batch that is clearly better stays so where an example is worth less, at both batches alike."""
    local = replace(TOLD, plan=replace(PRESENT, exchange="local:8"))
    cell = replace(CELL, plan=replace(WANTED, exchange="local:8"), efficiency=0.98 * 0.6, goodput=98.0 * 0.6)
    assert rebatch.better_batch(JOB, local, [cell], 1e4) == cell.plan
    assert rebatch.better_batch(JOB, replace(local, step_s=0.6), [cell], 1e4) is None
    assert rebatch.better_batch(JOB, TOLD, [cell], 1e4) is None, "of another exchange"


def test_what_is_better() -> None:
    cells = [CELL]
    assert rebatch.better_batch(JOB, TOLD, cells, 1e4) == WANTED
    assert rebatch.better_batch(JOB, replace(TOLD, step_s=0.001), cells, 1e4) is None  # it is faster than that
    others = [
        (replace(JOB, restarts=2), TOLD, cells),
        (replace(JOB, state=JobState.PENDING), TOLD, cells),
        (replace(JOB, paused=True), TOLD, cells),
        (replace(JOB, directive=Directive()), TOLD, cells),
        (JOB, replace(TOLD, rebatching=False), cells),
        (JOB, replace(TOLD, plan=None), cells),
        (JOB, replace(TOLD, step_s=None), cells),
        (JOB, None, cells),
        (JOB, TOLD, []),
        (JOB, TOLD, [replace(cells[0], shape=Shape("a100", 2, 1))]),
        (JOB, TOLD, [replace(cells[0], plan=replace(WANTED, recompute="full"))]),
        (JOB, TOLD, [replace(cells[0], plan=PRESENT)]),
    ]
    assert [rebatch.better_batch(job, told, some, 1e4) for job, told, some in others] == [None] * len(others)
    assert rebatch.better_batch(JOB, TOLD, cells, None) is None


@pytest.mark.parametrize(
    "line", [b"", b"ok", b"ok\n", b"no", b"ok \xff\xfe", b"ok tp:1,dp:2,gb:4\n", b"ok MUNGE:AAAA:\n", b"ok MUNGE:"]
)
def test_an_answer_that_says_no_plan(line: bytes) -> None:
    assert reports.read_answer(line, TOLD, 0) is None


class Seal:
    """munge in memory: a credential is `MUNGE:<uid>:<payload>`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
        self.uid = uid
        monkeypatch.setattr(munge, "encode", lambda payload, socket="": f"MUNGE:{self.uid}:{payload.decode()}")
        monkeypatch.setattr(munge, "decode", self.decode)

    def decode(self, text: str) -> munge.Credential:
        _, uid, payload = text.split(":", 2)
        return munge.Credential(payload.encode(), int(uid), 0)


def test_an_answer_with_a_plan_comes_back_if_the_daemon_signed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = Seal(monkeypatch, 64030)
    line = reports.answer_line(ReportAnswer(WANTED), TOLD.job_id, TOLD.restarts)
    assert reports.read_answer(line, TOLD, 64030) == ReportAnswer(WANTED)
    assert reports.answer_line(None) == b"ok\n"
    # another user's, another job's, another incarnation's, and from a daemon whose user nobody knows
    assert reports.read_answer(line, TOLD, 1000) is None
    assert reports.read_answer(line, replace(TOLD, job_id=8), 64030) is None
    assert reports.read_answer(line, replace(TOLD, restarts=2), 64030) is None
    assert reports.read_answer(line, TOLD, None) is None
    # an order to restart is no batch, and says which one it is
    line = reports.answer_line(ReportAnswer(WANTED, 3), TOLD.job_id, TOLD.restarts)
    assert reports.read_answer(line, TOLD, 64030) == ReportAnswer(WANTED, 3)
    assert reports.read_answer(line, replace(TOLD, restarts=2), 64030) is None
    assert reports.read_answer(line.replace(b" 3 ", b" 03 "), TOLD, 64030) is None
    seal.uid = 0
    assert reports.read_answer(reports.answer_line(ReportAnswer(WANTED), 7, 1), TOLD, None) == ReportAnswer(WANTED)


def test_the_reporter_hands_the_answer_on(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[ReportAnswer] = []
    answers = [None, ReportAnswer(WANTED, 1)]
    monkeypatch.setattr(reports, "send", lambda report, address, by: answers.pop(0))
    reporter = Reporter("x:1", 0.01, heard=heard.append)
    reporter.offer(TOLD, urgent=True)
    while len(answers) == 2:
        pass
    reporter.offer(TOLD, urgent=True)
    reporter.close()
    assert heard == [ReportAnswer(WANTED, 1)]
