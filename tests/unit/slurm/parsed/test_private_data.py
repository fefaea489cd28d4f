"""What users may see, by PrivateData."""

from __future__ import annotations

import pytest

from synergyd.slurm.parsed.associations import ALL_PRIVATE, private_data
from synergyd.slurm.parsed.rows import config_values


@pytest.mark.parametrize(
    ("shown", "hidden"),
    [
        ("none", set()),
        ("accounts,jobs", {"accounts", "jobs"}),
        ("cloud,Usage", {"usage"}),
        ("all", set(ALL_PRIVATE)),
    ],
)
def test_what_private_data_hides(shown: str, hidden: set[str]) -> None:
    assert private_data(config_values(f"PluginDir = /x\nPrivateData             = {shown}\n")) == hidden
    assert private_data({}) == frozenset()
