"""A secret in the job's environment that the launchers of one job's nodes know and no stranger does.

The job_submit plugin puts it there at sbatch, and a launcher that starts the step itself where there is none. All tasks of a step have
the same environment, so either all of a job's nodes know it or none does. From it come ports that nobody can foretell, and a key with
which the nodes sign what they say to one another.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping

from synergy_core.wire import job_key
from synergy_core.wire.job_key import JobKey

from synergy_launch.launcher.job.allocation import FIRST_PORT, PORTS, rendezvous_port

VARIABLE = "SYNERGY_JOB_SECRET"
PLACES = 8  # ports for one purpose, in case that some are taken
_LEAST = 16  # characters


def new_secret() -> str:
    """Return a secret for a job that has none."""
    return secrets.token_hex(16)


def read_secret(environment: Mapping[str, str]) -> bytes:
    """Return the job's secret, or b"" where it has none."""
    text = environment.get(VARIABLE, "")
    return text.encode("utf-8", "surrogateescape") if len(text) >= _LEAST else b""


def key_of_incarnation(secret: bytes, job_id: int, restarts: int) -> JobKey:
    """Return the key with which the nodes of one incarnation sign."""
    return job_key.derive_job_key(secret, job_id, restarts, os.getuid())


def meeting_ports(secret: bytes, job_id: int, restarts: int, run: int) -> tuple[int, ...]:
    """Return the ports on which the first node may be found for `run`, in the order in which it tries them.

    Without a secret there is one port, which anybody can work out.
    """
    if not secret:
        return (rendezvous_port(job_id, restarts, run),)
    digest = hmac.digest(secret, f"places {job_id} {restarts} {run}".encode(), "sha256")
    return tuple(FIRST_PORT + int.from_bytes(digest[4 * n : 4 * n + 4], "big") % PORTS for n in range(PLACES))
