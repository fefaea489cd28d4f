"""`synergy-launch --try`: a script resized on this machine for a few steps, beside a run left alone. The user's own proof."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from synergy_core.errors import SynergyError, UsageError, one_line
from synergy_core.records import Plan, Shape
from synergy_core.wire import plan_file
from synergy_core.wire.codec import decode
from synergy_core.wire.plan_file import PlanFile

from synergy_launch.agent import run_folder
from synergy_launch.agent.settings import TRY
from synergy_launch.launcher.commands import other_launchers
from synergy_launch.launcher.commands.batch_script import find_command
from synergy_launch.launcher.job import allocation as slurm
from synergy_launch.launcher.job.plan_source import find_plan_file
from synergy_launch.launcher.script import kind as script_kind
from synergy_launch.launcher.script.detection import detect
from synergy_launch.launcher.trial_table import StepRecord, compare, format_table, merge
from synergy_launch.megatron_lm import arguments as megatron_arguments
from synergy_launch.megatron_lm.tracker import newest_iteration

STEPS = 4  # before the checkpoint, and after it
LIMIT_S = 300.0  # of a leg: a script that saves seldom is to be told so
_JOB = 2_000_000_000  # no job of this cluster's: Slurm's ids are below 2^26
_KEY = re.compile(r"\b(checkpoint|loop)=(\S+)")
_GPUS = re.compile(
    r"^#SBATCH\b.*?--(?:gres=gpu|gpus-per-node)[:=](?:[A-Za-z][\w.-]*:)?([0-9]{1,4})(?=\s|,|$)", re.MULTILINE
)
_BATCH_SCRIPT_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is tried: the script and its arguments as synergy-launch takes them, and what the directive says of it."""

    words: tuple[str, ...]
    gpus: int
    checkpoint: str = ""
    loop: str = ""
    style: str = "auto"

    @property
    def script(self) -> tuple[str, ...]:
        """Return the name, with `module:` before that of a module, and the arguments."""
        return (f"module:{self.words[1]}", *self.words[2:]) if self.words[0] == "-m" else self.words


