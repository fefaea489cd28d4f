"""Command lines in the documents: those that need no cluster run, the others name verbs and options that exist."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from synergyd.slurm.directives.conf import load_settings
from synergyd.slurm.directives.directive import parse_script
from tests.unit.docs.generator import generator
from tests.unit.docs.pages import NAMES, ROOT, commands, spans, split

PROGRAMS = {name: command for name, (command, _) in generator("_commands").programs().items()}
RUNNABLE = [
    (name, line) for name in NAMES for _, line in commands(split((ROOT / name).read_text())[0], "console")
]  # fmt: skip


def words_of(line: str) -> list[list[str]]:
    """The simple commands of a shell line, without variables before them, `srun`, and comments."""
    found = []
    for part in re.split(r"&&|\|\||[|;]", line):
        words = shlex.split(part, comments=True)
        while words and (re.match(r"[A-Za-z_]+=", words[0]) or words[0] in ("srun", "sudo", "...")):
            words.pop(0)
        if words:
            found.append([Path(words[0]).name, *words[1:]])
    return found


def unknown(words: list[str]) -> list[str]:
    """What of a command line of ours, make's or a benchmark's does not exist."""
    if words[0] in PROGRAMS:
        return _unknown_to(PROGRAMS[words[0]], words)
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        return [word for word in words[1:] if "=" not in word and word not in targets]
    if words[:2] == ["python", "-m"] and words[2].startswith("tests."):
        file = ROOT / f"{words[2].replace('.', '/')}.py"
        if not file.is_file():
            file = file.with_suffix("") / "__main__.py"
        text = file.read_text() if file.is_file() else ""
        return [w for w in (words[2], *words[3:]) if (w == words[2] and not text) or (w[:2] == "--" and w not in text)]
    return []


def _unknown_to(command: click.Command, words: list[str]) -> list[str]:
    """Options that the command which the words lead to does not have, or the verb that there is not."""
    context, rest = click.Context(command), words[1:]
    options = _options(command)
    while isinstance(command, click.Group):
        # also by a name that it had in an earlier release, which is not listed
        at = next((i for i, word in enumerate(rest) if command.get_command(context, word) is not None), None)
        if at is None:
            bare = [word for word in rest if re.match(r"[a-z]+\Z", word)]
            return bare or [word for word in rest if word.startswith("--") and word not in options]
        below = command.get_command(context, rest[at])
        assert below is not None
        command, rest = below, rest[:at] + rest[at + 1 :]
        options |= _options(command)
    if words[:2] == ["synergyctl", "simulate"] and "--workload" in rest:
        return _unknown_to(generator("_commands").contention(), words[1:])
    if words[0] == "synergy-launch":  # what follows the script is the script's own
        ends = (i + 1 for i, word in enumerate(rest) if re.search(r"\.py$|^-m$", word))
        rest = rest[: next(ends, len(rest))]
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in options]


def _options(command: click.Command) -> set[str]:
    return {"--help", *(name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts))}


def test_there_are_some_to_run() -> None:
    assert {words_of(line)[0][0] for _, line in RUNNABLE} >= {"synergyctl", "synergy-launch"}
    assert len(RUNNABLE) >= 5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), RUNNABLE)
def test_what_needs_no_cluster_runs(name: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: a dozen starts of Python would cost more than what they run."""
    monkeypatch.chdir(ROOT)
    for variable in ("SLURM_JOB_ID", "SYNERGY_PLAN"):
        monkeypatch.delenv(variable, raising=False)
    ((program, *words),) = words_of(line)
    done = CliRunner().invoke(PROGRAMS[program], words)
    assert done.exit_code == 0, f"{name}: {line}\n{done.output}\n{done.exception}"


@pytest.mark.parametrize("name", NAMES)
def test_verbs_and_options_exist(name: str) -> None:
    blocks, prose = split((ROOT / name).read_text())
    lines = [line for _, line in commands(blocks, "sh", "bash", "console")]
    lines += [span for span in spans(prose) if span.split()[0] in (*PROGRAMS, "make", "python")]
    wrong = {line: bad for line in lines for words in words_of(line) if (bad := unknown(words))}
    assert wrong == {}


@pytest.mark.parametrize("name", NAMES)
def test_settings_directives_and_programs_are_right(name: str, tmp_path: Path) -> None:
    """`#SYNERGY` lines of text blocks as slurm.conf, those of bash blocks as a batch script; Python blocks compile."""
    for block in split((ROOT / name).read_text())[0]:
        if block.language == "text" and "#SYNERGY" in block.text:
            lines = [line.partition("  #")[0] for line in block.text.splitlines() if line.startswith("#SYNERGY")]
            (tmp_path / "slurm.conf").write_text("\n".join(["ClusterName=here", *lines, ""]))
            assert load_settings(tmp_path / "slurm.conf").problems == ()
        elif block.language == "bash" and "#SYNERGY" in block.text:
            assert parse_script(block.text) is not None
        elif block.language == "python":
            ast.parse(block.text)


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("synergyctl stauts", ["stauts"]),
        ("synergyctl plan --modle x", ["--modle"]),
        ("A=1 synergyctl --conf x status --watch", []),
        ("synergyctl profiles fit --row x", ["--row"]),
        ("synergyctl simulate --workload contention --set exclusive=yes", []),
        ("srun synergy-launch --dryrun a.py --any", ["--dryrun"]),
        ("make tset", ["tset"]),
        ("python -m tests.benchmarks.gone", ["tests.benchmarks.gone"]),
        ("python -m tests.benchmarks.epoch --nothing", ["--nothing"]),
    ],
)
def test_what_is_wrong_is_found(line: str, bad: list[str]) -> None:
    assert [word for words in words_of(line) for word in unknown(words)] == bad
