"""Model specs: presets by name, Hugging Face config.json."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from synergy_core.errors import UsageError, format_value, one_line
from synergy_core.ordinary_file import read_bytes
from synergy_core.records import ModelSpec

_LARGEST = 100_000_000  # bound of each number of a model
_CONFIG_LIMIT = 1 << 20  # bytes: a config.json is a few kilobytes, so anything larger is some other file


@dataclass(frozen=True)
class _Architecture:
    """A Hugging Face model_type: gated MLP, tied embeddings unless the file says otherwise, encoder or decoder, MoE."""

    gated: bool
    tied: bool
    causal: bool = True
    moe: bool = False


_ARCHITECTURES: dict[str, _Architecture] = {
    "gpt2": _Architecture(False, True),
    "gpt_neo": _Architecture(False, True),
    "gpt_neox": _Architecture(False, False),
    "gptj": _Architecture(False, False),
    "opt": _Architecture(False, True),
    "starcoder2": _Architecture(False, True),
    "bert": _Architecture(False, True, causal=False),
    "roberta": _Architecture(False, True, causal=False),
    "xlm-roberta": _Architecture(False, True, causal=False),
    "electra": _Architecture(False, True, causal=False),
    "llama": _Architecture(True, False),
    "mistral": _Architecture(True, False),
    "qwen2": _Architecture(True, False),
    "qwen3": _Architecture(True, False),
    "phi3": _Architecture(True, False),
    "gemma": _Architecture(True, True),
    "gemma2": _Architecture(True, True),
    "olmo": _Architecture(True, False),
    "olmo2": _Architecture(True, False),
    "granite": _Architecture(True, False),
    "internlm2": _Architecture(True, False),
    "mixtral": _Architecture(True, False, moe=True),
    "qwen2_moe": _Architecture(True, False, moe=True),
    "qwen3_moe": _Architecture(True, False, moe=True),
    "olmoe": _Architecture(True, False, moe=True),
    "deepseek": _Architecture(True, False, moe=True),
    "gpt_oss": _Architecture(True, False, moe=True),
    "deepseek_v2": _Architecture(True, False, moe=True),
    "deepseek_v3": _Architecture(True, False, moe=True),
}
# field of ModelSpec -> the keys a config.json may have it under, first found wins
_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "seq": ("max_position_embeddings", "n_positions", "n_ctx"),
}
_MOE_KEYS: dict[str, tuple[str, ...]] = {
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok",),
}
# multi-head latent attention
_LATENT_KEYS: dict[str, tuple[str, ...]] = {
    "kv_lora": ("kv_lora_rank",),
    "rope_dim": ("qk_rope_head_dim",),
    "head_dim": ("qk_nope_head_dim",),
    "value_dim": ("v_head_dim",),
}


@cache
def presets() -> Mapping[str, ModelSpec]:
    """Return all presets by name."""
    data: dict[str, Any] = tomllib.loads(
        files("synergyd.jobmodel.model").joinpath("models.toml").read_text(encoding="utf-8")
    )
    defaults = data.pop("defaults")
    return {
        name: ModelSpec(**{"name": name, "kv_heads": entry["heads"], "ffn": 4 * entry["hidden"], **defaults, **entry})
        for name, entry in data.items()
    }


def load_model(text: str, seq: int | None = None) -> ModelSpec:
    """Return the model that `text` names: a preset, or the path of a Hugging Face config.json (or of the folder it lies in).

    `seq` replaces the sequence length (a config.json states the longest one allowed, not the one trained with). Raises
    UsageError: unknown name, unreadable file, not JSON, unknown architecture, missing or impossible value.
    """
    preset = presets().get(text.strip().lower())
    spec = preset if preset is not None else _from_file(text)
    return check_spec(replace(spec, seq=seq) if seq is not None else spec, f"model {text}")


def _from_file(text: str) -> ModelSpec:
    where = f"model {text}"
    path = Path(text)
    remedy = f"presets are {', '.join(presets())}; or give the path of a Hugging Face config.json"
    try:
        if path.is_dir():
            path = path / "config.json"
        if not path.is_file():
            raise UsageError(where, "neither a preset nor a file", remedy)
        config = json.loads(read_bytes(path, _CONFIG_LIMIT))
    except (OSError, ValueError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) else f"not JSON ({error})"
        raise UsageError(where, f"cannot be read: {what}", "give a Hugging Face config.json") from None
    return from_hf_config(config, where, path.parent.name or "model")


def from_hf_config(config: object, where: str, name: str = "model") -> ModelSpec:
    """Return the ModelSpec of a parsed Hugging Face config.json. Raises UsageError naming `where` and the key at fault.

    MoE files in the manner of Mixtral, Qwen-MoE, OLMoE, gpt-oss and DeepSeek (with its multi-head latent attention and
    multi-token prediction) are read. Attention to a window of the sequence counts as attention to all of it.
    """
    if not isinstance(config, dict):
        raise UsageError(where, "not a JSON object", "give a Hugging Face config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _ARCHITECTURES:
        raise UsageError(
            where, f"unknown architecture model_type={format_value(kind)}", f"known are {', '.join(_ARCHITECTURES)}"
        )
    about = _ARCHITECTURES[kind]
    values: dict[str, int] = {}
    for field, keys in _KEYS.items():
        fallback = None
        if field == "kv_heads":
            fallback = values["heads"]
        elif field == "ffn" and kind in ("gpt2", "gpt_neo", "gptj") and "hidden" in values:
            fallback = 4 * values["hidden"]
        values[field] = _read_whole_number(config, keys, where, fallback)
    scaling = config.get("rope_scaling")
    original = scaling.get("original_max_position_embeddings") if isinstance(scaling, dict) else None
    if isinstance(original, int) and not isinstance(original, bool) and original > 0:
        values["seq"] = original  # a context stretched after training is not what is trained with
    if config.get("kv_lora_rank") is not None:
        values |= {field: _read_whole_number(config, keys, where) for field, keys in _LATENT_KEYS.items()}
        values["q_lora"] = _read_whole_number(config, ("q_lora_rank",), where, 0)
        values["kv_heads"] = values["heads"]
    elif config.get("head_dim") is not None:
        head_dim = _read_whole_number(config, ("head_dim",), where)
        values["head_dim"] = 0 if head_dim * values["heads"] == values["hidden"] else head_dim
    if about.moe:
        values |= _experts(config, values, where)
    values["mtp_layers"] = _read_whole_number(config, ("num_nextn_predict_layers",), where, 0)
    path_or_name = config.get("_name_or_path")
    label = path_or_name.rsplit("/", 1)[-1] if isinstance(path_or_name, str) and path_or_name else name
    tie = config.get("tie_word_embeddings")
    tied = about.tied if tie is None else bool(tie)
    spec = ModelSpec(one_line(label, 100), **values, gated=about.gated, tied_embeddings=tied, causal=about.causal)
    return check_spec(spec, where)


def _read_whole_number(config: Mapping[str, Any], keys: Sequence[str], where: str, fallback: int | None = None) -> int:
    """Return the whole number at the first of `keys` that `config` has. Raises UsageError."""
    key = next((key for key in keys if config.get(key) is not None), None)
    value = fallback if key is None else config[key]
    if value is None:
        raise UsageError(where, f"key {keys[0]} is missing", "give a complete config.json")
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(where, f"{key} is {format_value(value)}", "it must be a whole number")
    if abs(value) > _LARGEST:  # before anything is multiplied
        raise UsageError(where, f"{key} is {format_value(value)}", f"it must be at most {_LARGEST:,}")
    return value


def _experts(config: Mapping[str, Any], dense: Mapping[str, int], where: str) -> dict[str, int]:
    """Return the MoE fields of a config.json, where ffn becomes one expert's width. Raises UsageError."""
    values = {field: _read_whole_number(config, keys, where) for field, keys in _MOE_KEYS.items()}
    values["ffn"] = _read_whole_number(config, ("moe_intermediate_size",), where, dense["ffn"])
    shared = _read_whole_number(config, ("n_shared_experts",), where, 0) * values["ffn"]
    values["shared_ffn"] = _read_whole_number(config, ("shared_expert_intermediate_size",), where, shared)
    values["moe_every"] = _read_whole_number(config, ("decoder_sparse_step", "moe_layer_freq"), where, 1)
    values["dense_layers"] = _read_whole_number(config, ("first_k_dense_replace",), where, 0)
    if values["ffn"] != dense["ffn"] and (values["dense_layers"] or values["moe_every"] > 1):
        values["dense_ffn"] = dense["ffn"]
    return values


