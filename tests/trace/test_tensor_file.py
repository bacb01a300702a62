"""Kept tensors: the library of that format reads what is written here, and what is written is whole or absent."""

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import TraceError
from harness.trace.format import (
    DTYPES,
    DamagedTensor,
    Kept,
    RecordedValue,
    Scope,
    read_digested,
    tensor_key,
    write_tensors,
)
from tests.support.traces import SEEDED, names

safetensors = pytest.importorskip("safetensors", reason="the library is the oracle here")


def tensor(name: str, dtype: str, shape: tuple[int, ...], scope: Scope = Scope.LOGICAL) -> RecordedValue:
    return RecordedValue("backward", name, 0, dtype, shape, "xxh3_128", bytes(16), scope)


def read_by_the_library(path: Path) -> dict[str, Any]:
    return dict(safetensors.deserialize(path.read_bytes()))


@st.composite
def some_tensors(draw: st.DrawFn) -> list[Kept]:
    made: list[Kept] = []
    for name in draw(st.lists(names, max_size=5, unique=True)):
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        num_elements = draw(st.integers(0, 6))
        data = draw(st.binary(min_size=num_elements * DTYPES[dtype][1], max_size=num_elements * DTYPES[dtype][1]))
        made.append((tensor(name, dtype, (num_elements, 1)), memoryview(data)))
    return made


@SEEDED
def read_tensor(path: Path, value: RecordedValue) -> bytes | None:
    """Read what was kept, whose digest is made up."""
    return read_digested(path, value._replace(algorithm="any"))


@given(some_tensors())
def test_the_library_of_the_format_reads_them(tmp_path_factory: pytest.TempPathFactory, tensors: list[Kept]) -> None:
    path = tmp_path_factory.mktemp("kept") / "rank-0-step-7.safetensors"
    write_tensors(path, tensors)
    found = read_by_the_library(path)
    assert found.keys() == {tensor_key(recorded_value) for recorded_value, _ in tensors}
    for recorded_value, data in tensors:
        fields = found[tensor_key(recorded_value)]
        assert (fields["dtype"], tuple(fields["shape"])) == (DTYPES[recorded_value.dtype][0], recorded_value.shape)
        assert bytes(fields["data"]) == bytes(data) == read_tensor(path, recorded_value)


def test_elements_are_aligned(tmp_path: Path) -> None:
    """A reader that maps the file may take each tensor as it lies there."""
    path = tmp_path / "kept"
    write_tensors(path, [(tensor("a", "u8", (3,)), bytes(3)), (tensor("b", "f64", (1,)), struct.pack("<d", 0.1))])
    assert path.read_bytes().index(struct.pack("<d", 0.1)) % 8 == 0


def test_parts_of_wholes_and_dtypes_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    shard, own = tensor("w", "f32", (8, 4), Scope.SHARD), tensor("w", "complex128", (2,))
    write_tensors(path, [(shard, bytes(range(64))), (own, bytes(range(32)))])
    found = read_by_the_library(path)
    assert {key: (fields["dtype"], fields["shape"]) for key, fields in found.items()} == {
        "shard/backward/0/w": ("F32", [16]),
        "logical/backward/0/w": ("U8", [32]),
    }
    assert read_tensor(path, shard) == bytes(range(64))
    assert read_tensor(path, own) == bytes(range(32))
    assert read_tensor(path, tensor("absent", "f32", ())) is None
    assert read_tensor(tmp_path / "absent", shard) is None


@pytest.mark.parametrize(
    "tensors",
    [
        [(tensor("w", "f32", ()), bytes(4)), (tensor("w", "f32", ()), bytes(4))],
        [(tensor("w", "f32", ()), bytes(3))],
    ],
)
def test_what_is_wrong_leaves_nothing(tmp_path: Path, tensors: list[Kept]) -> None:
    with pytest.raises(TraceError):
        write_tensors(tmp_path / "kept", tensors)
    assert list(tmp_path.iterdir()) == []


def test_a_file_cut_anywhere_holds_nothing_wrong(tmp_path: Path) -> None:
    recorded_value, data = tensor("w", "f32", (3,)), bytes(range(1, 13))
    write_tensors(tmp_path / "kept", [(recorded_value, data)])
    whole = (tmp_path / "kept").read_bytes()
    for end in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:end])
        with pytest.raises(DamagedTensor):
            read_tensor(tmp_path / "cut", recorded_value)


def test_a_header_nested_too_deep_is_damaged_and_a_digest_of_another_algorithm_is_not_judged(tmp_path: Path) -> None:
    recorded_value, data = tensor("w", "f32", (8,)), bytes(range(32))
    write_tensors(tmp_path / "kept", [(recorded_value, data)])
    assert read_digested(tmp_path / "kept", recorded_value._replace(algorithm="shardsum_128")) == data
    with pytest.raises(DamagedTensor, match=r"logical/backward/0/w in .*kept does not match its digest"):
        read_digested(tmp_path / "kept", recorded_value)
    (tmp_path / "kept").write_bytes(struct.pack("<Q", 10**5) + b"[" * 10**5)
    with pytest.raises(DamagedTensor, match="kept is truncated or not a safetensors file"):
        read_digested(tmp_path / "kept", recorded_value)


def test_no_memory_is_taken_for_a_header_that_is_too_long(tmp_path: Path) -> None:
    (path := tmp_path / "t").write_bytes(struct.pack("<Q", 1 << 35))
    os.truncate(path, 1 << 36)  # of 64 GiB, without taking room
    value = RecordedValue("loss", "loss", 0, "f32", (), "xxh3_128", bytes(16), Scope.LOGICAL)
    with pytest.raises(DamagedTensor):
        read_digested(path, value)
