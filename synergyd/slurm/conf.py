"""The admin's settings: `#SYNERGY Key=Value` lines of slurm.conf and of the files that it Includes.

Slurm takes every such line for a comment. Nothing here talks to Slurm but find_slurm_conf, which may ask scontrol where
slurm.conf lies.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from synergyd.errors import UsageError, one_line
from synergyd.settings import LINKS, OBJECTIVES, POLICIES, Settings
from synergyd.slurm.tokenizer import WordError, as_bytes, as_text, nearest, words

PREFIX = "#SYNERGY"
DEFAULT_SLURM_CONF = Path("/etc/slurm/slurm.conf")
MAX_FILES = 100
MAX_FILE_BYTES = 16 * 2**20
FIGURES = ("peak_tflops", "memory_gib", "bandwidth_gbs", "intra_gbs", "inter_gbs")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Lint:
    """One finding: `where` (file:line, or a file), `what` is wrong, what would be `right`.

    `severity` is "error" (the line has no effect) or "warning".
    """

    where: str
    what: str
    right: str
    severity: str = "error"

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.what}; {self.right}"


@dataclass(frozen=True)
class LoadedSettings:
    """Settings, the place of each that was said (`field` or `gpu_figures.TYPE` -> "file:line"), and what is wrong."""

    settings: Settings
    origins: Mapping[str, str]
    problems: tuple[Lint, ...]
    files: tuple[Path, ...] = ()

    def errors(self) -> tuple[Lint, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "error")


@dataclass(frozen=True)
class ConfLine:
    """One line of slurm.conf or of a file that it Includes, without its line end."""

    path: Path
    number: int
    text: str

    @property
    def where(self) -> str:
        return f"{self.path}:{self.number}"


@dataclass(frozen=True)
class Setting:
    """How a Key is read: the field of Settings, its reader (which raises ValueError) and what would be right."""

    key: str
    field: str
    read: Callable[[str], object]
    takes: str


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not re.fullmatch(r"[+-]?([0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9})", text) or not low <= float(text) <= high:
            raise ValueError(text)
        return float(text)

    return read


def _seconds(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd]?)", text)
        if not match or not low <= float(match[1]) * _UNITS[match[2]] <= high:
            raise ValueError(text)
        return float(match[1]) * _UNITS[match[2]]

    return read


def _port(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > 65535:
        raise ValueError(text)
    return int(text)


def _flag(text: str) -> bool:
    return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[text.lower()]


def _path(text: str) -> Path:
    if not text.startswith("/") or ".." in Path(text).parts or len(text) > 1024:
        raise ValueError(text)
    return Path(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if len(set(names)) != len(names) or not all(re.fullmatch(r"[A-Za-z0-9_.+-]{1,64}", name) for name in names):
        raise ValueError(text)
    return names


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}", text):
        raise ValueError(text)
    return text


def _database(text: str) -> str:
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise ValueError(text) from error
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ValueError(text)
    return text


def _growth(text: str) -> float:
    value = _number(0, 1024)(text)
    if 0 < value <= 1:
        raise ValueError(text)
    return value


def _by_name(read: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    """`NAME:VALUE,NAME:VALUE`, no name twice."""

    def pairs(text: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for item in text.split(","):
            name, _, value = item.rpartition(":")
            if name in found or not re.fullmatch(r"[A-Za-z0-9_.+-]{1,64}", name):
                raise ValueError(text)
            found[name] = read(value)
        return found

    return pairs


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        return words[words.index(text)]

    return read


def _link(text: str) -> str:
    match = re.fullmatch(r"(?:[1-9][0-9]{0,3}x)?([a-z0-9-]+)", text.lower())
    if not match or match[1] not in LINKS:
        raise ValueError(text)
    return text.lower()


def _uplink(text: str) -> str:
    return "" if text.lower() == "none" else _link(text)


def _gpus(text: str) -> int:
    if not re.fullmatch("[0-9]{1,7}", text):
        raise ValueError(text)
    return int(text)


def _bound(text: str) -> float:
    value = _number(0, 1000)(text)
    if 0 < value < 1:
        raise ValueError(text)
    return value


def _rule(text: str) -> str:
    if not re.fullmatch(r"(ada-srsf|srsf-[1-9][0-9]{0,2})(-time)?(-reserve)?", text):
        raise ValueError(text)
    return text


_LINKS = f"{', '.join(LINKS)}; 4x10gbe for several together"
SETTINGS: tuple[Setting, ...] = (
    Setting("Database", "database", _database, "sqlite:////FILE or postgresql+psycopg://USER@HOST/NAME"),
    Setting("Epoch", "epoch_s", _seconds(1, 86400), "1 s to 1 day, such as 60, 60s or 5m"),
    Setting("Partitions", "partitions", _names, "names of partitions with commas between"),
    Setting("Policy", "policy", _one_of(POLICIES), f"one of: {', '.join(POLICIES)}"),
    Setting("Fairness", "fairness", _number(-100, 1), "a number from -100 (max-min) over 0 (Nash) to 1 (sum)"),
    Setting("Objective", "objective", _one_of(OBJECTIVES), "power, sia, pollux or max-min"),
    Setting("FairnessBound", "fairness_bound", _bound, "0 (none), or 1 and more, such as 1.5"),
    Setting("ShortFirst", "short_first", _number(0, 2), "a number from 0 (length does not count) to 2, such as 0.5"),
    Setting("Deadlines", "deadlines", _flag, "yes or no"),
    Setting("PriorityWeight", "priority_weight", _flag, "yes or no"),
    Setting(
        "QosWeights", "qos_weights", _by_name(_number(0.001, 1000)), "QOS:WEIGHT with commas between, such as high:4"
    ),
    Setting("AccountLimits", "account_limits", _by_name(_gpus), "ACCOUNT:GPUS with commas between, such as physics:64"),
    Setting("PartitionLimits", "partition_limits", _by_name(_gpus), "PARTITION:GPUS with commas between"),
    Setting("RestartCost", "restart_cost_s", _seconds(0, 86400), "0 to 1 day, such as 60s"),
    Setting("Preemption", "preemption", _flag, "yes or no"),
    Setting("DryRun", "dry_run", _flag, "yes or no"),
    Setting("Profile", "profile", _path, "an absolute path of what `synergyctl profiles fit` wrote"),
    Setting("StateDir", "state_dir", _path, "an absolute path, such as /var/lib/synergy"),
    Setting("MetricsPort", "metrics_port", _port, "a port from 1 to 65535, or 0 for none"),
    Setting("ReportPort", "report_port", _port, "a port from 1 to 65535, or 0 for none"),
    Setting("ReportHost", "report_host", _host, "a host's name or address"),
    Setting("LinkArbiterPort", "link_arbiter_port", _port, "a port from 1 to 65535, or 0 for none"),
    Setting("LinkArbiterRule", "link_arbiter_rule", _rule, "ada-srsf or srsf-N, with -time or -reserve behind it"),
    Setting("LinkArbiterWait", "link_arbiter_wait_s", _seconds(0.001, 10), "0.001 s to 10 s, such as 0.5s"),
    Setting("CheckpointTimeout", "checkpoint_timeout_s", _seconds(1, 86400), "1 s to 1 day, such as 5m"),
    Setting("RestartDelay", "restart_delay_s", _seconds(1, 300), "1 s to 5 minutes, such as 2s"),
    Setting("Park", "park_s", _seconds(0, 604800), "0 to 7 days, such as 15m"),
    Setting("MaxGrowth", "max_growth", _growth, "0 (no bound), or more than 1, such as 2"),
    Setting("LinkAware", "link_aware", _flag, "yes or no"),
    Setting("NodeLink", "node_link", _link, _LINKS),
    Setting("LeafUplink", "leaf_uplink", _uplink, f"none, or {_LINKS}"),
    Setting("OneMultiNodeJobPerNode", "one_multi_node_job_per_node", _flag, "yes or no"),
)
_BY_KEY = {setting.key.lower(): setting for setting in SETTINGS}
KEYS = (*(setting.key for setting in SETTINGS), "GpuType")


@dataclass
class _Reading:
    """What has been read so far."""

    values: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Lint] = field(default_factory=list)


def load_settings(path: Path) -> LoadedSettings:
    """The settings of slurm.conf `path` and of all it Includes.

    A wrong line is a Lint of severity "error" and leaves the default in place. Raises UsageError when `path` itself
    can't be read.
    """
    lines, problems = read_lines(path)
    reading = _Reading(problems=list(problems))
    for line in lines:
        _read_line(line, reading)
    values = reading.values
    report_port = values.get("report_port", Settings.report_port)
    for key, name, others in (
        ("metrics_port", "MetricsPort", {"ReportPort": values.get("report_port")}),
        (
            "link_arbiter_port",
            "LinkArbiterPort",
            {"ReportPort": report_port, "MetricsPort": values.get("metrics_port")},
        ),
    ):
        taken = [other for other, port in others.items() if port and port == values.get(key)]
        if taken:
            port = values.pop(key)
            where = reading.origins.pop(key)
            reading.problems.append(Lint(where, f"{name}={port} is also the {taken[0]}", "give each its own port"))
    settings = Settings(**values, gpu_figures=reading.figures)
    return LoadedSettings(
        settings, reading.origins, tuple(reading.problems), tuple(dict.fromkeys(line.path for line in lines))
    )


def with_values(settings: Settings, where: str, given: Iterable[str]) -> Settings:
    """`settings` with `Key=Value` texts of a `#SYNERGY` line put over them. Raises UsageError for the first wrong one."""
    reading = _Reading()
    for text in given:
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
    for key, value in pairs:
        _read_pair(line.where, key, value, reading)


def _read_pair(where: str, key: str, value: str, reading: _Reading) -> None:
    setting = _BY_KEY.get(key.lower())
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
        reading.values[setting.field] = setting.read(value)
        reading.origins[setting.field] = where
    except (ValueError, KeyError):
        # A database URL may hold a password, so its text is not repeated.
        shown = setting.key if setting.field == "database" else f"{setting.key}={one_line(value, 60)}"
        reading.problems.append(Lint(where, f"{shown} is not right", f"{setting.key} takes {setting.takes}"))


def _read_gpu(where: str, pairs: list[tuple[str, str]], reading: _Reading) -> None:
    """A line `GpuType=NAME peak_tflops=... memory_gib=...`: all of it holds, or nothing."""
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
            figures[figure] = _number(0.001, 1_000_000)(value)
        except ValueError:
            what = f"{figure}={one_line(value, 60)} of GpuType={name} is not right"
            reading.problems.append(Lint(where, what, "give each figure once, above 0 and at most 1000000"))
            return
    if not figures:
        reading.problems.append(Lint(where, f"GpuType={name} has no figures", f"give some of: {', '.join(FIGURES)}"))
        return
    reading.figures[name] = figures
    reading.origins[f"gpu_figures.{name}"] = where


def read_lines(path: Path) -> tuple[list[ConfLine], tuple[Lint, ...]]:
    """All lines of slurm.conf `path`, each Include in its place, and what went wrong with Includes.

    As Slurm does it, a relative Include is looked for beside `path`, whichever file names it. Raises UsageError when
    `path` itself can't be read.
    """
    problems: list[Lint] = []
    try:
        return list(_lines(path, path.parent, (), problems, [0])), tuple(problems)
    except OSError as error:
        right = "set SLURM_CONF, or give --conf, to a slurm.conf that this user can read"
        raise UsageError(str(path), f"can't be read ({error.strerror or error})", right) from None


def _lines(
    path: Path, folder: Path, above: tuple[Path, ...], problems: list[Lint], opened: list[int]
) -> Iterator[ConfLine]:
    opened[0] += 1
    if path.stat().st_size > MAX_FILE_BYTES:
        raise OSError(0, f"larger than {MAX_FILE_BYTES >> 20} MiB")
    if not path.is_file():
        raise OSError(0, "not a file")
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    for number, raw in enumerate(text.split("\n"), 1):
        line = ConfLine(path, number, raw)
        yield line
        match = re.match(r"\s*include\s+(.*)$", raw, re.IGNORECASE)
        if not match:
            continue
        name = match[1].split("#")[0].strip().strip('"')
        target = folder / name
        chain = (*above, path)
        if problem := _include_problem(name, target, chain, opened[0]):
            problems.append(Lint(line.where, one_line(f"Include {name}: {problem[0]}"), problem[1]))
            continue
        try:
            yield from list(_lines(target, folder, chain, problems, opened))
        except OSError as error:
            what = one_line(f"Include {name} can't be read ({error.strerror or error})")
            problems.append(Lint(line.where, what, f"relative names lie beside {chain[0]}"))


def _include_problem(name: str, target: Path, chain: tuple[Path, ...], opened: int) -> tuple[str, str] | None:
    """(what, right) of an Include that is not to be followed."""
    if any(c in name for c in "*?[\0") or not name:
        return "not the name of one file", "name each file on a line of its own; wildcards are not known"
    try:
        loops = target.resolve() in {other.resolve() for other in chain}
    except (OSError, RuntimeError):  # a loop of links
        loops = True
    if loops:
        return "it includes itself", "drop this line"
    if opened >= MAX_FILES:
        return f"more than {MAX_FILES} files are Included", "put them together"
    return None


def find_slurm_conf() -> Path:
    """Where slurm.conf lies: $SLURM_CONF, else what scontrol says, else /etc/slurm/slurm.conf. Raises UsageError."""
    named = os.environ.get("SLURM_CONF", "")
    if named:
        if not Path(named).is_file():
            raise UsageError("SLURM_CONF", f"{named} is no file", "set SLURM_CONF to the cluster's slurm.conf")
        return Path(named)
    for path in (_ask_scontrol(), DEFAULT_SLURM_CONF):
        if path and path.is_file():
            return path
    right = "set SLURM_CONF to the cluster's slurm.conf, or give --conf"
    raise UsageError("slurm.conf", f"not found ({DEFAULT_SLURM_CONF} does not exist)", right)


def _ask_scontrol() -> Path | None:
    """The SLURM_CONF line of `scontrol show config`; None if scontrol is absent, fails or takes over 10 s."""
    try:
        answer = subprocess.run(
            ["scontrol", "show", "config"], capture_output=True, timeout=10, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"^SLURM_CONF\s*=\s*(/.*?)\s*$", answer.stdout.decode("utf-8", "replace"), re.MULTILINE)
    return Path(match[1]) if match else None
