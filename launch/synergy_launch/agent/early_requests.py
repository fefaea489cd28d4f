"""Requests for a checkpoint that come before there is an agent."""

from __future__ import annotations

import contextlib
import signal


def ignore_early_requests() -> None:
    """Ignore SIGUSR2 until an agent listens: there is nothing to save yet, and it must not kill the process.

    A script's own handler stays.
    """
    if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # imported by another thread than the main one
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
