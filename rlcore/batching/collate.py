"""A batch: one TensorDict [samples], and what is done with one, each a function that leaves its argument alone.

    collate ──▶ select, chunk, repeat, concat ──▶ pad ──▶ dense: what a model reads ──▶ unpad

An entry is of one of four kinds, and stays of it:

    sequence  torch.jagged [samples, positions, ...]  what belongs to tokens; sequences of equal lengths share their
                                                      offsets, so that torch computes with them elementwise
    number    Tensor [samples, ...]                   rewards, groups
    object    NonTensorStack                          any value a sample: prompt_id, text
    shared    NonTensorData                           any value of the whole batch: step, policy_version

`pad` makes numbers [samples, length, ...] of the sequences, and puts how long they were under `lengths`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from rlcore.errors import InvalidValueError, ShapeError

Index = Tensor | slice | int | Sequence[int] | Sequence[bool]
"""Which samples: a mask over all, or numbers from 0, negative ones from behind; a number may come twice."""
LENGTHS = "lengths"
"""The entry that `pad` makes and `unpad` reads."""


# ---------------------------------------------------------------------------------------------------------- making one


def collate(
    *,
    sequences: Mapping[str, Sequence[Tensor]] | None = None,
    numbers: Mapping[str, Tensor] | None = None,
    objects: Mapping[str, Sequence[object]] | None = None,
    shared: Mapping[str, object] | None = None,
) -> TensorDict:
    """A batch of at least one sample; each entry but the shared ones has a value for each.

    `sequences` are tensors [positions, ...], of any lengths, 0 too; `numbers` tensors [samples, ...]. Gradients flow
    through both. Raises ShapeError where they do not belong together, and InvalidValueError for a name that comes
    twice and for no sample.
    """
    sequences, numbers, objects, shared = sequences or {}, numbers or {}, objects or {}, shared or {}
    num_samples = _num_samples([sequences, numbers, objects], shared)
    made: dict[tuple[object, ...], Tensor] = {}
    entries: dict[str, Any] = {}
    for name, parts in sequences.items():
        _check_parts(name, parts)
        entries[name] = _sequence(torch.cat(list(parts)), [len(part) for part in parts], made)
    entries |= numbers
    entries |= {name: NonTensorStack(*map(NonTensorData, values)) for name, values in objects.items()}
    entries |= {name: NonTensorData(value, batch_size=[num_samples]) for name, value in shared.items()}
    return TensorDict(entries, batch_size=[num_samples])


def lengths_of(batch: TensorDict, name: str) -> list[int]:
    """How many positions each sample of a sequence has; waits for its device. Raises InvalidValueError."""
    entries = _sequences(batch)
    if name not in entries:
        raise InvalidValueError(f"no sequence {name!r}", legal=", ".join(entries) or "none: this batch has no sequence")
    return _lengths(entries[name])


# ------------------------------------------------------------------------------------------------------- other samples


def select(batch: TensorDict, index: Index) -> TensorDict:
    """These samples, in this order; one number gives a batch of one sample. A copy.

    Raises InvalidValueError for samples that are not there, and for an index that is neither mask nor whole numbers.
    """
    chosen = torch.tensor(_positions(index, len(batch)), dtype=torch.int64, device=batch.device)
    selected: TensorDict = batch[chosen]
    return selected


def chunk(batch: TensorDict, num_chunks: int) -> list[TensorDict]:
    """Exactly so many batches of neighbours; where it does not divide, the first ones have a sample more.

    More chunks than samples leave the last ones empty. Raises InvalidValueError for less than one.
    """
    if num_chunks < 1:
        raise InvalidValueError(f"{num_chunks} chunks", legal="1 or more")
    size, left = divmod(len(batch), num_chunks)
    ends = accumulate((size + (number < left) for number in range(num_chunks)), initial=0)
    return [select(batch, slice(begin, end)) for begin, end in pairwise(ends)]


def repeat(batch: TensorDict, num_times: int) -> TensorDict:
    """Each sample so many times, its copies side by side. Raises InvalidValueError for less than once."""
    if num_times < 1:
        raise InvalidValueError(f"{num_times} times", legal="1 or more")
    return select(batch, [sample for sample in range(len(batch)) for _ in range(num_times)])


def concat(batches: Sequence[TensorDict]) -> TensorDict:
    """The samples of one batch behind those of another.

    Raises InvalidValueError for no batch, and ShapeError, naming the entry and the batch's number, where one lacks an
    entry, has one more, or has it of another kind, dtype, device or shape of a sample, or with another shared value.
    """
    if not batches:
        raise InvalidValueError("no batch", legal="1 or more")
    first = dict(batches[0].items())
    for number, batch in enumerate(batches):
        for name in [*first, *batch.keys()]:
            if name not in first or name not in batch:
                lacking, having = (number, 0) if name in first else (0, number)
                raise ShapeError(f"batch {lacking} lacks the entry {name!r}, which batch {having} has")
            if not _is_alike(entry := batch.get(name), first[name]):
                raise ShapeError(
                    f"{name!r} is {_described(entry)} in batch {number}",
                    legal=f"{_described(first[name])}, as in batch 0",
                )
    # torch's stubs know tensors only.
    joined: Any = torch.cat(list(batches), dim=0)
    return cast(TensorDict, joined)


# --------------------------------------------------------------------------------------------------- to dense and back


def pad(batch: TensorDict, length: int | None = None, pad_values: Mapping[str, float] | None = None) -> TensorDict:
    """The same with each sequence as a number [samples, length, ...], and `lengths`, int64 [samples].

    `length` is by default the longest sample's; `pad_values` holds what stands behind a sample's end, 0 (False) where
    it names nothing. Gradients flow. Raises ShapeError where sequences differ in their lengths or are longer than
    `length`, and InvalidValueError for a pad value without its sequence, or that its dtype cannot hold.
    """
    entries, values = _sequences(batch), dict(pad_values or {})
    if LENGTHS in batch or not entries:
        raise InvalidValueError("a batch that is dense", legal="one with sequences, and no entry called lengths")
    if unknown := sorted(values.keys() - entries.keys()):
        raise InvalidValueError(f"a pad value for {unknown[0]!r}", legal=f"for {', '.join(entries)}")
    lengths = _common_lengths(entries)
    width = max(lengths, default=0) if length is None else length
    if too_long := [sample for sample, count in enumerate(lengths) if count > width]:
        raise ShapeError(f"sample {too_long[0]} has {lengths[too_long[0]]} positions", legal=f"{width} or fewer")
    padded: TensorDict = batch.copy()
    for name, entry in entries.items():
        padded[name] = _dense(name, entry.values(), lengths, width, values.get(name, 0))
    padded[LENGTHS] = torch.tensor(lengths, dtype=torch.int64, device=padded[next(iter(entries))].device)
    return padded


def unpad(batch: TensorDict, names: Iterable[str]) -> TensorDict:
    """The same with these numbers [samples, positions, ...] as sequences again, by `lengths`, which then goes.

    Raises InvalidValueError where there is no such entry, and ShapeError for one that `lengths` do not fit.
    """
    names = list(names)
    if missing := [name for name in (*names, LENGTHS) if name not in batch]:
        raise InvalidValueError(f"no entry {missing[0]!r}", legal=", ".join(map(str, batch.keys())))
    lengths: list[int] = batch[LENGTHS].tolist()
    longest = max(lengths, default=0)
    unpadded: TensorDict = batch.exclude(LENGTHS)
    made: dict[tuple[object, ...], Tensor] = {}
    for name in names:
        dense = batch.get(name)
        is_dense = isinstance(dense, Tensor) and not dense.is_nested and dense.dim() > 1
        if not is_dense or dense.shape[1] < longest:
            raise ShapeError(f"{name!r} is {_described(dense)}", legal=f"dense, of {longest} positions or more")
        unpadded[name] = _sequence(dense[_within(lengths, dense.shape[1], dense.device)], lengths, made)
    return unpadded


# ------------------------------------------------------------------------------------------------------ entries, inside


def _sequence(values: Tensor, lengths: Sequence[int], made: dict[tuple[object, ...], Tensor]) -> Tensor:
    """[samples, positions, ...] of values [all positions, ...]; offsets are shared by those `made` of equal lengths.

    torch tells ragged dimensions apart by the tensor of their offsets, not by what is in it.
    """
    same = (values.device, *lengths)
    if same not in made:
        made[same] = torch.tensor([0, *accumulate(lengths)], device=values.device)
    nested: Tensor = torch.nested.nested_tensor_from_jagged(values, offsets=made[same])
    return nested


def _sequences(batch: TensorDict) -> dict[str, Any]:
    return {name: entry for name, entry in batch.items() if isinstance(entry, Tensor) and entry.layout == torch.jagged}


def _lengths(entry: Any) -> list[int]:
    lengths: list[int] = entry.offsets().diff().tolist()
    return lengths


def _common_lengths(entries: Mapping[str, Any]) -> list[int]:
    """Those of all of these sequences."""
    first, *_ = entries
    lengths = _lengths(entries[first])
    for name, entry in entries.items():
        for sample, (here, there) in enumerate(zip(_lengths(entry), lengths, strict=True)):
            if here != there:
                raise ShapeError(
                    f"sample {sample} has {here} positions in {name!r}, {there} in {first!r}",
                    legal="equal lengths, to be padded together",
                )
    return lengths


def _within(lengths: Sequence[int], width: int, device: torch.device) -> Tensor:
    """bool [samples, width]: True before a sample's end."""
    return torch.arange(width, device=device) < torch.tensor(lengths, dtype=torch.int64, device=device).unsqueeze(1)


