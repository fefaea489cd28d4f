"""The command-line arguments that all examples have."""

from __future__ import annotations

import argparse
from pathlib import Path

from synergy_core.rates import RULES

from synergy_launch.batch.learning_rate import COUNTS


def common_arguments(
    description: str | None, *, global_batch: int, lr_rule: str, count: str
) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every example; the rest are this example's defaults ("": the optimizer's usual)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--layers", type=int, default=4)
    add("--hidden", type=int, default=64)
    add("--seq", type=int, default=64, help="bytes a sample (default 64)")
    add("--steps", type=int, default=100, help="steps of --global-batch in all, those before a restart included")
    batch = f"the batch that --lr was tuned for, and the batch without a plan (default {global_batch})"
    add("--global-batch", type=int, default=global_batch, help=batch)
    add("--lr", type=float, default=1e-3)
    add("--lr-rule", choices=RULES, default=lr_rule, help=f"at another global batch (default {lr_rule or 'sqrt'})")
    add("--count", choices=COUNTS, default=count, help="what --steps and schedules count (default examples)")
    add("--seed", type=int, default=0)
    add("--checkpoint", type=Path, help="folder of checkpoints; SYNERGY_CHECKPOINT_DIR comes before it")
    interval = "0: on request and at the end (default: from what a checkpoint takes and how often runs fail)"
    add("--checkpoint-interval", type=int, metavar="STEPS", help=interval)
    add("--step-delay", type=float, default=0.0, metavar="S", help="sleep this long a step, to watch it")
    return parser
