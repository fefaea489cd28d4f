"""The findings of `config check` and `doctor` on this machine: one line each, ok or missing, and what to do."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
from synergy_core.errors import SynergyError, one_line
from synergy_core.wire import munge

ANSWER_S = 10.0  # longest that one program is waited for
LEAST_SLURM = (22, 5)
MAX_OFFSET_S = 60.0  # munge takes credentials of clocks up to 5 minutes apart; reports and deadlines want them closer
_AS_OF = re.compile(r"^Configuration data as of (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """One finding. `ok`: there; None: can't be told, or nothing depends on it here. `right`: what to do."""

    name: str
    ok: bool | None
    state_text: str
    right: str = ""

    def line(self) -> str:
        word = {True: "ok", False: "missing", None: "-"}[self.ok]
        text = f"{word:<8}{self.name}: {self.state_text}"
        return one_line(f"{text}; {self.right}" if self.right and not self.ok else text)


def show(findings: Sequence[Finding]) -> None:
    colours = {True: None, False: "red", None: "yellow"}
    for finding in findings:
        click.secho(finding.line(), fg=colours[finding.ok])


def run_command(*command: str, answer_s: float = ANSWER_S) -> tuple[bool, str]:
    """Return (whether the command ended well, what it printed, else why not). Never raises."""
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=answer_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        return False, f"{command[0]} is not on PATH"
    except subprocess.TimeoutExpired:
        return False, f"{command[0]} gave no answer in {answer_s:g} s"
    except OSError as error:
        return False, f"{command[0]}: {error.strerror}"
    if answer.returncode:
        lines = [line for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
        return False, one_line(lines[-1] if lines else f"exit code {answer.returncode}", 200)
    return True, answer.stdout


def slurm_version() -> Finding:
    """Check the version of Slurm's commands on PATH."""
    ok, text = run_command("sinfo", "--version")
    match = re.search(r"(\d+)\.(\d+)(?:\.\d+)?", text) if ok else None
    if match is None:
        return Finding("Slurm's commands", False, text.strip(), "install slurm-client, and put it on PATH")
    new = (int(match[1]), int(match[2])) >= LEAST_SLURM
    return Finding("Slurm's commands", new, f"version {match[0]}", "Slurm 22.05 or newer is needed")


def controller(config: Callable[[], tuple[bool, str]]) -> tuple[list[Finding], dict[str, str]]:
    """Check slurmctld's answer and its clock. Return the findings and its configuration, {} if it does not answer. `config` asks it."""
    before_s = time.time()
    ok, text = config()
    if not ok:
        right = "start slurmctld; set SLURM_CONF where slurm.conf lies elsewhere"
        return [Finding("slurmctld", False, text, right)], {}
    values = {k.strip(): v.strip() for k, _, v in (line.partition("=") for line in text.splitlines() if "=" in line)}
    findings = [Finding("slurmctld", True, f"cluster {values.get('ClusterName', '?')} answers")]
    if (match := _AS_OF.search(text)) and (offset_s := compute_offset_s(match[1], before_s, time.time())) is not None:
        right = "set the time by NTP (chrony) on all hosts"
        text = f"{offset_s:.0f} s from slurmctld's"
        findings.append(Finding("clock", abs(offset_s) <= MAX_OFFSET_S, text, right))
    return findings, values


def compute_offset_s(server_time: str, before_s: float, after_s: float) -> float | None:
    """Return the seconds by which this clock is ahead of `server_time`, or None if that can't be read.

    `server_time` is a local time to the second that was asked for between `before_s` and `after_s`.
    """
    try:
        told_s = time.mktime(time.strptime(server_time, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
    if told_s > after_s:
        return after_s - told_s
    return max(0.0, before_s - (told_s + 1))


def ask_config() -> tuple[bool, str]:
    return run_command("scontrol", "show", "config")


def munge_works() -> Finding:
    """Check munge with a credential made and opened here."""
    try:
        munge.decode(munge.encode(b"synergy"))
    except SynergyError as error:
        return Finding("munge", False, error.what, error.right or "start munged with the cluster's key")
    return Finding("munge", True, "a credential was made and opened")
