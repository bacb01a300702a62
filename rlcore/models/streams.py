"""The stream between a decoder's layers, as a pass computes it: what shows in which layer two passes part.

with kept_streams(decoder) as kept:
    ...                                    # whatever runs the decoder: a forward pass, an engine
kept.streams(num_tokens)                   # {"embedding": ..., "layers.0": ..., "logits": ...}
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlcore.models.decoder import Decoder
from rlcore.numerics.norms import rms_norm

EMBEDDING, LOGITS = "embedding", "logits"


@dataclass(slots=True)
class KeptStreams:
    """What the passes of a decoder have computed, pass after pass."""

    decoder: Decoder
    parts: defaultdict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    """By layer, the streams [tokens, width] of each pass."""

    @torch.no_grad()
    def streams(self, num_tokens: int) -> Mapping[str, Tensor]:
        """Return each stream [tokens, width] of the first tokens, on the CPU, and the logits, in the order computed."""
        found = {name: torch.cat(parts)[:num_tokens] for name, parts in self.parts.items()}
        decoder = self.decoder
        *_, last = found.values()
        logits = decoder.logits(rms_norm(last[None], decoder.norm, decoder.config.norm_eps))[0]
        return {name: stream.cpu() for name, stream in {**found, LOGITS: logits}.items()}


@contextmanager
def kept_streams(decoder: Decoder) -> Iterator[KeptStreams]:
    """Keep the streams of all passes that the decoder computes inside, each of one row of tokens."""
    kept = KeptStreams(decoder)

    def keep(layer: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        streams = {EMBEDDING: inputs[0]} if layer.number == 0 else {}
        for name, stream in {**streams, f"layers.{layer.number}": output}.items():
            kept.parts[name].append(stream.detach()[0].clone())

    with ExitStack() as stack:
        for layer in decoder.layers:
            stack.callback(layer.register_forward_hook(keep).remove)
        yield kept


def read_streams(decoder: Decoder, tokens: Tensor) -> Mapping[str, Tensor]:
    """Return the streams of the decoder's own pass over all tokens but the last: tokens int64 [length]."""
    with torch.no_grad(), kept_streams(decoder) as kept:
        decoder.hidden(tokens[None, :-1].to(decoder.embedding.device))
    return kept.streams(len(tokens) - 1)


def first_different(trainer: Mapping[str, Tensor], sampler: Mapping[str, Tensor]) -> str:
    """Describe the first stream that differs, with its first position and the largest difference."""
    for name, mine in trainer.items():
        theirs = sampler[name]
        differs = (mine != theirs) & ~(mine.isnan() & theirs.isnan())
        if bool(differs.any()):
            position = int(differs.any(-1).nonzero()[0])
            largest = float((mine.double() - theirs.double()).abs().nan_to_num(nan=torch.inf).max())
            return (
                f"the first activations that differ are those of {name}, from position {position} on"
                f" ({int(differs.sum())} of {differs.numel()} values, by at most {largest:.3g})"
            )
    return "the activations of a pass by itself are equal: the log-probability depends on its batch, or on the draw"
