"""Bits of a row depend on that row alone, under each strategy; under torch's own operations they do not.

Where the naive operation holds on a machine, its test says so and is skipped: what it shows is not to be seen there.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import embedding

from rlcore.numerics import activations
from rlcore.numerics.activations import swiglu
from rlcore.numerics.attention import attention, visible
from rlcore.numerics.level import Strategy, following
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.numerics.norms import rms_norm
from rlcore.numerics.probe import STRATEGIES, num_threads, with_gradients
from rlcore.numerics.product import linear
from rlcore.numerics.row_sum import ROWS_AT_ONCE, row_sum
from tests.rlcore.fake_gpu import fake_gpu

DTYPES = (torch.float32, torch.bfloat16)
few = settings(max_examples=12)
threads = st.sampled_from([1, 2])
Of = Callable[..., Tensor]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@few
@given(data=st.data(), dtype=st.sampled_from(DTYPES), count=threads)
def test_linear_takes_rows_one_by_one(strategy: Strategy, data: st.DataObject, dtype: torch.dtype, count: int) -> None:
    inputs, outputs = data.draw(st.sampled_from([(32, 48), (64, 64), (100, 37), (96, 260)]))
    x, weight = drawn(70, inputs, dtype=dtype), drawn(outputs, inputs, dtype=dtype, seed=1)
    bias, grad = drawn(outputs, dtype=dtype, seed=2), drawn(70, outputs, dtype=dtype, seed=3)
    with num_threads(1):
        y, dx, *_ = with_gradients(linear, grad, x, weight, bias)
    rows = data.draw(st.lists(st.integers(0, 69), min_size=1, max_size=40))  # any, in any order, repeated too
    with num_threads(count):
        part, dpart, *_ = with_gradients(linear, grad[rows], x[rows], weight, bias)
    assert torch.equal(part, y[rows])
    assert torch.equal(dpart, dx[rows])


@few
@given(data=st.data(), dtype=st.sampled_from(DTYPES), count=threads)
def test_attention_decodes_to_the_bits_of_a_pass(
    strategy: Strategy, data: st.DataObject, dtype: torch.dtype, count: int
) -> None:
    heads, kv_heads, width = data.draw(st.sampled_from([(2, 2, 16), (4, 2, 8), (3, 1, 20)]))
    length, batch = data.draw(st.integers(2, 70)), 3
    q = drawn(batch, heads, length, width, dtype=dtype)
    k, v = (drawn(batch, kv_heads, length, width, dtype=dtype, seed=seed) for seed in (1, 2))
    with num_threads(1):
        whole = attention(q, k, v)
    starts = torch.tensor(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=batch)))
    num_queries = data.draw(st.integers(1, length - int(starts.max())))
    num_keys = data.draw(st.integers(int(starts.max()) + num_queries, length))
    samples = data.draw(st.permutations(range(batch)))[: len(starts)]
    pairs = list(zip(samples, starts.tolist(), strict=True))
    queries = torch.stack([q[sample, :, start : start + num_queries] for sample, start in pairs])
    with num_threads(count):
        keys, values = k[list(samples), :, :num_keys], v[list(samples), :, :num_keys]
        found = attention(queries, keys, values, visible(starts, num_queries, num_keys))
    expected = torch.stack([whole[sample, :, start : start + num_queries] for sample, start in pairs])
    assert torch.equal(found, expected)


@few
@given(st.lists(st.integers(0, 49), min_size=1, max_size=30), st.sampled_from(DTYPES), threads)
def test_the_other_operations_take_rows_one_by_one(rows: list[int], dtype: torch.dtype, count: int) -> None:
    x, other, grad = (drawn(50, 67, dtype=dtype, seed=seed) for seed in range(3))
    weight, tokens = drawn(67, dtype=dtype, seed=3), torch.arange(50) % 67

    def computed(part: list[int]) -> list[Tensor]:
        return [
            *with_gradients(lambda a: rms_norm(a, weight, 1e-6), grad[part], x[part]),
            *with_gradients(swiglu, grad[part], torch.cat((x[part], other[part]), -1)),
            *with_gradients(lambda a: token_logprobs(a, tokens[part]), grad[part, 0].float(), x[part]),
            embedding(tokens[part], x),
        ]

    with following(STRATEGIES[0]):
        with num_threads(1):
            whole = computed(list(range(50)))
        with num_threads(count):
            assert all(torch.equal(part, all_[rows]) for part, all_ in zip(computed(rows), whole, strict=True))


@few
@given(st.integers(1, 3000) | st.just(2 * ROWS_AT_ONCE + 100), threads)
def test_sums_over_rows_do_not_depend_on_threads(num_rows: int, count: int) -> None:
    x = drawn(num_rows, 5)
    with num_threads(1):
        alone = row_sum(x)
    with num_threads(count):
        assert torch.equal(row_sum(x), alone)
    torch.testing.assert_close(alone, x.double().sum(0).float(), atol=2e-4, rtol=1e-5)


# ------------------------------------------------------------------------------------- taken out, each property breaks


def broken(what: str, differs: bool) -> None:
    """Skip where the naive operation happens to hold here."""
    if not differs:
        pytest.skip(f"{what} holds on this machine: what the strategy is for is not to be seen here")


def test_a_product_a_pass_or_silu_depends_on_the_batch_without_a_strategy() -> None:
    """At least one of them on any machine; where none did, the level would be for nothing."""
    x, weight, q, z = drawn(128, 64), drawn(64, 64, seed=1), drawn(1, 2, 64, 16), drawn(4097) * 4
    whole, activated = linear(x, weight), F.silu(z)
    decoded = [
        attention(q[:, :, [at]], q[:, :, : at + 1], q[:, :, : at + 1], visible(torch.tensor([at]), 1, at + 1))
        for at in range(64)
    ]
    assert (
        any(not torch.equal(linear(x[:rows], weight), whole[:rows]) for rows in (1, 2, 3, 5, 9))
        or not torch.equal(torch.cat(decoded, 2), attention(q, q, q))
        or any(not torch.equal(F.silu(z[at : at + 7]), activated[at : at + 7]) for at in range(999))
    )


def test_a_gpu_is_handed_all_of_swiglu_whatever_the_number_of_threads() -> None:
    counts = {}
    for device in ("cpu", "cuda"):
        with fake_gpu() as launches, following(Strategy()), num_threads(2), torch.no_grad():
            x = torch.zeros(64, 2 * 14_336, device=device)
            launches.names.clear()
            assert swiglu(x).device.type == device
            counts[device] = launches.names.total()
    assert counts["cuda"] < 20 < counts["cpu"]


@pytest.mark.parametrize(("num_rows", "width"), [(301, 341), (5, 40_001)])
def test_swiglu_of_more_than_threads_leave_whole(num_rows: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows alone, with one thread, against all of them with two; and what happens where blocks are too large."""
    x, grad = drawn(num_rows, 2 * width) * 4, drawn(num_rows, width, seed=1)

    def differs() -> bool:
        with num_threads(2):
            whole = with_gradients(swiglu, grad, x)
        with num_threads(1):
            alone = [with_gradients(swiglu, grad[row : row + 1], x[row : row + 1]) for row in range(num_rows)]
        return not all(torch.equal(torch.cat([row[i] for row in alone]), whole[i]) for i in range(2))

    with following(STRATEGIES[0]):
        assert not differs()
        monkeypatch.setattr(activations, "ELEMENTS_AT_ONCE", 1 << 40)
        broken("silu of a tensor that threads divide", differs())


