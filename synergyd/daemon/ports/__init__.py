"""Ports that jobs and monitors reach: bounded in connections, size and time."""
