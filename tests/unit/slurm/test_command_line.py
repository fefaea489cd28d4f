"""What the command-line backend reads of Slurm, against narrow scripts that stand in for its commands."""

from __future__ import annotations

import json

import pytest

from synergyd.control.arrivals import JobCounts
from synergyd.slurm.client import DeniedError, SlurmError
from synergyd.slurm.columns import JOB_FIELDS, NODE_FIELDS
from tests.unit.slurm.shell_world import WIDE, Shell, cut
from tests.unit.slurm.test_columns import JOB, NODE


def test_a_row_becomes_a_job(shell: Shell) -> None:
    shell.answers("squeue", cut(JOB_FIELDS, JOB))
    (job,) = shell.backend.jobs()
    assert (job.job_id, job.name, job.user, job.uid, job.partition, job.state, job.reason) == (
        7, "train", "ann", 1000, "main", "PENDING", "Priority",
    )  # fmt: skip
    assert (job.num_nodes, job.num_cpus, job.num_tasks) == (2, 16, 1), "nodes and CPUs come from TRES"
    assert (job.tres_per_node, job.tres_other, job.node_names) == ("gres:gpu:2", "", ())
    assert (job.submit_s, job.start_s, job.eligible_s, job.restarts, job.priority) == (
        1.7e9,
        1700000900,
        1700000500,
        3,
        4294901759,
    )
    assert (job.requeue, job.batch, job.array, job.het) == (True, True, False, False)
    assert (job.account, job.qos, job.features, job.reservation) == ("chem", "high", "ib&fast", "")


def test_the_daemon_s_own_environment_changes_nothing(shell: Shell) -> None:
    shell.answers("squeue")
    assert shell.backend.jobs() == ()
    (words,), environment = shell.calls, shell.environment
    assert words[:5] == ["squeue", "-h", "-a", "--noconvert", "-O"] and len(words) == 6
    assert not {"SQUEUE_FORMAT", "SINFO_SORT", "SCANCEL_INTERACTIVE", "SLURM_CLUSTERS", "SLURM_JOB_ID"} & set(
        environment
    )
    assert environment["SQUEUE_ARRAY_UNIQUE"] == "1"  # to 22.05; it has no meaning from 23.02 on
    assert (environment["SLURM_TIME_FORMAT"], environment["LC_ALL"], environment["SLURM_CONF"]) == (
        "%s",
        "C.UTF-8",
        "/throwaway",
    )


FORGED = cut(JOB_FIELDS, {**JOB, "JobID": "999", "UserID": "0", "UserName": "root"}).decode()


@pytest.mark.parametrize(
    "name",
    [
        "a\nb",
        "\n\n\n",
        "x" * 500,
        "ü" * 100,
        "a" * 63 + "ü",
        FORGED,
        "7           N/A",
        "$(id) `id` ;'\"",
        "\t\r\x0b",
        " ",
        "名前" * 30,
    ],
)
def test_a_name_can_neither_shift_nor_forge_a_row(shell: Shell, name: str) -> None:
    shell.answers(
        "squeue", cut(JOB_FIELDS, {**JOB, "Name": name}) + cut(JOB_FIELDS, {**JOB, "JobID": "8", "UserID": "1001"})
    )
    jobs = shell.backend.jobs()
    assert [(j.job_id, j.uid, j.user) for j in jobs] == [(7, 1000, "ann"), (8, 1001, "ann")]
    assert len(jobs[0].name) <= 64 and jobs[1].name == "train"


@pytest.mark.parametrize("field", ["Reason", "Partition", "UserName", "tres-per-node", "State"])
def test_no_other_text_field_can_either(shell: Shell, field: str) -> None:
    (shell.folder / "wide").write_bytes(cut(WIDE, {**JOB, field: FORGED}))
    rows = cut(JOB_FIELDS, {**JOB, field: FORGED}) + cut(JOB_FIELDS, {**JOB, "JobID": "8"})
    shell.answers("squeue", rows, first='[ "$4" = -j ] && exec /bin/cat wide')
    assert sorted((j.job_id, j.uid) for j in shell.backend.jobs()) == [(7, 1000), (8, 1000)]


