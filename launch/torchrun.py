"""torchrun, whose end on SIGTERM is an end and no traceback: `python -m launch.torchrun` takes torchrun's arguments."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs torchrun; a signal that ended it gives exit code 128 + signal."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.run import main as torchrun

    try:
        torchrun(sys.argv[1:])
    except SignalException as end:
        sys.exit(128 + int(end.sigval))


if __name__ == "__main__":
    main()
