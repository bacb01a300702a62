"""What a decoder is: its family and its sizes; and config.json as Hugging Face's checkpoints have it, read and written.

What the decoder would compute wrongly is refused.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from harness.bits.files import parse_object, read_regular
from rlcore.errors import CheckpointError, InvalidValueError

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
FAMILIES = tuple(ARCHITECTURES.values())
MAX_LENGTH = 1 << 21
"""Positions that rotations are made for, at most: 2 GiB of them for heads of 128."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How Llama 3 stretches the slow rotations beyond the length it was first trained on: keys of config.json."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Low-rank terms beside products of each layer (LoRA, arXiv:2106.09685): names and meaning are peft's."""

    rank: int
    alpha: float
    """A term is multiplied by alpha / rank."""
    target_modules: frozenset[str]
    """Names of `DecoderConfig.projections`."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder of the Llama, Qwen2 or Qwen3 family.

    Qwen2 has a bias on queries, keys and values; Qwen3 normalises queries and keys. Raises InvalidValueError.
    """

    family: str
    vocab_size: int
    width: int
    """Of the residual stream: hidden_size."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Neighbouring heads share one; a divisor of num_heads."""
    head_width: int
    """Even: rotations take its halves in pairs."""
    ffn_width: int
    """Of the gated MLP: intermediate_size."""
    max_length: int = 2048
    """Positions the rotations are made for."""
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    is_tied: bool = True
    """The output matrix is the embedding."""
    rope_scaling: RopeScaling | None = None
    lora: LoraConfig | None = None
    """Adapters, which alone are trained; no part of config.json."""

    def __post_init__(self) -> None:
        if self.max_length > MAX_LENGTH:
            raise InvalidValueError(f"max_length {self.max_length}", legal=f"1 to {MAX_LENGTH:,}")
        if self.num_heads % self.num_kv_heads:
            legal = f"a divisor of num_heads, {self.num_heads}"
            raise InvalidValueError(f"num_kv_heads {self.num_kv_heads}", legal=legal)
        if self.head_width < 2 or self.head_width % 2:
            raise InvalidValueError(f"head_width {self.head_width}", legal="an even number, 2 or more")
        if self.lora is not None and not {*self.projections} >= self.lora.target_modules > set():
            what = f"target_modules {', '.join(sorted(self.lora.target_modules)) or 'without a name':.300}"
            raise InvalidValueError(what, legal=f"one or more of {', '.join(self.projections)}")

    @property
    def has_qkv_bias(self) -> bool:
        """Whether queries, keys and values have a bias."""
        return self.family == "qwen2"

    @property
    def has_qk_norm(self) -> bool:
        """Whether queries and keys are normalised, each head by itself."""
        return self.family == "qwen3"

    @property
    def num_qk_heads(self) -> int:
        """Heads of queries and keys together: those that are rotated."""
        return self.num_heads + self.num_kv_heads

    @property
    def num_qkv_heads(self) -> int:
        """Heads of queries, keys and values together."""
        return self.num_heads + 2 * self.num_kv_heads

    @property
    def num_weights(self) -> int:
        """Elements of all matrices; vectors not counted."""
        *of_layer, of_head = (inputs * outputs for inputs, outputs in replace(self, lora=None).product_shapes)
        return self.num_layers * sum(of_layer) + of_head * (1 if self.is_tied else 2)

    @property
    def product_shapes(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of every matrix product, for the probe."""
        return (
            (self.width, self.num_qkv_heads * self.head_width),
            (self.num_heads * self.head_width, self.width),
            (self.width, 2 * self.ffn_width),
            (self.ffn_width, self.width),
            (self.width, self.vocab_size),
            *(shape for each in self.low_rank_shapes.values() for shape in each),
        )

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of a layer's products by the names that Hugging Face gives their modules."""
        heads, kv_heads = (count * self.head_width for count in (self.num_heads, self.num_kv_heads))
        return {
            "q_proj": (self.width, heads),
            "k_proj": (self.width, kv_heads),
            "v_proj": (self.width, kv_heads),
            "o_proj": (heads, self.width),
            "gate_proj": (self.width, self.ffn_width),
            "up_proj": (self.width, self.ffn_width),
            "down_proj": (self.ffn_width, self.width),
        }

    @property
    def low_rank_shapes(self) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
        """(inputs, outputs) of the two products of each adapter of a layer, by its target module."""
        if (lora := self.lora) is None:
            return {}
        targets = {name: shape for name, shape in self.projections.items() if name in lora.target_modules}
        return {name: ((inputs, lora.rank), (lora.rank, outputs)) for name, (inputs, outputs) in targets.items()}

    @property
    def head_shape(self) -> tuple[int, int, int]:
        """(heads, kv_heads, width) of its attention, for the probe."""
        return self.num_heads, self.num_kv_heads, self.head_width


NAMES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "ffn_width": "intermediate_size",
    "max_length": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "is_tied": "tie_word_embeddings",
}
"""Field of a `DecoderConfig` -> key of config.json."""
ONLY: Mapping[str, tuple[object, ...]] = {
    "attention_dropout": (0, None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "hidden_act": ("silu", "swish", None),
}
"""Keys that change what is computed, and the values that mean what the decoder does."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of a checkpoint; raises CheckpointError."""
    try:
        return parse_object(read_regular(path, follows_links=True))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}", legal="a Hugging Face checkpoint", remedy="copy the checkpoint again"
        ) from error


