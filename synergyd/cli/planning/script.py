"""`synergyctl plan --render`: the batch script of a plan, with Megatron-LM's pretrain_gpt.py."""

from __future__ import annotations

from synergy_core.errors import UsageError
from synergy_core.records import ModelSpec
from synergy_launch.launcher.commands.batch_script import ScriptRequest
from synergy_launch.launcher.commands.batch_script import render as rendered

from synergyd.jobmodel.model.counts import head_width, moe_layers
from synergyd.jobmodel.model.hardware import GIB
from synergyd.jobmodel.plan_table import PlanTable


def script(table: PlanTable) -> str:
    """Return the script of the best plan on the most GPUs.

    It trains on made-up data, which measures the plan. Raise UsageError for a model that pretrain_gpt.py does not train, or if no
    plan fits.
    """
    model = table.model
    if not model.causal:
        raise UsageError("--render", f"{model.name} is an encoder", "the script is for Megatron-LM's pretrain_gpt.py")
    count = next((count for count in reversed(table.counts) if count.rows), None)
    if count is None:
        raise UsageError("--render", f"{table.counts[-1].gpus} GPUs: {table.counts[-1].why_none}")
    row = count.rows[0]
    cell = row.cell
    if cell.plan.exchange != "exact":
        what = f"the best plan exchanges by {cell.plan.exchange}, and Megatron-LM's pretrain_gpt.py every gradient in every step"
        raise UsageError("--render", what, "leave comm out; a SynergyTask job says comm= in its #SYNERGY line")
    why = (
        f"predicted: {cell.step_s:.3g} s a step, +- {100 * cell.uncertainty:.0f} %, {100 * row.mfu:.1f} % MFU, "
        f"{cell.memory_bytes / GIB:.1f} of {table.usable_bytes / GIB:.1f} GiB a GPU, too much with a probability of "
        f"{100 * row.risk:.0f} %; --mock-data, --tokenizer-type and --train-iters are to be replaced by your own"
    )
    command = ("pretrain_gpt.py", *model_arguments(model, cell.plan.precision))
    return rendered(
        ScriptRequest(job_name=model.name, command=command, shape=cell.shape, plan=cell.plan, style="megatron", why=why)
    )


def model_arguments(model: ModelSpec, precision: str) -> list[str]:
    """Return the options of Megatron-LM core_v0.16.1 for the model's sizes, made-up data and 50 iterations.

    Routing (sigmoid or group-limited scores, expert bias) and what stands inside attention (qk-layernorm, windows, sinks) are
    left to the user: a ModelSpec has neither.
    """
    sizes: dict[str, int | str] = {
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--ffn-hidden-size": model.dense_ffn or model.ffn,
        "--num-attention-heads": model.heads,
        "--seq-length": model.seq,
        "--max-position-embeddings": model.seq,
        "--vocab-size": model.vocab,
    }
    if model.kv_lora:
        sizes |= {"--q-lora-rank": model.q_lora} if model.q_lora else {}
        sizes |= {"--kv-lora-rank": model.kv_lora, "--qk-head-dim": model.head_dim}
        sizes |= {"--qk-pos-emb-head-dim": model.rope_dim, "--v-head-dim": model.value_dim}
    else:
        sizes |= {"--kv-channels": head_width(model)}
        sizes |= {"--num-query-groups": model.kv_heads} if model.kv_heads < model.heads else {}
    flags = ["--multi-latent-attention"] if model.kv_lora else []
    flags += ["--group-query-attention"] if "--num-query-groups" in sizes else []
    flags += [] if model.tied_embeddings else ["--untie-embeddings-and-output-weights"]
    if model.gated:
        flags += ["--swiglu", "--disable-bias-linear"]
        sizes |= {"--normalization": "RMSNorm", "--position-embedding-type": "rope"}
    if model.experts:
        sizes |= {"--num-experts": model.experts, "--moe-router-topk": model.top_k, "--moe-ffn-hidden-size": model.ffn}
        sizes |= {"--moe-shared-expert-intermediate-size": model.shared_ffn} if model.shared_ffn else {}
        sizes |= {"--moe-token-dispatcher-type": "alltoall", "--moe-layer-freq": model.moe_every}
        if model.dense_layers:
            with_experts = moe_layers(model)
            if model.moe_every > 1:
                right = "give a model whose layers all have experts behind the first"
                raise UsageError("--render", f"{model.name}: dense layers before and between those with experts", right)
            sizes["--moe-layer-freq"] = f"([0]*{model.dense_layers}+[1]*{with_experts})"
        flags.append("--moe-grouped-gemm")
    sizes |= {"--mtp-num-layers": model.mtp_layers} if model.mtp_layers else {}
    sizes |= {"--tokenizer-type": "NullTokenizer", "--train-iters": 50, "--lr": "1e-4"}
    flags += ["--mock-data", "--use-distributed-optimizer", "--fp16" if precision == "fp16" else "--bf16"]
    flags = [flag for flag in flags if precision != "fp32" or flag != "--bf16"]
    return [*(word for name, value in sizes.items() for word in (name, str(value))), *flags]
