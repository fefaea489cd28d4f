"""Commands that run as jobs' owners, who may stop such a process: what one owner can cost is bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from synergyd.slurm.client import SlurmError

TIMEOUT_S = 5.0  # for one command: Slurm answers an update within milliseconds
# After a command that did not end none is started as this user for so long, doubled each time: at the start two are lost in a few
# epochs, in the long run one in ten minutes. A slurmctld that is away for a moment costs an owner no more than the first.
AGAIN_S, LONGEST_S = 60.0, 600.0


class NoAnswerError(SlurmError):
    """A command did not end in time."""


@dataclass
class Owners:
    """Whose commands have not ended, by uid."""

    clock: Callable[[], float] = time.monotonic
    _waits: dict[int, tuple[float, float]] = field(default_factory=dict)  # (until then, for so long), seconds

    def run(self, uid: int, command: Callable[[], bytes]) -> bytes:
        """What `command` gives. Raises NoAnswerError at once where the user's last one did not end a short while ago."""
        until_s, length_s = self._waits.get(uid, (0.0, 0.0))
        left_s = until_s - self.clock()
        if left_s > 0:
            what = f"a command as uid {uid} did not end within {TIMEOUT_S:g} s; the next in {left_s:.0f} s"
            raise NoAnswerError("scontrol update", what, transient=True)
        try:
            answer = command()
        except NoAnswerError:
            length_s = min(LONGEST_S, max(AGAIN_S, 2 * length_s))
            self._waits[uid] = (self.clock() + length_s, length_s)
            raise
        except SlurmError:
            self._waits.pop(uid, None)  # it was answered
            raise
        self._waits.pop(uid, None)
        return answer
