"""Properties of the kernels of level invariant, in Triton's interpreter: `test_gpu.py` runs this file in a process.

Each holds for the kernels, and is seen to break when what it rests on is taken away.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.models.cache import KeyValueCache
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics import gpu, probe
from rlcore.numerics.activations import swiglu
from rlcore.numerics.attention import attention, visible
from rlcore.numerics.level import following
from rlcore.numerics.log_softmax import log_softmax, token_logprobs, token_logprobs_and_entropy
from rlcore.numerics.norms import last_sum, rms_norm
from rlcore.numerics.probe import GPU_STRATEGIES, with_gradients
from rlcore.numerics.product import linear
from rlcore.numerics.tree_sum import TreeSum
from rlcore.samplers.decode_graphs import DecodeGraphs
from tests.support.triton_interpreter import products_in_order

DTYPES = [torch.float32, torch.bfloat16]
CONFIG = DecoderConfig("qwen3", 41, 32, 2, 2, 1, 16, 48, max_length=64)
"""One kv head: then rows of its keys are no contiguous tensor."""


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    with products_in_order(), following(GPU_STRATEGIES[0]):
        yield


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_rows(x: Tensor, weight: Tensor, *, split: bool = False) -> Tensor:
    """x @ weight.T in the kernel's order; `split`: the halves of K apart, then added."""
    wide, other = x.float(), weight.float()
    ends = (0, x.shape[1] // 2, x.shape[1]) if split else (0, x.shape[1])
    parts = [
        reduce(torch.add, (wide[:, k : k + 1] * other[:, k] for k in range(begin, end)), torch.zeros(1))
        for begin, end in pairwise(ends)
    ]
    result = reduce(torch.add, parts)
    if x.dtype == torch.bfloat16:  # which the interpreter cuts off
        result = (result.view(torch.int32) >> 16 << 16).view(torch.float32)
    return result.to(x.dtype)


# ------------------------------------------------------------------------------------------------------------ products


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_a_product_has_the_bits_of_its_written_order_in_every_tile(
    capability: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "machine", lambda device: gpu.Machine(capability, 4))
    x, weight = drawn(140, 100, dtype=dtype), drawn(41, 100, dtype=dtype, seed=1)
    expected = by_rows(x, weight)
    assert dtype == torch.bfloat16 or not torch.equal(expected, by_rows(x, weight, split=True))
    for name, found in gpu.products_by_tile(x, weight).items():
        assert torch.equal(found, expected), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_of_a_product_and_its_gradient_do_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    x, weight, grad = (
        drawn(150, 72, dtype=dtype),
        drawn(90, 72, dtype=dtype, seed=1),
        drawn(150, 90, dtype=dtype, seed=2),
    )
    y, dx, _ = with_gradients(linear, grad, x, weight)
    for rows in ([0], [149], [3, 3, 0], [*range(64, 129)], random.Random(1).sample(range(150), 70)):
        part, dpart, _ = with_gradients(linear, grad[rows], x[rows], weight)
        assert torch.equal(part, y[rows]) and torch.equal(dpart, dx[rows])


def test_a_product_that_splits_k_by_the_batch_is_seen_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = gpu.product

    def split(x: Tensor, weight: Tensor, **given: Any) -> Tensor:
        if given or len(x) > 16:
            return plain(x, weight, **given)
        half = x.shape[1] // 2
        return plain(x[:, :half].contiguous(), weight[:, :half].contiguous()) + plain(x[:, half:], weight[:, half:])

    monkeypatch.setattr(probe, "PARTS", (slice(0, 1), slice(3, 20)))
    report = probe.InvarianceReport(GPU_STRATEGIES[0], torch.float32, ((40, 24),), (), 48)
    assert [each.num_different for each in probe.measure(report, (1,), num_rows=20)] == [0, 0, 0]
    monkeypatch.setattr(gpu, "product", split)
    assert [each.num_different > 0 for each in probe.measure(report, (1,), num_rows=20)] == [True, False, False]


# ----------------------------------------------------------------------------------------------------------- attention


def whole_and_parts(dtype: torch.dtype) -> bool:
    """Whether positions decoded, and chunks in any company, have the bits of the full pass."""
    q, (k, v) = drawn(3, 4, 70, 20, dtype=dtype), (drawn(3, 2, 70, 20, dtype=dtype, seed=seed) for seed in (1, 2))
    whole, is_equal = attention(q, k, v), True
    for count, starts in ((1, [0, 33, 69]), (1, [64, 5, 63]), (7, [40, 0, 63]), (33, [2, 31, 37])):
        order = random.Random(count).sample(range(3), 3)
        queries = torch.stack([q[b, :, s : s + count] for b, s in zip(order, starts, strict=True)])
        found = attention(queries, k[order], v[order], visible(torch.tensor(starts), count, 70))
        expected = torch.stack([whole[b, :, s : s + count] for b, s in zip(order, starts, strict=True)])
        is_equal = is_equal and torch.equal(found, expected)
    return is_equal


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decoding_and_chunks_have_the_bits_of_the_full_pass(dtype: torch.dtype) -> None:
    assert whole_and_parts(dtype)


def test_blocks_of_keys_by_the_number_of_queries_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = gpu.Tile(64, 32, 0, 4, 1), gpu.Tile(16, 16, 0, 4, 1)
    monkeypatch.setattr(gpu.Machine, "attention", lambda self, dtype: tiles)
    assert not whole_and_parts(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_attention_are_torchs_up_to_rounding_and_repeat(dtype: torch.dtype) -> None:
    q, grad = drawn(2, 4, 37, 20, dtype=dtype), drawn(2, 4, 37, 20, dtype=dtype, seed=3)
    k, v = (drawn(2, 2, 37, 20, dtype=dtype, seed=seed) for seed in (1, 2))
    found, again = (with_gradients(attention, grad, q, k, v) for _ in range(2))
    with following(None):
        expected = with_gradients(attention, grad.float(), q.float(), k.float(), v.float())
    for mine, other, theirs in zip(found, again, expected, strict=True):
        assert torch.equal(mine, other)
        assert float((mine.float() - theirs).norm() / theirs.norm()) < (1e-5 if dtype == torch.float32 else 0.02)


# ---------------------------------------------------------------------------------------------------------- row by row

TOKENS = torch.arange(50) % 67
OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "rms_norm": lambda x: rms_norm(x, drawn(67, dtype=x.dtype, seed=5), 1e-6),
    "swiglu": lambda x: swiglu(torch.cat((x, x.flip(-1)), -1)),
    "log_softmax": log_softmax,
    "logprobs": lambda x: token_logprobs(x, TOKENS[: len(x)]),
    "entropy": lambda x: token_logprobs_and_entropy(x, TOKENS[: len(x)])[1],
    "sum": lambda x: last_sum(x.float()),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_the_others_and_is_torchs_up_to_rounding(name: str, dtype: torch.dtype) -> None:
    compute, x = OPERATIONS[name], drawn(50, 67, dtype=dtype)
    grad = drawn(*compute(x).shape, dtype=compute(x).dtype, seed=1)
    found = with_gradients(compute, grad, x)
    for count in (1, 7, 49):
        part = with_gradients(compute, grad[:count], x[:count])
        assert all(torch.equal(a, b[:count]) for a, b in zip(part, found, strict=True))
    with following(None):
        expected = with_gradients(compute, grad.float(), x.float())
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine.float() - theirs).norm() / theirs.norm()) < (1e-5 if dtype == torch.float32 else 0.02)


