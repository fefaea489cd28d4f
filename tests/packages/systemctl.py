#!/usr/bin/python3
"""Stands for systemctl in a chroot without systemd: start, stop, restart, enable --now, is-active of units on disk."""

import os
import pwd
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

RUN = Path("/run/units")


def directives(unit: str) -> list[tuple[str, str]]:
    for folder in ("/etc/systemd/system", "/lib/systemd/system"):
        path = Path(folder) / f"{unit}.service"
        if path.exists():
            lines = path.read_text().splitlines()
            parts = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
            return [(key, value) for key, _, value in parts]
    sys.exit(f"Unit {unit}.service not found.")


def pid_of(unit: str) -> int | None:
    try:
        pid = int((RUN / unit).read_text())
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else pid


def start(unit: str) -> None:
    if pid_of(unit):
        return
    said = directives(unit)
    first = dict(reversed(said))
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    for key, value in said:
        if key == "Environment":
            environment.update({k: v for k, _, v in (word.partition("=") for word in shlex.split(value))})
        elif key == "EnvironmentFile" and Path(value.lstrip("-")).exists():
            lines = Path(value.lstrip("-")).read_text().splitlines()
            said_there = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
            environment.update({k: v for k, _, v in said_there})
    user = pwd.getpwnam(first.get("User", "root"))
    if "StateDirectory" in first:
        folder = Path("/var/lib") / first["StateDirectory"]
        folder.mkdir(exist_ok=True, mode=int(first.get("StateDirectoryMode", "755"), 8))
        os.chown(folder, user.pw_uid, user.pw_gid)
    command = [word for word in shlex.split(first["ExecStart"]) if not word.startswith("$")]
    command = [
        "-D" if word == "--systemd" else word for word in command
    ]  # Slurm from 23.11 on: there is nobody to notify
    with Path(f"/var/log/{unit}.journal").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd="/",
            user=user.pw_uid, group=user.pw_gid, extra_groups=[], start_new_session=True,
        )  # fmt: skip
    RUN.mkdir(exist_ok=True)
    (RUN / unit).write_text(str(process.pid))
    time.sleep(1)
    if process.poll():  # munged goes into the background with 0
        sys.exit(f"Job for {unit}.service failed: {Path(f'/var/log/{unit}.journal').read_text()[-2000:]}")


def stop(unit: str) -> None:
    pid = pid_of(unit)
    if pid:
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + 60
        while pid_of(unit) and time.monotonic() < until:
            time.sleep(0.1)
        if pid_of(unit):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    verb, units = words[0], [word.removesuffix(".service") for word in words[1:]]
    if verb == "is-active":
        for unit in units:
            print("active" if pid_of(unit) else "inactive")
        sys.exit(0 if all(map(pid_of, units)) else 3)
    if verb == "is-enabled":  # deb-systemd-invoke starts no other
        there = all(Path(f"/etc/systemd/system/multi-user.target.wants/{unit}.service").is_symlink() for unit in units)
        print("enabled" if there else "disabled")
        sys.exit(not there)
    if verb == "enable":
        for unit in units:
            directives(unit)
            link = Path(f"/etc/systemd/system/multi-user.target.wants/{unit}.service")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(f"/lib/systemd/system/{unit}.service")
    for unit in units:
        if verb in ("stop", "restart"):
            stop(unit)
        if verb in ("start", "restart") or (verb == "enable" and "--now" in sys.argv):
            start(unit)


main()
