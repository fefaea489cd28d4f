"""torchrun, whose end is an end and no traceback of its own: `python -m synergy_launch.launcher.torchrun` takes torchrun's arguments."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs torchrun. Exit code: 128 + the signal that ended it, or that of the first process that failed."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(sys.argv[1:])
    except SignalException as end:
        sys.exit(128 + int(end.sigval))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
        print(f"synergy-launch: rank {rank} was the first to fail, with exit code {code}", file=sys.stderr, flush=True)
        sys.exit(code)


if __name__ == "__main__":
    main()
