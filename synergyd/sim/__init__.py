"""Simulators over the same task and scheduler code."""
