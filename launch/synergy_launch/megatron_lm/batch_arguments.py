"""Megatron-LM's arguments at another global batch than the one they were tuned for: rates by the rule, lengths in samples.

Option names and meanings are those of Megatron-LM core_v0.16.1. It counts its schedule in samples and the run in
iterations (train_iters = train_samples // global_batch_size, iterations of earlier batches included), so a run whose
batch has changed gets a number of samples that makes those iterations end where its own samples do. Which batch
each iteration had is kept in a file beside the checkpoints; nothing here needs torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.rates import factors

from synergy_launch.megatron_lm import tracker
from synergy_launch.megatron_lm.options import drop_options, option_number, option_real, option_values

HISTORY = "synergy-batches.json"
LR_RULE = "SYNERGY_LR_RULE"
# in iterations -> in samples
_LENGTHS = {
    "--lr-decay-iters": "--lr-decay-samples",
    "--lr-warmup-iters": "--lr-warmup-samples",
    "--lr-wsd-decay-iters": "--lr-wsd-decay-samples",
}
_RATES = ("--lr", "--min-lr", "--lr-warmup-init", "--decoupled-lr", "--decoupled-min-lr")
_DECAYS = ("--start-weight-decay", "--end-weight-decay")
_RULES = {
    "adam": "sqrt",
    "sgd": "linear",
}
SAID = ("sqrt", "linear", "none")  # not AdaScale: the rate would depend on how well the noise is known at a restart


@dataclass(frozen=True)
class Trained:
    """The state of the newest checkpoint: its `iteration`, and the batch from each iteration on, as (iteration, batch)."""

    iteration: int = 0
    batches: tuple[tuple[int, int], ...] = ()

    def samples(self, base: int) -> int:
        """Return the samples consumed so far; iterations that no record covers had `base`."""
        total, at, batch = 0, 0, base
        for start, following in (*self.batches, (self.iteration, base)):
            start = min(start, self.iteration)
            total, at, batch = total + max(0, start - at) * batch, max(at, start), following
        return total

    def with_batch(self, batch: int) -> Trained:
        """Return the record once iterations from here on have `batch`; what lay behind the checkpoint is lost and forgotten."""
        entries = [entry for entry in self.batches if entry[0] < self.iteration]
        if not entries or entries[-1][1] != batch:
            entries.append((self.iteration, batch))
        return Trained(self.iteration, tuple(entries))


def read(folder: Path) -> Trained:
    """Read the record of a checkpoint folder; what can't be read counts as nothing."""
    iteration = tracker.newest_iteration(folder)
    return Trained(iteration, history(folder)) if isinstance(iteration, int) else Trained()


def history(folder: Path) -> tuple[tuple[int, int], ...]:
    """Return the batch from each iteration on, as (iteration, batch), including iterations that no checkpoint holds."""
    try:
        entries = json.loads((folder / HISTORY).read_text(encoding="ascii"))
        batches = tuple((int(start), int(batch)) for start, batch in entries)
    except (OSError, ValueError, TypeError):
        return ()
    good = all(start >= 0 and batch > 0 for start, batch in batches) and list(batches) == sorted(batches)
    return batches if good else ()


def write(folder: Path, trained: Trained) -> None:
    """Write the record. Raises OSError."""
    fresh = folder / f".{HISTORY}"
    fresh.write_text(json.dumps(trained.batches) + "\n", encoding="ascii")
    fresh.replace(folder / HISTORY)


def choose_rule(optimizer: str) -> str:
    """Return the learning rate's rule for a value of --optimizer; an unknown optimizer keeps its rate.

    The user's choice (LR_RULE) takes precedence. Raises UsageError.
    """
    requested = os.environ.get(LR_RULE, "")
    if requested and requested not in SAID:
        raise UsageError(
            LR_RULE, f"{requested[:40]!r} is no rule for a Megatron-LM script", f"it may be {', '.join(SAID)}"
        )
    return requested or _RULES.get(optimizer, "none")


def with_batch(arguments: Sequence[str], batch: int, trained: Trained) -> list[str]:
    """Return `arguments`, a user's own, for global batch `batch`: what was tuned for their --global-batch-size follows the rule.

    They are unchanged where they name no batch, or no iteration had or will have another one.
    """
    base = option_number(arguments, "--global-batch-size", 0)
    if not base or {batch, *(b for _, b in trained.batches)} == {base}:
        return list(arguments)
    return _with_lengths(_with_rates(list(arguments), base, batch), base, batch, trained)


def run_length(arguments: Sequence[str]) -> dict[str, int]:
    """Return `samples` (of the whole run), `exit_interval` and global `batch` of a user's own arguments; 0 where they do not say."""
    batch = option_number(arguments, "--global-batch-size", 0)
    samples = option_number(arguments, "--train-samples", 0) or option_number(arguments, "--train-iters", 0) * batch
    return {"samples": samples, "exit_interval": option_number(arguments, "--exit-interval", 0), "batch": batch}


def _with_rates(out: list[str], base: int, batch: int) -> list[str]:
    kind = (option_values(out, "--optimizer") or ["adam"])[-1]
    scale = factors(choose_rule(kind), base, batch)
    changed = {n: option_real(out, n, 0.0) * scale.rate for n in _RATES if option_values(out, n)}
    if kind == "adam":
        changed["--weight-decay"] = option_real(out, "--weight-decay", 0.01) * scale.decoupled_decay
        # given only with a decay that grows over the run, which then goes from the one to the other
        changed |= {n: option_real(out, n, 0.0) * scale.decoupled_decay for n in _DECAYS if option_values(out, n)}
    for name, value in changed.items():
        out = [*drop_options(out, (name,)), name, f"{value:.8g}"]
    return out


def _with_lengths(out: list[str], base: int, batch: int, trained: Trained) -> list[str]:
    total = run_length(out)["samples"]
    for old, new in _LENGTHS.items():
        if iterations := option_number(out, old, 0):
            out = [*drop_options(out, (old,)), new, str(iterations * base)]
    if not total:
        return out
    if not option_values(out, "--lr-decay-samples"):
        out = [*out, "--lr-decay-samples", str(total)]
    remaining_samples = max(0, total - trained.samples(base))
    iterations = trained.iteration + -(-remaining_samples // batch)
    # Megatron takes this number for the size of its data as well: never less than what the run has seen and will see
    samples = max(iterations * batch, trained.samples(base) + remaining_samples if remaining_samples else 0)
    out = [*drop_options(out, ("--train-iters", "--train-samples")), "--train-samples", str(samples)]
    own = option_number(out, "--exit-interval", 0)
    sooner = own and (trained.iteration // own + 1) * own <= iterations  # the user's own stop comes first
    if samples > iterations * batch and iterations > trained.iteration and not sooner:
        # after a larger batch these samples are more than the iterations that are left: those end the run
        out = [*drop_options(out, ("--exit-interval",)), "--exit-interval", str(iterations)]
    return out
