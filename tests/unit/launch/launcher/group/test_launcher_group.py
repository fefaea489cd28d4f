"""What the launchers of a job's nodes say to one another, over real sockets, and what a stranger says."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.job_report import Fault
from synergy_core.node_check import NodeCheck
from synergy_core.records import Plan
from synergy_core.wire import munge
from synergy_core.wire.plan_file import PlanFile
from synergy_core.wire.report import ReportAnswer
from synergy_launch.agent.run_folder import read_proposed_batch
from synergy_launch.launcher import in_place
from synergy_launch.launcher.failures.plan_guard import PlanGuard
from synergy_launch.launcher.failures.stall_detector import STOPPED_S, StoppedRanks, has_stopped_process
from synergy_launch.launcher.group import launcher_group as groups
from synergy_launch.launcher.group.launcher_group import LauncherGroup, NextRun, next_run
from synergy_launch.launcher.in_place import Restarts
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.status_reports import StatusReports

PLAN = Plan(dp=4, global_batch=8)
NODES = ("n1", "n2", "n3")
SECRET = b"0123456789abcdef"


class Seals:
    """munge in memory; `uid` signs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uid = 1000
        monkeypatch.setattr(munge, "encode", lambda payload, socket="": f"MUNGE:{self.uid}:{payload.decode()}")
        monkeypatch.setattr(munge, "decode", self.decode)

    def decode(self, text: str) -> munge.Credential:
        if text.count(":") != 2:
            raise UsageError("credential", "is none")
        _, uid, payload = text.split(":")
        return munge.Credential(payload.encode(), int(uid), 0)


@pytest.fixture
def seals(monkeypatch: pytest.MonkeyPatch) -> Seals:
    monkeypatch.setattr(groups, "_AGAIN_S", 0.05)
    return Seals(monkeypatch)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    monkeypatch.setattr(groups, "meeting_ports", lambda secret, job, restarts, run: (number,))
    return number


@pytest.fixture(params=[b"", SECRET], ids=["munge", "secret"])
def nodes(seals: Seals, port: int, request: pytest.FixtureRequest) -> Iterator[list[LauncherGroup]]:
    """Of a job on three nodes, all connected."""
    made = [LauncherGroup(at(rank), "127.0.0.1", 1000, request.param) for rank in range(3)]
    until(made, lambda: all(c.is_connected for c in made))
    yield made
    for one in made:
        one.close()


def at(rank: int) -> JobAllocation:
    return JobAllocation(job_id=9, restarts=0, nodes=NODES, node_rank=rank, gpus=2, in_step=True, leader=rank == 0)


