"""slurm_plugins/synergy.lua and its hook on whole jobs, in each Lua there is."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from synergyd.slurm.directives.directive import calls_launcher, notes
from synergyd.slurm.directives.setup import NOT_LOADED
from tests.unit.plugin.lua_runtimes import PLUGIN
from tests.unit.plugin.submit_world import HOOK, RESIZABLE, SCRIPT, Controller

UNREAD = "it stands after the first command, so it is not read; move it above the first command"


def test_a_good_job_is_stamped_and_put_off(slurm: Controller, tmp_path: Path) -> None:
    before = time.time()
    outcome = slurm.submit(SCRIPT)
    assert (outcome.rc, outcome.said) == (0, [])
    assert outcome.job["admin_comment"] == "synergy:1 model=llama2-7b max_gpus=16"
    assert outcome.job["comment"] == "theirs"
    assert outcome.job["requeue"] == 1
    assert int(before) + 20 <= outcome.job["begin_time"] <= time.time() + 20
    assert outcome.environment.pop("SYNERGY_STATE_DIR") == str(tmp_path)
    assert outcome.environment.keys() == {"SYNERGY_JOB_SECRET"}


def test_each_job_gets_a_secret_of_its_own(slurm: Controller) -> None:
    """Also one that a job with a secret has submitted."""
    secrets = {
        slurm.submit(SCRIPT, {"SYNERGY_JOB_SECRET": "0" * 32}).environment["SYNERGY_JOB_SECRET"] for _ in range(9)
    }
    assert len(secrets) == 9 and all(re.fullmatch("[0-9a-f]{32}", secret) for secret in secrets)
    assert "0" * 32 not in secrets
    assert slurm.submit(SCRIPT, environment=False).rc == 0


@pytest.mark.parametrize(
    ("command", "calls"),
    [("srun synergy-launch t.py", True), ("python -m synergy_launch.launcher.command t.py", True),
     ("torchrun t.py", False), ("# synergy-launch t.py\ntorchrun t.py", False), ("  # synergy-launch\n./run.sh", False)],
)  # fmt: skip
def test_a_script_that_never_calls_synergy_launch_is_told_that_it_keeps_its_size(
    slurm: Controller, command: str, calls: bool
) -> None:
    outcome = slurm.submit(f"#!/bin/bash\n#SYNERGY max_gpus=16\n{command}\n")
    line = "#SYNERGY in script line 2: the script never calls synergy-launch; unless something that it starts does, "
    assert outcome.rc == 0 and outcome.said == ([] if calls else [line + "the job keeps the size it asks for"])
    assert calls_launcher(f"#!/bin/bash\n{command}\n") is calls
    assert slurm.submit(f"#!/bin/bash\n#SYNERGY resize=no\n{command}\n").said == []


@pytest.mark.parametrize(
    ("script", "unread"),
    [
        (None, None),
        ("", None),
        ("#!/bin/sh\nsrun x\n", None),
        ("#!/bin/sh\necho\n#SYNERGY tp=no\n", 3),
        ("#!/bin/sh\n\n  true\n# x\n#SYNERGY", 5),
        ("#!/bin/sh\necho\n#SYNERGYX\n", None),
        ("#!/bin/sh\ncat > other.sh <<END\n#SYNERGY tp=2\nEND\n", None),  # another job's script
        ("# SYNERGY x\n", None),
    ],
)
def test_jobs_without_a_directive_are_not_touched(slurm: Controller, script: str | None, unread: int | None) -> None:
    fields: dict[str, Any] = {
        "array_inx": "1-9",
        "tres_per_job": "gres:gpu:8",
        "ntasks_per_node": 8.0,
        "requeue": 0.0,
        "het_job_offset": 0.0,
    }
    outcome = slurm.submit(script, **fields)
    said = [] if unread is None else [f"#SYNERGY in script line {unread}: {UNREAD}"]
    assert (outcome.rc, outcome.said, outcome.logged, outcome.environment) == (0, said, [], {})
    assert [note for note in notes(script or "") if note[1] == UNREAD] == ([] if unread is None else [(unread, UNREAD)])
    left = {"comment": "theirs", "tres_per_node": RESIZABLE, "begin_time": 0.0, "ntasks_per_tres": 65534.0, **fields}
    assert outcome.job == left | ({"script": script} if script is not None else {})


@pytest.mark.parametrize(
    "line",
    ["#synergy tp=2", "  #SYNERGY tp=2", "\t#Synergy\ttp=2", "# SYNERGY tp=2", "##SYNERGY tp=2", "#SYNERGY: tp=2"],
)
def test_a_line_that_means_to_be_a_directive_is_said(slurm: Controller, line: str) -> None:
    said = "it is not spelt as a directive, so it is not read; begin the line with #SYNERGY and a blank"
    for before, after in (("", ""), ("#SYNERGY max_gpus=16\n", "#SYNERGY min_gpus=2\n")):
        script = f"#!/bin/bash\n{before}# of Synergy a = 1\n{line}\n{after}srun synergy-launch t.py\n"
        number = 3 + bool(before)
        outcome = slurm.submit(script)
        assert (outcome.rc, outcome.said) == (0, [f"#SYNERGY in script line {number}: {said}"])
        assert (number, said) in notes(script)


@pytest.mark.parametrize(
    "line", ["# Synergy resizes it", "# synergy: see the docs", "# synergyctl --x=2", "true\n#synergy tp=2"]
)
def test_a_remark_is_no_directive(slurm: Controller, line: str) -> None:
    assert slurm.submit(f"#!/bin/bash\n{line}\nsrun x\n").said == []


def test_a_line_that_comes_too_late_is_said_beside_one_that_is_read(slurm: Controller) -> None:
    outcome = slurm.submit(f"{SCRIPT}#SYNERGY tp=2\n")
    line = SCRIPT.count("\n") + 1
    assert (outcome.rc, outcome.said) == (0, [f"#SYNERGY in script line {line}: {UNREAD}"])
    assert outcome.job["admin_comment"] == "synergy:1 model=llama2-7b max_gpus=16"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"tres_per_node": None}, "the job asks for no GPUs; write --gres=gpu:N (GPUs per node), or resize=no"),
        ({"tres_per_node": "gres:nic:1"}, "the job asks for no GPUs; write --gres=gpu:N (GPUs per node), or resize=no"),
        (
            {"tres_per_node": None, "ntasks_per_node": 4.0, "min_nodes": 2.0, "max_nodes": 2.0},
            "the job asks for no GPUs; write --gres=gpu:N (GPUs per node), or resize=no",
        ),
        (
            {"tres_per_node": "gres:nic:1", "num_tasks": 8.0},
            "the job asks for no GPUs; write --gres=gpu:N (GPUs per node), or resize=no",
        ),
        (
            {"tres_per_node": "gres:gpu:a100:2,gres:gpu:h100:2"},
            "the job asks for several kinds of GPU at once; write one --gres=gpu:TYPE:N, or resize=no",
        ),
        ({"requeue": 0.0}, "--no-requeue keeps Synergy from resizing; drop --no-requeue, or write resize=no"),
    ],
)
def test_jobs_that_can_not_be_resized_are_refused(slurm: Controller, fields: dict[str, Any], line: str) -> None:
    before = slurm.submit("#!/bin/sh\n", **fields).job
    outcome = slurm.submit(SCRIPT, **fields)
    assert (outcome.rc, outcome.said) == (-1, ["#SYNERGY in script line 2: " + line])
    assert outcome.job == before | {"script": SCRIPT}


def test_resize_no_changes_and_says_nothing(slurm: Controller) -> None:
    script = "#SYNERGY resize=no\n"
    fields: dict[str, Any] = {
        "tres_per_job": "gres:gpu:8",
        "tres_per_node": None,
        "ntasks_per_node": 8.0,
        "requeue": 0.0,
        "array_inx": "1-2",
    }
    outcome = slurm.submit(script, **fields)
    assert (outcome.rc, outcome.said, outcome.job["admin_comment"]) == (0, [], "synergy:1 resize=no")
    assert {k: outcome.job.get(k) for k in fields} == fields


def test_a_retired_key_is_told_and_not_stamped(slurm: Controller) -> None:
    outcome = slurm.submit("#SYNERGY tp=2 guaranteed=yes\nsrun synergy-launch train.py\n")
    line = "#SYNERGY in script line 1: guaranteed= has no effect any more; drop it: the next release refuses it"
    assert (outcome.rc, outcome.said, outcome.job["admin_comment"]) == (0, [line], "synergy:1 tp=2")


def test_a_retired_word_is_told_and_the_job_runs_exact(slurm: Controller) -> None:
    outcome = slurm.submit("#SYNERGY tp=2\n#SYNERGY comm=delayed\nsrun synergy-launch train.py\n")
    line = "#SYNERGY in script line 2: comm=delayed has no effect any more; drop it, or write comm=local,compressed"
    assert (outcome.rc, outcome.said, outcome.job["admin_comment"]) == (0, [line], "synergy:1 tp=2")


def test_the_start_of_a_job_that_keeps_its_size_is_not_put_off(slurm: Controller) -> None:
    assert slurm.submit("#SYNERGY max_gpus=8\n").job["begin_time"] > time.time()
    # on several nodes it is told first where the arbiter of the links is
    assert slurm.submit("#SYNERGY resize=no\n", min_nodes=2.0).job["begin_time"] > time.time()
    assert slurm.submit("#SYNERGY resize=no\n").job["begin_time"] == 0.0


def test_a_wrong_directive_is_refused_with_its_line(slurm: Controller) -> None:
    outcome = slurm.submit("#!/bin/sh\n#SYNERGY min_gpus=4\n#SYNERGY max_gpus=2\n")
    line = "#SYNERGY in script line 3: min_gpus=4 is above max_gpus=2; let min_gpus be at most max_gpus"
    assert (outcome.rc, outcome.said) == (-1, [line])
    assert "admin_comment" not in outcome.job and outcome.job["begin_time"] == 0.0


def test_percent_signs_reach_the_user_as_they_are(slurm: Controller) -> None:
    assert "'%s%n%d'" in slurm.submit("#SYNERGY tp=%s%n%d").said[0]


def test_a_begin_time_within_the_grace_is_told(slurm: Controller) -> None:
    begin = float(int(time.time()) + 10)
    outcome = slurm.submit(SCRIPT, begin_time=begin, admin_comment="a note")
    assert outcome.job["begin_time"] > begin
    assert outcome.job["admin_comment"] == f"synergy:1 model=llama2-7b max_gpus=16 | begin={int(begin)} note=a%20note"


def test_a_begin_time_of_a_job_that_keeps_its_size_is_told(slurm: Controller) -> None:
    begin = float(int(time.time()) + 10)
    outcome = slurm.submit(SCRIPT, begin_time=begin, tres_per_node=None, tres_per_job="gres:gpu:3", num_tasks=2)
    assert outcome.job["begin_time"] == begin and outcome.job["admin_comment"].endswith(f" | begin={int(begin)}")


def test_a_later_begin_time_is_kept(slurm: Controller) -> None:
    later = float(int(time.time()) + 3600)
    job = slurm.submit(SCRIPT, begin_time=later).job
    assert job["begin_time"] == later
    assert job["admin_comment"].endswith(f" | begin={int(later)}"), "Slurm shows it as it shows the grace"
    assert slurm.submit(SCRIPT, begin_time=1.0).job["begin_time"] > time.time()
    assert "begin=" not in slurm.submit(SCRIPT, begin_time=4294967294.0).job["admin_comment"], "NO_VAL: none was given"


def test_an_operators_admin_comment_is_kept_behind_the_stamp(slurm: Controller) -> None:
    outcome = slurm.submit(SCRIPT, admin_comment="ticket 7 | synergy:1")
    assert outcome.job["admin_comment"] == "synergy:1 model=llama2-7b max_gpus=16 | note=ticket%207%20%7C%20synergy:1"


def test_an_environment_that_can_not_be_written_stops_nothing(slurm: Controller) -> None:
    outcome = slurm.submit(SCRIPT, environment=False)
    assert (outcome.rc, outcome.said) == (0, [])
    assert outcome.job["admin_comment"].startswith("synergy:1 ")


@pytest.mark.parametrize(
    "beat",
    [
        None,
        "",
        "yesterday 20\n",
        "{now} 20",
        "{old} 20\n",
        "{ahead} 20\n",
        "{now} -5\n",
        "9" * 60,
        "{now} 1e9\n",
        "\0\0 1\n",
    ],
)
def test_with_a_dead_daemon_jobs_are_only_checked(lua: str, tmp_path: Path, beat: str | None) -> None:
    now = int(time.time())
    if beat is not None:
        (tmp_path / "heartbeat").write_text(beat.format(now=now, old=now - 200, ahead=now + 200))
    controller = Controller(lua)
    controller.configure(state_dir=str(tmp_path), heartbeat_max_age_s=180)
    outcome = controller.submit(SCRIPT)
    assert (outcome.rc, outcome.said, outcome.environment) == (0, [], {})
    assert "admin_comment" not in outcome.job
    assert (outcome.job["requeue"], outcome.job["begin_time"]) == (65534.0, 0.0)
    assert controller.submit("#SYNERGY tp=0").rc == -1


def test_a_module_that_was_not_configured_only_checks(lua: str) -> None:
    controller = Controller(lua)
    assert "admin_comment" not in controller.submit(SCRIPT).job
    assert controller.submit("#SYNERGY tp=0").rc == -1


def test_grace_of_the_hook_goes_before_the_daemons_and_is_bounded(slurm: Controller, tmp_path: Path) -> None:
    slurm.configure(grace_s=5)
    assert slurm.submit(SCRIPT).job["begin_time"] <= time.time() + 5
    slurm.configure(grace_s=10**7)
    assert slurm.submit(SCRIPT).job["begin_time"] <= time.time() + 3600


@pytest.mark.parametrize("options", [{"statedir": "/x"}, {"state_dir": 1}, {"grace_s": "20"}])
def test_a_wrong_option_of_the_hook_is_an_error(lua: str, options: dict[str, object]) -> None:
    with pytest.raises(Exception, match=r"synergy\.configure: "):
        Controller(lua).configure(**options)


def test_a_failure_of_the_module_lets_jobs_pass_and_says_so(slurm: Controller) -> None:
    slurm.state.execute(b"table.concat = nil")  # any runtime error inside the module
    outcome = slurm.submit(SCRIPT)
    assert outcome.rc == 0
    assert len(outcome.said) == 1 and outcome.said[0].startswith("#SYNERGY in script line 1: the Synergy plugin failed")
    assert outcome.said[0].endswith("it is submitted all the same: tell your admins")
    assert any("uid 1000" in line for line in outcome.logged)
    assert "admin_comment" not in outcome.job
    untouched = slurm.submit("#!/bin/sh\nsrun x\n")
    assert (untouched.rc, untouched.said, untouched.logged) == (0, [], [])


def test_even_a_broken_string_library_refuses_nothing(slurm: Controller) -> None:
    slurm.state.execute(b"string.sub = nil")
    passed = slurm.submit(SCRIPT)
    assert (passed.rc, len(passed.said)) == (0, 1)


def test_a_failure_halfway_leaves_no_stamp(slurm: Controller, tmp_path: Path) -> None:
    """The daemon would take a stamped job for one whose start was delayed."""
    (tmp_path / "heartbeat").write_text(f"{int(time.time())} 20\n")
    slurm.configure(state_dir=str(tmp_path))
    slurm.state.execute(
        b"local real = pairs; pairs = function(t) if t.SLURM_TRES_BIND then error('no') end; return real(t) end"
    )
    outcome = slurm.submit(SCRIPT)
    assert (outcome.rc, len(outcome.said)) == (0, 1) and "failed on this job" in outcome.said[0]
    assert not outcome.job.get("admin_comment") and not outcome.job.get("begin_time")


def test_without_its_string_library_it_takes_no_word_for_a_directive(slurm: Controller) -> None:
    slurm.state.execute(b"string.sub = nil")
    assert slurm.submit("#!/bin/sh\necho '#SYNERGY'\n").rc == 0


def test_a_long_script_is_read_to_its_directive(slurm: Controller) -> None:
    outcome = slurm.submit("#!/bin/sh\n" + "# words\n" * 10_000 + "#SYNERGY tp=2\n")
    assert (outcome.rc, outcome.job["admin_comment"]) == (0, "synergy:1 tp=2")


def test_a_script_beyond_the_bounds_is_refused_with_one_line(slurm: Controller) -> None:
    outcome = slurm.submit("#!/bin/sh\n" + "# words\n" * 100_000 + "#SYNERGY tp=2\n")
    assert outcome.rc == -1 and len(outcome.said) == 1 and outcome.logged == []
    assert "no command stands in the first 131072 bytes of the script" in outcome.said[0]
    assert "admin_comment" not in outcome.job


def test_modify_refuses_nothing_and_warns_of_a_lost_requeue(slurm: Controller) -> None:
    assert slurm.modify("synergy:1 tp=2", requeue=0.0).said == [
        "Synergy can't resize a job with Requeue=0; it keeps the size it has"
    ]
    for stamp, fields in (("synergy:1", {}), (None, {"requeue": 0.0}), ("other", {"requeue": 0.0})):
        outcome = slurm.modify(stamp, **fields)
        assert (outcome.rc, outcome.said) == (0, [])


def hook_text(module: Path, state_dir: Path) -> str:
    text = HOOK.read_text().replace("/etc/slurm/synergy/synergy.lua", str(module))
    return text.replace('state_dir = "/var/lib/synergy"', f'state_dir = "{state_dir}"')


def test_the_hook_as_shipped(lua: str, tmp_path: Path) -> None:
    (tmp_path / "heartbeat").write_text(f"{int(time.time())} 20\n")
    controller = Controller(lua, hook_text(PLUGIN, tmp_path))
    assert controller.submit(SCRIPT).job["admin_comment"].startswith("synergy:1 ")
    assert controller.submit("#SYNERGY tp=0").rc == -1
    assert controller.submit("#!/bin/sh\n").rc == 0
    assert controller.submit(None).rc == 0
    assert controller.modify("synergy:1", requeue=0.0).rc == 0


@pytest.mark.parametrize("broken", ["absent", "syntax", "no grammar"])
def test_the_hook_without_a_module_lets_all_jobs_pass(lua: str, tmp_path: Path, broken: str) -> None:
    module = tmp_path / "synergy.lua"
    if broken == "syntax":
        module.write_text("local = 1")
    elif broken == "no grammar":
        module.write_bytes(PLUGIN.read_bytes())
    controller = Controller(lua, hook_text(module, tmp_path))
    passed = controller.submit(SCRIPT)
    assert (passed.rc, passed.said) == (0, [NOT_LOADED]) and "admin_comment" not in passed.job
    assert any("synergy: not loaded: " in line for line in passed.logged)
    assert controller.submit("#!/bin/sh\nsrun x\n").rc == 0
    assert controller.submit(None).rc == 0
    assert controller.modify("synergy:1 tp=2", requeue=0.0).rc == 0


def test_a_deadline_that_can_not_be_met_is_told_and_refused_only_where_the_admin_says_so(slurm: Controller) -> None:
    now = int(time.time())
    for deadline, begin, why in (
        (now - 10, 0.0, "it has passed"),
        (now + 1000, now + 2000.0, "--begin is not before it"),
    ):
        script = SCRIPT.replace("max_gpus=16", f"max_gpus=16 deadline={deadline}")
        told = f"#SYNERGY in script line 2: deadline={deadline} can't be met: {why}; write a later one, or drop it"
        outcome = slurm.submit(script, begin_time=begin)
        assert (outcome.rc, outcome.said) == (0, [told])
        assert "deadline=" in outcome.job["admin_comment"]
        slurm.configure(refuse_late=True)
        outcome = slurm.submit(script, begin_time=begin)
        assert (outcome.rc, outcome.said) == (-1, [told]) and "admin_comment" not in outcome.job
        slurm.configure(refuse_late=False)
    later = SCRIPT.replace("max_gpus=16", f"max_gpus=16 deadline={now + 1000}")
    for begin in (0.0, now + 500.0, 4294967294.0):
        assert slurm.submit(later, begin_time=begin).said == []
