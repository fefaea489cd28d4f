"""The daemon, its REST service and its command line."""

from synergy_core import __version__

__all__ = ["__version__"]
