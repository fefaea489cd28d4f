"""`launch.huggingface` of release 0.1.0."""

import importlib
import sys

from . import warn

warn()
sys.modules[__name__] = importlib.import_module("synergy_launch.huggingface")
