"""Llama, Qwen2 and Qwen3: one decoder on `rlcore.numerics`, for training in one pass and for decoding with a cache.

    hidden = decoder.hidden(tokens)                      # training: [batch, length] -> [batch, length, width]
    hidden = decoder.extend(tokens, cache, starts)       # decoding: tokens that follow what the cache holds
    logits = decoder.logits(hidden)

At level invariant both give the same bits for a position. Samples are right-padded: no position sees what
follows it. Queries, keys and values are one product, gate and up another, which is where decoding's time goes.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding

from rlcore.models.cache import CachePositions, KeyValueCache
from rlcore.models.config import DecoderConfig, LoraConfig, RopeScaling
from rlcore.numerics.activations import swiglu
from rlcore.numerics.attention import attention, visible
from rlcore.numerics.norms import last_sum, rms_norm
from rlcore.numerics.product import linear
from rlcore.numerics.row_sum import expand_rows

INITIAL_STD = 0.02
ELEMENTS_AT_ONCE = 16384
"""Below what torch splits among threads: a table's bits must not depend on their number."""


def frequencies(config: DecoderConfig) -> Tensor:
    """Radians a position, for each pair: fp32 [head_width / 2]."""
    exponents = torch.arange(0, config.head_width, 2, dtype=torch.int64).float() / config.head_width
    slow = 1.0 / (config.rope_theta**exponents)
    return _stretched(slow, config.rope_scaling) if config.rope_scaling else slow


