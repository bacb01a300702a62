"""Checkpoints that are whole or absent, whenever the process is killed.

    directory/
      step-000012/                 renamed from step-000012.partial when every byte of it is on the disk
        policy/                    by a writer: what `rlcore.models.checkpoints.save` writes, for transformers and vLLM
        optimizer.safetensors      one file a group of tensors
        values.json                everything else
        checksums.json             of all the others, and of itself

A kill leaves `.partial`, which no reader opens and the next save removes, or between two renames `.replaced`, which is
read like any other. One process writes a directory. No pickle: reading a checkpoint runs no code of it.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor

from rlcore.checkpoints.checkpoint_files import (
    CHECKSUMS,
    REMEDY,
    SUFFIX,
    VALUES,
    Checksums,
    decoded_values,
    encoded_values,
)
from rlcore.errors import CheckpointError, InvalidValueError

PARTIAL, REPLACED = ".partial", ".replaced"
_Content = TypeVar("_Content")
_NAME = re.compile(rf"step-(\d{{6,}})({re.escape(REPLACED)})?")
_GROUP = re.compile(r"[a-z0-9_]+")

Writer = Callable[[Path], None]
"""Writes files into the directory it is given."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is whole, read."""

    path: Path
    """Its directory; what writers wrote stands there under their names, checked."""
    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    """Group -> name -> tensor, on the CPU, in memory of its own."""
    values: Mapping[str, Any]
    skipped: tuple[str, ...] = ()
    """Newer ones that are damaged, each with what is wrong with it."""


def save(
    directory: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    values: Mapping[str, Any],
    *,
    keep: int,
    writers: Mapping[str, Writer] | None = None,
) -> Path:
    """Write the checkpoint of a step, and remove whole ones beyond the newest `keep`; returns its directory.

    `tensors` are groups of named ones, bits and shapes kept, strides not; `writers` fill a directory each. Nothing
    older is touched before the new one is in place. Raises InvalidValueError for names and values that cannot be
    written, CheckpointError where the disk refuses: what was there before is then as it was.
    """
    _check_arguments(step, tensors, keep, writers or {})
    encoded = encoded_values(dict(values))
    final, partial = directory / f"step-{step:06}", directory / f"step-{step:06}{PARTIAL}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob(f"step-*{PARTIAL}"):
            _remove(leftover)
        partial.mkdir()
        for name, write in (writers or {}).items():
            (partial / name).mkdir()
            write(partial / name)
        for group, named in tensors.items():
            save_file(_plain(named), partial / f"{group}{SUFFIX}")
        (partial / VALUES).write_bytes(encoded)
        checksums = Checksums.of(partial, step)
        (partial / CHECKSUMS).write_bytes(checksums.encoded())
        _flush_tree(partial)
        _put(partial, final)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint of step {step} cannot be written: {error}",
            remedy=f"check that {directory} has room and is writable; older checkpoints are unchanged",
        ) from error
    _prune(directory, keep, final)
    return final


def load(path: Path) -> Checkpoint:
    """Read one checkpoint, every byte of it checked; raises CheckpointError where it is not whole."""
    checksums = _checksums(path)
    tensors: dict[str, Mapping[str, Tensor]] = {}
    values: Mapping[str, Any] = {}
    for name in checksums.files:
        if name == VALUES:
            values = _parsed(path / name, checksums.read_file(path, name), decoded_values)
        elif "/" not in name and name.endswith(SUFFIX):
            tensors[name.removesuffix(SUFFIX)] = _parsed(path / name, checksums.read_file(path, name), load_tensors)
        else:
            checksums.check_file(path, name)
    return Checkpoint(path, checksums.step, tensors, values)


def read_values(path: Path) -> Mapping[str, Any]:
    """Return the values of a checkpoint, its file checked; raises CheckpointError."""
    return _parsed(path / VALUES, _checksums(path).read_file(path, VALUES), decoded_values)


def load_newest(directory: Path, at_most: int | None = None) -> Checkpoint | None:
    """The newest whole checkpoint of a directory, with the newer ones that are damaged; None where there is none.

    With `at_most`, of those of this step and of steps before it.

    Raises CheckpointError where there are some, and none is whole.
    """
    skipped: list[str] = []
    for path in _newest_first(directory, at_most):
        try:
            return replace(load(path), skipped=tuple(skipped))
        except CheckpointError as error:
            skipped.append(error.what)
    if skipped:
        raise CheckpointError(
            f"no checkpoint of {directory} is whole: {'; '.join(skipped)}",
            remedy="start a new run in another directory, or restore a copy",
        )
    return None


