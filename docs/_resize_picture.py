"""The resize state machine as a picture, from its transitions (docs/_resize_states.py)."""

from __future__ import annotations

from _pictures import Arrow, Box, diagram
from _resize_states import transitions

# Centres in pixels, in the order of ResizeState: QUEUED, RUNNING, JOINING, CHECKPOINTING, REQUEUING, RESTARTING,
# RETURNING, PARKED, RESIZED, RELEASED, GONE.
PLACES = (
    (110, 60),
    (750, 340),
    (590, 280),
    (430, 340),
    (110, 340),
    (510, 460),
    (790, 460),
    (110, 200),
    (430, 200),
    (750, 200),
    (750, 60),
)
# The usual ways of a resize, by position in PLACES, and how the event of each begins.
USUAL_WAYS = {
    (0, 7): "start or resize decided",
    (7, 8): "size set and read back",
    (8, 9): "released",
    (9, 1): "seen running",
    (1, 3): "start or resize decided",
    (3, 4): "checkpoint acknowledged",
    (4, 7): "seen pending",
    (3, 5): "checkpoint acknowledged",
    (5, 1): "restarted in place",
    (5, 6): "restarted in place",
    (6, 1): "nodes given back",
    (1, 2): "start or resize decided",
    (2, 3): "nodes joined",
}


def picture() -> str:
    """Return the state machine as SVG: the usual ways of a resize with their events, all others in grey.

    Every state leads to GONE, so one arrow stands for all of those.
    """
    from synergyd.control.resize.lifecycle import ResizeState

    states = [state.value for state in ResizeState]
    ways = transitions()
    ends = {before for before, after in ways if after == "GONE"}
    assert ends == {*states} - {"GONE"}, "not every state ends in GONE"
    boxes = {state: Box(x=x, y=y, text=state) for state, (x, y) in zip(states, PLACES, strict=True)}
    usual = {(states[a], states[b]): begin for (a, b), begin in USUAL_WAYS.items()}
    arrows = []
    for way, begin in usual.items():
        (event,) = (words for words in ways[way] if words.startswith(begin))
        arrows.append(Arrow(start=way[0], end=way[1], label=event.replace(" and ", "\nand ")))
    arrows.append(Arrow(start=states[0], end="GONE", label="left the queue (from every state)"))
    arrows += [
        Arrow(start=before, end=after, bend=36, faint=True)
        for before, after in ways
        if after not in ("GONE", before) and (before, after) not in usual
    ]
    return diagram("States of a resize", 860, 500, boxes, arrows)
