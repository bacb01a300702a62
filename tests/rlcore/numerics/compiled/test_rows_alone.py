"""A row has the bits it has alone: rows, samples, groups of heads, what comes behind, and any way into a cache."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.numerics.cases import with_gradients
from rlcore.numerics.compiled.differentiable import attend, attend_cached, rms_norm, swiglu
from tests.rlcore.numerics.compiled.heads_drawn import SIZES, Sizes, add_norm, drawn

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

some = settings(max_examples=30)


def are_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def attended(sizes: Sizes, heads: Tensor, grad: Tensor, num_kv_heads: int | None = None) -> list[Tensor]:
    """[mixed, the gradient of heads]."""
    return with_gradients(lambda x: attend(x, sizes.by(), num_kv_heads or sizes.num_kv_heads), grad, heads)


@some
@given(st.lists(st.integers(0, 49), min_size=1, max_size=30), st.sampled_from([1, 7, 16, 44, 64]))
def test_norms_and_gates_take_rows_one_by_one(rows: list[int], width: int) -> None:
    x, other, grad, weight = *(drawn(50, width, seed=seed) for seed in range(3)), drawn(width, seed=3)
    both = drawn(50, 2 * width, seed=4)

    def computed(part: list[int]) -> list[Tensor]:
        return [
            *with_gradients(lambda a: rms_norm(a, weight, 1e-6), grad[part], x[part]),
            *with_gradients(lambda a, b: add_norm(a, b, weight), both[part], x[part], other[part]),
            *with_gradients(swiglu, grad[part], torch.cat((x[part], other[part]), -1)),
        ]

    assert are_equal(computed(rows), [each[rows] for each in computed(list(range(50)))])


@some
@given(st.data(), SIZES)
def test_attention_takes_samples_one_by_one(data: st.DataObject, sizes: Sizes) -> None:
    heads, grad = sizes.heads(), sizes.grad()
    samples = data.draw(st.lists(st.integers(0, sizes.batch - 1), min_size=1, max_size=5))
    whole = attended(sizes, heads, grad)
    assert are_equal(attended(sizes, heads[samples], grad[samples]), [each[samples] for each in whole])


@some
@given(SIZES)
def test_attention_takes_groups_of_heads_one_by_one(sizes: Sizes) -> None:
    """Queries of several heads are taken together: which they are must not matter."""
    heads, grad = sizes.heads(), sizes.grad()
    mixed, d_heads = attended(sizes, heads, grad)
    for kv in range(sizes.num_kv_heads):
        queries = list(range(kv * sizes.group, (kv + 1) * sizes.group))
        own = [*queries, sizes.num_heads + kv, sizes.num_heads + sizes.num_kv_heads + kv]
        alone = attended(sizes, heads[:, :, own], grad[:, :, queries], 1)
        assert are_equal(alone, [mixed[:, :, queries], d_heads[:, :, own]])


@some
@given(st.data(), SIZES)
def test_what_comes_behind_changes_nothing(data: st.DataObject, sizes: Sizes) -> None:
    count = data.draw(st.integers(1, sizes.length))
    heads, grad = sizes.heads(), sizes.grad()
    grad[:, count:] = 0
    alone = attended(sizes, heads[:, :count].contiguous(), grad[:, :count])
    assert are_equal(alone, [each[:, :count] for each in attended(sizes, heads, grad)])
    heads[:, count:] = torch.nan
    assert torch.equal(attend(heads, sizes.by(), sizes.num_kv_heads)[:, :count], alone[0])


def put(sizes: Sizes, part: Tensor, start: int, keys: Tensor, values: Tensor) -> None:
    """The positions [length, ...] of one sequence into its slot [kv_heads, ...], from `start` on."""
    attend_cached(part[None].contiguous(), sizes.by(), torch.tensor([start]), keys[None], values[None])


@some
@given(st.data(), SIZES, st.sampled_from([0, 16, 48]))
def test_a_cache_gives_the_bits_of_a_pass(data: st.DataObject, sizes: Sizes, room: int) -> None:
    """Sequences of other lengths beside each other, each read in pieces of its own; NaN where nothing was written."""
    heads = sizes.heads()
    whole = attend(heads, sizes.by(), sizes.num_kv_heads)
    samples = data.draw(st.lists(st.integers(0, sizes.batch - 1), min_size=1, max_size=4))
    starts = [data.draw(st.integers(0, sizes.length - 1)) for _ in samples]
    keys, values = sizes.cache(len(samples), sizes.length + -sizes.length % 16 + room)
    for slot, (sample, start) in enumerate(zip(samples, starts, strict=True)):
        cuts = sorted(data.draw(st.sets(st.integers(1, start), max_size=4))) if start else []
        for first, last in zip([0, *cuts], [*cuts, start], strict=True):
            if first < last:
                put(sizes, heads[sample, first:last], first, keys[slot], values[slot])
    before = keys.clone(), values.clone()
    count = data.draw(st.integers(1, sizes.length - max(starts)))
    parts = torch.stack([heads[s, start : start + count] for s, start in zip(samples, starts, strict=True)])
    found = attend_cached(parts, sizes.by(), torch.tensor(starts), keys, values)
    expected = [whole[s, start : start + count] for s, start in zip(samples, starts, strict=True)]
    assert torch.equal(found, torch.stack(expected))
    for slot, start in enumerate(starts):  # and wrote where the positions stand, and nowhere else
        for across, now, old in ((1, keys, before[0]), (0, values.transpose(2, 3), before[1].transpose(2, 3))):
            assert torch.equal(now[slot, ..., :start], old[slot, ..., :start]), across
            assert not now[slot, ..., : start + count].isnan().any()
            assert now[slot, ..., start + count :].isnan().all()


# ------------------------------------------------------------------------------------------- NaN comes out where it may


@some
@given(st.data(), SIZES)
def test_nan_reaches_what_sees_it_and_nothing_else(data: st.DataObject, sizes: Sizes) -> None:
    heads = sizes.heads()
    clean = attend(heads, sizes.by(), sizes.num_kv_heads)
    sample, position = data.draw(st.integers(0, sizes.batch - 1)), data.draw(st.integers(0, sizes.length - 1))
    head, number = data.draw(st.integers(0, heads.shape[2] - 1)), data.draw(st.integers(0, sizes.width - 1))
    heads[sample, position, head, number] = torch.nan
    reached = torch.zeros_like(clean, dtype=torch.bool)
    if head < sizes.num_heads:
        reached[sample, position, head] = True
    else:
        kv = (head - sizes.num_heads) % sizes.num_kv_heads
        queries = slice(kv * sizes.group, (kv + 1) * sizes.group)
        is_key = head < sizes.num_heads + sizes.num_kv_heads
        reached[sample, position:, queries, slice(None) if is_key else number] = True
    found = attend(heads, sizes.by(), sizes.num_kv_heads)
    assert torch.equal(found.isnan(), reached)
    assert torch.equal(found[~reached], clean[~reached])


@some
@given(st.data(), SIZES)
def test_nan_in_the_gradient_of_a_sample_stays_there(data: st.DataObject, sizes: Sizes) -> None:
    heads, grad = sizes.heads(), sizes.grad()
    _, clean = attended(sizes, heads, grad)
    sample = data.draw(st.integers(0, sizes.batch - 1))
    grad[sample, -1, 0, 0] = torch.nan
    _, found = attended(sizes, heads, grad)
    others = [each for each in range(sizes.batch) if each != sample]
    assert torch.equal(found[others], clean[others])
    first_group = [0, sizes.num_heads, sizes.num_heads + sizes.num_kv_heads]
    assert found[sample, -1, first_group[:2]].isnan().all() and found[sample, :, first_group[2], 0].isnan().all()


@pytest.mark.parametrize("width", [7, 16, 44])
def test_nan_in_a_row_of_norms_and_gates_stays_there(width: int) -> None:
    x, weight, grad = drawn(5, 2 * width), drawn(2 * width, seed=1), drawn(5, 2 * width, seed=2)

    def computed() -> list[Tensor]:
        return [
            *with_gradients(lambda a: rms_norm(a, weight, 1e-6), grad, x),
            *with_gradients(swiglu, grad[:, :width].contiguous(), x),
        ]

    clean = computed()
    x[2, 1] = torch.nan
    others = [0, 1, 3, 4]
    normed, d_normed, gated, d_gated = found = computed()
    assert are_equal([each[others] for each in found], [each[others] for each in clean])
    assert normed[2].isnan().all() and d_normed[2].isnan().all()
    assert gated[2].isnan().nonzero().tolist() == [[1]]
    assert d_gated[2].isnan().nonzero().flatten().tolist() == [1, width + 1]
