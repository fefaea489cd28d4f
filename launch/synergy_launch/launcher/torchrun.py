"""torchrun, whose end is an end and no traceback of its own: `python -m synergy_launch.launcher.torchrun` takes torchrun's arguments.

On several nodes its --master-port is what the nodes agree upon (meeting.py), once torch is loaded.
"""

from __future__ import annotations

import os
import sys

from synergy_launch.launcher.meeting import NO_MEETING, VARIABLE, NoMeetingError, find_meeting


def main() -> None:
    """Run torchrun, and exit with the code of its end.

    The code is 128 + the signal that ended it, or the code of the first process that failed; NO_MEETING where the nodes can't meet.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(_arguments(sys.argv[1:]))
    except NoMeetingError as error:
        print(f"synergy-launch: {error}", file=sys.stderr, flush=True)
        sys.exit(NO_MEETING)
    except SignalException as end:
        sys.exit(128 + int(end.sigval))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
        print(f"synergy-launch: rank {rank} was the first to fail, with exit code {code}", file=sys.stderr, flush=True)
        sys.exit(code)


def _arguments(given: list[str]) -> list[str]:
    """Return torchrun's arguments with the port that the job's nodes agree on. Raises NoMeetingError."""
    meeting = find_meeting(given, os.environ)
    os.environ.pop(VARIABLE, None)  # it is for this run, not for processes that the script starts
    if meeting is None:
        return given
    port = meeting.find_port()
    at = given.index("--master-port") + 1
    return [*given[:at], str(port), *given[at + 1 :]]


if __name__ == "__main__":
    main()
