"""The needs of a first start of synergyd and synergyrestd on this host, beside the settings themselves."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import socket
import stat
import sys
import time
from pathlib import Path

from synergy_core.errors import SynergyError

from synergyd.cli.checks import Finding, ask_config, controller, munge_works, run_command, slurm_version
from synergyd.cli.shared.context import REST_LIBRARIES
from synergyd.daemon import heartbeat
from synergyd.settings import Settings
from synergyd.slurm import backends, rights
from synergyd.store import private_file, schema
from synergyd.store.connect import parse_url, show, sqlite_path
from synergyd.store.store import open_store

BEATS_S = 60.0  # four heartbeats


def findings(settings: Settings, cluster: str = "") -> list[Finding]:
    """Return all findings, in the order in which an admin would mend them. `cluster`: its name, if the database may hold another's."""
    version = ".".join(map(str, sys.version_info[:3]))
    about, config = controller(ask_config)
    results = [Finding("Python", sys.version_info >= (3, 11), version, "3.11 or newer is needed")]
    results += [slurm_version(), *about, munge_works()]
    user = daemon_user(settings, config)
    if config:
        results += [_json(), _reader(), _rights(user, config)]
    results += [_state_dir(settings.state_dir, user), database(settings, cluster), *_ports(settings)]
    results += _links(settings)
    if settings.rest_port or "auth/jwt" in config.get("AuthAltTypes", ""):
        results += [_rest_libraries(), *_jwt(config, user)]
    return results


def daemon_user(settings: Settings, config: dict[str, str]) -> str:
    """Return the user who runs, or will run, the daemon.

    It is the owner of StateDir, else this user; SlurmUser if this is root without a StateDir.
    """
    try:
        return _name(settings.state_dir.stat().st_uid)
    except OSError:
        return re.sub(r"\(\d+\)$", "", config.get("SlurmUser", "root")) if os.geteuid() == 0 else _name(os.geteuid())


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _uid(name: str) -> int:
    """Return the uid of `name`, or -1 for a user who is not known here: Slurm has no level for such a user."""
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        return -1


def _json() -> Finding:
    # asks for nodes: a whole queue as JSON may be large
    ok, text = run_command("sinfo", "--json")
    if ok:
        return Finding("JSON", True, "Slurm writes JSON")
    what = f"{text}: AdminComment is read through scontrol"
    right = "a job with a line end in its name or comment keeps its size then; build Slurm with its JSON serializer"
    return Finding("JSON", None, what, right)


def _reader() -> Finding:
    """Check through what a daemon on this host reads Slurm, by a first read."""
    try:
        name, why = backends.reads({})
    except SynergyError as error:
        return Finding("reads", False, str(error), "make slurmctld answer")
    is_unused = name != "pyslurm" and importlib.util.find_spec("pyslurm") is not None
    return Finding(
        "reads", None if is_unused else True, why, "docs/admin/install.md says which pyslurm fits which Slurm"
    )


def _rights(user: str, config: dict[str, str]) -> Finding:
    slurm_user = re.sub(r"\(\d+\)$", "", config.get("SlurmUser", "root"))
    if user in ("root", slurm_user):
        return Finding("rights", True, f"the daemon's user is {user}" + (", SlurmUser" if user == slurm_user else ""))
    right = f"run it as {slurm_user}, or: sacctmgr modify user {user} set adminlevel=Admin"
    ok, text = run_command(*rights.USERS)
    level = rights.admin_level(text, _uid(user)) if ok else ""
    if not level:
        return Finding(
            "rights", False, f"{user} is neither root nor SlurmUser, and slurmctld knows no AdminLevel", right
        )
    level_text = f"{user} has AdminLevel={level}"
    if not rights.may(level, writes=True):
        level_text += ", which may not write AdminComment"
    return Finding("rights", rights.may(level, writes=True), level_text, right)


def _state_dir(path: Path, user: str) -> Finding:
    name = f"StateDir {path}"
    make = f"install -d -o {user} -m711 {path}"
    try:
        about = path.stat()
    except OSError as error:
        return Finding(
            name, False, error.strerror or "can't be looked at", f"{make} (the systemd unit makes /var/lib/synergy)"
        )
    if not stat.S_ISDIR(about.st_mode):
        return Finding(name, False, "is no folder", make)
    closed_folder = next((p for p in (path, *path.parents) if not p.stat().st_mode & 0o001), None)
    if closed_folder is not None:
        return Finding(
            name, False, f"jobs can't enter {closed_folder}", f"chmod a+x {closed_folder}: jobs read their plans there"
        )
    if os.geteuid() == about.st_uid and not os.access(path, os.W_OK):
        return Finding(name, False, f"{user} may not write there", f"chmod u+w {path}, or mount it for writing")
    return Finding(name, True, f"of {_name(about.st_uid)}")


