"""The two gradient norms of a step, that the noise scale is made of, against the same by hand: no sampling error."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.integration import training_ranks
from tests.integration.training_ranks import Call

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("kind", "degrees", "batch", "micro"),
    [
        ("ddp", {"dp": 2}, 8, 2),
        ("fsdp", {"dp": 2}, 12, 1),
        ("fsdp", {"dp": 2}, 4, 2),  # a step is one micro-batch: two steps are compared
        ("mesh", {"tp": 2, "dp": 2}, 8, 2),
        ("mesh", {"tp": 2}, 4, 4),
        ("loose", {"tp": 2, "dp": 2}, 8, 2),
        ("tensor", {"tp": 2}, 4, 2),
        ("split", {"cp": 2, "dp": 2}, 8, 2),
        ("split", {"pp": 2}, 4, 1),  # a pipeline reduces once a step
        ("split", {"pp": 2, "dp": 2}, 8, 2),
    ],
)
def test_norms_are_those_by_hand(tmp_path: Path, kind: str, degrees: dict[str, int], batch: int, micro: int) -> None:
    plan = {**degrees, "global_batch": batch, "micro_batch": micro}
    call = Call("tests.integration.training_norms:norms", kind, batch, micro)
    environment = {"SYNERGY_PLAN_JSON": json.dumps(plan)}
    world = math.prod(degrees.values())
    (taken, by_hand), _ = training_ranks.run(tmp_path, world, call, environment=environment)
    print(kind, taken, by_hand)
    assert len(taken) == len(by_hand) == 2 and by_hand[1][1] > 0
    for found, right in zip(taken, by_hand, strict=True):
        assert found == pytest.approx(right, rel=1e-5)
