"""A Megatron-LM job under the launcher: a script that prints its lines, and saves and leaves on SIGTERM as it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from synergy_core.job_report import Report
from synergy_core.records import Plan
from synergy_core.wire.plan_file import PlanFile
from synergy_launch.launcher import node_run
from synergy_launch.launcher.commands.start import NodeCommand
from synergy_launch.launcher.failures.stall_detector import StallDetector, stall_limit_s
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.node_run import run_node
from synergy_launch.megatron_lm.arguments import can_reshard, find_version, read_plan, with_plan, with_resume
from synergy_launch.megatron_lm.supervisor import LeaveAnswer, Supervisor, ask_to_leave, find_workers, has_handler

# Stands for pretrain_gpt.py: what the launcher sees of it from outside, nothing else.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
save, last = Path(sys.argv[1]), int(sys.argv[2])
time.sleep(float(os.environ.get("SLOW_START", "0")))
asked = False
def on_term(*_):
    global asked
    asked = True
signal.signal(signal.SIGTERM, on_term)
tracker = save / "latest_checkpointed_iteration.txt"
at = int(tracker.read_text()) if tracker.exists() else 0
with (save / "starts").open("a") as file:
    file.write(f"{at}\\n")
while at < last:
    at += 1
    time.sleep(0.02)
    print(f" [2026-11-21 03:14:34] iteration {at:8d}/{last:8d} | consumed samples: {at * 8:12d} | "
          f"elapsed time per iteration (ms): 20.0 | learning rate: 1.000000E-03 | global batch size:     8 | "
          f"lm loss: {9 - at / 1000:.6E} | loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 | "
          f"number of nan iterations:   0 |", flush=True)
    if asked:
        tracker.write_text(str(at))
        sys.exit(int(os.environ.get("LEAVES_WITH", "0")))
"""


class Site:
    """`run_node` in this process, with `report.send` in memory."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run_dir, self.save = folder / "run", folder / "save"
        self.run_dir.mkdir()
        self.save.mkdir()
        self.script = folder / "pretrain_gpt.py"
        self.script.write_text(SCRIPT)
        self.reports: list[Report] = []
        monkeypatch.setattr(
            "synergy_core.wire.report.send", lambda report, address, by, **_: self.reports.append(report)
        )
        monkeypatch.setattr(node_run, "POLL_S", 0.01)
        monkeypatch.setattr("synergy_launch.megatron_lm.supervisor._ASK_AGAIN_S", 0.05)
        monkeypatch.setattr("synergy_launch.megatron_lm.supervisor._LOOK_S", 0.05)
        self.watch = Supervisor(
            Plan(dp=1, micro_batch=8, global_batch=8), str(self.save), 64, step_log=str(folder / "steps.jsonl")
        )

    def run(self, last: int, then: Callable[[], None], nodes: tuple[str, ...] = ("here",), rank: int = 0) -> int:
        made = NodeCommand((sys.executable, str(self.script), str(self.save), str(last)), {})
        thread = threading.Thread(target=then)
        thread.start()
        try:
            where = JobAllocation(job_id=9, restarts=0, nodes=nodes, node_rank=rank, gpus=0, in_step=True, leader=True)
            return run_node(made, where, PlanFile(9, None, "ctl:1"), self.run_dir, self.watch)
        finally:
            thread.join()

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end
            time.sleep(0.005)

    def steps(self, number: int) -> Callable[[], bool]:
        return lambda: self.watch.log.newest is not None and self.watch.log.newest.iteration >= number

    @property
    def starts(self) -> list[int]:
        return [int(x) for x in (self.save / "starts").read_text().split()]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    kept = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)}
    signal.signal(signal.SIGUSR2, late)
    yield Site(tmp_path, monkeypatch)
    for number, handler in kept.items():
        signal.signal(number, handler)


def late(*_: object) -> None:
    """Takes a request that comes after the run's end, which would end pytest."""


def ask() -> None:
    os.kill(os.getpid(), signal.SIGUSR2)


def test_its_lines_become_reports_and_are_passed_on(
    site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert site.run(6, lambda: None) == 0
    last = site.reports[-1]
    assert (last.step, last.tokens, last.done, last.total) == (6, 6 * 512, 48, 48)
    assert last.loss == pytest.approx(8.994)
    assert last.step_s == pytest.approx(0.02) and last.plan is not None and last.plan.global_batch == 8
    assert capfd.readouterr().out.count("| lm loss: ") == 6
    log = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(e["step"], e["grad_norm"]) for e in log] == [(i, 1.0) for i in range(1, 7)]
    assert site.watch.state == "done"


