"""Committed traces, and the comparison of a run with one of them.

    GOLDENS/grpo_tiny.smoke/3f9c2a71d05e/golden.json    who accepted it, when and why
                                        curve.jsonl     what a person reads in a review
                                        manifest.json, rank-0.log, tensors/: the rest of a trace

A directory for each scenario and size, in it one for each machine and environment: the name is the digest of the
fingerprint's numerics, since other numerics make other bits.
"""

import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.bits.digests import digest
from harness.bits.errors import HarnessError, TraceError
from harness.bits.files import MALFORMED, read_text, write_replacing
from harness.bits.findings import Finding
from harness.lab.gate.change import (
    HALF_OF_THE_DIGITS,
    Change,
    Comparison,
    GateCode,
    change_of_identity,
    classify_change,
)
from harness.process.scratch import remove_tree
from harness.trace.diff import diff
from harness.trace.format import CURVE, CURVE_NAMES, MANIFEST, TENSORS
from harness.trace.reader import Trace, read_trace

VERSION = 2
GOLDEN = "golden.json"
KEY_CHARS = 12
NORM = "gradient_norm"
"""The one of CURVE_NAMES that does not cancel: half of its own digits agree where only rounding differs. A loss
with a baseline or a KL may be nothing but rounding; made of terms of the order of 1, they are compared with 1."""


class GoldenError(HarnessError, ValueError):
    """A golden that cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """When a golden was written, and why."""

    date: str
    commit: str
    """Of the checkout; with a "+" where something was not committed."""
    reason: str
    by: str
    """As git is configured; empty where it is not."""


@dataclass(frozen=True, slots=True)
class Golden:
    """Accepted results of a scenario."""

    trace: Trace
    history: tuple[Acceptance, ...]
    """The newest last."""


def numerics_of(trace: Trace) -> Mapping[str, str]:
    """Return what names a machine and environment."""
    return trace.manifest.fingerprint.numerics if trace.manifest else {}


def key_of(trace: Trace) -> str:
    """Return the name of the machine and environment of a trace."""
    return digest(json.dumps(dict(sorted(numerics_of(trace).items()))).encode())[1].hex()[:KEY_CHARS]


def compare_with_golden(golden: Trace, now: Trace) -> Comparison:
    """Return what a run is to the golden of its machine and environment."""
    assert golden.manifest is not None and now.manifest is not None
    identities = (each.fingerprint.identity for each in (golden.manifest, now.manifest))
    if other := change_of_identity(*identities):
        return other
    verdict = diff(golden, now)
    beyond = () if verdict.first is None else tuple(_further_than_rounding(golden, now, verdict.first.step))
    return classify_change(verdict, None, beyond)


def _further_than_rounding(golden: Trace, now: Trace, step: int) -> Iterator[Finding]:
    """Values of the curve that rounding does not explain, in the step in which they part and in the next.

    In which what the optimizer has done is seen first; later on, rounding itself grows.
    """
    a, b = ({point.step: point.values for point in each.curve} for each in (golden, now))
    for name in CURVE_NAMES:
        for at in sorted(each for each in a.keys() & b.keys() if each >= step)[:2]:
            x, y = a[at].get(name), b[at].get(name)
            if x is not None and y is not None and x != y and not _is_rounding(name, x.value(), y.value()):
                yield GateCode.CURVE_BEYOND_ROUNDING(name=name, step=at, base=x.value(), head=y.value())
                break


def _is_rounding(name: str, x: float, y: float) -> bool:
    scale = max(abs(x), abs(y), 0.0 if name == NORM else 1.0)
    return abs(x - y) <= HALF_OF_THE_DIGITS["f32"] * scale  # of NaN it is not


def golden_directory(goldens: Path, scenario: str, size: str) -> Path:
    """Return the directory of all goldens of a scenario in a size."""
    return goldens / (f"{Path(scenario).stem}.{size}" if size else scenario)


def read_goldens(directory: Path) -> dict[str, Golden]:
    """Return all goldens of a scenario in a size, by key. GoldenError where one cannot be read."""
    return {path.parent.name: _read_golden(path) for path in sorted(directory.glob(f"*/{GOLDEN}"))}


def _read_golden(path: Path) -> Golden:
    try:
        fields, trace = json.loads(read_text(path)), read_trace(path.parent)
        if fields["version"] != VERSION or trace.manifest is None or trace.gaps:
            raise ValueError("; ".join(trace.gaps) or f"it has format {fields['version']}, not {VERSION}")
        return Golden(trace, tuple(Acceptance(**each) for each in fields["history"]))
    except (OSError, TraceError, *MALFORMED) as error:
        raise GoldenError(
            f"{path} cannot be read: {type(error).__name__}: {error}",
            remedy=f"git checkout -- {shlex.quote(str(path.parent))}; or remove it, and --accept another",
        ) from None


def accept(now: Trace, before: Golden | None, directory: Path, reason: Acceptance) -> tuple[Comparison, Golden]:
    """Return what accepting a run does to the golden that was there, and the golden that is there then.

    One that is equal stays as it is. GoldenError where nothing can be written; the old one is there then.
    """
    replaced = GateCode.GOLDEN_FIRST()
    found = Comparison(Change.ACCEPTED, (replaced,))
    if before is not None:
        found = compare_with_golden(before.trace, now)
        if found.change is Change.EQUAL:
            return found, before
        replaced = GateCode.GOLDEN_REPLACED(date=before.history[-1].date, change=found.change.value)
        found = Comparison(Change.ACCEPTED, (replaced, *found.reasons), found.notes, found.verdict)
    golden = Golden(now, (*(before.history if before else ()), reason))
    write_golden(directory, golden)
    return found, golden


def write_golden(directory: Path, golden: Golden) -> None:
    """Put a golden into its directory, in place of one that is there. GoldenError where that cannot be done."""
    new, trace = directory.with_name(f"{directory.name}.new"), golden.trace
    names = {MANIFEST, CURVE, TENSORS, *(log.path.name for log in trace.ranks.values())}
    text = json.dumps({"version": VERSION, "history": [asdict(each) for each in golden.history]}, indent=1)
    try:
        new.mkdir(parents=True, exist_ok=True)
        for path in (each for each in trace.directory.iterdir() if each.name in names):
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, new / path.name)
        write_replacing(new / GOLDEN, f"{text}\n")
        remove_tree(str(directory))
        new.rename(directory)
    except OSError as error:
        remove_tree(str(new))
        what = f"{directory} cannot be written to: {error.strerror}"
        raise GoldenError(what, remedy="make room there, or name another one with --golden") from None