def _dense(name: str, values: Tensor, lengths: Sequence[int], width: int, pad_value: float) -> Tensor:
    """[samples, width, ...] of values [all positions, ...]."""
    if not values.is_floating_point() and torch.tensor(pad_value).to(values.dtype).item() != pad_value:
        raise InvalidValueError(f"the pad value {pad_value!r} for {name!r}", legal=f"one that {values.dtype} can hold")
    dense = values.new_full((len(lengths), width, *values.shape[1:]), pad_value)
    dense[_within(lengths, width, values.device)] = values
    return dense


def _is_alike(entry: Any, other: Any) -> bool:
    """Whether entries of two batches can be joined."""
    if isinstance(entry, NonTensorData) and isinstance(other, NonTensorData):
        here, there = entry.data, other.data
        return type(here) is type(there) and (here is there or bool(here == there))
    return _described(entry) == _described(other)


def _described(entry: Any) -> str:
    """Its kind, and what it has beside samples and positions."""
    if isinstance(entry, NonTensorStack):
        return "an object a sample"
    if isinstance(entry, NonTensorData):
        return f"the shared {entry.data!r}"
    if not isinstance(entry, Tensor):
        return f"a {type(entry).__name__}"
    is_jagged = entry.layout == torch.jagged
    shape = ["samples", "positions", *entry.shape[2:]] if is_jagged else ["samples", *entry.shape[1:]]
    dtype = str(entry.dtype).removeprefix("torch.")
    return f"{'jagged' if is_jagged else 'dense'} {dtype} [{', '.join(map(str, shape))}] on {entry.device}"


