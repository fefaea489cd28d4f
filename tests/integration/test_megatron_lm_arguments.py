"""Megatron-LM's own checks of the command lines that synergy-launch makes of users' options and plans: none is refused.

$MEGATRON_LM and what it needs are as in test_megatron_lm.py. The options are those whose checks look at degrees that a plan may change.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from synergy_core.accepts import Accepts
from synergy_core.records import Plan
from synergy_launch.megatron_lm.arguments import read_plan, with_plan
from synergy_launch.megatron_lm.capabilities import accepts

from tests.integration.test_megatron_lm import MEGATRON, _paths
from tests.integration.test_megatron_lm import pytestmark as pytestmark
from tests.paths import ROOT

GPT = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 --global-batch-size 32 "
    "--train-iters 10 --lr 1e-3 --tokenizer-type NullTokenizer --vocab-size 256 --mock-data --bf16 --save-interval 5 --save /x --load /x"
)
MOE = "--num-experts 8 --disable-bias-linear --moe-token-dispatcher-type alltoall"
TE, SP = "--transformer-impl transformer_engine", "--sequence-parallel"
VPP = "--num-layers-per-virtual-pipeline-stage"
SHARED_OPTIMIZER = "--use-distributed-optimizer"
# (tp, pp) of the user's own run of 8 processes, and the options
OPTIONS = {
    "plain": (1, 1, ""),
    "tensor-parallel overlap": (4, 1, f"{SP} --tp-comm-overlap"),
    "virtual stages, p2p in turn": (1, 4, f"{VPP} 1 --no-overlap-p2p-communication"),
    "p2p in turn": (1, 4, "--no-overlap-p2p-communication"),
    "p2p overlapped from the first to the last": (1, 4, f"{VPP} 1 --overlap-p2p-communication-warmup-flush"),
    "groups of micro-batches": (1, 2, f"{VPP} 2 --microbatch-group-size-per-virtual-pipeline-stage 4"),
    "activations over tp": (
        2,
        1,
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --distribute-saved-activations",
    ),
    "gather in the step": (
        1,
        2,
        f"{VPP} 2 {SHARED_OPTIMIZER} --overlap-grad-reduce --overlap-param-gather --overlap-param-gather-with-optimizer-step "
        "--ckpt-format torch",
    ),
    "embedding's gradient deferred": (1, 2, "--defer-embedding-wgrad-compute"),
    "inference by micro-batches": (1, 2, "--inference-batch-times-seqlen-threshold 512"),
    "layers in host memory": (1, 1, f"--cpu-offloading-num-layers 2 {TE}"),
    "experts": (1, 1, f"{MOE} --expert-model-parallel-size 8"),
    "experts with biases": (1, 1, "--num-experts 8 --expert-model-parallel-size 2"),
    "experts not cut": (8, 1, f"{SP} {MOE} --expert-model-parallel-size 8 --expert-tensor-parallel-size 1"),
    "experts cut in two": (2, 1, f"{SP} {MOE} --expert-model-parallel-size 2 --expert-tensor-parallel-size 2"),
    "experts' all-to-all overlapped": (
        1,
        2,
        f"{MOE} --expert-model-parallel-size 4 --overlap-moe-expert-parallel-comm {VPP} 2",
    ),
    "weight gradients delayed": (
        1,
        1,
        f"{MOE} --expert-model-parallel-size 4 --overlap-moe-expert-parallel-comm --delay-wgrad-compute {TE}",
    ),
    "grouped experts": (1, 1, f"{MOE} --moe-grouped-gemm"),
    "shared experts overlapped": (
        1,
        1,
        f"{MOE} --moe-shared-expert-intermediate-size 64 --moe-shared-expert-overlap",
    ),
    "local CUDA graphs": (1, 1, "--cuda-graph-impl local --te-rng-tracker"),
    "CUDA graphs of attention": (1, 1, "--cuda-graph-impl transformer_engine --cuda-graph-scope attn"),
    "CUDA graphs of experts' router": (
        1,
        1,
        f"{MOE} --cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router",
    ),
    "CUDA graphs, local, with experts": (1, 1, f"{MOE} --cuda-graph-impl local"),
    "CUDA graphs by their older name": (1, 1, "--enable-cuda-graph"),
    "Muon": (1, 1, "--optimizer muon"),
    "Muon, distributed": (1, 1, "--optimizer dist_muon"),
    "SGD": (1, 1, "--optimizer sgd"),
    "fp8": (1, 1, "--fp8-format hybrid"),
    "fp8 parameters": (1, 1, f"--fp8-format hybrid --fp8-param-gather {SHARED_OPTIMIZER}"),
    "optimizer in other types": (
        1,
        1,
        f"{SHARED_OPTIMIZER} --use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
    ),
    "optimizer in host memory": (1, 1, f"{SHARED_OPTIMIZER} --use-precision-aware-optimizer --optimizer-cpu-offload"),
    "latent attention": (1, 1, "--multi-latent-attention --disable-bias-linear --position-embedding-type rope"),
    "grouped queries": (1, 1, "--group-query-attention --num-query-groups 2"),
    "groups of context ranks": (
        1,
        1,
        "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2",
    ),
    "FSDP2": (
        1,
        1,
        "--use-torch-fsdp2 --no-gradient-accumulation-fusion --untie-embeddings-and-output-weights --ckpt-format torch_dist",
    ),
    "Megatron FSDP": (
        1,
        1,
        f"--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor {SHARED_OPTIMIZER} "
        "--no-gradient-accumulation-fusion",
    ),
    "optimizer instances": (1, 1, f"{SHARED_OPTIMIZER} --num-distributed-optimizer-instances 2"),
    "uneven stages": (1, 4, "--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 1"),
    "ends that count": (1, 2, "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"),
    "own layout": (1, 2, "--pipeline-model-parallel-layout Et*4|t*4L"),
    "multi-token prediction": (1, 1, "--mtp-num-layers 1 --position-embedding-type rope"),
    "linear attention": (
        1,
        1,
        "--experimental-attention-variant gated_delta_net --linear-attention-freq 4 --linear-conv-kernel-dim 4 "
        "--linear-key-head-dim 8 --linear-value-head-dim 8 --linear-num-key-heads 8 --linear-num-value-heads 8",
    ),
    "ranks by tp, pp, dp": (2, 2, f"{SP} --use-tp-pp-dp-mapping"),
    "weights compared": (1, 1, "--check-weight-hash-across-dp-replicas-interval 10"),
    "no gloo": (1, 1, "--disable-gloo-process-groups"),
    "sequence parallel at tp 1": (1, 1, SP),
    "older recompute": (1, 1, "--recompute-activations"),
    "experts' recompute": (1, 1, f"{MOE} --moe-layer-recompute"),
}
PLANS = 16  # of each case, drawn from all
Ask = Callable[[int, list[str]], str]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """What Megatron-LM says against a command line."""
    environment = {**os.environ, "RANK": "1", "PYTHONPATH": _paths()}
    command = [sys.executable, str(ROOT / "tests/throwaway/megatron_lm_checks.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=MEGATRON
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        into, out = process.stdin, process.stdout

        def asked(world: int, words: list[str]) -> str:
            into.write(json.dumps([world, words]) + "\n")
            into.flush()
            return str(json.loads(out.readline()))

        yield asked
        into.close()


def plans(takes: Accepts, world: int) -> list[Plan]:
    """Of all degrees that the script is said to take."""
    found = []
    each = (1, 2, 4, 8)
    modules = [(name, 0) for name in takes.modules.split("+") if name]
    kinds = [("none", 0), ("selective", 0), ("full", 0), *([("full", 1)] if takes.blocks else []), *modules]
    for tp, pp, cp, ep in itertools.product(
        each, (1,) if takes.single_stage else each, each[:3] if takes.cp else (1,), each if takes.ep else (1,)
    ):
        dp = world // (tp * pp * cp)
        if not dp or dp * cp % ep:
            continue
        for vpp, micro, (recompute, layers) in itertools.product((1, 2) if takes.vpp else (1,), (1, 2), kinds):
            count, rest = divmod(32, dp * micro)
            if rest or not count or (vpp > 1 and (pp not in (2, 4) or count % pp)):
                continue
            found.append(
                Plan(
                    tp,
                    pp,
                    dp,
                    micro,
                    32,
                    recompute,
                    sequence_parallel=tp > 1,
                    zero_stage=0 if takes.whole_optimizer else 1,
                    vpp=vpp,
                    cp=cp,
                    ep=ep,
                    precision=takes.precision or "bf16",
                    recompute_layers=layers,
                    cp_comm="a2a" if takes.a2a and cp > 1 and micro > 1 else "p2p",
                    shard=dp * cp // 2 if takes.shard and dp * cp > 2 and dp * cp // 2 % ep == 0 and micro > 1 else 0,
                )
            )
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_no_plan_makes_a_command_line_that_megatron_lm_refuses(name: str, ask: Ask) -> None:
    tp, pp, more = OPTIONS[name]
    own = f"{GPT} {more} --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --micro-batch-size 1"
    words = own.split()
    assert ask(8, words) == ""
    all_plans = [plan for world in (8, 16) for plan in plans(accepts(words), world)]
    for plan in random.Random(name).sample(all_plans, PLANS):
        world = plan.tp * plan.pp * plan.dp * plan.cp
        made = with_plan(words, plan, "/x")
        assert ask(world, made) == "", (plan, " ".join(made))
        ran = read_plan(made, world)
        assert ran is not None and (ran.tp, ran.pp, ran.micro_batch) == (plan.tp, plan.pp, plan.micro_batch)
        assert with_plan(made, plan, "/x") == made
