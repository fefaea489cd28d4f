"""What the store promises on every database: here on SQLite, in tests/integration/test_store_postgresql.py on the
other."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event, text

from synergyd.errors import UnavailableError, UsageError
from synergyd.records import (
    Accepts,
    Action,
    Alternative,
    Cell,
    Decision,
    Measurement,
    ModelSpec,
    Plan,
    Profile,
    Report,
    Shape,
)
from synergyd.store import connect, schema
from synergyd.store.buffer import BufferedStore
from synergyd.store.codec import RefusedError
from synergyd.store.leader import Leader
from synergyd.store.records import Changes, EpochRecord, Keyed, StoredEvent, StoredLifecycle, StoredReport
from synergyd.store.store import Store, open_store
from synergyd.store.tables import Base

# What a stranger may call a job: quotes, SQL, newline, NUL, not UTF-8, more than 16 bits
NASTY = "x'; DROP TABLE events; --\"\n$(id) \x00 \udcff ü 火 🜂"
NASTY_STORED = "x'; DROP TABLE events; --\"\n$(id) \\x00 \\udcff ü 火 🜂"

SPEC = ModelSpec("gpt-mini", 4, 128, 4, 2, 512, 1000, 256, gated=True)
PLAN = Plan(2, 1, 2, 4, 64, recompute="full", sequence_parallel=True, zero_stage=0)
CELL = Cell(Shape("a100", 2, 2), PLAN, 12.5, 0.75, 9.375, 5.12, 30 * 2**30, 0.1)
MEASURED = (Measurement(Plan(2, 1, 4, 1, 64), Shape("a100", 1, 8), 1.25), Measurement(Plan(), Shape("h100", 1, 1), 2.0))
PROFILE = Profile(0.9, 1.1, 17, 123.5, True, SPEC, 64, MEASURED, Accepts(True, False, True, "fp8"))
REPORT = Report(7, 1, 1200, 0.5, 2.25, 10**12, 100.0, 5 * 10**10, 1100, 2, PLAN, True, SPEC, "note")


def decision(job_id: int, why: str = "more GPUs help it most") -> Decision:
    alternatives = (Alternative(CELL, "slower"),)
    return Decision(
        job_id, Action.RESIZE, CELL, ("n1",), why, 1.5, alternatives, (("goodput", 0.5), ("need", 50.0)), 0.9
    )


def epoch(at_s: float, *jobs: int, error: str = "") -> EpochRecord:
    return EpochRecord(at_s, 0.25, False, tuple(decision(j) for j in jobs), {"gpus": 8}, error)


def lifecycle(job_id: int, state: str = "RUNNING", at_s: float = 5.0) -> StoredLifecycle:
    return StoredLifecycle(job_id, 1.0, state, {"restarts": 2, "nested": {"a": [1, None]}}, at_s)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class StoreContract:
    """Subclasses give the fixtures `url` (of an empty database) and `outage` (a function that takes the database
    away; what it returns brings it back)."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        schema.upgrade(url)
        with open_store(url) as store:
            yield store

    # A recording for a replay

    def test_the_past_of_the_whole_queue(self, store: Store) -> None:
        wait = Decision(1, Action.WAIT, None, (), "no GPUs")
        store.save_epoch(EpochRecord(10.0, 0.1, False, (wait, decision(2)), {"gpus": 8}))
        later = replace(decision(1), cell=replace(CELL, goodput=1.0))
        store.save_epoch(EpochRecord(20.0, 0.1, False, (later,), {"gpus": 16}, present=({"job_id": 1},)))
        store.append_events([StoredEvent(2, 30.0, "GONE", "Observed"), StoredEvent(1, 21.0, "RUNNING", "Observed")])
        store.put_profiles({"job:1": PROFILE}, 5.0)
        found = store.recording()
        assert found.seen_s == {1: 10.0, 2: 10.0}
        assert found.first_cells == {1: later.cell, 2: CELL}
        assert [(e.job_id, e.at_s) for e in found.events] == [(1, 21.0), (2, 30.0)]
        assert found.remembered.profiles == {"job:1": PROFILE} and found.remembered.unreadable == ()
        assert found.latest is not None and (found.latest.summary, found.latest.present) == (
            {"gpus": 16},
            ({"job_id": 1},),
        )

    # Schema

    def test_up_from_empty(self, url: str) -> None:
        assert schema.revision(url) is None
        assert schema.upgrade(url) == (None, schema.needed())
        assert schema.revision(url) == schema.needed()
        assert schema.upgrade(url) == (schema.needed(), schema.needed())

    def test_models_and_migrations_agree(self, url: str) -> None:
        schema.upgrade(url)
        with open_store(url) as store, store.engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []

    def test_down_and_up_again(self, url: str) -> None:
        schema.upgrade(url)
        parsed = connect.parse_url(url)
        engine = connect.make_engine(parsed, migrating=True, pooled=False)
        config = schema.config()
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "base")
        with pytest.raises(UsageError, match=r"has no schema.*synergyctl db upgrade"):
            open_store(url)
        schema.upgrade(url)
        open_store(url).close()

    def test_a_failing_migration_leaves_nothing(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> None:
            command_upgrade(*_)
            raise UnavailableError("x", "lost")

        command_upgrade = command.upgrade
        with monkeypatch.context() as patch:
            patch.setattr(command, "upgrade", fail)
            with pytest.raises(UnavailableError):
                schema.upgrade(url)
        assert schema.revision(url) is None
        assert schema.upgrade(url) == (None, schema.needed())

    def test_schema_missing_behind_or_ahead(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        _, head = schema.upgrade(url)
        with monkeypatch.context() as patch:
            patch.setattr(schema, "needed", lambda: "9999")
            with pytest.raises(UsageError, match=f"at revision {head}, revision 9999 is needed; run: synergyctl db"):
                open_store(url)
        with open_store(url) as store, store.engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = 'abcd'"))
        for act in (open_store, schema.upgrade):
            with pytest.raises(UsageError, match=f"at revision abcd, this version knows up to {head}; install a newer"):
                act(url)

    # Records in and out

    def test_epoch_and_decisions(self, store: Store) -> None:
        first = EpochRecord(
            10.0, 0.5, True, (decision(1), decision(2, NASTY)), {"gap": float("inf"), "x": NASTY}, NASTY
        )
        store.save_epoch(first)
        store.save_epoch(epoch(20.0, 2))
        read = store.latest_epoch()
        assert read == epoch(20.0, 2)
        assert [d.at_s for d in store.decisions_of(2)] == [20.0, 10.0]
        assert store.decisions_of(2)[1].decision == decision(2, NASTY_STORED)
        assert store.decisions_of(2, limit=1) == [store.last_decision(2)]
        last = store.last_decision(1)
        assert last is not None and last.dry_run and last.decision == decision(1)
        assert store.last_decision(3) is None

    def test_jobs_as_they_stood_are_kept_of_the_last_epoch_only(self, store: Store) -> None:
        for at_s in (1.0, 2.0):
            store.save_epoch(EpochRecord(at_s, 0.1, False, present=({"job_id": 7, "name": "a'b", "at": at_s},)))
        latest = store.latest_epoch()
        assert latest is not None and latest.present == ({"job_id": 7, "name": "a'b", "at": 2.0},)
        with store.engine.connect() as connection:
            kept = connection.execute(text("select count(*) from epochs where present is not null")).scalar()
        assert kept == 1

    def test_latest_epoch_is_the_last_to_start(self, store: Store) -> None:
        assert store.latest_epoch() is None
        store.save_epoch(EpochRecord(20.0, 0.5, False, (), {}, NASTY))
        store.save_epoch(epoch(10.0, 1))  # written late
        assert store.latest_epoch() == EpochRecord(20.0, 0.5, False, (), {}, NASTY_STORED)

    def test_waiting_decision(self, store: Store) -> None:
        wait = Decision(4, Action.WAIT, None, (), "no GPUs free")
        store.save_epoch(replace(epoch(1.0), decisions=(wait,)))
        last = store.last_decision(4)
        assert last is not None and last.decision == wait

    def test_written_twice_is_written_once(self, store: Store) -> None:
        events = [StoredEvent(1, 5.0, "RUNNING", "start", "a"), StoredEvent(1, 5.0, "RUNNING", "start", "a")]
        for _ in range(2):
            store.save_epoch(epoch(1.0, 1, 2), write_key="e")
            store.append_events(events, write_key="v")
        assert len(store.decisions_of(1)) == 1
        assert store.story(1) == events
        store.append_events(events)
        assert len(store.story(1)) == 4

    def test_story_in_order(self, store: Store) -> None:
        store.append_events(
            [StoredEvent(1, 2.0, "HELD", "b"), StoredEvent(2, 2.0, "HELD", NASTY), StoredEvent(1, 2.0, "HELD", "c")]
        )
        store.append_events([StoredEvent(1, 1.0, "RUNNING", "a", NASTY), StoredEvent(1, 3.0, NASTY * 20, "d")])
        assert [e.event for e in store.story(1)] == ["a", "b", "c", "d"]
        assert store.story(1)[0].detail == NASTY_STORED
        assert store.story(2) == [StoredEvent(2, 2.0, "HELD", NASTY_STORED)]
        assert store.story(3) == []

    def test_lifecycles(self, store: Store) -> None:
        store.put_lifecycles([lifecycle(1), lifecycle(2), lifecycle(4_294_967_295)])
        store.put_lifecycles([lifecycle(2, "HELD"), lifecycle(2, "RELEASED", 9.0)])
        store.delete_lifecycles([1, 99])
        assert store.lifecycles() == {
            2: lifecycle(2, "RELEASED", 9.0),
            4_294_967_295: lifecycle(4_294_967_295),
        }

    def test_profiles(self, store: Store) -> None:
        store.put_profiles({"job:1": PROFILE, f"model:{NASTY}/a100": Profile()}, 5.0)
        store.put_profiles(
            {"job:1": replace(PROFILE, samples=18, model=None, noise_scale=None, accepts=Accepts(cp=True))}, 6.0
        )
        assert store.profile("job:1") == Profile(0.9, 1.1, 18, None, True, None, 64, MEASURED, Accepts(cp=True))
        assert store.profiles() == {
            "job:1": Profile(0.9, 1.1, 18, None, True, None, 64, MEASURED, Accepts(cp=True)),
            f"model:{NASTY_STORED}/a100": Profile(),
        }
        assert store.profile("job:2") is None

    def test_flags(self, store: Store) -> None:
        store.set_paused(5, True, 1.0)
        store.set_paused(5, True, 2.0)
        store.set_paused(6, True, 1.0)
        store.set_paused(6, False, 2.0)
        store.add_no_directive([(7, 100.0), (7, 200.0), (7, 100.0)], 3.0)
        assert store.paused() == {5}
        assert store.no_directive() == {(7, 100.0), (7, 200.0)}

    def test_reports(self, store: Store) -> None:
        store.put_reports([StoredReport(REPORT, 1.0), StoredReport(replace(REPORT, job_id=8), 1.0)])
        store.put_reports([StoredReport(replace(REPORT, step=1300, note=NASTY), 2.0)])
        newest = StoredReport(replace(REPORT, step=1300, note=NASTY_STORED), 2.0)
        assert store.report(7) == newest
        assert store.reports() == {7: newest, 8: StoredReport(replace(REPORT, job_id=8), 1.0)}
        assert store.report(9) is None

    def test_remembered(self, store: Store) -> None:
        store.put_lifecycles([lifecycle(1)])
        store.put_profiles({"job:1": PROFILE}, 5.0)
        store.set_paused(5, True, 1.0)
        store.add_no_directive([(7, 100.0)], 3.0)
        store.put_reports([StoredReport(REPORT, 1.0)])
        read = store.remembered()
        assert read.lifecycles == {1: lifecycle(1)}
        assert read.profiles == {"job:1": PROFILE}
        assert (read.paused, read.no_directive) == (frozenset({5}), frozenset({(7, 100.0)}))
        assert read.reports == {7: StoredReport(REPORT, 1.0)}

    def test_a_bad_row_does_not_stop_the_others(self, store: Store) -> None:
        store.put_profiles({"job:1": PROFILE, "job:2": PROFILE}, 5.0)
        with store.engine.begin() as connection:
            connection.execute(text("""UPDATE profiles SET model = '{"name": 3}' WHERE key = 'job:1'"""))
        read = store.remembered()
        assert list(read.profiles) == ["job:2"]
        assert read.unreadable == ("profile job:1: model.name: 3 is not text",)

    def test_forget_jobs_keeps_the_past(self, store: Store) -> None:
        store.put_lifecycles([lifecycle(1), lifecycle(2)])
        store.put_reports([StoredReport(replace(REPORT, job_id=1), 1.0)])
        store.set_paused(1, True, 1.0)
        store.append_events([StoredEvent(1, 2.0, "DONE", "ended")])
        store.forget_jobs([1])
        assert list(store.lifecycles()) == [2]
        assert store.paused() == set() and store.reports() == {}
        assert len(store.story(1)) == 1

    def test_prune(self, store: Store) -> None:
        # more than one transaction's worth
        store.apply(Changes(history=tuple(Keyed(f"e{at_s}", epoch(float(at_s), 1)) for at_s in range(450))))
        store.append_events(
            [
                StoredEvent(1, 1.0, "RUNNING", "a"),
                StoredEvent(2, 1.0, "RUNNING", "b"),
                StoredEvent(2, 500.0, "DONE", "c"),
            ]
        )
        store.put_lifecycles([lifecycle(1)])
        store.put_reports([StoredReport(replace(REPORT, job_id=j), 1.0) for j in (1, 2)])
        store.put_profiles({k: PROFILE for k in ("job:1", "job:2", "like:1", "model:m/a100")}, 1.0)
        store.add_no_directive([(7, 1.0)], 1.0)
        store.set_paused(3, True, 1.0)
        assert store.prune(440.0) == 440 + 1 + 1 + 2 + 1
        assert [d.at_s for d in store.decisions_of(1, 100)] == [float(s) for s in range(449, 439, -1)]
        assert len(store.story(1)) == 1 and [e.event for e in store.story(2)] == ["c"]
        assert set(store.profiles()) == {"job:1", "model:m/a100"} and set(store.reports()) == {1}
        assert store.no_directive() == set() and store.paused() == {3}
        with store.engine.connect() as connection:
            assert connection.execute(text("SELECT count(*) FROM decisions")).scalar() == 10

    def test_statements_do_not_grow_with_the_jobs(self, store: Store) -> None:
        seen: list[str] = []

        @event.listens_for(store.engine, "before_cursor_execute")
        def on_execute(_c: object, _cursor: object, statement: str, *_: object) -> None:
            if not statement.startswith("BEGIN"):
                seen.append(statement)

        counts = []
        for jobs in (range(1, 4), range(1, 401)):
            seen.clear()
            store.apply(
                Changes(
                    history=(
                        Keyed(f"e{len(jobs)}", epoch(float(len(jobs)), *jobs)),
                        *(Keyed(f"v{len(jobs)}.{j}", (StoredEvent(j, 1.0, "RUNNING", "a"),)) for j in jobs),
                    ),
                    lifecycles=tuple(lifecycle(j) for j in jobs),
                    gone=tuple(1000 + j for j in jobs),
                    profiles=tuple((f"job:{j}", PROFILE, 1.0) for j in jobs),
                    reports=tuple(StoredReport(replace(REPORT, job_id=j), 1.0) for j in jobs),
                    paused=((1, True, 1.0), (2, False, 1.0)),
                    no_directive=tuple((j, 1.0, 1.0) for j in jobs),
                    term=1,
                )
            )
            writes = len(seen)
            store.remembered()
            counts.append((writes, len(seen) - writes))
        assert counts == [(12, 4), (12, 4)]

    # What is not taken

    def test_a_refused_row_takes_its_transaction_with_it(self, store: Store) -> None:
        for bad in (
            Changes(history=(Keyed("a", epoch(1.0, 1, 1)),)),
            Changes(profiles=(("job:1", Profile(speed=float("nan")), 1.0),)),
            Changes(lifecycles=(replace(lifecycle(1), payload={"x": object()}),)),
            Changes(lifecycles=(lifecycle(2**70),)),
        ):
            with pytest.raises(RefusedError):
                store.apply(replace(bad, paused=((5, True, 1.0),)))
        assert store.latest_epoch() is None and store.paused() == frozenset()

    # Leadership

    def test_one_leads_the_other_stands_by(self, store: Store, url: str) -> None:
        clock = Clock()
        one, two = Leader(url, clock=clock, host="h1", pid=11), Leader(url, clock=clock, host="h2", pid=22)
        assert one.try_lead() and not two.try_lead()
        assert one.leads and not two.leads and not two.away
        clock.now = 2000.0
        assert one.try_lead()
        row = store.leader()
        assert row is not None and (row.host, row.pid, row.heartbeat_s, row.term) == ("h1", 11, 2000.0, 1)
        one.release()
        row = store.leader()
        assert row is not None and row.pid == 0 and not one.leads
        assert two.try_lead() and not one.try_lead()
        row = store.leader()
        assert row is not None and (row.host, row.term, two.term) == ("h2", 2, 2)
        two.release()

    def test_many_ask_at_once(self, store: Store, url: str) -> None:
        leaders = [Leader(url, clock=Clock()) for _ in range(4)]
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

    def test_an_earlier_leader_can_not_overwrite_the_next_ones_state(self, store: Store, url: str) -> None:
        one, two = Leader(url, clock=Clock()), Leader(url, clock=Clock())
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
        assert late.dropped.fenced == 1
        two.release()
        late.close()

    # A database that is away

    def test_outage(self, store: Store, url: str, outage: Callable[[], Callable[[], None]]) -> None:
        clock = Clock()
        buffer = BufferedStore(lambda: open_store(url), clock)
        assert buffer.refresh() and buffer.healthy and buffer.loaded
        expected = []
        bring_back: Callable[[], None] | None = None
        for n in range(40):
            if n == 10:
                bring_back = outage()
            if n == 30:
                assert bring_back is not None
                assert not buffer.healthy and buffer.problem and buffer.lag > 20
                bring_back()
            clock.now += 30.0
            buffer.refresh()
            expected.append(
                StoredEvent(1, float(n), "RUNNING", f"step {n}", buffer.remembered.lifecycles[1].state if n else "")
            )
            buffer.append_events([expected[-1]])
            buffer.put_lifecycles([lifecycle(1, f"S{n}")])
            buffer.save_epoch(epoch(float(n), 1))
            buffer.flush()
        clock.now += 120.0
        assert buffer.flush() and buffer.healthy and buffer.lag == 0 and buffer.problem == ""
        assert store.story(1) == expected
        assert [e.detail for e in expected[1:]] == [f"S{n}" for n in range(39)]  # it always knew its own last word
        assert store.lifecycles()[1].state == "S39"
        assert [d.at_s for d in store.decisions_of(1, 100)] == [float(n) for n in range(39, -1, -1)]
        assert buffer.dropped.epochs == buffer.dropped.events == 0
        buffer.close()

    def test_away_from_the_start(self, store: Store, url: str, outage: Callable[[], Callable[[], None]]) -> None:
        store.put_lifecycles([lifecycle(1)])
        store.close()
        bring_back = outage()
        clock = Clock()
        buffer = BufferedStore(lambda: open_store(url), clock)
        assert not buffer.refresh() and not buffer.loaded and not buffer.healthy
        buffer.set_paused(3, True, 1.0)
        assert buffer.remembered.paused == {3}
        bring_back()
        clock.now += buffer.retry_in_s
        assert buffer.refresh() and buffer.loaded
        assert set(buffer.remembered.lifecycles) == {1} and buffer.remembered.paused == {3}
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
        assert buffer.flush() and buffer.healthy and buffer.lag == 0
        assert buffer.dropped.refused == 3 + 1 + 1 and "memory is inf" in buffer.problem
        assert [e.event for e in store.story(1)] == ["a", "b"]
        assert set(store.profiles()) == {"job:2"}
        buffer.close()


class TestSqlite(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        return f"sqlite:///{tmp_path / '%41 a#b.db'}"

    @pytest.fixture
    def outage(self, url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Callable[[], None]]:
        """Another process sits on the database's lock."""
        monkeypatch.setattr(connect, "BUSY_S", 0.01)

        def take_away() -> Callable[[], None]:
            holder = sqlite3.connect(connect.parse_url(url).database or "", isolation_level=None)
            holder.execute("BEGIN EXCLUSIVE")
            return holder.close

        return take_away
