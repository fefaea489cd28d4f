"""What the command-line backend writes to Slurm, against narrow scripts that stand in for its commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from synergyd.slurm.client import DeniedError, SlurmError
from synergyd.slurm.command_line import CommandLine
from tests.unit.slurm.shell_world import Shell


def test_an_update_is_one_call_with_a_word_for_each_field(shell: Shell) -> None:
    shell.answers("scontrol")
    shell.backend.update(
        7, {"NumNodes": "2-2", "ReqNodeList": "", "AdminComment": "synergy:1 a=b | x='y' $(id); \"z\" ü"}
    )
    comment = "AdminComment=synergy:1 a=b | x='y' $(id); \"z\" ü"
    assert shell.calls == [["scontrol", "update", "JobId=7", "NumNodes=2-2", "ReqNodeList=", comment]]


LEFT = (
    "Job has already finished for job 8\n"
    "Job is no longer pending execution for job 301\n"
    "Invalid job id specified for job 99999\n"
)


def test_many_starts_are_put_off_by_one_call_that_passes_over_those_that_have_left(shell: Shell) -> None:
    shell.answers("scontrol", error=LEFT, code=1)
    shell.backend.delay(range(1, 1201), 900)
    assert [c[0:2] + c[3:] for c in shell.calls] == [["scontrol", "update", "StartTime=now+900"]] * 3
    named = [c[2].removeprefix("JobId=").split(",") for c in shell.calls]
    assert [int(i) for ids in named for i in ids] == list(range(1, 1201))


@pytest.mark.parametrize("line", ["Access/permission denied for job 7", "Unable to contact slurm controller"])
def test_other_refusals_of_a_delay_are_told(shell: Shell, line: str) -> None:
    shell.answers("scontrol", error=f"{LEFT}{line}\n", code=1)
    with pytest.raises(DeniedError if "denied" in line else SlurmError):
        shell.backend.delay([7, 8], 900)


@pytest.mark.parametrize(
    "fields",
    [{"Num Nodes": "2"}, {"X=Y": "2"}, {"": "2"}, {"NumNodes\n": "2"}, {"A": "x\ny"}, {"A": "\0"}, {"A": "\ud800"}],
)
def test_fields_that_are_none_never_reach_slurm(shell: Shell, fields: dict[str, str]) -> None:
    shell.answers("scontrol")
    with pytest.raises(SlurmError) as error:
        shell.backend.update(7, fields)
    assert not error.value.transient and shell.calls == []
    assert str(error.value).isprintable()


def test_a_requeue_leaves_a_job_that_has_ended_alone(shell: Shell) -> None:
    shell.answers("scontrol")
    shell.backend.requeue(7)
    assert shell.calls == [["scontrol", "requeue", "incomplete", "7"]]


STEPS = b"7.batch batch\n7.extern extern\n7.0 synergy-launch\n7.1 python3\n7.2 tensorboard\n"


def test_a_signal_goes_to_the_launcher_s_step_alone(shell: Shell) -> None:
    shell.answers("squeue", STEPS)
    shell.answers("scancel")
    shell.backend.signal_launchers(7, "USR2")
    assert shell.calls[-1] == ["scancel", "--signal=USR2", "7.0"]
    shell.answers("squeue", b"7.batch batch\n7.3 eval.py\n")
    with pytest.raises(SlurmError, match="which step of job 7 trains") as caught:
        shell.backend.signal_launchers(7, "USR2")
    assert caught.value.transient and len(shell.calls) == 3


# -- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message, transient",
    [
        ("Unable to contact slurm controller (connect failure)", True),
        ("slurm_update error: Socket timed out on send/recv operation", True),
        ("slurm_update error: Job can not be altered now, try again later", True),
        ("Zero Bytes were transmitted or received", True),
        ("Unable to contact slurm controller (backup)", True),
        ("Invalid node name specified for job 7", False),
        ("Requested partition configuration not available now for job 7", False),
        ("Invalid GRES specification (with and without type identification) for job 7", False),
        ("Job is no longer pending execution for job 7", False),
        ("Node count specification invalid for job 7", False),
        ("", False),
    ],
)
def test_errors_are_told_apart(shell: Shell, message: str, transient: bool) -> None:
    shell.answers("scontrol", error=message + "\n", code=1)
    with pytest.raises(SlurmError) as error:
        shell.backend.update(7, {"NumNodes": "2"})
    assert error.value.transient is transient
    assert str(error.value) == f"scontrol update JobId=7: {message or 'exit 1'}"


def test_an_error_without_an_exit_code_is_one_nevertheless(shell: Shell) -> None:
    shell.answers("squeue", error="squeue: error: Invalid job format specification: X\n")
    with pytest.raises(SlurmError, match="Invalid job format"):
        shell.backend.jobs()
    shell.answers("squeue", error="squeue: some remark\n")
    assert shell.backend.jobs() == ()


def test_a_command_that_hangs_is_given_up(shell: Shell) -> None:
    shell.answers("squeue", first="exec /bin/sleep 30")
    with pytest.raises(SlurmError, match=r"no answer within 0\.3 s") as error:
        CommandLine(timeout_s=0.3).jobs()
    assert error.value.transient


def test_a_signal_that_was_given_up_is_never_sent_later(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later it could reach the job's next incarnation, which may not trap it yet: a site's wrapper ends with all its children."""
    (shell.folder / "scancel").write_text(f"#!/bin/sh\n(sleep 4; touch {shell.folder}/sent) &\nwait\n")
    (shell.folder / "scancel").chmod(0o755)
    shell.answers("squeue", STEPS)
    monkeypatch.setattr("synergyd.slurm.command_line.SIGNAL_TIMEOUT_S", 0.2)
    with pytest.raises(SlurmError, match=r"no answer within 0\.2 s"):
        shell.backend.signal_launchers(7, "USR2")
    time.sleep(4.2)
    assert not (shell.folder / "sent").exists()


