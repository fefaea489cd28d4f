"""Model specs: presets, config.json, Megatron arguments, parameter and FLOP counts against published numbers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.records import ModelSpec, Plan

from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.counts import (
    active_parameters,
    attention_flops_per_token,
    embedding_parameters,
    flops_per_step,
    flops_per_token,
    hardware_flops_per_step,
    layers_parameters,
    parameters,
)
from synergyd.jobmodel.model.dims import dims
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import check_spec, from_hf_config, load_model, presets

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_scaling": {"original_max_position_embeddings": 8192},
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("name", "count"),
    [  # as the published checkpoints have them
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("mistral-7b", 7_241_732_096),
        ("gemma-7b", 8_537_680_896),
        ("bert-base", 109_482_240),
        ("bert-large", 335_141_888),
        ("mixtral-8x7b", 46_702_792_704),
        ("deepseek-moe-16b", 16_375_728_128),
        ("llama3-405b", 405_853_388_800),
    ],
)
def test_parameters_are_those_of_the_published_checkpoints(name: str, count: int) -> None:
    assert parameters(load_model(name)) == count


@pytest.mark.parametrize(
    ("name", "billions"), [("gpt3-1.3b", 1.3), ("gpt3-13b", 13), ("gpt3-175b", 175), ("bert-large", 0.335)]
)
def test_parameters_of_models_known_by_their_rounded_size(name: str, billions: float) -> None:
    assert parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize(
    ("name", "count", "within"),
    [  # published checkpoints: small vectors (biases of q, k, v; norms of q and k; shared experts' gates) are left out
        ("qwen2.5-7b", 7_615_616_512, 1e-4),
        ("qwen2.5-72b", 72_706_203_648, 1e-4),
        ("qwen1.5-moe-a2.7b", 14_315_784_192, 1e-4),
        ("qwen3-30b-a3b", 30_532_122_624, 1e-5),
        ("qwen3-235b-a22b", 235_093_634_560, 1e-5),
        ("gpt-neox-20b", 20_554_567_680, 1e-3),  # rotary: it has no positions
        ("qwen3-8b", 8_190_735_360, 1e-5),
        ("qwen3-32b", 32_762_123_264, 1e-5),
        (
            "deepseek-v3",
            671_026_419_200,
            1e-6,
        ),  # of the checkpoint without its layer of multi-token prediction; router biases
        ("deepseek-v2", 235_741_434_880, 1e-6),
        ("gpt-oss-120b", 116.83e9, 5e-4),  # model card, table 1; biases are left out
        ("gpt-oss-20b", 20.91e9, 5e-4),
        # SC'21, table 1; Smith et al. 2022
        ("megatron-18b", 18.4e9, 0.01),
        ("megatron-145b", 145.6e9, 0.01),
        ("megatron-530b", 529.6e9, 0.001),
        ("megatron-1t", 1008.0e9, 0.001),
    ],
)
def test_parameters_are_close_to_published_counts(name: str, count: float, within: float) -> None:
    assert parameters(load_model(name)) == pytest.approx(count, rel=within)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),
        ("mixtral-8x22b", 39),
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22),
        ("llama2-7b", 6.74),
        ("deepseek-v3", 37),  # DeepSeek-AI 2024, abstract
        ("deepseek-v2", 21),
        ("deepseek-moe-16b", 2.8),  # Dai et al. 2024, section 5
    ],
)
def test_active_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert active_parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(("name", "billions"), [("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61)])
def test_active_parameters_of_gpt_oss(name: str, billions: float) -> None:
    """Its model card (table 1) counts the output layer but not the token embedding."""
    model = load_model(name)
    assert (active_parameters(model) - embedding_parameters(model)) / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize(
    ("name", "flops", "count"),
    [  # what Megatron-LM core_v0.16.1 prints: num_floating_point_operations of one sequence, parameters of
        # compute_weight_and_optimizer_memory (which leaves out biases, positions and the router)
        ("gpt3-175b", 2174725971247104, 174568476672),
        ("llama3-70b", 3680031058427904, 70553706496),
        ("llama2-7b", 175569673125888, 6738415616),
        ("gemma-7b", 465814973054976, 8537680896),
        ("mixtral-8x7b", 679343567142912, 46701744128),
        ("qwen1.5-moe-a2.7b", 136515535503360, 14312638464),
        ("qwen3-30b-a3b", 94233729957888, 30519527424),
    ],
)
def test_counts_are_those_of_megatron_lm(name: str, flops: int, count: int) -> None:
    model = load_model(name)
    # Megatron counts the half of the scores that a causal mask leaves
    causal = flops_per_token(model) - attention_flops_per_token(model) / 2
    assert causal * model.seq == pytest.approx(flops, rel=1e-12)
    assert parameters(model) == pytest.approx(count, rel=5e-4)


@pytest.mark.parametrize(
    ("name", "degrees", "micro", "state", "activations"),
    [  # the same file's weights and optimizer, and activations, of (tp, pp, dp) with the distributed optimizer, bytes
        ("gpt3-175b", (8, 16, 8), 1, 10771397280, 10318020608),
        ("llama3-70b", (8, 8, 8), 1, 9006767040, None),
        ("llama2-7b", (2, 1, 8), 2, 25269058560, None),
        ("llama3-8b", (4, 2, 4), 1, 9034043904, None),
    ],
)
def test_memory_is_that_of_megatron_lm(
    name: str, degrees: tuple[int, int, int], micro: int, state: int, activations: int | None
) -> None:
    """Its activations are a GPT's: gated units and query groups are not in them."""
    tp, pp, dp = degrees
    plan = Plan(tp, pp, dp, micro, 64 * dp * micro, sequence_parallel=True)
    found = peak_memory(load_model(name), figures("h100"), from_plans([plan], 8)).parts(0)
    assert found["weights"] + found["optimizer"] == pytest.approx(state, rel=0.02)
    if activations is not None:
        assert found["activations"] + found["logits"] == pytest.approx(activations, rel=1e-3)