class Leg:
    """One run of a subject as a job of one node, in `folder`. Leave the context to end it."""

    def __init__(
        self,
        subject: Subject,
        folder: Path,
        gpus: int,
        *,
        plan: Plan | None = None,
        restarts: int = 0,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.folder, self.gpus = folder, gpus
        self._subject, self._plan, self._restarts, self._cwd = subject, plan, restarts, cwd
        self._more = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def __enter__(self) -> Leg:
        record = self.folder / "record"
        record.mkdir(parents=True)
        requested_shape = Shape("", 1, self._subject.gpus)
        checkpoint = self._subject.checkpoint
        trial_plan = PlanFile(
            _JOB, self._plan, checkpoint=checkpoint, asked=requested_shape, own_batch=True, loop=self._subject.loop
        )
        plan_file.write(trial_plan, self.folder / "state")
        job = {
            "JOB_ID": str(_JOB), "JOB_NODELIST": "localhost", "STEP_ID": "0", "PROCID": "0", "NODEID": "0", "STEP_NUM_NODES": "1",
            "STEP_NUM_TASKS": "1", "GPUS_ON_NODE": str(self.gpus), "RESTART_COUNT": str(self._restarts),
        }  # fmt: skip
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_"))}
        own = {
            "SYNERGY_STATE_DIR": str(self.folder / "state"), "SYNERGY_CRASH_RESTARTS": "0", "SYNERGY_IN_PLACE": "0",
            "SYNERGY_HOLD_S": "120", TRY: str(record), "TMPDIR": str(self.folder),
        }  # fmt: skip
        style = ["--style", self._subject.style]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "synergy_launch.launcher.command", *style, *self._subject.words],
                env={**clean, **{f"SLURM_{name}": value for name, value in job.items()}, **own, **self._more},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=self._cwd,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self, limit_s: float = 60.0) -> None:
        """End the run as Slurm does: SIGTERM to all processes of the step, SIGKILL to those that stay after `limit_s`; 0: at once."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        pids = [process.pid, *_descendants(process.pid)]
        if limit_s:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def ask(self) -> None:
        """Ask for a checkpoint."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR2)

    def status(self) -> dict[str, Any]:
        """Return what the agent in the training process says, {} without one."""
        folder = next(iter(sorted(self.folder.glob(f"synergy-*-{_JOB}-*"))), None)
        return (run_folder.read_status(folder) if folder is not None else None) or {}

    def records(self, after: int = 0) -> list[StepRecord]:
        """Return the steps so far; with the losses of Megatron-LM's log where no process has seen any."""
        paths = [self.folder / "record" / f"steps-{rank}.jsonl" for rank in range(self.gpus)]
        steps = merge([_lines(path) for path in paths], after)
        checkpoint = self._subject.checkpoint
        log = (
            {line.get("step"): line.get("loss") for line in _lines(Path(checkpoint) / "steps.jsonl")}
            if checkpoint
            else {}
        )
        return [r if r.loss is not None else replace(r, loss=log.get(r.step)) for r in steps]

    def until(self, is_done: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        """Wait until `is_done`. Raises SynergyError where the run ends before, or takes longer than `limit_s`."""
        until = time.monotonic() + limit_s
        while not is_done():
            if self._process is None or self._process.poll() is not None:
                if is_done():
                    return
                raise SynergyError("--try", f"the run on {self.gpus} ended before {what}: {self.last_line()}")
            if time.monotonic() > until:
                raise SynergyError(
                    "--try", f"no {what} in {limit_s:.0f} s", "let the script make fewer steps before it"
                )
            time.sleep(0.1)

    def last_line(self) -> str:
        """Return the last line that the run has printed and that says something."""
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        errors = [line for line in lines if re.match(r"(?:\[rank\d+\]: ?)?[\w.]*(?:Error|Exception)\b", line)]
        errors = errors or [line for line in lines if line.startswith("synergy")]
        return one_line((errors or lines or ["(nothing printed)"])[-1], 300)


def saved_step(leg: Leg, subject: Subject) -> int:
    """Return the step of the checkpoint that was asked for, 0 while there is none."""
    status = leg.status()
    if status.get("checkpoint_requests"):
        return int(status.get("checkpoint_step") or 0)
    if (
        subject.checkpoint
        and script_kind.classify_script(subject.script[0], subject.script[1:]).trainer == script_kind.MEGATRON
    ):
        newest = newest_iteration(Path(subject.checkpoint))
        return newest if isinstance(newest, int) else 0
    return 0


def plan_of(leg: Leg, subject: Subject) -> Plan | None:
    """Return the plan with which the run trains, None where its script has no agent."""
    if (own := own_plan(subject)) is not None:
        return own
    plan = leg.status().get("plan")
    return decode(Plan, plan) if plan else None


def own_plan(subject: Subject) -> Plan | None:
    """Return the plan of Megatron-LM's arguments; None for other scripts."""
    arguments = subject.script[1:]
    if subject.style == "env" or not megatron_arguments.is_megatron(arguments):
        return None
    return megatron_arguments.read_plan(arguments, subject.gpus)


def run_trial(script: str, arguments: Sequence[str], module: bool, checkpoint: str, style: str) -> int:
    """Try SCRIPT at two sizes, and print the table. Return 0 where the resized run is as the one left alone, else 1.

    Raises UsageError where the script can't be tried, SynergyError where a run fails.
    """
    subject = read_subject(script, arguments, module, checkpoint, style)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="synergy-try-") as name:
        folder = Path(name)
        resized, alone = (moved(subject, folder / kind) for kind in ("resized", "alone"))
        other = subject.gpus // 2
        with Leg(resized, folder / "first", subject.gpus, plan=own_plan(resized)) as leg:
            saved, plan, before = _first_leg(leg, resized)
        _say(f"step {saved} is saved; the same steps of a run left alone")
        with Leg(alone, folder / "second", subject.gpus, plan=own_plan(alone)) as leg:
            leg.until(lambda: len(leg.records()) >= saved + STEPS, f"step {saved + STEPS}")
            expected = leg.records()
        _say(f"goes on from step {saved} on {other}")
        with Leg(resized, folder / "third", other, plan=plan, restarts=1) as leg:
            leg.until(lambda: len(leg.records()) >= STEPS, f"step {saved + STEPS}")
            resized_steps = [*before, *leg.records(saved)]
        comparison = compare(expected, resized_steps, saved)
    for line in format_table(comparison, (subject.gpus, other)):
        click.echo(line)
    click.echo(
        f"{'as if left alone' if comparison.is_good else 'NOT as if left alone'} ({time.monotonic() - began:.0f} s)"
    )
    return 0 if comparison.is_good else 1