def test_a_request_is_a_save_a_wait_and_a_new_start_from_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNERGY_HOLD_S", "0.3")

    def then() -> None:
        site.until(site.steps(3))
        ask()

    assert site.run(120, then) == 0
    assert len(site.starts) == 2 and site.starts[0] == 0 and 3 <= site.starts[1] < 120
    met = next(r for r in site.reports if r.checkpoint_requests == 1)
    assert met.checkpoint_step == site.starts[1] == met.step
    assert site.reports[-1].step == 120


def test_a_job_that_is_ended_while_it_waits_stays_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNERGY_HOLD_S", "30")

    def then() -> None:
        site.until(site.steps(3))
        ask()
        site.until(lambda: site.watch.state == "waiting")
        ask()  # nobody has trained since: the same checkpoint
        site.until(lambda: any(r.checkpoint_requests == 2 for r in site.reports))
        os.kill(os.getpid(), signal.SIGTERM)

    assert site.run(1000, then) == 0
    assert len(site.starts) == 1


def test_a_request_while_it_starts_waits_for_the_handler(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNERGY_HOLD_S", "0")
    monkeypatch.setenv("SLOW_START", "0.4")

    def then() -> None:
        site.until(lambda: signal.getsignal(signal.SIGUSR2) not in (late, signal.SIG_IGN))
        ask()

    assert site.run(60, then) == 0
    assert len(site.starts) == 2 and site.starts[1] >= 1  # it was not killed before it could save


def test_a_node_whose_workers_left_because_another_asked_comes_back_too(site: Site) -> None:
    tracker = site.save / "latest_checkpointed_iteration.txt"

    def watch(nodes: int, saved: int, *lines: bytes) -> Supervisor:
        made = Supervisor(None, str(site.save), 64, nodes=nodes)
        tracker.write_text(str(saved))
        for line in lines:
            made.log.parse_piece(line)
        return made

    line = b" iteration       20/      40 | consumed samples: 160 | elapsed time per iteration (ms): 20.0 | global batch size: 8 |\n"
    two = watch(2, 20, line)
    assert not two.has_left_as_asked(0, 0)  # nobody asked: the run is over
    assert two.has_left_as_asked(0, 1) and two.acknowledged == 1 and two.state == "waiting"
    assert not two.has_left_as_asked(0, 1) and not two.has_left_as_asked(1, 2)
    assert not watch(1, 20, line).has_left_as_asked(0, 1)  # alone it would know
    assert not watch(2, 19, line).has_left_as_asked(0, 1)  # nothing was saved on the way out
    ended = watch(2, 40, line)
    assert not ended.has_left_as_asked(0, 1) and ended.state == "done"


def test_a_request_in_the_last_moment_starts_no_finished_job_again(site: Site) -> None:
    site.script.write_text(SCRIPT + "tracker.write_text(str(at))\ntime.sleep(1.0)\n")

    def then() -> None:
        site.until(site.steps(5))
        ask()

    assert site.run(5, then) == 0
    assert site.starts == [0] and site.watch.state == "done"


def test_who_saves_nowhere_is_not_asked_to_leave(site: Site) -> None:
    site.watch = Supervisor(None, "", 64)

    def then() -> None:
        site.until(site.steps(3))
        ask()

    assert site.run(30, then) == 0
    assert site.starts == [0] and site.reports[-1].step == 30 and site.reports[-1].checkpoint_requests == 0


def test_what_starts_again_goes_on_from_its_own_checkpoint() -> None:
    first = ["torchrun", "pretrain_gpt.py", "--load", "/base", "--finetune", "--save", "/own", "--seq-length", "64"]
    again = with_resume(first)
    assert "--finetune" not in again and "/base" not in again
    assert again[again.index("--load") + 1] == again[again.index("--save") + 1] == "/own"
    assert with_resume(again) == again and with_resume(["pretrain_gpt.py"]) == ["pretrain_gpt.py"]


def test_a_script_without_a_handler_is_not_run_twice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.script.write_text(SCRIPT.replace("signal.signal(", "print("))

    def ask_at_three() -> None:
        site.until(site.steps(3))
        ask()

    assert site.run(20, ask_at_three) == 0
    assert site.starts == [0]


def test_what_fails_when_it_was_asked_to_save_has_failed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAVES_WITH", "3")

    def then() -> None:
        site.until(site.steps(2))
        ask()

    assert site.run(1000, then) == 3
    assert len(site.starts) == 1 and site.reports[-1].checkpoint_requests == 0


@pytest.mark.parametrize(("rank", "heard"), [(0, True), (1, False), (2, True)])
def test_of_many_nodes_the_last_one_reports_what_it_reads(site: Site, rank: int, heard: bool) -> None:
    assert site.run(3, lambda: None, ("a", "b", "c"), rank) == 0
    assert bool(site.reports) == heard  # Megatron prints on the last node only; here each one's script does


def test_who_is_asked() -> None:
    def child(code: str) -> subprocess.Popen[bytes]:
        made = subprocess.Popen([sys.executable, "-c", f"import signal, time\n{code}\nprint(flush=True)\ntime.sleep(20)"],
                                stdout=subprocess.PIPE)  # fmt: skip
        assert made.stdout is not None
        made.stdout.read(1)
        return made

    plain = child("")
    megatron = child("signal.signal(signal.SIGTERM, lambda *_: exit(0))")
    agent = child("[signal.signal(n, lambda *_: None) for n in (signal.SIGTERM, signal.SIGUSR2)]")
    try:
        assert {plain.pid, megatron.pid, agent.pid} <= set(find_workers(os.getpid()))
        assert (
            ask_to_leave(plain.pid, False) is LeaveAnswer.LATER and ask_to_leave(plain.pid, True) is LeaveAnswer.NOBODY
        )
        assert ask_to_leave(agent.pid, False) is LeaveAnswer.NEVER
        assert ask_to_leave(megatron.pid, False) is LeaveAnswer.ASKED
        assert megatron.wait(10) == 0 and plain.poll() is None
        assert not has_handler(2**22 + 1, signal.SIGTERM)
    finally:
        for process in (plain, megatron, agent):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_an_older_megatron_is_not_told_what_it_does_not_know(tmp_path: Path) -> None:
    user = ["--num-layers", "8", "--micro-batch-size", "1", "--use-distributed-optimizer"]
    info = tmp_path / "megatron" / "core" / "package_info.py"
    info.parent.mkdir(parents=True)
    script = tmp_path / "pretrain_gpt.py"
    assert find_version(tmp_path / "elsewhere" / "train.py") is None
    info.write_text("MAJOR = 0\nMINOR = 12\nPATCH = 3\n")
    assert find_version(script) == (0, 12)
    old = with_plan(user, Plan(dp=2, global_batch=8), version=find_version(script))
    assert "--dist-ckpt-optim-fully-reshardable" not in old and not can_reshard(old)
    assert can_reshard(with_plan(user, Plan(dp=2, global_batch=8)))
    assert can_reshard(with_plan(user, Plan(dp=2, global_batch=8, zero_stage=0), version=(0, 12)))
    info.write_text("nonsense")
    assert find_version(script) is None


def test_the_plan_that_a_command_line_amounts_to() -> None:
    words = ["--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2", "--micro-batch-size", "2"]
    words += ["--global-batch-size", "32", "--num-layers", "8", "--bf16", "--use-distributed-optimizer"]
    plan = Plan(tp=2, pp=2, dp=4, micro_batch=2, global_batch=32)
    assert read_plan(words, 16) == plan
    assert read_plan(words, 15) is None and read_plan(words[2:], 3) is None
    assert read_plan([], 8) is None
    told = Plan(tp=4, pp=2, dp=2, micro_batch=2, global_batch=64, recompute="full", sequence_parallel=True, vpp=2)
    assert read_plan(with_plan([*words, "--fp8-format", "hybrid"], told), 16) == Plan(
        4, 2, 2, 2, 64, "full", True, 1, 2, precision="fp8"
    )


def test_a_log_that_tells_of_every_tenth_step_is_not_taken_for_a_stall() -> None:
    status: dict[str, object] = {"state": "training", "step": 10, "step_s": 30.0, "steps_between": 10, "least_s": 100.0}
    assert stall_limit_s(status) == 600.0
    assert stall_limit_s({**status, "step_s": 1.0}) == 100.0
    stall = StallDetector(0.0)
    assert [stall.check(status, float(now)) for now in range(0, 601, 25)] == [None] * 24 + [600.0]


def test_a_node_that_does_not_report_finds_the_request_noted(tmp_path: Path) -> None:
    first, other = (Supervisor(None, str(tmp_path), 64, nodes=2) for _ in range(2))
    assert other.read_noted_request("9 1 0") == 0
    first.note_request(2, "9 1 0")
    assert (
        other.read_noted_request("9 1 0"),
        other.read_noted_request("9 2 0"),
        other.read_noted_request("9 1 1"),
    ) == (2, 0, 0)
    (tmp_path / "synergy-request").write_text("nonsense\n")
    assert other.read_noted_request("9 1 0") == 0
    # its ranks left with the first node's, at a checkpoint: it holds as that does, once
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("40")
    first.note_request(2, "9 1 0")
    assert other.has_left_as_asked(0, other.read_noted_request("9 1 0")) and other.acknowledged == 2
    assert not other.has_left_as_asked(0, other.read_noted_request("9 1 0"))
    alone = Supervisor(None, str(tmp_path / "alone"), 64)
    alone.note_request(1, "9 1 0")
    assert not (tmp_path / "alone").exists()
