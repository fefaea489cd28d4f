"""The three commands from outside: help, versions, completion, exit codes, JSON, and what strangers may write into a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from synergy_core.errors import UnavailableError, UsageError
from synergy_core.job_report import Report
from synergy_core.reasons import text_reason
from synergy_core.records import CALLED, NAMED, Action, Alternative, Cell, Decision, Plan, Shape
from synergy_core.shared_links import SharedLink, Sharing
from synergy_core.wire.admin_comment import AdminCommentStamp, encode

from synergyd import __version__
from synergyd.cli.shared.context import Context, run_command_line
from synergyd.cli.synergyctl import VERBS, cli
from synergyd.settings import Settings
from synergyd.store.records import EpochRecord, StoredEvent, StoredLifecycle, StoredReport
from synergyd.store.store import open_store

ROOT = Path(__file__).parents[3]
EVIL = "\x1b]0;owned\x07\x1b[2J[bold]x[/bold]\nrow \u202e"
CELL = Cell(Shape("a100", 1, 4), Plan(tp=2, dp=2, micro_batch=1, global_batch=8), 10.0, 0.9, 9.0, 0.8, 2**33)
PROGRAMS = {
    "synergyctl": "synergyd.cli.synergyctl",
    "synergyd": "synergyd.cli.synergyd",
    "synergy-launch": "synergy_launch.launcher.command",
}


def program(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SYNERGY", "_SYNERGY"))}
    return subprocess.run([sys.executable, "-m", PROGRAMS[name], *words], cwd=ROOT, env={**kept, **environment}, capture_output=True,
                          text=True, timeout=120)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_help_version_and_completion(name: str) -> None:
    told = program(name, "--help")
    assert told.returncode == 0 and len(told.stdout.splitlines()) > 15 and "completion" in told.stdout
    version = program(name, "--version")
    assert (version.returncode, version.stdout) == (0, f"{name}, version {__version__}\n")
    variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
    script = program(name, **{variable: "bash_source"})
    assert script.returncode == 0 and "complete" in script.stdout and name in script.stdout
    assert subprocess.run(["bash", "-n"], input=script.stdout, text=True, check=False).returncode == 0
    offered = program(name, **{variable: "bash_complete", "COMP_WORDS": f"{name} --ver", "COMP_CWORD": "1"})
    assert "--version" in offered.stdout
    wrong = program(name, "--nonsense")
    assert wrong.returncode == 2 and "--nonsense" in wrong.stderr and "Traceback" not in wrong.stderr


@pytest.mark.slow
def test_completion_offers_the_verbs() -> None:
    found = program("synergyctl", _SYNERGYCTL_COMPLETE="bash_complete", COMP_WORDS="synergyctl ", COMP_CWORD="1")
    assert {line.partition(",")[2] for line in found.stdout.splitlines()} == set(VERBS)


def test_help_alone_needs_no_heavy_import() -> None:
    words = (
        "import sys; from synergyd.cli.synergyctl import cli; cli(['--help'], standalone_mode=False); "
        "sys.exit(bool({'scipy', 'sqlalchemy', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, timeout=120).returncode == 0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 's.db'}"


@pytest.fixture
def filled(url: str) -> str:
    """One job with everything that a stranger may name himself."""
    decision = Decision(
        7,
        Action.RESIZE,
        CELL,
        ("n1",),
        text_reason(f"grows {EVIL}"),
        1.5,
        (Alternative(CELL, text_reason(f"less {EVIL}")[0]),),
    )
    row = {"job_id": 7, "name": EVIL, "user": EVIL, "state": "RUNNING", "lifecycle": "RUNNING", "gpus": 2, "asked_gpus": 2,
           "plan": {"tp": 1, "pp": 1, "dp": 2, "micro_batch": 1}, "global_batch": 8, "restarts": 1, "step": 3, "loss": 0.25,
           "wanted_gpus": 4, "wanted_nodes": ["n1"], "action": "resize", "why": EVIL, "relative_goodput": 1.5, "paused": False,
           "held": False}  # fmt: skip
    with open_store(url, create=True) as store:
        store.save_epoch(EpochRecord(1000.0, 0.1, False, (decision,), present=(row,)))
        store.append_events([StoredEvent(7, 1000.0, "RUNNING", "Observed", f"started {EVIL}")])
        store.put_lifecycles([StoredLifecycle(7, 0.0, "CHECKPOINTING", {}, 1000.0)])
        store.put_reports([StoredReport(Report(7, 1, 44, loss=1.25, note=EVIL), 1000.0)])
    return url


def ctl(url: str, *words: str) -> Result:
    """As `run_command_line` runs it, in this process."""
    return CliRunner().invoke(cli, ["--database", url, *words])


def shown(result: Result) -> str:
    assert result.exception is None or isinstance(result.exception, SystemExit | UsageError), result.exception
    return result.output + (str(result.exception) if isinstance(result.exception, UsageError) else "")


@pytest.mark.parametrize("words", [["status"], ["status", "7"], ["explain", "7"]])
def test_nothing_of_a_strangers_reaches_the_terminal_as_it_is(filled: str, words: list[str]) -> None:
    result = ctl(filled, *words)
    assert result.exit_code == 0
    assert all(c.isprintable() or c == "\n" for c in result.output)
    assert "\\x1b" in result.output and "\nrow" not in result.output


@pytest.mark.parametrize("words", [["status", "--json"], ["status", "7", "--json"], ["explain", "7", "--json"]])
def test_json_is_whole_and_printable(filled: str, words: list[str]) -> None:
    result = ctl(filled, *words)
    assert result.exit_code == 0 and result.output.isascii() and "\x1b" not in result.output
    data = json.loads(result.output)
    if words[0] == "status":
        (job,) = data["jobs"]
        assert (job["name"], job["lifecycle"], job["step"], job["loss"]) == (EVIL, "CHECKPOINTING", 44, 1.25)
        assert (job["wanted_gpus"], job["action"], job["relative_goodput"]) == (4, "checkpoint awaited", 1.5)
    else:
        assert (
            data["decision"]["action"] == "resize"
            and data["lifecycle"] == "CHECKPOINTING"
            and len(data["alternatives"]) == 1
        )
        assert data["story"][0]["event"] == "Observed" and data["report"]["step"] == 44


def test_explain_tells_decision_alternatives_and_story(filled: str) -> None:
    text = ctl(filled, "explain", "7").output
    for words in (
        "job 7, CHECKPOINTING",
        "resize",
        "tp 2, pp 1, dp 2",
        "goodput 9",
        "1.50 times",
        "alternatives",
        "the job says",
        "story",
    ):
        assert words in text


def test_explain_tells_who_shares_links(url: str) -> None:
    cost = Sharing(1.25, "nic:n1", (SharedLink("nic:n1", (8,)), SharedLink(f"leaf:{EVIL}", (8, 9))))
    with open_store(url, create=True) as store:
        decision = Decision(7, Action.KEEP, CELL, ("n1", "n2"), text_reason("keeps"), sharing=cost)
        store.save_epoch(
            EpochRecord(1000.0, 0.1, False, (decision, Decision(8, Action.KEEP, CELL, ("n1",), text_reason("keeps"))))
        )
    text = ctl(url, "explain", "7").output
    assert "links     shares the network of n1 with job 8" in text and "with jobs 8, 9" in text
    assert "steps take 1.25 times as long: goodput 7.2 in place of 9 sequences/s" in text
    assert json.loads(ctl(url, "explain", "7", "--json").output)["decision"]["sharing"]["slowdown"] == 1.25
    assert EVIL not in text and "links" not in ctl(url, "explain", "8").output


def test_status_without_an_epoch(url: str) -> None:
    open_store(url, create=True).close()
    assert "no epoch yet" in ctl(url, "status").output
    assert json.loads(ctl(url, "status", "--json").output) == {
        "format": 1,
        "epoch_s": None,
        "dry_run": False,
        "stale_since_s": None,
        "plain_jobs": None,
        "plain_held_gpus": None,
        "jobs": [],
        "bad_nodes": [],
        "waiting": [],
    }


def test_pause_and_resume(filled: str) -> None:
    assert ctl(filled, "pause", "7").exit_code == 0
    with open_store(filled) as store:
        assert store.paused_jobs() == {7}
    assert "paused" in ctl(filled, "explain", "7").output
    assert ctl(filled, "resume", "7").exit_code == 0
    with open_store(filled) as store:
        assert store.paused_jobs() == frozenset()


@pytest.fixture
def named(url: str) -> str:
    """Tasks 1 and 2 of array 70, of which the second has ended, the others of it, and the second component of job 80."""
    row = {"name": "", "user": "", "state": "PENDING", "lifecycle": "QUEUED", "gpus": 0, "asked_gpus": 2}
    names = {71: "70_1", 70: "70_[3-9:3,20]", 81: "80+1"}
    present = tuple({**row, "job_id": i, "slurm_name": name} for i, name in names.items())
    decisions = tuple(Decision(i, Action.WAIT, None, (), text_reason(f"why {i}")) for i in (*names, 72, 91))
    with open_store(url, create=True) as store:
        store.save_epoch(EpochRecord(1000.0, 0.1, False, decisions, present=present))
        for job_id, name in ((60, "70_2"), (72, "70_2"), (91, "90+1")):
            words = CALLED.format(name)
            store.append_events([StoredEvent(job_id, 1000.0 + job_id, "QUEUED", NAMED, words)])
    return url


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "job"),
    [("70_1", 71), ("70_2", 72), ("80+1", 81), ("80", 81), ("90", 91), ("90+1", 91), ("70", 70), ("071", 71)],
)
def test_jobs_go_by_the_names_that_slurm_shows(named: str, name: str, job: int) -> None:
    assert json.loads(ctl(named, "explain", name, "--json").output)["job_id"] == job
    for verb, paused in (("pause", {job}), ("resume", set())):
        assert ctl(named, verb, name).exit_code == 0
        with open_store(named) as store:
            assert store.paused_jobs() == paused
    if job in (70, 71, 81):
        assert [j["job_id"] for j in json.loads(ctl(named, "status", name, "--json").output)["jobs"]] == [job]
        assert {71: "70_1", 70: "70_[3-9:3,20]", 81: "80+1"}[job] in ctl(named, "status", name).output


@pytest.mark.parametrize("verb", ["status", "explain", "pause", "resume", "render"])
@pytest.mark.parametrize("name", ["70_6", "70_20"])
def test_a_task_that_is_no_job_of_its_own_yet(named: str, verb: str, name: str) -> None:
    problem = ctl(named, verb, name).exception
    assert isinstance(problem, UsageError) and f"job {name} waits in its array" in str(problem).replace(":", "")


@pytest.mark.parametrize("verb", ["status", "explain", "pause", "resume", "render"])
@pytest.mark.parametrize("name", ["8", "8_1", "8+1", "7_0"])
def test_a_job_nobody_knows_is_one_line(filled: str, verb: str, name: str) -> None:
    result = ctl(filled, verb, name)
    assert (
        isinstance(result.exception, UsageError)
        and f"job {name}" in str(result.exception)
        and "\n" not in str(result.exception)
    )


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["status", "explain", "pause", "resume", "render"])
@pytest.mark.parametrize(
    "job", ["x", "0", "-1", "99999999999999999999", "4294967296", "7_", "7_x", "_1", "7+", "7_1_1", "7_1+1", "²_1"]
)
def test_no_job_id(filled: str, verb: str, job: str) -> None:
    result = ctl(filled, verb, "--", job)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit) and "JOB" in result.output


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:////nowhere/x.db", "nowhere"),
        ("nonsense", "URL"),
        ("sqlite:///", ""),
        ("mysql://u:secret@h/d", "mysql"),
    ],
)
def test_a_wrong_database_is_one_line_without_its_password(url: str, says: str) -> None:
    result = ctl(url, "status")
    assert (
        isinstance(result.exception, UsageError)
        and says in str(result.exception)
        and "secret" not in str(result.exception)
    )


def test_an_unknown_verb_and_no_verb() -> None:
    result = CliRunner().invoke(cli, ["stauts"])
    assert result.exit_code == 2 and "No such command 'stauts'" in result.output
    assert set(VERBS) <= set(CliRunner().invoke(cli, []).output.split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    result = CliRunner().invoke(cli, [verb, "--help"])
    assert result.exit_code == 0 and len(result.output.splitlines()) >= 6


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for error, code in (
        (UsageError("a", "b", "c"), 2),
        (UnavailableError("a", "b\x1b", "c"), 1),
        (BrokenPipeError(), 0),
    ):

        def fails(error: Exception = error) -> None:
            raise error

        with pytest.raises(SystemExit) as end:
            run_command_line("synergyctl", fails)
        assert end.value.code == code
    assert capsys.readouterr().err == "synergyctl: a: b; c\nsynergyctl: a: b\\x1b; c\n"


@pytest.mark.slow
def test_no_slurm_conf_is_one_line_from_both_commands(tmp_path: Path) -> None:
    for name, words in (("synergyctl", ["status"]), ("synergyd", ["--once"]), ("synergyctl", ["config", "check"])):
        done = program(name, *words, SLURM_CONF=str(tmp_path / "missing.conf"), PATH="/nowhere")
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "missing.conf" in done.stderr


def test_a_wrong_slurm_conf_is_told_before_the_solver_is_loaded(tmp_path: Path) -> None:
    started = "import sys\nfrom synergyd.cli.synergyd import main\ntry:\n    main()\nfinally:\n    print('scipy' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", started, "--once"],
        cwd=ROOT,
        env={**os.environ, "SLURM_CONF": str(tmp_path / "missing.conf")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (told.returncode, told.stdout) == (2, "False\n")


def test_conf_of_the_command_line_reaches_every_verb(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=x\n#SYNERGY StateDir={tmp_path} Epoch=77\n")
    told = json.loads(CliRunner().invoke(cli, ["--conf", str(conf), "config", "check", "--json"]).output)
    assert told["conf"] == str(conf) and {"key": "Epoch", "value": "77s", "origin": f"{conf}:2"} in told["settings"]
    made = CliRunner().invoke(cli, ["--conf", str(conf), "db", "upgrade"])
    assert made.exit_code == 0 and (tmp_path / "synergy.db").exists()
    assert CliRunner().invoke(cli, ["--conf", str(conf), "status"]).exit_code == 0
    conf.write_text("#SYNERGY Epoch=soon\n")
    wrong = CliRunner().invoke(cli, ["--conf", str(conf), "status"])
    assert isinstance(wrong.exception, UsageError) and f"{conf}:1" in str(wrong.exception)


def test_render(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slurm:
        script: str | None = (
            "#!/bin/bash\n#SYNERGY checkpoint=/ck\nsrun synergy-launch 'my train.py' --a 1 2>&1 | tee log\n"
        )

        def batch_script(self, job_id: int) -> str | None:
            return self.script

        comment = ""

        def job(self, job_id: int) -> None:
            return None

        def admin_comment(self, job_id: int) -> str:
            return self.comment

    monkeypatch.setattr("synergyd.cli.render.CommandLine", Slurm)
    text = ctl(filled, "render", "7").output
    assert "'my train.py' \\\n  --a 1\n" in text and "tee" not in text and "SYNERGY_CHECKPOINT_DIR=/ck" in text
    assert all(c.isprintable() or c == "\n" for c in text) and "#SBATCH --gres=gpu:a100:4" in text
    # whose batch the plan's is stands in the stamp: by the directive alone it would be the script's own
    assert "SYNERGY_OWN_BATCH=1" in text
    for own in (False, True):
        stamp = AdminCommentStamp(plan=Plan(), own_batch=own, requested_shape=Shape("a100", 1, 8))
        Slurm.comment = encode(stamp)
        assert ("SYNERGY_OWN_BATCH=1" in ctl(filled, "render", "7").output) == own
    # a Megatron-LM script without a batch has one micro-batch a replica of the sbatch line's 8 GPUs
    Slurm.script = "#!/bin/bash\nsrun synergy-launch pretrain_gpt.py --num-layers 8 --micro-batch-size 3\n"
    assert "--global-batch-size 24" in ctl(filled, "render", "7").output
    Slurm.script = None
    assert "Slurm has no script" in shown(ctl(filled, "render", "7"))
    Slurm.script = "#!/bin/bash\ntorchrun x\n"
    assert "synergy-launch" in shown(ctl(filled, "render", "7"))


def test_context_reads_settings_only_when_needed(filled: str) -> None:
    context = Context(Path("/nowhere/slurm.conf"), filled)
    with context.store() as store:
        assert store.lifecycles()
    with pytest.raises(UsageError, match="nowhere"):
        _ = context.settings
    assert Settings().database_url() == "sqlite:////var/lib/synergy/synergy.db"


def test_check_names_what_a_second_run_would_not_get_past(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    text = "#!/bin/bash\n#SYNERGY max_gpus=8{}\nset -e\nmkdir out\nsrun synergy-launch train.py\n"
    script.write_text(text.format(""))
    told = CliRunner().invoke(cli, ["check", str(script)])
    assert told.exit_code == 0 and "line 4: `mkdir` without -p" in told.output
    script.write_text(text.format(" resize=no"))
    assert "mkdir" not in CliRunner().invoke(cli, ["check", str(script)]).output


SCRIPTS = {
    "trainer.py": "from transformers import Trainer, TrainingArguments\ntrainer = Trainer(args)\n",
    "loop.py": "import model\n",
    "model.py": "import torch\n",
    "light.py": "import lightning\n",
}


@pytest.mark.parametrize(
    ("line", "keys", "rows"),
    [
        (
            "torchrun --nproc-per-node 4 trainer.py --output_dir /s/out --per_device_train_batch_size=16",
            "",
            [
                "command       synergy-launch ",
                "trainer       Trainer",
                "checkpoint    Trainer's own, /s/out/checkpoint-N",
                "batch         16 a GPU x 1 x 8 GPUs = 128",
                "can change    dp and the batch, with no line changed",
            ],
        ),
        (
            "loop.py --batch_size 8",
            "checkpoint=/s/out loop=gpu:--batch_size",
            [
                "trainer       a loop of its own, by model.py",
                "checkpoint    the script's own, in /s/out",
                "batch         --batch_size 8 x 8 GPUs = 64",
                "can change    dp, at the script's own checkpoints; the batch stays",
            ],
        ),
        (
            "light.py",
            "global_batch=64:256",
            [
                "trainer       Lightning",
                "checkpoint    no folder is named",
                "batch         64:256 by the directive; the script's own",
                "can change    dp and the batch, with no line changed, if fit(...) gets a DataLoader",
            ],
        ),
        ("gpt.py --num-layers 2 --micro-batch-size 2 --save /s", "", ["can change    tp, pp, dp and the batch, with no line changed"]),
        ("none.py", "", ["trainer       unknown: none.py is not here, or can't be read", "can change    nothing is known"]),
        ("torchrun --nproc-per-node 8 loop.py", "", ["command       it is to start 8 processes on a node, but the job has 4 GPUs"]),
        ("torchrun --tee 3 loop.py", "", ["command       option --tee has no equivalent here; synergy-launch train.py ...,"]),
    ],
)  # fmt: skip
def test_check_shows_what_the_launcher_detects_at_80_columns(
    tmp_path: Path, line: str, keys: str, rows: list[str]
) -> None:
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    script = tmp_path / "train.sh"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:a100:4\n#SYNERGY max_gpus=8 {keys}\nsrun synergy-launch {line}\n"
    )
    told = CliRunner().invoke(cli, ["check", str(script)])
    assert told.exit_code == 0, told.output
    table = told.output.splitlines()
    joined = re.sub(r"\n {14}", " ", told.output)
    for row in rows:
        assert f"\n{row}" in joined
    assert all(len(shown) <= 80 for shown in table if not shown.startswith(str(script)))
    if line.startswith("loop"):
        assert next(shown for shown in table if shown.startswith("versions")).startswith("versions      torch ")
