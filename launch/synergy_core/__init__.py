"""The common base of the daemon, the launcher and the simulator: records, wire formats, errors. Standard library only."""

__version__ = "0.3.0"
