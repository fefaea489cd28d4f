"""Lightning's counters, as a run with another number of micro-batches a step finds them. Forms as Lightning 2.6 writes them."""

from __future__ import annotations

from typing import Any

import pytest
from synergy_core.errors import UsageError
from synergy_launch.lightning.progress import rewrite


def counts(ready: int, started: int, processed: int, completed: int) -> dict[str, int]:
    return {"ready": ready, "started": started, "processed": processed, "completed": completed}


def checkpoint(steps: int, stepped: int, epoch: dict[str, int], current: dict[str, int], micro: int) -> dict[str, Any]:
    """After `steps` steps of `micro` micro-batches."""
    return {
        "global_step": steps,
        "loops": {
            "fit_loop": {
                "epoch_loop.state_dict": {"_batches_that_stepped": stepped},
                "epoch_loop.batch_progress": {
                    "total": counts(*[steps * micro] * 4),
                    "current": current,
                    "is_last_batch": current["ready"] == 6 * micro,
                },
                "epoch_progress": {"total": dict(epoch), "current": dict(epoch)},
            }
        },
    }


def found(written: dict[str, Any]) -> tuple[list[int], list[int], list[int], int, bool]:
    loop = written["loops"]["fit_loop"]
    batches, epochs = loop["epoch_loop.batch_progress"], loop["epoch_progress"]
    assert epochs["total"] == epochs["current"]
    rows = [list(row.values()) for row in (batches["total"], batches["current"], epochs["current"])]
    return rows[0], rows[1], rows[2], loop["epoch_loop.state_dict"]["_batches_that_stepped"], batches["is_last_batch"]


IN_EPOCH_1 = counts(2, 2, 1, 1)


@pytest.mark.parametrize(
    ("name", "current", "stepped"),
    [
        ("after a batch's last hook", counts(6, 6, 6, 5), 8),
        ("as the next batch begins", counts(7, 6, 6, 6), 9),
    ],
)
def test_inside_an_epoch_of_six_steps(name: str, current: dict[str, int], stepped: int) -> None:
    """Step 9 of the run is the third of epoch 1; 2 micro-batches a step become 4."""
    written = checkpoint(9, stepped, IN_EPOCH_1, current, 2)
    assert rewrite(written, 2, 4, 6) is False
    assert found(written) == ([36, 36, 36, 35], [12, 12, 12, 11], [2, 2, 1, 1], 8, False)


@pytest.mark.parametrize(
    ("name", "epoch", "current"),
    [
        ("after the last batch's last hook", counts(1, 1, 0, 0), counts(12, 12, 12, 11)),
        ("as the epoch's hooks end, where ModelCheckpoint writes", counts(1, 1, 1, 0), counts(12, 12, 12, 12)),
        ("as the next epoch's first batch begins", IN_EPOCH_1, counts(1, 0, 0, 0)),
        ("as the run ends", counts(1, 1, 1, 1), counts(12, 12, 12, 12)),
    ],
)
def test_between_two_epochs(name: str, epoch: dict[str, int], current: dict[str, int]) -> None:
    written = checkpoint(6, 5, epoch, current, 2)
    assert rewrite(written, 2, 1, 6) is True
    assert found(written) == ([6] * 4, [0] * 4, [1] * 4, 6, False)


def test_what_is_no_whole_step_or_unknown_is_one_line() -> None:
    with pytest.raises(UsageError, match="inside a step"):
        rewrite(checkpoint(9, 8, IN_EPOCH_1, counts(7, 7, 7, 6), 2), 2, 4, 6)
    with pytest.raises(UsageError, match=r"are not those of Lightning 2 \(KeyError: 'loops'\)"):
        rewrite({"global_step": 9}, 2, 4, 6)
