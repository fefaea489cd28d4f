"""SIGKILL at random moments of training and checkpointing: does every resume find a good checkpoint, and how much is lost?

    python -m tests.benchmarks.kills --count 100 [--ranks 2] [--seed 0] [--saves background|waiting]

A small model trains with SynergyTask (real torch, gloo, DCP checkpoints each INTERVAL steps); after a random time all its
processes are killed at once, as a node that fails does, and the run is started again. At each save the run notes a
digest of what it saves (weights and optimizer), at each start one of what it loaded, so a corrupt or mixed load is
seen; each finished step is noted, so what is lost is counted. At the end the run is let finish, and its weights are
compared with those of a run that was left alone.

With --saves background, as a run does by itself, checkpoints are written while training goes on: then what a kill costs is
up to an interval and the steps made since the last one was begun, less than two intervals in all.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synergy_launch.agent.background_save import StagedPart

from tests.integration import training_ranks

INTERVAL = 4
STEPS = 100_000
SPREAD_S = {"waiting": 0.6, "background": 2.0}  # kills fall between a start and this long after its first step
PAUSE_S = {"waiting": 0.01, "background": 0.05}  # a step: an interval is to be longer than what a checkpoint takes
_START_S = 60.0


def run_rank(folder: Path, steps: int, pause_s: float) -> str:
    """One rank of one incarnation; the digest of its state when it is done."""
    import torch
    import torch.distributed as dist
    from synergy_launch import SynergyTask
    from synergy_launch.examples.ddp import ByteModel
    from synergy_launch.examples.text import TextWindows
    from torch.nn.parallel import DistributedDataParallel

    ledger = os.open(folder / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    rank = int(os.environ["RANK"])

    def say(text: str) -> None:
        if rank == 0:
            os.write(ledger, f"{text}\n".encode())  # one write: whole, and it outlives the process

    say("up")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(ByteModel(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def digest() -> str:
        total = hashlib.blake2b(digest_size=8)
        for parameter in model.parameters():
            state = optimizer.state.get(parameter, {})
            for tensor in (parameter, *(state[name] for name in sorted(state))):
                total.update(tensor.detach().contiguous().numpy().tobytes())
        return total.hexdigest()

    text = TextWindows(32)
    with SynergyTask(
        model, optimizer, global_batch=8, micro_batch=4, checkpoint=folder / "checkpoints", checkpoint_interval=INTERVAL
    ) as task:
        say(f"loaded {task.step_count} {digest()}")
        checkpointer = task.agent.checkpointer
        save, stage = checkpointer.save, checkpointer.stage
        assert save is not None

        def noted(target: Path) -> Mapping[str, Any]:
            say(f"saving {task.step_count} {digest()}")
            return save(target)

        def staged(target: Path) -> StagedPart:
            say(f"saving {task.step_count} {digest()}")
            assert stage is not None
            return stage(target)

        checkpoints = checkpointer.store
        assert checkpoints is not None
        close = checkpoints.close

        def sealed(target: Path, step: int, meta: Mapping[str, Any]) -> None:
            close(target, step, meta)
            say(f"written {step}")

        checkpoints.close = sealed  # type: ignore[method-assign, assignment]
        checkpointer.save = noted
        checkpointer.stage = staged if stage is not None else None
        for rows in task.batches(text, steps, collate=lambda items: torch.tensor([list(item) for item in items])):
            before = task.step_count
            logits = model(rows[:, :-1])
            task.step(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
            if task.step_count > before:
                say(f"done {task.step_count}")
                time.sleep(pause_s)
        return digest()


@dataclass
class Result:
    """What the kills found. `lost` in steps, one number a resume; `at` counts what each kill interrupted."""

    kills: int = 0
    resumes: int = 0
    corrupt: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    at: Counter[str] = field(default_factory=Counter)
    same_end: bool | None = None


def entries(folder: Path) -> list[list[str]]:
    path = folder / "ledger"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def incarnation(folder: Path, ranks: int, saves: str, rng: random.Random) -> None:
    """One start, killed at a random moment: while it starts, loads, trains or saves."""
    before = len(entries(folder))
    processes = training_ranks.start(folder / "ranks", ranks, _call(folder, STEPS, PAUSE_S[saves]), _environment(saves))
    try:
        # three in four let it come to its first step first; the others may hit it while it starts or loads
        until = rng.random() < 0.75
        deadline = time.monotonic() + (_START_S if until else rng.uniform(0.0, 2.0))
        while time.monotonic() < deadline and all(p.is_alive() for p in processes):
            if until and any(e[0] == "done" for e in entries(folder)[before:]):
                break
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, SPREAD_S[saves]))
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _call(folder: Path, steps: int, pause_s: float) -> training_ranks.Call:
    return training_ranks.Call("tests.benchmarks.kills:run_rank", folder, steps, pause_s)


def _environment(saves: str) -> dict[str, str]:
    return {"SYNERGY_BACKGROUND_SAVES": str(int(saves == "background"))}


def judge(folder: Path, result: Result) -> None:
    """Reads the ledger of all incarnations into `result`."""
    saved: dict[int, set[str]] = {}
    reached, last, under_way = 0, "up", False
    for kind, *rest in entries(folder):
        under_way = (under_way or kind == "saving") and kind not in ("written", "loaded")
        if kind == "up" and last != "up":
            result.at["saving" if last == "saving" else "training while saving" if under_way else "training"] += 1
            under_way = False
        elif kind == "up":
            result.at["starting"] += 1
        if kind == "saving":
            saved.setdefault(int(rest[0]), set()).add(rest[1])
        elif kind == "done":
            reached = max(reached, int(rest[0]))
        elif kind == "loaded":
            step, found = int(rest[0]), rest[1]
            if reached or saved:
                result.resumes += 1
                result.lost.append(reached - step)
            if step and found not in saved.get(step, set()):
                result.corrupt.append(f"step {step}: {found} is none of {sorted(saved.get(step, set()))}")
            reached = step
        last = last if kind == "written" else kind
    result.at["starting"] -= 1  # the first start follows none


def measure(count: int, ranks: int, folder: Path, seed: int = 0, saves: str = "background") -> Result:
    """`count` kills, then a run to the end that is compared with one left alone."""
    rng = random.Random(seed)
    result = Result()
    (folder / "killed").mkdir(parents=True)
    for number in range(count):
        incarnation(folder / "killed", ranks, saves, rng)
        result.kills += 1
        if number % 10 == 9:
            print(f"{number + 1} kills, at step {reached(folder / 'killed')}", file=sys.stderr, flush=True)
    end = reached(folder / "killed") + 2 * INTERVAL
    (folder / "alone").mkdir()
    ends = []
    for name in ("killed", "alone"):
        found, _ = training_ranks.run(folder / name / "ranks", ranks, _call(folder / name, end, 0.0), timeout_s=300)
        ends.append(found)
    judge(folder / "killed", result)
    result.same_end = ends[0] == ends[1]
    return result


def reached(folder: Path) -> int:
    return max((int(e[1]) for e in entries(folder) if e[0] == "done"), default=0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--saves", choices=("background", "waiting"), default="background")
    args = parser.parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args.count, args.ranks, Path(folder), args.seed, args.saves)
    at = ", ".join(f"{n} {what}" for what, n in sorted(result.at.items()))
    print(f"{result.kills} kills ({at}), {result.resumes} resumes, {time.monotonic() - began:.0f} s")
    print(f"lost steps: at most {max(result.lost, default=0)} of an interval of {INTERVAL}; "
          f"mean {sum(result.lost) / max(1, len(result.lost)):.2f}")  # fmt: skip
    print(f"corrupt loads: {len(result.corrupt)}", *result.corrupt, sep="\n  ")
    print(f"the end equals that of a run left alone: {result.same_end}")
    over = sum(n > INTERVAL for n in result.lost)
    print(f"resumes that lost more than the interval: {over}")
    most = INTERVAL if args.saves == "waiting" else 2 * INTERVAL - 1
    return 0 if not result.corrupt and max(result.lost, default=0) <= most and result.same_end else 1


if __name__ == "__main__":
    sys.exit(main())
