"""A user's mistake ends a training process with one line and exit code 2."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from synergy_core.errors import SynergyError


@contextlib.contextmanager
def exit_on_error(rank: int | None = None) -> Iterator[None]:
    """Turn a SynergyError of the body into one line on rank 0 (all ranks have the same to say) and SystemExit(2).

    `rank`: this process's (None: torchrun's RANK).
    """
    try:
        yield
    except SynergyError as error:
        if (int(os.environ.get("RANK") or 0) if rank is None else rank) == 0:
            print(f"synergy: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None
