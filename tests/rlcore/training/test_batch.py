"""Whatever is done with a batch, its samples keep together: ragged, dense, and what is no tensor at all."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from rlcore.batching.collate import chunk, collate, concat, lengths_of, pad, repeat, select, unpad
from rlcore.errors import InvalidValueError, ShapeError

PROPERTY = settings(max_examples=20)
SEQUENCES = {"tokens": torch.int64, "loss_mask": torch.bool, "rollout_logprobs": torch.float32, "wide": torch.bfloat16}
OBJECTS: st.SearchStrategy[Any] = (
    st.none() | st.text(max_size=3) | st.integers() | st.lists(st.integers(), max_size=2) | st.fixed_dictionaries({})
)
Sample = dict[str, Any]


@st.composite
def batches(draw: st.DrawFn, min_samples: int = 1, max_samples: int = 7) -> TensorDict:
    """Sequences of equal lengths, one of its own, numbers of every kind, objects of any type."""
    lengths = draw(st.lists(st.integers(0, 5), min_size=min_samples, max_size=max_samples))
    num_samples = len(lengths)
    noise = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.randint(-3 if dtype.is_signed else 0, 4, shape, generator=noise).to(dtype)

    return collate(
        sequences={
            name: [drawn(dtype, length, *((2,) if name == "wide" else ())) for length in lengths]
            for name, dtype in SEQUENCES.items()
        },
        numbers={"rewards": drawn(torch.float64, num_samples), "table": drawn(torch.int32, num_samples, 2)},
        objects={"text": draw(st.lists(OBJECTS, min_size=num_samples, max_size=num_samples))},
        shared={"step": 7, "prompts": ["a", "b"]},
    )


def samples_of(batch: TensorDict) -> list[Sample]:
    """Every sample's own values, by torch's and Python's own means."""
    columns: dict[str, Sequence[Any]] = {}
    entries: Any = batch.items()
    for name, entry in entries:
        if isinstance(entry, NonTensorStack):
            columns[name] = entry.tolist()
        elif isinstance(entry, NonTensorData):
            columns[name] = [entry.data] * len(batch)
        else:
            columns[name] = [(part.dtype, tuple(part.shape), part.tolist()) for part in entry.unbind()]
    assert all(len(column) == len(batch) for column in columns.values())
    return [{name: column[number] for name, column in columns.items()} for number in range(len(batch))]


def kinds_of(batch: TensorDict) -> dict[str, Any]:
    """What no operation may change, for an empty batch too."""
    entries: Any = batch.items()
    return {
        name: (type(entry), entry.dtype, entry.layout, entry.shape[2:])
        if isinstance(entry, Tensor)
        else (type(entry), entry.data if isinstance(entry, NonTensorData) else None)
        for name, entry in entries
    }


def is_elementwise(batch: TensorDict) -> bool:
    """Whether torch still sees that tokens and log-probabilities belong together; it raises where it does not."""
    return len((batch["tokens"] * batch["rollout_logprobs"]).values()) == len(batch["tokens"].values())


def small() -> TensorDict:
    return collate(
        sequences={
            "tokens": [torch.tensor([1, 2, 3]), torch.tensor([], dtype=torch.int64), torch.tensor([4])],
            "rollout_logprobs": [torch.tensor([0.1, 0.2, 0.3]), torch.tensor([]), torch.tensor([0.4])],
        },
        numbers={"rewards": torch.tensor([1.0, 2.0, 3.0])},
        objects={"prompt_id": ["a", "b", "c"]},
        shared={"step": 7},
    )


# ------------------------------------------------------------------------------------------------------------- collate


def test_what_a_batch_holds() -> None:
    batch = small()
    assert list(batch.batch_size) == [3]
    assert [part.tolist() for part in batch["tokens"].unbind()] == [[1, 2, 3], [], [4]]
    assert batch["rewards"].tolist() == [1.0, 2.0, 3.0]
    assert list(batch["prompt_id"]) == ["a", "b", "c"]
    assert batch["step"] == 7
    assert lengths_of(batch, "tokens") == [3, 0, 1]
    assert is_elementwise(batch)


