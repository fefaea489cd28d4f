"""pytest plugin (list it in `pytest_plugins`): a throwaway PostgreSQL for the tests that ask for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.throwaway.postgres import Postgres, PostgresMissing


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One server a session. A test that stops it must start it again."""
    try:
        server = Postgres()
    except PostgresMissing as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres_server: Postgres) -> str:
    """URL of one empty database, shared by the session."""
    return postgres_server.database()


@pytest.fixture
def postgres_database(postgres_server: Postgres) -> str:
    """URL of an empty database of the test's own."""
    postgres_server.start()
    return postgres_server.database()
