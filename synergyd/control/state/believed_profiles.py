"""The profile that is believed of a job before its own reports tell: what runs like it have learnt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from synergy_core.records import Job, Profile

from synergyd.jobmodel.learning import inherit_profile
from synergyd.jobmodel.shared_profiles import SharedProfiles


def believed_profiles(jobs: Iterable[Job], own: Mapping[int, Profile], shared: SharedProfiles) -> dict[int, Profile]:
    """Return by job id the job's own profile, with what runs of the same program have measured.

    Before its first report it also has what its user's jobs that name the same model have learnt together. Reports
    of one user's jobs decide for that user alone: a wrong peak would take another's plans away.
    """
    jobs = tuple(jobs)
    of_model: dict[tuple[int, str], list[Profile]] = {}
    for job in jobs:
        profile = own.get(job.job_id)
        if job.directive is not None and job.directive.model and profile is not None and profile.samples:
            of_model.setdefault((job.uid, job.directive.model), []).append(profile)
    of_models = {key: inherit_profile(Profile(), profiles) for key, profiles in of_model.items()}
    answer = {}
    for job in jobs:
        profile = shared.complete_profile(job, own.get(job.job_id, Profile()))
        others = of_models.get((job.uid, (job.directive.model if job.directive else None) or ""))
        answer[job.job_id] = profile if others is None or profile.samples else inherit_profile(profile, [others])
    return answer
