"""Throwaway servers for tests and demos: Slurm clusters and PostgreSQL, each in its own folder and on its own ports."""
