"""`synergyctl init`: Synergy's lines for slurm.conf and job_submit.lua, as a diff to approve."""

from __future__ import annotations

import difflib
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import click
from synergy_core.errors import UsageError, one_line
from synergy_core.ordinary_file import read_bytes

from synergyd.cli.shared.context import Context
from synergyd.settings import Settings
from synergyd.slurm.directives import setup
from synergyd.slurm.directives.conf import find_slurm_conf, load_settings
from synergyd.slurm.directives.conf_lines import MAX_FILE_BYTES, read_lines
from synergyd.slurm.directives.slurm_conf import SlurmConf, read_slurm_conf

PACKAGED = Path("/usr/share/synergy")  # of the Debian package: replaced at its upgrades
MODULES = ("synergy.lua", "synergy_grammar.lua")
HOOK = "job_submit.hook.lua"
DRY_RUN = "# Synergy decides, and touches no job, until this line is taken out.\n#SYNERGY DryRun=yes\n"


@dataclass(frozen=True)
class Change:
    """A file and its intended text; `before` is None if there is no file yet, `after` is None if there is to be none."""

    path: Path
    before: str | None
    after: str | None

    def diff(self) -> str:
        old, new = ("/dev/null" if text is None else str(self.path) for text in (self.before, self.after))
        lines = difflib.unified_diff(
            (self.before or "").splitlines(keepends=True), (self.after or "").splitlines(keepends=True), old, new
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--undo", is_flag=True, help="Take out what init has put in; synergy.conf stays, and is no longer included."
)
@click.pass_obj
def init(context: Context, yes: bool, undo: bool) -> None:
    """Set up slurm.conf and job_submit.lua for Synergy: shows what would change, asks, and writes.

    \b
    slurm.conf       JobSubmitPlugins=lua, JobFileAppend=1, Include synergy.conf
    synergy.conf     all settings with their defaults, and DryRun=yes
    job_submit.lua   the hook; a site's own script is kept, with three statements more

    It may run again at any time: existing lines stay. Each file is written at once, with its owner and mode, and the old one
    is copied beside it.
    """
    conf = (context.conf or find_slurm_conf()).resolve()
    changes, remarks = (propose_removal if undo else propose_changes)(conf)
    for remark in remarks:
        click.echo(one_line(remark, 1000), err=True)
    if not changes:
        click.echo(f"{one_line(str(conf))}: nothing to change")
        return
    for change in changes:
        click.echo(_preview(change), nl=False)
    if not yes and not sys.stdin.isatty():
        raise UsageError("synergyctl init", "there is nobody to ask", "look at the diff, then give --yes")
    if not yes and not click.confirm("Write this?"):
        click.echo("nothing was written")
        return
    for change in changes:
        backup = apply(change)
        verb = "removed" if change.after is None else "wrote"
        click.echo(f"{verb} {one_line(str(change.path))}" + (f", before: {one_line(str(backup))}" if backup else ""))
    click.echo("copy these files to all nodes where they have files of their own, and restart slurmctld; then:")
    click.echo("systemctl disable --now synergyd synergyrestd" if undo else "synergyctl config check")


def propose_removal(conf: Path) -> tuple[list[Change], list[str]]:
    """Return what takes Synergy out of Slurm's files, slurm.conf first, and remarks. Raises UsageError for files that can't be read."""
    folder, hook = conf.parent, _read_packaged(HOOK)
    slurm = read_slurm_conf(conf, read_lines(conf)[0])
    script = folder / "job_submit.lua"
    before, remarks = _read(script), []
    after, why = setup.without_hook(before, hook) if before is not None and setup.has_hook(before) else (before, "")
    if why:
        remarks.append(f"{script}: Synergy's hook can't be taken out by itself: {why}; take the marked statements out")
    texts = _without_lua(slurm) if after == "" else {}
    text = texts.get(conf) or _read(conf) or ""
    lines = ["JobFileAppend=1", "Include synergy.conf", *(["JobSubmitPlugins=lua"] if after == "" else [])]
    others = setup.without_block(text, lines).splitlines(keepends=True)
    texts[conf] = "".join(x for x in others if x.partition("#")[0].split() != ["Include", "synergy.conf"])
    if after == "":
        # Slurm refuses all jobs where it is to read a script that is not there
        is_read = any(re.search(r"\blua\b", text) for text in _plugin_lines(slurm, texts))
        after = setup.bare_script(hook) if is_read else None
    changes = [Change(path, _read(path), new) for path, new in texts.items()]
    changes += [Change(script, before, after)]
    if not why:
        changes += [Change(folder / "synergy" / name, _read(folder / "synergy" / name), None) for name in MODULES]
    return [change for change in changes if change.before != change.after], remarks