# ---------------------------------------------------------------------------------------------------- arguments, inside


def _num_samples(of_samples: Sequence[Mapping[str, Sequence[object] | Tensor]], shared: Mapping[str, object]) -> int:
    """What all entries agree on."""
    names = [name for entries in (*of_samples, shared) for name in entries]
    if twice := [name for name in names if names.count(name) > 1 or name == LENGTHS]:
        raise InvalidValueError(f"the entry {twice[0]!r}", legal="one of each name, none called lengths")
    counts = {name: len(values) for entries in of_samples for name, values in entries.items()}
    if not any(counts.values()):
        raise InvalidValueError("no sample", legal="1 or more")
    first, *_ = counts
    for name, num_samples in counts.items():
        if num_samples != counts[first]:
            raise ShapeError(f"{name!r} has {num_samples} samples, {first!r} {counts[first]}", legal="the same number")
    return counts[first]


def _check_parts(name: str, parts: Sequence[Tensor]) -> None:
    """Refuse what cannot be one sequence."""
    first = parts[0]
    for sample, part in enumerate(parts):
        if part.dim() < 1 or (part.dtype, part.device, part.shape[1:]) != (first.dtype, first.device, first.shape[1:]):
            raise ShapeError(
                f"{name!r} of sample {sample} is {part.dtype} {list(part.shape)} on {part.device}",
                legal=f"{first.dtype} [positions{''.join(f', {n}' for n in first.shape[1:])}] on {first.device}",
            )


def _positions(index: Index, num_samples: int) -> list[int]:
    """The numbers of the chosen samples, as torch takes them; waits for the device of an index that is on one."""
    if isinstance(index, slice):
        return list(range(num_samples)[index])
    listed: Any = index.tolist() if isinstance(index, Tensor) else index
    chosen = [listed] if not isinstance(listed, Sequence) else list(listed)
    legal = f"{num_samples} times True or False, or whole numbers from {-num_samples} to {num_samples - 1}"
    if chosen and all(isinstance(each, bool) for each in chosen):
        if len(chosen) != num_samples or not isinstance(listed, Sequence):
            raise InvalidValueError(f"a mask of {len(chosen)} for {num_samples} samples", legal=legal)
        return [sample for sample, is_chosen in enumerate(chosen) if is_chosen]
    for each in chosen:
        if isinstance(each, bool) or not isinstance(each, int):
            raise InvalidValueError(f"the index {each!r}", legal=legal)
        if not -num_samples <= each < num_samples:
            raise InvalidValueError(f"sample {each} of {num_samples}", legal=legal)
    return chosen
