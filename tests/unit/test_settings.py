"""The table of settings: each written once, and the texts that are printed from it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from synergyd.scheduler.policies import load_policy
from synergyd.settings import SETTINGS, TABLE, Settings
from synergyd.settings.allocation import OBJECTIVES
from synergyd.settings.maturity import FEATURES, marks_in_use
from synergyd.settings.policies import POLICIES
from synergyd.settings.text import conf_text, default_text, main, settings_markdown
from synergyd.settings.types import Setting

ROOT = Path(__file__).parents[2]


def test_synergy_conf_is_fresh() -> None:
    written = (ROOT / "slurm_plugins" / "synergy.conf").read_text()
    assert written == conf_text(), "run: python -m synergyd.settings.text --conf > slurm_plugins/synergy.conf"


def test_every_field_has_a_key_of_its_own_name() -> None:
    assert [setting.field for setting in TABLE] == [
        each.name for each in fields(Settings) if "setting" in each.metadata
    ]
    for setting in SETTINGS:
        words = setting.field.removesuffix("_s").split("_")
        assert setting.key.lower() == "".join(words) and setting.key[0].isupper()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_default_or_an_example_reads_as_slurm_conf_would(setting: Setting) -> None:
    written, value = default_text(setting), getattr(Settings(), setting.field)
    assert bool(written) != bool(setting.unset) and bool(setting.unset) == bool(setting.example)
    if written:
        assert setting.type.read(written) == value
    else:
        assert setting.type.write(setting.type.read(setting.example)) == setting.example
    assert setting.text.endswith(".") and not setting.type.takes.endswith(".")


def test_every_policy_can_be_loaded() -> None:
    names = list(POLICIES)
    assert len(OBJECTIVES) == 4 and {name for name in names if load_policy(name).preempts} == {
        *("srtf", "srsf", "tiresias", "pollux", "sia", "dally")
    }


def test_the_reference_page_has_every_key() -> None:
    page = settings_markdown()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [s.key for s in TABLE]
    entry = page[page.index("## Epoch") : page.index("## Partitions")]
    assert entry.splitlines()[4] == "Takes 1 s to 1 day. Default: `60s`."
    assert "Takes a port. Default: `7321`." in page and "Takes none, or as NodeLink. Default: `none`." in page


def test_both_forms_can_be_printed() -> None:
    assert CliRunner().invoke(main, ["--conf"]).output == conf_text()
    assert CliRunner().invoke(main, ["--markdown"]).output == settings_markdown()
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 2 and "give --conf or --markdown" in done.output


def test_marks_name_settings_that_exist_and_show_only_what_is_set() -> None:
    assert {name for f in FEATURES for name in f.fields} <= {setting.field for setting in TABLE}
    assert marks_in_use([]) == [] == marks_in_use(["epoch_s", "dry_run"])
    (line,) = marks_in_use(["epoch_s", "link_aware", "node_link"])
    assert line.startswith("experimental: turns and placement on shared links (")
