"""`synergyctl doctor`: what a compute node lacks. It needs neither a database nor the server part's libraries."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import click
from synergy_core.errors import SynergyError

from synergyd import __version__
from synergyd.cli.checks import Finding, ask_config, controller, munge_works, run_command, show, slurm_version
from synergyd.cli.shared.context import Context
from synergyd.store import private_file

CONNECT_S = 5.0
TORCH_S = 120.0  # the first import from a shared folder is slow
LEAST_TORCH = (2, 4)  # setup.cfg, extra `training`
# leave out the current folder: a torch.py in /tmp would be run
_TORCH = (
    "import sys; sys.path[:] = filter(None, sys.path); import json, torch; print(json.dumps([sys.version.split()[0], torch.__version__, "
    "torch.cuda.device_count() if torch.cuda.is_available() else 0]))"
)
_PYTHON_LINE = re.compile(r"#!\s*(\S*python[0-9.]*)\s*(?:-\w+)?\s*$")


@click.command()
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), help="A job's checkpoint folder, to be tried for writing."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor(context: Context, checkpoint: Path | None, as_json: bool) -> None:
    """Look at what this node lacks to run Synergy's jobs: run it on a compute node, as a user would.

    \b
    srun --nodes=1 --gres=gpu:1 synergyctl doctor --checkpoint /scratch/me

    A line each: ok, missing, or - where it can't be told. Exits with 1 when something is missing.
    """
    results = findings(context, checkpoint)
    if as_json:
        click.echo(
            json.dumps(
                [{"name": f.name, "ok": f.ok, "found": f.state_text, "right": f.right} for f in results], indent=2
            )
        )
    else:
        show(results)
    sys.exit(any(finding.ok is False for finding in results))


def findings(context: Context, checkpoint: Path | None) -> list[Finding]:
    """Return all findings; none depends on another's outcome."""
    about, config = controller(ask_config)
    ok, text = run_command("srun", "--version")
    results = [slurm_version(), Finding("srun", ok, text.strip(), "install slurm-client, and put it on PATH"), *about]
    results.append(munge_works())
    launcher = shutil.which("synergy-launch")
    results.append(_launcher(launcher))
    torch, visible_gpus = _torch(_find_python(launcher))
    results += [torch, _gpus(visible_gpus, bool(config)), *_ports(context), *_database(context)]
    if checkpoint is not None:
        results.append(writable(checkpoint))
    return results


def _launcher(path: str | None) -> Finding:
    name = "synergy-launch"
    if path is None:
        return Finding(
            name, False, "is not on PATH", "install the package synergy-launch, or pip install synergy-slurm"
        )
    ok, text = run_command(path, "--version")
    if not ok:
        return Finding(name, False, f"{path}: {text}", "install it again, with Python 3.11 or newer")
    version = text.split()[-1] if text.split() else "?"
    same = version == __version__
    return Finding(name, same, f"{path}, version {version}", f"synergyctl is {__version__}: install the same")


def _find_python(launcher: str | None) -> str:
    """Return the Python that the launcher runs in: pip's script names it, the Debian package's takes the first on PATH."""
    try:
        with Path(launcher or "").open(encoding="utf-8", errors="replace") as file:
            match = _PYTHON_LINE.match(file.readline(500))
    except OSError:
        match = None
    return match[1] if match else "python3"


def _torch(python: str) -> tuple[Finding, int | None]:
    """Check torch in `python`. Return the finding and how many GPUs torch sees; None without torch."""
    ok, text = run_command(python, "-c", _TORCH, answer_s=TORCH_S)
    try:
        version, torch, count = json.loads(text.splitlines()[-1]) if ok else ("", "", 0)
    except (ValueError, TypeError, IndexError):
        ok, text = False, "it printed something else"
    if not ok:
        right = "activate the environment that your jobs train in, or pip install 'torch>=2.4' in it"
        return Finding("torch", False, f"not in {python}: {text}", right), None
    numbers = tuple(int(part) for part in re.findall(r"\d+", torch)[:2])
    return Finding(
        "torch", numbers >= LEAST_TORCH, f"{torch} in {python}, Python {version}", "torch 2.4 or newer"
    ), count


