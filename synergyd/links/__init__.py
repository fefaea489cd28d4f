"""Shared links: slowdowns of jobs that contend for them, and the order in which jobs may send. Pure."""
