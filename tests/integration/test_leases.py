"""Two processes on one database: whatever is done to the leader, the other leads within 10 s, and never both."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from synergyd.store import connect, schema
from synergyd.store.leader import MARGIN_S, RENEW_S, TERM_S
from tests.throwaway.leading import Leading, Ledger
from tests.throwaway.postgres import Postgres
from tests.throwaway.proxy import Proxy

pytest_plugins = ["tests.throwaway.fixtures_postgres"]
pytestmark = pytest.mark.postgres
BOUND_S = 10.0


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    made: str = (
        f"sqlite:///{tmp_path}/x.db" if request.param == "sqlite" else request.getfixturevalue("postgres_database")
    )
    schema.upgrade(made)
    return made


@contextmanager
def leader_and_standby(url: str, folder: Path, leaders_url: str = "") -> Iterator[tuple[Leading, Leading, Ledger]]:
    """The second is known to the first, as after a few seconds of any life together."""
    ledger = Ledger(folder / "ledger")
    with ExitStack() as stack:
        began_s = time.monotonic()
        one = stack.enter_context(Leading("one", leaders_url or url, ledger))
        ledger.wait_for("one", began_s)
        two = stack.enter_context(Leading("two", url, ledger))
        until_known(url)
        yield one, two, ledger


def until_known(url: str) -> None:
    engine = connect.make_engine(connect.parse_url(url), pooled=False)
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        with engine.connect() as connection:
            if connection.exec_driver_sql("SELECT 1 FROM standbys WHERE acknowledged > 0").all():
                engine.dispose()
                return
        time.sleep(0.05)
    raise RuntimeError("the stand-by was not acknowledged")


def test_a_killed_leader_and_one_that_ends(url: str, tmp_path: Path) -> None:
    with leader_and_standby(url, tmp_path) as (one, two, ledger):
        at_s = one.send(signal.SIGKILL)
        assert ledger.wait_for("two", at_s) < BOUND_S
        with Leading("three", url, ledger):
            until_known(url)
            at_s = two.send(signal.SIGTERM)
            assert ledger.wait_for("three", at_s) < BOUND_S
        assert two.process.wait(60) == 0 and ledger.problem() == ""


def test_a_stopped_leader_is_followed_and_does_nothing_when_it_goes_on(url: str, tmp_path: Path) -> None:
    with leader_and_standby(url, tmp_path) as (one, _, ledger):
        at_s = one.send(signal.SIGSTOP)
        assert ledger.wait_for("two", at_s) < BOUND_S
        ledger.wait_for("two", one.send(signal.SIGCONT) + 2.0)
        assert one.process.poll() in (None, -signal.SIGALRM)
        assert ledger.problem() == "" and ledger.writes()[-1].name == "two"


def test_a_leader_that_is_stopped_just_before_a_write_does_not_make_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    schema.upgrade(url)
    with leader_and_standby(url, tmp_path) as (one, _, ledger):
        at_s = one.send(signal.SIGUSR1)
        assert ledger.wait_for("two", at_s) < BOUND_S
        one.send(signal.SIGCONT)
        assert one.process.wait(60) == -signal.SIGALRM
        assert ledger.problem() == ""


def test_a_leader_that_is_cut_off_stops_before_the_other_starts(
    postgres_server: Postgres, postgres_database: str, tmp_path: Path
) -> None:
    schema.upgrade(postgres_database)
    with Proxy(postgres_server.port) as proxy:
        through = postgres_database.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        with leader_and_standby(postgres_database, tmp_path, leaders_url=through) as (_, _, ledger):
            at_s = time.monotonic()
            proxy.silence()
            assert ledger.wait_for("two", at_s) < BOUND_S
            last = max(w.at_s for w in ledger.writes() if w.name == "one")
            assert at_s + TERM_S - MARGIN_S - RENEW_S - 2.0 < last
            proxy.mend()
            ledger.wait_for("two", time.monotonic() + 3.0)
            assert ledger.problem() == "" and ledger.writes()[-1].name == "two"
