"""The running noise scale against brute force, over a run: one gradient for every example of the data set, at each step.

    python -m tests.benchmarks.noise --steps 600

A small classifier (two layers, tanh) on 2048 synthetic images with noisy labels is trained with SynergyTask; at
every step the exact tr(covariance) and |mean gradient|^2 over all examples are computed from per-example gradients and
averaged with the same weights as the estimate's. Rows: the way the two norms are had.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from synergy_core.records import Plan

from tests.integration import training_ranks

EXAMPLES, INPUTS, HIDDEN, CLASSES = 2048, 48, 32, 10
EVERY = 8  # steps between two exact gradients: they change little meanwhile


@dataclass(frozen=True)
class Case:
    name: str
    plan: Plan
    clip: float | None = None
    bf16: bool = False
    optimiser: str = "SGD"
    lr: float = 0.02
    scaler: bool = False


CASES = (
    Case("dp 2", Plan(dp=2, micro_batch=64, global_batch=128)),
    Case("dp 4", Plan(dp=4, micro_batch=32, global_batch=128)),
    Case("accumulation", Plan(micro_batch=32, global_batch=128)),
    Case("dp 2 and accumulation", Plan(dp=2, micro_batch=32, global_batch=128)),
    Case("consecutive steps", Plan(micro_batch=128, global_batch=128)),
    Case("clipping", Plan(dp=2, micro_batch=64, global_batch=128), clip=0.05),
    Case("bf16 gradients", Plan(dp=2, micro_batch=64, global_batch=128), bf16=True),
    Case("loss scaling", Plan(micro_batch=32, global_batch=128), scaler=True),
    Case("AdamW", Plan(micro_batch=32, global_batch=128), optimiser="AdamW", lr=2e-4),
)


def train(case: Case, steps: int, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """One rank's run on `device`; {estimate, truth}: noise scales after each step."""
    import torch
    import torch.distributed as dist
    from synergy_launch import SynergyTask
    from torch.func import functional_call, grad, vmap
    from torch.nn.parallel import DistributedDataParallel

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(seed)
    inputs = torch.randn(EXAMPLES, INPUTS)
    teacher = torch.randn(INPUTS, CLASSES)
    labels = (inputs @ teacher + 4.0 * torch.randn(EXAMPLES, CLASSES)).argmax(1)
    net: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, CLASSES)
    )
    if case.bf16:
        net = net.bfloat16()
        inputs = inputs.bfloat16()
    net, inputs, labels = net.to(device), inputs.to(device), labels.to(device)
    exact = {name: p.detach() for name, p in net.named_parameters()}

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        out = functional_call(net, weights, (x.unsqueeze(0),)).float()
        return torch.nn.functional.cross_entropy(out, y.unsqueeze(0))

    def brute_force() -> tuple[float, float]:
        each = vmap(grad(loss_of), in_dims=(None, 0, 0))(
            {n: p.float() for n, p in exact.items()}, inputs.float(), labels
        )
        flat = torch.cat([g.flatten(1) for g in each.values()], 1).double()
        mean = flat.mean(0)
        trace = float((flat - mean).square().sum()) / (EXAMPLES - 1)
        # examples are drawn without replacement, so the noise scale is that of what the data set was drawn from
        return trace, float(mean.square().sum()) - trace / EXAMPLES

    model = DistributedDataParallel(net)
    optimizer = getattr(torch.optim, case.optimiser)(model.parameters(), lr=case.lr)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0) if case.scaler else None
    data = list(zip(inputs, labels, strict=True))
    estimate: list[float | None] = []
    truth: list[float] = []
    now: list[float] = []
    # the same averages over what is exact
    trace_average = square_average = 0.0
    os.environ["SYNERGY_PLAN_JSON"] = json.dumps(asdict(case.plan))
    with SynergyTask(model, optimizer, global_batch=case.plan.global_batch, clip=case.clip, scaler=scaler) as task:
        decay = task.noise.decay
        trace, square = brute_force()
        for x, y in task.batches(data, steps):
            before = task.step_count
            task.step(torch.nn.functional.cross_entropy(model(x).float(), y))
            if task.step_count == before:
                continue
            trace_average = decay * trace_average + (1 - decay) * trace
            square_average = decay * square_average + (1 - decay) * square
            estimate.append(task.noise.value)
            truth.append(trace_average / square_average)
            now.append(trace / square)
            if task.step_count % EVERY == 0:
                trace, square = brute_force()
    return {"estimate": estimate, "truth": truth, "now": now}


