"""Two fingerprints side by side, what differs first. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.bits.redaction import redact_fields
from harness.trace.manifest import PARTS, Manifest, short_field

ABOUT = {
    "identity": "The configuration that defines the results. Runs are comparable only if it is equal.",
    "content": "Digests of what the configuration names: data, source of functions, checkpoints.",
    "numerics": "The software and hardware that compute. No determinism level holds if it differs.",
    "subject": "The code under test.",
    "perturbation": "How the work is distributed. They must not affect results at level invariant.",
}

HEADINGS = {"perturbation": "runtime settings"}
"""Headings of the parts whose name is a word of the format only."""


@dataclass(frozen=True, slots=True)
class Line:
    """One name; None where a run does not have it."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class Part:
    """One part of both fingerprints."""

    name: str
    """Its heading."""
    about: str
    different: tuple[Line, ...]
    alike: tuple[Line, ...]


def side_by_side(a: Manifest | None, b: Manifest | None) -> list[Part]:
    """The parts that either has, without secrets; b is a itself in a report of one run."""
    found = []
    for part in PARTS:
        left, right = (_shown(getattr(each.fingerprint, part)) if each else {} for each in (a, b))
        lines = [Line(name, left.get(name), right.get(name)) for name in sorted(left.keys() | right.keys())]
        if lines:
            different = tuple(line for line in lines if line.a != line.b)
            alike = tuple(line for line in lines if line.a == line.b)
            found.append(Part(HEADINGS.get(part, part), ABOUT[part], different, alike))
    return found


def _shown(fields: Mapping[str, str]) -> dict[str, str]:
    return redact_fields({name: short_field(value) for name, value in fields.items()})
