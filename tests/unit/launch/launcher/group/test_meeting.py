"""Where torchrun's agents meet: real sockets, strangers on the ports, and nodes that do not come."""

from __future__ import annotations

import contextlib
import random
import shlex
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from synergy_launch.launcher.group import meeting
from synergy_launch.launcher.group.meeting import Meeting, NoMeetingError, find_meeting
from synergy_launch.launcher.job import job_secret
from synergy_launch.launcher.job.allocation import rendezvous_port

SECRET = b"0123456789abcdef"
ARGUMENTS = shlex.split("--nnodes 3 --node-rank 0 --master-addr 127.0.0.1 --master-port 1 t.py --nnodes 9")


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    """The first of three nodes of a job that no other test has."""
    monkeypatch.setattr(meeting, "_ANSWER_S", 0.5)
    monkeypatch.setattr(meeting, "_AGAIN_S", 0.1)
    job_id = random.SystemRandom().randrange(1, 2**31)  # the first node of the test before still answers
    return Meeting(job_id=job_id, restarts=0, step=0, run=0, nodes=3, rank=0, address="127.0.0.1", secret=SECRET)


def others_of(first: Meeting) -> list[Meeting]:
    return [replace(first, rank=rank) for rank in (1, 2)]


def meet(*firsts: Meeting) -> list[set[int]]:
    """The ports that the nodes of each meeting go to. The first nodes come last."""
    with ThreadPoolExecutor(2 * len(firsts)) as pool:
        asked = [[pool.submit(other.find_port) for other in others_of(first)] for first in firsts]
        ports = [first.find_port() for first in firsts]
        return [{port, *(a.result(120) for a in each)} for port, each in zip(ports, asked, strict=True)]


def test_all_nodes_go_to_a_free_port_that_the_first_took_at_random(first: Meeting) -> None:
    ports = [port for run in range(3) for each in meet(replace(first, run=run)) for port in each]
    assert len(ports) == 3 and len(set(ports)) > 1 and all(15000 <= port < 32000 for port in ports)
    with socket.create_server(("", ports[-1])):  # where torchrun listens next
        pass


def test_steps_of_a_job_that_run_at_once_meet_apart(first: Meeting) -> None:
    ports = meet(first, replace(first, step=1))
    assert [len(each) for each in ports] == [1, 1] and ports[0] != ports[1]


def test_strangers_on_the_ports_end_nothing(first: Meeting) -> None:
    """They listen on most of the places, and on the port that can be worked out, and connect to the rest in silence or with nonsense."""
    with contextlib.ExitStack() as held:
        for port in (*first._places[: job_secret.PLACES - 1], rendezvous_port(first.job_id, 0, 0)):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server(("", port), backlog=64))
        last = first._places[-1]
        with ThreadPoolExecutor(3) as nodes:
            port = first.find_port()
            for said in (b"", b"KEY:1:2\n") * 300:
                held.enter_context(socket.create_connection(("127.0.0.1", last), timeout=30)).sendall(said)
            ports = [nodes.submit(other.find_port) for other in others_of(first)]
            assert {p.result(120) for p in ports} == {port}


def test_a_node_that_did_not_get_the_answer_asks_again(first: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    port = first.find_port()
    assert [others_of(first)[at].find_port() for at in (0, 1, 0, 1)] == [port] * 4


def test_a_port_of_another_job_or_secret_is_not_believed(first: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MEETING_S", 1.5)
    monkeypatch.setattr(Meeting, "_places", first._places)
    replace(first, secret=b"another secret of 24").find_port()
    with pytest.raises(NoMeetingError, match="did not say within"):
        others_of(first)[0].find_port()


def test_nodes_that_cannot_meet_end_in_one_line(first: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MEETING_S", 0.5)
    with contextlib.ExitStack() as held:
        taken = [held.enter_context(socket.create_server(("", 0))) for _ in range(8)]
        monkeypatch.setattr(Meeting, "_places", tuple(each.getsockname()[1] for each in taken))
        with pytest.raises(NoMeetingError, match="all ports that were tried are taken"):
            first.find_port()
        with pytest.raises(NoMeetingError, match="did not say within"):
            others_of(first)[1].find_port()


@pytest.mark.parametrize(
    ("words", "secret"), [("", SECRET), ("7", SECRET), ("7 0 0 x", SECRET), ("7 0 2 1", b"short"), ("7 0 2 1", SECRET)]
)
def test_which_meeting_the_launcher_names(words: str, secret: bytes) -> None:
    """Without a secret, as of a job that an older plugin has seen, torchrun's own arguments say where."""
    named = find_meeting(ARGUMENTS, {meeting.VARIABLE: words, job_secret.VARIABLE: secret.decode()})
    if words != "7 0 2 1" or secret != SECRET:
        assert named is None
    else:
        assert named == Meeting(
            job_id=7, restarts=0, step=2, run=1, nodes=3, rank=0, address="127.0.0.1", secret=SECRET
        )
