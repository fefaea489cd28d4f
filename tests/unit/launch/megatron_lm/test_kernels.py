"""Which kernels a Megatron-LM command line runs with."""

from __future__ import annotations

import pytest
from synergy_core.kernels import LOCAL, UNKNOWN, Kernels, kernels_message
from synergy_launch.megatron_lm.kernels import detect_kernels, is_importable, torch_version

ARGV = ["pretrain_gpt.py", "--num-layers", "32", "--bf16"]
ENGINE, APEX = (
    {"transformer_engine"},
    {"apex", "scaled_upper_triang_masked_softmax_cuda", "fused_weight_gradient_mlp_cuda"},
)
ALL = Kernels(
    transformer_engine=True, attention=True, softmax=True, norm=True, pointwise=True, accumulation=True, optimizer=True,
    tp_overlap=False, fp8=False,
)  # fmt: skip


def detected(
    argv: list[str], there: set[str], version: tuple[int, int] | None = (0, 16), torch: tuple[int, int] | None = (2, 7)
) -> Kernels:
    return detect_kernels(argv, version, there.__contains__, torch)


def only(kernels: Kernels, name: str) -> object:
    return getattr(kernels, name)


def test_transformer_engine_fuses_all() -> None:
    assert detected(ARGV, ENGINE) == ALL
    assert kernels_message(ALL) == (
        "detected: Transformer Engine; fused attention, norms, activations, gradient sums, optimizer"
    )


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        (["--attention-backend", "unfused"], "attention", False),
        (["--attention-backend=local"], "attention", False),
        (["--no-gradient-accumulation-fusion"], "accumulation", False),
        (["--no-bias-dropout-fusion"], "pointwise", False),
        (["--no-bias-gelu-fusion"], "pointwise", False),
        (["--no-bias-gelu-fusion", "--swiglu"], "pointwise", True),
        (["--no-bias-swiglu-fusion", "--swiglu"], "pointwise", False),
        (["--fp8-format", "hybrid"], "fp8", True),
        (["--tp-comm-overlap"], "tp_overlap", True),
        (["--normalization", "RMSNorm"], "norm", True),
    ],
)
def test_its_options_count(more: list[str], name: str, value: bool) -> None:
    assert only(detected([*ARGV, *more], ENGINE), name) is value


def test_local_layers_have_what_torch_and_apex_have() -> None:
    local = [*ARGV, "--transformer-impl", "local"]
    bare = detected(local, set())
    assert bare == Kernels(**{**vars(LOCAL), "tp_overlap": False, "fp8": False})
    assert kernels_message(bare) == (
        "detected: no Transformer Engine; fused softmax, norms, activations; unfused attention, gradient sums, optimizer"
    )
    in_fp32 = [*local, "--attention-softmax-in-fp32"]
    assert detected(in_fp32, set()).softmax is False and detected(in_fp32, APEX).softmax is True
    with_apex = detected(local, APEX)
    assert with_apex.optimizer and with_apex.accumulation and not with_apex.attention
    assert detected(local, ENGINE).optimizer and not detected(local, ENGINE).attention
    assert detected([*local, "--tp-comm-overlap"], APEX).tp_overlap is False


@pytest.mark.parametrize(("torch", "fused"), [((2, 8), False), ((2, 9), True), ((3, 0), True), (None, None)])
def test_local_rms_norm_is_as_new_as_torch(torch: tuple[int, int] | None, fused: bool | None) -> None:
    argv = [*ARGV, "--transformer-impl", "local", "--normalization", "RMSNorm"]
    assert detected(argv, APEX, torch=torch).norm is fused


def test_nothing_is_known_where_transformer_engine_should_be_and_is_not_seen() -> None:
    assert detected(ARGV, APEX) == UNKNOWN  # it may be found by the script alone
    assert detected(ARGV, ENGINE, version=None) == UNKNOWN  # which layers are the default is not known
    assert detected([*ARGV, "--transformer-impl", "inference_optimized"], ENGINE) == UNKNOWN
    assert detected([*ARGV, "--transformer-impl"], ENGINE, version=None) == UNKNOWN


def test_older_versions_have_local_layers_by_default_and_flash_attention_in_older_models() -> None:
    assert detected(ARGV, set(), version=(0, 5)).transformer_engine is False
    assert detected([*ARGV, "--use-flash-attn"], set(), version=(0, 5)).attention is True
    assert detected([*ARGV, "--use-flash-attn", "--use-mcore-models"], set(), version=(0, 5)).attention is False
    assert detected([*ARGV, "--use-flash-attn", "--transformer-impl=local"], set()).attention is False


def test_modules_are_looked_for_without_importing_them() -> None:
    assert is_importable("json") and not is_importable("there_is_no_such_module") and not is_importable("")
    assert torch_version() is None or torch_version() >= (2, 0)  # type: ignore[operator]