def _parsed(path: Path, content: bytes, parse: Callable[[bytes], _Content]) -> _Content:
    """Parse a file whose checksum is right, and which another program may have written; raises CheckpointError."""
    try:
        return parse(content)
    except (ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r:.300}", remedy=REMEDY) from error


def _checksums(path: Path) -> Checksums:
    checksums = Checksums.read(path)
    name = _NAME.fullmatch(path.name)
    if name and int(name[1]) != checksums.step:
        raise CheckpointError(f"{path} holds step {checksums.step}", legal="a directory named after its step")
    return checksums


def _is_complete(path: Path) -> bool:
    try:
        _checksums(path).check(path)
    except CheckpointError:
        return False
    return True


def _newest_first(directory: Path, at_most: int | None = None) -> list[Path]:
    """Checkpoints by step; one that was to be replaced comes after the one that was to take its place."""
    if not directory.is_dir():
        return []
    found = [(path, name) for path in directory.iterdir() if (name := _NAME.fullmatch(path.name))]
    found = [(path, name) for path, name in found if at_most is None or int(name[1]) <= at_most]
    return [path for path, name in sorted(found, key=lambda pair: (-int(pair[1][1]), bool(pair[1][2])))]


def _put(partial: Path, final: Path) -> None:
    """Give a whole checkpoint its name; at every moment it or the one it replaces can be read."""
    replaced = final.with_name(final.name + REPLACED)
    if final.exists():
        if _is_complete(final):
            _remove(replaced)
            final.rename(replaced)
        else:
            _remove(final)
    partial.rename(final)
    _flush(final.parent)


def _prune(directory: Path, keep: int, written: Path) -> None:
    """Remove what was replaced, and what is older than the newest `keep` whole ones.

    Damaged ones among these stay, to be looked at.
    """
    num_global = 0
    try:
        _remove(written.with_name(written.name + REPLACED))
        for path in _newest_first(directory):
            if num_global < keep:
                num_global += _is_complete(path)
            elif path != written:
                _remove(path)
    except OSError as error:
        raise CheckpointError(
            f"an old checkpoint cannot be removed: {error}", remedy=f"check who owns {directory}; {written} is complete"
        ) from error


def _remove(path: Path) -> None:
    """Remove a directory: its name first and at once, so that no half of it is taken for a checkpoint."""
    if path.exists():
        leftover = path.with_name(f"{path.name}.removed{PARTIAL}")
        shutil.rmtree(path if path.name.endswith(PARTIAL) else path.rename(leftover))


def _flush_tree(directory: Path) -> None:
    """On the disk with all of it: files first, then the directories that name them."""
    for root, _, names in os.walk(directory, topdown=False):
        for name in names:
            _flush(Path(root, name))
        _flush(Path(root))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As safetensors takes them: on the CPU, contiguous, none in the memory of another."""
    plain: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        place = own.untyped_storage().data_ptr()
        plain[name] = own.clone() if place in places else own
        places.add(place)
    return plain


def _check_arguments(step: int, groups: Mapping[str, Mapping[str, Tensor]], keep: int, writers: Iterable[str]) -> None:
    if step < 0 or keep < 1:
        raise InvalidValueError(f"step {step}, keep {keep}", legal="a step of 0 or more, 1 or more to keep")
    names = [*groups, *writers]
    for name in names:
        if not _GROUP.fullmatch(name) or names.count(name) > 1:
            raise InvalidValueError(f"a part called {name!r}", legal="a-z, 0-9 and _, each name once")
    for group, tensors in groups.items():
        for name, tensor in tensors.items():
            is_dense = tensor.layout == torch.strided and not tensor.is_meta
            if name == "__metadata__" or not is_dense or tensor.dtype == torch.complex128:
                raise InvalidValueError(
                    f"{name} of {group} is {tensor.dtype}, {tensor.layout}, on {tensor.device}",
                    legal="a dense tensor with memory, of a type and a name that safetensors has",
                )
