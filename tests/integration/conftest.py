"""Clusters for tests of synergyd."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon_site import (
    MAINS,
    Here,
)
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import make_cluster

#: files that take a minute and more: first, so that no worker is left with one of them when the other has ended
LONGEST = (
    "test_demo",
    "test_twin",
    "test_link_gating",
    "test_usage",
    "test_daemon",
    "test_controllers",
    "test_walltime",
    "test_cloud",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`LONGEST` first, in their order; `make test` hands files out in this order."""
    here = Path(__file__).parent
    items.sort(
        key=lambda i: LONGEST.index(i.path.stem) if i.path.parent == here and i.path.stem in LONGEST else len(LONGEST)
    )


@pytest.fixture
def site() -> Iterator[SlurmCluster]:
    """Two nodes with four GPUs each and the plugin; an epoch a second."""
    with make_cluster(epoch_s=1) as cluster:
        yield cluster


@pytest.fixture
def bare() -> Iterator[SlurmCluster]:
    """The same without the plugin."""
    with make_cluster(epoch_s=1, plugin=False) as cluster:
        yield cluster


@pytest.fixture
def here(site: SlurmCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """`failed` for our own commands on `site`, in this process: a start of Python for each would take minutes."""

    def run(*argv: str, code: int) -> str:
        with monkeypatch.context() as patch:
            for key, value in site.env.items():
                patch.setenv(key, value)
            patch.setattr(sys, "argv", list(argv))
            with pytest.raises(SystemExit) as ended:
                MAINS[argv[0]]()
        said = capfd.readouterr()
        lines = [x for x in said.err.splitlines() if " INFO " not in x]
        assert (ended.value.code, len(lines)) == (code, 1), (argv, ended.value.code, said)
        return lines[0]

    return run
