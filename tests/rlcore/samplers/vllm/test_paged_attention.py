"""The decoder over a paged cache has the bits of one pass, however requests are cut into passes. No vLLM is needed."""

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.models.config import FAMILIES
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES
from rlcore.samplers.vllm.attention import PagedBackend, PagedPass
from tests.support.samplers import decoder_of


class Pages:
    """A paged cache and the passes over it, as vLLM's scheduler would make them: each request has blocks of its own."""

    def __init__(self, decoder: Decoder, num_requests: int, block_size: int, *, fill: float = 0.0) -> None:
        config = decoder.config
        per_request = -(-config.max_length // block_size)
        generator = torch.Generator().manual_seed(3)
        order = torch.randperm(num_requests * per_request, generator=generator)
        self.decoder, self.block_size = decoder, block_size
        self.blocks = order.view(num_requests, per_request).int()
        shape = (len(order) * block_size, config.num_kv_heads, 2 * config.head_width)
        self.caches = [torch.full(shape, fill) for _ in range(config.num_layers)]

    def read(self, chunks: Sequence[tuple[int, int, Sequence[int]]]) -> list[Tensor]:
        """Read (request, tokens before, tokens) of several requests in one pass; return the stream of each."""
        starts, keys, tokens = [0], list[int](), list[int]()
        slots, positions = list[Tensor](), list[Tensor]()
        for request, before, chunk in chunks:
            at = torch.arange(before, before + len(chunk))
            slots.append(self.blocks[request, at // self.block_size] * self.block_size + at % self.block_size)
            positions.append(at)
            tokens += chunk
            starts.append(len(tokens))
            keys.append(before + len(chunk))
        table = self.blocks[torch.tensor([request for request, *_ in chunks])]
        plan = PagedPass.of(starts, keys, table, torch.cat(slots), self.block_size)
        by = PagedBackend(self.decoder.config, self.decoder.rotations(), torch.cat(positions), plan, self.caches)
        stream = self.decoder.through(torch.tensor(tokens)[None], by)[0]
        return list(torch.split(stream, [len(chunk) for *_, chunk in chunks]))


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    sequences=st.lists(st.lists(st.integers(0, 28), min_size=1, max_size=40), min_size=1, max_size=5),
    block_size=st.sampled_from([1, 3, 8, 32]),
    widths=st.lists(st.integers(1, 17), min_size=1, max_size=20),
    fill=st.sampled_from([0.0, 1e6]),
)
def test_any_passes_have_the_bits_of_one_pass(
    family: str, sequences: list[list[int]], block_size: int, widths: list[int], fill: float
) -> None:
    decoder = decoder_of(family, spread=6.0)
    pages = Pages(decoder, len(sequences), block_size, fill=fill)
    found: list[list[Tensor]] = [[] for _ in sequences]
    num_read, turn = [0] * len(sequences), 0
    with following(STRATEGIES[0]), torch.no_grad():
        while any(count < len(sequence) for count, sequence in zip(num_read, sequences, strict=True)):
            chunks = []
            for request, sequence in enumerate(sequences):
                width = widths[(turn + request) % len(widths)]
                if chunk := sequence[num_read[request] : num_read[request] + width]:
                    chunks.append((request, num_read[request], chunk))
            for (request, _, chunk), stream in zip(chunks, pages.read(chunks), strict=True):
                found[request].append(stream)
                num_read[request] += len(chunk)
            turn += 1
        for sequence, parts in zip(sequences, found, strict=True):
            assert torch.equal(torch.cat(parts), decoder.hidden(torch.tensor([sequence]))[0])


def test_a_request_reads_a_prefix_that_another_computes_in_the_same_pass() -> None:
    decoder, tokens = decoder_of("qwen3", spread=6.0), list(range(3, 23))
    pages = Pages(decoder, 2, 8)
    pages.blocks[1, :2] = pages.blocks[0, :2]  # as a prefix cache shares them
    with following(STRATEGIES[0]), torch.no_grad():
        _, second = pages.read([(0, 0, tokens), (1, 16, tokens[16:])])
        assert torch.equal(second, decoder.hidden(torch.tensor([tokens]))[0, 16:])


def test_padding_of_a_pass_is_neither_written_nor_read() -> None:
    decoder = decoder_of("qwen3", spread=6.0)
    pages = Pages(decoder, 1, 8)
    plan = PagedPass.of([0, 3], [3], pages.blocks, torch.tensor([0, 1, 2]), 8)
    with following(STRATEGIES[0]), torch.no_grad():
        by = PagedBackend(decoder.config, decoder.rotations(), torch.tensor([0, 1, 2, 0, 0]), plan, pages.caches)
        stream = decoder.through(torch.tensor([[5, 6, 7, 0, 0]]), by)[0, :3]
        assert torch.equal(stream, decoder.hidden(torch.tensor([[5, 6, 7]]))[0])
    assert int((pages.caches[0] != 0).any(-1).any(-1).sum()) == 3


def test_at_level_off_some_bits_differ() -> None:
    tokens, equal = list(range(3, 28)), list[bool]()
    for family in FAMILIES:
        decoder = decoder_of(family, spread=6.0)
        pages = Pages(decoder, 1, 8)
        with torch.no_grad():
            parts = torch.cat([pages.read([(0, at, [token])])[0] for at, token in enumerate(tokens)])
            whole = decoder.hidden(torch.tensor([tokens]))[0]
        assert torch.allclose(parts, whole, atol=1e-4)
        equal.append(torch.equal(parts, whole))
    assert not all(equal)