def test_a_command_that_is_missing_is_one_clear_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(shell.folder))
    with pytest.raises(SlurmError, match="scontrol: can't be run: No such file") as error:
        CommandLine().jobs()
    assert not error.value.transient


def test_calls_are_counted(shell: Shell) -> None:
    shell.answers("squeue")
    shell.backend.jobs()
    shell.backend.jobs()
    assert shell.backend.calls == 2


@pytest.mark.parametrize("message", ["Access/permission denied", "slurm_update error: Invalid user id"])
def test_a_user_who_may_not_change_jobs_is_told_at_once(shell: Shell, message: str) -> None:
    for program in ("scontrol", "scancel"):
        shell.answers(program, error=message + "\n", code=1)
    shell.answers("squeue", STEPS)
    calls: tuple[Callable[[], object], ...] = (
        lambda: shell.backend.update(7, {"NumNodes": "2"}),
        lambda: shell.backend.requeue(7),
        lambda: shell.backend.signal_launchers(7, "USR2"),
        lambda: shell.backend.batch_script(7),
    )
    for call in calls:
        with pytest.raises(DeniedError, match=r"may not manage jobs .*; run synergyd as root, SlurmUser"):
            call()


def test_leaf_switches_are_those_of_level_0(shell: Shell) -> None:
    shell.answers(
        "scontrol",
        b"SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n3\n"
        b"SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=s[0-1]\n",
    )
    assert shell.backend.leaf_switches() == {"n1": "s0", "n2": "s0", "n3": "s1"}
    shell.answers("scontrol", b"")
    assert shell.backend.leaf_switches() == {}


def test_blocks_are_leaves(shell: Shell) -> None:
    shell.answers(  # as 24.11.5 says it
        "scontrol",
        b"BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n"
        b"AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n",
    )
    assert shell.backend.leaf_switches() == {"n1": "b1", "n2": "b1", "n3": "b2", "n4": "b2"}


def test_rings_and_tori_are_leaves(shell: Shell) -> None:
    """As the source of 26.05 prints them; a torus has a line more for each shape that jobs may get in it."""
    shell.answers("scontrol", b"RingName=r1 Nodes=n[1-2] RingSize=2\nRingName=r2 Nodes=n[3-4] RingSize=2\n")
    assert shell.backend.leaf_switches() == {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r2"}
    shell.answers(
        "scontrol", b"TorusName=t1 Dims=2x1x1 Nodes=n[1-2]\n  TorusName=t1 PlacementDims=2x1x1(2) Anchors=2\n"
    )
    assert shell.backend.leaf_switches() == {"n1": "t1", "n2": "t1"}


@pytest.mark.parametrize("nodes", ["n[1-", "n[2-1]", "n[1-99999999]", "[", "n[1-2][3-"])
def test_a_switch_whose_nodes_are_not_understood_costs_itself_alone(
    shell: Shell, nodes: str, caplog: pytest.LogCaptureFixture
) -> None:
    shell.answers("scontrol", f"SwitchName=s0 Level=0 Nodes={nodes}\nSwitchName=s1 Level=0 Nodes=n3\n".encode())
    assert shell.backend.leaf_switches() == {"n3": "s1"}
    assert [r.message.partition(":")[0] for r in caplog.records] == ["topology"] and "s0" in caplog.text


def test_writes_are_begun_within_the_lease_or_not_at_all(shell: Shell) -> None:
    allowed = [True]

    @contextmanager
    def writing() -> Iterator[None]:
        if not allowed[0]:
            raise SlurmError("lease", "another leads", transient=True)
        yield

    shell.answers("squeue", STEPS)
    for program in ("scontrol", "scancel"):
        shell.answers(program)
    backend = CommandLine(writing=writing)
    writes: list[Callable[[], None]] = [
        lambda: backend.update(7, {"StartTime": "now"}),
        lambda: backend.delay([7], 5),
        lambda: backend.requeue(7),
        lambda: backend.signal_launchers(7, "USR2"),
    ]
    for write in writes:
        write()
    assert len([call for call in shell.calls if call[0] != "squeue"]) == 4
    allowed[0] = False
    for write in writes:
        with pytest.raises(SlurmError, match="another leads"):
            write()
    assert len([call for call in shell.calls if call[0] != "squeue"]) == 4


def test_a_task_of_an_array_is_signalled_by_its_steps(shell: Shell) -> None:
    """scancel of ARRAY_TASK itself sends the signal again and again for 95 s (22.05)."""
    shell.answers(
        "squeue", b"7_2.0 synergy-launch\n7_2.1 synergy-launch\n7_2.2 eval\n7_2.batch batch\n7_2.extern extern\n"
    )
    shell.answers("scancel")
    shell.backend.signal_launchers("7_2", "USR2")
    assert shell.calls[-1] == ["scancel", "--signal=USR2", "7_2.0", "7_2.1"]
    shell.answers("squeue", b"7_2.batch batch\n")
    with pytest.raises(SlurmError, match="which step of job 7_2 trains") as caught:
        shell.backend.signal_launchers("7_2", "USR2")
    assert caught.value.transient


@pytest.mark.parametrize("name", ["7_", "7_[1-2", "7_x", "7_[1-2] Nice=1", "-1", "", "7,8", "7_1\n"])
def test_what_names_no_job_is_not_written_to(shell: Shell, name: str) -> None:
    with pytest.raises(SlurmError, match="names no job"):
        shell.backend.update(name, {"StartTime": "now"})
    with pytest.raises(SlurmError, match="names no job"):
        shell.backend.delay([7, name], 900)
    assert shell.calls == []
