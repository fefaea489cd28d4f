"""`synergyctl forecast --plot`: waits, completion times and GPU hours by share, with their intervals."""

from __future__ import annotations

from pathlib import Path

from synergy_core.errors import UsageError

from synergy_sim.forecast.estimate import Forecast
from synergyd.jobmodel.speed_up import PRIORS


def draw_forecast(forecast: Forecast, path: Path) -> None:
    """Write the picture. Raises UsageError: matplotlib is not installed, the file can't be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "--plot", "matplotlib is not installed", "pip install 'synergy-slurm[plot]', or use --html"
        ) from None
    figure = Figure(figsize=(12, 4), layout="constrained")
    measured = forecast.measured_outcome
    for number, (name, label, value, by) in enumerate(
        (
            ("wait_s", "mean wait, hours", measured.wait_s, 3600),
            ("completion_s", "mean completion, hours", measured.completion_s, 3600),
            ("gpu_h", "GPU hours held", measured.gpu_h, 1),
        ),
        start=1,
    ):
        axes = figure.add_subplot(1, 3, number)
        axes.axhline(value / by, color="0.4", linestyle="--", label="as it was")
        for offset, prior in enumerate(PRIORS):
            shares = forecast.of_prior(prior.name)
            ranges = [getattr(one, name) for one in shares]
            errors = [[(r.middle - r.low) / by for r in ranges], [(r.high - r.middle) / by for r in ranges]]
            places = [100 * one.share + 2 * (offset - 1) for one in shares]
            axes.errorbar(places, [r.middle / by for r in ranges], errors, fmt="o", capsize=3, label=prior.name)
        axes.set(title=label, xlabel="% of the jobs with several GPUs", xlim=(0, 110), ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # ValueError: an ending that is no picture's
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError("--plot", f"{path} can't be written: {reason}", "give a path such as forecast.png") from None
