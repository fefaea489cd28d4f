"""The table of settings as text: slurm_plugins/synergy.conf and the reference page.

`python -m synergyd.settings.text --conf` and `--markdown` print them.
"""

from __future__ import annotations

from textwrap import fill

import click

from synergyd.settings import SETTINGS, TABLE, Settings
from synergyd.settings.types import PORT, UPLINK, Setting

_WIDTH = 120
_HEAD = """\
# Synergy's settings. Install beside slurm.conf and add to slurm.conf:  Include synergy.conf
# Slurm takes every line here for a comment, but compares slurm.conf over all nodes: keep the files the same.
# Take the "# " off the front of a "#SYNERGY" line to set it. Each shows the default; where the default is to set nothing,
# an example. Look at the outcome with: synergyctl config check
"""
_MARKDOWN_HEAD = """\
# Settings

Settings are `#SYNERGY Key=Value` lines of slurm.conf, or of a file that it Includes (synergy.conf lists them all).
Slurm takes these lines for comments. Keys ignore case, a value with blanks stands in quotes, and one line may hold several
settings. A duration is a number of seconds, or a number with s, m, h or d; a port is 1 to 65535, or 0 for none. The first line
of a key holds. A wrong line leaves the default. `synergyctl config check` names both.
"""


def default_text(setting: Setting) -> str:
    """Return the default as slurm.conf writes it, or "" where the default is to set nothing."""
    value = getattr(Settings(), setting.field)
    return "" if setting.unset and not value else setting.type.write(value)


def changed_settings(settings: Settings) -> list[Setting]:
    """Return the Keys whose values differ from the defaults, in the order of the documentation."""
    usual = Settings()
    return [s for s in SETTINGS if getattr(settings, s.field) != getattr(usual, s.field)]


def conf_text() -> str:
    """Return the text of slurm_plugins/synergy.conf: every Key with its text, all lines commented out."""
    return "\n".join([_HEAD, *(_conf_entry(setting) for setting in TABLE)])


def settings_markdown() -> str:
    """Return the reference page of all Keys, in Markdown."""
    return "\n".join([_MARKDOWN_HEAD, *(_markdown_entry(setting) for setting in TABLE)])


def _conf_entry(setting: Setting) -> str:
    text_lines = [setting.text, f"Takes: {setting.type.takes}."]
    if setting.unset:
        text_lines.append(f"Default: {setting.unset}.")
    lines = [
        fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) for text in text_lines
    ]
    return "\n".join([*lines, f"# #SYNERGY {setting.key}={default_text(setting) or setting.example}\n"])


def _markdown_entry(setting: Setting) -> str:
    written = default_text(setting)
    takes = setting.type.takes
    if written:  # the default is an example
        takes = takes.partition(", such as ")[0]
    takes = {PORT.takes: "a port", UPLINK.takes: "none, or as NodeLink"}.get(takes, takes)
    line = f"Takes {takes}. Default: {f'`{written}`' if written else setting.unset}."
    if setting.example and setting.example not in takes:
        line += f" Example: `{setting.key}={setting.example}`."
    return f"## {setting.key}\n\n{setting.text}\n\n{line}\n"


@click.command()
@click.option("--conf", "text", flag_value="conf", help="Print slurm_plugins/synergy.conf.")
@click.option("--markdown", "text", flag_value="markdown", help="Print the reference page.")
def main(text: str | None) -> None:
    """Print the table of settings in one of two forms."""
    if text is None:
        raise click.UsageError("give --conf or --markdown")
    click.echo(conf_text() if text == "conf" else settings_markdown(), nl=False)


if __name__ == "__main__":
    main()
