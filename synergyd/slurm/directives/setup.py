"""Synergy's additions to a site's files for Slurm, as texts: nothing is read or written here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

BLOCK = "# Synergy"
HOOK_PARTS = ("-- 1.", "-- 2.", "-- 3.")
MODULE_PATH = "/etc/slurm/synergy/synergy.lua"  # the hook's own
STATE_DIR = "/var/lib/synergy"
NOT_LOADED = "the Synergy plugin could not be loaded: the job is submitted, its #SYNERGY lines unread; tell your admins"
_REFUSAL = re.compile(
    r'^([ \t]*)slurm\.log_user\("%s", "the Synergy plugin could not be loaded; tell [^"\n]*"\)\n[ \t]*return slurm\.ERROR\n',
    re.MULTILINE,
)
# the hook's three statements with the comment before each, as `merge_scripts` puts them into a script
_STATEMENTS = (
    re.compile(
        r"^(?:--[^\n]*\n)?local loaded, synergy = pcall\(function\(\)\n[^\n]*dofile\(.*?^end\)\n\n?",
        re.MULTILINE | re.DOTALL,
    ),
    re.compile(r"(?:\n[ \t]*--[^\n]*)?\n  if loaded then\n    if synergy\.submit\(.*?\n  end\n", re.DOTALL),
    re.compile(r"(?:\n[ \t]*--[^\n]*)?\n  if loaded then synergy\.modify\([^\n]*\n"),
)
# comments and strings of Lua, in which no function is defined
_LUA_TEXT = re.compile(r"""(?:--)?\[(=*)\[.*?\]\1\]|--[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)


def make_hook(hook: str, module: str, state_dir: str) -> str:
    """Return the text of job_submit.hook.lua for a module at another place and another StateDir."""
    return hook.replace(lua_string(MODULE_PATH), lua_string(module)).replace(
        lua_string(STATE_DIR), lua_string(state_dir)
    )


def lua_string(text: str) -> str:
    """Return `text` as a Lua literal."""
    literal = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{literal}"'


def has_hook(script: str) -> bool:
    """Return whether a job_submit.lua calls Synergy's module; a comment, a string or another use of the word does not count."""
    return re.search(r"\bsynergy\.submit\b", _code(script)) is not None


def _code(script: str) -> str:
    """Return the script with blanks for its comments and strings, line for line."""
    return _LUA_TEXT.sub(lambda text: re.sub(r"[^\n]", " ", text[0]), script)


def with_open_hook(script: str) -> str:
    """Return a job_submit.lua whose hook is that of 0.2, which refused jobs without the module, with the one that lets them pass."""
    return _REFUSAL.sub(lambda match: f'{match[1]}slurm.log_user("%s", "{NOT_LOADED}")\n', script)


def without_hook(script: str, hook: str) -> tuple[str, str]:
    """Return (a job_submit.lua without the hook's three statements, "" if nothing else was in it), and why that can't be done here."""
    rest = script
    for statement in _STATEMENTS:
        rest, times = statement.subn("", rest)
        if times != 1:
            return script, "its statements were changed by hand"
    if re.search(r"\b(synergy|loaded)\b", _code(rest)):
        return script, "it uses the names `synergy` or `loaded` elsewhere"
    is_ours_alone = _code(rest).split() == _code(bare_script(hook)).split()
    return "" if is_ours_alone else rest, ""


def bare_script(hook: str) -> str:
    """Return a job_submit.lua that lets every job pass: the shipped hook without its comments and its three statements."""
    for statement in _STATEMENTS:
        hook = statement.sub("", hook)
    return hook[hook.index("function ") :]


def merge_scripts(script: str, hook: str) -> tuple[str, str]:
    """Return (a site's job_submit.lua with the hook's three statements in it, ""), or ("", why that can't be done here)."""
    code = _code(script)
    if re.search(r"\b(synergy|loaded)\b", code):
        return "", "it uses the names `synergy` or `loaded` for something else"
    first, submit, modify = _statements(hook)
    places: list[tuple[int, str]] = []
    for name, statement in (("slurm_job_submit", submit), ("slurm_job_modify", modify)):
        head = rf"^[ \t]*function[ \t]+{name}[ \t]*\(([^()]*)\)"
        heads = list(re.finditer(head, code, re.MULTILINE))
        names = [word.strip() for word in heads[0][1].split(",")] if heads else []
        parameters = _parameters(hook, name)
        if len(heads) != 1 or len(re.findall(rf"\b{name}\b", code)) != 1:
            return "", f"it does not define `function {name}(...)` once, at a line's begin"
        if len(names) != len(parameters) or not all(re.fullmatch(r"[A-Za-z_]\w*", word) for word in names):
            return "", f"its {name} takes other arguments than {', '.join(parameters)}"
        text = _rename_words(statement, dict(zip(parameters, names, strict=True)))
        places.append((heads[0].end(), "\n" + text.rstrip("\n") + "\n"))
    for place, text in sorted(places, reverse=True):
        script = script[:place] + text + script[place:]
    begin = script.find("\n") + 1 if script.startswith("#!") else 0
    return script[:begin] + first + "\n" + script[begin:], ""


def _statements(hook: str) -> Iterator[str]:
    """Yield the three marked statements, each with its comment, to the next empty line."""
    for mark in HOOK_PARTS:
        begin = hook.index(mark)
        begin = hook.rfind("\n", 0, begin) + 1
        end = hook.find("\n\n", begin)
        yield re.sub(r"-- \d\. (?:At the top|First in \w+)\. ?", "-- Synergy. ", hook[begin:end]) + "\n"


def _rename_words(statement: str, names: dict[str, str]) -> str:
    return re.sub(r"\b(" + "|".join(names) + r")\b", lambda word: names[word[0]], statement)


def _parameters(hook: str, name: str) -> list[str]:
    match = re.search(rf"function {name}\(([^()]*)\)", hook)
    assert match is not None
    return [word.strip() for word in match[1].split(",")]


def with_line(text: str, number: int, key: str, value: str) -> str:
    """Return the conf `text` with `key`'s value in line `number` (from 1) replaced."""
    lines = text.split("\n")
    pattern = re.compile(rf'(?<![A-Za-z0-9_])({re.escape(key)}\s*=\s*)("[^"]*"|[^\s#]*)', re.IGNORECASE)
    line, times = pattern.subn(lambda match: f"{match[1]}{value}", lines[number - 1], count=1)
    if times != 1:
        raise ValueError(f"line {number} does not say {key}")
    lines[number - 1] = line
    return "\n".join(lines)


def without_block(text: str, lines: Collection[str]) -> str:
    """Return the conf `text` without those of `lines` that follow `# Synergy`, as `with_end` puts them, and without an emptied block."""
    remaining_lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        if inside and line in lines:
            continue
        if inside and not line and remaining_lines[-1] == BLOCK:
            remaining_lines.pop()
            if remaining_lines and not remaining_lines[-1]:
                remaining_lines.pop()
        inside = line == BLOCK or (inside and bool(line))
        remaining_lines.append(line)
    return "\n".join(remaining_lines)


def with_end(text: str, lines: list[str]) -> str:
    """Return the conf `text` with `lines` at its end. The empty line between ends a last line with a backslash."""
    return text + ("" if text.endswith("\n") or not text else "\n") + "\n" + "".join(f"{line}\n" for line in lines)
