"""Committed curves, and the comparison of a run with one of them.

    GOLDENS/grpo_tiny.smoke/3f9c2a71d05e/golden.json    identity, numerics, roots of each step, who accepted it and why
                                        curve.jsonl     what a person reads in a review

A directory for each scenario and size, in it one for each machine and environment: the name is the digest of the
fingerprint's numerics, since other numerics make other bits. Roots are kept for a step as a whole, for each phase, and
for what floats decide (tokens, rewards, signs of advantages), so that a change of numerics differs from one of
behaviour even without the trace.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from pathlib import Path

from harness.bits.digests import digest
from harness.bits.errors import HarnessError
from harness.bits.files import MALFORMED, MAX_JSON_BYTES, read_text, replacing
from harness.bits.findings import Finding
from harness.lab.gate.change import (
    CODE_OF_KIND,
    DECIDING,
    HALF_OF_THE_DIGITS,
    SYNC,
    Change,
    Comparison,
    GateCode,
    change_of_identity,
)
from harness.trace.attribution import PHASES as COUNTED_PHASES
from harness.trace.attribution import kind_of
from harness.trace.chain import CHAINED, PHASES, RecordedValue
from harness.trace.curve import NAMES, CurvePoint, curve_line, parse_curve
from harness.trace.curve_diff import is_cost
from harness.trace.element_diff import numbers
from harness.trace.layout import CURVE
from harness.trace.reader import Trace
from harness.trace.values import FLOATS
from harness.trace.verdict import ADVANTAGE_SIGNS

VERSION = 1
GOLDEN = "golden.json"
KEY_CHARS = 12
STEP = "step"
"""Under which the root of everything that counts in a step stands, beside those of phases and kinds."""
NORM = "gradient_norm"
"""The one of the curve's NAMES that does not cancel: half of its own digits agree where only rounding differs. A loss
with a baseline or a KL may be nothing but rounding; made of terms of the order of 1, they are compared with 1."""

Roots = Mapping[str, tuple[str | None, ...]]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """Accepted results of a scenario, in the order of its file."""

    scenario: str
    size: str
    history: tuple[Acceptance, ...] = field(default=(), compare=False)
    """The newest last."""
    steps: tuple[int, ...]
    identity: Mapping[str, str]
    roots: Roots
    """By STEP, phase and kind, a digest for each step; None if the trace has no such value, or is incomplete."""
    numerics: Mapping[str, str]
    curve: tuple[CurvePoint, ...] = ()
    """In a file of its own."""

    @property
    def key(self) -> str:
        """Of its numerics."""
        return numerics_key(self.numerics)


def numerics_key(numerics: Mapping[str, str]) -> str:
    """The name of a machine and environment."""
    return digest(json.dumps(dict(sorted(numerics.items()))).encode())[1].hex()[:KEY_CHARS]


def golden_of(trace: Trace, scenario: str, size: str) -> Golden:
    """What would be committed of a trace, which is whole."""
    assert trace.manifest is not None
    found = [_roots_of_step(trace, step) for step in trace.steps]
    names = dict.fromkeys(name for roots in found for name in roots)
    values = [
        replace(point, values={name: x for name, x in point.values.items() if not is_cost(name)})
        for point in trace.curve
    ]
    return Golden(
        scenario=scenario,
        size=size,
        identity=dict(sorted(trace.manifest.fingerprint.identity.items())),
        numerics=dict(sorted(trace.manifest.fingerprint.numerics.items())),
        steps=trace.steps,
        roots={name: tuple(roots.get(name) for roots in found) for name in names},
        curve=tuple(values),
    )


def _roots_of_step(trace: Trace, step: int) -> dict[str, str | None]:
    parts: dict[str, list[bytes]] = {STEP: []}
    unknown: set[str] = set()
    for rank, log in sorted(trace.logs(step).items()):
        parts[STEP].append(log.heads[step].root)
        for recorded_value in trace.columns(step, rank).values():
            if recorded_value.scope in CHAINED:
                parts.setdefault(recorded_value.phase, []).append(_encoded(rank, recorded_value, recorded_value.digest))
            kind = (
                kind_of(recorded_value)
                if recorded_value.phase in COUNTED_PHASES and recorded_value.scope in CHAINED
                else ""
            )
            if kind == ADVANTAGE_SIGNS:
                signs = _signs(recorded_value, trace.tensor(step, rank, recorded_value))
                unknown |= {kind} if signs is None else set()
                parts.setdefault(kind, []).append(_encoded(rank, recorded_value, signs or b""))
            elif kind:
                parts.setdefault(kind, []).append(_encoded(rank, recorded_value, recorded_value.digest))
    return {name: None if name in unknown else digest(b"".join(each))[1].hex() for name, each in parts.items()}


def _encoded(rank: int, recorded_value: RecordedValue, value: bytes) -> bytes:
    of = recorded_value
    return f"{rank} {of.phase} {of.name} {of.occurrence} {of.dtype} {of.shape} ".encode() + value


def _signs(recorded_value: RecordedValue, data: bytes | None) -> bytes | None:
    """A byte for each element; None where the values are not known."""
    if data is None or recorded_value.dtype not in FLOATS:
        return None
    return bytes(2 if isnan(x) else (x > 0) - (x < 0) + 1 for x in numbers(recorded_value.dtype, data))


# ------------------------------------------------------------------------------------------------------------ verdict


def compare_with_golden(golden: Golden, now: Golden) -> Comparison:
    """What a run is to the golden of its machine and environment."""
    if other := change_of_identity(golden.identity, now.identity):
        return other
    step = _first(golden, now, STEP)
    if step is None:
        return Comparison(Change.EQUAL)
    phases = [phase for phase in PHASES if _first(golden, now, phase) == step]
    reasons = [CODE_OF_KIND[kind](first_step=at) for kind in DECIDING if (at := _first(golden, now, kind)) is not None]
    if _has_unknown_signs(golden, now):
        reasons.append(GateCode.ADVANTAGE_SIGNS_UNKNOWN())
    reasons += _further_than_rounding(golden, now, step)
    if phases == [SYNC]:
        reasons.append(GateCode.SYNC_MOVED_ALONE())
    change = Change.BEHAVIOUR if reasons else Change.NUMERICS
    notes = () if reasons else (GateCode.GOLDEN_HAS_NO_TENSORS(),)
    return Comparison(change, tuple(reasons), notes, place=f"step {step}, {phases[0]}" if phases else f"step {step}")


def acceptance(before: Golden | None, now: Golden) -> Comparison:
    """What accepting a run does to the golden that was there."""
    if before is None:
        return Comparison(Change.ACCEPTED, (GateCode.GOLDEN_FIRST(),))
    found = compare_with_golden(before, now)
    if found.change is Change.EQUAL:
        return found
    date = before.history[-1].date if before.history else "an unknown date"
    replaced = GateCode.GOLDEN_REPLACED(date=date, change=found.change.value)
    return replace(found, change=Change.ACCEPTED, reasons=(replaced, *found.reasons))


def _first(golden: Golden, now: Golden, name: str) -> int | None:
    """The first step in which roots of a name differ; also one that only one of them has."""
    a, b = (dict(zip(each.steps, each.roots.get(name, ()), strict=False)) for each in (golden, now))
    steps = sorted(set(golden.steps) | set(now.steps))
    if name in PHASES or name == STEP:
        return next((step for step in steps if a.get(step) != b.get(step)), None)
    return next((step for step in steps if step in a and step in b and a[step] != b[step]), None)


def _has_unknown_signs(golden: Golden, now: Golden) -> bool:
    """Whether advantages differ whose signs one of them does not tell."""
    is_known = all(None not in each.roots.get(ADVANTAGE_SIGNS, ()) for each in (golden, now))
    return not is_known and _first(golden, now, "advantage") is not None


def _further_than_rounding(golden: Golden, now: Golden, step: int) -> Iterator[Finding]:
    """Values of the curve that rounding does not explain, in the step in which they part and in the next.

    In which what the optimizer has done is seen first; later on, rounding itself grows.
    """
    a, b = ({point.step: point.values for point in each.curve} for each in (golden, now))
    for name in NAMES:
        for at in sorted(each for each in a.keys() & b.keys() if each >= step)[:2]:
            x, y = a[at].get(name), b[at].get(name)
            if x is not None and y is not None and x != y and not _is_rounding(name, x.value(), y.value()):
                yield GateCode.CURVE_BEYOND_ROUNDING(name=name, step=at, base=x.value(), head=y.value())
                break


def _is_rounding(name: str, x: float, y: float) -> bool:
    scale = max(abs(x), abs(y), 0.0 if name == NORM else 1.0)
    return abs(x - y) <= HALF_OF_THE_DIGITS["f32"] * scale  # of NaN it is not


# -------------------------------------------------------------------------------------------------------------- files


def golden_directory(goldens: Path, scenario: str, size: str) -> Path:
    """Of all goldens of a scenario in a size."""
    return goldens / (f"{Path(scenario).stem}.{size}" if size else scenario)


def read_goldens(directory: Path) -> dict[str, Golden]:
    """All goldens of a scenario in a size, by key. GoldenError where one cannot be read."""
    return {path.parent.name: _read_golden(path.parent) for path in sorted(directory.glob(f"*/{GOLDEN}"))}


def _read_golden(directory: Path) -> Golden:
    path = directory / GOLDEN
    try:
        fields = json.loads(read_text(path, max_bytes=MAX_JSON_BYTES))
        if fields["version"] > VERSION:
            raise GoldenError(
                f"{path} has format {fields['version']}",
                legal=f"formats up to {VERSION}",
                remedy="install a newer rlharness",
            )
        del fields["version"]
        fields["roots"] = {name: tuple(roots) for name, roots in fields["roots"].items()}
        fields["history"] = tuple(Acceptance(**each) for each in fields["history"])
        fields["steps"], fields["curve"] = tuple(fields["steps"]), tuple(parse_curve(read_text(directory / CURVE)))
        found = Golden(**fields)
        if tuple(point.step for point in found.curve) != found.steps:
            raise ValueError(f"{CURVE} has {len(found.curve)} of its {len(found.steps)} steps")
        return found
    except GoldenError:
        raise
    except (OSError, *MALFORMED) as error:
        raise GoldenError(
            f"{path} cannot be read: {type(error).__name__}: {error}",
            remedy=f"git checkout -- {shlex.quote(str(directory))}; or remove it, and --accept another",
        ) from None


def write_golden(directory: Path, golden: Golden) -> None:
    """Write a golden into its directory, which need not exist. GoldenError where that cannot be done."""
    fields = {"version": VERSION, **asdict(replace(golden, curve=()))}
    del fields["curve"]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(directory / CURVE) as curve, replacing(directory / GOLDEN) as head:
            curve.writelines(curve_line(point).encode() for point in golden.curve)
            head.write(json.dumps(fields, indent=1).encode() + b"\n")
            curve.flush()  # neither takes its name before both are whole
            head.flush()
    except OSError as error:
        raise GoldenError(
            f"{directory} cannot be written to: {error.strerror}",
            remedy="make room there, or name another one with --golden",
        ) from None


def accepted(golden: Golden, before: Golden | None, acceptance: Acceptance) -> Golden:
    """A golden with its history; the one before itself, where nothing but the curve's file would be new."""
    if before is not None and (before.identity, before.steps, before.roots) == (
        golden.identity,
        golden.steps,
        dict(golden.roots),
    ):
        return before
    return replace(golden, history=(*(before.history if before else ()), acceptance))
