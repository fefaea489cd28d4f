"""Why a decision is as it is, as data: a code and the values that belong to it. Sentences are made of them for one reader at the end."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

_NAMED = 3  # of several jobs or names
SEPARATOR = "; "  # between the reasons of a bad node, which are no sentences


@dataclass(frozen=True)
class Reason:
    """One reason of a decision."""

    #: a key of SENTENCES
    code: str
    #: the values in its sentence: numbers, texts, lists of names; `jobs` and `rivals` are job ids
    fields: dict[str, Any] = field(default_factory=dict)


Reasons = tuple[Reason, ...]


def nest_reason(reason: Reason) -> dict[str, Any]:
    """Return a reason as a field of another one."""
    return {"code": reason.code, "fields": reason.fields}


def reason_codes(reasons: Iterable[Reason]) -> frozenset[str]:
    """Return the codes of the reasons and of those inside of them."""
    codes: set[str] = set()
    for reason in reasons:
        codes.add(reason.code)
        inner = (v for v in reason.fields.values() if isinstance(v, Mapping) and "code" in v)
        codes |= reason_codes(Reason(v["code"], v["fields"]) for v in inner)
    return frozenset(codes)


def text_reason(text: str) -> Reasons:
    """Return a reason that is known as text only: an epoch that 0.2 has stored."""
    return (Reason("text", {"text": text}),) if text else ()


#: code -> its sentence. Format specifications beside Python's own: `:jobs`, `:rivals`, `:names` and `:nodes` (lists), `:because` (a reason)
SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        "text": "{text}",
        # a job that is not touched
        "directive-error": "Synergy does not touch it ({error}).",
        "no-directive": "Synergy does not touch it: it has no directive.",
        "ended": "It has ended.",
        "ending": "It is ending: its GPUs are free when Slurm says so.",
        "suspended": "It is suspended: Synergy does not touch it until it runs again.",
        "held-after-failed-start": "Slurm holds it since a start of it failed. Where it is not tried again (see its story), "
        "`scontrol release` lets it run.",
        "held-reservation-deleted": "Slurm holds it since its reservation was deleted (`scontrol release` lets it run): "
        "Synergy does not touch it.",
        "held": "It is held by its user or an admin (`scontrol release` lets it run): Synergy does not touch it.",
        "dependency": "Waits for the jobs that it depends on (Slurm's reason: {slurm_reason}).",
        "begin-time": "May not start for another {wait_s:.0f} s (its begin time).",
        "gpus-not-by-node": "Synergy leaves it to Slurm: it does not say its GPUs by node (--gres=gpu:N).",
        "keeps-fixed": "Keeps what it holds: {because}.",
        "keeps-unpredicted": "Keeps what it holds, since nothing can be predicted: {because}.",
        "never-fits": "Can't start: it needs {need}{kinds}, and the cluster has {gpus}{where}.",
        "nodes-down": "Waits for nodes: it needs {need}{kinds}, and only {up_gpus} of {gpus}{where} are on nodes that are up{tried}.",
        "no-node": "Waits: no node with GPUs is there.",
        "no-cell": "Waits: {because}.",
        # a bad node
        "bad-under": "{what} under {jobs:first}",
        "check-short": "{what} at {share:.0%} of the usual under {jobs:first}",
        "check-hung": "measuring its {what} did not end under {jobs:first}",
        "fewer-gpus": "Slurm counts fewer GPUs than it should have",
        "slurms-queue": "It waits in Slurm's queue as it was submitted.",
        # a job of the allocation
        "starts": "Starts on {size}: {goodput}.",
        "keeps": "Keeps {size}: {goodput}.",
        "moves": "Moves to other nodes with the same {size}: {because}.",
        "changes-plan": "Keeps {size} but changes its plan from {old_plan} to {plan}: {rates}; {because}.",
        "grows": "Grows from {old_size} to {size}: {rates}; {because}.",
        "shrinks": "Shrinks from {old_size} to {size}: {rates}; {because}.",
        "changes": "Changes from {old_size} to {size}: {rates}; {because}.",
        "preempted": "Preempted: it gives back {size} and waits for its turn{rule}.",
        "gpus-go-to": "This epoch they go to {groups:groups}.",
        "gpus-went-to": "This epoch they went to {groups:groups}.",
        "gain-more": "its GPUs gain more with {groups:groups}",
        "all-gain-more": "all jobs together gain more so",
        "paid-back": "a restart of this job costs {cost}, paid back in about {payback_s:.0f} s",
        "exchange": "{words}.",
        "comes-first": "It comes first, {because}.",
        "better-size": "{size} would give {gain}: {because}.",
        "restart-cost": "A restart of this job costs {cost}.",
        "no-room": "Waits: the least that it can run on is {least}, and {because} now.",
        "too-few-gpus": "Waits: the least that it can run on is {least}, and only {gpus} {gpu_type} GPUs can be handed out now; "
        "the others are down or held by jobs that Synergy does not resize.",
        "limited": "Waits: the least that it can run on is {least}, and {because}.",
        "rule": "Waits for its turn: {because}.",
        "scattered": "Waits: the least that it can run on is {least}, and the {free_gpus} free GPUs do not lie so; moving other jobs "
        "would cost more than it gains.",
        "outweighed": "Waits: the least that it can run on is {least}, and all but {free_gpus} of the {gpus} {gpu_types} GPUs are with "
        "jobs whose weighted goodput gains more from them; {because}.",
        "kept-for-due": "Waits: the least that it can run on is {least}, and others still hold GPUs on {nodes:names}. Nobody else "
        "starts or grows there until it can start, {because}.",
        "nodes-kept": "{count} node{is_are} kept for jobs that waited for as long as FairnessBound allows.",
        "tries": "Tries {size} on GPUs that nobody else wants, from {old_size}: its goodput there, predicted as {goodput:.3g} "
        "sequences/s after {old_goodput:.3g}, is uncertain by {uncertainty:.0%}.",
        "shares-links": "It shares {where} with {jobs:jobs}, so its steps take {slowdown:.2f} times as long.",
        # why a job did not get another Cell
        "needs-room": "too few of the nodes that it may use have the CPUs, memory and the like free that it asks for beside GPUs",
        "too-large": "it needs {size}, more than the nodes that are up and open to it have",
        "would-share-links": "on the nodes left for it, it would share links with others, which costs all of them more than it gains",
        "own-limit": "{text}",
        "limit": "{text}",
        "restart-bound": "{text}",
        "first-start": "{text}",
        "unplaceable": "its GPUs could not be placed on the nodes beside the jobs that stay",
        "fixed-sizes": "the policy gives each job the size it asked for",
        "other-rule": "the policy goes by another rule: {rule}",
        "growth-bound": "it is more than {max_growth:g} times the present GPUs, the bound of one epoch",
        "worse-on-fewer": "{goodput} on fewer GPUs, and nobody gains enough from the rest",
        "worse-on-more": "{goodput} on no fewer GPUs",
        "not-repaid": "a gain of {gain} does not repay a restart at this job's age, which costs {cost}",
        "others-gain": "it would take {gpus} GPU{s} from jobs that gain more from them",
        "not-beside": "it does not fit on the free nodes, and moving other jobs would cost more than it gains",
        "as-asked": "it starts on the {gpus} GPUs asked for, which nobody else wants, until its speed there was measured",
        "no-gain": "all jobs together gain no more by it",
        "not-weighed": "the solver's time limit struck before it was weighed",
        # a job that waits in Slurm's queue
        "wait-resources": "Waits for {need}{where}: {free} of the {total} there {is_are} free.",
        "wait-freed": "In about {in_s:span} {jobs:jobs} should have freed {freed}.",
        "wait-priority": "{count} job{s} of higher priority wait{waits} for the same nodes{ahead}.",
        "wait-never": "Waits for {need}{where}: {able} node{s} that {takes} jobs now could have it.",
        "wait-jobs": "Waits for the end of {jobs:jobs} ({dependency}){expected}.",
        "wait-dependency": "Waits for what it depends on: {dependency}.",
        "wait-broken-dependency": "What it depends on will not come ({dependency}): it never starts as it is (`scancel` removes it).",
        "wait-held": "It is held by its {holder}: `scontrol release` lets it run.",
        "wait-begin": "May not start for another {wait_s:span} (its begin time).",
        "wait-limit": "A limit is reached (Slurm's reason: {slurm_reason}){holds}.",
        "wait-tasks": "{running} of its array's tasks run, the most that it allows at once.",
        "wait-licenses": "Waits for licences: {licenses}.",
        "wait-reservation": "Waits for its reservation {reservation}.",
        "wait-partition": "Its partition {partition} takes no jobs now ({slurm_reason}).",
        "wait-other": "Slurm's reason: {slurm_reason}.",
        # what holds a running job up
        "waits-for-data": "It waits for its data loader, or for other work of the CPUs: a step takes {step_s:.3g} s where the model "
        "predicts {predicted_s:.3g} s, and its GPUs are idle for {idle_s:.3g} s of it (NVML, {samples} samples); communication "
        "would keep them busy.",
        "communication-bound": "It is bound by communication: the model has its GPUs wait for {share:.0%} of a step, and the step "
        "takes {step_s:.3g} s, {residue:.0%} of which is no computation{sm}.",
        "slow-rank": "Its other nodes wait for {node}, whose ranks take {times:.2f} times as long as their peers for the same work.",
        # a loss spike, and what follows
        "loss-spike": "The loss rose to {loss:.4g} at step {step}, far above the usual {usual:.4g}; {because}.",
        "loss-not-a-number": "The loss is not a number from step {step} on; {because}.",
        "spike-new": "it is not known yet whether that lasts",
        "spike-skipped": "the run was started again from its checkpoint of step {checkpoint_step}, without examples {first} to "
        "{last} of its order",
        "spike-not-allowed": "the run goes on, since its directive has no skip_spikes=yes",
        "spike-own-order": "the run goes on, since the order of its examples is its script's own",
        "spike-no-checkpoint": "the run goes on, since it has no checkpoint from before",
        "spike-same-place": "the run goes on, since leaving out the examples before did not help",
        "spike-too-often": "the run goes on, since it has been started again for spikes three times within an hour",
        "spike-no-restart": "the run goes on, since its launcher can't start it again in place",
        # beside the allocation
        "weight-capped": "weight={weight:g} counts as {max_weight:g} (MaxWeight).",
        "length-refuted": "It has trained for longer than it said was left, so it counts as the longest job.",
        "likely-length": "It has not told how much is left: by what like jobs have taken it counts as about {left} from its end.",
        "keeps-asked-size": "It keeps the size asked for: {because}.",
        "leaves-bad-nodes": "It leaves {nodes:list}, which takes {slowdown:.2f} times as long as its peers.",
        "takes-bad-nodes": "Jobs have fared badly on {nodes:head} lately; no better GPUs are worth the wait.",
        "leaked-gpus": "Slurm counts GPUs as in use that no job holds, and gives them to nobody: {nodes}.",
        "gives-back": "Gives back {gpus} GPUs: {because}.",
        "lent-spare": "lent as a spare, and {jobs:jobs} has lost {lost}",
        "spare-start": "Starts on {size}, as before it lost {lost}, with a spare node ({kept} are kept).",
        "spare-start-lent": "Starts on {size}, as before it lost {lost}, with a spare node ({kept} are kept), which {jobs:jobs} give{s} "
        "back.",
        "spares-kept": "{waits}: with its {gpus} GPU{s} fewer than {kept} would be idle or lent as spares.",
        "leaves-reservation": "{verb} to {size} on {nodes:nodes}: {because} in {in_s:.0f} s. By the reservation's end it trains "
        "{changed:.3g} sequences so, {left_alone:.3g} if it were left alone.",
        "left-on-reservation": "It is left alone although {event}: {because}.",
        "starts-woken": "Starts on {size} on nodes of Slurm's choice: no GPUs are free, and Slurm can wake {nodes:nodes}.",
        "grows-woken": "Grows from {old_size} to {size} as soon as {nodes:nodes} {is_are} powered up, and goes on meanwhile: predicted "
        "goodput {old_goodput:.3g} -> {goodput:.3g} sequences/s; {cost_s:.0f} s for that and the restart are paid back in about "
        "{payback_s:.0f} s.",
        "overtaken": "Starts on {size} when Slurm has them free: jobs that were submitted later have started before it.",
        "capped-start": "Would start on {size}, and waits{after:after}: {because}.",
        "capped-change": "Keeps what it holds for now. It would change to {size}, and waits: {because}.",
        "capped-together": "Together with it, {jobs:jobs} would change.",
        "holds-out": "Waits up to {wait_s:.0f} s for nodes of one leaf: across leaves, its steps would take {slowdown:.2f} times as "
        "long. Other jobs may start on its GPUs meanwhile.",
    }
)

IsVisible = Callable[[int], bool]


def format_span(seconds: float) -> str:
    """Return a text such as `40 s`, `25 min`, `2 h 10 min` or `3 d 4 h`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    hours = round(seconds / 3600)
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def format_reasons(reasons: Iterable[Reason], is_visible: IsVisible | None = None) -> str:
    """Return the reasons as sentences. Jobs of which `is_visible` says no are "another job" (None: all may be named)."""
    formatter = _Formatter(is_visible)
    return " ".join(formatter.sentence(reason) for reason in reasons)