def test_every_second_layer_with_experts() -> None:
    dense = ModelSpec("d", 6, 64, 4, 4, 256, 100, 32)
    every, half = (ModelSpec("m", 6, 64, 4, 4, 256, 100, 32, experts=8, top_k=2, moe_every=n) for n in (1, 2))
    extra = layers_parameters(every) - layers_parameters(dense)
    assert layers_parameters(half) - layers_parameters(dense) == extra / 2
    # two experts of the same width do twice a dense MLP's work
    mlp = 6 * 2 * 64 * 256
    assert flops_per_token(every) - flops_per_token(dense) == 6 * mlp
    assert flops_per_token(half) - flops_per_token(dense) == 3 * mlp


def test_an_odd_number_of_layers_has_the_experts_that_megatron_gives_it() -> None:
    # layers 0, 2, 4 and 6 of 7
    model = ModelSpec("m", 7, 64, 4, 4, 256, 100, 32, experts=8, top_k=2, moe_every=2)
    sizes = dims(model)
    assert float(sizes.moe_share) == pytest.approx(4 / 7)
    experts = 4 * 8 * (2 * 64 * 256 + 256 + 64)
    assert float(sizes.expert_parameters) * 7 == pytest.approx(experts)
    assert dims(replace(model)) is sizes


def test_every_preset_can_exist() -> None:
    for name in presets():
        assert load_model(name).name == name
    assert load_model("gpt-mini") == ModelSpec("gpt-mini", 4, 64, 4, 4, 256, 256, 64, False, False)


def test_flops_are_those_of_the_sc21_formula() -> None:
    model = load_model("gpt3-175b")
    s, h, layers, vocab, batch = model.seq, model.hidden, model.layers, model.vocab, 1536
    paper = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert hardware_flops_per_step(model, batch, "full") == pytest.approx(paper, rel=1e-12)
    # without recompute the layers' share is three quarters of it
    plain = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert flops_per_step(model, batch) == pytest.approx(plain, rel=1e-12)
    selective = hardware_flops_per_step(model, batch, "selective")
    assert flops_per_step(model, batch) < selective < hardware_flops_per_step(model, batch, "full")


def test_flops_of_a_token_are_six_a_weight_and_attention() -> None:
    model = load_model("llama3-8b")
    weights = parameters(model) - model.vocab * model.hidden - (2 * model.layers + 1) * model.hidden
    attention = 12 * model.layers * model.seq * model.hidden
    assert flops_per_token(model) == pytest.approx(6 * weights + attention, rel=1e-12)


def test_hf_config_of_a_llama(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    expected = load_model("llama3-8b")
    for where in (str(path), str(tmp_path)):
        found = load_model(where)
        assert {**vars(found), "name": ""} == {**vars(expected), "name": ""}
    assert load_model(str(path), seq=4096).seq == 4096


def test_hf_config_of_gpt2(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                "n_layer": 12,
                "n_embd": 768,
                "n_head": 12,
                "n_inner": None,
                "vocab_size": 50257,
                "n_positions": 1024,
            }
        )
    )
    assert parameters(load_model(str(path))) == 124_439_808


MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rope_scaling": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN_MOE = {
    "model_type": "qwen2_moe",
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "vocab_size": 151936,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
DEEPSEEK_MOE = {
    "model_type": "deepseek",
    "num_hidden_layers": 28,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "vocab_size": 102400,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_layer_freq": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 1, "vocab_size": 129280, "max_position_embeddings": 163840,
    "rope_scaling": {"original_max_position_embeddings": 4096}, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4, "vocab_size": 201088,
    "max_position_embeddings": 131072, "rope_scaling": {"original_max_position_embeddings": 4096}, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3_moe", "num_hidden_layers": 94, "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "vocab_size": 151936, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA = {**LLAMA, "model_type": "gemma", "num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 16,
         "num_key_value_heads": 16, "head_dim": 256, "intermediate_size": 24576, "vocab_size": 256000,
         "rope_scaling": None, "max_position_embeddings": 8192, "tie_word_embeddings": None}  # fmt: skip
BERT = {"model_type": "bert", "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16,
        "intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN_MOE, "qwen1.5-moe-a2.7b"),
        (DEEPSEEK_MOE, "deepseek-moe-16b"),
        (DEEPSEEK_V3, "deepseek-v3"),
        (GPT_OSS, "gpt-oss-120b"),
        (QWEN3, "qwen3-235b-a22b"),
        (GEMMA, "gemma-7b"),
        (BERT, "bert-large"),
    ],
)
def test_hf_configs_of_other_kinds(tmp_path: Path, config: dict[str, object], preset: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert {**vars(load_model(str(tmp_path))), "name": ""} == {**vars(load_model(preset)), "name": ""}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**MIXTRAL, "num_local_experts": None}, "key num_local_experts is missing"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "top_k is 9 of 8 experts"),
        ({**MIXTRAL, "num_experts_per_tok": "2"}, "num_experts_per_tok is '2'"),
        ({**DEEPSEEK_MOE, "first_k_dense_replace": 28}, "dense_layers is 28 of 28 layers"),
        ({**DEEPSEEK_MOE, "model_type": "deepseek_v2", "kv_lora_rank": 512}, "key qk_rope_head_dim is missing"),
        ({**DEEPSEEK_V3, "v_head_dim": 0}, "needs kv_lora, head_dim and value_dim"),
        ({**DEEPSEEK_V3, "q_lora_rank": -1}, "q_lora is -1"),
    ],
)
def test_bad_moe_configs(tmp_path: Path, config: dict[str, object], says: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=says):
        load_model(str(tmp_path))


def changed(**values: object) -> str:
    return json.dumps({k: v for k, v in {**LLAMA, **values}.items() if v != "absent"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (changed(model_type="mamba"), "unknown architecture model_type='mamba'"),
        (changed(model_type=["llama"]), "unknown architecture"),
        (changed(hidden_size="absent"), "hidden_size is missing"),
        (changed(hidden_size="4096"), "hidden_size is '4096'"),
        (changed(hidden_size=True), "hidden_size is True"),
        (changed(num_attention_heads=0), "heads is 0"),
        (changed(num_attention_heads=31), "not a multiple of heads"),
        (changed(num_key_value_heads=5), "not a multiple of kv_heads"),
        (changed(num_hidden_layers=10**12), "layers is"),
        (changed(head_dim="256"), "head_dim is '256'"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object"),
        ("\x00\xff", "not JSON"),
    ],
)
def test_bad_config_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError) as error:
        load_model(str(path))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["nope", "", "/proc/self/mem", "/dev/null", "a\nb", "\0", "x" * 5000])
def test_neither_preset_nor_config(name: str) -> None:
    with pytest.raises(UsageError) as error:
        load_model(name)
    assert "\n" not in str(error.value)


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-4, 10**12), st.floats(), st.text(max_size=3), st.lists(st.integers())
)


@settings(max_examples=150, deadline=None)
@given(
    base=st.sampled_from([LLAMA, MIXTRAL, QWEN_MOE, DEEPSEEK_MOE, DEEPSEEK_V3, GPT_OSS, GEMMA, BERT]),
    changes=st.dictionaries(
        st.sampled_from(sorted({*MIXTRAL, *QWEN_MOE, *DEEPSEEK_MOE, *DEEPSEEK_V3, "head_dim"})), ODD, max_size=4
    ),
)
def test_any_config_is_a_model_or_one_line(base: dict[str, object], changes: dict[str, object]) -> None:
    try:
        spec = from_hf_config({**base, **changes}, "model x")
    except UsageError as error:
        assert "\n" not in str(error) and str(error).startswith("model x: ")
    else:
        assert check_spec(spec, "model x") == spec and parameters(spec) > 0
        assert 0 < active_parameters(spec) <= parameters(spec) and flops_per_token(spec) > 0
