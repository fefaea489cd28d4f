"""The container image, the Ansible role and the Slinky values: what they name exists, and what they copy of us is ours.

The image is not built and the chart not installed: no registry with their images can be reached here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from packages.contents import HERE, PACKAGES, ROOT
from packages.deb import file_name
from synergyd import __version__
from synergyd.cli.init import init
from synergyd.slurm.directives.conf import load_settings
from synergyd.slurm.directives.setup import make_hook

yaml = pytest.importorskip("yaml")
INSTRUCTIONS = {"ARG", "FROM", "COPY", "RUN", "ENV", "VOLUME", "USER", "EXPOSE", "ENTRYPOINT"}


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Containerfile with its text."""
    text = (HERE / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_the_image_takes_the_packages_that_are_built() -> None:
    steps = instructions()
    assert {name for name, _ in steps} <= INSTRUCTIONS
    assert steps[0][0] == "ARG" and steps[1] == ("FROM", "${BASE}")
    (copied,) = [text.split()[:-1] for name, text in steps if name == "COPY"]
    for pattern, name in zip(copied, ("synergyctl", "synergyd"), strict=True):
        assert fnmatch(f"build/deb/{file_name(PACKAGES[name])}", pattern)
    assert dict(steps)["USER"] == "slurm" and dict(steps)["ENTRYPOINT"] == '["/usr/bin/synergyd"]'


def role() -> dict[str, Any]:
    return {
        str(path.relative_to(HERE / "ansible")): yaml.safe_load(path.read_text())
        for path in (HERE / "ansible").rglob("*.yml")
    }


def test_the_role_names_packages_and_options_that_exist() -> None:
    files = role()
    named = re.findall(r"'(synergy[a-z-]*)'", (HERE / "ansible/tasks/main.yml").read_text())
    assert {name for name in named if not name.startswith("synergy_")} == set(PACKAGES)
    tasks = [task for name, each in files.items() if name.startswith("tasks/") for task in each]
    commands = [task["ansible.builtin.command"] for task in tasks if "ansible.builtin.command" in task]
    options = {option for parameter in init.params for option in parameter.opts}
    assert len(commands) == 2
    for command in commands:
        assert command.split()[:2] == ["synergyctl", "init"] and set(command.split()[2:]) <= options
    handlers = {task["name"] for task in files["handlers/main.yml"]}
    assert {task["notify"] for task in tasks if "notify" in task} == handlers


@pytest.mark.skipif(shutil.which("ansible-playbook") is None, reason="ansible is not installed here")
def test_ansible_reads_the_role(tmp_path: Path) -> None:
    (tmp_path / "synergy").symlink_to(HERE / "ansible")
    (tmp_path / "play.yml").write_text("- hosts: all\n  roles: [synergy]\n")
    command = ["ansible-playbook", "--syntax-check", "-i", "localhost,", str(tmp_path / "play.yml")]
    environment = {
        "PATH": "/usr/bin:/bin",
        "ANSIBLE_ROLES_PATH": str(tmp_path),
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_values_have_our_hook_and_right_settings(tmp_path: Path) -> None:
    values = yaml.safe_load((HERE / "slinky-values.yaml").read_text())
    hook = make_hook((ROOT / "slurm_plugins/job_submit.hook.lua").read_text(), "/etc/slurm/synergy.lua", "/run/synergy")
    code = [line for line in hook.splitlines() if not line.lstrip().startswith("--")]
    assert values["configFiles"]["job_submit.lua"].split() == "\n".join(code).split()
    (tmp_path / "slurm.conf").write_text("ClusterName=c\n" + values["controller"]["extraConf"])
    loaded = load_settings(tmp_path / "slurm.conf")
    assert loaded.problems == () and loaded.settings.dry_run
    (sidecar,) = values["controller"]["podSpec"]["initContainers"]
    assert sidecar["image"].endswith(f":{__version__}")
    assert sidecar["ports"][0]["containerPort"] == loaded.settings.report_port
