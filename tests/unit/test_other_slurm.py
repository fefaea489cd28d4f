"""The tests' way to another Slurm: what it says where there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.throwaway import debian_root, other_slurm, slurm_build
from tests.throwaway.slurm_build import PLUGINS, build

STATUS = """Package: slurm-wlm-doc
Status: install ok installed
Version: 9.9.9-1

Package: slurm-wlm
Status: install ok installed
Architecture: amd64
Version: 24.11.5-4

Package: slurmd
Version: 8.8.8-1
"""


def ends(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[object, list[str]]:
    monkeypatch.setattr(sys, "argv", ["other_slurm", *words])
    with pytest.raises(SystemExit) as ended:
        other_slurm.main()
    return ended.value.code, capfd.readouterr().err.splitlines()


def test_a_machine_that_can_not(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for options, code in (([], 1), (["--or-pass"], 0)):
        ended, lines = ends(monkeypatch, capfd, *options, "24.11", "false")
        assert ended == code and len(lines) == 1 and lines[0].startswith("== no other Slurm here: "), lines


def test_no_release_and_no_source(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ended, lines = ends(monkeypatch, capfd, "21.08", "true")
    assert ended == 2 and "'21.08': expected one of 24.11, 26.05" in lines[-1]
    assert "it has no META with a Version" in build(tmp_path)[0]
    ended, lines = ends(monkeypatch, capfd, "--source", str(tmp_path), "true")
    assert ended == 1 and len(lines) == 1 and str(tmp_path) in lines[0]


def test_a_source_is_built_once_for_its_folder_and_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, counted = tmp_path / "source", tmp_path / "count"
    source.mkdir()
    (source / "META").write_text("  Version:\t25.11.7\n")
    libraries = " ".join(f"{name}.so" for name in PLUGINS)
    (source / "configure").write_text(
        f"#!/bin/sh\necho >> {counted}\n"
        f'printf "all:\\ninstall:\\n\\tmkdir -p ${{1#*=}}/lib/slurm; cd ${{1#*=}}/lib/slurm; touch {libraries}\\n" > Makefile\n'
    )
    (source / "configure").chmod(0o755)
    monkeypatch.setattr(slurm_build, "BUILT", tmp_path / "here")
    assert build(source) == build(source) == ("", tmp_path / "here" / "25.11.7")
    assert len(counted.read_text()) == 1
    monkeypatch.setattr(slurm_build, "OPTIONS", ("--with-more",))
    assert build(source)[0] == "" and len(counted.read_text()) == 2
    (tmp_path / "here").rename(tmp_path / "there")  # the checkout moves
    monkeypatch.setattr(slurm_build, "BUILT", tmp_path / "there")
    assert build(source)[0] == "" and len(counted.read_text()) == 3


def test_the_version_in_a_root(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS)
    assert other_slurm.version_in(tmp_path) == "24.11.5"
    (tmp_path / "var/lib/dpkg/status").write_text(STATUS.replace("slurm-wlm\n", "other\n"))
    assert other_slurm.version_in(tmp_path) == "?"


def test_a_python_of_the_system_is_named_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A virtual environment's link to /usr/bin/python3 must not lead to the root's own Python."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to("python3")
    (tmp_path / "bin/python3").symlink_to("/usr/bin/python3")
    for name, value in (("prefix", str(tmp_path)), ("base_prefix", "/usr"), ("executable", f"{tmp_path}/bin/python")):
        monkeypatch.setattr(sys, name, value)
    assert tmp_path in other_slurm.python_folders()
    links = list(other_slurm.python_links())
    assert links[0] == Path("/usr/bin/python3")


@pytest.mark.skipif(os.geteuid() != 0, reason="a root of another Debian needs root")
@pytest.mark.parametrize(
    ("does", "says"),
    [("echo 'E: Failed getting release file'; exit 1", "Failed getting release file"), ("sleep 60", "within 0.5 s")],
    ids=["away", "hangs"],
)
def test_a_mirror_that_can_not_be_reached_is_told_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, does: str, says: str
) -> None:
    (tmp_path / "debootstrap").write_text(f"#!/bin/sh\n{does}\n")
    (tmp_path / "debootstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(debian_root, "CACHE", tmp_path / "debian")
    monkeypatch.setattr(other_slurm, "ROOT", tmp_path)
    if reason := debian_root.DebianRoot("trixie", other_slurm.FEW).why_not():
        pytest.skip(reason)
    for options, code in (([], 1), (["--or-pass"], 0)):
        ended, lines = ends(monkeypatch, capfd, *options, "--few", "--making-s", "0.5", "24.11", "false")
        assert ended == code and len(lines) == 1, lines
        assert lines[0].startswith("== no other Slurm here: no Debian trixie") and says in lines[0]
    assert not any((tmp_path / "debian").iterdir()), "a half of a root is left"
