"""Measurements that runs of one program share: the same user, name and batch range, and step times that agree.

For jobs whose model is not known (plain PyTorch): a new run knows how it scales before its first step, and each run has the
measurements of sizes that only others have tried.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean

from synergy_core.kernels import Kernels
from synergy_core.records import Job, Measurement, Plan, Profile, Shape

from synergyd.jobmodel.alike_programs import AlikePrograms
from synergyd.jobmodel.learning import inherit_profile, round_to_grid

PREFIX = "like:"  # prefix of the stored keys: `like:PROGRAM:KIND`
KERNELS = "kernels:"  # prefix of the keys of what a program's jobs have detected, whether their model is known or not
_SAME = 0.05  # |log| of two step times that count as equal
_UNLIKE = 0.3  # |log| of two step times of one plan on one shape from which they belong to two programs
_STRIKES = 2  # after so many unlike runs in a row the program has changed
_KEPT, _KEPT_A_SHAPE = 48, 3
_RATES = 64.0  # factor in samples a second and GPU above which two programs differ, whatever their plans
_NOISES = 8  # runs of a program whose noise scales count: one that differs moves the mean by an eighth
_NOISE_GRID = math.log(
    1.25
)  # the best batch goes with the root, so a step changes it by 12 %, where goodput is flat to 1 %
_EARLIER = 0  # no job's id: what an earlier daemon has stored
_REPORTS = 3  # a step time takes another's place only after so many
_PROGRAMS = 10_000


def likeness(job: Job, profile: Profile) -> str | None:
    """Return the key of runs of the same program.

    These are runs of one user, under one name but for a number at its end, with the same batch range. The key ends with the mark
    of all programs that differ in their names alone, where they say a batch range. Return None for jobs whose model is known,
    which share by that.
    """
    directive = job.directive
    if directive is None or directive.model or profile.model is not None:
        return None
    batches = directive.global_batch, directive.micro_batch, directive.max_micro_batch
    kind = program(job.uid, "", *batches) if directive.global_batch else ""
    return f"{PREFIX}{program(job.uid, job.name, *batches)}:{kind}"


@lru_cache(maxsize=32_768)  # called for every job in every epoch, for what it measured and for how long it takes
def program(uid: int, name: str, *said: object) -> str:
    """Return a mark of runs of the same program: of one user, under one name but for a number at its end, that say the same."""
    stem = name.rstrip("0123456789")
    if stem != name and stem.endswith(("-", "_", ".")):
        stem = stem[:-1]
    return hashlib.sha256(json.dumps([uid, stem, *said]).encode()).hexdigest()[:24]


def program_mark(job: Job) -> str:
    """Return the mark of runs of the job's program: with the same model and batches too."""
    directive = job.directive
    if directive is None:
        return program(job.uid, job.name)
    batches = directive.global_batch, directive.micro_batch, directive.max_micro_batch
    return program(job.uid, job.name, directive.model, *batches)