@pytest.mark.parametrize(
    "out", [b"x", cut(JOB_FIELDS, JOB)[:-1], cut(JOB_FIELDS, JOB) + b"\n", b"CLUSTER: x\n" + cut(JOB_FIELDS, JOB)]
)
def test_rows_of_another_length_are_refused_whole(shell: Shell, out: bytes) -> None:
    shell.answers("squeue", out)
    with pytest.raises(SlurmError, match="are not rows of"):
        shell.backend.jobs()


@pytest.mark.parametrize("field", ["JobID", "UserID"])
@pytest.mark.parametrize("text", ["", "N/A", "-1", "7_1", "²"])
def test_rows_that_make_no_sense_are_one_clear_line(shell: Shell, field: str, text: str) -> None:
    shell.answers("squeue", cut(JOB_FIELDS, {**JOB, field: text}))
    with pytest.raises(SlurmError, match="answer not understood"):
        shell.backend.jobs()


def test_a_node_list_that_was_cut_is_read_again(shell: Shell) -> None:
    names = ",".join(f"node-with-a-long-name-{i * 7}" for i in range(60))
    (shell.folder / "wide").write_bytes(cut(WIDE, {**JOB, "NodeList": names}))
    short = cut(JOB_FIELDS, {**JOB, "NodeList": names})
    shell.answers("squeue", short, first='[ "$4" = -j ] && exec /bin/cat wide')
    assert shell.backend.jobs()[0].node_names == tuple(names.split(","))
    assert shell.calls[1][:6] == ["squeue", "-h", "-a", "--noconvert", "-j", "7"]
    # ... and a job that has ended meanwhile does not spoil the others
    shell.answers("squeue", short, first='[ "$4" = -j ] && echo "Invalid job id specified" >&2 && exit 1')
    assert shell.backend.jobs() == ()


def test_one_job_and_none(shell: Shell) -> None:
    shell.answers("squeue", cut(JOB_FIELDS, JOB))
    found = shell.backend.job(7)
    assert found is not None and found.job_id == 7
    assert shell.backend.job(8) is None
    shell.answers("squeue", error="slurm_load_jobs error: Invalid job id specified\n", code=1)
    assert shell.backend.job(7) is None
    shell.answers(
        "squeue", error="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", code=1
    )
    with pytest.raises(SlurmError) as error:
        shell.backend.job(7)
    assert error.value.transient


def test_nodes_of_several_partitions_are_one_row(shell: Shell) -> None:
    rows = [
        NODE,
        {**NODE, "PartitionName": "debug"},
        {**NODE, "NodeList": "n2", "Reason": "bad\nfan " + "x" * 200, "Features": "(null)"},
    ]
    shell.answers("sinfo", b"".join(cut(NODE_FIELDS, r) for r in rows))
    first, second = shell.backend.nodes()
    assert (first.name, first.partitions, first.features, first.reason) == ("n1", ("debug", "main"), ("a100", "ib"), "")
    assert (first.cpus, first.cpus_alloc, first.memory_mib, first.memory_alloc_mib) == (64, 24, 64000, 1024)
    assert (first.threads_per_core, first.tmp_disk_mib) == (2, 9000)
    assert (second.name, second.features) == ("n2", ()) and second.reason.startswith("bad\nfan")


def test_nodes_that_have_not_registered_are_asked_for_where_there_are_two_controllers(shell: Shell) -> None:
    def answer(config: str) -> None:
        shell.answers("scontrol", config.encode(), first='[ "$2" = partition ] && exit 0')
        shell.backend.partitions()
        shell.calls.clear()

    widths = dict(NODE_FIELDS)
    fields = tuple((name, widths[name]) for name in ("NodeList", "StateComplete", "Version"))
    rows = [NODE, {**NODE, "NodeList": "n2", "Version": "N/A"}, {**NODE, "NodeList": "n3", "StateComplete": "unknown"}]
    shell.answers("sinfo", b"".join(cut(fields, r) for r in rows))
    answer("SlurmctldHost[0]        = a\n")
    assert not shell.backend.unheard(("n1", "n2"))
    assert shell.calls[-1:] != [["sinfo"]]
    answer("SlurmctldHost[0]        = a\nSlurmctldHost[1]        = b\n")
    assert shell.backend.unheard(("n1", "n2", "n3")) == {"n2", "n3"}
    assert shell.calls[-1][:6] == ["sinfo", "-h", "-a", "-N", "-n", "n1,n2,n3"]