def _without_lua(slurm: SlurmConf) -> dict[Path, str]:
    """Return the file that says JobSubmitPlugins with `lua` taken out of several plugins, {} if it stands alone."""
    rest = [part.strip() for part in slurm.get("JobSubmitPlugins").split(",")]
    rest = [part for part in rest if part and part.lower() not in ("lua", "job_submit/lua")]
    file, _, number = slurm.where("JobSubmitPlugins").rpartition(":")
    try:
        line = setup.with_line(_read(Path(file)) or "", int(number), "JobSubmitPlugins", ",".join(rest))
    except ValueError:  # the value is said further up, before a backslash, or nowhere
        return {}
    return {Path(file).resolve(): line} if rest else {}


def _plugin_lines(slurm: SlurmConf, texts: dict[Path, str]) -> list[str]:
    """Return what will be said of JobSubmitPlugins, where it is said now."""
    file = Path(slurm.where("JobSubmitPlugins").rpartition(":")[0] or slurm.path).resolve()
    text = texts.get(file, _read(file) or "")
    return [line.lower() for line in text.splitlines() if line.lower().lstrip().startswith("jobsubmitplugins")]


def _preview(change: Change) -> str:
    """Return the diff, or the first lines of a new file that is only ours."""
    lines = change.diff().splitlines(keepends=True)
    if change.before is None and len(lines) > 60:
        lines = [*lines[:12], f"... and {len(lines) - 12} lines more\n"]
    return "".join(one_line(line.rstrip("\n"), 1000) + "\n" for line in lines)


def propose_changes(conf: Path) -> tuple[list[Change], list[str]]:
    """Return what is missing, slurm.conf last (an Include of a file that is not there yet stops every Slurm command), and remarks.

    Raises UsageError for files that can't be read.
    """
    folder = conf.parent
    lines, problems = read_lines(conf)
    ours = folder / "synergy.conf"
    lacks_ours = not ours.exists() and any(problem.what.startswith("Include synergy.conf") for problem in problems)
    for problem in problems[lacks_ours:]:
        raise UsageError(problem.where, problem.what, problem.right)
    slurm = read_slurm_conf(conf, lines)
    settings = load_settings(conf).settings
    changes: list[Change] = []
    modules = PACKAGED
    if not Path(sys.prefix).is_relative_to("/usr/lib/synergy"):
        modules = folder / "synergy"
        changes += [c for name in MODULES if (c := _make_change(modules / name, _read_packaged(name)))]
    read_paths = {line.path.resolve() for line in lines}
    has_directives = any(line.text.lstrip().upper().startswith("#SYNERGY ") for line in lines)
    include = not has_directives and not lacks_ours and ours not in read_paths
    if (include or lacks_ours) and not ours.exists():
        changes.append(Change(ours, None, DRY_RUN + "\n" + _read_packaged("synergy.conf")))
    script, remarks = _script(folder / "job_submit.lua", modules, settings, stale=bool(changes))
    changes += script
    return [*changes, *_slurm_conf(slurm, conf, include)], remarks


def _make_change(path: Path, text: str) -> Change | None:
    before = _read(path)
    return Change(path, before, text) if before != text else None


