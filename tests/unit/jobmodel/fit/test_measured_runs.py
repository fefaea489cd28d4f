"""Reading measured rows: what is taken, and one clear line for what is wrong."""

from pathlib import Path

import pytest
from synergy_core.errors import UsageError

from synergyd.jobmodel.fit.measured_runs import MeasuredRun, Shots, read_files, read_rows, shots

MODEL = ("model", "layers", "hidden", "ffn", "heads", "kv_heads", "vocab", "seq")
PLACE = ("gpu_type", "gpus_per_node", "n_gpus")
PLAN = ("tp", "pp", "vpp", "cp", "dp", "ep", "micro_batch", "global_batch", "recompute", "seq_parallel", "zero_stage")
REST = ("precision", "iter_time_s", "mem_gb", "note", "score_as", "group")
COLUMNS = ["row_id", "source", *MODEL, *PLACE, *PLAN, *REST, "software", "shard_ranks", "inter_gbs"]
GOOD = {
    "row_id": "a-1",
    "source": "Somebody's cluster, 2026",
    "model": "GPT",
    "layers": "24",
    "hidden": "2048",
    "heads": "16",
    "seq": "1024",
    "gpu_type": "A100-80GB",
    "gpus_per_node": "8",
    "n_gpus": "8",
    "tp": "2",
    "pp": "2",
    "dp": "2",
    "micro_batch": "4",
    "global_batch": "64",
    "recompute": "full",
    "iter_time_s": "1.5",
    "mem_gb": "20",
    "score_as": "time+mem",
    "group": "g",
}