def test_without_shared_offsets_torch_does_not_see_that_lengths_are_equal() -> None:
    one, other = (torch.nested.as_nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged) for _ in range(2))
    with pytest.raises(RuntimeError, match="cannot call binary pointwise"):
        one * other


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({}, InvalidValueError, "no sample"),
        ({"sequences": {"a": []}}, InvalidValueError, "no sample"),
        ({"shared": {"step": 1}}, InvalidValueError, "no sample"),
        ({"numbers": {"a": torch.ones(2), "b": torch.ones(3)}}, ShapeError, "'b' has 3 samples, 'a' 2"),
        ({"numbers": {"a": torch.ones(2)}, "objects": {"b": ["x"]}}, ShapeError, "'b' has 1 samples, 'a' 2"),
        ({"numbers": {"a": torch.ones(2)}, "shared": {"a": 1}}, InvalidValueError, "the entry 'a'"),
        ({"numbers": {"lengths": torch.ones(2)}}, InvalidValueError, "the entry 'lengths'"),
        (
            {"sequences": {"a": [torch.ones(2), torch.ones(2, 1)]}},
            ShapeError,
            "'a' of sample 1 is torch.float32 [2, 1]",
        ),
        ({"sequences": {"a": [torch.ones(2), torch.ones(2).int()]}}, ShapeError, "'a' of sample 1 is torch.int32 [2]"),
        ({"sequences": {"a": [torch.tensor(1.0)]}}, ShapeError, "'a' of sample 0 is torch.float32 []"),
    ],
)
def test_what_cannot_be_collated(arguments: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error) as caught:
        collate(**arguments)
    assert told in str(caught.value)


# ------------------------------------------------------------------------------------------------------ other samples


def indices(num_samples: int) -> st.SearchStrategy[Any]:
    """Every way of saying which samples."""
    numbers = st.lists(st.integers(-num_samples, num_samples - 1), max_size=9) if num_samples else st.just([])
    mask = st.lists(st.booleans(), min_size=num_samples, max_size=num_samples)
    ways = [
        numbers,
        numbers.map(lambda chosen: torch.tensor(chosen, dtype=torch.int64)),
        numbers.map(lambda chosen: torch.tensor(chosen, dtype=torch.int32)),
        mask,
        mask.map(lambda chosen: torch.tensor(chosen, dtype=torch.bool)),
        st.slices(num_samples),
    ]
    if num_samples:
        one = st.integers(-num_samples, num_samples - 1)
        ways += [one, one.map(torch.tensor)]
    return st.one_of(ways)


def chosen_by(index: Any, num_samples: int) -> list[int]:
    """What an index means, in Python's own words."""
    listed = index.tolist() if isinstance(index, Tensor) else index
    if isinstance(listed, slice):
        return list(range(num_samples))[listed]
    if isinstance(listed, int):
        return [listed % num_samples]
    if listed and isinstance(listed[0], bool):
        return [number for number, is_chosen in enumerate(listed) if is_chosen]
    return [number % num_samples for number in listed]


@PROPERTY
@given(batches(), st.data())
def test_a_selection_has_its_samples_whole_and_in_order(batch: TensorDict, data: st.DataObject) -> None:
    before, kinds = samples_of(batch), kinds_of(batch)
    index = data.draw(indices(len(batch)))
    chosen = chosen_by(index, len(batch))
    selected = select(batch, index)
    assert samples_of(selected) == [before[number] for number in chosen]
    assert kinds_of(selected) == kinds
    assert selected["step"] == 7
    assert is_elementwise(selected)
    assert samples_of(batch) == before, "the batch itself is left alone"
    again = data.draw(indices(len(selected)))
    assert samples_of(select(selected, again)) == [
        before[chosen[number]] for number in chosen_by(again, len(selected))
    ], "a selection of a selection"


