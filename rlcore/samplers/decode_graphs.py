"""Steps of decoding on a GPU, replayed as CUDA graphs: a step is one launch, not some twenty for each layer.

A graph holds the addresses of one cache and of the weights, which a sync writes in place. It has a power of two of
rows. Rows without a sequence read token 0 at the beginning of a free slot: at level invariant no row depends on them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.models.cache import CachePositions, KeyValueCache
from rlcore.models.decoder import Decoder


class Graph(NamedTuple):
    """A captured step: what it reads, and what it writes."""

    graph: torch.cuda.CUDAGraph
    given: Tensor
    """int64 [2, rows]: the last token of each sequence, and its position."""
    logits: Tensor
    """[rows, vocabulary]."""


class DecodeGraphs:
    """The graphs of a decoder over one cache, captured when they are first wanted."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._cache: KeyValueCache | None = None
        self._graphs: dict[int, Graph] = {}

    def logits(self, tokens: Sequence[int], positions: Sequence[int], cache: KeyValueCache) -> Tensor:
        """Read the token of each slot from 0 on, at its position -> [tokens, vocabulary], valid until the next call."""
        if cache is not self._cache:
            self._cache, self._graphs = cache, {}
        count = min(1 << (len(tokens) - 1).bit_length(), cache.keys.shape[1])
        missing = (0,) * (count - len(tokens))
        given = torch.tensor([[*tokens, *missing], [*positions, *missing]])
        if count not in self._graphs:
            self._graphs[count] = self._capture(given.to(cache.keys.device), cache)
        captured = self._graphs[count]
        captured.given.copy_(given)
        captured.graph.replay()
        return captured.logits[: len(tokens)]

    def step(self, given: Tensor, cache: KeyValueCache) -> Tensor:
        """Compute the logits of a step over the whole capacity: kernels stop at each row's own position."""
        tokens, starts = given
        at = CachePositions.of(cache, starts, 1, longest=cache.capacity - 1)
        return self._decoder.logits(self._decoder.decode(tokens.unsqueeze(1), at)[:, 0])

    def _capture(self, given: Tensor, cache: KeyValueCache) -> Graph:
        stream = torch.cuda.Stream(given.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(given.device))
        with torch.cuda.stream(stream):
            self.step(given, cache)  # compiles the kernels, which a capture cannot
        torch.cuda.current_stream(given.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).graph.pool() if self._graphs else None  # one is replayed at a time
        # Replicas have a thread each: only what this one does is held against its capture.
        mode = "thread_local"
        with torch.cuda.device(given.device), torch.cuda.graph(graph, pool=pool, capture_error_mode=mode):
            logits = self.step(given, cache)
        return Graph(graph, given, logits)
