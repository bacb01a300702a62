"""A product that processes divide among them: by columns it keeps its bits, by rows its partial sums do not."""

import torch

from rlcore.numerics.attention import attention
from rlcore.numerics.level import Strategy
from rlcore.numerics.product import linear
from tests.support.samplers import decoder_of

PRODUCTS = sorted({shape for family in ("llama", "qwen3") for shape in decoder_of(family).config.product_shapes})
WIDER = [(128, 344), (384, 384), (384, 1536), (1536, 384)]


def test_halves_of_the_columns_are_those_of_the_product(strategy: Strategy) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for inputs, outputs in (*PRODUCTS, *WIDER):
            for rows in (1, 3, 16, 64):
                x, weight = (torch.randn(size, inputs, generator=generator) for size in (rows, outputs))
                halves = [linear(x, half.contiguous()) for half in weight.tensor_split(2)]
                assert torch.equal(torch.cat(halves, -1), linear(x, weight)), (inputs, outputs, rows)


def test_halves_of_the_heads_are_those_of_attention(strategy: Strategy) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for heads, kv_heads, width in ((4, 4, 16), (4, 2, 32), (6, 2, 64)):
            qkv = [torch.randn(2, count, 33, width, generator=generator) for count in (heads, kv_heads, kv_heads)]
            divided = zip(*(each.tensor_split(2, 1) for each in qkv), strict=True)
            halves = [attention(*(part.contiguous() for part in parts)) for parts in divided]
            assert torch.equal(torch.cat(halves, 1), attention(*qkv)), (heads, kv_heads, width)


def test_partial_sums_of_halves_of_the_inputs_differ(strategy: Strategy) -> None:
    """The reason why there is no tensor parallelism: vLLM divides half of its products in this way."""
    generator, equal = torch.Generator().manual_seed(0), list[bool]()
    with torch.no_grad():
        for inputs, outputs in WIDER:
            x, weight = (torch.randn(size, inputs, generator=generator) for size in (16, outputs))
            halves = zip(x.tensor_split(2, 1), weight.tensor_split(2, 1), strict=True)
            first, second = (linear(*(part.contiguous() for part in parts)) for parts in halves)
            equal.append(torch.equal(first + second, linear(x, weight)))
    assert not all(equal)
