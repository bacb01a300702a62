"""What a decoder is: its family and its sizes, checked when it is made."""

from dataclasses import dataclass

from rlcore.errors import InvalidValueError

FAMILIES = ("llama", "qwen2", "qwen3")
MAX_LENGTH = 1 << 21
"""Positions that rotations are made for, at most: 2 GiB of them for heads of 128."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How Llama 3 stretches the slow rotations beyond the length it was first trained on."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_length: int


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

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise InvalidValueError(f"family {self.family!r}", legal=", ".join(FAMILIES))
        for name in ("vocab_size", "width", "num_layers", "num_heads", "num_kv_heads", "ffn_width", "max_length"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} {getattr(self, name)}", legal="1 or more")
        if self.max_length > MAX_LENGTH:
            raise InvalidValueError(f"max_length {self.max_length}", legal=f"1 to {MAX_LENGTH:,}")
        if self.num_heads % self.num_kv_heads:
            raise InvalidValueError(
                f"num_kv_heads {self.num_kv_heads}", legal=f"a divisor of num_heads, {self.num_heads}"
            )
        if self.head_width < 2 or self.head_width % 2:
            raise InvalidValueError(f"head_width {self.head_width}", legal="an even number, 2 or more")

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
        *of_layer, of_head = (inputs * outputs for inputs, outputs in self.product_shapes)
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
        )

    @property
    def head_shape(self) -> tuple[int, int, int]:
        """(heads, kv_heads, width) of its attention, for the probe."""
        return self.num_heads, self.num_kv_heads, self.head_width