def test_admin_comments(shell: Shell) -> None:
    jobs = [
        {"job_id": 7, "admin_comment": "synergy:1"},
        {"job_id": 8, "admin_comment": None},
        {"job_id": 9, "admin_comment": "x"},
        {"job_id": 10},
    ]
    shell.answers("squeue", json.dumps({"jobs": jobs}).encode())
    assert shell.backend.admin_comments([7, 8, 10, 11, 12]) == {7: "synergy:1"}
    count = len(shell.calls)
    assert shell.backend.admin_comments([]) == {} and len(shell.calls) == count


def test_admin_comments_of_few_jobs_do_not_read_the_whole_queue(shell: Shell) -> None:
    shell.answers("scontrol", b"JobId=7 JobName=x\n   AdminComment=synergy:1 \n")
    assert shell.backend.admin_comments([7]) == {7: "synergy:1"}
    assert shell.calls == [["scontrol", "show", "job", "7"]]
    shell.answers("scontrol", error="slurm_load_jobs error: Invalid job id specified\n", code=1)
    assert shell.backend.admin_comments([7, 8]) == {}  # they have left meanwhile
    shell.answers("scontrol", error="Job/step already completing or completed\n", code=1)
    assert shell.backend.admin_comments([7, 8]) == {}
    shell.answers("scontrol", error="Unable to contact slurm controller\n", code=1)
    with pytest.raises(SlurmError, match="Unable to contact"):
        shell.backend.admin_comments([7])


def test_without_json_admin_comments_come_from_scontrol(shell: Shell) -> None:
    """Job 8's name holds a record of job 9 and takes its own comment's place; 10's Comment holds an AdminComment."""
    queue = (
        b"JobId=7 JobName=x\n   AdminComment=of 7 \n   StdErr=/a\n\n"
        b"JobId=8 JobName=y\nJobId=9 JobName=forged\n   AdminComment=of 8 \n\n"
        b"JobId=9 JobName=z\n   AdminComment=of 9 \n\nJobId=10 JobName=w\n   AdminComment=of 10 \n   Comment=a\n   AdminComment=forged\n"
    )
    shell.answers("squeue", error="squeue: unrecognized option '--json'\n", code=1)
    singly = (
        'case $3 in --all) ;; 9) printf "JobId=9 JobName=z\\n   AdminComment=of 9 \\n"; exit;; '
        '*) exec /bin/sed -n "/^JobId=10 /,\\$p" scontrol.out;; esac'
    )
    shell.answers("scontrol", queue, first=singly)
    assert shell.backend.admin_comments([7, 8, 9, 10, 11]) == {7: "of 7", 9: "of 9"}
    with pytest.raises(SlurmError, match="job 10: its AdminComment can't be told") as error:
        shell.backend.admin_comment(10)
    assert not error.value.transient
    assert shell.backend.admin_comments([10]) == {}  # one job's text stops nobody's epoch
    assert shell.backend.admin_comments([7, 8, 9, 11, 12]) == {7: "of 7", 9: "of 9"}
    assert [c[0] for c in shell.calls].count("squeue") == 1  # it is not asked again


@pytest.mark.parametrize(
    "out", [b"", b"{", b"[]", b"{}", b'{"jobs":[{}]}', b'{"jobs":[{"job_id":"x"}]}', b'{"jobs":7}', b'{"jobs":[7]}']
)
def test_json_of_another_kind_is_one_clear_line(shell: Shell, out: bytes) -> None:
    shell.answers("squeue", out)
    with pytest.raises(SlurmError, match="answer not understood"):
        shell.backend.admin_comments(range(5))


def test_jobs_submitted_and_ended(shell: Shell) -> None:
    shell.answers(
        "sdiag",
        b"Server thread count:  1\n\nJobs submitted: 1207\nJobs started:   1206\nJobs completed: 3\nJobs canceled:  2\n"
        b"Jobs failed:    1\n",
    )
    assert shell.backend.job_counts() == JobCounts(submitted=1207, ended=6)
    assert shell.calls == [["sdiag"]]


def test_an_sdiag_that_tells_no_jobs_is_an_error(shell: Shell) -> None:
    shell.answers("sdiag", b"Jobs submitted: many\n")
    with pytest.raises(SlurmError, match="tells no jobs submitted"):
        shell.backend.job_counts()


