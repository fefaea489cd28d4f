"""`synergyctl init` on slurm.conf files of all sorts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from synergy_core.errors import UsageError

from synergyd.cli.init import Change, apply, propose_changes
from synergyd.cli.synergyctl import cli
from synergyd.slurm.directives.conf import load_settings
from tests.unit.slurm.directives.test_setup import SITE

CONF = (
    "ClusterName=c\nSlurmctldHost=h\nGresTypes=gpu\nNodeName=n1 Gres=gpu:a100:4 \\\n  CPUs=4\nPartitionName=p Nodes=n1"
)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "slurm.conf"
    path.write_text(CONF)
    path.chmod(0o640)
    return path


def run(conf: Path, *words: str, told: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["--conf", str(conf), "init", *words], input=told)


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_a_fresh_site_is_set_up_once(conf: Path) -> None:
    done = run(conf, "--yes")
    assert done.exit_code == 0, done.output
    text = conf.read_text()
    assert text == CONF + "\n\n# Synergy\nJobSubmitPlugins=lua\nJobFileAppend=1\nInclude synergy.conf\n"
    assert (conf.stat().st_mode & 0o777, (conf.parent / "synergy.conf").stat().st_mode & 0o777) == (0o640, 0o644)
    (copy,) = conf.parent.glob("slurm.conf.before-synergy-*")
    assert (copy.read_text(), copy.stat().st_mode & 0o777) == (CONF, 0o640)
    loaded = load_settings(conf)
    assert loaded.problems == () and loaded.settings.dry_run
    assert str(conf.parent / "synergy" / "synergy.lua") in (conf.parent / "job_submit.lua").read_text()
    before = files(conf.parent)
    again = run(conf, "--yes")
    assert again.output == f"{conf}: nothing to change\n" and files(conf.parent) == before


def test_it_shows_a_diff_and_asks_somebody(conf: Path) -> None:
    before = files(conf.parent)
    nobody = run(conf)
    assert isinstance(nobody.exception, UsageError) and "+Include synergy.conf" in nobody.output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
        assert "nothing was written" in run(conf, told="n\n").output
    assert files(conf.parent) == before


def test_what_a_site_has_is_kept(conf: Path) -> None:
    (conf.parent / "more.conf").write_text("JobSubmitPlugins=throttle # ours\nJobFileAppend=0\n")
    conf.write_text(f"{CONF}\nInclude more.conf\n#SYNERGY Epoch=30\n")
    (conf.parent / "job_submit.lua").write_text(SITE)
    assert run(conf, "--yes").exit_code == 0
    assert (conf.parent / "more.conf").read_text() == "JobSubmitPlugins=throttle,lua # ours\nJobFileAppend=0\n"
    assert conf.read_text() == f"{CONF}\nInclude more.conf\n#SYNERGY Epoch=30\n"
    script = (conf.parent / "job_submit.lua").read_text()
    assert "synergy.submit(desc, parts, uid)" in script and "calls = {}" in script
    assert not (conf.parent / "synergy.conf").exists()


def test_a_script_that_cannot_be_merged_is_told_how_and_left_alone(conf: Path) -> None:
    script = conf.parent / "job_submit.lua"
    script.write_text("slurm_job_submit = require('site')\n")
    done = run(conf, "--yes")
    assert done.exit_code == 0 and "copy the three marked statements" in done.output
    assert script.read_text() == "slurm_job_submit = require('site')\n"


def test_a_script_that_only_says_the_word_gets_the_hook(conf: Path) -> None:
    script = conf.parent / "job_submit.lua"
    script.write_text(f"-- synergy.submit is not here yet\n{SITE}")
    assert run(conf, "--yes").exit_code == 0
    assert "if synergy.submit(desc, parts, uid)" in script.read_text()
    assert run(conf, "--yes").output == f"{conf}: nothing to change\n"


def test_plugins_before_a_backslash_are_the_admins_to_move(conf: Path) -> None:
    conf.write_text(f"{CONF}\nJobSubmitPlugins=throttle \\\n  JobFileAppend=1\n")
    done = run(conf, "--yes")
    assert isinstance(done.exception, UsageError) and "JobSubmitPlugins=throttle,lua" in str(done.exception)
    assert {path.name for path in conf.parent.iterdir()} == {"slurm.conf"}


def test_a_link_stays_one_and_a_lost_synergy_conf_comes_back(conf: Path, tmp_path: Path) -> None:
    run(conf, "--yes")
    (conf.parent / "synergy.conf").unlink()
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "slurm.conf"
    link.symlink_to(conf)
    assert run(link, "--yes").exit_code == 0
    assert link.is_symlink() and (conf.parent / "synergy.conf").exists()
    assert conf.read_text().count("Include") == 1


def test_new_modules_are_read_anew(conf: Path) -> None:
    """As after pip install of a newer version."""
    run(conf, "--yes")
    (conf.parent / "synergy" / "synergy.lua").write_text("-- older\n")
    script = conf.parent / "job_submit.lua"
    os.utime(script, (1, 1))
    assert run(conf, "--yes").exit_code == 0
    assert script.stat().st_mtime > 1 and "-- older" not in (conf.parent / "synergy" / "synergy.lua").read_text()


def test_another_include_that_is_missing_is_named(conf: Path) -> None:
    conf.write_text(f"{CONF}\nInclude nodes.conf\n")
    done = run(conf, "--yes")
    assert isinstance(done.exception, UsageError) and "nodes.conf" in str(done.exception)


def test_what_changed_since_it_was_shown_is_not_written(conf: Path) -> None:
    changes, _ = propose_changes(conf)
    conf.write_text(f"{CONF}\n# by another admin\n")
    with pytest.raises(UsageError, match="has changed since"):
        apply(next(change for change in changes if change.path == conf))
    assert conf.read_text().endswith("another admin\n")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such" / "file"
    with pytest.raises(UsageError, match="can't be written"):
        apply(Change(missing, None, "x"))


INCLUDED = "JobSubmitPlugins=throttle # ours\nJobFileAppend=0\n"


@pytest.mark.parametrize(
    ("conf_text", "script"),
    [
        (CONF + "\n", None),
        (f"{CONF}\nJobSubmitPlugins=lua\nJobFileAppend=1\n", SITE),
        (f"{CONF}\nJobSubmitPlugins=throttle # ours\nProctrackType=x\n", None),
        (f"{CONF}\nJobSubmitPlugins=throttle,lua\n", SITE),
        (f"{CONF}\nInclude more.conf\n", None),
    ],
)
def test_undo_gives_back_what_init_has_found(conf: Path, conf_text: str, script: str | None) -> None:
    """All but synergy.conf, which nothing includes any more, and the copies."""
    conf.write_text(conf_text)
    (conf.parent / "more.conf").write_text(INCLUDED)
    if script is not None:
        (conf.parent / "job_submit.lua").write_text(script)
    before = files(conf.parent)
    assert run(conf, "--yes").exit_code == 0 and files(conf.parent) != before
    done = run(conf, "--undo", "--yes")
    assert done.exit_code == 0 and "systemctl disable --now synergyd" in done.output, done.output
    left = {name: text for name, text in files(conf.parent).items() if "before-synergy" not in name}
    assert left.pop("synergy.conf") and left == before
    assert run(conf, "--undo", "--yes").output == f"{conf}: nothing to change\n"


def test_undo_shows_a_diff_and_asks_somebody(conf: Path) -> None:
    run(conf, "--yes")
    before = files(conf.parent)
    nobody = run(conf, "--undo")
    assert isinstance(nobody.exception, UsageError) and "-Include synergy.conf" in nobody.output
    assert "+++ /dev/null" in nobody.output and files(conf.parent) == before


def test_undo_keeps_what_the_site_added_since(conf: Path) -> None:
    run(conf, "--yes")
    script = conf.parent / "job_submit.lua"
    script.write_text(
        script.read_text().replace("  return slurm.SUCCESS\n", "  site_rule(job_desc)\n  return slurm.SUCCESS\n", 1)
    )
    conf.write_text(conf.read_text() + "MaxJobCount=7\n")
    assert run(conf, "--undo", "--yes").exit_code == 0
    assert conf.read_text() == CONF + "\n\n# Synergy\nJobSubmitPlugins=lua\nMaxJobCount=7\n"
    assert "site_rule(job_desc)" in script.read_text() and "synergy.submit" not in script.read_text()


def test_undo_leaves_a_script_that_slurm_still_reads(conf: Path) -> None:
    """JobSubmitPlugins=lua was there before Synergy, without a script that does anything."""
    conf.write_text(f"{CONF}\nJobSubmitPlugins=lua\n")
    run(conf, "--yes")
    assert run(conf, "--undo", "--yes").exit_code == 0
    assert (conf.parent / "job_submit.lua").read_text().startswith("function slurm_job_submit(")


def test_undo_of_a_hook_changed_by_hand_is_the_admins(conf: Path) -> None:
    run(conf, "--yes")
    script = conf.parent / "job_submit.lua"
    script.write_text(script.read_text().replace("  if loaded then\n", "  if loaded and ours then\n", 1))
    changed = script.read_text()
    done = run(conf, "--undo", "--yes")
    assert "take the marked statements out" in done.output and script.read_text() == changed
    assert (conf.parent / "synergy" / "synergy.lua").exists() and "JobSubmitPlugins=lua" in conf.read_text()


def test_a_hook_of_0_2_learns_to_let_jobs_pass(conf: Path) -> None:
    run(conf, "--yes")
    script = conf.parent / "job_submit.lua"
    new = script.read_text()
    old = re.sub(
        r'( +)slurm\.log_user\("%s", "the Synergy.*\n',
        r'\1slurm.log_user("%s", "the Synergy plugin could not be loaded; tell your admins, or drop the #SYNERGY lines")'
        "\n\\1return slurm.ERROR\n",
        new,
    )
    assert old != new
    script.write_text(old)
    assert run(conf, "--yes").exit_code == 0 and script.read_text() == new