def _script(path: Path, modules: Path, settings: Settings, *, stale: bool) -> tuple[list[Change], list[str]]:
    """Return job_submit.lua with the hook, and remarks.

    `stale`: modules change, so that Slurm must read it anew, as it does when its time changes.
    """
    hook = setup.make_hook(_read_packaged(HOOK), str(modules / MODULES[0]), str(settings.state_dir))
    before = _read(path)
    if before is None:
        return [Change(path, None, hook)], []
    if setup.has_hook(before):
        after = setup.with_open_hook(before)
        return ([Change(path, before, after)] if stale or after != before else []), []
    after, why = setup.merge_scripts(before, hook)
    if why:
        right = f"copy the three marked statements of {_place(modules)} into it"
        return [], [f"{path}: Synergy's hook can't be put in by itself: {why}; {right}"]
    return [Change(path, before, after)], []


def _place(modules: Path) -> Path:
    return modules / HOOK if modules == PACKAGED else Path(str(files("slurm_plugins") / HOOK))


def _slurm_conf(slurm: SlurmConf, conf: Path, include: bool) -> list[Change]:
    """Return the change of slurm.conf, or of the file it Includes that has the line."""
    texts: dict[Path, str] = {}
    plugins = [part.strip() for part in slurm.get("JobSubmitPlugins").split(",") if part.strip()]
    add: list[str] = []
    if "jobsubmitplugins" in slurm.places and not {"lua", "job_submit/lua"} & set(map(str.lower, plugins)):
        file, _, number = slurm.where("JobSubmitPlugins").rpartition(":")
        text = _read(Path(file)) or ""
        plugin_list = ",".join([*plugins, "lua"])
        try:
            texts[Path(file).resolve()] = setup.with_line(text, int(number), "JobSubmitPlugins", plugin_list)
        except ValueError:  # the value is said further up, before a backslash
            what = "JobSubmitPlugins stands in a line that ends with a backslash"
            raise UsageError(
                f"{file}:{number}", what, f"write JobSubmitPlugins={plugin_list} in a line of its own"
            ) from None
    elif "jobsubmitplugins" not in slurm.places:
        add.append("JobSubmitPlugins=lua")
    if "jobfileappend" not in slurm.places:
        add.append("JobFileAppend=1")
    if include:
        add.append("Include synergy.conf")
    if add:
        before = texts.get(conf) or _read(conf) or ""
        texts[conf] = setup.with_end(before, [setup.BLOCK, *add])
    return [Change(path, _read(path), text) for path, text in texts.items()]


def _read_packaged(name: str) -> str:
    return (files("slurm_plugins") / name).read_text(encoding="utf-8")


def _read(path: Path) -> str | None:
    try:
        return read_bytes(path, MAX_FILE_BYTES).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(str(path), f"can't be read: {error.strerror}", "run this as root") from None


def apply(change: Change) -> Path | None:
    """Write one file at once, keeping owner and mode, or remove it. Return the copy of what stood there (None for a new file).

    Raises UsageError if it can't be written, or has changed since it was shown.
    """
    path = change.path.resolve()
    if _read(path) != change.before:
        raise UsageError(str(path), "has changed since it was shown", "run synergyctl init again")
    try:
        if change.before == change.after:
            os.utime(path)
            return None
        backup = None
        path.parent.mkdir(mode=0o755, exist_ok=True)
        about = path.stat() if change.before is not None else path.parent.stat()
        mode = about.st_mode & 0o7777 if change.before is not None else 0o644
        if change.before is not None:
            backup = path.with_name(f"{path.name}.before-synergy-{time.strftime('%Y%m%d-%H%M%S')}")
            _put(backup, change.before, about.st_uid, about.st_gid, mode)
        if change.after is None:
            path.unlink()
        else:
            _put(path, change.after, about.st_uid, about.st_gid, mode)
    except OSError as error:
        raise UsageError(str(path), f"can't be written: {error.strerror}", "run this as root") from None
    return backup


def _put(path: Path, text: str, uid: int, gid: int, mode: int) -> None:
    """Write the file so that a reader sees the old file or the new one, whatever happens in between."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
            file.flush()
            os.fchown(handle, uid, gid)
            os.fchmod(handle, mode)
            os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
