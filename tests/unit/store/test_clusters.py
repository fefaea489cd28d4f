"""Clusters that share one PostgreSQL: each has its jobs, its lease and its history to itself."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from synergy_core.errors import NoSchemaError, UsageError

from synergyd.cli import first_start
from synergyd.cli.shared.context import Context
from synergyd.cli.synergyctl import cli
from synergyd.settings import Settings
from synergyd.slurm.directives.conf import load_settings
from synergyd.store import schema
from synergyd.store.connect import parse_url, show
from synergyd.store.leader import Leader
from synergyd.store.records import StoredEvent
from synergyd.store.store import open_store

pytest_plugins = ("tests.throwaway.fixtures_postgres",)
URL = "postgresql+psycopg://synergy@dbhost/synergy?schema={cluster}"


def conf(folder: Path, name: str, database: str) -> Path:
    path = folder / f"{name}.conf"
    path.write_text(f"ClusterName={name}\nSlurmctldHost=here\n#SYNERGY Database={database}\n")
    return path


def leader(url: str, cluster: str) -> Leader:
    return Leader(url, clock=time.time, cluster=cluster)


@pytest.mark.postgres
def test_two_clusters_in_one_database_do_not_see_each_other(postgres_database: str) -> None:
    alpha, beta = (f"{postgres_database}?schema={name}" for name in ("alpha", "beta-2"))
    assert schema.upgrade(alpha)[0] is None and schema.upgrade(alpha)[0] == schema.needed_revision()
    with pytest.raises(NoSchemaError, match="schema=beta-2"):
        open_store(beta)
    assert schema.revision(beta) is None and schema.upgrade(beta) == (None, schema.needed_revision())
    first, second = leader(alpha, "alpha"), leader(beta, "beta-2")
    try:
        assert first.try_lead() and second.try_lead()
        with open_store(alpha) as one, open_store(beta) as two:
            one.append_events([StoredEvent(7, 1.0, "RUNNING", "x", "of alpha")])
            two.append_events([StoredEvent(7, 2.0, "HELD", "x", "of beta")])
            assert [e.detail for e in one.story(7)] == ["of alpha"]
            assert [e.detail for e in two.story(7)] == ["of beta"]
        assert schema.revision(postgres_database) is None, "what lies beside them is another one's"
    finally:
        first.release()
        second.release()


@pytest.mark.postgres
def test_a_daemon_of_another_cluster_is_refused(postgres_database: str) -> None:
    schema.upgrade(postgres_database)
    first = leader(postgres_database, "alpha")
    try:
        assert first.try_lead()
        with pytest.raises(UsageError, match=r"holds the jobs of the cluster alpha, and this is beta.*\?schema="):
            leader(postgres_database, "beta").try_lead()
        assert first.try_lead()
    finally:
        first.release()
    with pytest.raises(UsageError, match="alpha"):  # nor after its end
        leader(postgres_database, "beta").try_lead()


def test_a_file_of_another_cluster_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/synergy.db"
    schema.upgrade(url)
    unnamed = leader(url, "")
    assert unnamed.try_lead()
    unnamed.release()
    first = leader(url, "alpha")
    assert first.try_lead()
    first.release()
    with pytest.raises(UsageError, match="alpha"):
        leader(url, "beta").try_lead()


def test_how_a_renamed_cluster_keeps_its_database_is_said(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/synergy.db"
    schema.upgrade(url)
    first = leader(url, "alpha")
    assert first.try_lead()
    first.release()
    with pytest.raises(
        UsageError, match=r"name another file.*after a rename: (UPDATE leader SET cluster = 'beta')$"
    ) as said:
        leader(url, "beta").try_lead()
    with closing(sqlite3.connect(tmp_path / "synergy.db")) as connection:
        connection.execute(str(said.value).partition("after a rename: ")[2])
        connection.commit()
    renamed = leader(url, "beta")
    assert renamed.try_lead()
    renamed.release()


@pytest.mark.parametrize("cluster", ["alpha", ""])
def test_a_look_at_another_cluster_s_database_is_refused_too(tmp_path: Path, cluster: str) -> None:
    """A dry run does not lead, but writes what it would have done."""
    url = f"sqlite:///{tmp_path}/synergy.db"
    open_store(url, create=True, cluster="beta").close()  # in which nobody has led
    first = leader(url, "alpha")
    assert first.try_lead()
    first.release()
    open_store(url, cluster=cluster).close()
    assert first_start.database(Settings(database=url), cluster).ok
    before = first_start.database(Settings(database=url), "beta")
    assert before.ok is False and "of the cluster alpha" in before.state_text
    with pytest.raises(UsageError, match="jobs of the cluster alpha, and this is beta"):
        open_store(url, cluster="beta")


@pytest.mark.parametrize("name", ["a%20b", 'a"b', "a;b", "x" * 64, "a&schema=b"])
def test_a_schema_s_name_is_a_plain_word(name: str) -> None:
    with pytest.raises(UsageError, match=r"\?schema= names no schema"):
        parse_url(f"postgresql://dbhost/synergy?schema={name}")


def test_the_cluster_s_name_stands_in_the_setting(tmp_path: Path) -> None:
    loaded = load_settings(conf(tmp_path, "Alpha", URL))
    assert loaded.cluster == "alpha" and loaded.settings.database.endswith("?schema=alpha")
    assert show(parse_url(loaded.settings.database)) == "postgresql+psycopg://dbhost/synergy?schema=alpha"
    assert Context(conf(tmp_path, "alpha", URL), cluster="beta").settings.database.endswith("?schema=beta")
    alone = conf(tmp_path, "alpha", URL.partition("?")[0])
    assert load_settings(alone).settings.database == URL.partition("?")[0]
    with pytest.raises(UsageError, match=r"cluster beta: .*alpha alone.*schema=\{cluster\}"):
        _ = Context(alone, cluster="beta").settings


@pytest.mark.parametrize(
    "line", ['ClusterName="Alpha"', "clustername = Alpha SlurmctldHost=here  # ours", "SlurmUser=x ClusterName=Alpha"]
)
def test_the_name_is_read_as_slurm_reads_it(tmp_path: Path, line: str) -> None:
    path = conf(tmp_path, "alpha", URL)
    path.write_text(path.read_text().replace("ClusterName=alpha", f"#ClusterName=old\n{line}"))
    assert load_settings(path).settings.database.endswith("?schema=alpha")


def test_without_a_name_nothing_stands_in_the_setting(tmp_path: Path) -> None:
    """An empty ?schema= would be the schema that all clusters share."""
    path = conf(tmp_path, "alpha", URL)
    path.write_text(path.read_text().replace("ClusterName=alpha\n", ""))
    with pytest.raises(UsageError, match=r"alpha.conf:2: .*\{cluster\}.*ClusterName"):
        _ = Context(path).settings
    assert Context(path, cluster="beta").settings.database.endswith("?schema=beta")


@pytest.mark.parametrize(
    "words",
    [["--database", "sqlite:////x.db", "-M", "b", "status"], ["-M", "b", "db", "upgrade", "--url", "sqlite:////x.db"]],
)
def test_a_cluster_and_a_database_are_not_named_both(tmp_path: Path, words: list[str]) -> None:
    """One of them would be passed over, and another cluster's job paused."""
    with pytest.raises(UsageError, match=r"--cluster b: .*name one of them"):
        cli(["--conf", str(conf(tmp_path, "alpha", URL)), *words], standalone_mode=False)


@pytest.mark.postgres
def test_status_of_another_cluster(postgres_database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = conf(tmp_path, "alpha", f"{postgres_database}?schema={{cluster}}")
    for words in (["db", "upgrade"], ["-M", "beta", "db", "upgrade"]):
        cli(["--conf", str(path), *words], standalone_mode=False)
    with open_store(f"{postgres_database}?schema=beta") as store:
        store.append_events([StoredEvent(7, 2.0, "HELD", "x", "of beta")])
    capfd.readouterr()
    cli(["--conf", str(path), "-M", "Beta", "explain", "7", "--json"], standalone_mode=False)
    assert "of beta" in capfd.readouterr().out
    with pytest.raises(UsageError, match="never seen"):
        cli(["--conf", str(path), "explain", "7"], standalone_mode=False)


@pytest.mark.parametrize("words", [("-M", "a b", "status"), ("-M", "beta", "plan"), ("-M", "beta", "config", "check")])
def test_a_verb_that_knows_one_cluster_alone_says_so(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--cluster"):
        cli(list(words), standalone_mode=False)
