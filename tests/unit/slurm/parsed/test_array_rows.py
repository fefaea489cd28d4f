"""Array tasks that squeue shows in another record's row."""

from __future__ import annotations

from dataclasses import replace

from synergyd.slurm.columns import JOB_FIELDS, job_fields, job_row
from synergyd.slurm.parsed.array_rows import SPANS_BYTES, may_hide, separate_tasks, spans
from tests.unit.slurm.shell_world import Shell, cut
from tests.unit.slurm.test_columns import JOB


def line(job_id: int, task: int | str, array: int = 7) -> dict[str, str]:
    return {"JobID": str(job_id), "ArrayJobID": str(array), "ArrayTaskID": str(task)}


REST = job_row({**JOB, "JobID": "7", "ArrayJobID": "7", "ArrayTaskID": "0-5"})


def test_the_record_keeps_its_own_tasks_and_the_others_are_named() -> None:
    plain = job_row(JOB)
    lines = [line(7, 0), line(7, 1), line(7, 5), line(9, 2), line(11, 3), line(12, "N/A", 0), line(13, 4)]
    rows, hidden = separate_tasks([REST, replace(plain, job_id=12), replace(REST, job_id=13, array_task="4")], lines)
    assert (rows[0].array_task, rows[0].merged, hidden) == ("0-1,5", True, [9, 11])
    assert not rows[1].merged and not rows[2].merged and may_hide(rows) and not may_hide(rows[1:])


def test_what_stands_for_itself_is_left_as_it_is() -> None:
    others = replace(REST, job_id=20, array_job_id=20, array_task="1-3%2")
    lines = [line(7, i) for i in range(6)] + [line(20, i, 20) for i in (1, 2, 3)] + [line(31, 9, 30)]
    assert separate_tasks([REST, others], lines) == ([REST, others], [31])


def test_spans() -> None:
    assert [spans(x) for x in ([4], [1, 2], [0, 2, 3, 4, 9])] == ["4", "1-2", "0,2-4,9"]
    assert spans(range(0, 100_000, 2)).endswith("...") and len(spans(range(0, 100_000, 2))) < SPANS_BYTES + 4


def test_the_queue_of_a_slurm_that_merges_them(shell: Shell) -> None:
    """The queue, its tasks, and the jobs that no row was for; of the last one that fills a column again."""
    shell.backend._slurm_release = (24, 11)
    rest, task = {**JOB, "JobID": "7", "ArrayJobID": "7"}, {**JOB, "JobID": "9", "ArrayJobID": "7", "ArrayTaskID": "2"}
    tasks = b"".join(f"{i:<12}{7:<12}{t:<12}\n".encode() for i, t in ((7, 0), (7, 1), (9, 2)))
    (shell.folder / "tasks").write_bytes(tasks)
    (shell.folder / "own").write_bytes(cut(JOB_FIELDS, task))
    first = '[ "$3" = -r ] && exec /bin/cat tasks\n[ "$4" = -j ] && exec /bin/cat own'
    shell.answers("squeue", cut(JOB_FIELDS, {**rest, "ArrayTaskID": "0-2"}), first=first)
    found = {j.job_id: (j.array_task, j.merged) for j in shell.backend.jobs()}
    assert found == {7: ("0-1", True), 9: ("2", False)} and len(shell.calls) == 3


def test_columns_and_words_for_whole_nodes() -> None:
    assert job_fields((25, 11)) == JOB_FIELDS and job_fields((26, 5))[-1] == ("Exclusive", 8)
    for exclusive, told in (("NO", "OK"), ("NODE", "NO"), ("USER", "USER"), ("TOPO", "NO")):
        assert job_row({**JOB, "OverSubscribe": "NO", "Exclusive": exclusive}).oversubscribe == told
    assert job_row({**JOB, "mem-per-tres": "gres/gpu:512", "MinMemory": "512M"}).min_memory_mib == 0
