"""Notices from the outbox to a receiver: signed, once, again after an outage; whom a mail goes to, and that no text is a command."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from synergy_core.errors import UsageError
from synergy_core.notice import Notice

from synergyd.daemon.notices import mail
from synergyd.daemon.notices import sender as notice_sender
from synergyd.daemon.notices.mail import ADDRESS, Mail, recipient
from synergyd.daemon.notices.sender import FIRST_RETRY_S, GIVE_UP_S, MAILS_A_DAY, NoticeSender, start_notices
from synergyd.daemon.notices.webhook import NotSentError, Webhook, read_secret
from synergyd.settings import Settings
from synergyd.slurm.client import SlurmError
from synergyd.store.store import Store, open_store
from tests.throwaway.hook_server import HookServer, hook_server

SECRET = b"k" * 32
NOTICE = Notice(
    key="resize.7", event="resize", job_id=7, name="run", user="mina", account="chem", at_s=1000.0, text="8 -> 4"
)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db", create=True) as found:
        yield found


def sender(store: Store, clock: Clock, **changes: object) -> NoticeSender:
    told: dict[str, object] = {"webhook": None, "mail": None, "clock": clock}
    read_mail = changes.pop("read_mail", lambda _: ("", ""))
    return NoticeSender(lambda: store, read_mail, lambda: True, **(told | changes))  # type: ignore[arg-type]


def program(tmp_path: Path, end: str = "exit 0") -> Path:
    path = tmp_path / "mailprog"
    path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$#" "$@" >> {tmp_path}/mails\ncat >> {tmp_path}/mails\n{end}\n')
    path.chmod(0o755)
    return path


def test_a_notice_is_posted_once_with_its_signature(store: Store, server: HookServer) -> None:
    clock = Clock()
    one = sender(store, clock, webhook=Webhook(f"http://127.0.0.1:{server.port}/a?b=c", SECRET))
    store.put_notices([NOTICE, NOTICE])
    for _ in range(3):
        one.look()
        clock.now_s += 3600.0
    ((headers, body),) = server.taken
    assert json.loads(body)["text"] == "8 -> 4" and headers["Synergy-Notice"] == "resize.7"
    digest = hmac.new(SECRET, headers["Synergy-Time"].encode() + b"." + body, hashlib.sha256).hexdigest()
    assert headers["Synergy-Signature"] == f"sha256={digest}"
    store.put_notices([NOTICE])  # the daemon came back and made it again
    one.look()
    assert len(server.taken) == 1


@pytest.mark.slow
def test_a_receiver_that_is_away_is_tried_less_and_less_often_and_given_up_after_a_day(
    store: Store, server: HookServer
) -> None:
    clock, server.status = Clock(), 500
    one = sender(store, clock, webhook=Webhook(f"http://127.0.0.1:{server.port}/", SECRET))
    store.put_notices([replace(NOTICE, key=f"k{i}", at_s=1000.0 + i / 100) for i in range(50)])
    clock.now_s = 1001.0
    one.look()
    assert server.asked == 1, "the other 49 wait too"
    for i in range(40):
        clock.now_s += FIRST_RETRY_S * 2 ** min(i, 8)
        one.look()
    assert server.asked <= 42
    server.status = 204
    clock.now_s += 4000.0
    for _ in range(3):
        one.look()
    assert len(server.taken) == 50
    server.status = 500
    store.put_notices([replace(NOTICE, key="late", at_s=clock.now_s)])
    clock.now_s += GIVE_UP_S + 4000.0
    one.look()
    server.status, clock.now_s = 204, clock.now_s + GIVE_UP_S
    one.look()
    assert len(server.taken) == 50 and not store.due_notices(1e12, 9)


class Choosy(Webhook):
    """Takes every notice but one."""

    taken: ClassVar[list[str]] = []

    def post(self, notice: Notice) -> None:
        if notice.key == "bad":
            raise NotSentError("hook answered 413")
        self.taken.append(notice.key)


def test_a_notice_that_the_receiver_never_takes_holds_up_no_other(store: Store) -> None:
    clock, Choosy.taken = Clock(), []
    one = sender(store, clock, webhook=Choosy("https://h/", SECRET))
    store.put_notices([replace(NOTICE, key="bad"), *(replace(NOTICE, key=f"k{i}", at_s=1001.0) for i in range(9))])
    clock.now_s = 1001.0
    for _ in range(60):
        one.look()
        clock.now_s += 1.0
    assert len(Choosy.taken) == 9


def test_a_host_name_that_can_not_be_is_a_failure_as_any_other() -> None:
    with pytest.raises(NotSentError, match="UnicodeError"):
        Webhook("https://hooks..example.org/", SECRET).post(NOTICE)


def test_a_mail_that_goes_out_in_the_background_has_gone_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "TIMEOUT_S", 6.0)
    Mail(program(tmp_path, "sleep 9 &")).send(NOTICE, "mina")  # as mailx leaves its MTA, with the same standard error
    with pytest.raises(NotSentError, match="ended with 3: no such user"):
        Mail(program(tmp_path, "echo no such user >&2; exit 3")).send(NOTICE, "mina")


def test_a_redirect_is_not_followed_and_all_events_go_out(store: Store, server: HookServer) -> None:
    with hook_server() as other:
        server.status, server.location = 307, f"http://127.0.0.1:{other.port}/"
        with pytest.raises(NotSentError, match="answered 307"):
            Webhook(f"http://127.0.0.1:{server.port}/", SECRET).post(NOTICE)
        assert other.asked == 0
    server.status = 204
    one = sender(store, Clock(), webhook=Webhook(f"http://127.0.0.1:{server.port}/", SECRET))
    store.put_notices([NOTICE, replace(NOTICE, key="b", event="ban")])
    one.look()
    assert sorted(n["event"] for n in server.notices()) == sorted([NOTICE.event, "ban"]) and not store.due_notices(
        1e12, 9
    )


def test_a_mail_is_called_as_slurm_does_and_no_text_is_a_command(store: Store, tmp_path: Path) -> None:
    clock, path = Clock(), program(tmp_path)
    nasty = replace(NOTICE, name='$(touch x)`id`\n~!touch y"; -a', notify=("resize",))
    one = sender(store, clock, mail=Mail(path))
    store.put_notices([nasty])
    one.look()
    lines = (tmp_path / "mails").read_text().splitlines()
    assert lines[:2] == ["3", "-s"] and lines[3] == "mina"
    assert lines[2].startswith("Slurm Job_id=7 Name=$(touch x)`id`") and lines[2].isprintable()
    assert lines[4].startswith("Job 7 (") and not any(line.startswith("~") for line in lines)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mailprog", "mails", "x.db"] or not (tmp_path / "x").exists()


def test_a_clock_that_is_set_back_puts_no_notice_off(store: Store, server: HookServer) -> None:
    clock = Clock()
    one = sender(store, clock, webhook=Webhook(f"http://127.0.0.1:{server.port}/", SECRET))
    server.status = 503
    store.put_notices([NOTICE])
    one.look()
    clock.now_s -= 30 * 86400.0
    server.status = 204
    one.look()
    assert len(server.taken) == 1 and not store.due_notices(1e12, 9)


def test_a_mail_that_fails_is_tried_again_and_one_job_can_not_flood(store: Store, tmp_path: Path) -> None:
    clock = Clock()
    path = program(tmp_path, f"test -e {tmp_path}/up")
    one = sender(store, clock, mail=Mail(path), read_mail=lambda _: ("mina@example.org", "ALL"))
    store.put_notices([NOTICE])
    one.look()
    assert store.due_notices(clock.now_s + FIRST_RETRY_S, 9)
    (tmp_path / "up").touch()
    clock.now_s += FIRST_RETRY_S
    one.look()
    assert not store.due_notices(1e12, 9)
    store.put_notices([replace(NOTICE, key=f"m{i}", at_s=clock.now_s) for i in range(2 * MAILS_A_DAY)])
    (tmp_path / "mails").unlink()
    one.look()
    assert (tmp_path / "mails").read_text().count("Job_id=7") == MAILS_A_DAY - 1


def test_each_user_gets_the_mail_of_a_week_however_many_they_are(store: Store, tmp_path: Path) -> None:
    """They are all of job 0, which has no limit a day."""
    clock = Clock()
    one = sender(store, clock, mail=Mail(program(tmp_path)))
    week = Notice(key="", event="idle-week", job_id=0, at_s=clock.now_s, text="9.0 of your 10.0 GPU hours did nothing")
    store.put_notices([replace(week, key=f"w{i}", user=f"user{i}") for i in range(2 * MAILS_A_DAY)])
    one.look()
    one.look()
    assert (tmp_path / "mails").read_text().count("9.0 of your 10.0 GPU hours") == 2 * MAILS_A_DAY


def test_while_slurm_is_away_a_mail_waits_and_a_job_that_is_gone_has_its_directive(
    store: Store, tmp_path: Path
) -> None:
    transient = True

    def read_mail(_: int) -> tuple[str, str]:
        raise SlurmError("scontrol", "Invalid job id", transient=transient)

    clock = Clock()
    one = sender(store, clock, mail=Mail(program(tmp_path)), read_mail=read_mail)
    store.put_notices([NOTICE, replace(NOTICE, key="n", notify=("resize", "hold"))])
    one.look()
    assert not (tmp_path / "mails").exists()
    transient, clock.now_s = False, clock.now_s + FIRST_RETRY_S
    one.look()
    assert (tmp_path / "mails").read_text().count("Job_id=7") == 1 and not store.due_notices(1e12, 9)


@pytest.mark.parametrize(
    ("notify", "user", "kind", "address"),
    [
        ((), "", "", ""),
        ((), "m@x.org", "ALL", "m@x.org"),
        ((), "m@x.org", "BEGIN,END,FAIL,REQUEUE,STAGE_OUT", "m@x.org"),
        ((), "m@x.org", "END", ""),
        (("resize",), "", "", "mina"),
        (("resize",), "m@x.org", "END", "m@x.org"),
        (("hold",), "m@x.org", "ALL", ""),
        (("resize",), "-Xsendmail", "ALL", ""),
        (("resize",), "a@b.c,d@e.f", "ALL", ""),
        (("resize",), "|/bin/sh", "ALL", ""),
        (("resize",), "/etc/passwd", "ALL", ""),
        (("resize",), "m@x.org\nBcc: a@b", "ALL", ""),
        (("resize",), "m@x.org\n", "ALL", ""),
    ],
)
def test_whom_a_mail_goes_to(notify: tuple[str, ...], user: str, kind: str, address: str) -> None:
    assert recipient(replace(NOTICE, notify=notify), user, kind) == address
    assert not address or ADDRESS.fullmatch(address)


@pytest.mark.slow
def test_more_than_can_wait_is_given_up_oldest_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergyd.store.notices.MOST_WAITING", 3)
    store.put_notices([replace(NOTICE, key=f"k{i}", at_s=float(i)) for i in range(5)])
    assert store.prune_notices(0.0) == 2
    assert [w.notice.key for w in store.due_notices(1e12, 9)] == ["k2", "k3", "k4"]
    store.record_notice_attempt("k2", ["webhook"], 1, None)
    assert store.prune_notices(10.0) == 0 and store.prune_notices(10.0) == 0


def test_a_secret_that_others_can_read_or_guess_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="read by others"):
        read_secret(path)
    path.chmod(0o600)
    assert read_secret(path) == SECRET
    path.write_bytes(b"short\n")
    with pytest.raises(UsageError, match="holds 5 bytes"):
        read_secret(path)
    with pytest.raises(UsageError, match=r"can't be read .*openssl rand"):
        read_secret(tmp_path / "none")
    with pytest.raises(UsageError, match="is no program"):
        start_notices(Settings(mail_prog=path), lambda: None, lambda _: ("", ""), lambda: True)  # type: ignore[arg-type, return-value]
    assert start_notices(Settings(), lambda: None, lambda _: ("", ""), lambda: True) is None  # type: ignore[arg-type, return-value]


def test_a_database_that_is_away_is_opened_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread goes on, and says so once."""
    monkeypatch.setattr(notice_sender, "LOOK_S", 0.01)
    opened: list[int] = []

    def open_it() -> Store:
        opened.append(1)
        if len(opened) < 3:
            raise SlurmError("database", "away", transient=True)
        return store

    with hook_server() as server:
        hook = Webhook(f"http://127.0.0.1:{server.port}/", SECRET)
        one = NoticeSender(open_it, lambda _: ("", ""), lambda: True, webhook=hook, mail=None)
        store.put_notices([NOTICE])
        one.start()
        for _ in range(3000):
            if server.taken:
                break
            one._closing.wait(0.02)
        one.close()
        assert len(server.taken) == 1 and len(opened) == 3