class SharedProfiles:
    """The measurements of each program, by key; `learn` returns what to store."""

    def __init__(self) -> None:
        self._known: dict[str, Profile] = {}
        self._alike = AlikePrograms()
        self._owners: dict[str, int] = {}  # uid by key, of programs of which a job was seen
        self._strikes: dict[str, int] = {}
        self._unlike: set[int] = set()  # jobs whose steps disagree with those of others
        # by key, by job: its first and its last noise scale, those that have reported last at the end
        self._noises: dict[str, dict[int, tuple[float, float]]] = {}
        self._replaced: dict[
            int, set[tuple[Plan, Shape]]
        ] = {}  # by job: measurements of others that it has replaced, once each
        self._kernels: dict[str, Kernels] = {}  # by key, the latest last
        self._detected: dict[int, Kernels] = {}  # by job: those that count already

    def load(self, profiles: Mapping[str, Profile]) -> None:
        """Load the profiles that an earlier daemon has stored."""
        self._known |= {key: profile for key, profile in profiles.items() if key.startswith(PREFIX)}
        for key, profile in profiles.items():
            if key.startswith(KERNELS) and profile.kernels is not None:
                self._keep_kernels(key, profile.kernels)
        self._forget_old()
        for key, profile in self._known.items():
            self._alike.take(_kind(key), key, profile)

    def learn(self, job: Job, profile: Profile) -> dict[str, Profile]:
        """Take over a job's measurements and kernels, and return the profiles that changed, by key."""
        return self._learn_kernels(job, profile.kernels) | self._learn_measurements(job, profile)

    def _learn_kernels(self, job: Job, kernels: Kernels | None) -> dict[str, Profile]:
        key = KERNELS + program_mark(job)
        if kernels is None or self._detected.get(job.job_id) == kernels:
            return {}
        self._detected[job.job_id] = kernels
        self._keep_kernels(key, kernels)
        return {key: Profile(kernels=kernels)}

    def _keep_kernels(self, key: str, kernels: Kernels) -> None:
        self._kernels.pop(key, None)
        self._kernels[key] = kernels
        while len(self._kernels) > _PROGRAMS:
            del self._kernels[next(iter(self._kernels))]

    def with_kernels(self, job: Job, profile: Profile) -> Profile:
        """Return `profile` with the kernels that the latest job of its program has detected, if it has none of its own."""
        latest = self._kernels.get(KERNELS + program_mark(job)) if profile.kernels is None else None
        return profile if latest is None else replace(profile, kernels=latest)

    def _learn_measurements(self, job: Job, profile: Profile) -> dict[str, Profile]:
        """Take over a job's measurements and return the profiles that changed, by key.

        A job whose step times disagree is ignored. After a second one in a row the program has changed and its measurements are
        dropped. The noise scale is that of the middle of a run, for it grows while a job trains.
        """
        key = likeness(job, profile)
        if key is None or not profile.measured or job.job_id in self._unlike:
            return {}
        program_profile = self._find_profile(key) or Profile()
        agrees = _agrees(program_profile.measured, profile.measured)
        if agrees is False:
            self._strikes[key] = self._strikes.get(key, 0) + 1
            if self._strikes[key] < _STRIKES:
                self._unlike.add(job.job_id)
                return {}
            program_profile = Profile()
            self._noises.pop(key, None)
        if agrees is not None:
            self._strikes[key] = 0
        noise = self._usual_noise(key, job.job_id, profile.noise_scale, program_profile.noise_scale)
        replaced = self._replaced.setdefault(job.job_id, set())
        shared = replace(
            program_profile,
            measured=_merge_measurements(program_profile.measured, profile.measured, replaced),
            noise_scale=noise,
            samples=1,
        )
        if shared == self._known.get(key):
            return {}
        self._known.pop(key, None)
        self._known.pop(_before_kinds(key), None)
        self._known[key] = shared
        self._owners[key] = job.uid
        self._alike.take(_kind(key), key, shared)
        self._forget_old()
        return {key: shared}

    def complete_profile(self, job: Job, profile: Profile) -> Profile:
        """Return the job's own profile, completed with what other runs have measured.

        It gets their measurements where it has none, and their noise scale until it has one. The other runs are those of its
        program, then those of programs that differ in their names alone and run as one.
        """
        key = likeness(job, profile)
        if key is None or job.job_id in self._unlike:
            return profile
        if (program_profile := self._find_profile(key)) is not None:
            self._owners[key if key in self._known else _before_kinds(key)] = job.uid
            profile = _fill_gaps(profile, program_profile.measured, program_profile.noise_scale)
        if (alike := self._alike.find_measurements(_kind(key), key, bool(profile.measured))) is not None:
            profile = _fill_gaps(profile, *alike)
        return profile

    def programs(self) -> dict[int, tuple[tuple[Measurement, ...], ...]]:
        """Return what each program has measured, by the uid of its user, the one that changed last at the end.

        A program of an earlier daemon's life counts once a job of it has been seen: its key does not tell whose it is.
        """
        of_user: dict[int, list[tuple[Measurement, ...]]] = {}
        for key, profile in self._known.items():
            if (uid := self._owners.get(key)) is not None:
                of_user.setdefault(uid, []).append(profile.measured)
        return {uid: tuple(some) for uid, some in of_user.items()}

    def forget(self, job_id: int) -> None:
        """Drop the state of a job that has ended. Its measurements stay."""
        self._unlike.discard(job_id)
        self._detected.pop(job_id, None)
        self._replaced.pop(job_id, None)

    def _usual_noise(self, key: str, job_id: int, noise: float | None, earlier: float | None) -> float | None:
        """Return the noise scale halfway, in the logarithm, between the first and the last of each run, in the mean over the latest runs.

        `noise`: that of the job now; `earlier`: what earlier runs said. A job keeps the size that it starts on for longer than the noise
        scale of its first steps.
        """
        if noise is None or not 0 < noise < math.inf:
            return earlier
        runs = self._noises.setdefault(key, {} if earlier is None else {_EARLIER: (earlier, earlier)})
        first, _ = runs.pop(job_id, (noise, noise))
        runs[job_id] = first, noise
        if len(runs) > _NOISES:
            del runs[next(iter(runs))]
        middle = fmean(0.5 * (math.log(first) + math.log(last)) for first, last in runs.values())
        return math.exp(round(middle / _NOISE_GRID) * _NOISE_GRID)

    def _find_profile(self, key: str) -> Profile | None:
        profile = self._known.get(key)
        return profile if profile is not None else self._known.get(_before_kinds(key))

    def _forget_old(self) -> None:
        while len(self._known) > _PROGRAMS:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._strikes.pop(oldest, None)
            self._noises.pop(oldest, None)
            self._owners.pop(oldest, None)