def test_a_selection_is_a_copy() -> None:
    batch = small()
    for part in (select(batch, slice(None)), *chunk(batch, 1)):
        part["rewards"][0] = 100.0
        part["tokens"].values()[0] = 100
    assert batch["rewards"].tolist() == [1.0, 2.0, 3.0]
    assert batch["tokens"].values().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (3, "sample 3 of 3"),
        ([0, -4], "sample -4 of 3"),
        ([True, False], "a mask of 2 for 3 samples"),
        (torch.tensor([True] * 4), "a mask of 4 for 3 samples"),
        (True, "a mask of 1 for 3 samples"),
        (torch.tensor([0.0]), "the index 0.0"),
        ([True, False, 1], "the index True"),
        ("abc", "the index 'a'"),
        (torch.tensor([[0, 1]]), "the index [0, 1]"),
        (None, "the index None"),
    ],
)
def test_what_is_no_index(index: Any, told: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        select(small(), index)
    assert told in str(caught.value)


@PROPERTY
@given(batches(), st.integers(1, 9))
def test_chunks_are_the_batch_again(batch: TensorDict, num_chunks: int) -> None:
    chunks = chunk(batch, num_chunks)
    assert len(chunks) == num_chunks
    assert max(map(len, chunks)) - min(map(len, chunks)) <= 1
    joined = concat(chunks)
    assert samples_of(joined) == samples_of(batch)
    assert kinds_of(joined) == kinds_of(batch)
    assert list(joined.keys()) == list(batch.keys())
    assert is_elementwise(joined)


@PROPERTY
@given(batches(), st.integers(1, 4))
def test_copies_stand_side_by_side(batch: TensorDict, num_times: int) -> None:
    repeated = repeat(batch, num_times)
    assert samples_of(repeated) == [sample for sample in samples_of(batch) for _ in range(num_times)]
    assert kinds_of(repeated) == kinds_of(batch)


@PROPERTY
@given(batches(), batches(), st.booleans())
def test_batches_behind_each_other(one: TensorDict, other: TensorDict, is_first_empty: bool) -> None:
    if is_first_empty:
        one = select(one, [])
    joined = concat([one, other])
    assert samples_of(joined) == samples_of(one) + samples_of(other)
    assert kinds_of(joined) == kinds_of(other)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda batch: batch.exclude("rewards"), "batch 1 lacks the entry 'rewards', which batch 0 has"),
        (lambda batch: batch.copy().update({"x": torch.ones(3)}), "batch 0 lacks the entry 'x', which batch 1 has"),
        (lambda batch: batch.copy().update({"rewards": batch["rewards"].double()}), "'rewards' is dense float64"),
        (lambda batch: batch.copy().update({"rewards": torch.ones(3, 2)}), "'rewards' is dense float32 [samples, 2]"),
        (lambda batch: batch.copy().update({"prompt_id": torch.ones(3)}), "'prompt_id' is dense float32 [samples]"),
        (lambda batch: batch.to("meta"), "on meta in batch 1"),
        (pad, "'tokens' is dense int64 [samples, 3]"),
        (
            lambda batch: _with_step(batch, 8),
            "'step' is the shared 8 in batch 1\n  legal:  the shared 7, as in batch 0",
        ),
        (lambda batch: _with_step(batch, 7.0), "'step' is the shared 7.0 in batch 1"),
    ],
)
def test_a_batch_that_differs_is_named(change: Callable[[TensorDict], TensorDict], told: str) -> None:
    with pytest.raises(ShapeError) as caught:
        concat([small(), change(small())])
    assert told in str(caught.value)


def _with_step(batch: TensorDict, step: object) -> TensorDict:
    changed: TensorDict = batch.copy()
    changed["step"] = NonTensorData(step, batch_size=batch.batch_size)
    return changed


def test_numbers_that_are_not_there() -> None:
    for do in (lambda: chunk(small(), 0), lambda: repeat(small(), 0), lambda: concat([])):
        with pytest.raises(InvalidValueError, match="1 or more"):
            do()
    with pytest.raises(InvalidValueError, match=r"no sequence 'rewards'\n  legal:  tokens, rollout_logprobs"):
        lengths_of(small(), "rewards")


# --------------------------------------------------------------------------------------------------- to dense and back


