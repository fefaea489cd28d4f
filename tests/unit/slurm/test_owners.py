"""A job's owner stops the scontrol that runs as this user: what that costs the daemon is bounded."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from synergyd.slurm import command_line
from synergyd.slurm.client import SlurmError
from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.owners import AGAIN_S, LONGEST_S, NoAnswerError, Owners

MALLORY, ANN = 65534, 1
SIZE = {"NumNodes": "1"}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs commands as other users")
def test_commands_that_their_owner_stops_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("/tmp") / tmp_path.name  # where the owner can read it
    folder.mkdir()
    try:
        script = folder / "scontrol"
        script.write_text(f'#!/bin/sh\nif [ "$(id -u)" = {MALLORY} ]; then kill -STOP $$; fi\n')
        script.chmod(0o755)
        folder.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
        slurm, now_s = CommandLine(), [0.0]
        slurm._limits, slurm._owners = True, Owners(lambda: now_s[0])
        began_s, lost = time.monotonic(), 0
        with patch.object(command_line, "TIMEOUT_S", 1.0):
            for epoch in range(30):  # of a minute, with ten jobs of his and one of hers
                now_s[0] = 60.0 * epoch
                for job_id in range(1, 11):
                    calls = slurm.calls
                    with pytest.raises(NoAnswerError) as refused:
                        slurm.update_size(job_id, MALLORY, SIZE)
                    assert refused.value.transient
                    lost += slurm.calls - calls
                slurm.update_size(11, ANN, SIZE)
        assert lost <= 6, "30 minutes"
        assert time.monotonic() - began_s < 120
    finally:
        (folder / "scontrol").unlink(missing_ok=True)
        folder.rmdir()


def test_the_wait_doubles_to_a_bound_and_ends_with_an_answer() -> None:
    now_s, started = [0.0], [0]
    owners, stopped = Owners(lambda: now_s[0]), True

    def command() -> bytes:
        started[0] += 1
        if stopped:
            raise NoAnswerError("scontrol", "no answer", transient=True)
        return b"done"

    waits = []
    for _ in range(6):
        with pytest.raises(NoAnswerError, match="no answer"):
            owners.run(MALLORY, command)
        began_s, count = now_s[0], started[0]
        while started[0] == count:
            now_s[0] += 1.0
            with suppress(NoAnswerError):
                owners.run(MALLORY, command)
        waits.append(now_s[0] - began_s)
        now_s[0] += LONGEST_S  # past the wait that this one has begun
    assert waits[0] == AGAIN_S and waits == sorted(waits) and waits[-1] == LONGEST_S
    stopped = False
    assert owners.run(MALLORY, command) == b"done" == owners.run(MALLORY, command)

    def refused() -> bytes:
        raise SlurmError("scontrol", "Invalid node count", transient=False)

    for _ in range(2):
        with pytest.raises(SlurmError, match="Invalid node count"):
            owners.run(MALLORY, refused)