def _first_leg(leg: Leg, subject: Subject) -> tuple[int, Plan | None, list[StepRecord]]:
    """Run to a checkpoint. Return its step, the plan, and the steps up to it."""
    leg.until(lambda: len(leg.records()) >= STEPS, f"step {STEPS}")
    megatron, status = own_plan(subject), leg.status()
    accepts = status.get("accepts") or {}
    if megatron is None and (not status or (accepts.get("own_size") and not subject.loop)):
        why = status.get("note") or detect(subject.words, gpus=subject.gpus, loop=subject.loop).can_change
        raise SynergyError("--try", f"the job keeps its size: {why}")
    leg.ask()
    leg.until(lambda: saved_step(leg, subject) > 0, "checkpoint")
    saved = saved_step(leg, subject)
    return saved, plan_of(leg, subject), [record for record in leg.records() if record.step <= saved]


def read_subject(script: str, arguments: Sequence[str], module: bool, checkpoint: str, style: str) -> Subject:
    """Return what is to be tried: a training script with its arguments, or a batch script that starts one. Raises UsageError."""
    here = slurm.read(os.environ)
    plan_file, _ = find_plan_file(here.job_id, os.environ)
    text = "" if module else _batch_script(script)
    keys = {
        name: value for line in text.splitlines() if line.startswith("#SYNERGY") for name, value in _KEY.findall(line)
    }
    if text:
        words, n = find_command(text), _GPUS.search(text)
        gpus = here.gpus or (int(n[1]) if n else 0)
        if any("$" in word or "`" in word for word in words):
            right = f"write {other_launchers.WHERE} --try before it in the script, and run that"
            raise UsageError(script, "its command has shell variables", right)
    else:
        translated = other_launchers.translate(script, arguments, module)
        os.environ.update(translated.environment)
        words = (("-m",) if translated.module else ()) + (translated.script, *translated.arguments)
        gpus = here.gpus or translated.processes or 0
    gpus = gpus or 2
    if gpus < 2 or len(here.nodes) > 1:
        raise UsageError(
            "--try", f"it takes one node with 2 GPUs or more, not {len(here.nodes)} with {gpus}", "salloc --gres=gpu:2"
        )
    loop = keys.get("loop", plan_file.loop if plan_file else "")
    checkpoint = checkpoint or keys.get("checkpoint", plan_file.checkpoint if plan_file else "")
    return Subject(words=tuple(words), gpus=gpus, checkpoint=checkpoint, loop=loop, style=style)


def moved(subject: Subject, folder: Path) -> Subject:
    """Return the subject with its checkpoints in `folder`: those of the user's runs stay as they are. Raises UsageError."""
    kind = script_kind.classify_script(subject.script[0], subject.script[1:], subject.style)
    options = {script_kind.MEGATRON: ("--save", "--load"), script_kind.TRAINER: ("--output_dir",)}.get(kind.trainer, ())
    old = {subject.checkpoint.rstrip("/")} if subject.checkpoint.rstrip("/") else set()
    for i, word in enumerate(subject.words):
        head, equals, value = word.partition("=")
        if head in options:
            old.add((value if equals else "".join(subject.words[i + 1 : i + 2])).rstrip("/"))
    words = tuple(_with_path(word, old, str(folder)) for word in subject.words)
    if words == subject.words and (subject.loop or (kind.trainer == script_kind.TRAINER and not kind.has_adapter)):
        where = subject.checkpoint or "the folder of its checkpoints"
        raise UsageError(
            "--try", f"{where} is not in the script's arguments, so a trial would write there", "pass it as an argument"
        )
    folder.mkdir()
    return replace(subject, words=words, checkpoint=str(folder))


def _with_path(word: str, old: set[str], new: str) -> str:
    head, equals, value = word.partition("=")
    for path in old - {""}:
        for text, before in ((word, ""), (value, f"{head}=" if equals else None)):
            if before is not None and (text.rstrip("/") == path or text.startswith(f"{path}/")):
                return f"{before}{new}{text[len(path) :]}"
    return word


def _batch_script(path: str) -> str:
    """Return the text of a batch script, "" for any other file."""
    with contextlib.suppress(OSError, UnicodeDecodeError), Path(path).open(encoding="utf-8") as stream:
        text = stream.read(_BATCH_SCRIPT_BYTES)
        if text.startswith("#!") and "python" not in text.partition("\n")[0]:
            return text
    return ""


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines, without one that is being written."""
    objects = []
    with contextlib.suppress(OSError), path.open(encoding="utf-8") as stream:
        for line in stream:
            with contextlib.suppress(ValueError):
                objects.append(json.loads(line))
    return objects


def _descendants(pid: int) -> list[int]:
    """Return the processes that `pid` has started, and theirs."""
    pids, waiting = [], [pid]
    while waiting:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                for child in (task / "children").read_text().split():
                    pids.append(int(child))
                    waiting.append(int(child))
    return pids


def _say(text: str) -> None:
    click.echo(f"{other_launchers.WHERE} --try: {text}", err=True)
