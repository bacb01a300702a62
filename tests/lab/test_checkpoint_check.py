"""Whether a checkpoint is whole, by its own checksums."""

import json
from pathlib import Path

import pytest
from xxhash import xxh3_128_hexdigest

from harness.lab.experiments.recorded_run import CHECKSUMS, damage_of


def write_checkpoint(directory: Path) -> None:
    """One file and its checksums."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "weights.json").write_bytes(b"weights")
    files = {"weights.json": {"num_bytes": 7, "xxh3_128": xxh3_128_hexdigest(b"weights")}}
    (directory / CHECKSUMS).write_text(json.dumps({"files": files}), "utf-8")


def test_a_whole_one_and_one_that_says_nothing_of_itself_pass(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    assert damage_of(tmp_path) == ""
    (tmp_path / CHECKSUMS).unlink()
    assert damage_of(tmp_path) == ""


def test_every_damage_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "weights.json").write_bytes(b"weight")
    assert damage_of(tmp_path) == "weights.json has 6 bytes, and had 7"
    (tmp_path / "weights.json").write_bytes(b"Weights")
    assert damage_of(tmp_path) == "weights.json has other bytes than those that were written"
    (tmp_path / "weights.json").unlink()
    assert damage_of(tmp_path) == "weights.json cannot be read: No such file or directory"


@pytest.mark.parametrize("name", ["/dev/zero", "../other/weights.json", "a/../../b"])
def test_files_outside_a_checkpoint_are_not_read(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path)
    files = {name: {"num_bytes": 0, "xxh3_128": "0" * 32}}
    (tmp_path / CHECKSUMS).write_text(json.dumps({"files": files}), "utf-8")
    assert damage_of(tmp_path) == f"checksums.json names a file outside: {name}"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}', '{"files": {"weights.json": {}}}'])
def test_checksums_that_are_none_are_damage_too(tmp_path: Path, text: str) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / CHECKSUMS).write_text(text, "utf-8")
    assert damage_of(tmp_path).startswith("checksums.json cannot be read: ")


def test_it_reads_what_the_engine_writes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from rlcore.checkpoint import save

    path = save(tmp_path, 3, {"a": 1}, {}, keep=1)
    assert damage_of(path) == ""
    (path / "values.json").write_bytes(b"{}")
    assert damage_of(path).startswith("values.json has 2 bytes")
