"""The admin's settings: `#SYNERGY Key=Value` lines of slurm.conf and of the files that it Includes.

Slurm takes every such line for a comment. Nothing here talks to Slurm but find_slurm_conf, which may ask scontrol where
slurm.conf lies.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from synergy_core.errors import UsageError, one_line

from synergyd.settings import FIGURES, GPU_TYPE, REMOVED, SETTINGS, TABLE, Settings
from synergyd.slurm.directives.conf_lines import MAX_PROBLEMS, ConfLine, Lint, read_lines
from synergyd.slurm.directives.slurm_conf import read_slurm_conf
from synergyd.slurm.directives.tokenizer import WordError, as_bytes, as_text, nearest, words

PREFIX = "#SYNERGY"
DEFAULT_SLURM_CONF = Path("/etc/slurm/slurm.conf")


@dataclass(frozen=True)
class LoadedSettings:
    """Settings, the place of each that was said (`field` or `gpu_figures.TYPE` -> "file:line"), and what is wrong."""

    settings: Settings
    origins: Mapping[str, str]
    problems: tuple[Lint, ...]
    files: tuple[Path, ...] = ()
    cluster: str = ""  # its ClusterName
    controllers: tuple[str, ...] = ("localhost",)  # addresses of the hosts of slurmctld, in their order

    def errors(self) -> tuple[Lint, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "error")


_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,40}")
_OF_CLUSTER = "{cluster}"  # in Database: the cluster's name
_BY_KEY = {setting.key.lower(): setting for setting in SETTINGS}
KEYS = tuple(setting.key for setting in TABLE)
_REMOVED = {key.lower(): right for key, right in REMOVED.items()}


@dataclass
class _Reading:
    """The state of the reading so far."""

    values: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Lint] = field(default_factory=list)


def load_settings(path: Path, cluster: str = "") -> LoadedSettings:
    """Read the settings of slurm.conf `path` and of all it Includes.

    `cluster`: another one's name, whose database is meant. A wrong line is a Lint of severity "error" and leaves
    the default in place. Raises UsageError when `path` itself can't be read.
    """
    lines, problems = read_lines(path)
    reading = _Reading(problems=list(problems))
    for line in lines:
        if len(reading.problems) >= MAX_PROBLEMS:
            right = "mend those above first"
            reading.problems.append(Lint(line.where, f"{MAX_PROBLEMS} problems: the rest is not read", right))
            break
        _read_line(line, reading)
    values = reading.values
    report_port = values.get("report_port", Settings.report_port)
    metrics_port = values.get("metrics_port")
    for key, name, others in (
        ("metrics_port", "MetricsPort", {"ReportPort": report_port}),
        ("link_arbiter_port", "LinkArbiterPort", {"ReportPort": report_port, "MetricsPort": metrics_port}),
        (
            "rest_port",
            "RestPort",
            {
                "ReportPort": report_port,
                "MetricsPort": metrics_port,
                "LinkArbiterPort": values.get("link_arbiter_port"),
            },
        ),
    ):
        same_port = [other for other, port in others.items() if port and port == values.get(key)]
        if same_port:
            port = values.pop(key)
            where = reading.origins.pop(key)
            reading.problems.append(Lint(where, f"{name}={port} is also the {same_port[0]}", "give each its own port"))
    slurms = read_slurm_conf(path, lines)
    own = slurms.get("ClusterName").lower()  # as Slurm has it
    own = own if _CLUSTER.fullmatch(own) else ""
    if cluster and _OF_CLUSTER not in values.get("database", ""):
        right = f"write ?schema={_OF_CLUSTER} behind Database on all of them"
        raise UsageError(f"cluster {cluster}", f"Database is that of {own or 'this cluster'} alone", right)
    if _OF_CLUSTER in values.get("database", ""):
        values["database"] = values["database"].replace(_OF_CLUSTER, cluster or own)
        if not cluster and not own:  # an empty ?schema= would be the one that all clusters share
            what = f"{_OF_CLUSTER} stands for the ClusterName, and slurm.conf has none"
            right = "write ClusterName, of letters, digits, _ and -"
            reading.problems.append(Lint(reading.origins["database"], what, right))
    settings = Settings(**values, gpu_figures=reading.figures)
    files = tuple(dict.fromkeys(line.path for line in lines))
    hosts = slurms.controllers or LoadedSettings.controllers
    return LoadedSettings(settings, reading.origins, tuple(reading.problems), files, own, hosts)


def with_values(settings: Settings, where: str, pairs: Iterable[str]) -> Settings:
    """Return `settings` with `Key=Value` texts of a `#SYNERGY` line put over them. Raises UsageError for the first wrong one."""
    reading = _Reading()
    for text in pairs:
        key, equals, value = text.partition("=")
        if key.lower() == "gputype":
            raise UsageError(where, "GpuType stands in slurm.conf alone", "give a setting of one value")
        if not equals:
            raise UsageError(where, f"{one_line(text, 60)} is no Key=Value", "give it as in slurm.conf: ShortFirst=0")
        _read_pair(where, key, value, reading)
    if reading.problems:
        wrong = reading.problems[0]
        raise UsageError(wrong.where, wrong.what, wrong.right)
    return replace(settings, **reading.values)


def _read_line(line: ConfLine, reading: _Reading) -> None:
    """Take in one line if it is a `#SYNERGY` line."""
    text = as_bytes(line.text).strip(" \t\r")
    if not text.startswith(PREFIX) or text[len(PREFIX) : len(PREFIX) + 1] not in ("", " ", "\t"):
        if re.match(r"#*\s*synergy\s+[A-Za-z]+\s*=", text, re.IGNORECASE):
            bare = not text.startswith("#")
            what = "SYNERGY without # stops every Slurm command" if bare else "the line is not read"
            reading.problems.append(Lint(line.where, what, f"write it as {PREFIX} Key=Value"))
        return
    try:
        pairs = words(text, len(PREFIX))
    except WordError as error:
        what = f"the line can't be read ({error.code.replace('_', ' ')})"
        reading.problems.append(Lint(line.where, what, "write Key=Value; quote a value that holds blanks"))
        return
    pairs = [(as_text(key), as_text(value)) for key, value in pairs]
    if any(key.lower() == "gputype" for key, _ in pairs):
        _read_gpu(line.where, pairs, reading)
        return
    for key, value in pairs[:MAX_PROBLEMS]:
        _read_pair(line.where, key, value, reading)


def _read_pair(where: str, key: str, value: str, reading: _Reading) -> None:
    setting = _BY_KEY.get(key.lower())
    for text, setting_text in ((key, key), (f"{key}={value}", one_line(f"{key}={value}", 60))):
        right = next((to_do for pattern, to_do in _REMOVED.items() if fnmatchcase(text.lower(), pattern)), "")
        if right:
            reading.problems.append(Lint(where, f"{setting_text} has no effect any more", right, "warning"))
            return
    if setting is None:
        near = nearest(key, KEYS)
        right = f"did you mean {near}?" if near else f"known keys: {', '.join(KEYS)}"
        if key.lower() in FIGURES:
            right = f"write GpuType=NAME {key}=... on one line"
        reading.problems.append(Lint(where, f"unknown key {one_line(key, 60)}", right))
        return
    if setting.field in reading.origins:
        first = reading.origins[setting.field]
        reading.problems.append(Lint(where, f"{setting.key} is given twice", f"{first} holds and this line does not"))
        return
    try:
        if setting.field == "database":
            _check_url(value)
        reading.values[setting.field] = setting.type.read(value)
        reading.origins[setting.field] = where
    except ValueError:
        # A database URL may hold a password, so its text is not repeated.
        shown_text = setting.key if setting.field == "database" else f"{setting.key}={one_line(value, 60)}"
        reading.problems.append(Lint(where, f"{shown_text} is not right", f"{setting.key} takes {setting.type.takes}"))


def _check_url(value: str) -> None:
    """Raise ValueError for what is no URL. On compute nodes, without the server part, nobody opens a database."""
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ModuleNotFoundError:
        return
    try:
        make_url(value)
    except ArgumentError as error:
        raise ValueError(str(error)) from None


def _read_gpu(where: str, pairs: list[tuple[str, str]], reading: _Reading) -> None:
    """Read a line `GpuType=NAME peak_tflops=... memory_gib=...`: all of it holds, or nothing."""
    name = pairs[0][1]
    if pairs[0][0].lower() != "gputype" or not re.fullmatch(r"[A-Za-z0-9_.+-]{1,64}", name):
        what = "GpuType does not begin the line with a type's name"
        reading.problems.append(Lint(where, what, "write GpuType=a100 peak_tflops=312 ..."))
        return
    if name in reading.figures:
        first = reading.origins[f"gpu_figures.{name}"]
        reading.problems.append(Lint(where, f"GpuType={name} is given twice", f"{first} holds and this line does not"))
        return
    figures: dict[str, float] = {}
    for key, value in pairs[1:]:
        figure = key.lower()
        if figure not in FIGURES:
            near = nearest(key, FIGURES)
            right = f"did you mean {near}?" if near else f"known figures: {', '.join(FIGURES)}"
            reading.problems.append(Lint(where, f"unknown figure {one_line(key, 60)} of GpuType={name}", right))
            return
        try:
            if figure in figures:
                raise ValueError(value)
            figures[figure] = GPU_TYPE.type.read(value)
        except ValueError:
            what = f"{figure}={one_line(value, 60)} of GpuType={name} is not right"
            reading.problems.append(Lint(where, what, "give each figure once, above 0 and at most 1000000"))
            return
    if not figures:
        reading.problems.append(Lint(where, f"GpuType={name} has no figures", f"give some of: {', '.join(FIGURES)}"))
        return
    reading.figures[name] = figures
    reading.origins[f"gpu_figures.{name}"] = where


def find_slurm_conf() -> Path:
    """Return where slurm.conf lies: $SLURM_CONF, else what scontrol says, else /etc/slurm/slurm.conf. Raises UsageError."""
    from_environment = os.environ.get("SLURM_CONF", "")
    if from_environment:
        if not Path(from_environment).is_file():
            raise UsageError(
                "SLURM_CONF", f"{from_environment} is no file", "set SLURM_CONF to the cluster's slurm.conf"
            )
        return Path(from_environment)
    for path in (_ask_scontrol(), DEFAULT_SLURM_CONF):
        if path and path.is_file():
            return path
    right = "set SLURM_CONF to the cluster's slurm.conf, or give --conf"
    raise UsageError("slurm.conf", f"not found ({DEFAULT_SLURM_CONF} does not exist)", right)


def _ask_scontrol() -> Path | None:
    """Return the path in the SLURM_CONF line of `scontrol show config`, or None if scontrol is absent, fails or takes over 10 s."""
    try:
        answer = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, timeout=10, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"^SLURM_CONF\s*=\s*(/.*?)\s*$", answer.stdout.decode("utf-8", "replace"), re.MULTILINE)
    return Path(match[1]) if match else None
