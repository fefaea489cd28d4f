"""Installed as /usr/lib/synergy-launch/synergy-launch: the launcher in the user's own Python."""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036  the user's Python may be any
    version = ".".join(map(str, sys.version_info[:2]))
    sys.exit(f"synergy-launch: {sys.executable} is Python {version}; put Python 3.11 or newer first in PATH")

FOLDER = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120  before 3.4 there was no pathlib
# Python put it first, as the user wrote it ("./synergy-launch.pyz"), but for PYTHONSAFEPATH: the user's own synergy_launch goes before
if os.path.realpath(sys.path[0]) == FOLDER:
    del sys.path[0]
sys.path += [FOLDER, os.path.join(FOLDER, "click")]  # noqa: PTH118

from synergy_launch.launcher import command  # noqa: E402

# for torchrun and the training script; where the user's own was found they find it too, and PYTHONPATH would go before it
before = os.environ.get("PYTHONPATH", "")
if command.__file__.startswith(FOLDER + os.sep) and FOLDER not in before.split(os.pathsep):
    os.environ["PYTHONPATH"] = before + os.pathsep + FOLDER if before else FOLDER

command.main()
