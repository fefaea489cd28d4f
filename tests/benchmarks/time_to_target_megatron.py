"""Megatron-LM's own pretrain_gpt.py, unchanged, to a training loss: with its own batch, and with one that moves between iterations.

    MEGATRON_LM=/path/to/checkout python -m tests.benchmarks.time_to_target_megatron [--seeds 5]

A small GPT on the language reference that every Python has, as bytes, in one process on the CPU, under synergy-launch. Time is that
of time_to_target's simulated cluster. The moving run is given the batch of best goodput by the noise scale that it reports, as the daemon's
answers are. Reported: seconds and sequences to the target, the first 512 sequences whose mean loss is at or below it; and the mean loss of
the run's last 512.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from synergy_core.records import Plan
from synergy_launch.examples.text import reference_text

from tests.benchmarks.time_to_target import gpus_at, step_s, summary
from tests.integration import test_megatron_lm as run_of

BASE, STEPS = 8, 1200
WINDOW = 64 * BASE  # sequences
KINDS = ("M0", "moving")
DOCUMENT = 4096  # bytes
ARGUMENTS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 4 "
    f"--global-batch-size {BASE} --train-iters {STEPS} --lr 2e-3 --min-lr 2e-3 --lr-decay-style constant --lr-warmup-iters 20 "
    "--attention-dropout 0 --hidden-dropout 0 --log-interval 1 --eval-iters 0 --eval-interval 100000 --save-interval 100000 "
    "--tokenizer-type NullTokenizer --vocab-size 256 --distributed-backend gloo --use-cpu-initialization --num-workers 0 "
    "--transformer-impl local --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-persist-layer-norm --split 100,0,0"
)
# answers as a daemon would, each time with the batch of best goodput on the simulated cluster
ANSWER = f"""
from tests.benchmarks.time_to_target import best_batch, gpus_at, step_s
seen = dict(done=0.0, now=0.0)
def answer(said, address, by=None, timeout_s=5.0, line=None):
    send(said, address)
    if os.environ.get("TEST_KIND") != "moving" or said.plan is None or not said.done:
        return None
    batch = said.plan.global_batch
    seen["now"] += max(0.0, said.done - seen["done"]) / batch * step_s(batch, gpus_at(seen["now"]))
    seen["done"] = said.done
    wanted = best_batch({BASE}, gpus_at(seen["now"]), said.noise_scale, batch)
    return report.ReportAnswer(plan=replace(said.plan, global_batch=wanted))
report.send = answer
command.main()
"""


def write_text(folder: Path) -> Path:
    """The text as Megatron's indexed data set; its prefix."""
    sys.path.append(str(run_of.MEGATRON))
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix, text = folder / "text", reference_text()
    builder = IndexedDatasetBuilder(f"{prefix}.bin")
    for begin in range(0, len(text), DOCUMENT):
        builder.add_item(torch.tensor(list(text[begin : begin + DOCUMENT]), dtype=torch.int32))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return prefix


def train(folder: Path, prefix: Path, kind: str, seed: int) -> list[dict[str, Any]]:
    """The finished steps of one run."""
    run_of.USER = [*ARGUMENTS.split(), "--seed", str(1234 + seed), "--data-path", str(prefix)]
    run_of.LAUNCH = "import os\nfrom dataclasses import replace\n" + LAUNCH.replace(
        "report.send = send\ncommand.main()\n", ANSWER
    )
    with run_of.Run(folder, Plan(micro_batch=4, global_batch=BASE), TEST_KIND=kind) as run:
        if run.process.wait(1800):
            raise SystemExit(f"{kind}, seed {seed}: {run.tail()}")
    return list(run.steps().values())


def reached(steps: list[dict[str, Any]], target: float) -> dict[str, float]:
    """What main reports, of one run."""
    found = {"seconds": math.inf, "sequences": math.inf, "loss": math.inf, "batch": float(steps[-1]["global_batch"])}
    now_s, done, recent = 0.0, 0, []
    for step in steps:
        batch = step["global_batch"]
        now_s, done = now_s + step_s(batch, gpus_at(now_s)), done + batch
        if step["loss"] is None:  # Megatron-LM's first lines are not to be trusted
            continue
        recent.append((batch, step["loss"]))
        while sum(b for b, _ in recent[1:]) >= WINDOW:
            recent.pop(0)
        total = sum(b for b, _ in recent)
        found["loss"] = sum(b * loss for b, loss in recent) / total
        if total >= WINDOW and found["loss"] <= target and math.isinf(found["seconds"]):
            found |= {"seconds": now_s, "sequences": done}
    return found


LAUNCH = run_of.LAUNCH


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--target", type=float, default=2.35)
    parser.add_argument(
        "--keep", type=Path, help="folder for the runs' steps, by which a finished run is not made again"
    )
    args = parser.parse_args(argv)
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as name:
        prefix = write_text(Path(name))
        for seed in range(args.seeds):
            for kind in KINDS:
                kept = args.keep / f"{kind}-{seed}.json" if args.keep else None
                if kept is not None and kept.exists():
                    steps = json.loads(kept.read_text())
                else:
                    steps = train(Path(name) / f"{kind}-{seed}", prefix, kind, seed)
                    if kept is not None:
                        kept.write_text(json.dumps(steps))
                runs[kind].append(reached(steps, args.target))
                print(f"  seed {seed} {kind}: {runs[kind][-1]}", file=sys.stderr, flush=True)
    print(f"pretrain_gpt.py: target {args.target}, M0 {BASE}, {STEPS} steps of M0, {args.seeds} seeds")
    print(f"  {'':<9}{'seconds to target':>24}{'sequences to target':>28}{'loss at the end':>26}{'last batch':>12}")
    for kind, found in runs.items():
        print(
            f"  {kind:<9}{summary([r['seconds'] for r in found]):>24}{summary([r['sequences'] for r in found]):>28}"
            f"{summary([r['loss'] for r in found], '{:.3f}'):>26}{statistics.median(r['batch'] for r in found):>12.0f}"
        )
    medians = [statistics.median(r["seconds"] for r in runs[kind]) for kind in KINDS]
    if all(math.isfinite(seconds) for seconds in medians):
        print(f"  the moving batch reaches the target {medians[0] / medians[1]:.2f} times as soon as M0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
