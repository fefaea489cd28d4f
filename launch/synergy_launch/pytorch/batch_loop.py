"""The loop around a training step that SynergyTask and DeepSpeedTask share.

It takes batches of a dataset, in an order that neither the data-parallel degree nor the batch changes, until the run's
end or a stop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Self

from synergy_core.errors import UsageError
from synergy_core.records import Plan
from torch.utils.data import DataLoader, default_collate

from synergy_launch.agent.agent import Agent
from synergy_launch.batch.data_order import RankIndices, SampleOrder
from synergy_launch.batch.learning_rate import Following, choose_rule


class BatchLoop:
    """The loop that SynergyTask and DeepSpeedTask share.

    A subclass sets `agent`, `plan` (a new one at a change of the batch), `following`, `seed` and `_data_rank`. In each `step` that ends
    one of the optimizer's it sets `step_count`, and `_go_on` where the run is to stop.
    """

    agent: Agent
    plan: Plan
    following: Following
    seed: int
    _data_rank: int
    step_count = 0
    _go_on = True

    def __enter__(self) -> Self:
        self._watching = self.agent.watching()
        self._watching.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watching.__exit__(*error)

    @property
    def samples(self) -> int:
        """Return the number of examples seen so far."""
        return self.following.samples

    def batches(
        self,
        dataset: Any,
        steps: int,
        *,
        collate: Callable[[list[Any]], Any] = default_collate,
        workers: int = 0,
    ) -> Iterator[Any]:
        """Yield this rank's micro-batches from where the run stands up to `steps` steps of the tuned batch in all.

        At another batch that is as many examples (or as much progress, see `count`) in more or fewer steps. `dataset` has `len` and
        `[index]`; `workers` processes load ahead. Call `step` once for each micro-batch. Where the mesh has a pipeline all micro-batches
        of a step come as one, for `pipeline` to cut.
        """
        order = SampleOrder(len(dataset), self.seed)
        while not self.following.has_finished(steps):
            plan, loaded = self.plan, self._loader_plan()
            indices = RankIndices(order, loaded, self._data_rank, self.samples, self.agent.skipped)
            ahead = iter(DataLoader(dataset, batch_sampler=indices, num_workers=workers, collate_fn=collate))
            # micro-batches loaded ahead for one batch are of no use to the next
            while self.plan is plan and not self.following.has_finished(steps):
                before = self.step_count
                self._before_step()
                for micro_step in range(loaded.micro_batches):
                    with self._micro_batch_context(micro_step):
                        yield self._prepare_batch(next(ahead))
                if self.step_count != before + 1:
                    name = type(self).__name__
                    raise UsageError(name, "step(loss) was not called for each batch", "call it once for each")
                if not self._go_on:
                    raise SystemExit(0)
        self._settle()
        self.agent.finish()

    def _loader_plan(self) -> Plan:
        """Return the plan with the micro-batch that comes at once."""
        return self.plan

    def _before_step(self) -> None:
        """Prepare for the micro-batches of the next step."""

    def _micro_batch_context(self, micro_step: int) -> contextlib.AbstractContextManager[Any]:
        """Return the context around the loop's body for one micro-batch."""
        return contextlib.nullcontext()

    def _prepare_batch(self, batch: Any) -> Any:
        """Return what the loop's body is given."""
        return batch

    def _settle(self) -> None:
        """Make all ranks hold the same state."""


def make_following(optimizer: Any, global_batch: int, lr_rule: str, count: str) -> Following:
    """Return a run's state at its start.

    `lr_rule` "": the rule that is usual for the optimizer. `count` "": counted in progress under adascale, else in examples.
    """
    rule = choose_rule(optimizer, lr_rule)
    return Following(global_batch, rule, count or ("progress" if rule == "adascale" else "examples"))
