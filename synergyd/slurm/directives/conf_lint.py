"""Warnings on those parts of slurm.conf that Synergy depends on, with what would be right; Slurm is not asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from synergy_core.ordinary_file import read_bytes

from synergyd.slurm.directives.conf import LoadedSettings
from synergyd.slurm.directives.conf_lines import MAX_FILE_BYTES, Lint, read_lines
from synergyd.slurm.directives.slurm_conf import SlurmConf, read_slurm_conf
from synergyd.slurm.directives.tokenizer import nearest

_LUA_COMMENT = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)


def lint(path: Path, conf_settings: LoadedSettings) -> tuple[Lint, ...]:
    """Return the warnings on slurm.conf `path` and on `conf_settings` beside it. Raises UsageError when `path` can't be read."""
    lines, _ = read_lines(path)
    conf = read_slurm_conf(path, lines)
    return (*_of_slurm(conf), *_of_settings(conf, conf_settings), *_of_files(conf, conf_settings))


def _is_missing(conf: SlurmConf, key: str, token: str) -> bool:
    return token not in conf.tokens(key)


def _is_below(conf: SlurmConf, key: str, least: int) -> bool:
    value = conf.get(key)
    return value.isdecimal() and len(value) < 10 and int(value) < least


# (key, is it wrong?, what, what would be right); a key that is absent has Slurm's default.
_RULES: tuple[tuple[str, Callable[[SlurmConf], bool], str, str], ...] = (
    (
        "JobSubmitPlugins",
        lambda conf: not {"lua", "job_submit/lua"} & set(conf.tokens("JobSubmitPlugins")),
        "the job_submit plugin lua is not on, so wrong directives are not refused at sbatch",
        "add lua to JobSubmitPlugins and install slurm_plugins/job_submit.hook.lua as job_submit.lua",
    ),
    (
        "GresTypes",
        lambda conf: _is_missing(conf, "GresTypes", "gpu"),
        "gpu is not a GresTypes, so no job has GPUs that could be resized",
        "add gpu to GresTypes",
    ),
    (
        "JobRequeue",
        lambda conf: conf.get("JobRequeue") == "0",
        "JobRequeue=0 takes the right to be requeued from jobs that the plugin did not stamp",
        "set JobRequeue=1, or rely on the plugin, which sets it on Synergy's jobs",
    ),
    (
        "JobFileAppend",
        lambda conf: conf.get("JobFileAppend") != "1",
        "without JobFileAppend=1 Slurm begins a job's output anew at each resize, and synergy-launch copies it back",
        "set JobFileAppend=1, or let users write --open-mode=append",
    ),
    (
        "AccountingStorageType",
        lambda conf: not conf.get("AccountingStorageType").lower().endswith("/slurmdbd"),
        "without slurmdbd no user has an AdminLevel, so synergyd must run as root or SlurmUser",
        "set AccountingStorageType=accounting_storage/slurmdbd and give synergyd's user AdminLevel=Admin",
    ),
    (
        "PriorityType",
        lambda conf: conf.get("PriorityType").lower() == "priority/basic",
        "priority/basic puts a job that was held, as each resize does, behind all others",
        "set PriorityType=priority/multifactor",
    ),
    (
        "PriorityFlags",
        lambda conf: (
            conf.get("PriorityType").lower().endswith("/multifactor")
            and conf.get("PriorityWeightAge").strip("0") != ""
            and "accrue_always" not in conf.tokens("PriorityFlags")
        ),
        "a job that waits for Synergy's decision stands behind a start time, and gains no age before it",
        "add ACCRUE_ALWAYS to PriorityFlags",
    ),
    (
        "KillWait",
        lambda conf: _is_below(conf, "KillWait", 30),
        "a short KillWait gives a job little time to write a checkpoint when it is requeued or runs out of time",
        "set KillWait=30 or more",
    ),
    (
        "PreemptMode",
        lambda conf: "cancel" in conf.tokens("PreemptMode"),
        "PreemptMode=CANCEL ends jobs that could go on from their checkpoint",
        "set PreemptMode=REQUEUE, at least for the partitions that Synergy manages",
    ),
    (
        "PreemptMode",
        lambda conf: bool({"gang", "suspend"} & set(conf.tokens("PreemptMode"))),
        "gang scheduling and suspension share GPUs over time behind Synergy's back",
        "set PreemptMode=REQUEUE or OFF for the partitions that Synergy manages",
    ),
    (
        "SelectType",
        lambda conf: (
            bool(conf.get("SelectType")) and not conf.get("SelectType").lower().endswith(("cons_tres", "linear"))
        ),
        "this SelectType can't give GPUs to jobs",
        "set SelectType=select/cons_tres",
    ),
    (
        "SchedulerParameters",
        lambda conf: "synergy" in conf.get("SchedulerParameters").lower(),
        "Slurm looks for its own words inside unknown ones, so Synergy's settings here can change Slurm",
        "move them to #SYNERGY Key=Value lines",
    ),
)


