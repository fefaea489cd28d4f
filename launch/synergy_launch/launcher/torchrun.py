"""torchrun, whose end is an end and no traceback of its own: `python -m synergy_launch.launcher.torchrun` takes torchrun's arguments.

On several nodes its --master-port is what the nodes agree upon (meeting.py), once torch is loaded. Where this process was forked with
torch in it (warm_start), so are the ranks.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

from synergy_launch.agent import run_folder
from synergy_launch.launcher.group.meeting import NO_MEETING, VARIABLE, NoMeetingError, find_meeting
from synergy_launch.warm_start import server
from synergy_launch.warm_start.client import WaitingProcess, fork_here
from synergy_launch.warm_start.starter import FORKED

#: for the last lines of their output
PEERS_S = 2


def main() -> None:
    """Run torchrun, and exit with the code of its end.

    The code is 128 + the signal that ended it, or the code of the first process that failed; NO_MEETING where the nodes can't meet.
    """
    ranks = fork_here() if os.environ.pop(FORKED, None) else None
    if isinstance(ranks, server.Request):  # this process is a rank
        server.become(ranks)
        return
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        _end_peers_soon(os.environ.get("SYNERGY_RUN_DIR", ""))
        if ranks is not None:
            _fork_ranks(ranks, int(sys.argv[sys.argv.index("--nproc-per-node") + 1]))
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
    finally:
        gc.freeze()  # or Python looks through torch once more before it ends, and the job's next run waits for it


def _fork_ranks(waiting: WaitingProcess, ranks: int) -> None:
    """Have torchrun fork its `ranks` processes from the waiting one, which then ends: what is not a rank must not be torchrun's child."""
    from torch.distributed.elastic.multiprocessing import api as torch_api
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    missing = ranks

    class Handler(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            nonlocal missing
            child = None
            if self._stdout is None and self._stderr is None:
                child = waiting.start(args, env, new_session=True, passes_descriptors=False)
            missing -= 1
            if not missing:
                waiting.close()
            return child or super()._popen(args, env)

    api: Any = torch_api
    api.get_subprocess_handler = Handler


def _end_peers_soon(run_dir: str) -> None:
    """Have torchrun give the peers of a rank that has failed PEERS_S seconds, where the launcher starts the run again.

    They wait for that rank in a collective, and do not answer SIGTERM; torchrun would wait 30 s for them.
    """
    from torch.distributed.elastic.multiprocessing import api as torch_api

    context: Any = getattr(torch_api, "SubprocessContext", None)
    if context is None:  # a torch in which it has another name
        return
    close = context.close

    def close_soon(self: Any, death_sig: Any = None, timeout: int = 30) -> None:
        soon = bool(getattr(self, "_failures", None)) and bool(run_dir) and run_folder.is_mended(Path(run_dir))
        close(self, death_sig, min(timeout, PEERS_S) if soon else timeout)

    context.close = close_soon


def _arguments(arguments: list[str]) -> list[str]:
    """Return torchrun's arguments with the port that the job's nodes agree on. Raises NoMeetingError."""
    meeting = find_meeting(arguments, os.environ)
    os.environ.pop(VARIABLE, None)  # it is for this run, not for processes that the script starts
    if meeting is None:
        return arguments
    port = meeting.find_port()
    at = arguments.index("--master-port") + 1
    return [*arguments[:at], str(port), *arguments[at + 1 :]]


if __name__ == "__main__":
    main()