def test_one_norm_for_all_heads_has_the_bits_of_one_for_each() -> None:
    x, weight, grad = drawn(50, 3, 16), drawn(3, 16, seed=1), drawn(50, 3, 16, seed=2)
    with following(STRATEGIES[0]):
        together = with_gradients(lambda a, b: rms_norm(a, b, 1e-6), grad, x, weight)
        for head in range(3):
            inputs = grad[:, head], x[:, head], weight[head]
            alone = with_gradients(lambda a, b: rms_norm(a, b, 1e-6), *inputs)
            assert torch.equal(together[0][:, head], alone[0])
            assert torch.equal(together[1][:, head], alone[1])
            assert torch.equal(together[2][head], alone[2])


def test_new_memory_is_filled_again_however_a_strategy_ends() -> None:
    with pytest.raises(KeyError), following(STRATEGIES[0]):
        assert not torch._C._get_deterministic_fill_uninitialized_memory()
        raise KeyError
    assert torch._C._get_deterministic_fill_uninitialized_memory()


def test_gradients_of_an_index_are_not_those_of_an_embedding() -> None:
    """`table[tokens]` adds in any order where threads meet: seen or not, `embedding` gives one result only."""
    table, tokens, grad = drawn(3, 33), torch.arange(6000) % 3, drawn(6000, 33, seed=1)
    with num_threads(2):
        ours = [with_gradients(lambda weight: embedding(tokens, weight), grad, table)[1] for _ in range(10)]
        theirs = [with_gradients(lambda weight: weight[tokens], grad, table)[1] for _ in range(10)]
    assert all(torch.equal(found, ours[0]) for found in ours)
    broken("w[index]", any(not torch.equal(found, theirs[0]) for found in theirs))


# --------------------------------------------------------------------------------------------------- and they are right


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients_are_those_of_torch(strategy: Strategy, dtype: torch.dtype) -> None:
    q, grad = (drawn(2, 4, 70, 16, dtype=dtype, seed=seed) for seed in (0, 3))
    k, v = (drawn(2, 2, 70, 16, dtype=dtype, seed=seed) for seed in (1, 2))
    x, weight, bias, dy = drawn(21, 30), drawn(11, 30, seed=1), drawn(11, seed=2), drawn(21, 11, seed=3)
    close = 2e-5 if dtype == torch.float32 else 4e-2

    def computed(attend: Of, multiply: Of, norm: Of, gated: Of) -> list[Tensor]:
        gates_and_ups = torch.cat((x * 5, x.flip(0)), -1).to(dtype)
        return [
            *with_gradients(attend, grad, q, k, v),
            *with_gradients(multiply, dy.to(dtype), *(z.to(dtype) for z in (x, weight, bias))),
            *with_gradients(norm, x.to(dtype), x.to(dtype), x[0].to(dtype)),
            *with_gradients(gated, x.to(dtype), gates_and_ups),
        ]

    ours = computed(attention, linear, lambda a, b: rms_norm(a, b, 1e-5), swiglu)
    torchs = computed(
        lambda a, b, c: F.scaled_dot_product_attention(a, b, c, is_causal=True, enable_gqa=True),
        F.linear,
        lambda a, b: F.rms_norm(a, (30,), b, 1e-5),
        lambda both: F.silu(both[:, :30]) * both[:, 30:],
    )
    torch.testing.assert_close(ours, torchs, atol=close, rtol=close)