# ---------------------------------------------------------------------------------------------------------- the decoder


def model(seed: int = 3) -> Decoder:
    decoder = Decoder(CONFIG).initialise(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(8 if parameter.dim() == 2 else 1)
    return decoder


def test_sampled_logprobs_are_those_of_a_teacher_forced_pass_in_other_company() -> None:
    """Prompts in chunks, steps of decoding as a graph computes them, with rows of padding, against whole sequences."""
    decoder, random_ = model().requires_grad_(False), random.Random(4)
    sequences = [[random_.randrange(41) for _ in range(length)] for length in (9, 14, 23)]
    cache = KeyValueCache.empty(CONFIG, 4, 32, like=decoder.embedding)
    steps, graphs, found = 4, DecodeGraphs(decoder), []
    firsts = [len(sequence) - steps for sequence in sequences]
    for slot, (sequence, first) in enumerate(zip(sequences, firsts, strict=True)):
        for begin, end in ((0, 3), (3, first)):  # chunked
            decoder.extend(torch.tensor([sequence[begin:end]]), cache.slots(slot, slot + 1), [begin])
    for step in range(steps - 1):
        given = [[sequence[first + step] for sequence, first in zip(sequences, firsts, strict=True)] + [0]]
        given += [[first + step for first in firsts] + [0]]
        targets = torch.tensor([sequence[first + step + 1] for sequence, first in zip(sequences, firsts, strict=True)])
        found.append(token_logprobs(graphs.step(torch.tensor(given), cache)[:3], targets))
    longest = max(map(len, sequences))
    padded = torch.tensor([[*sequence, *[0] * (longest - len(sequence))] for sequence in reversed(sequences)])
    whole = token_logprobs(decoder(padded[:, :-1]), padded[:, 1:]).flip(0)
    for row, first in enumerate(firsts):
        assert torch.equal(torch.stack(found, 1)[row], whole[row, first : first + steps - 1])


def gradients_of(decoder: Decoder, tokens: Tensor) -> list[Tensor]:
    logprobs, entropy = token_logprobs_and_entropy(decoder(tokens[:, :-1]), tokens[:, 1:])
    return [*torch.autograd.grad(logprobs.sum() + 0.1 * entropy.sum(), list(decoder.parameters()))]


def test_gradients_repeat_and_their_sum_does_not_depend_on_the_order_of_microbatches() -> None:
    decoder = model()
    microbatches = [torch.randint(0, 41, (2, 6), generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    parts = [gradients_of(decoder, tokens) for tokens in microbatches]
    assert all(torch.equal(a, b) for a, b in zip(gradients_of(decoder, microbatches[2]), parts[2], strict=True))

    def total(order: list[int]) -> list[Tensor]:
        trees = [TreeSum(4) for _ in parts[0]]
        for number in order:
            for tree, gradient in zip(trees, parts[number], strict=True):
                tree.add(number, gradient.clone())
        return [found for tree in trees if (found := tree.total()) is not None]

    def plain(order: list[int]) -> list[Tensor]:
        return [reduce(torch.add, (parts[number][index] for number in order)) for index in range(len(parts[0]))]

    first, second = [0, 1, 2, 3], [3, 1, 0, 2]
    assert all(torch.equal(a, b) for a, b in zip(total(first), total(second), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(plain(first), plain(second), strict=True))
    with following(None):
        theirs = gradients_of(decoder, microbatches[0])
    for mine, other in zip(parts[0], theirs, strict=True):
        assert float((mine - other).norm() / other.norm()) < 1e-4


if __name__ == "__main__":
    # The project's options are those of its suite: workers, and the tier.
    sys.exit(
        pytest.main(
            [__file__, "-q", "-c", os.devnull, "--import-mode=importlib", "-o", "python_files=*.py", *sys.argv[1:]]
        )
    )
