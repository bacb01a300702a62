"""The sentinel's parts in one process: what its comparison and digests can tell apart, and what its windows hold."""

from collections.abc import Mapping
from functools import reduce
from operator import xor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch

from harness.recording.sentinel import (
    Change,
    Copy,
    Key,
    Windows,
    classify,
    differences,
    digests_of,
    is_equal,
    split_changes,
    summarize,
)
from harness.recording.sentinel_report import (
    BUNDLES,
    MANIFEST,
    Difference,
    Fault,
    Finding,
    Location,
    Moment,
    Repeated,
    read_findings,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.bool]


def copy_of(tensor: torch.Tensor, name: str = "w", replicas: tuple[int, ...] = (0,), num_ranks: int = 2) -> Copy:
    return Copy(Key("weight", name, replicas), tuple(range(num_ranks)), tensor, tensor)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


def summary_of(tensors: Mapping[str, torch.Tensor]) -> Mapping[tuple[int, ...], str]:
    return summarize(digests_of([copy_of(tensor, name, (0, 1)) for name, tensor in tensors.items()]))


def xor_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """What torchtitan's replay compares: the XOR of all words of a tensor, and of all tensors."""
    return reduce(xor, (int(torch.hash_tensor(tensor).view(torch.int64)) for tensor in tensors.values()), 0)


# ------------------------------------------------------------------------------------------------------- comparison


TABLES = st.builds(
    lambda names, num_ranks: {Key("weight", name, tuple(range(num_ranks))): f"digest of {name}" for name in names},
    st.sets(st.text(max_size=8), min_size=1, max_size=6),
    st.integers(2, 6),
)


@given(table=TABLES, data=st.data())
def test_a_planted_difference_is_found_at_its_tensor_and_rank(table: dict[Key, str], data: st.DataObject) -> None:
    num_ranks = len(next(iter(table)).replicas)
    tables = {rank: dict(table) for rank in range(num_ranks)}
    assert is_equal({rank: summarize(each) for rank, each in tables.items()})
    assert differences(tables) == []
    rank, key = data.draw(st.integers(0, num_ranks - 1)), data.draw(st.sampled_from(sorted(table)))
    tables[rank][key] += " with a flipped bit"
    assert not is_equal({rank: summarize(each) for rank, each in tables.items()})
    [found] = differences(tables)
    assert (found.kind, found.name) == key[:2]
    assert found.suspects == ((rank,) if num_ranks > 2 else (0, 1))


# ---------------------------------------------------------------------------------------------------------- digests


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_elements", [1, 5])
def test_every_single_bit_changes_the_digest(dtype: torch.dtype, num_elements: int) -> None:
    """Values of at most 16 bytes are their own digest, and larger ones are hashed: both kinds are tried."""
    tensor = torch.arange(num_elements).to(dtype)
    copy, memory = copy_of(tensor), bytes_of(tensor)
    unflipped = digests_of([copy])
    for index in range(len(memory)):
        for bit in range(8):
            memory[index] ^= 1 << bit
            assert digests_of([copy]) != unflipped
            memory[index] ^= 1 << bit
    assert digests_of([copy]) == unflipped


@pytest.mark.parametrize("case", ["two equal flips", "swapped elements", "swapped tensors"])
def test_changes_that_cancel_in_a_xor_are_seen(case: str) -> None:
    values = {"a": torch.randn(8, 8), "b": torch.randn(8, 8)}
    changed = {name: tensor.clone() for name, tensor in values.items()}
    if case == "two equal flips":
        for index in (3, 17):
            bytes_of(changed["a"])[4 * index] ^= 0b100
    elif case == "swapped elements":
        changed["a"][0, 0], changed["a"][5, 1] = values["a"][5, 1], values["a"][0, 0]
    else:
        changed = {"a": values["b"], "b": values["a"]}
    assert xor_of(changed) == xor_of(values)
    assert summary_of(changed) != summary_of(values)


# ---------------------------------------------------------------------------------------------------------- windows


def test_a_single_copy_that_changes_without_a_write_is_held_and_a_written_one_is_not() -> None:
    windows, tensor, other = Windows(), torch.ones(8), torch.ones(8)
    copies = [copy_of(tensor), copy_of(other, "other")]
    windows.note(4, copies)
    other.mul_(2)
    bytes_of(tensor).numpy()[5] ^= 1
    windows.look(copies)
    [change] = windows.held[0, 1]
    assert (change.name, change.since_step) == ("w", 4)


def test_an_unchanged_copy_and_one_with_new_memory_are_not_held() -> None:
    windows, tensor, other = Windows(), torch.ones(8), torch.ones(8)
    windows.note(0, [copy_of(tensor), copy_of(other, "other")])
    windows.look([copy_of(tensor), copy_of(torch.zeros(8), "other")])
    assert windows.held == {}


def test_what_changes_on_several_ranks_at_once_was_written_by_the_program() -> None:
    both, one = Change("weight", "a", 3, "y"), Change("weight", "b", 3, "y")
    later = Change("weight", "a", 4, "z")
    alone, written = split_changes({0: [both], 1: [both, one, later], 2: []})
    assert alone == {1: [one]}
    windows, tensor = Windows(), torch.ones(8)
    windows.ignore(written)
    windows.note(5, [copy_of(tensor, "a")])
    bytes_of(tensor).numpy()[0] ^= 1
    windows.look([copy_of(tensor, "a")])
    assert windows.held == {}


# -------------------------------------------------------------------------------------------------------- repetition


KEY = Key("weight", "w", (0, 1, 2))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("aab", "aaa", (Fault.TRANSIENT, (2,), True)),
        ("aab", "aab", (Fault.PERSISTENT, (2,), False)),
        ("aab", "aac", (Fault.PERSISTENT, (2,), False)),
        ("aab", "ccc", (Fault.UNKNOWN, (2,), False)),
        ("aab", "cca", (Fault.UNKNOWN, (2,), False)),
        ("ab", "aa", (Fault.TRANSIENT, (1,), True)),
        ("ab", "ab", (Fault.PERSISTENT, (0, 1), False)),
        ("ab", "ac", (Fault.PERSISTENT, (1,), False)),
    ],
)
def test_work_done_twice_is_classified(first: str, second: str, expected: object) -> None:
    key = KEY._replace(replicas=tuple(range(len(first))))
    before, after = ({rank: {key: digest} for rank, digest in enumerate(text)} for text in (first, second))
    assert classify(before, after, differences(before)) == expected


# ------------------------------------------------------------------------------------------------------------ report


def finding(*, is_repaired: bool = False, since_step: int | None = None) -> Finding:
    location = Location(1, "node7", "GPU 3 H100 GPU-1")
    difference = Difference("weight", "head", {0: "a", 1: "b", 2: "a"}, (1,), since_step)
    return Finding(
        step=20,
        when=Moment.BEFORE_STEP,
        suspects=(location,),
        differences=(difference,),
        num_different=2,
        fault=Fault.TRANSIENT,
        repeated=Repeated.NOTHING,
        is_repaired=is_repaired,
        last_equal_step=10,
        locations=(location,),
        random_states={0: {"random.torch": "x"}},
    )


def test_findings_are_read_as_they_were_written_and_damaged_ones_left_out(tmp_path: Path) -> None:
    for name, text in (("a", finding().to_text()), ("b", finding().to_text()[:-40]), ("c", "[]")):
        (tmp_path / BUNDLES / name).mkdir(parents=True)
        (tmp_path / BUNDLES / name / MANIFEST).write_text(text, "utf-8")
    assert read_findings(tmp_path) == ((tmp_path / BUNDLES / "a", finding()),)
