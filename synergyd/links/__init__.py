"""Shared links: what jobs that contend for one cost each other, and who may send when. Pure."""