def test_required_nodes(shell: Shell) -> None:
    fields = (("JobID", 12), ("ReqNodes", 65536))
    for text, names in (("n[1-2],n4", ("n1", "n2", "n4")), ("", ())):
        shell.answers("squeue", cut(fields, {"JobID": "7", "ReqNodes": text}))
        assert shell.backend.required_nodes(7) == names
    shell.answers("squeue", cut(fields, {"JobID": "7", "ReqNodes": "n[x"}))
    with pytest.raises(SlurmError, match=r"job 7: .* is not a host list"):
        shell.backend.required_nodes(7)
    shell.answers("squeue")
    assert shell.backend.required_nodes(7) == ()


def test_node_lists_are_one_call(shell: Shell) -> None:
    def line(job_id: str, required: str, excluded: str) -> bytes:
        return f"{job_id:12}{required:16384}{excluded:16384}\n".encode()

    shell.answers("squeue", line("7", "n[2-3]", "n1") + line("8", "", "(null)") + line("9", "", "n1"))
    assert shell.backend.node_lists([7, 8]) == {7: (("n2", "n3"), ("n1",)), 8: ((), ())}
    assert shell.calls == [["squeue", "-h", "-a", "-j", "7,8", "-o", "%12A%16384n%16384x"]]
    shell.answers("squeue", error="slurm_load_jobs error: Invalid job id specified\n", code=1)
    assert shell.backend.node_lists([7]) == {} == shell.backend.node_lists([])


def test_admin_comment_of_one_job(shell: Shell) -> None:
    shell.answers("scontrol", b"JobId=7 JobName=x\n   UserId=a(1)\n   AdminComment=ticket 12 = x \n   StdErr=/a\n")
    assert shell.backend.admin_comment(7) == "ticket 12 = x" and shell.calls[0] == ["scontrol", "show", "job", "7"]
    shell.answers("scontrol", b"JobId=7 JobName=x\n   Power=\n")
    assert shell.backend.admin_comment(7) == ""
    # a user's Comment with a line end in it
    shell.answers("scontrol", b"JobId=7 JobName=x\n   AdminComment=right \n   Comment=a\n   AdminComment=forged \n")
    shell.answers("squeue", b'{"jobs": [{"job_id": 7, "admin_comment": "right"}]}')
    assert shell.backend.admin_comment(7) == "right"
    # the id of an array, which is its last task's too: all tasks are shown
    tasks = b"JobId=7 ArrayJobId=7 ArrayTaskId=2-3\n%b\nJobId=8 ArrayJobId=7 ArrayTaskId=1\n   AdminComment=of 1 \n"
    shell.answers("scontrol", tasks % b"   AdminComment=of the rest \n")
    assert shell.backend.admin_comment(7) == "of the rest" and shell.calls[-1][0] == "scontrol"
    shell.answers("scontrol", tasks % b"   Power=\n")
    shell.answers("squeue", b'{"jobs": [{"job_id": 7, "admin_comment": null}, {"job_id": 8, "admin_comment": "of 1"}]}')
    assert shell.backend.admin_comment(7) == ""


def test_batch_script(shell: Shell) -> None:
    shell.answers("scontrol", b"#!/bin/sh\n#SYNERGY x\n\xff\0")
    assert shell.backend.batch_script(7) == "#!/bin/sh\n#SYNERGY x\n\ufffd"
    assert shell.calls[0] == ["scontrol", "write", "batch_script", "7", "-"]
    shell.answers("scontrol", error="Invalid job id specified", code=1)
    assert shell.backend.batch_script(7) is None
    shell.answers("scontrol", error="job script retrieval failed: Job script not specified", code=1)
    assert shell.backend.batch_script(7) is None
    # 22.05 ends with exit code 0: not to be taken for an empty script
    shell.answers("scontrol", error="job script retrieval failed: Invalid user id")
    with pytest.raises(DeniedError, match="may not manage jobs"):
        shell.backend.batch_script(7)
    for error in ("Socket timed out on send/recv operation", "Invalid Protocol Version", "what nobody has seen before"):
        shell.answers("scontrol", error=error, code=1)
        with pytest.raises(SlurmError, match=error):
            shell.backend.batch_script(7)


def test_version(shell: Shell) -> None:
    shell.answers("scontrol", b"slurm-wlm 22.05.8\n")
    assert shell.backend.version() == "22.05.8"
