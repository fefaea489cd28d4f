"""Model specs: presets by name, Hugging Face config.json, Megatron arguments; parameter and FLOP counts."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from synergyd.errors import UsageError
from synergyd.records import ModelSpec

_CONFIG_LIMIT = 1 << 20  # bytes: a config.json is a few kilobytes, so anything larger is some other file

# model_type -> (gated MLP, tied embeddings unless the file says otherwise). GPT-2 and BERT name their keys differently.
_ARCHITECTURES: dict[str, tuple[bool, bool]] = {
    "gpt2": (False, True),
    "gpt_neox": (False, False),
    "opt": (False, True),
    "bert": (False, True),
    "roberta": (False, True),
    "llama": (True, False),
    "mistral": (True, False),
    "qwen2": (True, False),
    "phi3": (True, False),
}
# field of ModelSpec -> the keys a config.json may have it under, first found wins
_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "seq": ("max_position_embeddings", "n_positions", "n_ctx"),
}


@cache
def presets() -> Mapping[str, ModelSpec]:
    """All presets by name."""
    data: dict[str, Any] = tomllib.loads(files("synergyd.task").joinpath("models.toml").read_text(encoding="utf-8"))
    defaults = data.pop("defaults")
    return {
        name: ModelSpec(**{"name": name, "kv_heads": entry["heads"], "ffn": 4 * entry["hidden"], **defaults, **entry})
        for name, entry in data.items()
    }


def load_model(text: str, seq: int | None = None) -> ModelSpec:
    """The model that `text` names: a preset, or the path of a Hugging Face config.json (or of the folder it lies in).

    `seq` replaces the sequence length (a config.json states the longest one allowed, not the one trained with).
    Raises UsageError: unknown name, unreadable file, not JSON, unknown architecture, missing or impossible value.
    """
    found = presets().get(text.strip().lower())
    spec = found if found is not None else _from_file(text)
    return checked(replace(spec, seq=seq) if seq is not None else spec, f"model {text}")


def _from_file(text: str) -> ModelSpec:
    where = f"model {text}"
    path = Path(text)
    known = f"presets are {', '.join(presets())}; or give the path of a Hugging Face config.json"
    try:
        if path.is_dir():
            path = path / "config.json"
        if not path.is_file():
            raise UsageError(where, "neither a preset nor a file", known)
        if path.stat().st_size > _CONFIG_LIMIT:
            raise UsageError(where, "larger than any config.json", known)
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) else f"not JSON ({error})"
        raise UsageError(where, f"cannot be read: {what}", "give a Hugging Face config.json") from None
    return from_hf_config(config, where, path.parent.name or "model")


def from_hf_config(config: object, where: str, name: str = "model") -> ModelSpec:
    """ModelSpec of a parsed Hugging Face config.json. Raises UsageError naming `where` and the key at fault."""
    if not isinstance(config, dict):
        raise UsageError(where, "not a JSON object", "give a Hugging Face config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _ARCHITECTURES:
        raise UsageError(where, f"unknown architecture model_type={kind!r}", f"known are {', '.join(_ARCHITECTURES)}")
    gated, tied = _ARCHITECTURES[kind]
    values: dict[str, int] = {}
    for field, keys in _KEYS.items():
        value = next((config[key] for key in keys if config.get(key) is not None), None)
        if value is None and field == "kv_heads":
            value = values["heads"]
        elif value is None and field == "ffn" and kind == "gpt2":
            value = 4 * values["hidden"] if "hidden" in values else None
        if value is None:
            raise UsageError(where, f"key {keys[0]} is missing", "give a complete config.json")
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(where, f"{keys[0]} is {value!r}", "it must be a whole number")
        values[field] = value
    scaling = config.get("rope_scaling")
    original = scaling.get("original_max_position_embeddings") if isinstance(scaling, dict) else None
    if isinstance(original, int) and not isinstance(original, bool) and original > 0:
        values["seq"] = original  # a context stretched after training is not what is trained with
    head_dim = config.get("head_dim")
    if head_dim is not None and values["heads"] > 0 and head_dim != values["hidden"] // values["heads"]:
        raise UsageError(where, f"head_dim is {head_dim!r}", "only hidden_size / num_attention_heads is modelled")
    named = config.get("_name_or_path")
    label = named.rsplit("/", 1)[-1] if isinstance(named, str) and named else name
    tied_value = config.get("tie_word_embeddings", tied)
    spec = ModelSpec(label, **values, gated=gated, tied_embeddings=bool(tied_value))  # type: ignore[arg-type]
    return checked(spec, where)


_MAY_BE_ZERO = frozenset(("experts", "top_k", "shared_ffn", "head_dim"))  # 0: without


def checked(spec: ModelSpec, where: str) -> ModelSpec:
    """`spec` if it can exist; UsageError naming what is wrong otherwise. Bounds keep a stranger's numbers finite."""
    for item in fields(ModelSpec):
        value = getattr(spec, item.name)
        least = 0 if item.name in _MAY_BE_ZERO else 1
        # a bool is an int too: the flags and the name are left out here
        if isinstance(value, int) and not isinstance(value, bool) and not least <= value <= 100_000_000:
            raise UsageError(where, f"{item.name} is {value}", f"it must lie between {least} and 100,000,000")
    if spec.hidden % spec.heads:
        raise UsageError(where, f"hidden {spec.hidden} is not a multiple of heads {spec.heads}", "heads must divide it")
    if spec.heads % spec.kv_heads:
        raise UsageError(
            where, f"heads {spec.heads} is not a multiple of kv_heads {spec.kv_heads}", "kv_heads must divide it"
        )
    return spec


