"""Fixtures that several test folders use, and one line for what this machine lacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import python_path
from tests.throwaway.slurm import NodeGroup, SlurmCluster, missing_programs

# console scripts of the environment that runs the tests, for jobs too
os.environ.pop("COLUMNS", None)  # tables have the width of a pipe, whatever runs the tests
# this checkout's packages, whatever is installed; processes that tests start inherit it
os.environ["PYTHONPATH"] = python_path()
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need Slurm are skipped, saying so, where it is not installed."""
    missing = missing_programs()
    if missing:
        reason = f"not installed here: {', '.join(missing)} (make test installs them)"
        for item in items:
            if item.get_closest_marker("slurm"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    """Two nodes with four GPUs each, fresh for every test."""
    with SlurmCluster([NodeGroup("cpu", 2, 4)]) as started:
        yield started
