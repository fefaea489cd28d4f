"""The batch range that a job's user did not ask for: what it would gain, at the noise scale that the run measures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from synergy_core.rates import equivalent_sequences
from synergy_core.records import Directive, Job, JobState, Profile

from synergyd.jobmodel.job_planner import JobPlanner

# A smaller gain is not worth an edit of the script: predictions are 3 % off at their best (cell_search.LEAST_UNCERTAINTY).
_LEAST = 0.05
# Times the batch of the script, to which a range is looked for: beyond it the rules for the learning rate lose accuracy in most of the
# runs of "Measuring the Effects of Data Parallelism on Neural Network Training" (Shallue et al., JMLR 2019).
_WIDEST = 16
#: reports of a plan before its step time is compared: after so many one odd report moves the mean by a quarter at most
_LEAST_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class BatchAdvice:
    """A batch range to advise.

    `low` and `high` are its sequences. `sooner` is the share of the remaining time that it would save on the GPUs that the job
    has, at `noise_scale` sequences.
    """

    low: int
    high: int
    sooner: float
    noise_scale: float

    @property
    def short(self) -> str:
        """Return the advice as text for a line of `status`."""
        return f"global_batch={self.low}:{self.high} ends it {self.sooner:.0%} sooner"

    def sentence(self) -> str:
        """Return the advice as a sentence for a Decision's why, with a leading blank."""
        return (
            f" With global_batch={self.low}:{self.high} in its #SYNERGY line it would end {self.sooner:.0%} sooner on these GPUs, "
            f"by the noise scale of {self.noise_scale:.3g} sequences that it measures."
        )


def advise(planner: JobPlanner) -> BatchAdvice | None:
    """Return batch advice for a running job that reports its noise scale and its batch and can take another batch.

    Return None if its range, or its one batch, is nearly as good: within _LEAST, or one sigma of the prediction. Also return None
    where Synergy chooses the range (adapt=yes), and where a larger batch was taken back. The gain counts accumulation alone, at
    the present micro-batch. Goodput over batches is flat around its best, so the range ends at its low end times the power of two
    that lies next above the best batch.
    """
    job, profile = planner.job, planner.profile
    directive = job.directive or Directive()
    low, present = directive.global_batch or (profile.global_batch or 0,) * 2
    if job.state is not JobState.RUNNING or planner.present is None or profile.noise_scale is None or low < 1:
        return None
    if not profile.rebatching or directive.adapt or job.batch_cap:
        return None
    # the present micro-batch needs the memory that it has now, and is predicted best
    ranged_directive = replace(
        directive, global_batch=(low, max(present, low * _WIDEST)), micro_batch=planner.present.micro_batch
    )
    ranged = replace(job, directive=ranged_directive, batches=None)
    now, best = planner.best_plan(job.shape), replace(planner, job=ranged).best_plan(job.shape)
    if now is None or best is None or best.plan.global_batch <= present:
        return None
    sooner = 1.0 - now.goodput / best.goodput
    if sooner < max(_LEAST, best.uncertainty):
        return None
    high = low * 2 ** math.ceil(math.log2(best.plan.global_batch / low))
    return BatchAdvice(low=low, high=high, sooner=sooner, noise_scale=profile.noise_scale)


def measured_gain(job: Job, profile: Profile) -> str:
    """Return a sentence on what the batch of a running job gains by measured steps, with a leading blank, or "".

    It compares progress per second (sequences per second times statistical efficiency) with that at the smallest batch that the job had
    with the same degrees on the same GPUs. Both need _LEAST_SAMPLES reports; step times scatter more than one of them tells.
    """
    noise = profile.noise_scale
    ran = [m for m in profile.measured if m.samples >= _LEAST_SAMPLES and m.shape == job.shape]
    now = next((m for m in reversed(ran) if m.plan.global_batch == profile.global_batch), None)
    if job.state is not JobState.RUNNING or noise is None or now is None:
        return ""
    alike = [m for m in ran if replace(m.plan, global_batch=now.plan.global_batch) == now.plan]
    before = min(alike, key=lambda m: m.plan.global_batch)
    size, small = now.plan.global_batch, before.plan.global_batch
    if size == small:
        return ""
    gain = equivalent_sequences(small, size, noise) / small * before.step_s / now.step_s - 1.0
    how = f"{gain:.0%} more" if gain >= 0 else f"{-gain:.0%} less"
    return f" Its global batch of {size} makes {how} progress a second than {small} did, by its measured steps and its noise scale."


def remark(job: Job, profile: Profile) -> str:
    """Return a sentence on what keeps the batch of a running job from moving further, with a leading blank, or "" where nothing does."""
    directive = job.directive or Directive()
    if job.state is not JobState.RUNNING:
        return ""
    if job.batch_cap:
        return f" Its global batch stays at {job.batch_cap} or below: its loss did worse above."
    if not directive.adapt:
        return ""
    if profile.samples and not profile.rebatching:
        return " adapt=yes changes nothing: its program can't take another batch."
    if profile.rebatching and job.batches is None:
        return (
            " adapt=yes changes nothing: its program does not say which batch it is tuned for, so global_batch= must."
        )
    return ""
