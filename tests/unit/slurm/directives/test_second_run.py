"""What can be seen of a script that does not get to its training a second time."""

from __future__ import annotations

import time

import pytest

from synergyd.slurm.directives.second_run import MAX_SCRIPT, second_run_problem, second_run_problems

HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:4\n#SYNERGY max_gpus=8\n"
TRAIN = "srun synergy-launch train.py\n"


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        ("set -e\nmkdir out\n", 5, "`mkdir` without -p"),
        ("set -euo pipefail\nmkdir -m 700 $SCRATCH/$SLURM_JOB_ID\n", 5, "mkdir"),
        ("set -o errexit\nX=1 mkdir out; cd out\n", 5, "mkdir"),
        ("set -e\nmkdir \\\n  out\n", 5, "mkdir"),
        ("set -e\nfor i in 1 2; do mkdir $i; done\n", 5, "mkdir"),
        ("set -e\ncd x && mkdir out\n", 5, "mkdir"),
        ("set -e\nln -s a b\n", 5, "`ln` without -f"),
        ("set -e\ngit clone https://x/y\n", 5, "git clone"),
        ("set -e\nmkfifo pipe\n", 5, "mkfifo"),
        ("set -C\n", 4, "set -C"),
        ('[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exit 1\n', 4, "SLURM_RESTART_COUNT"),
        ('if [ -n "$SLURM_RESTART_COUNT" ]; then\n  echo twice\n  exit 0\nfi\n', 6, "SLURM_RESTART_COUNT"),
    ],
)
def test_what_ends_a_second_run(lines: str, line: int, words: str) -> None:
    found = second_run_problem(HEAD + lines + TRAIN)
    assert found is not None and found[0] == line and words in found[1]


@pytest.mark.parametrize(
    "lines",
    [
        "mkdir out\n",  # without set -e the script goes on
        "set -e\nset +e\nmkdir out\nset -e\n",
        "set -e\nmkdir -p out\n",
        "set -e\nmkdir --parents out\n",
        "set -e\nmkdir out || true\n",
        "set -e\n[ -d out ] || mkdir out\n",
        "set -e\nif [ ! -d out ]; then\n  mkdir out\nfi\n",
        "set -e\nrm -rf out\nmkdir out\n",
        "set -e\nmkdir out-$(date +%s)\n",
        "set -e\nmkdir out.$SLURM_RESTART_COUNT\n",
        "set -e\n# mkdir out\n",
        "set -e\ncat > x <<'END'\nmkdir out\nEND\n",
        "set -e\nln -sfn a b\n",
        "set -e\ngit pull\n",
        'echo "run ${SLURM_RESTART_COUNT:-0}"\n[ -f data ] || exit 1\n',
        'if [ -n "$SLURM_RESTART_COUNT" ]; then echo again; fi\ncd data || exit 1\n',
        "set -e\necho 'not closed\nmkdir out'\n",
    ],
)
def test_what_does_not(lines: str) -> None:
    assert second_run_problem(HEAD + lines + TRAIN) is None


def test_only_what_stands_before_the_training_counts() -> None:
    assert second_run_problem(f"{HEAD}set -e\n{TRAIN}mkdir results\n") is None
    assert second_run_problem(f"{HEAD}set -e\nsrun prepare\nmkdir out\nsrun bash train.sh\nmkdir results\n") is not None
    assert second_run_problem("#!/bin/bash -e\nmkdir out\n" + TRAIN) is not None
    assert second_run_problem("#!/usr/bin/env python3\nmkdir = 1\n") is None
    assert second_run_problem("") is None


def test_all_are_named_and_a_hostile_script_takes_no_time() -> None:
    assert [line for line, _ in second_run_problems(f"{HEAD}set -e\nmkdir a\nmkdir b\n{TRAIN}")] == [5, 6]
    began_s = time.monotonic()
    for text in ("mkdir " + "a" * MAX_SCRIPT, "set -e\n" + "if x; then\n" * 50_000, "\\\n" * 100_000, "<<A\n" * 60_000):
        assert second_run_problem(HEAD + text) is None
    assert time.monotonic() - began_s < 60
