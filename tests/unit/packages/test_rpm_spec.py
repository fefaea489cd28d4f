"""The spec of the EL packages against the files that are staged for it; rpmbuild itself runs in `make rpm`, and rpm in tests/packages."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

from packages import rpm
from packages.contents import HERE, PACKAGES, PREFIX, System, program, write

SPEC = (HERE / "synergy.spec").read_text()


def fill_without_libraries(root: Path, system: System) -> None:
    """synergyctl without what pip would fetch."""
    write(root / system.site / "synergyd/__init__.py", "")
    write(root / "usr/bin/synergyctl", program("synergyctl"), 0o755)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("staged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            rpm, "PACKAGES", PACKAGES | {"synergyctl": replace(PACKAGES["synergyctl"], fill=fill_without_libraries)}
        )
        rpm.stage(root, 1.8e9)
    return root


def sections(kind: str) -> dict[str, str]:
    """The spec's `%kind -n NAME` sections by package."""
    found = re.findall(rf"^%{kind} -n (\S+)\n(.*?)(?=^%\w+ -n |^# \$1|\Z)", SPEC, re.MULTILINE | re.DOTALL)
    return dict(found)


def patterns(text: str) -> list[str]:
    lines = [re.sub(r"^%(doc|config\(noreplace\)) ", "", line) for line in text.splitlines()]
    return [line for line in lines if line.startswith("/")]


def test_each_staged_file_is_of_one_package(staged: Path) -> None:
    names = ["/" + str(path.relative_to(staged)) for path in staged.rglob("*") if path.is_file() or path.is_symlink()]
    owners = {
        name: [
            package
            for package, text in sections("files").items()
            if any(fnmatch(name, p) or name.startswith(f"{p}/") for p in patterns(text))
        ]
        for name in names
    }
    assert len(names) > 100 and {name: found for name, found in owners.items() if len(found) != 1} == {}
    assert owners["/usr/bin/synergyd"] == ["synergyd"] and owners[
        f"/{PREFIX}/lib/python3.11/site-packages/synergyd/__init__.py"
    ] == ["synergyctl"]


def test_what_the_spec_names_is_staged(staged: Path) -> None:
    lost = [p for text in sections("files").values() for p in patterns(text) if not list(staged.glob(p.lstrip("/")))]
    assert lost == []


def test_units_read_the_environment_of_el(staged: Path) -> None:
    assert (
        "EnvironmentFile=-/etc/sysconfig/synergyd" in (staged / "usr/lib/systemd/system/synergyd.service").read_text()
    )
    assert (staged / "etc/sysconfig/synergyd").exists() and not (staged / "etc/default").exists()
    assert (staged / "usr/lib/sysusers.d/synergyd.conf").read_text().splitlines()[-1].startswith("u slurm - ")


@pytest.mark.parametrize("kind", ["post", "preun", "postun"])
def test_scripts_are_sh_and_end_well(kind: str) -> None:
    for text in sections(kind).values():
        assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0
