"""A checkpoint comes back to the bit or not at all: damaged, cut and killed at any byte, the last good one is used."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from xxhash import xxh3_128_hexdigest

from harness.bits.tensor_digests import weights_digest
from rlcore.checkpoint import CHECKSUMS, load, load_newest, read_state, sealed, write_state
from rlcore.errors import CheckpointError
from tests.rlcore.training.small_checkpoints import names, saved, step_read

some = settings(max_examples=40)


def test_what_is_hard_to_write_comes_back(tmp_path: Path) -> None:
    """Payloads of NaN, strides, memory that is shared, signs of zero."""
    bits = torch.tensor([0x7FC00001, 0x7F800001, -0x3FFFFF, -(2**31), 1], dtype=torch.int32)
    both = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "payloads": bits.view(torch.float32),
        "transposed": both.T,
        "parameter": nn.Parameter(both.clone()),
        "scalar": torch.tensor(-0.0, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
    }
    write_state(tmp_path, tensors, None)
    shapes = {name: nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items()}
    assert weights_digest(read_state(tmp_path, shapes, None)) == weights_digest(tensors)


# ------------------------------------------------------------------------------------------------ damage


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two")
    saved(directory, 1)
    saved(directory, 2)
    return directory


@contextmanager
def changed(path: Path, content: bytes | None) -> Iterator[None]:
    """A file with other content, or gone; as it was afterwards."""
    before = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def check_falls_back(directory: Path, name: str) -> None:
    found = load_newest(directory)
    assert found is not None and found.step == 1
    assert len(found.skipped) == 1 and str(directory / "step-000002" / name) in found.skipped[0]
    with pytest.raises(CheckpointError):
        load(directory / "step-000002")


FILES = ("policy_state/state.safetensors", "values.json", "policy/model.safetensors", "policy/config.json", CHECKSUMS)


@some
@given(name=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(two_steps: Path, name: str, place: float, bit: int) -> None:
    path = two_steps / "step-000002" / name
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    with changed(path, bytes(content)):
        check_falls_back(two_steps, name)
    assert step_read(two_steps) == 2


@some
@given(name=st.sampled_from(FILES), share=st.floats(0, 1, exclude_max=True), tail=st.binary(max_size=3))
def test_any_cut_is_found(two_steps: Path, name: str, share: float, tail: bytes) -> None:
    path = two_steps / "step-000002" / name
    content = path.read_bytes()
    cut = content[: int(share * len(content))] + tail
    with changed(path, cut if cut != content else content + b"\n"):
        check_falls_back(two_steps, name)
    assert step_read(two_steps) == 2


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_found(two_steps: Path, name: str) -> None:
    with changed(two_steps / "step-000002" / name, None):
        check_falls_back(two_steps, name)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'"text"', b'{"step": 2, "files": 3}', b"\xff", b"null"])
def test_checksums_that_are_none_are_found(two_steps: Path, content: bytes) -> None:
    with changed(two_steps / "step-000002" / CHECKSUMS, content):
        check_falls_back(two_steps, CHECKSUMS)


def test_checksums_that_name_files_outside_are_found(two_steps: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    for name in (str(tmp_path / "mine"), "../step-000001/values.json"):
        files = {name: {"num_bytes": 4, "xxh3_128": xxh3_128_hexdigest(b"mine")}}
        with changed(two_steps / "step-000002" / CHECKSUMS, sealed(2, files)):
            check_falls_back(two_steps, CHECKSUMS)


def test_a_checkpoint_under_another_steps_name_is_found(tmp_path: Path) -> None:
    saved(tmp_path, 1).rename(tmp_path / "step-000007")
    with pytest.raises(CheckpointError, match="holds step 1"):
        load(tmp_path / "step-000007")
    copied = (tmp_path / "step-000007").rename(tmp_path / "best")
    assert load(copied).step == 1


@pytest.mark.parametrize(("at_most", "found"), [(0, None), (1, 1), (3, 1), (4, 4), (99, 6)])
def test_the_newest_that_is_no_later_than_a_step(tmp_path: Path, at_most: int, found: int | None) -> None:
    for step in (1, 4, 6):
        saved(tmp_path, step)
    newest = load_newest(tmp_path, at_most)
    assert (newest.step if newest else None) == found


def test_none_is_none_and_none_that_is_whole_is_an_error(tmp_path: Path) -> None:
    assert load_newest(tmp_path) is None
    assert load_newest(tmp_path / "missing") is None
    for step in (1, 2):
        (saved(tmp_path, step) / "values.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint of .* is whole: .*step-000002.*step-000001"):
        load_newest(tmp_path)


# ------------------------------------------------------------------------------------------------ what is kept


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 9, 10, 1_000_000):
        saved(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step-000010", "step-1000000"]
    assert step_read(tmp_path) == 1_000_000


def test_damaged_ones_are_not_counted(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        saved(tmp_path, step)
    (tmp_path / "step-000003" / "values.json").write_bytes(b"{}")
    saved(tmp_path, 4, keep=2)
    assert names(tmp_path) == ["step-000002", "step-000003", "step-000004"]
    saved(tmp_path, 5, keep=2)
    assert names(tmp_path) == ["step-000004", "step-000005"]


def test_a_step_may_be_written_again(tmp_path: Path) -> None:
    for content in (1, 2):
        saved(tmp_path, 7, content=content, keep=2)
        assert names(tmp_path) == ["step-000007"]
        assert load(tmp_path / "step-000007").values == {"content": content}
    (tmp_path / "step-000007" / CHECKSUMS).unlink()
    saved(tmp_path, 7, content=3, keep=2)
    assert names(tmp_path) == ["step-000007"]
    assert load(tmp_path / "step-000007").values == {"content": 3}


def test_one_that_was_to_be_replaced_is_read_until_it_is(tmp_path: Path) -> None:
    """As a kill between the two renames leaves it."""
    saved(tmp_path, 7).rename(tmp_path / "step-000007.replaced")
    assert step_read(tmp_path) == 7
    saved(tmp_path, 7, keep=1)
    assert names(tmp_path) == ["step-000007"]


def test_leftovers_are_removed_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "step-000001.partial" / "policy").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    assert load_newest(tmp_path) is None
    saved(tmp_path, 2)
    assert names(tmp_path) == ["notes.txt", "step-000002"]


def test_what_was_just_written_is_kept_though_later_steps_are_there(tmp_path: Path) -> None:
    saved(tmp_path, 9)
    saved(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["step-000003", "step-000009"]
