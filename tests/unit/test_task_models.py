"""Model specs: presets, config.json, Megatron arguments, parameter and FLOP counts against published numbers."""

import json

import pytest

from synergyd.errors import UsageError
from synergyd.records import ModelSpec
from synergyd.task.model_spec import (
    flops_per_step,
    flops_per_token,
    from_megatron_args,
    hardware_flops_per_step,
    load_model,
    parameters,
    presets,
)

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
    ],
)
def test_parameters_are_those_of_the_published_checkpoints(name: str, count: int) -> None:
    assert parameters(load_model(name)) == count


@pytest.mark.parametrize(
    ("name", "billions"), [("gpt3-1.3b", 1.3), ("gpt3-13b", 13), ("gpt3-175b", 175), ("bert-large", 0.335)]
)
def test_parameters_of_models_known_by_their_rounded_size(name: str, billions: float) -> None:
    assert parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.03)


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


def test_hf_config_of_a_llama(tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    expected = load_model("llama3-8b")
    for where in (str(path), str(tmp_path)):
        found = load_model(where)
        assert {**vars(found), "name": ""} == {**vars(expected), "name": ""}
    assert load_model(str(path), seq=4096).seq == 4096


def test_hf_config_of_gpt2(tmp_path) -> None:
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
def test_bad_config_is_one_clear_line(tmp_path, text: str, says: str) -> None:
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


def test_megatron_arguments() -> None:
    base = [
        "--num-layers",
        "24",
        "--hidden-size=2048",
        "--num-attention-heads",
        "16",
        "--seq-length",
        "2048",
        "--vocab-size",
        "50257",
    ]
    expected = load_model("gpt3-1.3b")
    assert {**vars(from_megatron_args(base)), "name": ""} == {**vars(expected), "name": ""}
    llama = from_megatron_args(
        [
            *base,
            *[
                "--swiglu",
                "--group-query-attention",
                "--num-query-groups",
                "4",
                "--untie-embeddings-and-output-weights",
            ],
        ]
    )
    assert llama is not None
    # Megatron's own rule: int(4 * 2048 * 2/3 / 64) * 64
    assert (llama.gated, llama.kv_heads, llama.tied_embeddings, llama.ffn) == (True, 4, False, 5440)
    ignored = from_megatron_args([*base, "--num-query-groups", "4"])
    assert ignored is not None and ignored.kv_heads == 16
    last = from_megatron_args([*base, "--num-layers", "12"])
    assert last is not None and last.layers == 12


@pytest.mark.parametrize("argv", ["", "--num-layers 4", "--num-layers", "--num-layers x", "--num-layers=" + "9" * 5000])
def test_megatron_arguments_that_name_no_model(argv: str) -> None:
    assert from_megatron_args(argv.split()) is None
    rest = ["--hidden-size", "64", "--num-attention-heads", "5", "--seq-length", "32"]
    assert from_megatron_args([*argv.split(), *rest]) is None