# 0: without
_MAY_BE_ZERO = frozenset(
    (
        "experts",
        "top_k",
        "shared_ffn",
        "head_dim",
        "dense_layers",
        "dense_ffn",
        "kv_lora",
        "q_lora",
        "rope_dim",
        "value_dim",
        "mtp_layers",
    )
)


def check_spec(spec: ModelSpec, where: str) -> ModelSpec:
    """Return `spec` if it can exist.

    Raises UsageError naming what is wrong otherwise. Bounds keep a stranger's numbers finite.
    """
    for item in fields(ModelSpec):
        value = getattr(spec, item.name)
        least = 0 if item.name in _MAY_BE_ZERO else 1
        # a bool is an int too: the flags and the name are left out here
        if isinstance(value, int) and not isinstance(value, bool) and not least <= value <= _LARGEST:
            raise UsageError(
                where, f"{item.name} is {format_value(value)}", f"it must lie between {least} and {_LARGEST:,}"
            )
    if not spec.head_dim and spec.hidden % spec.heads:
        raise UsageError(where, f"hidden {spec.hidden} is not a multiple of heads {spec.heads}", "heads must divide it")
    if spec.heads % spec.kv_heads:
        raise UsageError(
            where, f"heads {spec.heads} is not a multiple of kv_heads {spec.kv_heads}", "kv_heads must divide it"
        )
    if spec.experts and not 1 <= spec.top_k <= spec.experts:
        raise UsageError(where, f"top_k is {spec.top_k} of {spec.experts} experts", "it must lie between 1 and experts")
    if not spec.experts and (spec.top_k or spec.shared_ffn):
        raise UsageError(where, "top_k or shared_ffn without experts", "say how many experts there are")
    if not spec.experts and (spec.dense_layers or spec.dense_ffn):
        raise UsageError(where, "dense_layers or dense_ffn without experts", "say how many experts there are")
    if spec.experts and spec.dense_layers >= spec.layers:
        what = f"dense_layers is {spec.dense_layers} of {spec.layers} layers"
        raise UsageError(where, what, "at least one layer must have experts")
    extra = spec.q_lora or spec.rope_dim or spec.value_dim
    if (extra and not spec.kv_lora) or (spec.kv_lora and not (spec.head_dim and spec.value_dim)):
        what = f"kv_lora {spec.kv_lora}, q_lora {spec.q_lora}, head_dim {spec.head_dim}, rope_dim {spec.rope_dim}, "
        right = "multi-head latent attention needs kv_lora, head_dim and value_dim; nothing else has kv_lora, q_lora, rope_dim, value_dim"
        raise UsageError(where, f"{what}value_dim {spec.value_dim}", right)
    if spec.kv_lora and spec.kv_heads != spec.heads:
        raise UsageError(
            where, f"kv_heads {spec.kv_heads} with kv_lora", f"each of the {spec.heads} heads has keys of its own"
        )
    return spec