def database(settings: Settings, cluster: str) -> Finding:
    """Check that the database exists, at the right revision, and is no other cluster's."""
    url = settings.database_url()
    try:
        plain_url = parse_url(url)
        where, path = show(plain_url), sqlite_path(plain_url)
        if path is not None and not path.exists():
            if path.parent.is_dir():
                return Finding("database", True, f"{where} is made at the first start")
            return Finding("database", False, f"there is no folder {path.parent} yet", "make StateDir first")
        if path is not None and (readers := private_file.open_to_others(path)):
            files = " ".join(map(str, readers))
            return Finding("database", False, f"others than its owner can open {files}", f"chmod 600 {files}")
        has, needs = schema.revision(url), schema.needed_revision()
        if has == needs:
            open_store(url, cluster=cluster).close()
    except SynergyError as error:
        return Finding("database", False, error.what, error.right)
    except OSError as error:
        return Finding("database", None, f"{where}: {error.strerror}", "run this as root or as the daemon's user")
    if has != needs:
        what = f"{where} has no schema" if has is None else f"{where} is at revision {has}, {needs} is needed"
        return Finding("database", False, what, "stop the daemon, then: synergyctl db upgrade")
    return Finding("database", True, f"{where}, revision {has}")


def _ports(settings: Settings) -> list[Finding]:
    """Check that each port can be taken, or that a daemon that lives has it."""
    ports = {
        "ReportPort": settings.report_port,
        "MetricsPort": settings.metrics_port,
        "LinkArbiterPort": settings.link_arbiter_port,
        "RestPort": settings.rest_port,
    }
    runs = _beats(settings.state_dir)
    results = []
    for key, port in ports.items():
        if not port:
            continue
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("", port))
                results.append(Finding(f"{key} {port}", True, "is free"))
            except OSError as error:
                # the REST service may run without the daemon
                serves = os.access(settings.rest_socket(), os.F_OK) if key == "RestPort" else runs
                text = "is taken by Synergy itself, which runs" if serves else error.strerror or "can't be taken"
                results.append(Finding(f"{key} {port}", serves, text, f"end what holds it, or set {key} to another"))
    return results


def _links(settings: Settings) -> list[Finding]:
    """Check whether the cost of sharing a link is measured if it counts. That of 10 Gbit/s Ethernet is, by the model's paper."""
    if not (settings.link_aware or settings.link_arbiter_port):
        return []
    right = "synergyctl profiles measure --pairs prints the line with the figures"
    results = []
    for key, link in (("NodeLink", settings.node_link), ("LeafUplink", settings.leaf_uplink)):
        if link and "@" not in link and not link.endswith("10gbe"):
            what = "what sharing it costs is a guess, scaled from 10 GbE"
            results.append(Finding(f"{key} {link}", None, what, right))
    return results


def _beats(state_dir: Path) -> bool:
    beat = heartbeat.read(state_dir).partition(" ")[0]
    return beat.isdecimal() and abs(time.time() - int(beat)) <= BEATS_S


def _rest_libraries() -> Finding:
    lacks = sorted(name for name in REST_LIBRARIES if importlib.util.find_spec(name) is None)
    state = f"lacks {', '.join(lacks)}" if lacks else "its libraries are there"
    return Finding("REST service", not lacks, state, "pip install 'synergy-slurm[rest]'")


def _jwt(config: dict[str, str], user: str) -> list[Finding]:
    """Check Slurm's token key, as `user` sees it."""
    if "auth/jwt" not in config.get("AuthAltTypes", ""):
        return [
            Finding(
                "auth/jwt", None, "is not set up: callers are known by munge alone", "see slurm.conf(5), AuthAltTypes"
            )
        ]
    match = re.search(r"jwt_key=([^,\s]+)", config.get("AuthAltParameters", ""))
    path = Path(match[1]) if match else Path(config.get("StateSaveLocation", "")) / "jwt_hs256.key"
    try:
        about = path.stat()
    except OSError as error:
        may = os.geteuid() == 0 or error.errno != 13
        return [
            Finding(
                "auth/jwt", False if may else None, f"{path}: {error.strerror}", "make the key that slurm.conf names"
            )
        ]
    if about.st_mode & 0o077:
        return [Finding("auth/jwt", False, f"others than its owner can read {path}", f"chmod 600 {path}")]
    mine = user == "root" or _name(about.st_uid) == user
    return [
        Finding("auth/jwt", mine, f"{path} is of {_name(about.st_uid)}", f"run synergyrestd as {_name(about.st_uid)}")
    ]