def write(folder: Path, *rows: dict[str, str], columns: list[str] = COLUMNS) -> Path:
    path = folder / "rows.csv"
    lines = [",".join(columns)] + [",".join(f'"{row.get(c, "")}"' for c in columns) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def one(folder: Path, **changes: str) -> MeasuredRun:
    (row,) = read_rows(write(folder, {**GOOD, **changes}))
    return row


def test_a_row_and_its_defaults(tmp_path: Path) -> None:
    row = one(tmp_path)
    assert (row.cluster, row.gpu_type, row.file, row.line) == ("somebody's", "a100-80", "rows.csv", 2)
    assert (row.model.ffn, row.model.kv_heads, row.model.gated, row.model.tied_embeddings) == (8192, 16, False, True)
    assert (row.plan.zero_stage, row.plan.vpp, row.plan.cp, row.plan.ep, row.plan.precision) == (0, 1, 1, 1, "bf16")
    assert (row.time_s, row.memory_bytes, row.scores) == (1.5, 20e9, frozenset({"time", "mem"}))


def test_software_is_told_apart(tmp_path: Path) -> None:
    """ZeRO-3 is DeepSpeed's where it is named so; FSDP's selective checkpointing is not Megatron's."""
    zero3 = {"tp": "1", "pp": "1", "dp": "8", "zero_stage": "3"}
    assert one(tmp_path, **zero3, note="DeepSpeed baseline").deepspeed
    assert one(tmp_path, **zero3, source="Somebody ZeRO-3").deepspeed
    assert not one(tmp_path, **zero3).deepspeed and not one(tmp_path, **zero3, note="FSDP (ZeRO-3)").deepspeed
    assert not one(tmp_path, note="Megatron-DeepSpeed").deepspeed
    assert not one(tmp_path, source="NVIDIA nemo_megatron/README.md").overlaps  # only the column says so
    for changes in ({"recompute": "selective-AC"}, {"recompute": "selective"}):
        row = one(tmp_path, **zero3, **changes)
        assert row.plan.recompute == "operators" and row.fused is True
    sizes = [
        one(tmp_path, **{**zero3, "zero_stage": "1"}, note=f"micro_num=4; zero1={n} (group)").shard_ranks
        for n in (-1, 4, 8, 3)
    ]
    assert sizes == [0, 4, 0, 0]
    megatrons = one(tmp_path, recompute="selective")
    assert megatrons.plan.recompute == "selective" and megatrons.fused is False


def test_columns_say_it_before_free_text(tmp_path: Path) -> None:
    zero3 = {"tp": "1", "pp": "1", "dp": "8", "zero_stage": "3"}
    assert one(tmp_path, **zero3, software="DeepSpeed").deepspeed
    assert not one(tmp_path, **zero3, software="fsdp", note="as fast as DeepSpeed").deepspeed
    assert one(tmp_path, **{**zero3, "zero_stage": "1"}, shard_ranks="4", note="zero1=2").shard_ranks == 4
    assert one(tmp_path, inter_gbs="12.5").inter_gbs == 12.5 and one(tmp_path).inter_gbs is None
    assert (
        one(tmp_path, software="nemo").overlaps and not one(tmp_path, software="megatron", note="as in NeMo").overlaps
    )
    with pytest.raises(UsageError, match="software is 'JAX'; known are megatron, deepspeed, fsdp, nemo"):
        one(tmp_path, software="JAX")


@pytest.mark.parametrize(
    ("word", "precision"),
    [
        ("bfloat16", "bf16"),
        ("bf16-mixed", "bf16"),
        ("bf16 + fp8 (delayed scaling)", "fp8"),
        ("mxfp8", "fp8"),
        ("FP8_CS", "fp8"),
        ("float16", "fp16"),
        ("16-mixed", "fp16"),
        ("TF32", "fp32"),
        ("mixed", "bf16"),
        ("", "bf16"),
    ],
)
def test_words_for_precisions(tmp_path: Path, word: str, precision: str) -> None:
    assert one(tmp_path, precision=word).plan.precision == precision


@pytest.mark.parametrize(
    ("changes", "gated", "tied"),
    [
        ({"ffn": "8192"}, False, True),
        ({"ffn": "5632"}, True, False),
        ({"model": "Llama-2"}, True, False),
        ({"note": "flags: --swiglu"}, True, True),
        ({"note": "flags: --untie-embeddings-and-output-weights"}, False, False),
    ],
)
def test_kind_of_model(tmp_path: Path, changes: dict[str, str], gated: bool, tied: bool) -> None:
    model = one(tmp_path, **changes).model
    assert (model.gated, model.tied_embeddings) == (gated, tied)


def test_a_note_says_what_was_measured(tmp_path: Path) -> None:
    row = one(tmp_path, note="torch peak of the LAST rank; flags: --attention-backend=unfused")
    assert row.last_stage and row.fused is False
    assert one(tmp_path, note="--attention-backend=flash").fused is True
    assert one(tmp_path).fused is None and not one(tmp_path).last_stage


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"iter_time_s": "-1"}, "iter_time_s is -1"),
        ({"iter_time_s": "nan"}, "iter_time_s is nan"),
        ({"mem_gb": "0"}, "mem_gb is 0"),
        ({"iter_time_s": "fast"}, "must be a number"),
        ({"gpu_type": "abacus"}, "'abacus' is not known; known are v100"),
        ({"tp": ""}, "tp is empty"),
        ({"tp": "1.5"}, "tp is 1.5"),
        ({"tp": "4"}, "tp x pp x cp x dp is 16, n_gpus 8"),
        ({"heads": "15"}, "hidden 2048 is not a multiple of heads 15"),
        ({"recompute": "some"}, "recompute is 'some'; known are none"),
        ({"precision": "int8"}, "known are bf16"),
        ({"zero_stage": "4"}, "it must be 0, 1, 2 or 3"),
        ({"global_batch": "4"}, "less than dp x micro_batch"),
        ({"row_id": ""}, "row_id is empty"),
        ({"seq_parallel": "maybe"}, "seq_parallel is 'maybe'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, changes: dict[str, str], says: str) -> None:
    path = write(tmp_path, GOOD, {**GOOD, "row_id": "a-2", **changes})
    with pytest.raises(UsageError) as error:
        read_rows(path)
    assert str(error.value).startswith(f"{path}:3: ") and says in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_no_rows(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing columns heads, tp"):
        read_rows(write(tmp_path, columns=[c for c in COLUMNS if c not in ("heads", "tp")]))
    with pytest.raises(UsageError, match="No such file"):
        read_rows(tmp_path / "none.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_rows(tmp_path / "binary")
    with pytest.raises(UsageError, match="row_id a-1 is on line 2 too"):
        read_rows(write(tmp_path, GOOD, GOOD))
    with pytest.raises(UsageError, match="no row that can be used"):
        read_files([write(tmp_path, {**GOOD, "score_as": "time-partial"})])


def test_rows_that_say_too_little_are_passed_over(tmp_path: Path) -> None:
    partial = {**GOOD, "row_id": "a-2", "score_as": "time-partial", "micro_batch": "", "seq": ""}
    unmeasured = {**GOOD, "row_id": "a-3", "iter_time_s": "", "mem_gb": ""}
    assert [row.row_id for row in read_rows(write(tmp_path, GOOD, partial, unmeasured))] == ["a-1"]


def test_rows_that_contradict_themselves_can_be_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, {**GOOD, "row_id": "a-2", "tp": "4"}, {**GOOD, "row_id": "a-3", "pp": ""})
    said: list[str] = []
    assert [row.row_id for row in read_rows(path, said)] == ["a-1"]
    assert [line.split("; ")[0] for line in said] == [
        f"{path}:3: tp x pp x cp x dp is 16, n_gpus 8",
        f"{path}:4: pp is empty",
    ]
    with pytest.raises(UsageError, match="mem_gb is -1"):
        read_rows(write(tmp_path, {**GOOD, "mem_gb": "-1"}), said)


def test_a_word_that_is_not_known_costs_its_own_row(tmp_path: Path) -> None:
    words = (
        {"precision": "nvfp4"},
        {"gpu_type": "abacus"},
        {"recompute": "some"},
        {"precision": "MXFP8", "gpu_type": "GB300"},
    )
    path = write(tmp_path, GOOD, *({**GOOD, "row_id": f"b-{i}", **changes} for i, changes in enumerate(words)))
    said: list[str] = []
    rows = read_rows(path, said)
    assert [row.row_id for row in rows] == ["a-1", "b-3"] and len(said) == 3
    assert (rows[1].plan.precision, rows[1].gpu_type, rows[1].fused) == ("fp8", "gb300", True)


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    paths = [write(folder, GOOD) for folder in folders]
    assert [row.file for row in read_files(paths)] == [str(path) for path in paths]
    assert [row.file for row in read_files([paths[0], paths[0]])] == [str(paths[0])]


def test_shots_are_the_same_every_time_and_leave_some_to_score(tmp_path: Path) -> None:
    rows = read_rows(
        write(tmp_path, *({**GOOD, "row_id": f"a-{i}"} for i in range(10)), {**GOOD, "row_id": "b", "hidden": "4096"})
    )
    taken, left = shots(rows, Shots(each=5))
    assert len(taken) == 5 and len(left) == 6 and {*taken, *left} == {*rows}
    assert shots(tuple(reversed(rows)), Shots(each=5))[0] == tuple(reversed(taken))
    # more than there are: one is kept, and so is a model's only row
    assert len(shots(rows, Shots(each=50))[1]) == 2
    assert shots(rows, Shots()) == ((), rows)
    # over all models of the cluster
    assert len(shots(rows, Shots(in_all=5))[0]) == 5 and len(shots(rows, Shots(in_all=50))[1]) == 1
