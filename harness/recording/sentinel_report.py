"""What a sentinel found, as it stands in the manifest of its bundle. The standard library only: both sides import this.

rank 0 of the ranks that compare ──sentinel/step-K-WHEN/manifest.json──▶ launcher
"""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from harness.bits.files import MALFORMED, read_text

BUNDLES = "sentinel"
"""In the directory of a trace: a directory for each finding."""
MANIFEST = "manifest.json"


class Moment(StrEnum):
    """When ranks compared."""

    BEFORE_STEP = "before_step"
    """Before an optimizer applied its gradients."""
    AFTER_STEP = "after_step"
    """After an optimizer applied its gradients."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a rank runs."""

    rank: int
    host: str
    device: str
    """GPU with its name and UUID, or the CPU."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor of which ranks hold different bits."""

    kind: str
    """weight, gradient, moment, buffer or training flag."""
    name: str
    """Of the parameter; of a moment also its key."""
    digests: dict[int, str]
    """By rank: dtype, shape, algorithm and digest."""
    suspects: tuple[int, ...]
    """Ranks that differ from the majority; all of them where there is none."""

    @classmethod
    def of(cls, kind: str, name: str, digests: dict[int, str]) -> "Difference":
        """Return the difference with its suspects."""
        digest, num = Counter(digests.values()).most_common(1)[0]
        suspects = (rank for rank, each in digests.items() if 2 * num <= len(digests) or each != digest)
        return cls(kind, name, digests, tuple(suspects))


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference between replicas."""

    step: int
    """Optimizer step of the process, numbered from 0, as in its trace."""
    when: Moment
    suspects: tuple[Location, ...]
    differences: tuple[Difference, ...]
    num_different: int
    """Number of differing tensors; `differences` may hold fewer."""
    last_equal_step: int | None
    """Last step at which all ranks agreed; None if there was none."""
    locations: tuple[Location, ...] = ()
    """Of all ranks that compared."""

    def to_text(self) -> str:
        """As it stands in its file."""
        return json.dumps({"version": 2, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Finding":
        """The inverse of to_text; ValueError, TypeError or KeyError for any other text."""
        fields = json.loads(text)
        if fields.pop("version") != 2:
            raise ValueError("a finding of another version")
        fields["when"] = Moment(fields["when"])
        for name in ("suspects", "locations"):
            fields[name] = tuple(Location(**each) for each in fields[name])
        fields["differences"] = tuple(_difference(**each) for each in fields["differences"])
        return cls(**fields)


def _difference(kind: str, name: str, digests: dict[str, str], suspects: list[int]) -> Difference:
    return Difference(kind, name, {int(rank): str(each) for rank, each in dict(digests).items()}, tuple(suspects))


def read_findings(directory: Path) -> tuple[tuple[Path, Finding], ...]:
    """(bundle, finding) of each finding below the directory of a trace, by step; damaged manifests are left out."""
    found = []
    for path in (directory / BUNDLES).glob(f"*/{MANIFEST}"):
        try:
            found.append((path.parent, Finding.parse(read_text(path))))
        except (OSError, *MALFORMED):  # cut, or not ours
            continue
    return tuple(sorted(found, key=lambda each: (each[1].step, each[1].when is Moment.AFTER_STEP)))


def finding_line(finding: Finding) -> str:
    """Word a finding in one line, for the terminals of its program and of its launcher."""
    first, last = finding.differences[0], finding.last_equal_step
    where = ", ".join(f"rank {each.rank} ({each.host}, {each.device})" for each in finding.suspects)
    more = f" and {finding.num_different - 1} more" if finding.num_different > 1 else ""
    is_before = finding.when is Moment.BEFORE_STEP
    either = "one of " if len(finding.suspects) == len(first.digests) else ""
    end = "the step was not applied" if is_before else "the run is ended"
    since = "" if last is None else f"; all ranks agreed last at step {last}"
    return (
        f"sentinel: {'before' if is_before else 'after'} step {finding.step}, {first.kind} {first.name}{more}"
        f" differ{'' if more else 's'} on {either}{where}; {end}{since}"
    )
