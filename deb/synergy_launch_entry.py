"""Installed as /usr/lib/synergy-launch/synergy-launch: the launcher in the user's own Python."""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036  the user's Python may be any
    version = ".".join(map(str, sys.version_info[:2]))
    sys.exit(f"synergy-launch: {sys.executable} is Python {version}; put Python 3.11 or newer first in PATH")

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  before 3.4 there was no pathlib
sys.path.remove(FOLDER)  # Python put it first: an installed synergy_launch of the user's goes before this one
sys.path += [FOLDER, os.path.join(FOLDER, "click")]  # noqa: PTH118
# for torchrun and the training script, behind all that the user put there
before = os.environ.get("PYTHONPATH", "")
if FOLDER not in before.split(os.pathsep):
    os.environ["PYTHONPATH"] = before + os.pathsep + FOLDER if before else FOLDER

from synergy_launch.launcher.command import main  # noqa: E402

main()
