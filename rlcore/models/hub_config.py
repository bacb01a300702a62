"""config.json as Hugging Face's checkpoints have it, and back. What the decoder would compute wrongly is refused."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from rlcore.errors import InvalidValueError
from rlcore.models.config import DecoderConfig, RopeScaling

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
ROPE_TYPES = ("default", "llama3")
PLAIN = {
    "attention_dropout": (0, 0.0, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "hidden_act": ("silu", None),
}
"""Keys that change what is computed, and the values that mean what the decoder does."""


def read_config(found: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a config.json describes, of transformers 4 or 5.

    Raises InvalidValueError for an architecture, a rotation or a feature that is not supported, with those that are,
    and for values that are missing or of another type.
    """
    family = ARCHITECTURES[read_architecture(found, ARCHITECTURES)]
    for key, legal in PLAIN.items():
        if found.get(key) not in legal:
            raise InvalidValueError(f"{key} {found[key]!r}", legal=repr(legal[0]))
    if family != "qwen2" and found.get("attention_bias"):
        raise InvalidValueError(f"attention_bias {found['attention_bias']!r}", legal="False", remedy="a Qwen2 has one")
    types = found.get("layer_types") or []
    if not isinstance(types, list) or any(each != "full_attention" for each in types):
        raise InvalidValueError(f"layer_types {types!r:.300}", legal="full_attention for every layer")
    rope = _mapping(found, "rope_scaling") | _mapping(found, "rope_parameters")
    heads, width = _whole(found, "num_attention_heads"), _whole(found, "hidden_size")
    theta = rope if rope.get("rope_theta") else {"rope_theta": found.get("rope_theta") or 10000.0}
    return DecoderConfig(
        family=family,
        vocab_size=_whole(found, "vocab_size"),
        width=width,
        num_layers=_whole(found, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_whole(found, "num_key_value_heads", heads),
        head_width=_whole(found, "head_dim", width // heads),
        ffn_width=_whole(found, "intermediate_size"),
        max_length=_whole(found, "max_position_embeddings"),
        rope_theta=_number(theta, "rope_theta"),
        norm_eps=_number(found, "rms_norm_eps"),
        is_tied=bool(found.get("tie_word_embeddings", False)),
        rope_scaling=_scaling(rope),
    )


def read_architecture(found: Mapping[str, Any], legal: Collection[str], kind: str = "architecture") -> str:
    """Return the only architecture that a config.json names; InvalidValueError where it is not a legal one."""
    named = found.get("architectures") or []
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str) or named[0] not in legal:
        names = ", ".join(map(str, named)) if isinstance(named, list) else repr(named)
        raise InvalidValueError(f"{kind} {names or 'not named':.300}", legal=", ".join(legal))
    return named[0]


def _whole(found: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number, 1 or more."""
    value = (found.get(key) or default) if default is not None else found.get(key)
    if type(value) is not int or value < 1:
        raise InvalidValueError(f"{key} {value!r:.60}", legal="a whole number, 1 or more")
    return value


def _number(found: Mapping[str, Any], key: str) -> float:
    """A number that a float holds, 0 or more."""
    value = found.get(key)
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if 0 <= number < math.inf:
        return number
    raise InvalidValueError(f"{key} {value!r:.60}", legal="a number, 0 or more")


def _mapping(found: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = found.get(key) or {}
    if not isinstance(value, dict):
        raise InvalidValueError(f"{key} {value!r:.60}", legal="an object")
    return value


def _scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise InvalidValueError(f"rope_type {kind!r}", legal=", ".join(ROPE_TYPES))
    if kind == "default":
        return None
    factor, low, high = (_number(rope, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    return RopeScaling(factor, low, high, _whole(rope, "original_max_position_embeddings"))


def written_config(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """What to write as config.json; the rotation stands there as transformers 4 and as transformers 5 read it."""
    scaling: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling:
        scaling = {
            "rope_type": "llama3",
            "factor": config.rope_scaling.factor,
            "low_freq_factor": config.rope_scaling.low_freq_factor,
            "high_freq_factor": config.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": config.rope_scaling.original_max_length,
        }
    (architecture,) = [name for name, family in ARCHITECTURES.items() if family == config.family]
    return {
        "architectures": [architecture],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.ffn_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling if config.rope_scaling else None,
        "rope_parameters": {"rope_theta": config.rope_theta, **scaling},
        "tie_word_embeddings": config.is_tied,
        "attention_dropout": 0.0,
        "torch_dtype": dtype,
    }
