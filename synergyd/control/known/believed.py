"""What is believed of a job before its own reports say it: what runs like it have learnt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from synergyd.records import Job, Profile
from synergyd.task.learning import inherited
from synergyd.task.shared_profiles import SharedProfiles


def believed(jobs: Iterable[Job], own: Mapping[int, Profile], shared: SharedProfiles) -> dict[int, Profile]:
    """Return, by job id, its own profile, with what runs of the same program have measured, and, before its first report, with
    what its user's jobs that name the same model have learnt together.

    What one user's jobs report decides for that user alone: a wrong peak would take another's plans away.
    """
    jobs = tuple(jobs)
    of_model: dict[tuple[int, str], list[Profile]] = {}
    for job in jobs:
        profile = own.get(job.job_id)
        if job.directive is not None and job.directive.model and profile is not None and profile.samples:
            of_model.setdefault((job.uid, job.directive.model), []).append(profile)
    of_models = {key: inherited(Profile(), profiles) for key, profiles in of_model.items()}
    answer = {}
    for job in jobs:
        profile = shared.believed(job, own.get(job.job_id, Profile()))
        others = of_models.get((job.uid, (job.directive.model if job.directive else None) or ""))
        answer[job.job_id] = profile if others is None or profile.samples else inherited(profile, [others])
    return answer
