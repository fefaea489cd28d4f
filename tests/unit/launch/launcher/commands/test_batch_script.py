"""`synergyctl render`'s scripts: golden files, bash's own opinion of them, and the words that reach torchrun.

After a change that is meant: `python -m tests.unit.launch.launcher.commands.test_batch_script` writes the golden files anew; read them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.records import Plan, Shape
from synergy_launch.launcher.commands.batch_script import (
    MAX_INPUT_BYTES,
    MAX_OUTPUT_BYTES,
    ScriptRequest,
    find_command,
    render,
    split_words,
)

GOLDEN = Path(__file__).parents[4] / "cases" / "golden"
PLAN = Plan(tp=2, pp=2, dp=2, micro_batch=1, global_batch=16, recompute="selective", sequence_parallel=True)
HOSTILE = ("$(touch owned)", "`touch owned`", "'; touch owned; '", '"; touch owned; "', "a\nb\ttouch owned\n", "ünï中\u202e", "",
           "-n", "--x=$HOME", "\\", "\\\n", "!!", "*", "~", "#SBATCH --uid=0", "| touch owned", "> owned")  # fmt: skip
REQUESTS = {
    "single_node": ScriptRequest(
        job_name="gpt",
        command=("train.py", "--steps", "10", "data.bin"),
        shape=Shape("a100", 1, 4),
        plan=Plan(dp=4, global_batch=8),
    ),
    "multi_node": ScriptRequest(
        job_name="gpt",
        command=("train.py", "--steps", "10"),
        shape=Shape("a100", 2, 4),
        plan=Plan(dp=8, global_batch=8),
        nodes=("n1", "n2"),
        checkpoint="/ckpt",
        why="grows",
    ),
    "module": ScriptRequest(
        job_name="gpt", command=("-m", "my.package", "run", "--steps", "10", "20"), shape=Shape("", 1, 1)
    ),
    "megatron": ScriptRequest(
        job_name="llama",
        command=(
            "pretrain_gpt.py",
            "--num-layers",
            "4",
            "--num-attention-heads=8",
            "--tensor-model-parallel-size",
            "8",
            "--data-path",
            "0.3",
            "a b",
            "0.7",
            "c",
            "--lr",
            "1e-4",
        ),
        shape=Shape("h100", 2, 4),
        plan=PLAN,
        nodes=("n1", "n2"),
        checkpoint="/scratch/ck pt",
    ),
    "hostile": ScriptRequest(
        job_name="x\n#SBATCH --uid=0\n$(touch owned) 'é\" \x1b[31m",
        command=("tr'ain $(touch owned).py", "--name", *HOSTILE),
        shape=Shape("a100", 1, 2),
        plan=Plan(dp=2, global_batch=2),
        nodes=("n'1", "$(touch owned)"),
        checkpoint="/ck'pt\n$(touch owned)",
        why="because\nrm -rf / \x1b]0;owned\x07",
        environment={"A": "'\n$(touch owned)"},
    ),
    "hostile_module": ScriptRequest(
        job_name="m",
        command=("-m", "pa'ckage", *HOSTILE),
        shape=Shape("a100", 2, 1),
        plan=None,
        nodes=(),
        checkpoint="-rf",
    ),
}
STUBS = {
    "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "torchrun": 'printf "%s\\0" "$@" > "$OUT"; printf "%s\\0" "${SYNERGY_CHECKPOINT_DIR-}" "${A-}" > "$OUT.env"\n',
    "scontrol": "echo n1; echo n2\n",
}


def test_a_script_says_what_its_replicas_exchange() -> None:
    text = render(
        ScriptRequest(
            job_name="gpt",
            command=("train.py",),
            shape=Shape("a100", 2, 4),
            plan=Plan(dp=8, global_batch=8, exchange="local:8"),
        )
    )
    assert "export SYNERGY_COMM=local:8\n" in text and ", exchange local:8\n" in text and '"exchange"' not in text


@pytest.mark.parametrize("name", REQUESTS)
def test_golden(name: str) -> None:
    assert render(REQUESTS[name]) == (GOLDEN / f"{name}.sh").read_text()


def test_degrees_beyond_the_usual_are_told_and_reach_megatron() -> None:
    plan = Plan(tp=2, pp=2, vpp=2, cp=2, dp=1, micro_batch=1, global_batch=16)
    words = ("pretrain_gpt.py", "--num-layers", "8", "--num-attention-heads", "8")
    text = render(ScriptRequest(job_name="llama", command=words, shape=Shape("h100", 1, 8), plan=plan))
    assert "# plan: tp 2, pp 2, vpp 2, cp 2, dp 1, micro-batch 1" in text
    assert "--context-parallel-size 2" in text and "--num-layers-per-virtual-pipeline-stage 2" in text


def test_every_golden_file_is_tested() -> None:
    assert {p.stem for p in GOLDEN.glob("*.sh")} == set(REQUESTS)


@pytest.mark.parametrize("name", REQUESTS)
def test_bash_reads_it_and_every_word_arrives_as_it_was(name: str, tmp_path: Path) -> None:
    request, text = REQUESTS[name], render(REQUESTS[name])
    checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    programs = tmp_path / "programs"
    programs.mkdir()
    for program, body in STUBS.items():
        (programs / program).write_text(f"#!/bin/bash\n{body}")
        (programs / program).chmod(0o755)
    script, out, work = tmp_path / "job.sh", tmp_path / "out", tmp_path / "work"
    script.write_text(text)
    work.mkdir()
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "5", "SLURM_NODEID": "1",
                   "SLURM_JOB_NODELIST": "n[1-2]", "OUT": str(out), "HOME": "/expanded"}  # fmt: skip
    subprocess.run(["bash", str(script)], cwd=work, env=environment, check=True, timeout=20)
    words = out.read_bytes().decode().split("\0")[:-1]
    own = words.index(request.command[0])
    assert list(work.iterdir()) == []  # nothing was run that should only have been said
    if name != "megatron":
        assert tuple(words[own:]) == request.command
    options = words[:own]
    assert options[:4] == ["--nnodes", str(request.shape.nodes), "--nproc-per-node", str(request.shape.gpus_per_node)]
    many = ["--node-rank", "1", "--master-addr", "n1", "--master-port"]
    if request.shape.nodes > 1:  # at a port that nobody can foretell
        assert 15000 <= int(options.pop()) < 32000
    assert options[4:] == (many if request.shape.nodes > 1 else ["--standalone"])
    checkpoint, a, _ = (tmp_path / "out.env").read_bytes().decode().split("\0")
    assert (checkpoint, a) == (request.checkpoint, request.environment.get("A", ""))


@pytest.mark.parametrize("name", REQUESTS)
def test_options_for_slurm_stay_on_lines_of_their_own(name: str) -> None:
    lines = render(REQUESTS[name]).splitlines()
    options = [line for line in lines[: lines.index("set -euo pipefail")] if line.startswith("#SBATCH")]
    assert len(options) == 5 + bool(REQUESTS[name].nodes)
    assert not any("uid=0" in line and not line.startswith("#SBATCH --job-name='x\\n") for line in options)
    assert all(c.isprintable() for line in lines for c in line)  # safe to look at on a terminal


def test_a_variables_name_is_no_place_for_commands() -> None:
    for name in ("A;touch owned", "A=1 B", "", "1A", "Ä"):
        with pytest.raises(UsageError, match="no variable's name"):
            render(ScriptRequest(job_name="x", command=("t.py",), shape=Shape("", 1, 1), environment={name: ""}))


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("srun synergy-launch train.py --a 1", ("train.py", "--a", "1")),
        ("srun -n2 \\\n  synergy-launch \\\n train.py \\\n --a 'b c'", ("train.py", "--a", "b c")),
        ("/opt/x/synergy-launch --checkpoint /c --style=env -- train.py -m", ("train.py", "-m")),
        ("synergy-launch -m pkg.train --x", ("-m", "pkg.train", "--x")),
        ("synergy-launch /venv/bin/python -u train.py --x", ("train.py", "--x")),
        ("synergy-launch torchrun --nproc-per-node $N -m pkg.train --x", ("-m", "pkg.train", "--x")),
        ("synergy-launch --global-batch 64:1024 train.py --x", ("train.py", "--x")),
        ("synergy-launch train.py 2>&1 | tee log.txt", ("train.py",)),
        ("cd /x && A=1 srun synergy-launch train.py --q 'a|b;c' \"d&e\" f\\;g > log || exit 1", ("train.py", "--q", "a|b;c", "d&e", "f;g")),
        ("if ! synergy-launch train.py --n 2; then exit 3; fi", ("train.py", "--n", "2")),
        ("echo it | synergy-launch train.py $DATA \"$(nproc | head)\" &", ("train.py", "$DATA", "$(nproc | head)")),
        ("synergy-launch train.py # 'a remark", ("train.py",)),
        ("#synergy-launch no.py\necho synergy-launcher\nsynergy-launch yes.py", ("yes.py",)),
        ("srun bash -lc 'cd /x; synergy-launch torchrun --nproc-per-node 4 train.py \"$DATA\"'", ("train.py", "$DATA")),
        ("synergy-launch --nnodes 1 --nproc-per-node 4 train.py", ("train.py",)),
        ("synergy-launch train.py --id 5>log", ("train.py", "--id")),  # bash takes the 5 for a file descriptor too
    ],
)  # fmt: skip
def test_command_of_a_batch_script(line: str, argv: tuple[str, ...]) -> None:
    assert find_command(f"#!/bin/bash\n#SYNERGY model=x\nmodule load y\n{line}\nwait\n") == argv


@pytest.mark.parametrize(
    "script", ["", "#!/bin/bash\ntorchrun train.py\n", "synergy-launch\n", "synergy-launch --runner python\n"]
)
def test_no_command(script: str) -> None:
    with pytest.raises(UsageError, match="has no line with synergy-launch"):
        find_command(script)


@pytest.mark.parametrize("script", ["synergy-launch 'x\n", 'synergy-launch "x\n', "ls | synergy-launch x '"])
def test_quotes_that_do_not_close_name_the_line(script: str) -> None:
    with pytest.raises(UsageError, match="line 2"):
        find_command(f"#!/bin/bash\n{script}")


@pytest.mark.parametrize("word", HOSTILE)
def test_rendering_what_was_read_gives_the_words_back(word: str) -> None:
    if "\n" not in word:
        assert find_command(f"srun synergy-launch train.py --a {shlex.quote(word)} | cat") == ("train.py", "--a", word)


@pytest.mark.parametrize("line", ["x" * 4_000_000, "'" * 4_000_000, "synergy-launch t.py " + "a " * 2_000_000])
def test_a_script_beyond_the_bound_costs_nothing(line: str) -> None:
    began = time.process_time()
    with pytest.raises(UsageError, match=r"script of 40000\d\d bytes: at most 65536 are rendered"):
        find_command(f"synergy-launch {line}")
    assert time.process_time() - began < 0.5


WIDE = (
    "a",
    "''",
    "a ",
    "\\a",
    '\\"',
    "$(a",
    "`a",
    "|",
    "-- ",
    "\x01",
    " 1",
    "'\"'",
    "é",
    "#",
    "synergy-launch ",
    "\nsynergy-launch \\",
)


@pytest.mark.slow
@pytest.mark.parametrize("piece", WIDE)
def test_a_script_at_the_bound_is_read_and_rendered_in_linear_time(piece: str) -> None:
    """Ten such scripts of 64 kB: about a second."""
    size = len(piece.encode())
    words = "synergy-launch t.py " + piece * ((MAX_INPUT_BYTES - 100) // size)
    began = time.process_time()
    for _ in range(10):
        try:
            text = render(
                ScriptRequest(
                    job_name="x", command=find_command(words), shape=Shape("", 1, 1), plan=PLAN, style="megatron"
                )
            )
            assert len(text.encode()) <= MAX_OUTPUT_BYTES
        except UsageError as error:
            assert "batch script line" in str(error)
    assert time.process_time() - began < 10


def test_what_is_rendered_is_bounded() -> None:
    with pytest.raises(UsageError, match=r"rendered script: script of \d+ bytes: at most 1048576 are rendered"):
        render(ScriptRequest(job_name="x", command=("t.py", "'" * 300_000), shape=Shape("", 1, 1)))


@pytest.mark.slow
@given(st.text(alphabet="ab1- '\"\\#$`\t\r\x0b\u2028é", max_size=20))
@settings(max_examples=2000, deadline=None)
def test_formatting_are_split_as_shlex_splits_them(line: str) -> None:
    def outcome(split: Callable[[str], list[str]]) -> list[str] | str:
        try:
            return split(line)
        except ValueError as error:
            return str(error)

    assert outcome(split_words) == outcome(lambda text: shlex.split(text, comments=True))


def test_numbers_that_python_refuses_to_read_count_as_not_said() -> None:
    command = ("t.py", "--num-layers", "9" * 5000, "--global-batch-size", "9" * 5000, "--micro-batch-size", "1")
    assert "9999" in render(
        ScriptRequest(job_name="x", command=command, shape=Shape("", 1, 4), plan=Plan(dp=4, global_batch=8))
    )


if __name__ == "__main__":
    for golden, made in REQUESTS.items():
        (GOLDEN / f"{golden}.sh").write_text(render(made))


def test_a_batch_that_nobody_chose_is_the_scripts_own() -> None:
    plan = Plan(dp=4, micro_batch=4, global_batch=64)
    shape = Shape("", 1, 4)
    words = ("pretrain_gpt.py", "--num-layers", "2", "--micro-batch-size", "1", "--global-batch-size", "24")
    text = render(ScriptRequest(job_name="a", command=words, shape=shape, plan=plan, own_batch=True))
    assert "--global-batch-size 24" in text and "micro-batch 3, global batch 24" in text
    other = render(ScriptRequest(job_name="a", command=("t.py",), shape=shape, plan=plan, own_batch=True))
    assert "export SYNERGY_OWN_BATCH=1" in other and "global batch of the script" in other
