"""The number of layers of each pipeline stage where pp does not divide a model's layers.

The first and the last stage have fewer, since they hold the embedding, and the output layer with the loss: Megatron's
--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers, or its account-for-embedding and -loss flags, which
are the case of one layer fewer on each. 126 layers on 16 stages are 7, 14 times 8, 7 (Llama 3.1 405B, section 3.3.2 of its paper).
Layers of multi-token prediction are the last stage's too, beside its own: an uneven layout leaves room for them there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageLayers:
    """Layers of the first, each middle, and the last stage."""

    first: int
    middle: int
    last: int

    @property
    def is_even(self) -> bool:
        return self.first == self.middle == self.last

    @property
    def ends_count(self) -> bool:
        """Return whether embedding and output layer stand for one layer each."""
        return self.first == self.last == self.middle - 1


def stage_layers(layers: int, pp: int, mtp: int = 0) -> StageLayers | None:
    """Return the layout of `layers` on `pp` stages, or None where nothing would be left for an end.

    It is equal where pp divides them. Else it has full middle stages and what is left on both ends: the first has one more where that is
    odd, and one more for each of the `mtp` layers as far as that goes.
    """
    middle, over = divmod(layers, pp)
    if not over:
        return StageLayers(middle, middle, middle)
    middle += 1
    end_layers = layers - middle * (pp - 2)
    if pp < 3 or end_layers < 2 or end_layers > 2 * middle:
        return None
    last = end_layers // 2
    last -= min(mtp, last - 1, middle - (end_layers - last))
    return StageLayers(end_layers - last, middle, last)


def can_hold_virtual_stages(layers: int, pp: int, vpp: int, mtp: int = 0) -> bool:
    """Return whether each GPU can hold `vpp` virtual stages.

    An uneven layout can only where both ends have one layer fewer, and then with at least two layers a virtual stage: Megatron takes the
    layer from the first and the last of them.
    """
    layout = stage_layers(layers, pp, mtp)
    if layout is None or layout.middle % vpp:
        return False
    return layout.is_even or vpp == 1 or (layout.ends_count and layout.middle // vpp >= 2)
