"""What a bundle consists of: a recorded run, cut down to one step and what it begins with. Pure.

    bundle.json                          the head: which step, from where, and a checksum of every other member
    call.json manifest.json              what was called, with which configuration, at which level; the fingerprint
    rank-0.log curve.jsonl               the digests of the steps from the checkpoint on; the curve of the whole run
    tensors/rank-0-step-7.safetensors    what was kept of the step: its rollouts, or all of it
    unfinished/...                       the same of a step in whose middle the run has ended
    checkpoints/step-000005/...          the checkpoint from which the step is reached; absent where it is named only

Nothing else may be in one: names are checked against this list. Of a checkpoint only files of formats that hold data
may be in one, so that no member can be imported, and none is a pickle. What call.json names is checked by `trust`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness import __version__
from harness.bits.errors import BundleError
from harness.bits.files import MALFORMED
from harness.recording.entry_call import EntryCall
from harness.trace.manifest import upgrade

FORMAT = 1
HEAD = "bundle.json"
ENDING = ".rlb"
MAX_MEMBERS = 10_000
MAX_HEAD_BYTES = 2**24
CHECKPOINT_SUFFIXES = (".json", ".jsonl", ".safetensors", ".txt", ".model", ".jinja")
"""Of the files of a checkpoint: weights, plain values, and what tokenizers are saved as."""
_OF_TRACE = r"(manifest\.json|curve\.jsonl|rank-\d{1,4}\.log|tensors/rank-\d{1,4}-step-\d{1,12}\.safetensors)"
_IS_DATA = rf"(?=[^\n]*({'|'.join(map(re.escape, CHECKPOINT_SUFFIXES))})\Z)"
_OF_CHECKPOINT = rf"{_IS_DATA}checkpoints/step-\d{{6,12}}(/[A-Za-z0-9_][A-Za-z0-9_.-]{{0,99}}){{1,4}}"
_NAME = re.compile(rf"call\.json|(unfinished/)?{_OF_TRACE}|{_OF_CHECKPOINT}", re.ASCII)
_CHECKPOINT = re.compile(r"/step-\d{6,12}\Z", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a bundle."""

    num_bytes: int
    xxh3_128: str
    """Of its bytes, 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class NamedCheckpoint:
    """A checkpoint that is not in the bundle: where it was, and what has to be there."""

    path: str
    """Of its directory, on the machine that made the bundle."""
    digest: str
    """Of the names and bytes of its files, 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a bundle says of itself."""

    step: int
    """The one that it is of."""
    start: int | None
    """With which its checkpoint begins; None where it begins with the run."""
    members: Mapping[str, Member]
    """By name, all but the head."""
    checkpoint: NamedCheckpoint | None = None
    """Where it is not a member; None where it is, or there is none."""
    written_by: str = f"rlharness {__version__}"

    def encoded(self) -> bytes:
        """As it stands in its member."""
        fields = {
            "format": FORMAT,
            "written_by": self.written_by,
            "step": self.step,
            "start": self.start,
            "checkpoint": self.checkpoint and {"path": self.checkpoint.path, "digest": self.checkpoint.digest},
            "members": {
                name: {"num_bytes": member.num_bytes, "xxh3_128": member.xxh3_128}
                for name, member in sorted(self.members.items())
            },
        }
        return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"


def is_legal_name(name: str) -> bool:
    """Whether a member besides the head may have this name; no such name leads out of a directory."""
    return _NAME.fullmatch(name) is not None


def parse_head(data: bytes) -> Head:
    """The inverse of `Head.encoded`; BundleError for anything else."""
    try:
        fields = json.loads(data)
        if int(fields["format"]) > FORMAT:
            raise BundleError(
                f"a bundle of format {fields['format']}",
                legal=f"format {FORMAT}",
                remedy=upgrade(str(fields.get("written_by", "")).removeprefix("rlharness ")),
            )
        members = {_checked_name(name): _member(each) for name, each in fields["members"].items()}
        checkpoint = fields["checkpoint"]
        named = checkpoint and NamedCheckpoint(_checked_path(checkpoint["path"]), _checked_digest(checkpoint["digest"]))
        head = Head(_count(fields["step"]), _start(fields["start"]), members, named, str(fields["written_by"]))
    except BundleError:
        raise
    except MALFORMED as error:
        raise BundleError(f"its {HEAD} cannot be read: {error!r:.100}") from None
    if head.encoded() != data:
        raise BundleError(f"its {HEAD} does not have the format of rlharness")
    return head


def check_call(data: bytes) -> EntryCall:
    """What call.json says; BundleError for anything else."""
    try:
        return EntryCall.parse(data)
    except ValueError:
        raise BundleError(
            "its call.json does not name an entry", legal="a call as rlharness writes it", remedy="make it again"
        ) from None


def _checked_name(name: str) -> str:
    if not is_legal_name(name):
        raise BundleError(f"a member called {name!r:.200}", legal="the names that a bundle has, and no others")
    return name


def _checked_path(path: Any) -> str:
    """One that is called as checkpoints are: the digest of anything else, of a whole disk, is not worth taking."""
    if not isinstance(path, str) or not path.isprintable() or not _CHECKPOINT.search(path):
        raise BundleError(f"a checkpoint called {path!r:.200}", legal="a directory called step-000012 or the like")
    return path


def _checked_digest(text: Any) -> str:
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise ValueError(text)
    return text


def _member(fields: Mapping[str, Any]) -> Member:
    return Member(_count(fields["num_bytes"]), _checked_digest(fields["xxh3_128"]))


def _start(value: Any) -> int | None:
    return None if value is None else _count(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