@PROPERTY
@given(batches(), st.none() | st.integers(0, 3), st.data())
def test_padding_and_back(batch: TensorDict, more: int | None, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        batch = select(batch, data.draw(indices(len(batch))))
    lengths = lengths_of(batch, "tokens")
    longest = max(lengths, default=0)
    length = None if more is None else longest + more
    padded = pad(batch, length, {"tokens": 9, "loss_mask": True})
    assert padded["lengths"].tolist() == lengths
    assert padded["lengths"].dtype == torch.int64
    for name, dtype in SEQUENCES.items():
        dense = padded[name]
        assert dense.dtype == dtype
        assert dense.shape[:2] == (len(batch), longest if length is None else length)
        filler = {"tokens": 9, "loss_mask": True}.get(name, 0)
        for row, part, count in zip(dense, batch[name].unbind(), lengths, strict=True):
            assert torch.equal(row[:count], part)
            assert (row[count:] == filler).all()
    again = unpad(padded, SEQUENCES)
    assert samples_of(again) == samples_of(batch)
    assert kinds_of(again) == kinds_of(batch)
    assert is_elementwise(again)
    assert "lengths" not in batch and "lengths" in padded, "arguments are left alone"


@pytest.mark.parametrize(
    ("do", "error", "told"),
    [
        (lambda batch: pad(batch, 2), ShapeError, "sample 0 has 3 positions\n  legal:  2 or fewer"),
        (lambda batch: pad(batch, pad_values={"token": 1}), InvalidValueError, "a pad value for 'token'"),
        (lambda batch: pad(batch, pad_values={"tokens": 0.5}), InvalidValueError, "the pad value 0.5 for 'tokens'"),
        (lambda batch: pad(batch, pad_values={"tokens": float("nan")}), InvalidValueError, "the pad value nan"),
        (lambda batch: pad(pad(batch)), InvalidValueError, "a batch that is dense"),
        (lambda batch: pad(batch.exclude("tokens", "rollout_logprobs")), InvalidValueError, "a batch that is dense"),
        (lambda batch: unpad(batch, ["tokens"]), InvalidValueError, "no entry 'lengths'"),
        (lambda batch: unpad(pad(batch), ["token"]), InvalidValueError, "no entry 'token'"),
        (lambda batch: unpad(pad(batch), ["rewards"]), ShapeError, "'rewards' is dense float32 [samples]"),
        (lambda batch: unpad(pad(batch), ["step"]), ShapeError, "'step' is the shared 7"),
        (
            lambda batch: unpad(pad(batch).update({"short": torch.ones(3, 2)}), ["short"]),
            ShapeError,
            "'short' is dense float32 [samples, 2] on cpu\n  legal:  dense, of 3 positions or more",
        ),
    ],
)
def test_what_cannot_be_padded(do: Callable[[TensorDict], TensorDict], error: type[Exception], told: str) -> None:
    with pytest.raises(error) as caught:
        do(small())
    assert told in str(caught.value)


def test_sequences_of_other_lengths_are_not_padded_together() -> None:
    batch = collate(sequences={"a": [torch.ones(2), torch.ones(1)], "b": [torch.ones(2), torch.ones(3)]})
    with pytest.raises(ShapeError, match="sample 1 has 3 positions in 'b', 1 in 'a'"):
        pad(batch)


def test_nan_is_a_pad_value_of_floats() -> None:
    padded = pad(small(), pad_values={"rollout_logprobs": float("nan")})
    assert padded["rollout_logprobs"].isnan().tolist() == [[False] * 3, [True] * 3, [False, True, True]]


# ----------------------------------------------------------------------------------------------------------- gradients


def test_gradients_flow_through_every_operation() -> None:
    """Each position's gradient is its weight times how often its sample came along, 0 for who was left out."""
    leaves = [torch.arange(1.0, 4.0).requires_grad_(), torch.ones(0).requires_grad_(), torch.ones(2).requires_grad_()]
    rewards = torch.ones(3, requires_grad=True)
    batch = collate(sequences={"values": leaves}, numbers={"rewards": rewards})
    padded = pad(concat([repeat(select(batch, [2, 1]), 2), *chunk(batch, 2)]), 4, {"values": float("nan")})
    weights = torch.tensor([1.0, 10.0, 100.0, float("nan")])
    dense = unpad(padded, ["values"])
    ((pad(dense, 4)["values"] * weights.nan_to_num()).sum() + (dense["rewards"] * 2).sum()).backward()
    grads = [leaf.grad.tolist() if leaf.grad is not None else None for leaf in (*leaves, rewards)]
    assert grads == [[1.0, 10.0, 100.0], [], [3.0, 30.0], [2.0, 6.0, 6.0]]
