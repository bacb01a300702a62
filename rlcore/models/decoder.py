"""Llama, Qwen2 and Qwen3: one decoder on `rlcore.numerics`, for training in one pass and for decoding with a cache.

    hidden = decoder.hidden(tokens)                      # training: [batch, length] -> [batch, length, width]
    hidden = decoder.extend(tokens, cache, starts)       # decoding: tokens that follow what the cache holds
    logits = decoder.logits(hidden)

At level invariant both give the same bits for a position. Samples are right-padded: no position sees what
follows it. Queries, keys and values are one product, gate and up another, which is where decoding's time goes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from rlcore.models.attention_backend import TorchBackend
from rlcore.models.cache import CachePositions, KeyValueCache
from rlcore.models.config import DecoderConfig
from rlcore.models.rotary import rotation_table
from rlcore.numerics.activations import swiglu
from rlcore.numerics.norms import rms_norm
from rlcore.numerics.product import linear

INITIAL_STD = 0.02


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

    def forward(self, x: Tensor, by: TorchBackend) -> Tensor:
        """The stream [batch, length, width] after this layer."""
        x = x + self._attended(rms_norm(x, self.attention_norm, self.config.norm_eps), by)
        normed = rms_norm(x, self.mlp_norm, self.config.norm_eps)
        return x + linear(swiglu(linear(normed, self.gate_up)), self.down)

    def _attended(self, x: Tensor, by: TorchBackend) -> Tensor:
        heads = linear(x, self.qkv, self.qkv_bias).view(*x.shape[:2], self.config.num_qkv_heads, self.config.head_width)
        return linear(by.attend(heads, self), self.out)


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

    def hidden(self, tokens: Tensor) -> Tensor:
        """One pass, without a cache: tokens [batch, length] -> the last stream, normalised [batch, length, width]."""
        return self.through(tokens, TorchBackend(self.config, self.rotations(), tokens.shape[1], None, None))

    def extend(self, tokens: Tensor, cache: KeyValueCache, starts: Sequence[int]) -> Tensor:
        """Read tokens [batch, length] that follow what the first slots of the cache hold -> [batch, length, width].

        `starts[b]` is how long sample b, in slot b, was before; its length afterwards is the caller's to know. Where
        samples are of different lengths, tokens after an end are written too, and overwritten by what comes there.
        """
        return self.read(tokens, cache, CachePositions.of(starts, tokens.shape[1], cache))

    def read(self, tokens: Tensor, cache: KeyValueCache, at: CachePositions) -> Tensor:
        """Read tokens at positions that have been worked out before; as `extend`."""
        return self.through(tokens, TorchBackend(self.config, self.rotations(), tokens.shape[1], cache, at))

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


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))
