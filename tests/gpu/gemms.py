"""What shapes cost: GEMMs whose sizes are and are not multiples of 8, 64 and 128, waves of tiles, attention by head width."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.gpu import device
from tests.gpu.sizes import Sizes

_OFF = (-128, -64, -32, -16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16, 32, 64, 128)
_PARTS = (1, 2, 4, 8)  # tensor-parallel degrees


def _gemm(m: int, n: int, k: int, least_s: float) -> dict[str, Any]:
    """A linear layer's forward: (m, k) @ (n, k)^T in bf16."""
    a = torch.randn(m, k, device=device.DEVICE).to(torch.bfloat16)
    b = torch.randn(n, k, device=device.DEVICE).to(torch.bfloat16)
    seconds = device.kernel_s(lambda: torch.nn.functional.linear(a, b), least_s)
    return {"m": m, "n": n, "k": k, "seconds": seconds, "tflops": 2 * m * n * k / seconds / 1e12}


def alignment(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """One of M, N, K is moved away from `sizes.gemm`."""
    base = sizes.gemm
    for which in ("m", "n", "k"):
        for off in _OFF:
            size = base + off
            if size > 0:
                m, n, k = (size if which == d else base for d in "mnk")
                yield {"varied": which, **_gemm(m, n, k, sizes.least_s)}


def waves(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """M grows in small steps: the time grows by whole waves of tiles over the GPU's multiprocessors."""
    for n, k in ((sizes.gemm, sizes.gemm), (sizes.gemm // 2, sizes.gemm // 2), (sizes.gemm // 4, sizes.gemm // 2)):
        for m in range(sizes.gemm_step, 2 * sizes.gemm + 1, sizes.gemm_step):
            yield {"varied": "waves", **_gemm(m, n, k, sizes.least_s)}


def layers(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Projections and MLP of GPTs, split over t ranks, and vocabularies that are padded and are not."""
    tokens, h = sizes.gemm, sizes.gemm
    for t in _PARTS:
        for what, n, k in (
            ("qkv", 3 * h // t, h),
            ("proj", h, h // t),
            ("fc1", 4 * h // t, h),
            ("fc2", h, 4 * h // t),
        ):
            yield {"varied": f"{what} t={t}", **_gemm(tokens, n, k, sizes.least_s)}
    scale = max(1, 4096 // sizes.gemm)
    for vocab in (50257, 50260, 50264, 50304, 51200):
        yield {"varied": "vocabulary", **_gemm(tokens, vocab // scale, h // 2, sizes.least_s)}


def attention(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Fused causal attention, forward and backward, by head width; as many heads as make the same hidden size or nearly."""
    s = sizes.attention
    for width in sizes.head_dims:
        heads = max(1, sizes.gemm // width)
        q, k, v = (
            torch.randn(1, heads, s, width, device=device.DEVICE).to(torch.bfloat16).requires_grad_() for _ in range(3)
        )
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        gradient = torch.randn_like(out)

        def forward(q: Any = q, k: Any = k, v: Any = v) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        def backward(out: Any = out, gradient: Any = gradient, inputs: Any = (q, k, v)) -> Any:
            return torch.autograd.grad(out, inputs, gradient, retain_graph=True)

        flops = 2 * s * s * heads * width
        forward_s, backward_s = device.kernel_s(forward, sizes.least_s), device.kernel_s(backward, sizes.least_s)
        yield {
            "varied": "head width",
            "width": width,
            "heads": heads,
            "forward_s": forward_s,
            "backward_s": backward_s,
            "forward_tflops": flops / forward_s / 1e12,
            "backward_tflops": 2.5 * flops / backward_s / 1e12,
        }
