"""How long slurmctld stands still for one script: `python -m tests.unit.plugin.test_long_scripts` prints the table.

slurmctld runs the plugin under its locks, and a user may submit scripts of 4 MB (max_script_size) in a loop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from synergyd.slurm.directives.directive import DirectiveError, parse_script
from tests.unit.plugin.lua_runtimes import PLUGIN, literal, runtime

MB4 = 4_000_000
HEADER = 131_072


def filled(part: str, top: str = "", end: str = "", size: int = MB4) -> str:
    return top + part * ((size - len(top) - len(end)) // len(part.encode())) + end


SCRIPTS: dict[str, str] = {
    "1 kB, no directive": filled("echo 0123456789\n", "#!/bin/sh\n", size=1000),
    "1 kB, a directive": filled("echo 0123456789\n", "#!/bin/sh\n#SYNERGY tp=2 max_gpus=16\n", size=1000),
    "4 MB, no directive": filled("echo 0123456789\n", "#!/bin/sh\n"),
    "4 MB, one line": filled("x"),
    "4 MB, a directive": filled("echo 0123456789\n", "#!/bin/sh\n#SYNERGY tp=2 max_gpus=16\n"),
}
HOSTILE: dict[str, str] = {
    "#SYNERGY lines": filled("#SYNERGY\n"),
    "#SYNERGY lines with remarks": filled("#SYNERGY # é" + "x" * 60 + "\n"),
    "long #SYNERGY lines": filled("#SYNERGY # " + "é" * 2000 + "\n"),
    "32 long #SYNERGY lines": filled("#SYNERGY # " + "é" * 2000 + "\n", end="true\n", size=32 * 4012 + 5),
    "almost #SYNERGY lines": filled("#SYNERGYX\n"),
    "almost lines of other cases": filled("  ##  synergy tp\n"),
    "lines of other cases": filled("#SYNERGY tp=2\n", end=" #synergy tp=2\n", size=32 * 14),
    "blanks before almost a line": filled(
        " " * 1000 + "#" * 1000 + " " * 1000 + "synergy" + " " * 500 + "a" * 500 + "\n"
    ),
    "number signs": filled("#"),
    "line ends": filled("\n"),
    "line ends, then a directive": filled("\n", end="#SYNERGY tp=2\n"),
    "number signs and line ends": filled("#\n"),
    "blanks": filled(" "),
    "blanks in lines": filled(" " * 1000 + "\n", end="#SYNERGY tp=2\n"),
    "one value": filled("x", "#SYNERGY model="),
    "words": filled("\n#SYNERGY ", "#SYNERGY " + "tp=2 " * 800),
    "starters in one line": filled("srun ", "#SYNERGY tp=2\n", size=HEADER),
    "starters and ends of lines": filled("srun \\\n", "#SYNERGY tp=2\n", size=HEADER),
    "starters in long lines": filled("srun " * 800 + "synergy-launch\n", "#SYNERGY tp=2\n", size=HEADER),
    "options in long lines": filled("srun " + "-l " * 1350 + "synergy-launch\n", "#SYNERGY tp=2\n", size=HEADER),
    "blanks before a starter": filled(" ", "#SYNERGY tp=2\ntrue\n", "srun", size=HEADER),
    "remarks between launches": filled("# srun\n", "#SYNERGY tp=2\n", "srun synergy-launch\n", size=HEADER),
}


def plugin(lua: str) -> Callable[[str], object]:
    """submit() on a script, as the hook calls it, of a job whose tasks make it look at all that the script starts."""
    state = runtime(lua)
    if state is None:
        pytest.skip(f"lupa has no {lua} here")
    state.execute(b"slurm = {SUCCESS = 0, ERROR = -1, log_user = function() end, log_info = function() end}")
    submit = state.execute(b"return dofile(" + literal(str(PLUGIN)) + b").submit")
    asked = b"tres_per_node = 'gres:gpu:4', ntasks_per_node = 4, min_nodes = 2, max_nodes = 2"
    table = state.eval(b"function(text) return {script = text, " + asked + b"} end")

    def run(script: str) -> float:
        job = table(script.encode())
        began = time.thread_time()
        submit(job, None, 1000.0)
        return time.thread_time() - began

    return run


def least_s(run: Callable[[str], object], script: str, times: int = 5) -> float:
    """The least of some tries, of processor time: what the work takes, whatever else this machine does."""
    return min(float(run(script)) for _ in range(times))  # type: ignore[arg-type]


def python_s(script: str) -> float:
    began = time.thread_time()
    try:
        parse_script(script)
    except DirectiveError as error:
        assert "\n" not in str(error)
    return time.thread_time() - began


@pytest.mark.parametrize("lua", ["lua51", "lua53", "lua54"])
def test_a_script_without_directive_takes_less_than_a_millisecond(lua: str) -> None:
    run = plugin(lua)
    for name in ("1 kB, no directive", "4 MB, no directive", "4 MB, one line"):
        assert least_s(run, SCRIPTS[name], 20) < 0.001, name


@pytest.mark.slow
@pytest.mark.parametrize("lua", ["lua51", "lua53", "lua54"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_script_stops_slurmctld(lua: str, name: str) -> None:
    assert least_s(plugin(lua), HOSTILE[name], 3) < 0.5  # 6 to 9 s without the bounds


@pytest.mark.parametrize("name", HOSTILE)
def test_no_script_stops_the_daemon(name: str) -> None:
    assert min(python_s(HOSTILE[name]) for _ in range(3)) < 0.5


if __name__ == "__main__":
    for label, text in (SCRIPTS | HOSTILE).items():
        figures = [f"{least_s(plugin(lua), text, 3) * 1000:9.2f}" for lua in ("lua51", "lua53", "lua54")]
        own = statistics.median(python_s(text) for _ in range(3)) * 1000
        print(f"{label:40}", *figures, f"{own:9.2f} ms")
