"""Slurm's output as typed rows, and what they mean to Synergy. Pure."""
