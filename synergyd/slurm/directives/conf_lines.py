"""The lines of slurm.conf and of all that it Includes, within bounds; and a finding about one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from synergy_core.errors import UsageError, one_line
from synergy_core.ordinary_file import read_bytes

MAX_FILES = 100
MAX_FILE_BYTES = 4 * 2**20
MAX_LINES = 50_000  # in all files together
MAX_PROBLEMS = 100  # most that are looked for; the rest is not read
_CLUSTER = re.compile(r'(?:^|[^#]*\s)ClusterName\s*=\s*"?([^\s"#]+)', re.IGNORECASE)


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


@dataclass(frozen=True, slots=True)  # there may be many of them
class ConfLine:
    """One line of slurm.conf or of a file that it Includes, without its line end."""

    path: Path
    number: int
    text: str

    @property
    def where(self) -> str:
        return f"{self.path}:{self.number}"


@dataclass
class _Reading:
    """The state of the reading so far.

    `cluster`: the ClusterName in small letters, as Slurm puts it for %c in an Include.
    """

    problems: list[Lint] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    cluster: str = ""


def read_lines(path: Path) -> tuple[list[ConfLine], tuple[Lint, ...]]:
    """Read all lines of slurm.conf `path`, each Include in its place, and what went wrong with Includes.

    As in Slurm, a relative Include is looked for beside `path`, whichever file names it, and %c in it stands for
    the ClusterName said before. Raises UsageError when `path` itself can't be read.
    """
    reading = _Reading()
    try:
        return list(_lines(path, path.parent, (), reading)), tuple(reading.problems)
    except OSError as error:
        right = "set SLURM_CONF, or give --conf, to a slurm.conf that this user can read"
        raise UsageError(str(path), f"can't be read ({error.strerror or error})", right) from None


def _lines(path: Path, folder: Path, above: tuple[Path, ...], reading: _Reading) -> Iterator[ConfLine]:
    problems = reading.problems
    reading.files += 1
    if path.exists() and not path.is_file():
        raise OSError(0, "not a file")
    text = read_bytes(path, MAX_FILE_BYTES).decode("utf-8", "surrogateescape")
    reading.lines += text.count("\n")
    if reading.lines > MAX_LINES:
        raise OSError(0, f"more than {MAX_LINES} lines in all")
    for number, raw in enumerate(text.split("\n"), 1):
        line = ConfLine(path, number, raw)
        yield line
        if len(problems) >= MAX_PROBLEMS:
            continue
        match = re.match(r"\s*include\s+(.*)$", raw, re.IGNORECASE)
        if not match:
            if cluster_line := _CLUSTER.match(raw):
                reading.cluster = cluster_line[1].lower()
            continue
        name = match[1].split("#")[0].strip().strip('"')
        target = folder / name.replace("%c", reading.cluster)
        chain = (*above, path)
        if problem := _include_problem(name, target, chain, reading):
            problems.append(Lint(line.where, one_line(f"Include {name}: {problem[0]}"), problem[1]))
            continue
        try:
            yield from list(_lines(target, folder, chain, reading))
        except OSError as error:
            what = one_line(f"Include {name} can't be read ({error.strerror or error})")
            problems.append(Lint(line.where, what, f"relative names lie beside {chain[0]}"))


def _include_problem(name: str, target: Path, chain: tuple[Path, ...], reading: _Reading) -> tuple[str, str] | None:
    """Return (what, right) for an Include that is not to be followed, else None."""
    if any(c in name for c in "*?[\0") or not name:
        return "not the name of one file", "name each file on a line of its own; wildcards are not known"
    if "%c" in name and not reading.cluster:
        return "%c stands for the ClusterName, which no line before says", "write ClusterName above it"
    try:
        loops = target.resolve() in {other.resolve() for other in chain}
    except (OSError, RuntimeError):  # a loop of links
        loops = True
    if loops:
        return "it includes itself", "drop this line"
    if reading.files >= MAX_FILES:
        return f"more than {MAX_FILES} files are Included", "put them together"
    return None
