"""What a sentinel found, as it stands in the manifest of its bundle. The standard library only: both sides import this.

rank 0 of the ranks that compare ──sentinel/step-K/manifest.json──▶ launcher
"""

import json
from collections.abc import Iterable
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


class Fault(StrEnum):
    """What repeating showed."""

    TRANSIENT = "transient"
    """The same work, done again, gave equal bits."""
    PERSISTENT = "persistent"
    """The same work, done again, differed at the same rank again."""
    UNKNOWN = "unknown"
    """Nothing could be repeated, or what was repeated differed from the first time on all ranks."""


class Repeated(StrEnum):
    """What was repeated to distinguish a transient fault from a persistent one."""

    READING = "reading"
    """The tensors were digested again."""
    OPTIMIZER_STEP = "optimizer_step"
    """The optimizer repeated its step from weights and moments that were kept."""
    NOTHING = "nothing"
    """There was nothing to repeat."""


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
    """weight, gradient or moment."""
    name: str
    """Of the parameter; of a moment also its key."""
    digests: dict[int, str]
    """By rank: dtype, shape, algorithm and digest."""
    suspects: tuple[int, ...]
    """Ranks that differ from the majority; all of them where there is none."""
    since_step: int | None = None
    """Step after which a single copy changed without a write; None for a difference between replicas."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference between replicas, and what became of it."""

    step: int
    """Optimizer step of the process, numbered from 0, as in its trace."""
    when: Moment
    suspects: tuple[Location, ...]
    differences: tuple[Difference, ...]
    num_different: int
    """Number of differing tensors; `differences` may hold fewer."""
    fault: Fault
    repeated: Repeated
    is_repaired: bool
    """Whether the ranks agree again, and the program continued."""
    last_equal_step: int | None
    """Last step at which all ranks agreed; None if there was none."""
    locations: tuple[Location, ...] = ()
    """Of all ranks that compared."""
    random_states: dict[int, dict[str, str]] | None = None
    """Digests of the random-number generators by rank."""

    def to_text(self) -> str:
        """As it stands in its file."""
        return json.dumps({"version": 1, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Finding":
        """The inverse of to_text; ValueError, TypeError or KeyError for any other text."""
        fields = dict(json.loads(text))
        del fields["version"]
        fields["when"], fields["fault"] = Moment(fields["when"]), Fault(fields["fault"])
        fields["repeated"] = Repeated(fields["repeated"])
        for name in ("suspects", "locations"):
            fields[name] = tuple(Location(**each) for each in fields[name])
        fields["differences"] = tuple(_difference(each) for each in fields["differences"])
        states = fields["random_states"]
        fields["random_states"] = None if states is None else {int(rank): each for rank, each in states.items()}
        return cls(**fields)


def _difference(fields: dict[str, object]) -> Difference:
    digests, suspects = fields["digests"], fields["suspects"]
    if not isinstance(digests, dict) or not isinstance(suspects, list):
        raise TypeError("a difference without digests or suspects")
    by_rank = {int(rank): str(digest) for rank, digest in digests.items()}
    return Difference(**{**fields, "digests": by_rank, "suspects": tuple(suspects)})  # type: ignore[arg-type]


def bundle_name(step: int, when: Moment) -> str:
    """Name of the directory of a finding: step-20-before_step."""
    return f"step-{step}-{when}"


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
    first = finding.differences[0]
    where = ", ".join(f"rank {each.rank} ({each.host}, {each.device})" for each in finding.suspects)
    more = f" and {finding.num_different - 1} more" if finding.num_different > 1 else ""
    when = "before" if finding.when is Moment.BEFORE_STEP else "after"
    is_pair = first.since_step is None and len(finding.suspects) == len(first.digests) > 1
    either = "one of " if is_pair else ""
    if first.since_step is not None:
        what = f"{first.kind} {first.name}{more} changed after step {first.since_step} without a write"
    else:
        what = f"{first.kind} {first.name}{more} differ{'' if more else 's'}"
    end = "repaired, the program continues" if finding.is_repaired else _ended(finding)
    return f"sentinel: {when} step {finding.step}, {what} on {either}{where}; {finding.fault} fault; {end}"


def _ended(finding: Finding) -> str:
    applied = "the step was not applied" if finding.when is Moment.BEFORE_STEP else "the run is ended"
    last = finding.last_equal_step
    since = "" if last is None else f"; all ranks agreed last at step {last}"
    return applied + since


def suspects_of(digests: Iterable[tuple[int, str]]) -> tuple[int, ...]:
    """Ranks without the digest that more than half of them have; all ranks where no digest has a majority."""
    pairs = list(digests)
    counts: dict[str, int] = {}
    for _, digest in pairs:
        counts[digest] = counts.get(digest, 0) + 1
    majority = {digest for digest, count in counts.items() if 2 * count > len(pairs)}
    return tuple(rank for rank, digest in pairs if digest not in majority)
