"""Nodes for a job that spans several, chosen by how busy their links are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def least_loaded_nodes(
    fits: Sequence[str],
    count: int,
    own: Collection[str],
    load: Mapping[str, float],
    leaf: Mapping[str, str],
    free: Mapping[str, int],
) -> list[tuple[str, ...]]:
    """Return up to three sets of `count` of the nodes `fits`, or none where there are too few.

    The nodes are inside the leaf switch whose nodes are the least busy; else over leaves, once over as few as can be and once
    over those with the quietest uplinks. `load` is the share of time that others use each link, by name as in links.Topology.
    Among nodes alike the job's `own` come first, then the fullest.
    """
    if len(fits) < count:
        return []
    order = {name: n for n, name in enumerate(fits)}

    def rank(name: str) -> tuple[float, bool, int, int]:
        return load.get(f"nic:{name}", 0.0), name not in own, free.get(name, 0), order[name]

    leaves: dict[str, list[str]] = {}
    for name in sorted(fits, key=rank):
        leaves.setdefault(leaf.get(name, ""), []).append(name)

    def choose(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=lambda name: order[name]))

    enough = [names for names in leaves.values() if len(names) >= count]
    if enough:
        best = min(
            enough,
            key=lambda names: (
                sum(load.get(f"nic:{name}", 0.0) for name in names[:count]),
                -sum(name in own for name in names[:count]),
                len(names),
                order[names[0]],
            ),
        )
        return [choose(best[:count])]

    def uplink(switch: str) -> float:
        return load.get(f"leaf:{switch}", 0.0)

    node_sets = []
    few = sorted(leaves, key=lambda switch: (-len(leaves[switch]), uplink(switch), switch))
    calm = sorted(leaves, key=lambda switch: (uplink(switch), -len(leaves[switch]), switch))
    for switches in (few, calm):
        names = [name for switch in switches for name in leaves[switch]][:count]
        if choose(names) not in node_sets:
            node_sets.append(choose(names))
    return node_sets
