"""What a Megatron script's hooks measure, on megatron-core itself: executed in the ranks of training_ranks."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from synergy_core.records import Plan
from synergy_launch.batch.data_order import rank_samples
from synergy_launch.examples.text import TextWindows

from tests.integration.training_ranks import SPEC

SMALL = replace(SPEC, layers=2)


def hooked(
    plan: Plan,
    steps: int,
    *,
    lr: float = 0.0,
    hook: bool = True,
    overlap: bool = False,
    zero: bool = True,
    as_cp: bool = False,
    share: float = math.inf,
) -> Any:
    """A run whose DistributedDataParallel is watched as a script's is. Its losses, estimate, and how many steps were measured.

    lr 0 and a slow decay: all steps count alike. `as_cp`: its replicas are taken for ranks that share the sequences of one.
    """
    from megatron.core import parallel_state
    from synergy_launch.megatron_core import training
    from synergy_launch.megatron_core.script_noise import Degrees, ScriptNoise, StepSize

    names: Any = training
    made = names.DistributedDataParallelConfig
    if overlap:
        names.DistributedDataParallelConfig = lambda **options: made(
            **{**options, "overlap_grad_reduce": True, "bucket_size": 5000}
        )
    ranks = training.start_process_group()
    samples = TextWindows(SMALL.seq).sample
    run = training.MegatronRun(SMALL, plan, ranks, samples, lr=lr, noise=False, distributed_optimizer=zero)
    if overlap:
        run.config.no_sync_func = run.model.no_sync
    size = StepSize(plan.micro_batches, plan.micro_batch)
    degrees = Degrees(dp=plan.dp, cp=1, tp=plan.tp)
    if as_cp:
        size = StepSize(plan.micro_batches, plan.micro_batch * plan.dp)
        degrees = Degrees(dp=1, cp=plan.dp, tp=plan.tp, cp_group=parallel_state.get_data_parallel_group())
    noise = ScriptNoise(degrees, lambda: size, share=share)
    noise.scale.decay = 0.99999
    if hook:
        noise.add(run.model)
    began = time.perf_counter()
    losses = [run.train_step() for _ in range(steps)]
    spent = noise.spent_s / (time.perf_counter() - began)
    return {"noise": noise.scale.value, "measured": noise.measured, "losses": losses, "spent": spent}


def by_hand(plans: list[Plan], steps: int, batch: int, as_cp: bool = False) -> tuple[float, list[float]]:
    """From one gradient per sample at the initial weights: the noise scale, and what the hook's estimator gives under each plan; the last
    one's replicas are one, `as_cp`."""
    import torch
    from synergy_launch.megatron_core.training import MegatronRun, start_process_group

    from tests.integration.training_rows import noise_of

    run = MegatronRun(SMALL, Plan(), start_process_group(), TextWindows(SMALL.seq).sample, noise=False)
    model = run.model.module
    chosen = [p for name, p in model.named_parameters() if "word_embeddings" not in name]
    rows = []
    for number in range(steps * batch):
        output, loss_of = run._forward(iter([[number]]), model)
        # an autograd of its own, past Megatron's accumulation and averaging
        gradients = torch.autograd.grad(loss_of(output)[0], chosen)
        rows.append(torch.cat([g.flatten().double() for g in gradients]))
    each = torch.stack(rows)
    estimates = [_estimated(each, plan, steps, batch, as_cp and plan is plans[-1]) for plan in plans]
    return noise_of([[row] for row in rows]), estimates


def _estimated(each: Any, plan: Plan, steps: int, batch: int, as_cp: bool) -> float:
    if plan.gpus * plan.micro_batch == batch == 1:
        pairs = [(each[n], each[n + 1]) for n in range(0, steps - 1, 2)]
        small = [float(a.square().sum() + b.square().sum()) / 2 for a, b in pairs]
        big = [float(((a + b) / 2).square().sum()) for a, b in pairs]
        least, most = 1, 2
    else:
        counted = max(1, min(4, plan.micro_batches - 1))
        small, big, least, most = [], [], plan.micro_batch, batch
        for step in range(steps):
            micros = [
                m for rank in range(plan.dp)
                for m in list(rank_samples(step * batch, batch, plan.dp, rank, plan.micro_batch))[:counted]
            ]  # fmt: skip
            if as_cp:  # the first micro-batch of all of them
                firsts = micros[:: len(micros) // plan.dp]
                micros, least = [[number for m in firsts for number in m]], plan.micro_batch * plan.dp
            small.append(sum(float(each[list(m)].mean(0).square().sum()) for m in micros) / len(micros))
            big.append(float(each[step * batch : (step + 1) * batch].mean(0).square().sum()))
    g2 = sum(most * b - least * s for s, b in zip(small, big, strict=True)) / (most - least)
    trace = sum(s - b for s, b in zip(small, big, strict=True)) / (1 / least - 1 / most)
    return trace / g2
