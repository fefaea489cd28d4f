"""Synergy: goodput-driven scheduling of large-model training on stock Slurm."""

__version__ = "0.2.0"