def until(some: list[LauncherGroup], true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        for one in some:
            one.poll()
        time.sleep(0.01)


def test_the_first_node_says_what_runs_next(nodes: list[LauncherGroup]) -> None:
    nodes[2].report_end(0, 7, "memory")
    until(nodes, lambda: bool(nodes[0].ends))
    assert nodes[0].ends == {2: (0, 7, "memory")}
    for word in (
        NextRun(1, 3, NODES, PLAN),
        NextRun(2, 3, NODES[:2]),
        NextRun(0, holds=True),
        NextRun(0),
        NextRun(0, code=9),
    ):
        nodes[0].tell(word)
        until(nodes, lambda: nodes[1].word == nodes[2].word == word)  # noqa: B023
    assert not nodes[0].ends


def test_the_first_node_hears_when_all_others_know_of_a_run(nodes: list[LauncherGroup]) -> None:
    nodes[0].tell(NextRun(1, 3, NODES, PLAN))
    until(nodes[:2], lambda: nodes[1].word is not None)
    nodes[0].poll()
    assert not nodes[0].is_known_to_all(1), "n3 has not read it"
    until(nodes, lambda: nodes[0].is_known_to_all(1))
    assert not nodes[0].is_known_to_all(2)
    nodes[1].close()
    nodes[0].tell(NextRun(2, 4, NODES, PLAN))
    until([nodes[0], nodes[2]], lambda: nodes[0].is_known_to_all(2))


def test_checks_of_all_nodes_reach_the_first_under_the_senders_own_names(nodes: list[LauncherGroup]) -> None:
    check = NodeCheck(node="n3", taken_s=1.0, gemm_flops=1e12)
    nodes[1].own_check, nodes[2].own_check = check, replace(check, device="NVIDIA H100 80GB HBM3", nvlinks=18.0)
    until(nodes, lambda: len(nodes[0].checks) == 2)
    assert nodes[0].checks == {"n2": replace(check, node="n2"), "n3": nodes[2].own_check}
    nodes[1].own_check = replace(check, taken_s=2.0)  # after a failure
    until(nodes, lambda: nodes[0].checks["n2"].taken_s == 2.0)
    for line in ("check {}", "check 1", 'check {"node":"n2","taken_s":3.0,"gemm_flops":-1}', "check " + "[" * 60_000):
        nodes[1].peers[0].say(line)
    nodes[1].report_end(0, 7, "exit")
    until(nodes, lambda: bool(nodes[0].ends))
    assert nodes[0].checks["n2"].taken_s == 2.0


def test_a_node_that_has_not_connected_knows_of_no_run(seals: Seals, port: int) -> None:
    first, second = (LauncherGroup(at(rank), "127.0.0.1", 1000) for rank in (0, 1))
    until([first, second], lambda: second.is_connected)
    first.tell(NextRun(1, 3, NODES, PLAN))
    until([first, second], lambda: [peer.heard_run for peer in first.peers] == [1])
    assert not first.is_known_to_all(1), "n3 is yet to come, and to be told"
    for one in (first, second):
        one.close()


@pytest.mark.timeout(60)
def test_a_message_ends_a_wait(nodes: list[LauncherGroup]) -> None:
    nodes[2].report_end(0, 7, "memory")
    nodes[0].wait(3600.0)
    nodes[0].poll()
    assert nodes[0].ends == {2: (0, 7, "memory")}
    nodes[1].close()
    nodes[0].wait(3600.0)
    nodes[0].poll()
    assert nodes[0].lost_ranks == {1}


def test_a_node_that_is_gone_is_lost(nodes: list[LauncherGroup]) -> None:
    nodes[1].close()
    until(nodes[:1], lambda: nodes[0].lost_ranks == {1})
    assert nodes[0].is_connected, "with all that are left"
    nodes[0].close()
    until(nodes[2:], lambda: not nodes[2].is_connected)


def test_strangers_are_not_heard(nodes: list[LauncherGroup], seals: Seals, port: int) -> None:
    for uid, words in ((1001, "synergy-node 9 0 1"), (1000, "synergy-node 8 0 1"), (1000, "synergy-node 9 1 1"),
                       (1000, "synergy-node 9 0 1"), (1000, "synergy-node 9 0 5"), (1000, "ended 0 1 exit")):  # fmt: skip
        with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
            stranger.sendall(f"MUNGE:{uid}:{words}\nended 0 1 exit\n".encode())
            for _ in range(20):
                nodes[0].poll()
                time.sleep(0.01)
            stranger.settimeout(30)
            assert stranger.recv(100) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        stranger.sendall(b"x" * 200_000)
        until(nodes, lambda: len(nodes[0].peers) == 2)
    assert not nodes[0].ends and not nodes[0].lost_ranks and nodes[0].is_connected


@pytest.mark.parametrize("secret", [b"", SECRET], ids=["munge", "secret"])
def test_silent_strangers_keep_no_node_out(seals: Seals, port: int, secret: bytes) -> None:
    first = LauncherGroup(at(0), "127.0.0.1", 1000, secret)
    others = [LauncherGroup(at(rank), "127.0.0.1", 1000, secret) for rank in (1, 2)]
    first.poll()
    with contextlib.ExitStack() as held:
        for said in (b"", b"MUNGE:10", b"MUNGE:1001:synergy-node 9 0 1\n") * 100:
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)).sendall(said)
        until([first, *others], lambda: all(one.is_connected for one in (first, *others)))
        for _ in range(300):
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        others[0].close()
        others[0] = LauncherGroup(at(1), "127.0.0.1", 1000, secret)
        until([first], lambda: first.lost_ranks == {1})
        assert first.is_connected and others[1].is_connected
    for one in (first, *others):
        one.close()