def _kind(key: str) -> str:
    return key.removeprefix(PREFIX).partition(":")[2]


def _before_kinds(key: str) -> str:
    """Return the key as a daemon before this release has stored it."""
    return key.rpartition(":")[0]


def _fill_gaps(profile: Profile, measured: Iterable[Measurement], noise_scale: float | None) -> Profile:
    """Return `profile` with what others have measured where it has not, and their noise scale until it has one."""
    own = {(m.plan, m.shape) for m in profile.measured}
    others = tuple(m for m in measured if (m.plan, m.shape) not in own)
    noise = profile.noise_scale if profile.noise_scale is not None else noise_scale
    if not others and noise == profile.noise_scale and profile.samples:
        return profile
    return replace(profile, measured=(*others, *profile.measured), noise_scale=noise, samples=max(1, profile.samples))


def _agrees(earlier: Sequence[Measurement], own: Sequence[Measurement]) -> bool | None:
    """Return whether the step times of the same plans on the same shapes agree, in the median.

    Where there are no such plans, return None if at least the rates are alike, else False.
    """
    before = {(m.plan, m.shape): m.step_s for m in earlier}
    off = sorted(
        abs(math.log(m.step_s / before[m.plan, m.shape])) for m in own if (m.plan, m.shape) in before and m.step_s > 0
    )
    if off:
        return off[len(off) // 2] <= _UNLIKE
    theirs, ours = _rates(earlier), _rates(own)
    if theirs and ours and max(theirs[-1] / ours[0], ours[-1] / theirs[0]) > _RATES:
        return False
    return None


def _rates(some: Iterable[Measurement]) -> list[float]:
    """Return samples a second and GPU, ascending."""
    return sorted(m.plan.global_batch / m.step_s / m.shape.gpus for m in some if m.step_s > 0)


def _merge_measurements(
    earlier: tuple[Measurement, ...], own: Iterable[Measurement], replaced: set[tuple[Plan, Shape]]
) -> tuple[Measurement, ...]:
    """Return the latest measurement of each plan and shape, a few a shape, in their order as long as they agree.

    `replaced` is what this job has changed already, so that two that differ a little do not take turns.
    """
    latest = {(m.plan, m.shape): m for m in earlier}
    for m in own:
        key = m.plan, m.shape
        before = latest.get(key)
        differs = before is not None and m.step_s > 0 and abs(math.log(m.step_s / before.step_s)) > _SAME
        if m.step_s > 0 and (before is None or (differs and m.samples >= _REPORTS and key not in replaced)):
            if before is not None:
                replaced.add(key)
            latest.pop(key, None)
            latest[key] = replace(m, step_s=round_to_grid(m.step_s), samples=1)
    result: list[Measurement] = []
    of_shape: dict[object, int] = {}
    for m in reversed(latest.values()):
        of_shape[m.shape] = of_shape.get(m.shape, 0) + 1
        if of_shape[m.shape] <= _KEPT_A_SHAPE:
            result.append(m)
    return tuple(reversed(result[:_KEPT]))


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
        profile = shared.with_kernels(job, shared.complete_profile(job, own.get(job.job_id, Profile())))
        others = of_models.get((job.uid, (job.directive.model if job.directive else None) or ""))
        answer[job.job_id] = profile if others is None or profile.samples else inherit_profile(profile, [others])
    return answer
