"""Fixed microbatches: which samples, how long, and what a budget does to them."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.data.batch import Batch, collate
from rlcore.data.microbatches import (
    LENGTH_MULTIPLE,
    build_microbatch,
    fixed_microbatches,
    microbatches_by_budget,
)
from rlcore.errors import InvalidValueError, ShapeError

lengths = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 40)), min_size=1, max_size=12)


def batch_of(sizes: list[tuple[int, int]]) -> Batch:
    """Prompts and completions of these lengths; token t of sample s is 100 s + t."""
    tokens = [torch.arange(prompt + drawn) + 100 * number for number, (prompt, drawn) in enumerate(sizes)]
    mask = [torch.tensor([False] * prompt + [True] * drawn) for prompt, drawn in sizes]
    prompts = torch.tensor([prompt for prompt, _ in sizes])
    batch = collate({"tokens": tokens, "loss_mask": mask})
    return batch.extended(prompt_lengths=prompts)


@settings(max_examples=60)
@given(sizes=lengths, more=lengths)
def test_a_microbatch_is_of_its_members_alone(sizes: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    """Whatever else is in the batch: its length and its tokens stay."""
    alone, among = batch_of(sizes), batch_of([*sizes, *more])
    rows = range(len(sizes))
    one, other = build_microbatch(alone, rows, 0), build_microbatch(among, rows, 0)
    assert torch.equal(one.tokens, other.tokens)
    assert one.first == other.first == max(1, min(prompt for prompt, _ in sizes))
    assert torch.equal(one["loss_mask"], other["loss_mask"])
    assert one.num_tokens % (LENGTH_MULTIPLE * len(sizes)) == 0
    assert 0 <= one.tokens.shape[1] - max(p + d for p, d in sizes) < LENGTH_MULTIPLE


@settings(max_examples=60)
@given(sizes=lengths, budget=st.integers(64, 400))
def test_no_pass_is_above_its_budget(sizes: list[tuple[int, int]], budget: int) -> None:
    passes = microbatches_by_budget(batch_of(sizes), range(len(sizes)), token_budget=budget)
    assert sorted(sample for each in passes for sample in each.samples) == list(range(len(sizes)))
    assert all(each.num_tokens <= budget for each in passes)


def test_a_fixed_microbatch_is_never_divided() -> None:
    batch = batch_of([(4, 10)] * 4)
    assert len(fixed_microbatches(batch, range(4), 4, token_budget=64)) == 1
    with pytest.raises(InvalidValueError, match=r"token_budget 63(.|\n)*at least 64"):
        fixed_microbatches(batch, range(4), 4, token_budget=63)


def test_a_microbatch_that_travels_takes_along_the_rows_of_its_samples_alone() -> None:
    batch = batch_of([(2, 5), (4, 3), (3, 20)]).extended(rewards=torch.tensor([7.0, 8.0, 9.0]))
    microbatch = build_microbatch(batch, [2, 0], 3)
    arrived = pickle.loads(pickle.dumps(microbatch))
    assert (arrived.number, arrived.samples, arrived.first) == (3, (2, 0), microbatch.first)
    assert torch.equal(arrived.tokens, microbatch.tokens)
    for name in ("loss_mask", "rewards", "lengths"):
        assert torch.equal(arrived[name], microbatch[name])
    assert len(arrived.columns["rewards"]) == 2
    again = pickle.loads(pickle.dumps(arrived))
    assert torch.equal(again["loss_mask"], microbatch["loss_mask"])


def test_rows_that_do_not_belong_together_are_refused() -> None:
    for entry in (torch.zeros(3), torch.zeros(())):
        with pytest.raises(ShapeError, match="entries of a batch have sizes"):
            Batch({"rewards": torch.zeros(2)}).extended(values=entry)
