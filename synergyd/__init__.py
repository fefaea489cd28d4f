"""Synergy: goodput-driven scheduling of large-model training on stock Slurm."""

__version__ = "0.1.0"
