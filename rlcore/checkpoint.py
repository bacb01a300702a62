"""Checkpoints that are whole or absent, whenever the process is killed.

    directory/
      step-000012/                 renamed from step-000012.partial when every byte of it is on the disk
        policy/                    by a writer: what `rlcore.models.checkpoints.save` writes, for transformers and vLLM
        policy_state/              by another one: weights and optimizer of a trainer, from any number of ranks
        values.json                everything else
        checksums.json             {"format", "step", "files": {path: {"num_bytes", "xxh3_128"}}, "self"}

A kill leaves `.partial`, which no reader opens and the next save removes, or between two renames `.replaced`, which is
read like any other. One process writes a directory. No pickle: reading a checkpoint runs no code of it.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from xxhash import xxh3_128, xxh3_128_hexdigest

from harness.bits.files import check_regular, open_regular, parse_object, read_regular
from rlcore.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

FORMAT = 2
PARTIAL, REPLACED = ".partial", ".replaced"
CHECKSUMS, VALUES, STEP = "checksums.json", "values.json", "step"
BLOCK_BYTES = 1 << 22
REMEDY = "resume from an older checkpoint, or copy this one again"
_NAME = re.compile(rf"step-(\d{{6,}})({re.escape(REPLACED)})?")

Writer = Callable[[Path], None]
"""Writes files into the directory it is given."""
Files = Mapping[str, Mapping[str, Any]]
"""Path inside a checkpoint -> its num_bytes and xxh3_128."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is whole."""

    path: Path
    """Its directory; what writers wrote is below it under their names, checked."""
    step: int
    values: Mapping[str, Any]
    skipped: tuple[str, ...] = ()
    """Newer ones that are damaged, each with what is wrong with it."""


def save(
    directory: Path,
    step: int,
    values: Mapping[str, Any],
    writers: Mapping[str, Writer],
    *,
    keep: int | None,
    keep_every: int = 0,
) -> Path:
    """Write the checkpoint of a step, and remove whole ones beyond the newest `keep`; return its directory.

    None keeps all; so many steps apart, `keep_every`, all are kept too.
    `writers` fill a directory each; `values` are those of JSON. Nothing older is touched before the new one is in
    place. Raises CheckpointError if the disk refuses: what was there before is then as it was.
    """
    final, partial = directory / f"step-{step:06}", directory / f"step-{step:06}{PARTIAL}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob(f"step-*{PARTIAL}"):
            shutil.rmtree(leftover)
        partial.mkdir()
        for name, write in writers.items():
            (partial / name).mkdir()
            write(partial / name)
        (partial / VALUES).write_text(json.dumps(values, indent=1), "utf-8")
        paths = sorted(path for path in partial.rglob("*") if path.is_file())
        files = {path.relative_to(partial).as_posix(): checksum(path) for path in paths}
        (partial / CHECKSUMS).write_bytes(sealed(step, files))
        for root, _, names in os.walk(partial, topdown=False):  # files, then the directories that name them
            for name in names:
                flush(Path(root, name))
            flush(Path(root))
        _put(partial, final)
        _prune(directory, keep, keep_every, final)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint of step {step} cannot be written: {error}",
            remedy=f"check that {directory} has room and is writable; older checkpoints are unchanged",
        ) from error
    return final


def load(path: Path) -> Checkpoint:
    """Read one checkpoint, every byte of it checked. Raises CheckpointError if it is not whole."""
    step, files = _read_checksums(path)
    for name, wanted in files.items():
        try:
            found = checksum(path / name)
        except (OSError, ValueError) as error:  # names that no file can have are ValueErrors
            raise CheckpointError(f"{path / name} cannot be read: {error}", remedy=REMEDY) from error
        if found != wanted:
            raise CheckpointError(f"{path / name} is damaged: {found}", legal=str(wanted), remedy=REMEDY)
    try:
        return Checkpoint(path, step, parse_object(read_regular(path / VALUES)))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / VALUES} cannot be read: {error!r:.300}", remedy=REMEDY) from error


def load_newest(directory: Path, at_most: int | None = None) -> Checkpoint | None:
    """Return the newest whole checkpoint, with the newer ones that are damaged; None if there is none.

    With `at_most`, of those of this step and of earlier ones. Raises CheckpointError if there are some, and none is
    whole.
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


def write_state(path: Path, state: Mapping[str, Tensor], group: "ProcessGroup | None") -> None:
    """Write a trainer's state into an existing directory; every rank of the group calls it. None: one process alone.

    Raises OSError on every rank if one of them cannot write.
    """
    tensors = {name: tensor.detach() for name, tensor in state.items()}
    if group is None:  # the same format, without torch.distributed.checkpoint, whose import takes seconds
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path / "state.safetensors")
        return
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
    with _failures():
        save_together(tensors, storage_writer=writer, process_group=group)


def read_state(path: Path, parameters: Mapping[str, nn.Parameter], group: "ProcessGroup | None") -> dict[str, Tensor]:
    """Read a state, divided as these parameters are; every rank of the group calls it. None: one process reads alone.

    Raises CheckpointError, also for a state of other parameters.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_together

    reader = HuggingFaceStorageReader(str(path))
    try:
        for file in path.glob("*.safetensors"):
            check_regular(file)
        specs: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
        _check_shapes(path, {name: spec.size for name, spec in specs.items()}, parameters)
        found = {}
        for name, spec in specs.items():
            of, _, kind = name.rpartition(".")
            is_count = name not in parameters and kind == STEP  # AdamW counts steps on the CPU
            like = torch.empty(()) if is_count else parameters[name if name in parameters else of].detach()
            found[name] = torch.empty_like(like, dtype=spec.properties.dtype)
        with _failures():
            load_together(found, storage_reader=reader, process_group=group, no_dist=group is None)
    except CheckpointError:
        raise
    except Exception as error:  # torch's reader has many for a header that is malformed
        raise CheckpointError(f"{path} cannot be read: {error!r:.300}", remedy=REMEDY) from error
    return found


