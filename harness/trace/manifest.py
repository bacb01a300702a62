"""manifest.json: the origin of a trace, and whether it was finished."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from xxhash import xxh3_128_hexdigest

from harness import __version__
from harness.bits.errors import TraceError
from harness.bits.files import MALFORMED
from harness.trace.format import FORMAT

READ_BY = "0.1.0"
"""The first rlharness that reads FORMAT; raised together with it."""
LEVELS = ("off", "deterministic", "invariant")
ENTRY, LEVEL = "(entry)", "(level)"
"""Fields of the identity that name the function which was called, and the level of determinism."""
GPU = "gpu"
"""Name, among the numerics, of the models of the GPUs that a program uses."""
PARTS = ("identity", "content", "numerics", "subject", "perturbation")

MAX_WORLD_SIZE = 1 << 20
MAX_FIELD_CHARS = 1 << 15
"""Longest value of a fingerprint that is shown."""
VERSION_NUMBER = r"\d{1,4}(\.\d{1,4}){0,3}((a|b|rc|\.dev|\.post)\d{1,4})?"
"""What a version looks like."""

Part = Mapping[str, str]
"""Names and values of one part of a fingerprint, all text."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything outside the trace that its bits may depend on."""

    identity: Part = field(default_factory=dict)
    """Meaning of the configuration: its values, seed and microbatch size among them."""
    numerics: Part = field(default_factory=dict)
    """Environment: instruction set, Python, packages, drivers, mapped libraries, floating-point control state."""
    subject: Part = field(default_factory=dict)
    """The code under test: commit and uncommitted changes."""
    perturbation: Part = field(default_factory=dict)
    """Runtime settings, which should not affect results at level `invariant`: threads, world size, hash seed."""
    content: Part = field(default_factory=dict)
    """Digests of what the configuration names: data, source of functions, checkpoints. Empty if none were given."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of a whole trace."""

    fingerprint: Fingerprint = Fingerprint()
    argv: tuple[str, ...] = ()
    """Command line of the program, without secrets."""
    world_size: int = 1
    """How many rank logs belong to it."""
    level: str = "off"
    """One of LEVELS: what the program claimed."""
    complete: bool = False
    """Whether rank 0 ended in order; of a trace, that every log did too."""
    written_by: str = f"rlharness {__version__}"
    unranked: tuple[int, ...] = ()
    """The logs whose number is no rank, but the order in which processes arrived, where there are several."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise TraceError(f"the level {self.level!r} does not exist", legal=", ".join(LEVELS))
        if not 1 <= self.world_size <= MAX_WORLD_SIZE:
            raise TraceError(f"the world size is {self.world_size}", legal=f"1 to {MAX_WORLD_SIZE:,}")


def manifest_text(manifest: Manifest) -> str:
    """A manifest as it stands in its file."""
    fields = {"format": FORMAT, "read_by": READ_BY, **asdict(manifest)}
    fields |= {"fingerprint": fields.pop("fingerprint")}  # the longest comes last
    if not manifest.unranked:
        del fields["unranked"]
    return json.dumps(fields, indent=1) + "\n"


def parse_manifest(text: str) -> Manifest | None:
    """A manifest from its text; None where that is cut. TraceError where it is another thing, or its format newer."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    try:
        refuse_newer(int(fields["format"]), str(fields.get("read_by", "")))
        return _manifest(fields)
    except TraceError:
        raise
    except MALFORMED:
        raise TraceError(
            "it is valid JSON but violates the format",
            legal="an object with format, complete and fingerprint",
            remedy="fix the program that wrote the trace; see FORMAT.md",
        ) from None


def _manifest(fields: dict[str, Any]) -> Manifest:
    parts = {part: _part(fields["fingerprint"].get(part, {})) for part in PARTS}
    return Manifest(
        Fingerprint(**parts),
        tuple(map(str, fields.get("argv", []))),
        int(fields.get("world_size", 1)),
        str(fields.get("level", "off")),
        fields["complete"] is True,
        str(fields.get("written_by", "")),
        tuple(int(each) for each in fields.get("unranked", [])),
    )


def _part(values: Mapping[str, Any]) -> Part:
    return {str(name): str(value) for name, value in values.items()}


def short_field(text: str) -> str:
    """Return a text of a manifest, or its length and digest: to look for secrets in a long one may take minutes."""
    if len(text) <= MAX_FIELD_CHARS:
        return text
    return f"{len(text):,} characters, xxh3_128 {xxh3_128_hexdigest(text.encode('utf-8', 'surrogatepass'))}"


def refuse_newer(number: int, read_by: str) -> None:
    """TraceError, which names the version that can read it, for a format newer than FORMAT."""
    if number > FORMAT:
        raise TraceError(
            f"a trace of format {number}; this is rlharness {__version__}",
            legal=f"formats up to {FORMAT}",
            remedy=upgrade(read_by),
        )


def upgrade(version: str) -> str:
    """Return the command that installs `version` or a newer one; what does not look like a version is not repeated."""
    if re.fullmatch(VERSION_NUMBER, version):
        return f"pip install 'rlharness>={version}'"
    return "pip install --upgrade rlharness"


def with_gpus(manifest: Manifest, models: Iterable[str]) -> Manifest:
    """The same manifest, with the models of the GPUs that its program uses among the numerics; unchanged for none."""
    text = "; ".join(sorted(set(models)))
    if not text:
        return manifest
    numerics = {**manifest.fingerprint.numerics, GPU: text}
    return replace(manifest, fingerprint=replace(manifest.fingerprint, numerics=numerics))
