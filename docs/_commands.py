"""The command line reference and the man pages, from the commands themselves."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import click

WIDTH = 100


@dataclass(frozen=True)
class Shown:
    """One command: its words ("synergyctl plan"), and its context, which knows its help."""

    words: str
    context: click.Context


PROGRAMS = {
    "synergyd": "the daemon that decides how many GPUs each job gets",
    "synergyctl": "see and steer what Synergy does with the jobs of this cluster",
    "synergyrestd": "the REST service through which users see and steer their jobs",
    "synergy-launch": "run a training script with the plan that Synergy chose",
}


def programs() -> dict[str, tuple[click.Command, str]]:
    """Return each installed program (setup.cfg's console scripts): its command, and one line of what it is."""
    setup = ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg")
    lines = setup["options.entry_points"]["console_scripts"].split("\n")
    entries = dict(re.split(r"\s*=\s*", line, maxsplit=1) for line in lines if line)
    found = {}
    for name, what in PROGRAMS.items():
        module = importlib.import_module(entries[name].partition(":")[0])
        command = next(value for value in vars(module).values() if isinstance(value, click.Command))
        found[name] = (command, what)
    return found


def contention() -> click.Command:
    """Return what `synergyctl simulate` is with `--workload contention`."""
    from synergy_sim.cli.contention import contention_verb

    found: click.Command = contention_verb
    return found


def walk(command: click.Command, words: str, parent: click.Context | None = None) -> Iterator[Shown]:
    """Yield a command and all below it."""
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    # click keeps the help option of the first context: one without our -h where a test called this command by itself
    setattr(command, "_help_option", None)  # noqa: B010
    context = click.Context(command, info_name=words.split()[-1], parent=parent, **settings)
    yield Shown(words, context)
    if words == "synergyctl simulate":
        yield from walk(contention(), f"{words} --workload contention", parent)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walk(below, f"{words} {name}", context)


def cli_page(warning: str) -> str:
    """Return docs/reference/cli.md: the help of every command, as the command prints it."""
    parts = [
        f"{warning}# Command line\n",
        "Each command prints this, with examples, with `-h` or `--help`. The exit code is 0, or with one line of text 2 for a user's "
        "mistake (also if nothing fits what was asked) and 1 if something is away (Slurm, the database). `--json` prints one JSON object "
        "([its fields](json.md)). All programs have `--version`; the daemons and `synergyctl` (before the verb) take `--conf FILE` "
        "(slurm.conf) and `--database URL` (in place of the Database setting). Shell completion: "
        '`eval "$(_SYNERGYCTL_COMPLETE=bash_source synergyctl)"`, for other programs with their names.\n',
    ]
    for name, (command, _) in programs().items():
        for shown in walk(command, name):
            if "--workload" in shown.words:  # for research; its man page has it
                continue
            level = "##" if shown.words == name else "###"
            parts.append(f"{level} {shown.words}\n\n```text\n{short_help(shown.context)}\n```\n")
    return "\n".join(parts)


#: parts of a command's help that the page has once at its top or in the sections of the commands below, and examples (the guides have some)
REPEATED = (
    r"\n +(-h, )?--help +Show this message and exit\.(?=\n|$)",
    r"\n +--version +Show the version and exit\.(?=\n|$)",
    r"\n +--conf FILE +slurm\.conf to read settings from\.(?=\n|$)",
    r"\n +--database URL +Database URL, in place of the Database setting\.(?=\n|$)",
    r"\n +--json +(One JSON object|Print JSON)\.(?=\n|$)",
    r"\n\n  Shell completion: .*(?=\n|$)",
    r"\n\n  Exit code: 0; (.|\n(?!\n))*",
    r"\n\n  Examples?:(\n    +\S.*)+",
    r"\n\n(Verbs|Commands):(\n  +\S.*)+",
)


def short_help(context: click.Context) -> str:
    """Return a command's help without what the page says elsewhere."""
    text: str = context.command.get_help(context).rstrip().removeprefix("Usage: ")
    usage, _, rest = text.partition("\n\n")
    if "[ARGUMENTS]" not in usage:  # before the arguments of another program the place of the options matters
        usage = usage.replace(" [OPTIONS]", "")
    text = f"{usage}\n\n{rest}" if usage != context.command_path else rest
    for pattern in REPEATED:
        text = re.sub(pattern, "", text)
    return re.sub(r"\n\nOptions:(?=\n\n|$)", "", text)


def man_pages() -> dict[str, str]:
    """Return file name -> roff: one page a program, and one a verb of synergyctl."""
    pages = {f"{name}.1": man_page(name, command, what) for name, (command, what) in programs().items()}
    return pages | {f"{name}.1": text for name, text in verb_pages("synergyctl")}


def verb_pages(program: str) -> Iterator[tuple[str, str]]:
    """Yield (name, roff) of each verb's own page, with the verbs below it."""
    shown = list(walk(programs()[program][0], program))
    for one in shown[1:]:
        words = one.words.split()
        if len(words) != 2:
            continue
        name, command = "-".join(words), one.context.command
        below = [each for each in shown if each.words.startswith(f"{one.words} ")]
        yield name, verb_page(name, one, below, command.get_short_help_str(200).rstrip("."))


def verb_page(name: str, one: Shown, below: list[Shown], what: str) -> str:
    """Return one verb's page."""
    command = one.context.command
    out = [
        f'.\\" Written by docs/generate.py from the command itself.\n.TH {name.upper()} 1 "" Synergy "Synergy Manual"',
        ".SH NAME",
        f"{roff(name)} \\- {roff(what)}",
        ".SH SYNOPSIS",
        f".B {roff(one.words)}",
        roff(" ".join(command.collect_usage_pieces(one.context))),
        ".SH DESCRIPTION",
        *described(command),
        *options(one.context, ".SH OPTIONS"),
    ]
    if below:
        out.append(".SH COMMANDS")
    for each in below:
        pieces = " ".join(each.context.command.collect_usage_pieces(each.context))
        out += [f".SS {roff(each.words)}", roff(pieces), ".PP"]
        out += [*described(each.context.command), *options(each.context, "")]
    return "\n".join([*out, ".SH SEE ALSO", ".BR synergyctl (1),", ".BR synergy.conf (5)"]) + "\n"


def settings_man_page() -> str:
    """Return synergy.conf(5): each setting, what it takes, and its default."""
    from synergyd.settings import TABLE
    from synergyd.settings.text import default_text

    out = [
        '.\\" Written by docs/generate.py from the settings themselves.\n.TH SYNERGY.CONF 5 "" Synergy "Synergy Manual"',
        ".SH NAME",
        "synergy.conf \\- settings of Synergy for Slurm",
        ".SH DESCRIPTION",
        roff(
            "A file beside slurm.conf(5) that it Includes. Settings are lines #SYNERGY Key=Value, in this file or in slurm.conf itself; "
            "Slurm takes them for comments, but compares the files over all nodes. The first line of a key holds. The daemon "
            "reads them at its start; synergyctl config check shows them and what is wrong."
        ),
        ".SH SETTINGS",
    ]
    for setting in TABLE:
        default = default_text(setting)
        out += [".TP", f".B {roff(setting.key)}", roff(setting.text), ".br", roff(f"Takes {setting.type.takes}.")]
        out.append(roff(f"Default: {setting.unset or default}."))
    out += [".SH EXAMPLE", ".nf", roff("#SYNERGY DryRun=yes"), roff("#SYNERGY Partitions=gpu,account/physics"), ".fi"]
    return "\n".join([*out, ".SH SEE ALSO", ".BR synergyd (1),", ".BR synergyctl (1),", ".BR slurm.conf (5)"]) + "\n"


def man_page(name: str, command: click.Command, what: str) -> str:
    """Return one page: the program's own options, then a section a verb."""
    shown = list(walk(command, name))
    out = [
        f'.\\" Written by docs/generate.py from the command itself.\n.TH {name.upper()} 1 "" Synergy "Synergy Manual"'
    ]
    out += [".SH NAME", f"{roff(name)} \\- {roff(what)}", ".SH SYNOPSIS", f".B {roff(name)}"]
    out.append(roff(" ".join(command.collect_usage_pieces(shown[0].context))))
    out += [".SH DESCRIPTION", *described(command), *options(shown[0].context, ".SH OPTIONS")]
    if shown[1:]:
        out.append(".SH COMMANDS")
    for one in shown[1:]:
        pieces = " ".join(one.context.command.collect_usage_pieces(one.context))
        out += [f".SS {roff(one.words.removeprefix(name + ' '))}", f".B {roff(one.words)}", roff(pieces), ".PP"]
        out += [*described(one.context.command), *options(one.context, "")]
    out += [".SH EXIT STATUS", "0 on success, 2 for a mistake in usage or settings, 1 when something needed is away."]
    others = [f"{roff(other)} (1)" for other in programs() if other != name]
    out += [".SH SEE ALSO", *(f".BR {other}," for other in others), ".BR slurm.conf (5)"]
    return "\n".join(out) + "\n"


def described(command: click.Command) -> list[str]:
    """Return a command's help: paragraphs are filled, those after a `\\b` line stay as they are."""
    out: list[str] = []
    for part in re.split(r"\n\s*\n", (command.help or "").replace("\f", "").strip()):
        lines = [line.strip() if "\b" not in part else line for line in part.splitlines()]
        if "\b" in part:
            out += [".PP", ".nf", *(roff(line) for line in lines if line.strip("\b ")), ".fi"]
        else:
            out += [".PP", roff(" ".join(lines))]
    return out[1:] if out[:1] == [".PP"] else out


def options(context: click.Context, heading: str) -> list[str]:
    """Return the options with their help, as `.TP` items."""
    found = [p.get_help_record(context) for p in context.command.get_params(context)]
    records = [record for record in found if record is not None]
    out = [heading] if heading and records else []
    for names, text in records:
        out += [".TP", f".B {roff(names)}", roff(text)]
    return out


def roff(text: str) -> str:
    """Return text that roff takes as it is: no escapes, no requests, minus signs that can be copied."""
    safe = text.replace("\b", "").replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe
