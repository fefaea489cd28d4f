"""The diagrams of the documentation that no code describes: how data flows through Synergy and through an epoch."""

from __future__ import annotations

from _pictures import Arrow, Box, diagram


def overview() -> str:
    """Return the picture of the start page: observe, model, allocate, plan, act."""
    boxes = {
        "slurm": Box(x=70, y=110, text="Slurm", width=100),
        "model": Box(x=280, y=110, text="model:\nwhat jobs could do"),
        "allocate": Box(x=480, y=110, text="allocate:\nwho gets which GPUs"),
        "plan": Box(x=680, y=110, text="plan:\nsize, degrees, batch"),
        "job": Box(x=680, y=220, text="synergy-launch\nin the job"),
    }
    arrows = (
        Arrow(start="slurm", end="model", label="observe"),
        Arrow(start="model", end="allocate"),
        Arrow(start="allocate", end="plan"),
        Arrow(start="plan", end="job"),
        Arrow(start="job", end="model", label="reports"),
        Arrow(start="plan", end="slurm", label="act: requeue, update, release", bend=120),
    )
    return diagram("Observe, model, allocate, plan, act", 780, 260, boxes, arrows)


def epoch() -> str:
    """Return the picture of one epoch."""
    boxes = {
        "snapshot": Box(x=130, y=40, text="Snapshot: one bulk read\nof jobs and nodes", width=200),
        "profiles": Box(x=130, y=110, text="Profiles: what each job\nhas shown in its reports", width=200),
        "cells": Box(x=380, y=75, text="model: the Cells\nof each job", width=150),
        "allocate": Box(x=600, y=75, text="allocate: which Cell\neach job gets", width=170),
        "place": Box(x=600, y=180, text="place: on which nodes", width=170),
        "decide": Box(x=380, y=180, text="Decision for each job,\nwith its reason", width=170),
        "resize": Box(x=380, y=270, text="resize state machine\nof each job", width=170),
        "slurm": Box(x=600, y=270, text="instructions to Slurm", width=170),
        "store": Box(x=130, y=180, text="store, explain, metrics", width=200),
    }
    arrows = (
        Arrow(start="snapshot", end="cells"),
        Arrow(start="profiles", end="cells"),
        Arrow(start="cells", end="allocate"),
        Arrow(start="allocate", end="place"),
        Arrow(start="place", end="decide"),
        Arrow(start="decide", end="resize"),
        Arrow(start="decide", end="store"),
        Arrow(start="resize", end="slurm"),
    )
    return diagram("One epoch", 720, 310, boxes, arrows)
