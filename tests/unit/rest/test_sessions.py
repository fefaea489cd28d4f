"""The one-time link of `synergyctl page`, and the session that it opens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn
from synergy_core.errors import SynergyError
from synergy_core.wire import munge
from synergy_core.wire.munge import Credential

from synergyd.rest import server, sessions
from synergyd.rest.app import application
from synergyd.rest.identity import Identity, UnknownCallerError
from synergyd.rest.sessions import LINK_S, LINKS_A_USER, PREFIX, SESSION_S, LinkUsedError, Sessions
from synergyd.store.store import open_store
from tests.unit.rest.test_service import ANN, BOB, PRIVATE, FixedRights, Service, jobs, save


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_link_opens_one_session_within_its_time() -> None:
    clock = Clock()
    made = Sessions(clock)
    link = made.make_link("ann")
    user, token = made.open_session(link)
    assert user == "ann" and token.startswith(PREFIX) and made.user_of(token) == "ann"
    for wrong in (link, "", "x" * 9000, "\ud800", token):
        with pytest.raises(LinkUsedError):
            made.open_session(wrong)
    late = made.make_link("ann")
    clock.now_s += LINK_S + 1
    with pytest.raises(LinkUsedError):
        made.open_session(late)
    clock.now_s = SESSION_S + 1
    assert made.user_of(token) == made.user_of("x") == made.user_of(PREFIX) == ""


def test_nobody_fills_the_memory_or_ends_another_users_links() -> None:
    made = Sessions(Clock())
    bobs = made.make_link("bob")
    links = [made.make_link("ann") for _ in range(LINKS_A_USER + 5)]
    with pytest.raises(LinkUsedError):
        made.open_session(links[0])
    assert made.open_session(links[-1])[0] == "ann" and made.open_session(bobs)[0] == "bob"
    tokens = [made.open_session(made.make_link("ann"))[1] for _ in range(sessions.SESSIONS_A_USER + 3)]
    assert made.user_of(tokens[0]) == "" and made.user_of(tokens[-1]) == "ann"


def test_a_session_is_no_token_of_slurms() -> None:
    identity = Identity(jwt_key=b"k" * 32)
    _, token = identity.sessions.open_session(identity.sessions.make_link("ann"))
    for headers in ({"x-slurm-user-token": token}, {"authorization": f"Bearer {token}"}):
        assert identity.caller("GET", "/v1/status", headers, b"") == "ann"
        with pytest.raises(UnknownCallerError, match="in clear"):
            identity.caller("GET", "/v1/status", headers, b"", near=False)
    other = {"x-slurm-user-token": token, "x-slurm-user-name": "root"}
    assert identity.caller("GET", "/v1/status", other, b"") == "ann"  # it speaks for nobody else
    with pytest.raises(UnknownCallerError, match="has ended"):
        identity.caller("GET", "/v1/status", {"x-slurm-user-token": PREFIX + "x"}, b"")


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service without auth/jwt; munge vouches for whoever is named."""
    monkeypatch.setattr("synergyd.rest.identity.login_name", lambda uid: {1: "ann", 2: "bob"}[uid])

    def decode(text: str, socket: str = "") -> Credential:
        from synergy_core.wire.munge import request_digest

        if text not in ("1", "2"):
            raise SynergyError("munge", "forged")
        return Credential(request_digest("POST", "/v1/page-link", b""), int(text), int(text))

    def encode(payload: bytes, socket: str = "", for_uid: int | None = None) -> str:
        return f"{for_uid} {payload.decode()}"

    monkeypatch.setattr(munge, "decode", decode)
    monkeypatch.setattr(munge, "encode", encode)
    uids = {"ann": SimpleNamespace(pw_uid=1), "bob": SimpleNamespace(pw_uid=2)}
    monkeypatch.setattr("synergyd.rest.app.pwd.getpwnam", uids.__getitem__)
    with open_store(f"sqlite:///{tmp_path / 's.db'}", create=True) as store:
        save(store, ANN, BOB)
        made = Service.__new__(Service)
        made.store, made.listener = store, server.tcp_socket(0)
        made.port = made.listener.getsockname()[1]
        made.server = uvicorn.Server(server.uvicorn_config(application(store, Identity(), FixedRights(PRIVATE))))
        made.thread = threading.Thread(target=made.server.run, kwargs={"sockets": [made.listener]})
        made.thread.start()
        try:
            yield made
        finally:
            made.stop()


def test_the_way_of_the_page(real: Service) -> None:
    assert real.ask("", "/v1/page-link", "POST")[0] == 401
    assert real.ask("", "/v1/page-link", "POST", Authorization="Munge 3")[0] == 401
    code, _, made = real.ask("", "/v1/page-link", "POST", Authorization="Munge 1")
    uid, _, secret = made["link"].partition(" ")
    assert (code, made["user"], uid) == (200, "ann", "1")  # nobody else can open it
    wrong: object
    for wrong in ({"link": "x"}, {"link": 7}, {}, [], b"{"):
        assert real.ask("", "/v1/session", "POST", wrong)[0] == 401
    code, headers, session = real.ask("", "/v1/session", "POST", {"link": secret})
    assert code == 200 and session["user"] == "ann" and headers["cache-control"] == "no-store"
    assert real.ask("", "/v1/session", "POST", {"link": secret})[0] == 401
    assert jobs(real.ask("", "/v1/status", X_Slurm_User_Token=session["token"])[2]) == [1]  # as ann, PrivateData=jobs
    assert real.ask("", "/v1/status", X_Slurm_User_Token=session["token"] + "x")[0] == 401
