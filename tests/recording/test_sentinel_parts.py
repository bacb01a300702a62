"""The sentinel's parts in one process: what its comparison and digests can tell apart."""

from collections.abc import Mapping
from functools import reduce
from operator import xor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch

from harness.recording.sentinel import Copy, Key, differences, digests_of, is_equal, summarize
from harness.recording.sentinel_report import BUNDLES, MANIFEST, Difference, Finding, Location, Moment, read_findings

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.bool]


def copy_of(tensor: torch.Tensor, name: str = "w", replicas: tuple[int, ...] = (0, 1)) -> Copy:
    return Copy(Key("weight", name, replicas), replicas, tensor)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


def summary_of(tensors: Mapping[str, torch.Tensor]) -> Mapping[tuple[int, ...], str]:
    return summarize(digests_of([copy_of(tensor, name) for name, tensor in tensors.items()]))


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


# ------------------------------------------------------------------------------------------------------------ report


def finding() -> Finding:
    location = Location(1, "node7", "GPU 3 H100 GPU-1")
    difference = Difference.of("weight", "head", {0: "a", 1: "b", 2: "a"})
    assert difference.suspects == (1,)
    return Finding(20, Moment.BEFORE_STEP, (location,), (difference,), 2, 10, (location,))


def test_findings_are_read_as_they_were_written_and_damaged_ones_left_out(tmp_path: Path) -> None:
    for name, text in (("a", finding().to_text()), ("b", finding().to_text()[:-40]), ("c", "[]")):
        (tmp_path / BUNDLES / name).mkdir(parents=True)
        (tmp_path / BUNDLES / name / MANIFEST).write_text(text, "utf-8")
    assert read_findings(tmp_path) == ((tmp_path / BUNDLES / "a", finding()),)
