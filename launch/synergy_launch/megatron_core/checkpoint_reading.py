"""Megatron's checkpoints are read as this package's own are (pytorch/checkpoint_files.py)."""

from __future__ import annotations

import contextlib
import warnings

from synergy_launch.pytorch.checkpoint_files import read_data


def install() -> None:
    """Replace the reading of tensors in Megatron's own reader; a release that has no such class keeps its own."""
    with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
        from megatron.core.dist_checkpointing.strategies.cached_metadata_filesystem_reader import (
            CachedMetadataFileSystemReader,
        )

        CachedMetadataFileSystemReader.read_data = read_data