def test_a_node_passes_over_strangers_on_the_first_nodes_ports(seals: Seals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as taken:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        ports = (silent.getsockname()[1], taken.getsockname()[1], free)
        monkeypatch.setattr(groups, "meeting_ports", lambda secret, job, restarts, run: ports)
        made = [LauncherGroup(at(rank), "127.0.0.1", 1000, SECRET) for rank in range(3)]
        until(made, lambda: all(one.is_connected for one in made))
        assert not made[0].lost_ranks
        for one in made:
            one.close()


def test_a_line_that_was_sent_before_is_not_heard(seals: Seals, port: int) -> None:
    first, other = (LauncherGroup(at(rank), "127.0.0.1", 1000, SECRET) for rank in (0, 1))
    line, _ = other._hello(other._words("node", 1).encode())
    first.poll()
    answers = []
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as wire:
            wire.sendall(line.encode() + b"\n")
            wire.setblocking(False)
            answer: bytes | None = None
            end = time.monotonic() + 30
            while answer is None and time.monotonic() < end:
                first.poll()
                with contextlib.suppress(BlockingIOError):
                    answer = wire.recv(4096)
                time.sleep(0.01)
            answers.append(bool(answer))
        until([first], lambda: not first.peers)
    assert answers == [True, False]
    first.close()


def test_another_users_first_node_is_not_followed(seals: Seals, port: int) -> None:
    seals.uid = 1001
    first, other = LauncherGroup(at(0), "127.0.0.1", 1001), LauncherGroup(at(1), "127.0.0.1", 1000)
    for _ in range(30):
        first.poll()
        other.poll()
        time.sleep(0.01)
    assert not other.is_connected
    first.close()
    other.close()


@pytest.mark.parametrize(
    "line",
    ["", "run", "run 1 2 n1", "run x 2 n1 -", "run 1 2 n[1- -", "run 1 2 n1 tp:0", "run 99999999 0 n1 -", "overt", "over",
     "over 9 9", "over -1"],
)  # fmt: skip
def test_a_line_that_says_nothing(line: str) -> None:
    assert next_run(line) is None


def test_what_is_said_is_read_back() -> None:
    for word in (
        NextRun(1, 3, NODES, PLAN),
        NextRun(2, 3, NODES[:2]),
        NextRun(0, holds=True),
        NextRun(0),
        NextRun(0, code=9),
    ):
        assert next_run(word.line()) == word


# -- what follows from it ------------------------------------------------------------------------------------------


class Node:
    """One node's restarts with its guard, whose run has trained."""

    def __init__(self, group: LauncherGroup, *, mends: bool = True) -> None:
        self.guard = PlanGuard(group.allocation, PlanFile(9, Plan(dp=6, global_batch=24)), None)
        self.restarts = Restarts(group.allocation, None, group=group, mends=mends)
        for step in (1, 100):
            status = {"state": "training", "step": step, "checkpoint_step": step}
            if group.first:
                self.guard.look(status)
                self.restarts.look(status)


def poll_until(some: list[Node], true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while True:
        for node in some:
            node.restarts.poll()
        if true():
            return
        assert time.monotonic() < end


@pytest.fixture
def job(nodes: list[LauncherGroup]) -> list[Node]:
    return [Node(group) for group in nodes]


def test_an_order_reaches_all_nodes_before_the_first_ends_its_run(job: list[Node]) -> None:
    told = ReportAnswer(Plan(tp=2, dp=3, global_batch=24), 4)
    job[1].restarts.hear(told)
    job[0].restarts.hear(told)
    assert not job[0].restarts.is_decided
    end = time.monotonic() + 60
    while not all(node.restarts.is_decided for node in job):
        assert time.monotonic() < end
        for node in job:
            node.restarts.poll()
    assert not any(node.restarts.must_end_at_once for node in job)
    assert [node.restarts.begin_next_run(0, node.guard) for node in job] == [True] * 3
    assert [node.guard.plan for node in job] == [told.plan] * 3
    assert {(node.restarts.report_part.number, node.restarts.report_part.order) for node in job} == {(1, 4)}


def test_a_node_that_follows_no_order_promises_none(job: list[Node]) -> None:
    """A node that can't pass its status on reports it, and the daemon would wait for it in vain."""
    first, *others = (node.restarts for node in job)
    poll_until(job, lambda: all(each.can_restart for each in (first, *others)))
    assert first.report is not None and first.report.live
    for each in others:
        assert each.report is None
        each.report_part = replace(
            each.report_part, order=3
        )  # an order at which its run began is confirmed all the same
        assert each.report is not None and (each.report.order, each.report.live) == (3, False)


def test_the_first_node_reports_what_another_nodes_processes_say(job: list[Node], tmp_path: Path) -> None:
    """Megatron-LM's log is on the last node, where its processes also hear of a batch."""
    first, middle, last = (node.restarts for node in job)
    poll_until(job, lambda: all(each.can_restart for each in (first, middle, last)))
    assert not first.is_reported_by_first and last.is_reported_by_first
    status: dict[str, object] = {"state": "waiting", "step": 7, "checkpoint_step": 7, "note": "two words"}
    assert (last.share_status(status), middle.share_status(None)) == (status, None)
    poll_until(job, lambda: first.share_status(None) == status)
    assert first.share_status({"step": 9}) == {"step": 9}, "its own processes know better"
    first.propose(Plan(dp=6, global_batch=48))
    told = StatusReports(last.allocation, None, tmp_path, None, None, last)

    def has_heard() -> bool:
        told.poll()
        return read_proposed_batch(tmp_path) == (48, 1)

    poll_until(job, has_heard)
    first.report_part = replace(first.report_part, number=1)
    assert first.share_status(None) is None, "it is about the run before"


@pytest.mark.parametrize(
    "line", ["status 0 [1]", "status x {}", "status 0 {", "status 0 {} {}", "batch dp=x", "batch "]
)
def test_a_status_or_batch_that_says_nothing_changes_nothing(job: list[Node], line: str) -> None:
    first, last = job[0].restarts, job[2].restarts
    poll_until(job, lambda: all(each.can_restart for each in (first, last)))
    assert first.group is not None and last.group is not None
    for each in (*first.group.peers, *last.group.peers):
        each.say(line)
    last.share_status({"step": 1})
    poll_until(job, lambda: first.share_status(None) == {"step": 1})
    assert last.take_proposal() is None and all(each.can_restart for each in (first, last))


@pytest.mark.parametrize("mends", [True, False])
def test_nodes_leave_by_an_order_and_the_others_go_on(nodes: list[LauncherGroup], mends: bool) -> None:
    job = [Node(group, mends=mends) for group in nodes]
    first, leaver, third = job
    assert first.restarts.sheds_nodes
    first.restarts.hear(ReportAnswer(Plan(dp=4, global_batch=24), 1, nodes=("n1", "n3")))
    poll_until(job, lambda: all(node.restarts.is_decided for node in job))
    assert not any(node.restarts.must_end_at_once for node in job)
    assert [node.restarts.begin_next_run(0, node.guard) for node in job] == [True, False, True]
    assert [node.restarts.leaves for node in job] == [False, True, False]
    assert not leaver.guard.waits
    assert leaver.restarts.group is not None
    leaver.restarts.group.close()
    assert first.restarts.report is not None and first.restarts.report.order == 0, (
        "its task may still run: Slurm would kill it"
    )
    for node in (first, third):
        assert (node.guard.plan, node.restarts.allocation.nodes) == (Plan(dp=4, global_batch=24), ("n1", "n3"))
    for _ in range(20):
        poll_until([first, third], lambda: True)
        assert not first.restarts.is_broken_elsewhere and not first.restarts.has_lost_node, "nobody is missed"
    assert first.restarts.can_restart and third.restarts.allocation.node_rank == 1
    poll_until([first, third], lambda: first.restarts.report is not None and first.restarts.report.order == 1)
    first.restarts.hear(ReportAnswer(Plan(dp=2, global_batch=24), 2, nodes=("n1",)))
    poll_until([first, third], lambda: third.restarts.is_decided and first.restarts.is_decided)
    assert [node.restarts.begin_next_run(0, node.guard) for node in (first, third)] == [True, False]
    assert third.restarts.leaves and first.restarts.can_restart and not first.restarts.sheds_nodes


@pytest.mark.parametrize("names", [("n2", "n3"), ("n1", "n9"), ("n3", "n1")])
def test_an_order_without_the_first_node_or_with_unknown_ones_is_not_followed(
    job: list[Node], names: tuple[str, ...]
) -> None:
    job[0].restarts.hear(ReportAnswer(Plan(dp=4, global_batch=24), 1, nodes=names))
    poll_until(job, lambda: True)
    assert not job[0].restarts.is_decided


def test_a_run_that_is_not_mended_ends_as_without_the_connections(nodes: list[LauncherGroup]) -> None:
    job = [Node(group, mends=False) for group in nodes]
    first, other, _ = job
    assert other.restarts.group is not None
    other.restarts.group.report_end(0, 9, "memory")
    other.restarts.group.close()
    poll_until([first], lambda: bool(first.restarts.group and first.restarts.group.lost_ranks))
    assert not first.restarts.is_broken_elsewhere and not first.restarts.can_restart and not first.restarts.together
    assert first.restarts.cause(137, own=True) == (137, "")
    assert not first.restarts.begin_next_run(137, first.guard) and not other.restarts.follows


def test_by_default_a_run_is_mended_from_its_agents_first_checkpoint_on(nodes: list[LauncherGroup]) -> None:
    """Until then, and where there is no agent, each node ends by itself."""
    first, *others = (
        Restarts(group.allocation, None, group=group, mends=False, mends_checkpoints=True) for group in nodes
    )
    first.look({"state": "training", "step": 1, "checkpoint_step": None})
    for _ in range(20):
        for node in (first, *others):
            node.poll()
    assert not first.together and not any(node.follows or node.is_mended for node in others)
    first.look({"state": "training", "step": 20, "checkpoint_step": 20})
    end = time.monotonic() + 60
    while not all(node.follows and node.is_mended for node in others):
        assert time.monotonic() < end
        for node in (first, *others):
            node.poll()
    assert first.together and first.is_mended


def test_a_crash_on_another_node_restarts_all(job: list[Node]) -> None:
    first, other, third = job
    assert other.restarts.group is not None
    other.restarts.group.report_end(0, 9, "memory")
    end = time.monotonic() + 60
    while not first.restarts.is_broken_elsewhere:
        assert time.monotonic() < end
        first.restarts.poll()
    assert first.restarts.must_end_at_once and first.restarts.cause(137, own=False) == (9, "memory")
    assert first.restarts.begin_next_run(9, first.guard) and first.restarts.report_part.code == 9
    assert (first.restarts.report_part.cause, first.restarts.report_part.crash_nodes) == ("memory", ("n2",))
    assert not first.restarts.is_broken_elsewhere
    while not third.restarts.is_decided:
        assert time.monotonic() < end
        third.restarts.poll()
    assert third.restarts.must_end_at_once
    assert third.restarts.begin_next_run(137, third.guard) and other.restarts.begin_next_run(9, other.guard)
    assert {node.restarts.report_part.number for node in job} == {1}


def test_a_crash_before_the_other_nodes_have_connected_reaches_them(
    seals: Seals, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node alone has trained when its run crashes: the others, whose launchers start late, must not run on alone."""
    monkeypatch.setattr(in_place, "_CAUSE_S", 0.0)
    groups_of_job = [LauncherGroup(at(rank), "127.0.0.1", 1000, SECRET) for rank in range(3)]
    first, *others = (Node(group) for group in groups_of_job)
    first.restarts.poll()
    assert not first.restarts.can_restart
    connects = threading.Thread(
        target=until, args=(groups_of_job[1:], lambda: all(c.is_connected for c in groups_of_job[1:]))
    )
    connects.start()
    try:
        assert first.restarts.cause(9, own=True) == (9, "")
        connects.join()
        assert first.restarts.begin_next_run(9, first.guard)
        assert all(node.restarts.begin_next_run(137, node.guard) for node in others)
    finally:
        for group in groups_of_job:
            group.close()


def test_a_lost_node_leaves_the_largest_plan_on_the_others(job: list[Node]) -> None:
    first, lost, third = job
    assert lost.restarts.group is not None
    lost.restarts.group.close()
    end = time.monotonic() + 60
    while not first.restarts.is_broken_elsewhere:
        assert time.monotonic() < end
        first.restarts.poll()
    assert first.restarts.begin_next_run(1, first.guard)
    assert (first.guard.plan, first.restarts.allocation.nodes) == (Plan(dp=4, global_batch=24), ("n1", "n3"))
    assert (first.restarts.report_part.cause, first.restarts.report_part.crash_nodes) == ("", ("n2",))
    assert third.restarts.begin_next_run(1, third.guard)
    assert (third.guard.plan, third.restarts.allocation) == (
        first.guard.plan,
        replace(at(2), nodes=("n1", "n3"), node_rank=1),
    )
    assert first.restarts.can_restart and not first.restarts.is_broken_elsewhere


@pytest.mark.parametrize("waits", [False, True])
def test_the_end_of_a_job_is_told(job: list[Node], waits: bool) -> None:
    job[0].guard.waits = waits
    code = 2 if waits else 0
    assert [node.restarts.begin_next_run(code, node.guard) for node in job] == [False] * 3
    assert [(node.guard.waits, node.guard.tells) for node in job[1:]] == [(waits, False)] * 2


def test_the_other_nodes_processes_do_not_outlive_a_failed_job(job: list[Node]) -> None:
    job[0].restarts.look({"step": 100, "checkpoint_step": None})
    job[0].restarts._saved = None
    assert not job[0].restarts.begin_next_run(9, job[0].guard)
    end = time.monotonic() + 60
    while not job[1].restarts.is_decided:
        assert time.monotonic() < end
        job[1].restarts.poll()
    assert (
        job[1].restarts.must_end_at_once
        and not job[1].restarts.begin_next_run(137, job[1].guard)
        and job[1].restarts.code == 9
    )


def test_a_flood_of_false_lines_keeps_no_node_out(seals: Seals, port: int) -> None:
    """More than are kept come between two polls, from the nodes' own address, before a node's line and after it."""
    first, other = (LauncherGroup(replace(at(rank), nodes=NODES[:2]), "127.0.0.1", 1000, SECRET) for rank in (0, 1))
    first.poll()
    with contextlib.ExitStack() as held:
        for turn in range(2):
            for _ in range(300):
                stranger = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                stranger.sendall(b"KEY:9:0:1000:1:0:0:\n")
            if not turn:
                other.poll()
        first.poll()
        assert first.is_connected
    first.close()
    other.close()


class Broken:
    """A connection that the network has broken, in which the kernel says `error`."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def recv(self, _size: int) -> bytes:
        raise self._error

    def settimeout(self, _seconds: float) -> None:
        return

    def sendall(self, _data: bytes) -> None:
        return

    def close(self) -> None:
        return


SILENT = TimeoutError(110, "Connection timed out")
RESETS = (
    ConnectionResetError(104, "Connection reset by peer"),
    ConnectionAbortedError(103, "Software caused connection abort"),
)


def break_connection(group: LauncherGroup, rank: int, error: OSError = SILENT) -> None:
    peer = next(p for p in group.peers if p.rank == rank)
    peer.connection.close()
    peer.connection = Broken(error)  # type: ignore[assignment]


def steps(node: Node, step: int) -> None:
    node.restarts.look({"state": "training", "step": step, "step_s": 0.01, "checkpoint_step": 1})


def test_a_silent_node_is_lost_once_the_run_makes_no_steps_either(
    job: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "SILENT_S", 0.3)
    first, other, _ = job
    assert first.restarts.group is not None and other.restarts.group is not None
    other.restarts.group.close()
    break_connection(first.restarts.group, 1)
    end = time.monotonic() + 1.0
    for step in range(101, 100_000):  # the launchers' network alone is out of order
        steps(first, step)
        first.restarts.poll()
        assert not first.restarts.has_lost_node and not first.restarts.is_broken_elsewhere
        if time.monotonic() > end:
            break
    assert not first.restarts.can_restart, "it could not tell that node"
    poll_until([first], lambda: first.restarts.has_lost_node)
    assert first.restarts.begin_next_run(137, first.guard)
    assert first.restarts.allocation.nodes == ("n1", "n3")


@pytest.mark.parametrize("error", [SILENT, *RESETS])
def test_a_node_that_the_network_has_cut_off_and_that_connects_anew_is_not_lost(
    job: list[Node], error: OSError
) -> None:
    first, other, _ = job
    assert first.restarts.group is not None and other.restarts.group is not None
    break_connection(first.restarts.group, 1, error)
    poll_until(job, lambda: first.restarts.can_restart and other.restarts.can_restart)
    assert not first.restarts.group.silent_ranks and not first.restarts.has_lost_node


def test_a_node_that_connects_anew_hears_what_it_has_missed(job: list[Node]) -> None:
    first, other, _ = job
    assert first.restarts.group is not None and other.restarts.group is not None
    break_connection(first.restarts.group, 1, RESETS[0])
    first.restarts.group.tell(NextRun(1, 1, ("n1", "n2", "n3")))
    poll_until(job, lambda: other.restarts.group is not None and other.restarts.group.word is not None)


def test_only_a_rank_that_stays_stopped_hangs() -> None:
    stopped = {"is": False}
    watch, now_s = StoppedRanks(lambda pids: stopped["is"] and list(pids) == [7]), 0.0

    def look(seconds: float) -> bool:
        nonlocal now_s
        seen = False
        for _ in range(int(seconds / 0.2)):
            now_s += 0.2
            seen = watch.check(lambda: [7], now_s) or seen
        return seen

    assert not look(60.0)
    stopped["is"] = True
    assert not look(STOPPED_S - 2)
    stopped["is"] = False
    assert not look(5.0)
    stopped["is"] = True
    assert not look(STOPPED_S - 2)
    now_s += 3600.0  # the whole job was suspended
    assert not look(STOPPED_S - 2)
    assert look(5.0)


def test_the_state_of_a_stopped_process_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            assert not has_stopped_process([child.pid])
            child.send_signal(signal.SIGSTOP)
            end = time.monotonic() + 60
            while not has_stopped_process([2**22 + 1, child.pid]):  # the first is no process
                assert time.monotonic() < end
        finally:
            child.kill()


def test_a_hang_on_another_node_is_told_once_and_ends_the_run_only_if_there_is_a_checkpoint(job: list[Node]) -> None:
    first, other, _ = job
    first.restarts._saved = None
    assert not other.restarts.answer_hang() and not other.restarts.answer_hang()
    poll_until(job, lambda: bool(first.restarts.group and first.restarts.group.ends))
    assert not first.restarts.is_broken_elsewhere and not first.restarts.answer_hang()
    steps(first, 120)
    assert first.restarts.is_broken_elsewhere and first.restarts.answer_hang()


def test_a_node_that_follows_tells_of_a_hang_in_each_run(job: list[Node]) -> None:
    first, other, third = job
    for run in range(3):
        steps(first, 120 + 20 * run)
        assert not other.restarts.answer_hang()
        poll_until(job, lambda: first.restarts.is_broken_elsewhere)
        other.restarts.left = True  # as its launcher notes when it ends the processes for another node's sake
        assert first.restarts.begin_next_run(137, first.guard)
        for node in (other, third):
            poll_until(job, lambda node=node: node.restarts._word is not None)  # type: ignore[misc]
            assert node.restarts.begin_next_run(137, node.guard)
        assert not other.restarts.left, "what ends the next run by itself is looked into"
    assert first.restarts.report_part.number == other.restarts.report_part.number == 3


def test_the_first_node_reports_what_another_node_knows_of_its_end(job: list[Node]) -> None:
    first, other, _ = job
    assert other.restarts.group is not None
    fault = Fault(kind="disk", node="n2", folder="/a folder", free_bytes=0)
    other.restarts.group.report_end(0, 1, "disk", fault)
    end = time.monotonic() + 60
    while not first.restarts.is_broken_elsewhere:
        assert time.monotonic() < end
        first.restarts.poll()
    assert first.restarts.cause(137, own=False) == (1, "disk") and first.restarts.fault == fault
    assert first.restarts.begin_next_run(1, first.guard) and first.restarts.report_part.cause == "disk"
    assert first.restarts.group is not None and first.restarts.group.faults == {}


def test_a_fault_that_can_not_be_read_loses_no_end(nodes: list[LauncherGroup]) -> None:
    first, other, _ = nodes
    for said in ('{"kind":', '{"kind":"cosmic"}', "[]"):
        for peer in other.peers:
            peer.say(f"ended 0 9 gpu {said}")
        until(nodes, lambda: 1 in first.ends)
        assert (first.ends.pop(1), first.faults.pop(1)) == ((0, 9, "gpu"), None)
