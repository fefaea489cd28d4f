"""A GPT in plain PyTorch with the shapes of a ModelSpec: fp32 weights, bf16 autocast, fused or written-out attention."""

from __future__ import annotations

import math

import torch
from synergy_core.records import ModelSpec
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.gpu.device import DEVICE


class _Layer(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.fused = True
        self.norm1, self.norm2 = nn.LayerNorm(spec.hidden), nn.LayerNorm(spec.hidden)
        self.qkv, self.proj = nn.Linear(spec.hidden, 3 * spec.hidden), nn.Linear(spec.hidden, spec.hidden)
        self.fc1, self.fc2 = nn.Linear(spec.hidden, spec.ffn), nn.Linear(spec.ffn, spec.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4)
        core = functional.scaled_dot_product_attention(q, k, v, is_causal=True) if self.fused else _written_out(q, k, v)
        x = x + self.proj(core.transpose(1, 2).reshape(b, s, h))
        result: torch.Tensor = x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))
        return result


def _written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as it was before FlashAttention: the scores are in memory."""
    s = q.shape[-2]
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    mask = torch.ones((s, s), dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(mask, float("-inf")), -1).to(v.dtype) @ v


class Gpt(nn.Module):
    """Tokens (b, s + 1) -> mean loss of the next token. Embeddings are tied."""

    def __init__(self, spec: ModelSpec, longest: int) -> None:
        super().__init__()
        self.recompute = False
        self.tokens, self.positions = nn.Embedding(spec.vocab, spec.hidden), nn.Embedding(longest, spec.hidden)
        self.layers = nn.ModuleList(_Layer(spec) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.hidden)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def use(self, *, fused: bool, recompute: bool) -> None:
        self.recompute = recompute
        for layer in self.layers:
            layer.fused = fused  # type: ignore[assignment]

    def forward(self, window: torch.Tensor) -> torch.Tensor:
        tokens, labels = window[:, :-1], window[:, 1:]
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
            logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class RandomTokens(torch.utils.data.Dataset[torch.Tensor]):
    """Rows of `seq + 1` token ids."""

    def __init__(self, spec: ModelSpec, rows: int = 512) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(0, spec.vocab, (rows, spec.seq + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def make(spec: ModelSpec, longest: int | None = None) -> Gpt:
    """The model on the device, drawn there."""
    torch.manual_seed(0)
    with DEVICE:
        return Gpt(spec, longest or spec.seq)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE.type == "cuda")
