"""A slurm.conf of a test, and what is wrong in it."""

from __future__ import annotations

from pathlib import Path

from synergyd.slurm.directives.conf import LoadedSettings, load_settings

GOOD = """\
ClusterName=test
JobSubmitPlugins=lua
GresTypes=gpu
JobFileAppend=1
AccountingStorageType=accounting_storage/slurmdbd
SelectType=select/cons_tres
NodeName=n[1-8] CPUs=16 Gres=gpu:a100:8
PartitionName=gpu Nodes=ALL Default=YES
"""


def load(folder: Path, text: str, **files: str) -> LoadedSettings:
    (folder / "slurm.conf").write_text(text)
    for name, content in files.items():
        (folder / f"{name}.conf").write_text(content)
    return load_settings(folder / "slurm.conf")


def said(loaded: LoadedSettings) -> list[str]:
    """The problems without the folder."""
    return [str(problem).replace(str(loaded.files[0].parent) + "/", "") for problem in loaded.problems]
