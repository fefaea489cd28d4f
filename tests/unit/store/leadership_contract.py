"""What holds of leadership and outages on each database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from synergy_core.errors import UnavailableError, UsageError
from synergy_core.records import (
    Profile,
)

from synergyd.store import connect, schema
from synergyd.store.buffer import BufferedStore
from synergyd.store.leader import ALONE_S, CLAIM_S, MARGIN_S, ORPHAN_S, RENEW_S, TERM_S, Leader, Nobody
from synergyd.store.records import Changes, StoredEvent
from synergyd.store.store import Store, open_store

# What a stranger may call a job: quotes, SQL, newline, NUL, not UTF-8, more than 16 bits
from tests.unit.store.store_world import (
    PROFILE,
    Clock,
    epoch,
    lifecycle,
)


class Beats(Nobody):
    """What several daemons see of one another."""

    count = 0

    def read_sign(self) -> str:
        return f"{self.count} {self.read_claimant()}"


class LeadershipContract:
    """`url` is a fresh database's, `store` is open on it, `outage` takes it away."""

    @pytest.fixture
    def made(self) -> Iterator[Callable[..., Leader]]:
        """Makes leaders, and ends them after the test."""
        leaders: list[Leader] = []

        def make(*args: Any, **options: Any) -> Leader:
            leaders.append(Leader(*args, **options))
            return leaders[-1]

        yield make
        for leader in leaders:
            leader.release()

    # Leadership

    def test_one_leads_the_other_stands_by(self, store: Store, url: str, made: Callable[..., Leader]) -> None:
        clock = Clock()
        one, two = made(url, clock=clock, host="h1", pid=11), made(url, clock=clock, host="h2", pid=22)
        assert one.try_lead() and not two.try_lead()
        assert one.is_leading and not two.is_leading and not two.is_database_away
        clock.now = 2000.0
        assert one.try_lead()
        row = store.leader()
        assert row is not None and (row.host, row.pid, row.heartbeat_s, row.term) == ("h1", 11, 2000.0, 1)
        one.release()
        row = store.leader()
        assert row is not None and row.pid == 0 and not one.is_leading
        assert two.try_lead() and not one.try_lead()
        row = store.leader()
        assert row is not None and (row.host, row.term, two.term) == ("h2", 2, 2)
        two.release()

    def test_a_silent_leader_has_stopped_before_the_other_starts(
        self, store: Store, url: str, made: Callable[..., Leader]
    ) -> None:
        now = Clock()
        one, two = made(url, clock=Clock(), elapsed=now), made(url, clock=Clock(), elapsed=now)
        assert one.try_lead() and not two.try_lead() and one.try_lead() and one.is_followed
        now.now += TERM_S - MARGIN_S - 0.1
        assert one.is_leading and not two.try_lead()  # which sees the renewal only now, and counts from here
        now.now += 0.1
        assert not one.is_leading
        now.now += TERM_S - 0.2
        assert not two.try_lead()
        now.now += 0.1
        assert two.try_lead() and two.term == 2
        assert not one.try_lead() and not one.is_database_away
        now.now += 1.0
        assert two.try_lead() and two.is_followed and not one.try_lead()
        one.release()
        assert two.try_lead() and not two.is_followed  # who ends in order stands by no more

    def test_renewed_in_time_it_stays(self, store: Store, url: str, made: Callable[..., Leader]) -> None:
        now = Clock()
        one, two = made(url, clock=Clock(), elapsed=now), made(url, clock=Clock(), elapsed=now)
        for _ in range(20):
            assert one.try_lead() and not two.try_lead() and one.term == 1
            now.now += 2 * RENEW_S
            assert one.is_leading

    def test_times_of_day_do_not_count(self, store: Store, url: str, made: Callable[..., Leader]) -> None:
        now, day = Clock(), Clock()
        one, two = made(url, clock=day, elapsed=now), made(url, clock=day, elapsed=now)
        assert one.try_lead() and not two.try_lead()
        for jump_s in (86400.0, -7 * 86400.0):
            day.now += jump_s
            now.now += RENEW_S
            assert one.try_lead() and not two.try_lead()

    def test_without_the_database_goes_on_who_is_alone(
        self, store: Store, url: str, outage: Callable[[], Callable[[], None]], made: Callable[..., Leader]
    ) -> None:
        now = Clock()
        one = made(url, clock=Clock(), elapsed=now)
        assert one.try_lead() and not one.is_followed
        bring_back = outage()
        for _ in range(3):
            now.now += ALONE_S - 1.0
            assert one.try_lead() and one.is_database_away
        now.now += ALONE_S
        assert not one.is_leading  # it did not even try: it was stopped itself, and asks first
        assert one.try_lead()
        bring_back()
        assert one.try_lead() and one.term == 1 and not one.is_database_away

    def test_without_the_database_stops_who_is_followed(
        self, store: Store, url: str, outage: Callable[[], Callable[[], None]], made: Callable[..., Leader]
    ) -> None:
        now = Clock()
        one, two = made(url, clock=Clock(), elapsed=now), made(url, clock=Clock(), elapsed=now)
        assert one.try_lead() and not two.try_lead() and one.try_lead()
        bring_back = outage()
        now.now += TERM_S - MARGIN_S - 0.1
        assert one.try_lead() and one.is_database_away
        now.now += 10 * ORPHAN_S
        assert not one.try_lead() and not two.try_lead()  # the database is away for both: nobody takes over
        bring_back()
        assert (
            not one.try_lead() and one.term == 1
        )  # another may have led meanwhile without it, and sees this row first
        now.now += TERM_S + 0.1
        assert one.try_lead() and one.term == 1
        two.release()

    def test_a_database_set_back_gives_no_two_leaders(
        self, store: Store, url: str, made: Callable[..., Leader]
    ) -> None:
        now = Clock()
        one, two = made(url, clock=Clock(), elapsed=now), made(url, clock=Clock(), elapsed=now)
        assert one.try_lead() and not two.try_lead() and one.try_lead()
        with store.engine.connect() as connection:
            before = connection.execute(text("SELECT holder, term, beat FROM leader")).one()
        now.now += TERM_S
        assert not two.try_lead()
        now.now += TERM_S
        assert two.try_lead() and two.term == 2 and not one.try_lead()
        with store.engine.execution_options(writes=True).begin() as connection:
            connection.execute(text("UPDATE leader SET holder = :holder, term = :term, beat = :beat"), before._asdict())
        assert not one.try_lead() and two.is_leading
        now.now += RENEW_S
        assert not two.try_lead() and not one.try_lead()
        now.now += TERM_S
        assert one.try_lead() and not two.is_leading

    def test_who_comes_while_the_leader_is_silent_waits_for_certainty(
        self, store: Store, url: str, made: Callable[..., Leader]
    ) -> None:
        now, beats = Clock(), Beats()
        one = made(url, clock=Clock(), elapsed=now)
        late = made(url, clock=Clock(), elapsed=now, witness=beats)
        assert one.try_lead()
        now.now += 1000.0
        assert not late.try_lead()  # a leader that is cut off goes on, since it knows of nobody
        now.now += ORPHAN_S - 1.0
        beats.count += 1  # it is seen elsewhere
        assert not late.try_lead()
        now.now += ORPHAN_S - 1.0
        assert not late.try_lead()
        now.now += 1.0
        assert late.try_lead() and late.term == 2
        assert not one.is_leading and not one.try_lead()

    def test_a_stand_by_that_says_nothing_is_forgotten(
        self, store: Store, url: str, made: Callable[..., Leader]
    ) -> None:
        now = Clock()
        one, two = made(url, clock=Clock(), elapsed=now), made(url, clock=Clock(), elapsed=now)
        assert one.try_lead() and not two.try_lead() and one.try_lead()
        while one.is_followed:
            now.now += RENEW_S
            assert one.try_lead()
        now.now += 1000.0
        assert not two.try_lead()  # it is no longer one that may take over
        now.now += 1.0
        assert one.try_lead() and one.is_followed

    def test_who_completes_no_epoch_leaves_the_lease_to_who_does(
        self, store: Store, url: str, made: Callable[..., Leader]
    ) -> None:
        now = Clock()
        one, two = made(url, clock=Clock(), elapsed=now), made(url, clock=Clock(), elapsed=now)
        one.try_lead()
        one.step_back()
        assert one.is_leading  # nobody else would
        assert not two.try_lead() and one.try_lead()
        one.step_back()
        assert not one.is_leading and not two.try_lead()
        now.now += TERM_S
        assert two.try_lead()
        one.step_back()
        assert two.try_lead() and not two.is_followed

    def test_started_while_the_database_is_away_it_leads_if_nobody_shows_up(
        self, store: Store, url: str, outage: Callable[[], Callable[[], None]], made: Callable[..., Leader]
    ) -> None:
        now, beats = Clock(), Beats()
        bring_back = outage()
        late = made(url, clock=Clock(), elapsed=now, witness=beats)
        assert not late.try_lead() and late.is_database_away
        now.now += ORPHAN_S - 1.0
        beats.count += 1
        assert not late.try_lead()
        now.now += ORPHAN_S
        assert not late.try_lead()
        now.now += CLAIM_S
        assert late.try_lead() and late.term is None
        bring_back()
        assert late.try_lead() and late.term == 1 and not late.is_database_away

    def test_of_several_started_while_the_database_is_away_one_leads(
        self, store: Store, url: str, outage: Callable[[], Callable[[], None]], made: Callable[..., Leader]
    ) -> None:
        now, beats = Clock(), Beats()
        bring_back = outage()
        leaders = [made(url, clock=Clock(), elapsed=now, witness=beats) for _ in range(3)]
        for _ in range(int(ORPHAN_S)):
            for leader in leaders:
                if leader.try_lead():
                    beats.count += 1
            now.now += 3.0
        assert [leader.is_leading for leader in leaders].count(True) == 1
        bring_back()
        assert [leader.try_lead() for leader in leaders].count(True) == 1

    def test_many_ask_at_once(self, store: Store, url: str, made: Callable[..., Leader]) -> None:
        leaders = [made(url, clock=Clock()) for _ in range(4)]
        start = threading.Barrier(len(leaders))
        led: list[bool] = []

        def ask(leader: Leader) -> None:
            start.wait()
            led.append(leader.try_lead())

        threads = [threading.Thread(target=ask, args=(leader,)) for leader in leaders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(led) == [False, False, False, True]
        for leader in leaders:
            leader.release()

    def test_schema_missing_is_said_to_the_leader(self, url: str) -> None:
        schema.upgrade(url)
        engine = connect.make_engine(connect.parse_url(url), migrating=True, pooled=False)
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE leader"))
        with pytest.raises(UsageError, match=r"leader.*synergyctl db upgrade"):
            Leader(url, clock=Clock()).try_lead()

    def test_an_earlier_leader_can_not_overwrite_the_next_ones_state(
        self, store: Store, url: str, made: Callable[..., Leader]
    ) -> None:
        one, two = made(url, clock=Clock()), made(url, clock=Clock())
        clock = Clock()
        late = BufferedStore(lambda: open_store(url), clock, term=lambda: one.term)
        assert one.try_lead() and late.refresh()
        late.put_lifecycles([lifecycle(1, "HELD")])
        late.append_events([StoredEvent(1, 1.0, "HELD", "requeued")])
        one.release()
        assert two.try_lead()
        store.apply(Changes(lifecycles=(lifecycle(1, "RUNNING"),), term=two.term))
        assert late.flush()
        assert store.lifecycles()[1].state == "RUNNING"  # the next leader's word stands
        assert [e.event for e in store.story(1)] == ["requeued"]  # what happened is told all the same
        assert late.drop_counts.fenced == 1 and late.fenced_term == 1
        two.release()
        late.close()

    # A database that is away

    def test_outage(self, store: Store, url: str, outage: Callable[[], Callable[[], None]]) -> None:
        clock = Clock()
        buffer = BufferedStore(lambda: open_store(url), clock)
        assert buffer.refresh() and buffer.is_healthy and buffer.is_loaded
        expected = []
        bring_back: Callable[[], None] | None = None
        for n in range(40):
            if n == 10:
                bring_back = outage()
            if n == 30:
                assert bring_back is not None
                assert not buffer.is_healthy and buffer.problem and buffer.lag > 20
                bring_back()
            clock.now += 30.0
            buffer.refresh()
            expected.append(
                StoredEvent(1, float(n), "RUNNING", f"step {n}", buffer.state.lifecycles[1].state if n else "")
            )
            buffer.append_events([expected[-1]])
            buffer.put_lifecycles([lifecycle(1, f"S{n}")])
            buffer.save_epoch(epoch(float(n), 1))
            buffer.flush()
        clock.now += 120.0
        assert buffer.flush() and buffer.is_healthy and buffer.lag == 0 and buffer.problem == ""
        assert store.story(1) == expected
        assert [e.detail for e in expected[1:]] == [f"S{n}" for n in range(39)]  # it always knew its own last word
        assert store.lifecycles()[1].state == "S39"
        assert [d.at_s for d in store.decisions_of(1, 100)] == [float(n) for n in range(39, -1, -1)]
        assert buffer.drop_counts.epochs == buffer.drop_counts.events == 0
        buffer.close()

    def test_away_from_the_start(self, store: Store, url: str, outage: Callable[[], Callable[[], None]]) -> None:
        store.put_lifecycles([lifecycle(1)])
        store.close()
        bring_back = outage()
        clock = Clock()
        buffer = BufferedStore(lambda: open_store(url), clock)
        assert not buffer.refresh() and not buffer.is_loaded and not buffer.is_healthy
        buffer.set_paused(3, True, 1.0)
        assert buffer.state.paused == {3}
        bring_back()
        clock.now += buffer.retry_in_s
        assert buffer.refresh() and buffer.is_loaded
        assert set(buffer.state.lifecycles) == {1} and buffer.state.paused == {3}
        buffer.close()

    def test_a_commit_whose_end_was_not_heard(self, store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = Clock()
        buffer = BufferedStore(lambda: open_store(url), clock)
        buffer.append_events([StoredEvent(1, 1.0, "RUNNING", "a"), StoredEvent(1, 1.0, "RUNNING", "a")])
        buffer.save_epoch(epoch(1.0, 1))
        apply = Store.apply

        def unheard(self: Store, changes: Changes) -> int:
            apply(self, changes)
            raise UnavailableError("database", "connection lost")

        with monkeypatch.context() as patch:
            patch.setattr(Store, "apply", unheard)
            assert not buffer.flush()
        assert buffer.lag == 4 and len(store.story(1)) == 2
        clock.now += 1.0
        assert buffer.flush() and buffer.lag == 0
        assert len(store.story(1)) == 2 and len(store.decisions_of(1)) == 1
        buffer.close()

    def test_a_refused_row_stops_nothing(self, store: Store, url: str) -> None:
        buffer = BufferedStore(lambda: open_store(url), Clock())
        buffer.append_events([StoredEvent(1, 1.0, "RUNNING", "a")])
        buffer.save_epoch(epoch(1.0, 1, 1))  # two decisions for one job
        buffer.append_events([StoredEvent(2**70, 1.0, "RUNNING", "no such job id")])
        buffer.append_events([StoredEvent(1, 2.0, "RUNNING", "b")])
        buffer.put_profiles({"job:1": Profile(memory=float("inf")), "job:2": PROFILE}, 1.0)
        assert buffer.flush() and buffer.is_healthy and buffer.lag == 0
        assert buffer.drop_counts.refused == 3 + 1 + 1 and "memory is inf" in buffer.problem
        assert [e.event for e in store.story(1)] == ["a", "b"]
        assert set(store.profiles()) == {"job:2"}
        buffer.close()
