"""Commands of a batch script that end its second run before the training begins, as far as they can be seen. Pure.

Each resize requeues the job, and Slurm runs its script again from the first line. Only the commands before the line
that starts the training count: the rest has not run yet when the job is requeued.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

MAX_SCRIPT, MAX_LINE = 256 * 1024, 2048  # characters that are looked at; shlex takes longer than linear time
_LAUNCHER, _STEP = re.compile(r"\bsynergy-launch\b"), re.compile(r"\bsrun\b")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_COUNT = "SLURM_RESTART_COUNT"
_FRESH_NAME = re.compile(r"\$\(|`|\$\$|RANDOM|SLURM_RESTART_COUNT")  # another in each run
_SHELLS = re.compile(r"#!\s*\S*/(?:env\s+(?:-S\s+)?)?(?:ba|da|k|z)?sh\b")
_SEPARATORS = {";", "&&", "||", "|", "&", ";;"}


def second_run_problem(script: str) -> tuple[int, str] | None:
    """Return (line, what is wrong) of the first command that a second run would not get past, or None if nothing is seen."""
    return next(second_run_problems(script), None)


def second_run_problems(script: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what is wrong) for each command that a second run would not get past."""
    lines = script[:MAX_SCRIPT].split("\n")
    if not _SHELLS.match(lines[0]):
        return
    errexit = bool(re.search(r"\s-\w*e", lines[0]))
    branches, guarded_at = 0, 0  # open if and case; the `if` that looks at the restart count
    removed_paths: set[str] = set()
    for number, line in _commands_before_training(lines):
        for before, words, after in _simple_commands(line):
            word = words[0]
            if word in ("if", "case"):
                branches += 1
                guarded_at = guarded_at or (branches if any(_COUNT in w for w in words) else 0)
            elif word in ("fi", "esac"):
                branches = max(0, branches - 1)
                guarded_at = 0 if branches < guarded_at else guarded_at
            rest = words[1:] if word in ("then", "else", "do") else words
            if not rest:
                continue
            if rest[0] == "exit" and (guarded_at or _COUNT in line):
                yield number, f"it ends itself by {_COUNT} when it is run again"
                continue
            errexit = _errexit(rest, errexit)
            if rest[0] == "set" and ("noclobber" in rest or any(re.match(r"-\w*C", w) for w in rest)):
                yield number, "`set -C` lets no file be written a second time"
            if rest[0] == "rm" and any(re.match(r"-\w*[rR]", w) for w in rest):
                removed_paths.update(rest[1:])
            if (
                errexit
                and not branches
                and before != "||"
                and after not in ("||", "&&")
                and (why := _fails_again(rest, removed_paths))
            ):
                yield number, why


def _commands_before_training(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, text) with continued lines joined; comments and here-documents left out."""
    end = next(
        (i for i, line in enumerate(lines) if _LAUNCHER.search(line) and not line.lstrip().startswith("#")), None
    )
    if end is None:
        steps = [i for i, line in enumerate(lines) if _STEP.search(line) and not line.lstrip().startswith("#")]
        end = steps[-1] if steps else len(lines)
    text, first, document = "", 0, ""
    for number, line in enumerate(lines[:end], 1):
        if document:
            document = "" if line.strip() == document else document
            continue
        first = first or number
        if line.endswith("\\"):
            text += line[:-1] + " "
            continue
        text += line
        if heredoc := _HEREDOC.search(text):
            document = heredoc[2]
        if len(text) <= MAX_LINE and not text.lstrip().startswith("#"):
            yield first, text
        text, first = "", 0


def _simple_commands(line: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield (operator before, words, operator behind) of a line's commands."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote that another line closes
        return
    before, command = "", list[str]()
    for word in [*words, ";"]:
        if word not in _SEPARATORS:
            command.append(word)
            continue
        while command and re.match(r"\w+=", command[0]):
            command = command[1:]
        if command:
            yield before, command, word
        before, command = word, []


def _errexit(words: list[str], now: bool) -> bool:
    if words[0] != "set":
        return now
    for i, word in enumerate(words[1:], 1):
        is_errexit = word in ("-o", "+o") and words[i + 1 : i + 2] == ["errexit"]
        if is_errexit or re.match(r"[-+]\w*e", word):
            now = word[0] == "-"
    return now


def _fails_again(words: list[str], removed_paths: set[str]) -> str:
    """Return why the command fails if it has been run before, or "" if it does not."""
    options = [w for w in words[1:] if w.startswith("-")]
    names = [w for w in words[1:] if not w.startswith("-")]
    if any(_FRESH_NAME.search(name) for name in names) or (names and names[-1] in removed_paths):
        return ""

    def has(letter: str, long: str) -> bool:
        return long in options or any(re.match(rf"-\w*{letter}", w) for w in options)

    match words[0]:
        case "mkdir" if not has("p", "--parents"):
            return "`mkdir` without -p fails where the folder is there already, and `set -e` ends the script"
        case "ln" if not has("f", "--force"):
            return "`ln` without -f fails where the link is there already, and `set -e` ends the script"
        case "mkfifo":
            return "`mkfifo` fails where the pipe is there already, and `set -e` ends the script"
        case "git" if names[:1] == ["clone"]:
            return "`git clone` fails where the folder is there already, and `set -e` ends the script"
        case _:
            return ""