def _of_slurm(conf: SlurmConf) -> list[Lint]:
    lints = [Lint(conf.where(key), what, right, "warning") for key, wrong, what, right in _RULES if wrong(conf)]
    match = re.search(r"cred_expire=([0-9]{1,9})", conf.get("AuthInfo"))
    if match and int(match[1]) > 120:
        what = f"cred_expire={match[1]} lengthens the wait of a requeued job wherever Synergy can't clear its StartTime"
        lints.append(Lint(conf.where("AuthInfo"), what, "leave cred_expire at its default, 120", "warning"))
    return lints


def _of_settings(conf: SlurmConf, conf_settings: LoadedSettings) -> list[Lint]:
    lints: list[Lint] = []
    origins, settings = conf_settings.origins, conf_settings.settings
    for name in settings.partitions:
        if conf.partitions and name not in conf.partitions:
            near = nearest(name, conf.partitions)
            right = f"did you mean {near}?" if near else f"partitions are: {', '.join(conf.partitions[:20])}"
            lints.append(Lint(origins["partitions"], f"no partition is named {name}", right, "warning"))
    for name in settings.gpu_figures:
        if conf.gpu_types and name not in conf.gpu_types:
            near = nearest(name, conf.gpu_types)
            right = f"did you mean {near}?" if near else f"types are: {', '.join(conf.gpu_types[:20])}"
            lints.append(Lint(origins[f"gpu_figures.{name}"], f"no node has GPUs of type {name}", right, "warning"))
    if "park_s" in origins and settings.park_s < 2 * settings.epoch_s:
        what = f"Park ({settings.park_s:g} s) is under two epochs of {settings.epoch_s:g} s"
        right = f"let Park be {2 * settings.epoch_s:g}s or more, so that one slow epoch lets no job go"
        lints.append(Lint(origins["park_s"], what, right, "warning"))
    return lints


def _of_files(conf: SlurmConf, conf_settings: LoadedSettings) -> list[Lint]:
    """Return the warnings about files: a readable password, a job_submit.lua without the hook."""
    lints: list[Lint] = []
    origin = conf_settings.origins.get("database", "")
    if origin and re.match(r"[^:/]+://[^/@]*:[^/@]+@", conf_settings.settings.database):
        file = Path(origin.rpartition(":")[0])
        if file.stat().st_mode & 0o044:
            what, right = "others can read the database password in this file", "use a .pgpass file or PGPASSFILE"
            lints.append(Lint(origin, what, right, "warning"))
    script = conf.path.parent / "job_submit.lua"
    if not {"lua", "job_submit/lua"} & set(conf.tokens("JobSubmitPlugins")):
        return lints
    try:
        text = read_bytes(script, MAX_FILE_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        what, right = "JobSubmitPlugins has lua, but this file is absent", "install slurm_plugins/job_submit.hook.lua"
        return [*lints, Lint(str(script), what, right, "warning")]
    except OSError:
        return lints  # not ours to read, as on a login node
    text = _LUA_COMMENT.sub("", text)
    if "synergy" not in text:
        what, right = "it does not load Synergy's module", "add the lines of slurm_plugins/job_submit.hook.lua"
        lints.append(Lint(str(script), what, right, "warning"))
    match = re.search(r"""\bstate_dir\s*=\s*["']([^"']*)["']""", text)
    if match and Path(match[1]) != conf_settings.settings.state_dir:
        what = (
            f"its state_dir is {match[1]} but StateDir is {conf_settings.settings.state_dir}, so it sees no heartbeat"
        )
        lints.append(Lint(str(script), what, "give both the same folder", "warning"))
    return lints
