"""Which rank is where in a mesh, which blocks a stage has, and where the tokens of a part stand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from synergy_core.errors import UsageError

torch = pytest.importorskip("torch")

from synergy_launch.agent.settings import AgentSettings  # noqa: E402
from synergy_launch.pytorch.context_parallel import positions  # noqa: E402
from synergy_launch.pytorch.mesh import Degrees, data_rank, mesh_degrees  # noqa: E402
from synergy_launch.pytorch.pipeline import split_blocks  # noqa: E402
from synergy_launch.pytorch.run_plan import run_plan  # noqa: E402
from synergy_launch.pytorch.run_settings import check_split  # noqa: E402


class Mesh:
    """As many ranks as its dimensions have."""

    def __init__(self, **dims: int) -> None:
        self.dims, self.mesh_dim_names = dims, tuple(dims)

    def size(self) -> int:
        return int(torch.tensor(list(self.dims.values())).prod())

    def __getitem__(self, name: str) -> Any:
        return SimpleNamespace(size=lambda: self.dims[name])


@pytest.mark.parametrize(
    ("dims", "found"),
    [
        ({"dp": 4, "tp": 2}, Degrees(4, 2)),
        ({"dp_replicate": 2, "dp_shard": 2, "tp": 2}, Degrees(4, 2, shard=2)),
        ({"pp": 2, "dp": 2, "tp": 2}, Degrees(2, 2, pp=2)),
        ({"dp": 2, "cp": 4, "tp": 1}, Degrees(2, 1, cp=4)),
        ({"pp": 2, "dp_replicate": 2, "dp_shard": 1, "cp": 2, "tp": 1}, Degrees(2, 1, shard=2, pp=2, cp=2)),
    ],
)
def test_degrees_are_read_from_a_mesh(dims: dict[str, int], found: Degrees) -> None:
    assert mesh_degrees(Mesh(**dims), 8) == found


def test_dimensions_in_another_order_are_refused() -> None:
    for dims in (
        {"dp": 2, "pp": 2, "tp": 2},
        {"cp": 2, "dp": 2, "tp": 2},
        {"pp": 2, "dp": 4},
        {"ep": 2, "dp": 2, "tp": 2},
    ):
        with pytest.raises(UsageError, match="pp before and cp after dp"):
            mesh_degrees(Mesh(**dims), 8)


def test_ranks_of_one_replica_see_the_same_samples() -> None:
    of = Degrees(dp=2, tp=2, pp=2, cp=2)  # tp, cp, dp, pp from inside out
    assert [data_rank(rank, of) for rank in range(16)] == [0, 0, 0, 0, 1, 1, 1, 1] * 2


@pytest.mark.parametrize(
    ("blocks", "stages", "counts"), [(8, 4, [2, 2, 2, 2]), (3, 2, [2, 1]), (9, 4, [2, 3, 2, 2]), (11, 4, [3, 3, 3, 2]), (5, 1, [5])]
)  # fmt: skip
def test_each_block_is_on_one_stage_and_the_ends_have_no_more(blocks: int, stages: int, counts: list[int]) -> None:
    parts = [split_blocks(blocks, stages, stage) for stage in range(stages)]
    assert [len(part) for part in parts] == counts
    assert [block for part in parts for block in part] == list(range(blocks))


def test_parts_of_a_sequence_have_the_same_causal_work() -> None:
    for cp in (2, 4, 8):
        parts = [positions(32, cp, rank) for rank in range(cp)]
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(32))
        assert len({int((part + 1).sum()) for part in parts}) == 1, "keys that its queries see"
    assert positions(32, 2, 0).tolist() == [*range(8), *range(24, 32)], "as Megatron-LM places them"
    assert positions(7, 1, 0).tolist() == list(range(7))


def test_a_mesh_in_other_stages_than_the_plans_is_refused() -> None:
    plan = '{"dp": 2, "pp": 2, "global_batch": 8, "micro_batch": 2}'
    settings = AgentSettings.from_environment({"SYNERGY_PLAN_JSON": plan, "WORLD_SIZE": "4"})
    assert run_plan(settings, Degrees(2, pp=2), 8, None).pp == 2
    for mesh, said in (
        (Degrees(1, pp=4), "its mesh has pp=4 dp=1 tp=1 shard=0, the plan pp=2 dp=2 tp=1 shard=0"),
        (Degrees(4), "pp=2 was given to a plain PyTorch job"),
        (Degrees(2, 2), "pp=2 was given to a script that can't split itself so"),
    ):
        with pytest.raises(UsageError, match=said):
            run_plan(settings, mesh, 8, None)
    alone = AgentSettings.from_environment({"WORLD_SIZE": "4"})
    own = run_plan(alone, Degrees(1, pp=2, cp=2), 8, 2)
    assert (own.pp, own.cp, own.dp, own.micro_batches) == (2, 2, 1, 4)


def test_tied_embeddings_are_not_cut_into_stages() -> None:
    for of, tied in ((Degrees(2, pp=1), True), (Degrees(1, pp=2), False)):
        check_split(of, None, pipeline=True, cp=True, tied=tied)
    with pytest.raises(UsageError, match=r"^SynergyTask: model_spec: pp=2 of a model with tied embeddings") as found:
        check_split(Degrees(1, pp=2), None, pipeline=True, cp=True, tied=True)
    assert "\n" not in str(found.value)
