"""A readable batch script for a plan, as one would write it by hand with torchrun.

Every word that comes from a user is quoted. The daemon calls this in its loop: input and output are bounded, and every step takes
time that is linear in the text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from synergy_core.errors import UsageError, one_line
from synergy_core.exchange import EXACT
from synergy_core.recompute import format_recompute
from synergy_core.records import Plan, Shape

from synergy_launch.agent.settings import COMM, OWN_BATCH
from synergy_launch.launcher.commands.other_launchers import Translation, translate
from synergy_launch.launcher.commands.start import plan_json
from synergy_launch.megatron_lm import arguments as megatron_arguments
from synergy_launch.megatron_lm.own_batch import at_own_batch

LAUNCHER = "synergy-launch"
MAX_INPUT_BYTES = 64 * 1024  # the largest batch script of a user
MAX_OUTPUT_BYTES = 1024 * 1024  # more than any input within its bound needs: quoting makes at most five bytes of one
# a part of a shell word, or the text between two words
_PART = re.compile(
    r"""(?P<blank>[ \t\r\n]+)|(?P<comment>\#)|(?P<single>'[^']*')|(?P<double>"(?:[^"\\]|\\.)*")|(?P<escaped>\\.)
    |(?P<plain>[^ \t\r\n\#'"\\]+)|(?P<open>['"\\].*)""",
    re.DOTALL | re.VERBOSE,
)
# options of synergy-launch that take a value
_WITH_VALUE = ("--checkpoint", "--runner", "--style", "--global-batch")
_WITHOUT_VALUE = ("-m", "--module", "--dry-run", "--try", "--")
_SHELL_C = re.compile(r"-[a-z]*c\Z")  # bash -c, bash -lc
_MAX_DEPTH = 3  # of shells in shells
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# the parts of shell words, up to an operator that ends the command: escapes, quotes, substitutions, plain text
_WORDS = re.compile(r"""(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\([^()]*\)|`[^`]*`|[^\\'"|&;<>`])*""", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ScriptRequest:
    """The inputs of a script. `command`: training script (or `-m`, module) and its arguments, as argv."""

    job_name: str
    command: tuple[str, ...]
    shape: Shape
    plan: Plan | None = None
    nodes: tuple[str, ...] = ()
    checkpoint: str = ""
    style: str = "auto"
    own_batch: bool = False  # nobody chose the plan's batch: the script keeps its own
    requested_shape: Shape | None = None  # the size of the sbatch line, where `own_batch`
    why: str = ""
    environment: dict[str, str] = field(default_factory=dict)


def render(request: ScriptRequest) -> str:
    """Return the text of the script; sbatch of it gives the job that Synergy would run. Pure.

    Raises UsageError for a name in `environment` that no shell accepts, and for a script above MAX_OUTPUT_BYTES.
    """
    for name in request.environment:
        if not _VARIABLE.match(name):
            raise UsageError("environment", f"{name!r} is no variable's name", "letters, digits and _")
    plan, shape = request.plan, request.shape
    arguments = list(request.command[1:])
    megatron = request.style == "megatron" or (request.style == "auto" and megatron_arguments.is_megatron(arguments))
    if plan and megatron and request.own_batch:
        plan, _ = at_own_batch(plan, arguments, request.requested_shape)
    if plan and megatron:
        arguments = megatron_arguments.with_plan(arguments, plan, request.checkpoint, own_batch=request.own_batch)
    environment = dict(request.environment)
    if plan:
        environment["SYNERGY_PLAN_JSON"] = plan_json(plan)
        if plan.exchange != str(EXACT) and not megatron:
            environment[COMM] = plan.exchange
        if request.own_batch and not megatron:
            environment[OWN_BATCH] = "1"
        if megatron_arguments.is_one_connection_required(plan, arguments):
            environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if request.checkpoint:
        environment["SYNERGY_CHECKPOINT_DIR"] = request.checkpoint
    out = ["#!/bin/bash", f"#SBATCH --job-name={shlex.quote(one_line(request.job_name, 200))}"]
    kind = f"{shape.gpu_type}:" if shape.gpu_type else ""
    out += [
        f"#SBATCH --nodes={shape.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gres=gpu:{kind}{shape.gpus_per_node}",
    ]
    if request.nodes:
        out.append(f"#SBATCH --nodelist={shlex.quote(one_line(','.join(request.nodes), 100_000))}")
    out.append("#SBATCH --requeue --open-mode=append")
    if plan:
        batch = "of the script" if request.own_batch and not megatron else plan.global_batch
        more = "".join(f"{name} {n}, " for name in ("vpp", "cp", "ep", "shard") if (n := getattr(plan, name)) > 1)
        less = f", exchange {plan.exchange}" if COMM in environment else ""
        out.append(f"# plan: tp {plan.tp}, pp {plan.pp}, {more}dp {plan.dp}, micro-batch {plan.micro_batch}, "
                   f"global batch {batch}, recompute {format_recompute(plan.recompute, plan.recompute_layers)}{less}")  # fmt: skip
    if request.why:
        out.append(f"# why: {one_line(request.why)}")
    out += ["set -euo pipefail", ""]
    out += [f"export {name}={_quote(value)}" for name, value in sorted(environment.items())]
    if shape.nodes > 1:
        out.append('export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
        out.append("export MASTER_PORT=$(shuf -i 15000-31999 -n 1)")
        where = '--node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
    else:
        where = "--standalone"
    torchrun = f'exec torchrun --nnodes {shape.nodes} --nproc-per-node {shape.gpus_per_node} {where} "$@"'
    words = [request.command[0], *arguments]
    if any("$" in word or "`" in word for word in words):
        out.append("# words with $ or ` are quoted: put in by hand what the shell of your own script makes of them")
    out += [
        "",
        f"srun --nodes={shape.nodes} --ntasks={shape.nodes} --ntasks-per-node=1 bash -c {shlex.quote(torchrun)} torchrun \\",
    ]
    out.append(_wrap(words))
    text = "\n".join(out) + "\n"
    _check_length("rendered script", text, MAX_OUTPUT_BYTES)
    return text


def _check_length(where: str, text: str, limit: int) -> None:
    """Raise UsageError if `text` has more than `limit` bytes."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise UsageError(
            where, f"script of {size} bytes: at most {limit} are rendered", "move data into files of its own"
        )


def find_command(script: str) -> tuple[str, ...]:
    """Return the argv of `find_translation`: a script or `-m` and a module, and its arguments. Raises UsageError as it does."""
    translation = find_translation(script)
    return ("-m",) * translation.module + (translation.script, *translation.arguments)


def find_translation(script: str) -> Translation:
    """Return what stands behind `synergy-launch` in a user's batch script, without synergy-launch's own options.

    Shell variables stay as they are written; the command ends at a pipe, a redirection, `;` or `&`. It may be in the quotes of a shell's
    -c. Raises UsageError when there is no such line, when its quotes do not close, when it starts another launcher in a way that
    synergy-launch refuses, or when the script has more than MAX_INPUT_BYTES.
    """
    _check_length("batch script", script, MAX_INPUT_BYTES)
    translation = _translation_in(script)
    if translation is None:
        raise UsageError("batch script", f"has no line with {LAUNCHER} SCRIPT", f"srun {LAUNCHER} train.py ...")
    return translation


def _translation_in(script: str, depth: int = 0) -> Translation | None:
    """Return what the first line with synergy-launch runs, None without one. `depth`: of the quotes in which `script` stands."""
    joined = script.replace("\\\n", " ")
    for number, line in enumerate(joined.splitlines(), 1):
        if LAUNCHER not in line or line.lstrip().startswith("#"):
            continue
        try:
            words = split_words(_command_with_launcher(line))
        except ValueError as error:
            raise UsageError(f"batch script line {number}", f"can't be read ({error})") from None
        at = next((i for i, w in enumerate(words) if w.rpartition("/")[2] == LAUNCHER), None)
        if at is None:
            inner = next((w for flag, w in pairwise(words) if _SHELL_C.match(flag) and LAUNCHER in w), "")
            translation = _translation_in(inner, depth + 1) if inner and depth < _MAX_DEPTH else None
        else:
            translation = _without_options(words[at + 1 :])
        if translation is not None:
            return translation
    return None


def split_words(line: str) -> list[str]:
    """Split a line as `shlex.split(line, comments=True)` does, in linear time: shlex copies a word again for each of its characters.

    Raises ValueError where a quote does not close.
    """
    words: list[str] = []
    parts: list[str] | None = None  # parts of the word under way
    for match in _PART.finditer(line):
        kind, text = match.lastgroup, match[0]
        if kind in ("blank", "comment"):
            if parts is not None:
                words.append("".join(parts))
            parts = None
            if kind == "comment":
                return words
            continue
        if kind == "open":
            backslashes = len(text) - len(text.rstrip("\\"))
            raise ValueError("No escaped character" if text[0] != "'" and backslashes % 2 else "No closing quotation")
        parts = [] if parts is None else parts
        parts.append(_unquote(text, kind or ""))
    return words if parts is None else [*words, "".join(parts)]


def _unquote(text: str, kind: str) -> str:
    """Return the characters that a part of a word stands for."""
    if kind == "plain":
        return text
    if kind == "escaped":
        return text[1:]
    return text[1:-1] if kind == "single" else re.sub(r'\\(["\\])', r"\1", text[1:-1])


def _command_with_launcher(line: str) -> str:
    """Return the command of the line that contains LAUNCHER, or the line itself where its quotes do not close."""
    position = 0
    while position < len(line):
        match = _WORDS.match(line, position)
        if match is None or match.end() == position:
            position += 1
            continue
        rest = line[match.end() : match.end() + 1]
        if rest and rest in "'\"`\\":
            return line[position:]  # split_words reports the quote that does not close
        if LAUNCHER in match[0]:
            # `2>&1`: the number belongs to the redirection
            return re.sub(r"(?<=\s)[0-9]+\Z", "", match[0]) if rest in ("<", ">") else match[0]
        position = match.end()
    return line


def _without_options(words: Sequence[str]) -> Translation | None:
    """Return what the words behind synergy-launch run, None where they are all its own options."""
    i, module = 0, False
    while i < len(words) and words[i].partition("=")[0] in (*_WITH_VALUE, *_WITHOUT_VALUE):
        module = module or words[i] in ("-m", "--module")
        i += 2 if words[i] in _WITH_VALUE else 1
    return translate(words[i], words[i + 1 :], module, here=False) if i < len(words) else None


def _quote(word: str) -> str:
    """Return one word quoted for bash, with control characters as $'...', so that the script can be read on a terminal."""
    if word.isprintable():
        return shlex.quote(word)
    plain = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"}
    characters = (
        plain.get(c) or (c if c.isprintable() else "".join(f"\\x{b:02x}" for b in c.encode("utf-8", "surrogateescape")))
        for c in word
    )
    return f"$'{''.join(characters)}'"


def _wrap(words: Sequence[str]) -> str:
    """Return the words with one option and its values on each line."""
    lines: list[list[str]] = []
    for word in words:
        if lines and not word.startswith("--") and (len(lines) > 1 or words[0] == "-m"):
            lines[-1].append(_quote(word))
        else:
            lines.append([_quote(word)])
    return " \\\n".join("  " + " ".join(line) for line in lines)
