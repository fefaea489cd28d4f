"""synergyctl: one verb a file, each imported only when it is used."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
from synergy_core.errors import UsageError, format_value

from synergyd import __version__
from synergyd.cli.shared.context import Context, not_both, run_command_line

# verb -> (module, attribute, first line of its help): known without importing it
VERBS = {
    "status": ("synergyd.cli.status", "status", "Jobs, what they have, what they will get."),
    "explain": ("synergyd.cli.explain", "explain", "Why a job got what it got, and its story."),
    "usage": ("synergyd.cli.usage", "usage", "GPU hours and the gain, by account and user, or of one job's runs."),
    "check": ("synergyd.cli.check", "check", "A batch script's #SYNERGY lines, and whether its deadline can be met."),
    "plan": ("synergyd.cli.planning.plan", "plan", "Best plans for a model on some GPUs, without any job."),
    "simulate": (
        "synergy_sim.cli.simulate",
        "simulate_verb",
        "Policies on a recorded or made-up workload, in simulated time.",
    ),
    "forecast": (
        "synergy_sim.cli.forecast",
        "forecast_verb",
        "What Synergy would have changed last month, from sacct alone.",
    ),
    "profiles": ("synergyd.cli.profiles", "profiles", "Fit the performance model to measured rows, and score it."),
    "page": ("synergyd.cli.page", "page", "A link that opens the page in your name."),
    "render": ("synergyd.cli.render", "render", "The torchrun script of a job with its chosen degrees."),
    "pause": ("synergyd.cli.pause", "pause", "Leave a job at its present size."),
    "resume": ("synergyd.cli.pause", "resume", "Let Synergy resize a paused job again."),
    "set": ("synergyd.cli.pause", "set_verb", "Change a job's bounds or weight."),
    "init": ("synergyd.cli.init", "init", "Set up slurm.conf and job_submit.lua for Synergy."),
    "config": ("synergyd.cli.config", "config", "Check the settings in slurm.conf, and what a first start needs."),
    "doctor": ("synergyd.cli.doctor", "doctor", "What a node lacks to run Synergy's jobs."),
    "db": ("synergyd.cli.db", "db", "The database's schema."),
}
#: names that verbs had in 0.2
ALIASES = {"report": "usage"}
#: verbs that need another cluster's database and nothing else of it
OF_CLUSTERS = frozenset({"status", "explain", "usage", "pause", "resume", "set", "db"})


class Verbs(click.Group):
    """The group of verbs, which looks them up in VERBS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        verb = ALIASES.get(name, name)
        if verb not in VERBS:
            return None
        module, attribute, _ = VERBS[verb]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, _, text) in VERBS.items()])


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--conf", type=click.Path(path_type=Path, dir_okay=False), help="slurm.conf to read settings from.")
@click.option("--database", default="", metavar="URL", help="Database URL, in place of the Database setting.")
@click.option(
    "-M", "--cluster", default="", metavar="NAME", help="Another cluster, whose jobs lie in the same PostgreSQL."
)
@click.version_option(__version__, prog_name="synergyctl")
@click.pass_context
def cli(ctx: click.Context, conf: Path | None, database: str, cluster: str) -> None:
    """See and steer what Synergy does with the jobs of this cluster.

    \b
    synergyctl status --watch          a table of all jobs, kept fresh
    synergyctl explain 4711            why job 4711 got what it got
    synergyctl plan --model llama2-7b --gpus 8:64 --gpu-type a100

    Shell completion: eval "$(_SYNERGYCTL_COMPLETE=bash_source synergyctl)"
    """
    if cluster and not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", cluster):
        raise UsageError("--cluster", f"{format_value(cluster)} is no cluster's name", "write its ClusterName")
    verb = ALIASES.get(ctx.invoked_subcommand or "", ctx.invoked_subcommand)
    if cluster and verb not in OF_CLUSTERS:
        names = ", ".join(sorted(OF_CLUSTERS))
        raise UsageError(f"--cluster {cluster}", f"{verb} knows this cluster alone", f"use {names}")
    not_both(cluster, database or None)
    ctx.obj = Context(conf, database, cluster.lower())


def main() -> None:
    run_command_line("synergyctl", lambda: cli(prog_name="synergyctl"))


if __name__ == "__main__":
    main()
