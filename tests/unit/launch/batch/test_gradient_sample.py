"""The bounded sample by which two consecutive gradients are compared."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from synergy_launch.batch.gradient_sample import BUDGET, GradientSample, choose_stride  # noqa: E402


def test_small_gradients_are_kept_whole_and_the_product_is_exact() -> None:
    torch.manual_seed(0)
    a, b = [torch.randn(7, 5), torch.randn(3)], [torch.randn(7, 5), torch.randn(3)]
    sample = GradientSample(a, [1.0, 0.5])
    exact = float((a[0] * b[0]).sum() + 0.5 * (a[1] * b[1]).sum())
    assert float(sample.product(sample.take(a), sample.take(b))) == pytest.approx(exact, rel=1e-5)
    square = float((a[0] * a[0]).sum() + 0.5 * (a[1] * a[1]).sum())
    norms = [sample.norm(tensor, number) for number, tensor in enumerate(a)]
    assert float(sample.square(norms, [0, 1])) == pytest.approx(square, rel=1e-5)


def test_parts_of_a_tensor_have_the_same_places_as_all_of_it() -> None:
    """Of a distributed optimizer each rank holds a slice."""
    torch.manual_seed(2)
    whole = torch.randn(300, 100)
    sample = GradientSample([whole], budget=2_000)
    assert sample.strides[0] > 1
    cuts = [0, 7, 12_345, 12_346, 30_000]
    parts = [whole.view(-1)[low:high] for low, high in pairwise(cuts)]
    norms = [sample.norm(part, 0, low) for part, low in zip(parts, cuts, strict=False)]
    assert float(sample.square(norms, [0] * 4)) == pytest.approx(
        float(sample.square([sample.norm(whole, 0)], [0])), rel=1e-5
    )


def test_what_is_kept_is_a_copy_within_the_budget() -> None:
    gradients = [torch.ones(1000, 512), torch.ones(512), torch.ones(2000, 768)]
    sample = GradientSample(gradients, budget=50_000)
    kept = sample.take(gradients, 2.0)
    gradients[0].zero_()
    assert 30_000 < kept.numel() <= 50_000
    assert bool((kept == 2.0).all())
    assert sample.strides[1] == 1  # a small one stands for itself


@pytest.mark.parametrize("shape", [(512, 512), (1000, 768), (4096, 3), (100_000,), (64, 16, 3, 3)])
def test_every_column_is_seen(shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape)
    stride = choose_stride(tensor, 1 / 16)
    assert stride >= 16
    if len(shape) > 1:
        columns = torch.arange(shape[-1]).expand(shape).reshape(-1)[::stride]
        assert len(set(columns.tolist())) == shape[-1]


@pytest.mark.slow
def test_the_noise_scale_of_a_large_gradient_is_right_from_a_sample_of_it() -> None:
    """Gradients of a mean that differs from layer to layer, and noise: S / |G|^2 as the two steps' pair gives it."""
    torch.manual_seed(1)
    shapes = [(400, 300), (300,), (300, 800), (800,)]
    mean = [torch.randn(shape) * (1 + i) for i, shape in enumerate(shapes)]
    deviations = [30.0, 5.0, 20.0, 40.0]
    square = sum(float(m.square().sum()) for m in mean)
    trace = sum(d * d * math.prod(shape) for d, shape in zip(deviations, shapes, strict=True))
    sample = GradientSample(mean, budget=20_000)
    products, squares = [], []
    for _ in range(40):
        pair = [
            sample.take([m + torch.randn(m.shape) * d / 8 for m, d in zip(mean, deviations, strict=True)]) for _ in "ab"
        ]
        products.append(float(sample.product(*pair)))
        squares.append(sum(float(sample.product(x, x)) for x in pair) / 2)
    g2, small = sum(products) / 40, sum(squares) / 40
    # batch 64 of per-example noise: E small = |G|^2 + S / 64, E product = |G|^2
    assert (small - g2) * 64 / g2 == pytest.approx(trace / square, rel=0.1)


@pytest.mark.slow
def test_a_large_gradient_is_looked_at_at_every_eighth_step_and_a_small_one_at_each() -> None:
    from synergy_core.records import Plan
    from synergy_launch.pytorch.gradient_norms import GradientNorms

    for width, looked in ((8, 8), (BUDGET + 1, 1)):
        layer = torch.nn.Linear(width, 1, bias=False)
        norms = GradientNorms(layer, Plan(micro_batch=1, global_batch=2))
        seen = 0
        for _ in range(8):
            for _ in range(2):
                (layer(torch.ones(1, width)).sum() / 2).backward()
            loss, found = norms.take(torch.tensor(3.0))
            assert loss == 3.0
            seen += found.b_big > 0
            layer.zero_grad()
        assert seen == looked
        # without noise both norms are the gradient's own, sampled or not
        assert found.small == pytest.approx(found.big) == (pytest.approx(width) if found.b_big else 0.0)
