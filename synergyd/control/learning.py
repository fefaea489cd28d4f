"""The lessons of a job's reports, about it and about jobs like it."""

from __future__ import annotations

from synergy_core.errors import one_line
from synergy_core.records import Profile

from synergyd.control.resize.events import ReportsReceived
from synergyd.control.state.size_changes import SizeChanges
from synergyd.control.tracked import Remember, TrackedJob
from synergyd.jobmodel.batch_range import after_loss, may_move
from synergyd.jobmodel.exchange_choice import after_exchange
from synergyd.jobmodel.learning import update_profile
from synergyd.jobmodel.shared_profiles import SharedProfiles


def learn(
    tracked: TrackedJob, event: ReportsReceived, shared: SharedProfiles, sizes: SizeChanges
) -> dict[str, Profile]:
    """Return the profiles that changed, by key of the store; `tracked`, `shared` and `sizes` know them from now on."""
    profile, (step_s, memory) = tracked.profile or Profile(), event.prediction or (None, None)
    for report in event.reports:
        profile = update_profile(profile, tracked.without_contention(report), step_s, memory or None, event.shape)
        if tracked.job is not None and may_move(tracked.job.directive):
            tracked.losses = after_loss(tracked.losses, report, profile.noise_scale)
        if tracked.job is not None and tracked.job.directive is not None and tracked.job.directive.comm:
            tracked.exchange_losses = after_exchange(tracked.exchange_losses, report, profile.noise_scale)
    tracked.profile = profile
    profiles = {f"job:{tracked.lifecycle.job_id}": profile}
    if tracked.job is None:
        return profiles
    return profiles | shared.learn(tracked.job, profile) | sizes.learn(tracked.job, event.reports[-1])


def learn_safely(
    tracked: TrackedJob, event: ReportsReceived, shared: SharedProfiles, sizes: SizeChanges
) -> tuple[dict[str, Profile], list[Remember]]:
    """Learn as `learn` does.

    Whatever a job reports costs only that job: return nothing learnt, and a warning once an incarnation.
    """
    try:
        return learn(tracked, event, shared, sizes), []
    except Exception as error:
        text = f"its report can't be learnt from: {type(error).__name__}: {one_line(str(error), 100)}"
        restarts, warned_incarnation = event.reports[-1].restarts, tracked.unlearnt
        tracked.unlearnt = restarts
        life = tracked.lifecycle
        return {}, [] if warned_incarnation == restarts else [Remember(life, life.state, "Warning", (text,))]
