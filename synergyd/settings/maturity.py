"""How far each feature is: its mark, which the documentation lists and `synergyctl config check` shows for what a site has set."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class Mark(StrEnum):
    """What a site may rely on."""

    STABLE = "stable"
    BETA = "beta"
    EXPERIMENTAL = "experimental"


MEANINGS = {
    Mark.STABLE: "tested on real Slurm of each supported release; a change of its interface is announced one release ahead",
    Mark.BETA: "tested on real Slurm; details may change with a release",
    Mark.EXPERIMENTAL: "measured on few machines or in simulation; may change or go with a release",
}


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature with its mark. `fields`: settings (fields of Settings) that turn it on or tune it."""

    name: str
    mark: Mark
    fields: tuple[str, ...] = ()


FEATURES = (
    Feature(name="sbatch's check of #SYNERGY lines, dry run, init and its undo", mark=Mark.STABLE),
    Feature(name="sizes at the start, resizes by checkpoint and requeue", mark=Mark.STABLE),
    Feature(name="one daemon with SQLite or PostgreSQL, restarts and failures of it", mark=Mark.STABLE),
    Feature(name="Megatron-LM, and PyTorch loops through synergy_launch", mark=Mark.STABLE),
    Feature(name="GPU hours, the account of restarts", mark=Mark.STABLE),
    Feature(name="Debian 12 packages, installation with pip", mark=Mark.STABLE),
    Feature(name="nodes that join and leave a running job", mark=Mark.BETA, fields=("live",)),
    Feature(name="scripts with Hugging Face Trainer, TRL, Lightning, DeepSpeed, and loop=", mark=Mark.BETA),
    Feature(name="batch sizes that follow the noise scale (global_batch=LO:HI, adapt=)", mark=Mark.BETA),
    Feature(name="forecast, plan and simulate", mark=Mark.BETA),
    Feature(name="REST service and page", mark=Mark.BETA, fields=("rest_port",)),
    Feature(name="standby daemons, several slurmctlds, several clusters in one database", mark=Mark.BETA),
    Feature(
        name="hung runs, slow nodes, spare nodes",
        mark=Mark.BETA,
        fields=("hang_timeout_s", "drain_slow", "spare_nodes"),
    ),
    Feature(name="idle GPUs taken back", mark=Mark.BETA, fields=("idle_reclaim_s",)),
    Feature(name="notices and mails", mark=Mark.BETA, fields=("notice_url", "mail_prog")),
    Feature(name="Debian 13 and EL 9 packages", mark=Mark.BETA),
    Feature(
        name="turns and placement on shared links",
        mark=Mark.EXPERIMENTAL,
        fields=("link_aware", "link_arbiter_port", "link_arbiter_rule", "node_link", "leaf_uplink", "placement"),
    ),
    Feature(name="policies of other papers", mark=Mark.EXPERIMENTAL, fields=("policy",)),
    Feature(name="less communication (comm=)", mark=Mark.EXPERIMENTAL),
    Feature(name="loss spikes skipped (skip_spikes=)", mark=Mark.EXPERIMENTAL),
    Feature(name="checks of nodes before a run", mark=Mark.EXPERIMENTAL),
    Feature(name="reads through pyslurm", mark=Mark.EXPERIMENTAL),
    Feature(name="container image, Ansible role, Slinky values", mark=Mark.EXPERIMENTAL),
)


def marks_in_use(fields: Collection[str]) -> list[str]:
    """Return a line for each feature that is not stable and that one of the settings `fields` turns on or tunes."""
    return [
        f"{feature.mark}: {feature.name} ({MEANINGS[feature.mark]})"
        for feature in FEATURES
        if feature.mark is not Mark.STABLE and not set(feature.fields).isdisjoint(fields)
    ]
