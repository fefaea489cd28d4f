"""Files that admins and users name: slurm.conf, measured rows, config.json.

A file each takes a fifth of a millisecond to a millisecond: 2,000 inputs of slurm.conf, 3,000 of rows and of settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from synergy_core.errors import UsageError

from synergyd.jobmodel.fit.measured_runs import read_rows
from synergyd.jobmodel.model.spec import from_hf_config, load_model
from synergyd.settings import SETTINGS, Settings
from synergyd.slurm.directives.conf import load_settings, with_values
from synergyd.slurm.directives.conf_lint import lint
from tests.unit.fuzz.checking import LONGEST_ERROR, check
from tests.unit.fuzz.generators import json_mutations, mutations
from tests.unit.jobmodel.fit.test_measured_runs import COLUMNS, GOOD

CONFS = (
    b"ClusterName=c\nJobSubmitPlugins=lua\nAuthInfo=cred_expire=60\nKillWait=30\nGresTypes=gpu\n#SYNERGY Epoch=30s ReportPort=7321\n",
    b"#SYNERGY Partitions=gpu,gpu-long SpareNodes=gpu:1,qos/high:2 AccountLimits=a:64\n#SYNERGY LeafUplink=4x100gbe\n",
    b"#SYNERGY Database='postgresql+psycopg://synergy@db:5432/synergy' StateDir=/var/lib/synergy\nNodeName=n[1-4] Gres=gpu:a100:8\n",
    b"#SYNERGY GpuType=a100 peak_tflops=312 memory_gib=80\n#SYNERGY GpuType=t4 peak_tflops=65\nPartitionName=gpu \\\n Nodes=ALL\n",
    b"Include other.conf\n#SYNERGY LinkArbiterPort=7322 LinkArbiterRule=srsf-2 MetricsPort=9100\n",
)  # fmt: skip


def test_slurm_conf(tmp_path: Path) -> None:
    path = tmp_path / "slurm.conf"
    (tmp_path / "other.conf").write_text("#SYNERGY Fairness=-1\n")

    def read(content: bytes) -> None:
        path.write_bytes(content)
        loaded = load_settings(path)
        problems = (*loaded.problems, *lint(path, loaded))
        for problem in problems:
            assert len(str(problem)) <= LONGEST_ERROR
        for problem in loaded.errors():
            raise UsageError(problem.where, problem.what, problem.right)

    check(read, "conf", mutations(CONFS, 2_000, 21))


def test_settings_of_the_command_line() -> None:
    examples = [f"{s.key}={s.example or s.type.write(getattr(Settings(), s.field))}".encode() for s in SETTINGS]
    check(
        lambda given: with_values(Settings(), "--set", [given.decode("utf-8", "surrogateescape")]),
        "conf",
        mutations(examples, 3_000, 22),
    )


def table(rows: list[dict[str, str]]) -> bytes:
    lines = [",".join(COLUMNS), *(",".join(f'"{row.get(name, "")}"' for name in COLUMNS) for row in rows)]
    return "\n".join(lines).encode() + b"\n"


def test_measured_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    other = {
        "row_id": "b",
        "model": "Llama-2-7b",
        "ffn": "5632",
        "gpu_type": "H100",
        "note": "--swiglu last rank",
        "precision": "fp8",
    }
    header, good = table([GOOD]).split(b"\n", 1)
    _, both = table([GOOD, {**GOOD, **other}]).split(b"\n", 1)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        passed_over: list[str] = []
        read_rows(path, passed_over)
        assert all(len(line) <= LONGEST_ERROR and line.isprintable() for line in passed_over)

    def inputs() -> Iterator[bytes]:
        yield from mutations([table([GOOD]), table([GOOD, {**GOOD, **other}])], 1_000, 23)
        for rows in mutations([good, both], 2_000, 24):  # with the header as it is
            yield header + b"\n" + rows

    check(read, "rows", inputs())


CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "rope_scaling": {"original_max_position_embeddings": 8192}, "head_dim": 128, "_name_or_path": "meta/llama-3.1-8b",
}  # fmt: skip
MOE = {
    **CONFIG, "model_type": "deepseek", "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}


def test_hugging_face_configs(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def read(content: bytes) -> None:
        try:
            data = json.loads(content)
        except (ValueError, RecursionError):
            path.write_bytes(content)
            load_model(str(path))
            return
        assert from_hf_config(data, "model x").name.isprintable()

    check(read, "config", json_mutations([CONFIG, MOE, GPT2], 10_000, 25))
