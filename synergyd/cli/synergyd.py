"""synergyd: the daemon's own entry."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import click
from synergy_core.errors import NoDatabaseError, UnavailableError

from synergyd import __version__
from synergyd.cli.shared.context import Context, need_server_part, run_command_line


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--once", is_flag=True, help="One epoch (and the resizes it starts), then end.")
@click.option("--dry-run", is_flag=True, help="Decide, store and explain, but touch no job.")
@click.option("--conf", type=click.Path(path_type=Path, dir_okay=False), help="slurm.conf to read settings from.")
@click.option("--database", default="", metavar="URL", help="Database URL, in place of the Database setting.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@click.version_option(__version__, prog_name="synergyd")
def cli(once: bool, dry_run: bool, conf: Path | None, database: str, verbose: bool) -> None:
    """Decide each epoch how many GPUs every #SYNERGY job gets, and with which plan; resize jobs through Slurm.

    Settings are `#SYNERGY Key=Value` lines of slurm.conf: `synergyctl config check` shows them all. Run it as root, SlurmUser, or a
    user with AdminLevel=Admin (a dry run: Operator). One daemon leads; others on the same database stand by.

    Shell completion: eval "$(_SYNERGYD_COMPLETE=bash_source synergyd)"
    """
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)  # tells of its own set-up at every start
    need_server_part()
    context = Context(conf, database)
    settings = context.settings
    for problem in context.loaded_settings.problems:
        logging.getLogger("synergyd").warning("%s: %s; %s", problem.where, problem.what, problem.right)
    if dry_run:
        settings = replace(settings, dry_run=True)

    from synergyd.daemon.service import run  # the solver's libraries take seconds: a wrong slurm.conf is told before

    try:
        code = run(settings, once=once, cluster=context.loaded_settings.cluster)
    except NoDatabaseError as error:
        # its disk may be mounted late: systemd tries again after code 1, and not after 2
        raise UnavailableError(error.where, error.what, error.right) from None
    raise SystemExit(code)


def main() -> None:
    run_command_line("synergyd", lambda: cli(prog_name="synergyd"))


if __name__ == "__main__":
    main()
