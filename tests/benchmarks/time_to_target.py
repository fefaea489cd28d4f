"""Training to a target: fixed batch M0, a fixed large batch with the linear rule, and the adaptive batch, on real small data.

    python -m tests.benchmarks.time_to_target [--seeds 5] [--task text|glyphs]

Two tasks, trained for real on the CPU with SynergyTask, in this process:
- text: a byte-level convolutional language model (AdamW, square-root rule) on the language reference that every Python has;
- glyphs: a small convolutional net (SGD with momentum, AdaScale) that tells 26 letters apart, drawn from the fonts that
  matplotlib ships, with other size, place, turn and noise for each example.

Time is that of a simulated cluster on which GPUs become available: 1, then 4 from second 15, then 16 from second 40. A step
of M examples on n GPUs takes STEP_S + EXAMPLE_S * M / n + LINK_S * log2(n) seconds (below; about a small model on one
node type). Every run uses all GPUs that are there. The adaptive run is given, each 10 steps, the batch of
best goodput worth(M0, M, phi) / T(M, n) by its own noise scale, through the same channel as the daemon's answers. `adaptive` has a range
given by hand, up to 128 x M0; `adapt=yes` the one of jobmodel/batch_range.py, up to 4 x M0, and below a batch that
its loss took back; `adapt=yes wrong` likewise, up to 16 x M0, with a learning rate that follows by (batch / M0) squared.

Reported: medians (and smallest to largest) over the seeds of the seconds and examples to the target, the first evaluation
at or below it, and of the loss at the end: M0 and the large batch after STEPS x M0 examples, the adaptive run
after as much progress.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from synergy_core.job_report import Report
from synergy_core.loss_trend import NO_LOSSES, can_grow
from synergy_core.rates import Factors, equivalent_sequences
from synergy_core.records import Directive, Plan
from synergy_launch import SynergyTask
from synergy_launch.agent.run_folder import propose_batch
from synergy_launch.batch.data_order import SampleOrder
from synergy_launch.examples.ddp import ByteModel
from synergy_launch.examples.text import TextWindows

from synergyd.jobmodel.batch_range import after_loss, batch_range

STEP_S, EXAMPLE_S, LINK_S = 0.05, 0.004, 0.01
GPUS = ((0.0, 1), (15.0, 4), (40.0, 16))  # from second, GPUs
DECIDE_EVERY = 10
LARGE = 16  # times M0


@dataclass(frozen=True)
class Task:
    """What is trained. `target`: validation loss; `steps` of `base` examples are the budget."""

    name: str
    base: int
    steps: int
    target: float
    lr: float
    data: Callable[[], tuple[Any, Any]]  # training, validation: sequences of (input, label) tensors
    model: Callable[[], torch.nn.Module]
    optimizer: Callable[[Any, float], torch.optim.Optimizer]
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]


def step_s(batch: int, gpus: int) -> float:
    """Seconds of a step on the simulated cluster."""
    return STEP_S + EXAMPLE_S * batch / gpus + LINK_S * math.log2(gpus)


def gpus_at(now_s: float) -> int:
    return [n for since, n in GPUS if now_s >= since][-1]


def best_batch(base: int, gpus: int, noise: float | None, present: int, high: int = 1 << 30) -> int:
    """The power-of-two multiple of `base` of best goodput, at most twice the present one and `high`."""
    if noise is None:
        return min(present, high)
    choices = [base << k for k in range(8) if base << k <= min(high, 2 * present)]
    return max(choices, key=lambda m: equivalent_sequences(base, m, noise) / step_s(m, gpus))


@contextmanager
def environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def train(task: Task, kind: str, seed: int) -> dict[str, float]:
    """One run; seconds and examples to the target (infinite if never), and the loss at its end."""
    torch.manual_seed(seed)
    training, validation = task.data()
    model = task.model()
    optimizer = task.optimizer(model.parameters(), task.lr)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    batch = task.base * (LARGE if kind == "large" else 1)
    found = {"seconds": math.inf, "examples": math.inf, "loss": math.inf, "all": 0.0}
    now_s, evaluated, trend, cap = 0.0, 0, NO_LOSSES, 0
    factor = FACTORS.get(kind, 0.0)
    with tempfile.TemporaryDirectory() as name:
        run_dir = Path(name) / "run"
        run_dir.mkdir()
        plan = Plan(micro_batch=batch // 2, global_batch=batch)
        with (
            environment(SYNERGY_RUN_DIR=str(run_dir), SYNERGY_PLAN_JSON=json.dumps(asdict(plan))),
            SynergyTask(
                model,
                optimizer,
                global_batch=task.base,
                seed=seed,
                scheduler=warm_up,
                lr_rule="linear" if kind == "large" else "",
                count="progress" if kind == "adaptive" or factor else "examples",
            ) as run,
        ):
            if kind == WRONG:
                run.following.factors = lambda batch, noise: Factors((batch / task.base) ** 2)  # type: ignore[method-assign]
            for rows in run.batches(training, task.steps, collate=lambda items: items):
                before, used = run.step_count, run.plan.global_batch
                run.step(task.loss(model, rows))
                if run.step_count == before:
                    continue
                now_s += step_s(used, gpus_at(now_s))
                if factor:
                    status = run.agent.status
                    report = Report(1, 0, run.step_count, loss=status["loss"], plan=replace(plan, global_batch=used))
                    trend = after_loss(trend, report, run.noise.value)
                    if trend.worse is not None:
                        cap = trend.worse.good
                        found["back"] = found.get("back", 0.0) or float(run.samples)
                if (kind == "adaptive" or (factor and (cap or can_grow(trend)))) and run.step_count % DECIDE_EVERY == 0:
                    limits = batch_range(Directive(adapt=True), status["base_batch"], cap, factor) if factor else None
                    high = limits[1] if limits else 1 << 30
                    wanted = best_batch(task.base, gpus_at(now_s), run.noise.value, used, high)
                    propose_batch(run_dir, Plan(micro_batch=wanted // 2, global_batch=wanted))
                if run.samples - evaluated >= 32 * task.base:
                    evaluated = run.samples
                    loss = evaluate(task, model, validation)
                    if loss <= task.target and found["seconds"] == math.inf:
                        found |= {"seconds": now_s, "examples": run.samples}
            found |= {"loss": evaluate(task, model, validation), "all": run.samples, "end": now_s}
            found["batch"] = run.plan.global_batch
    return found


@torch.no_grad()
def evaluate(task: Task, model: torch.nn.Module, validation: Any) -> float:
    return float(task.loss(model, validation))


# -- the two tasks ------------------------------------------------------------------------------------------------------


def _text() -> tuple[Any, Any]:
    windows = TextWindows(32)
    order = SampleOrder(len(windows), 12345)
    rows = [torch.tensor(list(windows[order.index(i)])) for i in range(len(windows))]
    return rows[600:], rows[:600]


def _text_loss(model: torch.nn.Module, rows: Any) -> torch.Tensor:
    window = torch.stack(list(rows))
    logits = model(window[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


_FONTS = (
    "DejaVuSans",
    "DejaVuSerif",
    "DejaVuSansMono",
    "DejaVuSans-Oblique",
    "DejaVuSerif-Bold",
    "STIXGeneral",
    "cmr10",
)
_SIDE = 20
_glyphs: list[Any] = []


def _draw() -> list[Any]:
    """12,000 letters, always the same."""
    import random

    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    rng = random.Random(1)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [ImageFont.truetype(str(folder / f"{name}.ttf"), size) for name in _FONTS for size in (11, 13, 15)]
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(12_000):
        label = rng.randrange(26)
        image = Image.new("L", (_SIDE, _SIDE))
        place = rng.uniform(3, 7), rng.uniform(0, 3)
        ImageDraw.Draw(image).text(place, "abcdefghijklmnopqrstuvwxyz"[label], fill=255, font=rng.choice(fonts))
        pixels = torch.tensor(list(image.rotate(rng.uniform(-15, 15)).tobytes()), dtype=torch.float32) / 255
        noisy = pixels.view(1, _SIDE, _SIDE) + 0.2 * torch.randn(1, _SIDE, _SIDE, generator=generator)
        made.append((noisy, label))
    return made


def _glyph_data() -> tuple[Any, Any]:
    if not _glyphs:
        _glyphs.extend(_draw())
    return _glyphs[1000:], _glyphs[:1000]


def _glyph_net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 12, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(12, 24, 3, stride=2), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(216, 64), torch.nn.ReLU(), torch.nn.Linear(64, 26),
    )  # fmt: skip


def _glyph_loss(model: torch.nn.Module, rows: Any) -> torch.Tensor:
    images = torch.stack([image for image, _ in rows])
    return torch.nn.functional.cross_entropy(model(images), torch.tensor([label for _, label in rows]))


TASKS = (
    Task("text", 16, 1500, 1.68, 2e-3, _text, lambda: ByteModel(48, 3),
         lambda p, lr: torch.optim.AdamW(p, lr=lr, betas=(0.9, 0.99)), _text_loss),
    Task("glyphs", 16, 3000, 1.35, 0.01, _glyph_data, _glyph_net,
         lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9), _glyph_loss),
)  # fmt: skip
WRONG = "adapt=yes wrong"
FACTORS = {"adapt=yes": 4.0, "adapt=yes 16": 16.0, WRONG: 16.0}
KINDS = ("M0", "large", "adaptive", *FACTORS)


def summary(values: list[float], form: str = "{:.0f}") -> str:
    """Median (smallest to largest); "never" where the target was not reached."""
    shown = [form.format(v) if math.isfinite(v) else "never" for v in (min(values), max(values))]
    middle = statistics.median(values)
    return f"{form.format(middle) if math.isfinite(middle) else 'never'} ({shown[0]} to {shown[1]})"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all")
    parser.add_argument("--task", choices=[t.name for t in TASKS], action="append", help="default: both")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    for task in TASKS:
        if args.task and task.name not in args.task:
            continue
        print(f"{task.name}: target {task.target}, M0 {task.base}, budget {task.steps} steps of M0, {args.seeds} seeds")
        print(
            f"  {'':<15}{'seconds to target':>24}{'examples to target':>28}{'loss at the end':>26}{'last batch':>12}{'taken back':>13}"
        )
        medians = {}
        for kind in args.kind or KINDS:
            runs = []
            for seed in range(args.seeds):
                real, sys.stdout = sys.stdout, sys.stderr  # the agent's own lines
                try:
                    runs.append(train(task, kind, seed))
                finally:
                    sys.stdout = real
            medians[kind] = statistics.median(r["seconds"] for r in runs)
            print(
                f"  {kind:<15}{summary([r['seconds'] for r in runs]):>24}{summary([r['examples'] for r in runs]):>28}"
                f"{summary([r['loss'] for r in runs], '{:.3f}'):>26}{statistics.median(r['batch'] for r in runs):>12.0f}"
                f"{sum('back' in r for r in runs):>13}",
                flush=True,
            )
        for kind, median in medians.items():
            if kind != "M0" and "M0" in medians and math.isfinite(median):
                print(f"  {kind} reaches the target {medians['M0'] / median:.2f} times as soon as M0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
