"""What a daemon keeps in memory does not grow with the epochs that it has completed."""

from __future__ import annotations

import gc
from pathlib import Path

from synergyd.daemon import service
from tests.unit.daemon.daemon_world import Site

EPOCHS = 40


def test_what_an_epoch_leaves_behind_is_collected_before_the_rest_is_frozen(tmp_path: Path) -> None:
    """SQLAlchemy and others leave cycles: frozen, they stayed for 500 epochs."""
    site = Site(tmp_path / "site")
    site.running(1, "n1")
    try:
        for epoch in range(1, EPOCHS + 1):
            site.report(1, 1000, step=10 + epoch)
            site.epoch(60.0)
            service._spare_collector(epoch)
        gc.unfreeze()
        assert gc.collect() < 10 * EPOCHS
    finally:
        gc.unfreeze()
