"""`synergyctl config`: what the daemon reads out of slurm.conf."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.text import Text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from synergy_core.errors import UsageError, one_line

from synergyd.cli import first_start
from synergyd.cli.checks import Finding
from synergyd.cli.checks import show as show_findings
from synergyd.cli.shared.console import console as make_console
from synergyd.cli.shared.fitted_table import FittedTable, text_column
from synergyd.settings import GPU_TYPE, SETTINGS, Settings
from synergyd.settings.maturity import marks_in_use
from synergyd.settings.types import Setting
from synergyd.slurm.client import SlurmError
from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.directives.conf import LoadedSettings, find_slurm_conf, load_settings
from synergyd.slurm.directives.conf_lines import Lint
from synergyd.slurm.directives.conf_lint import lint
from synergyd.slurm.parsed.snapshot import leaks

ANSWER_S = 5.0  # longest that a check waits for Slurm


@click.group()
def config() -> None:
    """Look at Synergy's settings in slurm.conf."""


@config.command()
@click.option("--conf", type=click.Path(path_type=Path), help="The slurm.conf to read, in place of the cluster's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def check(context: object, conf: Path | None, as_json: bool) -> None:
    """Say whether all is well, what is wrong or could be better, and which settings differ from the defaults.

    Without --conf it also says what a first start on this host lacks: run it as root or as the daemon's user. Exit code: 2 if
    a line is wrong, 1 if something is missing, 0 with warnings at most.
    """
    try:
        named_path = conf or getattr(context, "conf", None)
        path = named_path or find_slurm_conf()
        conf_settings = load_settings(path)
        live = () if named_path else leak_lints()
        problems = (*conf_settings.problems, *lint(path, conf_settings), *live)
        findings = [] if named_path else first_start.findings(conf_settings.settings, conf_settings.cluster)
    except UsageError as error:
        if as_json:
            click.echo(json.dumps({"error": str(error)}))
        else:
            click.echo(f"error: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(_json(path, conf_settings, problems, findings), indent=2))
    else:
        _show(path, conf_settings, problems, findings)
    if any(problem.severity == "error" for problem in problems):
        sys.exit(2)
    sys.exit(any(finding.ok is False for finding in findings))


def leak_lints() -> tuple[Lint, ...]:
    """Return what the running cluster shows, if it answers: nodes on which Slurm has lost count of its GPUs."""
    slurm = CommandLine(timeout_s=ANSWER_S)
    try:
        # jobs after nodes: one that has started in between is seen
        nodes, jobs = slurm.nodes(), slurm.jobs()
    except SlurmError:
        return ()
    right = "nobody gets these GPUs until slurmctld counts anew: see `scontrol show node`"
    return tuple(
        Lint(f"node {name}", f"Slurm counts {count} GPUs as in use that no job holds", right, "warning")
        for name, count in sorted(leaks(nodes, jobs).items())
    )


def rows(conf_settings: LoadedSettings) -> list[tuple[str, str, str]]:
    """Return (key, value, origin) of each setting, in the order of the documentation; a database password is starred out."""
    lines = [
        (setting.key, _text(setting, conf_settings.settings), conf_settings.origins.get(setting.field, "default"))
        for setting in SETTINGS
    ]
    for name, figures in sorted(conf_settings.settings.gpu_figures.items()):
        key = f"{GPU_TYPE.key}={name}"
        lines.append((key, GPU_TYPE.type.write(figures), conf_settings.origins[f"{GPU_TYPE.field}.{name}"]))
    return lines


def _text(setting: Setting, settings: Settings) -> str:
    """Return the value as slurm.conf writes it, or in brackets what holds if nothing is set."""
    if setting.field == "database":
        return _without_password(settings.database_url())
    value = getattr(settings, setting.field)
    return setting.type.write(value) if value or not setting.unset else f"({setting.unset})"


def _without_password(url: str) -> str:
    """Return the URL with its password, even one in the query part, as stars."""
    try:
        plain_url = make_url(url)
    except ArgumentError:  # Settings built by hand
        return "(not a database URL)"
    masked_query = {key: "***" if "pass" in key.lower() else value for key, value in plain_url.query.items()}
    return plain_url.set(query=masked_query).render_as_string(hide_password=True)


def _json(
    path: Path, conf_settings: LoadedSettings, problems: tuple[Lint, ...], findings: list[Finding]
) -> dict[str, object]:
    return {
        "conf": str(path),
        "settings": [{"key": key, "value": value, "origin": origin} for key, value, origin in rows(conf_settings)],
        "problems": [{"where": p.where, "what": p.what, "right": p.right, "severity": p.severity} for p in problems],
        "checks": [{"name": f.name, "ok": f.ok, "found": f.state_text, "right": f.right} for f in findings],
    }


def _show(path: Path, conf_settings: LoadedSettings, problems: tuple[Lint, ...], findings: list[Finding]) -> None:
    console = make_console()
    errors = [p for p in problems if p.severity == "error"]
    missing = [f for f in findings if f.ok is False]
    console.print(Text(verdict(errors, problems, missing), style="bold red" if errors or missing else "bold green"))
    for problem in (*errors, *(p for p in problems if p.severity != "error")):
        style = "bold red" if problem.severity == "error" else "yellow"
        line = Text(f"{problem.severity}: ", style=style) + Text(one_line(str(problem).partition(": ")[2]))
        console.print(line, soft_wrap=True)
    show_findings(sorted(findings, key=lambda f: {False: 0, None: 1, True: 2}[f.ok]))
    table = FittedTable(
        (text_column("Key"), text_column("Value", least=20, folds=True), text_column("Origin", least=12, drop=1)),
        f"\nSettings of {one_line(str(path))} that differ from the defaults",
    )
    everything = rows(conf_settings)
    for key, value, origin in everything:
        if origin != "default":
            table.add_row(*(one_line(cell) for cell in (key, value, origin)))
    others = len(everything) - len(table.rows)
    table.notes.append(f"{others} at their defaults, which docs/reference/settings.md and --json list")
    console.print(table)
    for mark in marks_in_use(conf_settings.origins):
        console.print(Text(mark, style="dim"), soft_wrap=True)


def verdict(errors: Sequence[Lint], problems: Sequence[Lint], missing: Sequence[Finding]) -> str:
    """Return the first line: whether a daemon can run with these settings, and how much is to be put right."""
    warnings = len(problems) - len(errors)
    counts = [
        f"{count} {noun}{'s' * (count != 1 and noun != 'missing')}"
        for count, noun in ((len(errors), "error"), (len(missing), "missing"), (warnings, "warning"))
        if count
    ]
    summary = f": {', '.join(counts)}" if counts else ""
    if errors:
        return f"The settings are wrong{summary}"
    return f"Something is missing{summary}" if missing else f"All is well{summary}"
