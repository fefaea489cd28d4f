"""Public training scripts, as they are, resized by synergy-launch: what changes and what does not.

    python -m tests.benchmarks.any_trainer --sources DIR [--only NAME ...] [--json FILE]

DIR holds checkouts of public repositories by their names (nanoGPT, examples, trl, ...), which nothing here fetches; a row whose checkout
is missing is skipped with a line. Each script runs under this interpreter on two processes until a checkpoint that was asked for, goes
on on one as after a requeue, is killed, and comes back on two; beside it runs one that is left alone. Models are small, data is made
here, the CPU stands in for GPUs (tests/throwaway/cpu_as_gpu).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from synergy_core.errors import SynergyError
from synergy_core.records import Plan
from synergy_launch.agent import run_folder
from synergy_launch.launcher.script.detection import detect
from synergy_launch.launcher.trial import Leg, Subject, own_plan, plan_of, saved_step
from synergy_launch.launcher.trial_table import Comparison, StepRecord, compare, format_examples, format_loss

from tests.benchmarks.any_trainer_rows import ROWS, Row

STEPS = 4
LIMIT_S = 240.0
DIFFS = Path(__file__).resolve().parents[2] / "docs" / "user" / "diffs"
STAND_INS = Path(__file__).resolve().parents[1] / "throwaway"
HEAD = ("script", "commit", "lines", "resized", "examples", "learning rate", "loss", "batch", "killed")


@dataclass(kw_only=True)
class Result:
    """A row of the table. `why`: why a script is not resized, or what failed."""

    name: str
    commit: str
    lines: int
    command: str
    resized: str = "no"
    examples: str = ""
    rate: str = ""
    loss: str = ""
    batch: str = ""
    killed: str = ""
    why: str = ""
    spent_s: float = 0.0
    numbers: dict[str, float | int | bool | None] = field(default_factory=dict)

    def cells(self) -> tuple[str, ...]:
        return (
            self.name, self.commit, str(self.lines), self.resized, self.examples, self.rate, self.loss, self.batch, self.killed
        )  # fmt: skip


def commit_of(checkout: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def measure(row: Row, sources: Path, folder: Path) -> Result:
    """Run one row in `folder`."""
    command = shlex.join(("synergy-launch", *row.script, *row.arguments))
    result = Result(name=row.name, commit=commit_of(sources / row.repository), lines=row.lines, command=command)
    began = time.monotonic()
    try:
        _measure(row, sources, folder, result)
    except (SynergyError, ValueError) as error:
        result.why = result.why or str(error)
    result.spent_s = time.monotonic() - began
    return result


def _measure(row: Row, sources: Path, folder: Path, result: Result) -> None:
    places = {kind: place_of(row, sources, folder / kind) for kind in ("resized", "alone")}
    subjects = {kind: subject_of(row, place) for kind, place in places.items()}
    resized, alone = subjects["resized"], subjects["alone"]

    def leg(kind: str, name: str, gpus: int, plan: Plan | None, restarts: int = 0) -> Leg:
        more = {"environment": environment_of(row, places[kind]), "cwd": places[kind]}
        return Leg(subjects[kind], folder / name, gpus, plan=plan, restarts=restarts, **more)  # type: ignore[arg-type]

    with leg("resized", "first", 2, own_plan(resized)) as one:
        one.until(lambda: len(one.records()) >= STEPS, f"step {STEPS}", LIMIT_S)
        status = one.status()
        accepts = status.get("accepts") or {}
        if own_plan(resized) is None and (not status or (accepts.get("own_size") and not resized.loop)):
            found = detect(tuple(resized.words), gpus=2, loop=resized.loop)
            note = next((x for x in one.output.read_text(errors="replace").splitlines() if "keeps its size" in x), "")
            result.resized, result.why = (
                "keeps its size",
                note.partition("keeps its size: ")[2] or note or found.can_change,
            )
            return
        one.ask()
        one.until(lambda: saved_step(one, resized) > 0, "checkpoint", LIMIT_S)
        saved = saved_step(one, resized)
        plan, before = plan_of(one, resized), [r for r in one.records() if r.step <= saved]
    with leg("alone", "second", 2, own_plan(alone)) as one:
        one.until(lambda: len(one.records()) >= saved + STEPS, f"step {saved + STEPS} of the run left alone", LIMIT_S)
        expected = one.records()
    with leg("resized", "third", 1, plan, 1) as one:
        one.until(lambda: len(one.records()) >= STEPS, f"step {saved + STEPS} on one process", LIMIT_S)
        one.end(0.0)  # kill -9 of all processes at once, as on a node that fails
        after = one.records(saved)
    fill(result, compare(expected, [*before, *after], saved))
    result.resized = "requeue"
    with leg("resized", "fourth", 2, plan, 2) as one:
        try:
            one.until(lambda: len(one.records()) >= 2, "two steps after kill -9", LIMIT_S)
        except SynergyError:
            result.killed, result.why = "no", one.last_line()
            return
        again = one.records(_start(one, saved))
        result.killed = _came_back(again, expected, bool(result.numbers["has_random_inputs"]))
        result.batch = _moved(one, plan)


def _start(leg: Leg, saved: int) -> int:
    """Return the step from which a run went on, as its agent said at its start; `saved` where it says nothing."""
    found = re.findall(r"^synergy: step (\d+): tp=", leg.output.read_text(errors="replace"), re.MULTILINE)
    return int(found[-1]) if found else saved


def _came_back(again: list[StepRecord], expected: list[StepRecord], is_random: bool) -> str:
    """Return whether the run went on from its last checkpoint with the examples that followed."""
    wanted = {record.step: record for record in expected}
    pairs = [(record, wanted[record.step]) for record in again if record.step in wanted]
    if not pairs:
        return "yes"
    return "yes" if is_random or all(a.rows == b.rows for a, b in pairs) else "yes, other examples"


def _moved(leg: Leg, plan: Plan | None) -> str:
    """Propose twice the batch, as the daemon does, and wait until the agent trains with it."""
    folders = list(leg.folder.glob("synergy-*"))
    inside = [run_folder.read_hook_state(folder) for folder in folders]  # of a hook in a Megatron-LM script
    if plan is None or not (leg.status().get("rebatching") or any(said.get("rebatching") for said in inside)):
        return "stays"
    size = plan.global_batch
    for folder in folders:
        run_folder.propose_batch(folder, replace(plan, dp=leg.gpus, global_batch=2 * size))
    at = len(leg.records())

    def has_moved() -> bool:
        records = leg.records()
        now = (leg.status().get("plan") or {}).get("global_batch") or len(records[-1].rows)
        return now == 2 * size and len(records) > at + 2

    try:
        leg.until(has_moved, "step of twice the batch", 90.0)
    except SynergyError as error:
        return f"no: {error.what}"
    return f"{size} to {2 * size}"


def fill(result: Result, found: Comparison) -> None:
    result.numbers = {**asdict(found), "is_good": found.is_good, "is_same_loss": found.is_same_loss}
    result.examples = format_examples(found)
    if not found.is_same_batch:
        result.examples += f"; batch {found.batch} to {found.resized_batch}"
    result.rate = "equal" if found.is_same_rate else f"{found.rate_difference:.1e} off"
    if found.loss_difference is None or found.loss is None:
        result.loss = "unknown"
    else:
        kind = format_loss(found).partition(" (")[0]
        result.loss = kind if kind == "random" else f"{found.loss_difference:.0e} of {found.loss:.2f}: {kind}"


def place_of(row: Row, sources: Path, folder: Path) -> Path:
    """Copy the script's folder, so that what it writes stays out of the checkout, and make its data."""
    source = sources / row.repository / row.folder
    skipped = shutil.ignore_patterns(".git", "*.ipynb", "*.png", "*.jpg", "*.gif", "*.pdf", *row.ignored)
    shutil.copytree(source, folder, ignore=skipped, symlinks=True)
    if row.patch:
        apply_patch(folder, row.patch)
    for path, before, after in row.changes:
        text = (folder / path).read_text()
        if before not in text:
            raise SynergyError(row.name, f"{path} has no {before!r}: another commit?")
        (folder / path).write_text(text.replace(before, after))
    if row.prepare is not None:
        row.prepare(folder)
    return folder


