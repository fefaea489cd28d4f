"""The directive's grammar: the one place that says what `#SYNERGY key=value` lines may hold and how errors read.

`python -m synergyd.slurm.directives.grammar --lua` writes the same table as Lua, slurm_plugins/synergy_grammar.lua, which the
job_submit module reads; the two readers (synergyd/slurm/directives/directive.py and slurm_plugins/synergy.lua) are run over the
same cases in the tests. Lengths are bytes of UTF-8.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from synergy_core.exchange import KINDS, REMOVED_KINDS
from synergy_core.notice import EVENTS
from synergy_core.wire.admin_comment import MARK

MAX_STAMP = 1000  # characters of the text in AdminComment
MAX_LINE = 4096
MAX_LINES = 32  # #SYNERGY lines
MAX_HEADER = 128 * 1024  # bytes of a script in which #SYNERGY lines are read
MAX_LOOK = 1024 * 1024  # bytes in which one after a longer header is found, and refused
CONTINUES = 10  # times that `walltime=continue` stands for
MAX_NAMES = 16
MAX_NAME = 64
SHOWN = 60  # bytes of a user's text repeated in an error

# loop=, which Lua spells as patterns of its own (kinds.loop in slurm_plugins/synergy.lua)
LOOP = r"(?:global:[1-9][0-9]{0,8}|gpu:-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)(?:,resume:[^, \t$`]+)?"

# Characters that no value may hold, as code points: controls, zero-width and direction marks, line separators.
FORBIDDEN: tuple[tuple[int, int], ...] = (
    (0x0, 0x1F),
    (0x7F, 0x9F),
    (0x200B, 0x200F),
    (0x2028, 0x202E),
    (0x2060, 0x206F),
    (0xFEFF, 0xFEFF),
)


@dataclass(frozen=True)
class Key:
    """One key of the grammar.

    `kind` is text, path, loop, int, names, words, range, float, flag, time, walltime or retired (read for one release
    more, and told to have no effect). `low` and `high` bound numbers (float: millionths; time: seconds since 1970),
    `max_bytes` bounds texts, `default` is the value that a stamp leaves out. `words` may be named, and
    `retired_words` too, without effect, for one release more.
    """

    name: str
    kind: str
    low: int = 0
    high: int = 0
    max_bytes: int = 0
    default: str = ""
    example: str = ""
    words: tuple[str, ...] = ()
    retired_words: tuple[str, ...] = ()

    def takes(self) -> str:
        """Return what would be right, as an error says it."""
        example = f", for example {self.name}={self.example}"
        match self.kind:
            case "text":
                return f"a preset's name or a file of 1 to {self.max_bytes} bytes{example}"
            case "path":
                return f"a folder of 1 to {self.max_bytes} bytes{example}"
            case "int":
                return f"a whole number from {self.low} to {self.high}{example}"
            case "names":
                return f"1 to {MAX_NAMES} different names with commas between{example}"
            case "words":
                return f"some of {', '.join(self.words)}, with commas between{example}"
            case "range":
                return f"LO:HI or one number, from {self.low} to {self.high}{example}"
            case "float":
                return f"a number from {self.low / 1_000_000:g} to {self.high // 1_000_000}{example}"
            case "flag":
                return "yes or no"
            case "loop":
                return f"global:N or gpu:NAME, and resume:ARGUMENT behind a comma{example}"
            case "walltime":
                return f"stop, continue or continue:N with N from {self.low} to {self.high}{example}"
            case _:
                return f"seconds since 1970 or a date from 2000 to 2099{example}"


KEYS: tuple[Key, ...] = (
    Key("model", "text", max_bytes=256, example="llama2-7b"),
    Key("min_gpus", "int", 1, 65536, example="2"),
    Key("max_gpus", "int", 1, 65536, example="16"),
    Key("gpu_types", "names", example="a100,h100"),
    Key("global_batch", "range", 1, 16777216, example="64:512"),
    Key("adapt", "flag", default="no", example="yes"),
    Key("micro_batch", "int", 1, 65536, example="4"),
    Key("max_micro_batch", "int", 1, 65536, example="32"),
    Key("tp", "int", 1, 1024, example="2"),
    Key("pp", "int", 1, 1024, example="2"),
    Key("weight", "float", 1_000, 1_000_000_000, default="1", example="1.5"),
    Key("checkpoint", "path", max_bytes=512, example="/scratch/run1/checkpoints"),
    Key("loop", "loop", max_bytes=128, example="gpu:--batch_size,resume:--resume"),
    Key("guaranteed", "retired"),
    Key("resize", "flag", default="yes", example="no"),
    Key("reshard", "flag", example="no"),
    Key("deadline", "time", 946684800, 4102444799, example="2026-12-01T12:00"),
    Key("walltime", "walltime", 1, 1000, default="stop", example="continue:5"),
    Key("comm", "words", default="exact", example="local,compressed", words=KINDS, retired_words=REMOVED_KINDS),
    Key("skip_spikes", "flag", default="no", example="yes"),
    Key("notify", "words", example="hold,deadline", words=EVENTS),
)
BY_NAME: Mapping[str, Key] = {key.name: key for key in KEYS}
IN_USE = tuple(key.name for key in KEYS if key.kind != "retired")

# code -> (what is wrong, what would be right); {names} are filled in by the reader.
MESSAGES: Mapping[str, tuple[str, str]] = {
    "long_line": ("the line is longer than {max} bytes", "split it over several #SYNERGY lines"),
    "many_lines": ("the script has more than {max} #SYNERGY lines", "write several keys in one line"),
    "long_header": (
        "no command stands in the first {max} bytes of the script",
        "shorten the comments before the first command, or drop the #SYNERGY lines",
    ),
    "character": ("column {column} holds a control character or invalid UTF-8", "remove it"),
    "no_value": ("'{word}' is not key=value", "write key=value without blanks around the ="),
    "unclosed": ("{key}: the quote is not closed", "end the value with the quote it began with"),
    "after_quote": ("{key}: text follows the closing quote", "put a blank after the closing quote"),
    "inner_quote": ("{key}='{value}' holds a quote", "put the whole value in quotes of the other kind"),
    "unknown": ("unknown key '{word}'", "known keys: {known}"),
    "nearest": ("unknown key '{word}'", "did you mean {nearest}?"),
    "duplicate": ("{key} is given twice", "line {line} gives it already; keep one"),
    "bad": ("{key}='{value}' is not right", "{key} takes {takes}"),
    "dash": ("{key}='{value}' begins with a dash", "{key} takes {takes}"),
    "expand": ("{key}='{value}' holds a shell variable, which is not expanded here", "write the text in full"),
    "order": ("{key}='{value}' has its low end above its high end", "{key} takes {takes}"),
    "min_max": ("min_gpus={min} is above max_gpus={max}", "let min_gpus be at most max_gpus"),
    "degrees": ("tp x pp = {per} is above max_gpus={max}", "let tp x pp be at most max_gpus"),
    "multiple": (
        "no multiple of tp x pp = {per} lies from min_gpus={min} to max_gpus={max}",
        "let max_gpus be {better} or more, or leave tp and pp to Synergy",
    ),
    "micro": ("micro_batch={micro} is above global_batch={batch}", "let micro_batch be at most the global batch"),
    "adapt": (
        "adapt=yes contradicts global_batch={batch}",
        "drop one of the two, or let global_batch be one number",
    ),
    "reshard": ("reshard=yes contradicts resize=no", "drop one of the two"),
    "loop": ("loop= needs checkpoint=", "write checkpoint= and the folder that the script saves into"),
    "retired": ("{key}= has no effect any more", "drop it: the next release refuses it"),
    "retired_word": ("{key}={word} has no effect any more", "drop it, or write {example}"),
    "long_stamp": (
        "the directive takes {bytes} characters when stamped",
        "shorten model and checkpoint: {max} at most",
    ),
    "stamp": ("'{word}' can't be read", "only Synergy's plugin and daemon write this text"),
    # Seen by the plugin only, which knows how the job was submitted.
    "het": (
        "several components of the heterogeneous job ask for GPUs, so it keeps its size",
        "ask for GPUs in one component to have it resized",
    ),
    "het_first": (
        "the first component of a heterogeneous job keeps its size",
        "let the component with GPUs come second to have it resized",
    ),
    "tasks": (
        "{option}={tasks} keeps the job at its size",
        "write --nodes=N --ntasks-per-node=1 and start all with srun synergy-launch to have it resized",
    ),
    "gpus": (
        "{option} keeps the job at its size",
        "write --nodes=N --gres=gpu:M (GPUs per node) and start all with srun synergy-launch to have it resized",
    ),
    "one_size": ("{option} keeps the job at its size", "leave it out to have it resized"),
    "no_gpus": ("the job asks for no GPUs", "write --gres=gpu:N (GPUs per node), or resize=no"),
    "mixed_gpus": ("the job asks for several kinds of GPU at once", "write one --gres=gpu:TYPE:N, or resize=no"),
    "no_requeue": ("--no-requeue keeps Synergy from resizing", "drop --no-requeue, or write resize=no"),
    "unread_line": ("it stands after the first command, so it is not read", "move it above the first command"),
    "odd_line": ("it is not spelt as a directive, so it is not read", "begin the line with #SYNERGY and a blank"),
    "no_launch": (
        "the script never calls synergy-launch",
        "unless something that it starts does, the job keeps the size it asks for",
    ),
    "late": ("deadline={deadline} can't be met: {why}", "write a later one, or drop it"),
    "internal": ("the Synergy plugin failed on this job ({error})", "it is submitted all the same: tell your admins"),
}


def message(code: str, values: Mapping[str, object]) -> tuple[str, str]:
    """Return (what, right) of error `code` with `values` filled in."""
    what, right = MESSAGES[code]
    return what.format_map(values), right.format_map(values)


def _lua_text(text: str) -> str:
    out = "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else f"\\{ord(c):03d}" for c in text)
    return f'"{out}"'


def _lua_choices(key: Key) -> str:
    # in brackets: `local` is a word of Lua's own
    words = [f"[{_lua_text(word)}] = true" for word in key.words]
    old_words = [f"[{_lua_text(word)}] = true" for word in key.retired_words]
    if not words:
        return ""
    return f" words = {{{', '.join(words)}}}, retired_words = {{{', '.join(old_words)}}}, example = {_lua_text(key.example)},"


def lua() -> str:
    """Return the grammar as a Lua chunk that returns a table; it runs in Lua 5.1 to 5.4."""
    lines = [
        "-- Made by `python -m synergyd.slurm.directives.grammar --lua` from synergyd/slurm/directives/grammar.py. Do not edit.",
        "local keys = {",
    ]
    for key in KEYS:
        takes = _lua_text(key.takes())
        lines.append(
            f'  {{name = "{key.name}", kind = "{key.kind}", low = {key.low}, high = {key.high}, '
            f"max_bytes = {key.max_bytes}, default = {_lua_text(key.default)},{_lua_choices(key)}\n   takes = {takes}}},"
        )
    lines += ["}", "local messages = {"]
    for code, (what, right) in MESSAGES.items():
        lines.append(f"  {code} = {{{_lua_text(what)},\n    {_lua_text(right)}}},")
    lines += ["}", "local forbidden = {"]
    lines += [f"  {{{low}, {high}}}," for low, high in FORBIDDEN]
    lines += [
        "}",
        "return {",
        "  keys = keys, messages = messages, forbidden = forbidden,",
        f"  stamp = {_lua_text(MARK)}, max_stamp = {MAX_STAMP}, max_line = {MAX_LINE},",
        f"  max_lines = {MAX_LINES}, max_header = {MAX_HEADER}, max_look = {MAX_LOOK},",
        f"  max_names = {MAX_NAMES}, max_name = {MAX_NAME}, shown = {SHOWN}, continues = {CONTINUES},",
        "}",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Print the Lua table for `--lua`, or write it for `--write FILE`."""
    parser = argparse.ArgumentParser(
        prog="python -m synergyd.slurm.directives.grammar", description="Write the grammar as Lua."
    )
    parser.add_argument("--lua", action="store_true", required=True, help="the only form there is")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write to FILE, not to the terminal")
    options = parser.parse_args(arguments)
    if options.write:
        options.write.write_text(lua(), encoding="ascii")
    else:
        print(lua(), end="")


if __name__ == "__main__":
    main()
