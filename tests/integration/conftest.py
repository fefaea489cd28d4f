"""Clusters for tests of synergyd."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.integration.daemon_site import (
    MAINS,
    Here,
)
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import make_cluster


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