def _gpus(visible_gpus: int | None, asks: bool) -> Finding:
    """Compare the GPUs that torch sees with those that Slurm gave this job, or says that this node has."""
    in_job = "SLURM_JOB_ID" in os.environ
    from_slurm = os.environ.get("SLURM_GPUS_ON_NODE", "") if in_job else ""
    if from_slurm.isdecimal():
        needed_gpus, whose = int(from_slurm), "this job has"
    elif in_job:
        return Finding("GPUs", None, "this job asked for none", "srun --gres=gpu:1 synergyctl doctor")
    else:
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        ok, text = run_command("scontrol", "show", "node", node) if asks else (False, "slurmctld does not answer")
        if not ok:
            return Finding("GPUs", None, f"{node} is no node of Slurm: {text}", "run it on a compute node")
        gres = re.search(r"^\s*Gres=(\S*)", text, re.MULTILINE)
        counts = re.findall(r"gpu(?::[A-Za-z_][^:,(]*)?:(\d+)", gres[1]) if gres else []
        needed_gpus, whose = sum(map(int, counts)), f"Slurm says of {node}"
    if visible_gpus is None:
        return Finding("GPUs", None, f"{needed_gpus} by Slurm; without torch nobody looks", "see torch above")
    right = "see nvidia-smi or rocm-smi, Gres= in slurm.conf and gres.conf"
    return Finding("GPUs", visible_gpus == needed_gpus, f"torch sees {visible_gpus}, {whose} {needed_gpus}", right)


def _ports(context: Context) -> list[Finding]:
    """Check the daemon's ports, as a job reaches them."""
    try:
        settings = context.settings
        hosts = context.daemon_hosts()
    except SynergyError as error:
        return [Finding("settings", False, str(error), "")]
    ports = {
        "ReportPort": settings.report_port,
        "LinkArbiterPort": settings.link_arbiter_port,
        "RestPort": settings.rest_port,
    }
    results = []
    for key, port in ports.items():
        if not port:
            continue
        problem = ""
        for host in hosts:
            try:
                socket.create_connection((host, port), CONNECT_S).close()
            except OSError as error:
                problem = problem or f"{host}: {error.strerror or error}"
                continue
            results.append(Finding(f"{key} {port}", True, f"{host} answers"))
            break
        else:
            if settings.dry_run and key == "LinkArbiterPort":
                results.append(
                    Finding(f"{key} {port}", None, "the daemon opens it once DryRun=yes is gone", "look again then")
                )
                continue
            program = "synergyrestd" if key == "RestPort" else "synergyd"
            right = f"start {program} on {' or '.join(hosts)}, and open the port to compute nodes"
            results.append(Finding(f"{key} {port}", False, problem, right))
    return results


def _database(context: Context) -> list[Finding]:
    """Report the daemon's SQLite files on a shared StateDir if this node's users could open them, and nothing else."""
    try:
        path = private_file.sqlite_file(context.settings.database_url())
    except SynergyError:
        return []  # `_ports` tells it
    readers = private_file.open_to_others(path) if path is not None else []
    files = " ".join(map(str, readers))
    return (
        [Finding("database", False, f"others than its owner can open {files}", f"chmod 600 {files}")] if readers else []
    )


def writable(folder: Path) -> Finding:
    """Check that a file can be made in `folder`; the folder itself may be made by the job."""
    name = f"checkpoint {folder}"
    there = folder
    try:
        there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
        with tempfile.NamedTemporaryFile(dir=there, prefix=".synergy-doctor-") as file:
            file.write(b"x")
            file.flush()
        free_gib = shutil.disk_usage(there).free / 2**30
    except OSError as error:
        right = "name a folder that you may write to on every node"
        return Finding(name, False, f"{there}: {error.strerror}", right)
    return Finding(name, True, f"can be written, {free_gib:.0f} GiB free")