def errors(found: dict[str, Any], after: int) -> dict[str, float]:
    """Relative errors of the estimate after the first `after` steps: of its median ratio, and step by step."""
    ratios = [(e or 0.0) / t for e, t in zip(found["estimate"][after:], found["truth"][after:], strict=True)]
    off = sorted(abs(r - 1) for r in ratios)
    against_now = [
        abs((e or 0.0) / t - 1) for e, t in zip(found["estimate"][after:], found["now"][after:], strict=True)
    ]
    return {
        "bias": abs(statistics.fmean(ratios) - 1),
        "median": statistics.median(off),
        "p90": off[int(0.9 * len(off))],
        "now": statistics.median(against_now),
        "first": found["truth"][after],
        "last": found["truth"][-1],
    }


def measure(case: Case, steps: int, folder: Path, after: int) -> dict[str, float]:
    """`errors` of one case, run on as many processes as its plan needs."""
    call = training_ranks.Call("tests.benchmarks.noise:train", case, steps)
    result, _ = training_ranks.run(folder, case.plan.gpus, call, timeout_s=600)
    return errors(result, after)


def overhead(steps: int, hidden: int = 128, seq: int = 128, micro: int = 4) -> dict[str, float]:
    """Share of a step that the estimate takes: steps with and without it take turns; medians of
    CPU time, which other work on the machine disturbs little. By the way it is had."""
    import torch
    from synergy_launch import SynergyTask
    from synergy_launch.batch.noise_scale import SILENT
    from synergy_launch.examples.ddp import ByteModel
    from synergy_launch.examples.text import TextWindows

    found = {}
    for name, plan in (
        ("accumulation", Plan(micro_batch=micro, global_batch=2 * micro)),
        ("consecutive steps", Plan(micro_batch=2 * micro, global_batch=2 * micro)),
    ):
        os.environ["SYNERGY_PLAN_JSON"] = json.dumps(asdict(plan))
        model = ByteModel(hidden, 4)
        task = SynergyTask(model, torch.optim.AdamW(model.parameters(), lr=1e-3), global_batch=plan.global_batch)
        taken: dict[bool, list[float]] = {True: [], False: []}
        norms = task._norms
        measure, within = norms.take, norms._within
        began = time.process_time()
        for rows in task.batches(TextWindows(seq), steps, collate=lambda i: torch.tensor([list(x) for x in i])):
            before = task.step_count
            logits = model(rows[:, :-1])
            task.step(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
            if task.step_count == before:
                continue
            now = time.process_time()
            # pairs: two consecutive steps are what the last way needs
            taken[(before // 2) % 2 == 0].append(now - began)
            on = (task.step_count // 2) % 2 == 0
            norms._within = within and on
            norms.take = measure if on else lambda loss, unscale=1.0: (float(loss), SILENT)  # type: ignore[method-assign]
            began = time.process_time()
        found[name] = statistics.median(taken[True][4:]) / statistics.median(taken[False][4:]) - 1
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--after", type=int, default=200, help="steps that only fill the averages (default 200)")
    parser.add_argument("--case", action="append", help="by name; default: all")
    parser.add_argument("--overhead", action="store_true", help="measure what the estimate costs, and stop")
    args = parser.parse_args(argv)
    if args.overhead:
        for name, share in overhead(args.steps).items():
            print(f"{name:<24} {share:.1%} of a step")
        return 0
    print(f"{'case':<24} {'bias':>7} {'median':>7} {'p90':>7} {'of now':>7}   true noise scale, first to last")
    for case in CASES:
        if args.case and case.name not in args.case:
            continue
        with tempfile.TemporaryDirectory() as folder:
            e = measure(case, args.steps, Path(folder), args.after)
        print(
            f"{case.name:<24} {e['bias']:>7.1%} {e['median']:>7.1%} {e['p90']:>7.1%} {e['now']:>7.1%}   "
            f"{e['first']:.0f} to {e['last']:.0f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
