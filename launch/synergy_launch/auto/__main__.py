"""A runner of a training script as it is, with Synergy's hooks in it: `python -m synergy_launch.auto SCRIPT ...` (or -m MODULE ...).

The launcher puts it before scripts that need it. `--local-rank-option NAME` adds NAME=LOCAL_RANK to the script's arguments, as DeepSpeed's
launcher does.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from synergy_launch.auto import install


def main() -> None:
    """Install the hooks, and run the script as python itself runs a script or a module."""
    words = sys.argv[1:]
    added = []
    if words[:1] == ["--local-rank-option"]:
        added = [f"{words[1]}={os.environ.get('LOCAL_RANK', '0')}"]
        words = words[2:]
    is_module = words[0] == "-m"
    words = words[1:] if is_module else words
    sys.argv = [words[0], *added, *words[1:]]
    install()
    if not sys.flags.safe_path:  # else python has put nothing there
        sys.path[0] = str(Path.cwd() if is_module else Path(words[0]).resolve().parent)
    if is_module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
