"""Every command that prints a table, in a terminal of 80, 100 and 160 columns: nothing sticks out, and no number is cut."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Plan
from synergy_core.usage import Usage
from synergy_core.would_have import WouldHave

from synergyd.control.decision_log import JobStatus
from synergyd.store.records import EpochRecord
from synergyd.store.store import open_store
from tests.unit.cli.test_forecast import write_history
from tests.unit.cli.test_usage import BEGIN_S

MARK = "#### "
CHILD = """
import sys
from synergyd.cli.profiles import table
from synergyd.cli.shared.console import console
from synergyd.cli.synergyctl import cli
from synergyd.jobmodel.fit.score import Score
for line in sys.argv[1:]:
    print("#### " + line, flush=True)
    if line == "profiles score":
        figures = dict(mape=0.12345, median=0.0912, p90=0.31, bias=-0.051, regret_mean=0.0123, regret_p90=0.05, top1=0.75)
        figures |= dict(spearman=0.98, memory_rows=123456, fit_rows=1, fit_called_oom=0, oom_rows=1, oom_called_fit=0)
        score = Score(rows=123456, groups=4321, memory_mape=0.0312, **figures)
        console().print(table({"a-file-with-a-rather-long-name-of-its-own.csv": score}))
        continue
    try:
        cli(line.split(), standalone_mode=False)
    except SystemExit:
        pass
"""
JOB = JobStatus(
    job_id=4711,
    name="pretraining-of-a-language-model",
    user="mina",
    state="RUNNING",
    lifecycle="RUNNING",
    gpus=1024,
    asked_gpus=512,
    wanted_gpus=2048,
    action="checkpoint awaited",
    relative_goodput=13.61,
    plan=Plan(tp=8, pp=16, dp=128),
    global_batch=16384,
    restarts=12,
    step=1234567,
    loss=2.5450,
    account="chem",
    partition="gpu",
)
PENDING = replace(
    JOB, job_id=4712, user="joao", state="PENDING", gpus=0, plan=None, step=None, loss=None, partition="gpu-test"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with large numbers, a slurm.conf with some settings, and a history."""
    folder = tmp_path_factory.mktemp("terminal")
    part = Usage(
        job_id=4711,
        user="mina-with-a-long-name",
        account="computational-chemistry",
        start_s=BEGIN_S,
        from_s=BEGIN_S,
        to_s=BEGIN_S + 1e6,
        gpus=1024,
        asked_gpus=512,
        trained_s=9e5,
        useful_gpu_s=6e8,
        sigma_gpu_s=1e7,
        nodes="n[1-128]",
        state="COMPLETED",
    )
    would = WouldHave(
        job_id=4713,
        submit_s=BEGIN_S,
        name="a-plain-job",
        user="mina",
        account="chem",
        asked_gpus=512,
        has_line=False,
        from_s=BEGIN_S,
        to_s=BEGIN_S + 1e6,
        wanted_gpus=1024,
        ran_s=4.4e6,
        useful_s=5.5e6,
        sigma_s=6e5,
        waited_s=3e5,
        sooner_s=2e5,
        changes=12,
    )
    with open_store(f"sqlite:///{folder}/synergy.db", create=True) as store:
        summary = {"plain_jobs": 35, "plain_held_gpus": 120}
        store.save_epoch(EpochRecord(BEGIN_S, 0.1, True, (), summary, present=(JOB, PENDING)))
        store.put_usage([part])
        store.put_would_have([would])
    (folder / "slurm.conf").write_text(f"#SYNERGY StateDir={folder} Epoch=5m DryRun=yes Partitions=gpu,gpu-test\n")
    write_history(folder / "history.txt")
    return folder


def run_in_terminal(folder: Path, columns: int, **environment: str) -> dict[str, list[str]]:
    """Run all commands in one process on a terminal of `columns`: the lines of each, as the terminal gets them."""
    database = f"--database sqlite:///{folder}/synergy.db"
    commands = (
        f"{database} status",
        f"{database} status --me",
        f"{database} status -u mina -p gpu --state running --sort -gpus",
        f"{database} usage",
        f"{database} usage 4711",
        f"{database} usage --would-have",
        "plan --model llama2-7b --gpus 8 --gpu-type a100",
        f"config check --conf {folder}/slurm.conf",
        f"forecast --history {folder}/history.txt",
        "simulate --trace generate:4 --policy fifo,synergy",
        "simulate --workload contention --policy srsf-1,ada-srsf --jobs 8",
        "profiles score",
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    usual = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    root = Path(__file__).parents[3]
    paths = os.pathsep.join(str(root / name) for name in (".", "launch", "sim", "sql"))
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *commands],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**usual, "TERM": "xterm-256color", "PYTHONPATH": paths, **environment},
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # the child has ended
            break
        if not read:
            break
        said += read
    os.close(ours)
    assert child.wait() == 0, said.decode()[-3000:]
    of: dict[str, list[str]] = {}
    for line in said.decode().replace("\r\n", "\n").split("\n"):
        if line.startswith(MARK):
            of[current := line.removeprefix(MARK).replace(f"{database} ", "")] = []
        elif of:
            of[current].append(line)
    assert len(of) == len(commands)
    return of


def without_styles(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).split("\r")[-1]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 100, 160])
def test_every_table_fits_and_no_number_is_cut(folder: Path, columns: int) -> None:
    of = run_in_terminal(folder, columns)
    for command, raw in of.items():
        lines = [without_styles(line) for line in raw]
        assert not any("Traceback" in line for line in lines), (command, lines)
        wide = [line for line in lines if len(line) > columns and "http" not in line and str(folder) not in line]
        assert wide == [], command
        assert [line for line in lines if re.search(r"\d…|…\d", line)] == [], command
    status = "\n".join(map(without_styles, of["status"]))
    assert "2 jobs: 1 holds 1024 GPUs (asked for 512), 1 waits for 512" in status and "13.61x" in status
    assert "35 plain jobs" in " ".join(status.split()) and ("2.5450" in status) == (columns >= 100)
    filtered = "\n".join(map(without_styles, of["status -u mina -p gpu --state running --sort -gpus"]))
    assert "4711" in filtered and "4712" not in filtered
    usage = "\n".join(map(without_styles, of["usage"]))
    assert "284444.44" in usage and "KNOWN" in usage  # in a column, or among those that are not shown
    would = "\n".join(map(without_styles, of["usage --would-have"]))
    assert "+305.6 ± 166.7" in would and "+25.0 % ± 13.6" in would
    first = of["plan --model llama2-7b --gpus 8 --gpu-type a100"]
    heads = next(without_styles(line) for line in first if "tokens/s" in line)
    assert len(re.split(r"  +", heads.strip())) <= 7


@pytest.mark.slow
def test_colour_only_where_the_terminal_and_the_user_want_it(folder: Path) -> None:
    colour = re.compile(r"\x1b\[(?:[0-9;]*;)?3[0-7]m")
    assert colour.search("\n".join(run_in_terminal(folder, 100)["status"]))
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        of: dict[str, Any] = run_in_terminal(folder, 100, **environment)
        assert not any(colour.search(line) for lines in of.values() for line in lines), environment
