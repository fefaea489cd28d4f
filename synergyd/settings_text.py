"""The table of settings as text: slurm_plugins/synergy.conf and the reference page.

`python -m synergyd.settings_text --conf` and `--markdown` print them.
"""

from __future__ import annotations

from textwrap import fill

import click

from synergyd.setting import Setting
from synergyd.settings import TABLE, Settings

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
Slurm takes these lines for comments. Keys may be written in small or capital letters; a value that holds blanks stands in
quotes; one line may hold several settings. Where a Key is given twice the first one holds, and `synergyctl config check`
names the other. A wrong line has no effect: the default stays, and `synergyctl config check` says what would be right.
"""


def default_text(setting: Setting) -> str:
    """The default as slurm.conf writes it; "" where the default is to set nothing."""
    value = getattr(Settings(), setting.field)
    return "" if setting.unset and not value else setting.type.write(value)


def conf_text() -> str:
    """slurm_plugins/synergy.conf: every Key with its text, all lines commented out."""
    return "\n".join([_HEAD, *(_conf_entry(setting) for setting in TABLE)])


def settings_markdown() -> str:
    """The reference page of all Keys, in Markdown."""
    return "\n".join([_MARKDOWN_HEAD, *(_markdown_entry(setting) for setting in TABLE)])


def _conf_entry(setting: Setting) -> str:
    said = [setting.text, f"Takes: {setting.type.takes}."]
    if setting.unset:
        said.append(f"Default: {setting.unset}.")
    lines = [fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) for text in said]
    return "\n".join([*lines, f"# #SYNERGY {setting.key}={default_text(setting) or setting.example}\n"])


def _markdown_entry(setting: Setting) -> str:
    kind = setting.type
    written = default_text(setting)
    rows = {
        "Type": kind.name,
        "Takes": kind.takes,
        "Unit": kind.unit,
        "Default": f"`{written}`" if written else setting.unset,
        "Example": f"`{setting.key}={setting.example}`" if setting.example else "",
    }
    listed = "\n".join(f"- {name}: {value}" for name, value in rows.items() if value)
    return f"## {setting.key}\n\n{setting.text}\n\n{listed}\n"


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