def apply_patch(folder: Path, name: str) -> None:
    """Apply a diff of docs/user/diffs in `folder`. Raises SynergyError where it does not fit."""
    done = subprocess.run(
        ["git", "apply", "--unidiff-zero", "--whitespace=nowarn", str(DIFFS / name)],
        cwd=folder, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SynergyError(name, f"does not apply: another commit? {done.stderr.strip()[:200]}")


def subject_of(row: Row, place: Path) -> Subject:
    words = tuple(word.format(here=place) for word in (*row.script, *row.arguments))
    if words[0] != "-m":
        words = (str(place / words[0]), *words[1:])
    return Subject(
        words=words,
        gpus=2,
        checkpoint=row.checkpoint.format(here=place),
        loop=row.loop.format(here=place),
        style=row.style,
    )


def environment_of(row: Row, place: Path) -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    paths = [str(STAND_INS / row.stand_in)] if row.stand_in else []
    paths += [os.environ[name] for name in row.needs if os.environ.get(name)]
    paths += [str(place / name) for name in row.paths] + [
        str(root / "launch"),
        str(root),
        os.environ.get("PYTHONPATH", ""),
    ]
    return {
        "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "disabled", "HF_DATASETS_CACHE": str(place / "cache"),
        **{name: value.format(here=place) for name, value in row.environment.items()},
    }  # fmt: skip


@contextmanager
def room(keep: Path | None, name: str) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="any-trainer-") as made:
            yield Path(made)
        return
    shutil.rmtree(keep / name, ignore_errors=True)
    (keep / name).mkdir(parents=True)
    yield keep / name


def missing(row: Row, sources: Path) -> str:
    """Return what a row lacks here, or ""."""
    if not (sources / row.repository / row.folder).is_dir():
        return f"no {row.repository}/{row.folder} in {sources}"
    unset = [name for name in row.needs if not os.environ.get(name)]
    return f"{unset[0]} is not set" if unset else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="rows whose names contain one of these")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave what the runs wrote there")
    parser.add_argument("--json", type=Path, help="add one line a row")
    args = parser.parse_args()
    results = []
    for row in ROWS:
        if args.only and not any(part in row.name for part in args.only):
            continue
        if why := missing(row, args.sources):
            print(f"{row.name}: skipped: {why}", flush=True)
            continue
        with room(args.keep, row.name.replace("/", "_").replace(" ", "_")) as folder:
            result = measure(row, args.sources.absolute(), folder)
        results.append(result)
        print(" | ".join(result.cells()), f"({result.spent_s:.0f} s)", result.why, flush=True)
        if args.json:
            with args.json.open("a") as stream:
                stream.write(json.dumps(asdict(result)) + "\n")
    for line in table(results):
        print(line)


def table(results: list[Result]) -> list[str]:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
    return lines + [f"| {' | '.join(result.cells())} |" for result in results]


if __name__ == "__main__":
    main()
