"""synergyrestd: the REST service's own entry."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from synergyd import __version__
from synergyd.cli.shared.context import Context, run_command_line


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--conf", type=click.Path(path_type=Path, dir_okay=False), help="slurm.conf to read settings from.")
@click.option("--database", default="", metavar="URL", help="Database URL, in place of the Database setting.")
@click.version_option(__version__, prog_name="synergyrestd")
def cli(conf: Path | None, database: str) -> None:
    """Let users see and steer their jobs from login nodes, with the rights that Slurm gives them.

    It serves on StateDir/rest.sock, and on RestPort where that is set. It reads and writes the daemon's database and asks nothing
    of the daemon. Callers are known by munge, or by Slurm's own tokens (auth/jwt). Run it as the user that runs synergyd.
    """
    from synergyd.rest.server import run

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    raise SystemExit(run(Context(conf, database).settings, conf))


def main() -> None:
    run_command_line("synergyrestd", lambda: cli(prog_name="synergyrestd"))


if __name__ == "__main__":
    main()
