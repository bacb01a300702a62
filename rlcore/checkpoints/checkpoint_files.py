"""What a checkpoint consists of, and whether it is whole: checksums over its files, and over themselves.

checksums.json, and nothing else in this form: {"format", "step", "files": {path: {"num_bytes", "xxh3_128"}}, "self"}.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xxhash import xxh3_128, xxh3_128_hexdigest

from harness.bits.files import MAX_DEPTH, open_regular, parse_object, read_regular
from rlcore.errors import CheckpointError, InvalidValueError

FORMAT = 1
CHECKSUMS, VALUES, SUFFIX = "checksums.json", "values.json", ".safetensors"
BLOCK_BYTES = 1 << 22
REMEDY = "resume from an older checkpoint, or copy this one again"


@dataclass(frozen=True, slots=True)
class Checksums:
    """Of one checkpoint."""

    step: int
    files: Mapping[str, Mapping[str, Any]]
    """Path inside the checkpoint -> its num_bytes and xxh3_128."""

    def encoded(self) -> bytes:
        """As checksums.json holds them."""
        content = {"format": FORMAT, "step": self.step, "files": {path: dict(of) for path, of in self.files.items()}}
        return _encoded({**content, "self": xxh3_128_hexdigest(_encoded(content))})

    @classmethod
    def of(cls, directory: Path, step: int) -> "Checksums":
        """Of the files that stand in a directory now, those in directories below it too."""
        paths = sorted(path for path in directory.rglob("*") if path.is_file())
        return cls(step, {path.relative_to(directory).as_posix(): _checksum(path) for path in paths})

    @classmethod
    def read(cls, directory: Path) -> "Checksums":
        """Those of a checkpoint; raises CheckpointError where they are damaged."""
        path = directory / CHECKSUMS
        try:
            raw = read_regular(path, follows_links=True)
            found = parse_object(raw)
            made = cls(found["step"], found["files"])
            # Every byte counts, spaces too: what is not what we would write was not written by us.
            is_whole = (
                made.encoded() == raw
                and type(made.step) is int
                and all(_is_entry(*each) for each in made.files.items())
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error!r:.300}", remedy=REMEDY) from error
        if not is_whole:
            raise CheckpointError(f"{path} is damaged, or of another format", legal=f"format {FORMAT}", remedy=REMEDY)
        return made

    def check(self, directory: Path) -> None:
        """Every file is there and as it was written; raises CheckpointError with the first that is not."""
        for name in self.files:
            self.check_file(directory, name)

    def check_file(self, directory: Path, name: str) -> None:
        """One of the files is as it was written; raises CheckpointError."""
        path = directory / name
        try:
            found = _checksum(path)
        except (OSError, ValueError) as error:  # names that no file can have are ValueErrors
            raise CheckpointError(f"{path} cannot be read: {error}", remedy=REMEDY) from error
        self._compare(path, name, found)

    def _compare(self, path: Path, name: str, found: Mapping[str, Any]) -> None:
        wanted = self.files[name]
        if found != wanted:
            told = f"{found['num_bytes']} bytes, {found['xxh3_128']}"
            raise CheckpointError(
                f"{path} is damaged: {told}", legal=f"{wanted['num_bytes']} bytes, {wanted['xxh3_128']}", remedy=REMEDY
            )

    def read_file(self, directory: Path, name: str) -> bytes:
        """The bytes of a file, checked after they were read; raises CheckpointError."""
        path = directory / name
        try:
            content = read_regular(path, max_bytes=self.files[name]["num_bytes"], follows_links=True)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}", remedy=REMEDY) from error
        self._compare(path, name, {"num_bytes": len(content), "xxh3_128": xxh3_128_hexdigest(content)})
        return content


def encoded_values(values: Mapping[str, Any]) -> bytes:
    """Plain values as JSON that reads back as the same values: floats by their shortest exact digits.

    NaN and infinities are written as Python's json does; a NaN comes back without its payload. Raises
    InvalidValueError for what would come back as something else.
    """
    _check_plain(values, "values")
    return json.dumps(values, indent=1).encode()


def decoded_values(content: bytes) -> dict[str, Any]:
    """What `encoded_values` has written; ValueError for anything else."""
    return parse_object(content)


def _check_plain(value: Any, place: str, num_levels: int = MAX_DEPTH) -> None:
    if not num_levels and type(value) in (dict, list):
        raise InvalidValueError(f"{place:.100} is nested too deeply", legal=f"at most {MAX_DEPTH} levels")
    if type(value) is dict:
        for name, item in value.items():
            if type(name) is not str:
                raise InvalidValueError(f"{place} has the key {name!r}", legal="text")
            _check_plain(item, f"{place}.{name}", num_levels - 1)
    elif type(value) is list:
        for number, item in enumerate(value):
            _check_plain(item, f"{place}[{number}]", num_levels - 1)
    elif value is not None and type(value) not in (str, int, float, bool):
        raise InvalidValueError(
            f"{place} is a {type(value).__name__}",
            legal="dict, list, str, int, float, bool, None",
            remedy="a list for a tuple; tensors go where tensors are",
        )


def _is_entry(name: str, entry: Mapping[str, Any]) -> bool:
    """Whether a file has a path inside the checkpoint, a size and a digest."""
    is_inside = not Path(name).is_absolute() and ".." not in Path(name).parts
    kinds = {key: type(value) for key, value in entry.items()}
    return is_inside and kinds == {"num_bytes": int, "xxh3_128": str}


def _encoded(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1, sort_keys=True).encode()


def _checksum(path: Path) -> dict[str, Any]:
    digest, num_bytes = xxh3_128(), 0
    with open_regular(path, follows_links=True) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
    return {"num_bytes": num_bytes, "xxh3_128": digest.hexdigest()}
