"""Megatron-LM's own checks of command lines, without training: run with its checkout and megatron_lm_cpu on PYTHONPATH, RANK=1.

Each line in is [number of processes, [arguments]], each line out what its checks say against them, "" for nothing: arguments.py's, the
model's and the optimizer's configurations, and what parallel_state.py and schedules.py ask of the degrees.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import sys
import types
import warnings
from typing import Any


def _pretend_transformer_engine() -> None:
    """Checks ask for its version alone."""
    import megatron.core.models.common.embeddings.rope_utils as rope
    import megatron.core.optimizer.optimizer_config as optimizer
    import megatron.core.transformer.transformer_config as transformer
    import megatron.training.arguments as arguments
    from packaging.version import Version

    for module in (arguments, transformer, optimizer):
        for name, answer in (
            ("is_te_min_version", lambda *_args, **_more: True),
            ("get_te_version", lambda: Version("2.9.0")),
        ):
            if hasattr(module, name):
                setattr(module, name, answer)
    rope.fused_apply_rotary_pos_emb = rope.fused_apply_rotary_pos_emb_thd = print

    def fused_adam(
        master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any
    ) -> None:
        """Its arguments are looked at."""

    optimizers = types.ModuleType("transformer_engine.pytorch.optimizers")
    optimizers.FusedAdam = fused_adam  # type: ignore[attr-defined]
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[optimizers.__name__] = optimizers


def _check(world: int, words: list[str]) -> None:
    from megatron.core.optimizer.optimizer_config import OptimizerConfig
    from megatron.training import arguments

    os.environ["WORLD_SIZE"] = str(world)
    shared_out = "--use-torch-fsdp2" in words or "--use-megatron-fsdp" in words
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8" if shared_out else "1"
    sys.argv = ["pretrain_gpt.py", *words]
    args: Any = arguments.parse_args()
    arguments.validate_args(args)
    config = arguments.core_transformer_config_from_args(args)
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(OptimizerConfig) if hasattr(args, f.name)}
    OptimizerConfig(**given)
    # parallel_state.initialize_model_parallel
    experts = args.expert_tensor_parallel_size * args.expert_model_parallel_size * args.pipeline_model_parallel_size
    assert world % experts == 0, f"{world} processes, experts' degrees {experts}"
    # num_microbatches_calculator.py
    each = args.micro_batch_size * args.data_parallel_size
    assert args.global_batch_size % each == 0, f"batch {args.global_batch_size} is no multiple of {each}"
    if args.virtual_pipeline_model_parallel_size:
        # schedules.forward_backward_pipelining_with_interleaving
        count, group, pp = (
            args.global_batch_size // each,
            config.microbatch_group_size_per_vp_stage,
            args.pipeline_model_parallel_size,
        )
        assert pp <= group <= count and not 0 < count % group < pp, f"groups of {group} of {count}, pp {pp}"


def main() -> None:
    warnings.simplefilter("ignore")
    _pretend_transformer_engine()
    for line in sys.stdin:
        said = ""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            try:
                _check(*json.loads(line))
            except SystemExit:
                said = errors.getvalue()[-300:]
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