def _stretched(rates: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: waves longer than the first length are slowed, short ones kept, those between are blended."""
    turns = scaling.original_max_position_embeddings * rates / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * rates / scaling.factor + blend * rates


def rotation_table(config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """(cosines, sines) of every position, of one head: fp32 [max_length, head_width] each."""
    rates = frequencies(config)
    rows = max(1, ELEMENTS_AT_ONCE // len(rates))
    angles = [part.float()[:, None] * rates for part in torch.split(torch.arange(config.max_length), rows)]
    cosines, sines = torch.cat([part.cos() for part in angles]), torch.cat([part.sin() for part in angles])
    return torch.cat((cosines, cosines), -1), torch.cat((-sines, sines), -1)


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Products and sums stay apart: a fused one rounds once where the other rounds twice."""
    wide = x.float()
    crossed = wide.roll(wide.shape[-1] // 2, -1).flatten(-2).mul_(sines)
    return (wide.flatten(-2) * cosines).add_(crossed).view(x.shape).to(x.dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _rotated(x, cosines, sines)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cosines, sines = ctx.saved_tensors
        return _rotated(grad, cosines, -sines), None, None


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair by its position: x [batch, length, heads, width], the others [..., length, heads * width].

    A pair is (i, i + width / 2); the first half of the sines is negative, and -sines turn back. The others repeat what
    `rotation_table` has for every head: torch multiplies whole rows faster than each head's by the same numbers.
    """
    if not torch.is_grad_enabled():
        return _rotated(x, cosines, sines)
    result: Tensor = _Rotate.apply(x, cosines, sines)  # type: ignore[no-untyped-call]
    return result


class TorchBackend:
    """One call of the decoder: what its layers share, and how they attend.

    Heads are [batch, length, queries + keys + values, head_width].
    """

    def __init__(self, config: DecoderConfig, table: Tensor, length: int, at: CachePositions | None) -> None:
        self.config, self.at = config, at
        rotations = table[:length] if at is None else embedding(at.positions, table)
        self.cosines, self.sines = rotations_of_heads(rotations, config)
        self.mask = None
        if at and not at.is_fresh:
            self.mask = visible(at.starts, at.positions.shape[1], at.num_keys)

    def attend(self, heads: Tensor, layer: "Layer") -> Tensor:
        """Return the attention of one layer's heads, [batch, length, queries * head_width]."""
        config = self.config
        qk, v = heads.split_with_sizes([config.num_qk_heads, config.num_kv_heads], 2)
        if layer.q_norm is not None and layer.k_norm is not None:
            counts = config.num_heads, config.num_kv_heads
            weights = [each.expand(n, -1) for each, n in zip((layer.q_norm, layer.k_norm), counts, strict=True)]
            qk = rms_norm(qk, torch.cat(weights), config.norm_eps)  # each head by itself, all in one call
        qk = rotate(qk, self.cosines, self.sines)
        q, k = qk.transpose(1, 2).split_with_sizes([config.num_heads, config.num_kv_heads], 1)
        return self._attended(layer.number, q, k, v.transpose(1, 2)).transpose(1, 2).flatten(2)

    def _attended(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend over these keys, or over all that the cache has with them: [batch, heads, length, width]."""
        keys, values = self.at.put(layer, k, v) if self.at else (k, v)
        return attention(q, k, v) if self.mask is None else attention(q, keys, values, self.mask)


def rotations_of_heads(rotations: Tensor, config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Return (cosines, sines) [..., length, heads * head_width] for queries and keys: one head's, repeated."""
    cosines, sines = (torch.cat([each] * config.num_qk_heads, -1) for each in rotations.chunk(2, -1))
    return cosines, sines


class LowRank(nn.Module):
    """An adapter: the term scale * (x a^T) b^T beside the product of one target module."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.a, self.b = _parameter(rank, inputs), _parameter(outputs, rank)

    def forward(self, x: Tensor) -> Tensor:
        """Return the term [..., outputs] of x [..., inputs]."""
        return linear(linear(x, self.a), self.b) * self.scale  # scaled before it is added: a fused sum rounds once


class Layer(nn.Module):
    """Attention and a gated MLP, each after an RMSNorm and added to the stream."""

    def __init__(self, config: DecoderConfig, number: int) -> None:
        super().__init__()
        self.config, self.number = config, number
        qkv_width, heads_width = config.num_qkv_heads * config.head_width, config.num_heads * config.head_width
        self.attention_norm = _parameter(config.width)
        self.qkv = _parameter(qkv_width, config.width)
        self.qkv_bias = _parameter(qkv_width) if config.has_qkv_bias else None
        self.q_norm = _parameter(config.head_width) if config.has_qk_norm else None
        self.k_norm = _parameter(config.head_width) if config.has_qk_norm else None
        self.out = _parameter(config.width, heads_width)
        self.mlp_norm = _parameter(config.width)
        self.gate_up = _parameter(2 * config.ffn_width, config.width)
        self.down = _parameter(config.width, config.ffn_width)
        self.lora = nn.ModuleDict()
        if (lora := config.lora) is not None:
            for name in config.low_rank_shapes:
                self.lora[name] = LowRank(*config.projections[name], lora.rank, lora.alpha / lora.rank)

    def forward(self, x: Tensor, by: TorchBackend) -> Tensor:
        """The stream [batch, length, width] after this layer."""
        config = self.config
        normed = rms_norm(x, self.attention_norm, config.norm_eps)
        qkv = self._adapted(linear(normed, self.qkv, self.qkv_bias), normed, "q_proj", "k_proj", "v_proj")
        heads = by.attend(qkv.view(*x.shape[:2], config.num_qkv_heads, config.head_width), self)
        x = x + self._adapted(linear(heads, self.out), heads, "o_proj")
        normed = rms_norm(x, self.mlp_norm, config.norm_eps)
        inner = swiglu(self._adapted(linear(normed, self.gate_up), normed, "gate_proj", "up_proj"))
        return x + self._adapted(linear(inner, self.down), inner, "down_proj")

    def _adapted(self, y: Tensor, x: Tensor, *modules: str) -> Tensor:
        """Add to a product y of x the terms of these modules, whose outputs stand in it one after the other."""
        if not any(name in self.lora for name in modules):
            return y
        sizes = [self.config.projections[name][1] for name in modules]
        parts = zip(modules, y.split_with_sizes(sizes, -1), strict=True)
        return torch.cat([part + self.lora[name](x) if name in self.lora else part for name, part in parts], -1)


class Decoder(nn.Module):
    """A decoder with weights of zero; `initialise` draws them, `rlcore.models.checkpoints.load` reads them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = _parameter(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_layers))
        self.norm = _parameter(config.width)
        self.head = None if config.is_tied else _parameter(config.vocab_size, config.width)
        # Not buffers: a conversion of the model to bf16 would convert them too.
        self._rotations = torch.cat(rotation_table(config), -1)
        if config.lora:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(is_adapter(name))

    def initialise(self, seed: int) -> "Decoder":
        """Draw the weights, the same for a seed whatever the machine's threads; biases 0, norms 1."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * INITIAL_STD)
                else:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        return self

    def with_adapters(self, lora: LoraConfig) -> "Decoder":
        """Return a decoder of the same base, in the same memory, with adapters of zero of its own.

        Several of them can be resident over one base.
        """
        with torch.device("meta"):
            decoder = Decoder(replace(self.config, lora=lora))
        weights = {name: value for name, value in self.state_dict().items() if not is_adapter(name)}
        shapes = {name: value.shape for name, value in decoder.state_dict().items() if is_adapter(name)}
        weights |= {name: self.embedding.new_zeros(shape) for name, shape in shapes.items()}
        decoder.load_state_dict(weights, assign=True)
        decoder._rotations = self._rotations
        return decoder

    def hidden(self, tokens: Tensor) -> Tensor:
        """One pass, without a cache: tokens [batch, length] -> the last stream, normalised [batch, length, width]."""
        return self.through(tokens, TorchBackend(self.config, self.rotations(), tokens.shape[1], None))

    def extend(self, tokens: Tensor, cache: KeyValueCache, starts: Sequence[int]) -> Tensor:
        """Read tokens [batch, length] that follow what the first slots of the cache hold -> [batch, length, width].

        `starts[b]` is how long sample b, in slot b, was before; its length afterwards is the caller's to know. Where
        samples are of different lengths, tokens after an end are written too, and overwritten by what comes there.
        """
        firsts = torch.tensor(starts, device=cache.keys.device)
        return self.decode(tokens, CachePositions.of(cache, firsts, tokens.shape[1], longest=max(starts)))

    def decode(self, tokens: Tensor, at: CachePositions) -> Tensor:
        """Read tokens at positions that have been worked out before; as `extend`."""
        return self.through(tokens, TorchBackend(self.config, self.rotations(), tokens.shape[1], at))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., width] -> [..., vocabulary]."""
        return linear(hidden, self.embedding if self.head is None else self.head)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, length] -> logits [batch, length, vocabulary]."""
        return self.logits(self.hidden(tokens))

    def rotations(self) -> Tensor:
        """Return cosines and sines of every position, on the device of the weights."""
        if self._rotations.device != self.embedding.device:
            self._rotations = self._rotations.to(self.embedding.device)
        return self._rotations

    def through(self, tokens: Tensor, by: TorchBackend) -> Tensor:
        """Return the normalised stream [batch, length, width] after all layers, which attend by this backend."""
        # Never self.embedding[tokens]: the gradient of an index adds its rows in an order that changes from run to run.
        x = embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x, by)
        return rms_norm(x, self.norm, self.config.norm_eps)


def is_adapter(name: str) -> bool:
    """Whether the parameter of a decoder or a critic belongs to an adapter."""
    return ".lora." in name


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


class ValueHead(nn.Module):
    """One number from a row of the last stream, in fp32; 0 everywhere until it has learned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] -> [...]; a sum over the last dimension, which is taken row by row, not a product."""
        wide = hidden.float()
        values = last_sum(wide * expand_rows(self.weight.float(), wide)).unsqueeze(-1)
        return (values + expand_rows(self.bias.float(), values)).squeeze(-1)


class Critic(nn.Module):
    """A decoder that ends in values."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = Decoder(config)
        self.decoder.head = None  # nobody reads logits here
        self.value_head = ValueHead(config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, length] -> values fp32 [batch, length]: position t has read tokens 0 to t."""
        return self.value_head(self.decoder.hidden(tokens))  # type: ignore[no-any-return]
