"""`synergyctl simulate --contention` and `--comm`.

Jobs that span nodes share links, in truth and, if asked for, to the scheduler's knowledge; with `--comm` their replicas
may exchange less over them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
from synergy_core.errors import UsageError
from synergy_core.exchange import KINDS, parse_kinds
from synergy_core.records import Cluster

from synergy_sim.exchanging_truth import with_comm
from synergy_sim.records import Scenario
from synergyd.links.model import build_topology, make_link
from synergyd.settings import Settings

_FORM = "LINK[,NODES[,UPLINK]]"


def link_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; their values come as keywords that `with_links` takes."""
    for option in (
        click.option(
            "--comm",
            default="",
            metavar="KIND,...",
            help=f"As every job's directive comm=, some of {', '.join(KINDS)}: purely data-parallel jobs exchange less over slow "
            "links, with the daemon's prior of an example's worth.",
        ),
        click.option(
            "--contention",
            default="",
            metavar=_FORM,
            help="Jobs slow each other down on shared links: each node's LINK (such as 10gbe), and with NODES a leaf switch its UPLINK "
            "(default: as LINK; 4x10gbe for four together). The scheduler knows of it with --set LinkAware=yes.",
        ),
    ):
        verb = option(verb)
    return verb


def with_links(scenario: Scenario, settings: Settings, contention: str, comm: str = "") -> tuple[Scenario, Settings]:
    """Return the scenario with its links, and the settings that know of them. Raise UsageError."""
    scenario = replace(scenario, jobs=with_comm(scenario.jobs, parse_kinds(comm, "--comm"))) if comm else scenario
    if contention and (settings.node_link, settings.leaf_uplink) != (Settings().node_link, Settings().leaf_uplink):
        raise UsageError("--set", "NodeLink and LeafUplink are --contention's here", f"say them there: {_FORM}")
    if not contention:
        if settings.link_aware:
            raise UsageError("--set LinkAware", "there are no links to be aware of", f"add --contention {_FORM}")
        return scenario, settings
    link, count, uplink = _parse_link(contention)
    if count:
        # in order of the nodes; types are grouped there
        nodes = tuple(replace(node, leaf=f"leaf{n // count}") for n, node in enumerate(scenario.cluster.nodes))
        scenario = replace(scenario, cluster=Cluster(nodes))
    leaf = {node.name: node.leaf for node in scenario.cluster.nodes}
    settings = replace(settings, node_link=link, leaf_uplink=uplink)
    return replace(scenario, topology=build_topology(link, uplink, leaf)), settings


def _parse_link(text: str) -> tuple[str, int, str]:
    """Parse `text` into (link, nodes a leaf or 0, uplink or ""). Raises UsageError."""
    link, *rest = (word.strip() for word in text.split(","))
    for name in (link, *rest[1:2]):
        try:
            make_link(name)
        except UsageError as error:
            raise UsageError("--contention", error.what, error.right) from None
    if not rest:
        return link, 0, ""
    count = rest[0]
    if len(rest) > 2 or not (count.isascii() and count.isdecimal() and 1 <= int(count[:7]) <= 100_000):
        raise UsageError("--contention", f"{text!r} is not {_FORM}", "such as 10gbe,8,4x10gbe")
    return link, int(count), rest[1] if len(rest) > 1 else link
