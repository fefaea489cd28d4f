"""What the store promises on every database: here on SQLite, in tests/integration/test_store_postgresql.py on the
other."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event, text
from synergy_core.accepts import Accepts
from synergy_core.errors import UnavailableError, UsageError
from synergy_core.reasons import text_reason
from synergy_core.records import (
    Action,
    Decision,
    Profile,
)
from synergy_core.steering import Steering

from synergyd.store import connect, schema
from synergyd.store.records import Changes, EpochRecord, KeyedRow, RefusedError, StoredEvent, StoredNode, StoredReport
from synergyd.store.store import Store, open_store
from synergyd.store.tables import Base
from tests.unit.store.leadership_contract import LeadershipContract

# What a stranger may call a job: quotes, SQL, newline, NUL, not UTF-8, more than 16 bits
from tests.unit.store.store_world import (
    CELL,
    MEASURED,
    NASTY,
    NASTY_STORED,
    PROFILE,
    REPORT,
    decision,
    epoch,
    lifecycle,
)


class StoreContract(LeadershipContract):
    """Subclasses give the fixtures `url` (of an empty database) and `outage` (a function that takes the database
    away; what it returns brings it back)."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        schema.upgrade(url)
        with open_store(url) as store:
            yield store

    # A recording for a replay

    def test_the_past_of_the_whole_queue(self, store: Store) -> None:
        wait = Decision(1, Action.WAIT, None, (), text_reason("no GPUs"))
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
        assert schema.upgrade(url) == (None, schema.needed_revision())
        assert schema.revision(url) == schema.needed_revision()
        assert schema.upgrade(url) == (schema.needed_revision(), schema.needed_revision())

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
        assert schema.upgrade(url) == (None, schema.needed_revision())

    def test_schema_missing_behind_or_ahead(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        _, head = schema.upgrade(url)
        with monkeypatch.context() as patch:
            patch.setattr(schema, "needed_revision", lambda: "9999")
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
        wait = Decision(4, Action.WAIT, None, (), text_reason("no GPUs free"))
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
        assert store.paused_jobs() == {5}
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
        store.put_lifecycles([lifecycle(7)])
        store.put_reports([StoredReport(REPORT, 1.0)])
        store.put_nodes([StoredNode("n1", {"name": "n1"}, 1.0), StoredNode("n2", {}, 2.0)])
        store.put_nodes([StoredNode("n1", {"name": "n1", "drained": True}, 3.0)])
        read = store.read_state()
        assert read.nodes["n1"] == StoredNode("n1", {"name": "n1", "drained": True}, 3.0) == store.nodes()["n1"]
        assert read.lifecycles == {1: lifecycle(1), 7: lifecycle(7)}
        assert read.profiles == {"job:1": PROFILE}
        assert (read.paused, read.no_directive) == (frozenset({5}), frozenset({(7, 100.0)}))
        assert read.reports == {7: StoredReport(REPORT, 1.0)}

    def test_of_jobs_that_have_left_nothing_is_remembered_but_what_programs_share(self, store: Store) -> None:
        """They are kept for 30 days: what an epoch starts from does not grow with them."""
        store.put_lifecycles([lifecycle(1), lifecycle(7)])
        store.put_reports([StoredReport(replace(REPORT, job_id=j), 1.0) for j in (1, 7)])
        store.put_profiles({k: PROFILE for k in ("job:1", "job:7", "job:17", "like:1", "length:a:b:1:2:1")}, 5.0)
        store.delete_lifecycles([7])
        read = store.read_state()
        assert set(read.profiles) == {"job:1", "like:1", "length:a:b:1:2:1"} and set(read.reports) == {1}
        assert store.report(7) is not None and set(store.recording().remembered.reports) == {1, 7}

    def test_a_bad_row_does_not_stop_the_others(self, store: Store) -> None:
        store.put_lifecycles([lifecycle(1), lifecycle(2)])
        store.put_profiles({"job:1": PROFILE, "job:2": PROFILE}, 5.0)
        with store.engine.begin() as connection:
            connection.execute(text("""UPDATE profiles SET model = '{"name": 3}' WHERE key = 'job:1'"""))
        read = store.read_state()
        assert list(read.profiles) == ["job:2"]
        assert read.unreadable == ("profile job:1: model: name is 3; expected text",)

    def test_prune(self, store: Store) -> None:
        # more than one transaction's worth
        store.apply(Changes(history=tuple(KeyedRow(f"e{at_s}", epoch(float(at_s), 1)) for at_s in range(450))))
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
        store.put_nodes([StoredNode("n1", {}, 1.0), StoredNode("n2", {}, 500.0)])
        assert store.prune(440.0) == 440 + 1 + 1 + 2 + 1 + 1
        assert list(store.nodes()) == ["n2"]
        assert [d.at_s for d in store.decisions_of(1, 100)] == [float(s) for s in range(449, 439, -1)]
        assert len(store.story(1)) == 1 and [e.event for e in store.story(2)] == ["c"]
        assert set(store.profiles()) == {"job:1", "model:m/a100"} and set(store.reports()) == {1}
        assert store.no_directive() == set() and store.paused_jobs() == {3}
        with store.engine.connect() as connection:
            assert connection.execute(text("SELECT count(*) FROM decisions")).scalar() == 10

    def test_steering_holds_until_the_job_is_gone(self, store: Store) -> None:
        assert store.steering(3) is None
        store.set_steering(3, Steering(min_gpus=2), 1.0)
        store.set_steering(3, Steering(max_gpus=4, weight=0.5), 2.0)
        assert store.steering(3) == Steering(max_gpus=4, weight=0.5) == store.read_state().steering[3]
        store.delete_lifecycles([3])
        assert store.steering(3) is None and not store.read_state().steering

    def test_its_version_changes_with_what_status_shows(self, store: Store) -> None:
        seen = [store.version()]
        store.save_epoch(epoch(5.0, 1))
        seen.append(store.version())
        store.append_events([StoredEvent(1, 6.0, "RUNNING", "a")])
        seen.append(store.version())
        store.put_reports([StoredReport(REPORT, 7.0)])
        seen.append(store.version())
        assert len(set(seen)) == 4 and store.version() == seen[-1]

    def test_statements_do_not_grow_with_the_jobs(self, store: Store) -> None:
        seen: list[str] = []

        @event.listens_for(store.engine, "before_cursor_execute")
        def on_execute(_c: object, _cursor: object, statement: str, *_: object) -> None:
            if not statement.startswith(("BEGIN", "SET LOCAL")):
                seen.append(statement)

        counts = []
        for jobs in (range(1, 4), range(1, 401)):
            seen.clear()
            store.apply(
                Changes(
                    history=(
                        KeyedRow(f"e{len(jobs)}", epoch(float(len(jobs)), *jobs)),
                        *(KeyedRow(f"v{len(jobs)}.{j}", (StoredEvent(j, 1.0, "RUNNING", "a"),)) for j in jobs),
                    ),
                    lifecycles=tuple(lifecycle(j) for j in jobs),
                    gone=tuple(1000 + j for j in jobs),
                    profiles=tuple((f"job:{j}", PROFILE, 1.0) for j in jobs),
                    reports=tuple(StoredReport(replace(REPORT, job_id=j), 1.0) for j in jobs),
                    paused=((1, True, 1.0), (2, False, 1.0)),
                    no_directive=tuple((j, 1.0, 1.0) for j in jobs),
                    nodes=tuple(StoredNode(f"n{j}", {"marks": []}, 1.0) for j in jobs),
                    term=1,
                )
            )
            writes = len(seen)
            store.read_state()
            counts.append((writes, len(seen) - writes))
        assert counts == [(14, 6), (14, 6)]

    # What is not taken

    def test_a_refused_row_takes_its_transaction_with_it(self, store: Store) -> None:
        for bad in (
            Changes(history=(KeyedRow("a", epoch(1.0, 1, 1)),)),
            Changes(profiles=(("job:1", Profile(speed=float("nan")), 1.0),)),
            Changes(lifecycles=(replace(lifecycle(1), payload={"x": object()}),)),
            Changes(lifecycles=(lifecycle(2**70),)),
        ):
            with pytest.raises(RefusedError):
                store.apply(replace(bad, paused=((5, True, 1.0),)))
        assert store.latest_epoch() is None and store.paused_jobs() == frozenset()


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