_MEGATRON_NUMBERS = {
    "--num-layers": "layers",
    "--hidden-size": "hidden",
    "--num-attention-heads": "heads",
    "--ffn-hidden-size": "ffn",
    "--seq-length": "seq",
    "--encoder-seq-length": "seq",
    "--num-query-groups": "kv_heads",
    "--vocab-size": "vocab",
    "--padded-vocab-size": "vocab",
}


def from_megatron_args(argv: Sequence[str]) -> ModelSpec | None:
    """ModelSpec of a Megatron-LM command line, or None where it does not describe one whole model.

    Both `--key value` and `--key=value` are read, the last one of a key counts. As in Megatron: ffn is 4 * hidden,
    with --swiglu int(4 * hidden * 2/3 / 64) * 64; --num-query-groups only counts with --group-query-attention.
    Vocabulary 50257 (GPT-2's tokenizer) where --vocab-size is not said.
    """
    values: dict[str, int] = {}
    flags: set[str] = set()
    for index, word in enumerate(argv):
        key, has_value, value = word.partition("=")
        if key in _MEGATRON_NUMBERS:
            text = value if has_value else (argv[index + 1] if index + 1 < len(argv) else "")
            # isdecimal alone takes other scripts' digits and any length; a model's number has at most nine
            if not (text.isascii() and text.isdecimal() and len(text) <= 9):
                return None
            values[_MEGATRON_NUMBERS[key]] = int(text)
        else:
            flags.add(word)
    if not {"layers", "hidden", "heads", "seq"} <= values.keys():
        return None
    gated = "--swiglu" in flags
    hidden = values["hidden"]
    values.setdefault("ffn", int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    if "--group-query-attention" not in flags:
        values["kv_heads"] = values["heads"]
    values.setdefault("kv_heads", 1)  # Megatron's default of --num-query-groups
    values.setdefault("vocab", 50257)
    tied = "--untie-embeddings-and-output-weights" not in flags
    try:
        spec = ModelSpec("megatron", **values, gated=gated, tied_embeddings=tied)  # type: ignore[arg-type]
        return checked(spec, "Megatron arguments")
    except UsageError:
        return None


def layer_parameters(model: ModelSpec) -> int:
    """Parameters of one layer: attention h^2 (2 + 2k), MLP g*h*f, norms; biases only where the MLP is not gated (GPT,
    BERT).

    k = kv_heads / heads, g = 3 gated else 2. Checked against the published counts of GPT-2 and Llama by test.
    """
    h, f = model.hidden, model.ffn
    kv = h * model.kv_heads // model.heads
    weights = 2 * h * h + 2 * h * kv + (3 if model.gated else 2) * h * f
    if model.gated:
        return weights + 2 * h
    return weights + (h + 2 * kv) + h + f + h + 4 * h


def embedding_parameters(model: ModelSpec) -> int:
    """Parameters of the token embedding; an untied output layer has as many again."""
    return model.vocab * model.hidden


def parameters(model: ModelSpec) -> int:
    """All parameters: embedding (and output layer if untied), learnt positions unless gated (rotary), layers, final
    norm."""
    positions = 0 if model.gated else model.seq * model.hidden
    final_norm = model.hidden * (1 if model.gated else 2)
    embeddings = embedding_parameters(model) * (1 if model.tied_embeddings else 2)
    return embeddings + positions + model.layers * layer_parameters(model) + final_norm


def flops_per_token(model: ModelSpec) -> float:
    """Model FLOPs of one token, forward and backward, attention counted in full:
    12 L h^2 (1 + k + s/h) + 6 g L f h + 6 V h (Narayanan et al. SC'21, appendix, without recompute; GQA and gated
    units added)."""
    h, k = model.hidden, model.kv_heads / model.heads
    gates = 3 if model.gated else 2
    attention = 12 * model.layers * h * h * (1 + k + model.seq / h)
    return attention + 6 * gates * model.layers * model.ffn * h + 6 * model.vocab * h


def flops_per_step(model: ModelSpec, global_batch: int) -> float:
    """Model FLOPs of one step over `global_batch` sequences (no recompute counted): what MFU is measured against."""
    return flops_per_token(model) * model.seq * global_batch


def hardware_flops_per_step(model: ModelSpec, global_batch: int, recompute: str) -> float:
    """FLOPs done in one step: with full recompute each layer's forward runs twice, so a GPT's step is SC'21's
    96 B s L h^2 (1 + s/6h + V/16Lh); with selective recompute (Korthikanti et al. 2022) only the attention core
    does."""
    tokens = model.seq * global_batch
    extra = 0.0
    if recompute == "full":
        extra = (flops_per_token(model) - 6 * model.vocab * model.hidden) / 3
    elif recompute == "selective":
        extra = 4 * model.layers * model.hidden * model.seq
    return flops_per_step(model, global_batch) + tokens * extra