def sealed(step: int, files: Files) -> bytes:
    """Return what checksums.json has in it."""
    content = {"format": FORMAT, "step": step, "files": files}
    own = xxh3_128_hexdigest(json.dumps(content, indent=1, sort_keys=True).encode())
    return json.dumps({**content, "self": own}, indent=1, sort_keys=True).encode()


def _read_checksums(path: Path) -> tuple[int, Files]:
    try:
        raw = read_regular(path / CHECKSUMS)
        found = parse_object(raw)
        step, files = found["step"], found["files"]
        # Every byte counts, spaces too: what is not what we would write was not written by us.
        is_whole = sealed(step, files) == raw and type(step) is int
        for name, entry in files.items():
            is_inside = not Path(name).is_absolute() and ".." not in Path(name).parts
            kinds = {key: type(value) for key, value in entry.items()}
            is_whole = is_whole and is_inside and kinds == {"num_bytes": int, "xxh3_128": str}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path / CHECKSUMS} cannot be read: {error!r:.300}", remedy=REMEDY) from error
    if not is_whole:
        raise CheckpointError(f"{path / CHECKSUMS} is damaged, or of another format", remedy=REMEDY)
    named = _NAME.fullmatch(path.name)
    if named and int(named[1]) != step:
        raise CheckpointError(f"{path} holds step {step}", legal="a directory named after its step")
    return step, files


def checksum(path: Path) -> dict[str, Any]:
    """Return the size and the digest of a regular file. OSError for another."""
    digest, num_bytes = xxh3_128(), 0
    with open_regular(path) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
    return {"num_bytes": num_bytes, "xxh3_128": digest.hexdigest()}


def _newest_first(directory: Path, at_most: int | None = None) -> list[Path]:
    """Return checkpoints by step; one that was to be replaced comes after the one that was to take its place."""
    if not directory.is_dir():
        return []
    found = [(path, name) for path in directory.iterdir() if (name := _NAME.fullmatch(path.name))]
    found = [(path, name) for path, name in found if at_most is None or int(name[1]) <= at_most]
    return [path for path, name in sorted(found, key=lambda pair: (-int(pair[1][1]), bool(pair[1][2])))]


def _is_whole(path: Path) -> bool:
    try:
        load(path)
    except CheckpointError:
        return False
    return True


def _put(partial: Path, final: Path) -> None:
    """Give a whole checkpoint its name; at every moment it or the one it replaces can be read."""
    replaced = final.with_name(final.name + REPLACED)
    if final.exists():
        if _is_whole(final):
            _remove(replaced)
            final.rename(replaced)
        else:
            _remove(final)
    partial.rename(final)
    flush(final.parent)


def _prune(directory: Path, keep: int | None, keep_every: int, written: Path) -> None:
    """Remove what was replaced, and what is older than the newest `keep` whole ones; damaged ones among these stay."""
    _remove(written.with_name(written.name + REPLACED))
    num_whole = 0
    for path in _newest_first(directory):
        if keep is None or num_whole < keep:
            num_whole += keep is not None and _is_whole(path)
        elif path != written and (not keep_every or int(path.name.removeprefix("step-")[:6]) % keep_every):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a directory: its name first and at once, so that no half of it is taken for a checkpoint."""
    if path.exists():
        shutil.rmtree(path.rename(path.with_name(f"{path.name}.removed{PARTIAL}")))


def flush(path: Path) -> None:
    """Have a file or a directory on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_shapes(path: Path, found: Mapping[str, torch.Size], parameters: Mapping[str, nn.Parameter]) -> None:
    """Check that a state has every parameter, and of each the same kinds of what an optimizer keeps."""
    kinds = {kind for name, _, kind in (each.rpartition(".") for each in found) if name in parameters}
    expected = {name: parameter.shape for name, parameter in parameters.items()}
    for kind in kinds:
        expected |= {f"{name}.{kind}": torch.Size() if kind == STEP else p.shape for name, p in parameters.items()}
    for name in sorted(found.keys() | expected.keys()):
        given, legal = (list(of[name]) if name in of else "absent" for of in (found, expected))
        if given != legal:
            raise CheckpointError(f"{name} of {path} is {given}", legal=f"{legal}, as the model has it")


@contextmanager
def _failures() -> Iterator[None]:
    """Raise OSError for what any rank failed with, which torch collects; silence what it says of one process alone."""
    from torch.distributed.checkpoint.api import CheckpointException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        try:
            yield
        except CheckpointException as error:
            told = "; ".join(f"rank {rank}: {failure[0]!r}" for rank, failure in sorted(error.failures.items()))
            raise OSError(told) from error