def hide_jobs(reasons: Iterable[Reason], is_visible: IsVisible) -> Reasons:
    """Return the reasons without the ids of jobs that the reader may not know of, field by field."""
    return tuple(
        replace(reason, fields={k: _hide_jobs(k, v, is_visible) for k, v in reason.fields.items()})
        for reason in reasons
    )


def _hide_jobs(name: str, value: Any, is_visible: IsVisible) -> Any:
    if isinstance(value, Mapping) and "code" in value:
        fields = value.get("fields", {})
        return {**value, "fields": {k: _hide_jobs(k, v, is_visible) for k, v in fields.items()}}
    if name in ("jobs", "after"):
        return [job for job in value if is_visible(job)] if all(map(is_visible, value)) else [None] * len(value)
    if name == "groups":
        return [[[[job if is_visible(job) else None, *rest] for job, *rest in rivals], more] for rivals, more in value]
    return value


class _Formatter(string.Formatter):
    """Fills a sentence with a reason's fields. A hidden job has no id."""

    def __init__(self, is_visible: IsVisible | None) -> None:
        self._is_visible = is_visible

    def sentence(self, reason: Reason) -> str:
        template = SENTENCES.get(reason.code)
        if template is None:
            return f"{reason.code}."  # of a newer version
        return self.vformat(template, (), reason.fields)

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "")

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Mapping):
            return self.sentence(Reason(value["code"], value["fields"]))
        match format_spec:
            case "jobs":
                return self._jobs(value)
            case "first":
                return self._jobs(value).partition(" and ")[0]
            case "after":
                return f" for the GPUs of {self._jobs(value)}, which can't change yet" if value else ""
            case "groups":
                return "; ".join(self._rivals(rivals) + (f" and {more} more" if more else "") for rivals, more in value)
            case "names":
                return ", ".join(value[:_NAMED]) + (f" and {len(value) - _NAMED} more" if len(value) > _NAMED else "")
            case "nodes":
                return ", ".join(value[:_NAMED]) + (" and more" if len(value) > _NAMED else "")
            case "head":
                return ", ".join(value[:_NAMED])
            case "list":
                return ", ".join(value)
            case "span" if isinstance(value, int | float):
                return format_span(value)
            case _:
                try:
                    return format(value, format_spec)
                except (TypeError, ValueError):  # of another version, or infinite: such numbers are stored as text
                    return str(value)

    def _jobs(self, jobs: Iterable[int | None]) -> str:
        jobs = list(jobs)
        if not all(map(self._can_name, jobs)):
            return "another job" if len(jobs) == 1 else "other jobs"
        more = f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else ""
        return f"job{'s' * (len(jobs) != 1)} {', '.join(map(str, jobs[:_NAMED]))}{more}"

    def _rivals(self, rivals: Iterable[Iterable[Any]]) -> str:
        """Name jobs that start or grow, each as (job, GPUs before or None, GPUs then)."""
        words = []
        for job, before, then in rivals:
            name = f"job {job}" if self._can_name(job) else "another job"
            words.append(f"{name} ({before} -> {then})" if before is not None else f"{name} (starts on {then})")
        return ", ".join(words)

    def _can_name(self, job: int | None) -> bool:
        return job is not None and (self._is_visible is None or self._is_visible(job))
