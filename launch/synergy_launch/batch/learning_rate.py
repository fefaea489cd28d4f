"""A run's adjustment to its batch: the rule for the learning rate, and the progress of a step.

M0 is the batch that the script's own learning rate was tuned for: the batch the script itself names, kept in the
checkpoint. The settings tuned for it (rate, weight decay) stay in the optimiser; the rule is applied for the
duration of a step, so that a change between two incarnations finds M0's settings again.

Schedules and the run's end are counted in examples, one of two ways: `examples` as they are, so that a run of N steps
of M0 sees N x M0 examples whatever the batch; or `progress`, examples at batch M0 (synergy_core.rates.equivalent_sequences), so that it
gets as far as N steps of M0 do: larger batches then see more examples in all.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.rates import RULES, Factors, equivalent_sequences, factors, usual_rule

COUNTS = ("examples", "progress")


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up over `warmup` examples, then half a cosine down to `floor` at `total` examples (0: constant).

    Loshchilov and Hutter 2017, equation 5, without restarts. It is a function of examples, so it is the same at every batch.
    """

    warmup: float = 0.0
    total: float = 0.0
    floor: float = 0.1

    def __call__(self, examples: float) -> float:
        """Return the factor on the tuned rate, in (0, 1]."""
        if examples < self.warmup:
            return max(examples, 1.0) / self.warmup
        if self.total <= self.warmup:
            return 1.0
        way = min(1.0, (examples - self.warmup) / (self.total - self.warmup))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * way)) / 2


@dataclass
class Following:
    """A run's position in examples, and its rule. `samples` are raw examples, `progress` examples at batch `base`."""

    base: int
    rule: str
    count: str = "examples"
    samples: int = 0
    progress: float = 0.0
    _schedule_steps: int = field(default=0, repr=False)
    # examples of the whole run, as it counts them; not known until it was asked for its end
    total: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.base < 1:
            raise UsageError("global_batch", str(self.base), "a whole number of 1 or more")
        if self.rule not in RULES:
            raise UsageError("lr_rule", f"{self.rule} is not known", f"it may be {', '.join(RULES)}")
        if self.count not in COUNTS:
            raise UsageError("count", f"{self.count} is not known", f"it may be {' or '.join(COUNTS)}")

    def factors(self, batch: int, noise: float | None) -> Factors:
        """Return the factors for a step of `batch` examples."""
        return Factors() if batch == self.base else factors(self.rule, self.base, batch, noise)

    def advance(self, batch: int, noise: float | None) -> int:
        """Count a step of `batch` examples. Return by how many steps a schedule made for M0 advances (0 or more)."""
        self.samples += batch
        self.progress += equivalent_sequences(self.base, batch, noise)
        return self._next_step()

    @property
    def examples_done(self) -> float:
        """Return the examples done, as this run counts them."""
        return self.samples if self.count == "examples" else self.progress

    def has_finished(self, steps: int) -> bool:
        """Return whether a run of `steps` steps of M0 has reached its end."""
        self.total = float(steps * self.base)
        # half an example: sums of fractions must not cost a whole step
        return self.examples_done > steps * self.base - 0.5

    def state(self) -> dict[str, Any]:
        """Return the position for a checkpoint's metadata."""
        return {
            "samples": self.samples,
            "progress": self.progress,
            "base_batch": self.base,
            "count": self.count,
        }

    def restore(self, meta: Mapping[str, Any]) -> str:
        """Restore the position from a checkpoint's metadata, its M0 and count included.

        Returns a sentence where these differ from the script's.
        """
        script = (self.base, self.count)
        self.samples = int(meta["samples"])
        self.progress = float(meta.get("progress", self.samples))
        self.base = int(meta.get("base_batch", self.base))
        self.count = str(meta.get("count", self.count))
        self._next_step()
        if script == (self.base, self.count):
            return ""
        return f"the checkpoint was tuned for global batch {self.base}, counted in {self.count}: that is kept"

    def format_factors(self, batch: int, noise: float | None) -> str:
        """Return a text such as `global batch 64 in place of 16: learning rate x 2 (sqrt)`; "" at M0."""
        if batch == self.base:
            return ""
        rate = self.factors(batch, noise).rate
        return f"global batch {batch} in place of {self.base}: learning rate x {rate:.3g} ({self.rule})"

    def _next_step(self) -> int:
        steps = int((self.examples_done + 1e-6) // self.base)
        due, self._schedule_steps = steps - self._schedule_steps, steps
        return max(0, due)


def choose_rule(optimizer: Any, rule: str, noise_known: bool = True) -> str:
    """Return `rule`, or where it is "" the usual one for a torch optimiser by the name of its class.

    An optimiser that is not known keeps its rate. `noise_known`: the run's end and schedule may follow the noise scale too.
    """
    if rule:
        return rule
    for kind in type(optimizer).__mro__:
        name = kind.__name__.lower()
        name = "adam" if name in ("nadam", "radam", "adamax", "fusedadam") else name
        with contextlib.suppress(UsageError):
            return usual_rule(name, noise_known=noise_known)
    return "none"


@contextlib.contextmanager
def at_batch(
    groups: list[dict[str, Any]], following: Following, batch: int, noise: float | None, decoupled: bool | None = None
) -> Iterator[None]:
    """Apply the rule to an optimiser's param groups; the tuned settings return afterwards.

    `decoupled`: whether weight decay is apart from the gradient (AdamW), None: as torch's groups say.
    """
    tuned_settings: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for group in groups:
        scale = following.factors(batch, noise)
        tuned_settings.append((group, {name: group[name] for name in ("lr", "weight_decay") if name in group}))
        if "lr" in group:
            group["lr"] = group["lr"] * scale.rate
        apart = group.get("decoupled_weight_decay") if decoupled is None else decoupled
        if apart and "weight_decay" in group:
            group["weight_decay"] = group["weight_decay"] * scale.decoupled_decay
    try:
        yield
    finally:
        for group, values in tuned_settings:
            group.update(values)