def read_config(found: Mapping[str, Any]) -> DecoderConfig:
    """Return the decoder that a config.json of transformers 4 or 5 describes; a missing key is as transformers has it.

    Raises InvalidValueError for an architecture, a rotation or a feature that is not supported, with those that are,
    and for values that are missing or of another type.
    """
    family = ARCHITECTURES[read_architecture(found, ARCHITECTURES)]
    for key, legal in ONLY.items():
        if found.get(key) not in legal:
            raise InvalidValueError(f"{key} {found[key]!r}", legal=repr(legal[0]))
    if family != "qwen2" and found.get("attention_bias"):
        raise InvalidValueError(f"attention_bias {found['attention_bias']!r}", legal="False", remedy="a Qwen2 has one")
    types = found.get("layer_types") or []
    if not isinstance(types, list) or any(each != "full_attention" for each in types):
        raise InvalidValueError(f"layer_types {types!r:.300}", legal="full_attention for every layer")
    rope: dict[str, Any] = {"rope_theta": found.get("rope_theta") or 10000.0}
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(stretch := found.get(key) or {}, dict):
            raise InvalidValueError(f"{key} {stretch!r:.60}", legal="an object")
        rope |= stretch
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ("default", "llama3"):
        raise InvalidValueError(f"rope_type {kind!r}", legal="default, llama3")
    given = {
        "max_position_embeddings": 2048 if family == "llama" else 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "num_key_value_heads": found.get("num_attention_heads"),
        **{key: value for key, value in found.items() if value is not None},
        "rope_theta": rope["rope_theta"],
    }
    given.setdefault("head_dim", _number(given, "hidden_size") // _number(given, "num_attention_heads"))
    scaling = {each.name: _number(rope, each.name) for each in fields(RopeScaling)} if kind == "llama3" else None
    sizes = {ours: _number(given, theirs) for ours, theirs in NAMES.items()}
    return DecoderConfig(family, **sizes, rope_scaling=RopeScaling(**scaling) if scaling else None)


def _number(found: Mapping[str, Any], key: str) -> Any:
    """Return a fraction of 0 or more, or a whole number of 1 or more, or whether a key is set, as the key wants it."""
    value = found.get(key)
    if key == "tie_word_embeddings":
        return bool(value)
    if key in ("rms_norm_eps", "rope_theta") or key.endswith("factor"):
        if isinstance(value, int | float) and 0 <= value < 1e38:
            return float(value)
        raise InvalidValueError(f"{key} {value!r:.60}", legal="a number, 0 or more")
    if type(value) is not int or value < 1:
        raise InvalidValueError(f"{key} {value!r:.60}", legal="a whole number, 1 or more")
    return value


def read_architecture(found: Mapping[str, Any], legal: Collection[str], kind: str = "architecture") -> str:
    """Return the only architecture that a config.json names; InvalidValueError where it is not a legal one."""
    named = found.get("architectures") or []
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str) or named[0] not in legal:
        names = ", ".join(map(str, named)) if isinstance(named, list) else repr(named)
        raise InvalidValueError(f"{kind} {names or 'not named':.300}", legal=", ".join(legal))
    return named[0]


def written_config(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """Return what to write as config.json; rotations stand there as transformers 4 and as transformers 5 read them."""
    rope = {"rope_type": "llama3", **asdict(config.rope_scaling)} if config.rope_scaling else None
    (architecture,) = [name for name, family in ARCHITECTURES.items() if family == config.family]
    return {
        "architectures": [architecture],
        "model_type": config.family,
        **{theirs: getattr(config, ours) for ours, theirs in NAMES.items()},
        "hidden_act": "silu",
        "rope_scaling": rope,
        "rope_parameters": {"rope_theta": config.rope_theta, **(rope or {"rope_type": "default"})},
        "attention_dropout": 0.0,
        "torch_dtype": dtype,
    }
