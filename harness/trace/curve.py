"""curve.jsonl: a line of text for each step, fit to be committed as a golden.

    {"step": 0, "reward_mean": ["f32:3dcccccd", 0.1], "loss": null, ..., "chain": "5f0c..."}

Each float is its bits beside a decimal, null where it was not recorded.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from harness.bits.errors import TraceError
from harness.bits.files import MALFORMED
from harness.trace.values import Float, plain

NAMES = ("reward_mean", "loss", "gradient_norm", "kl", "entropy", "completion_length")
"""Names of every line; further names may follow."""
TAKEN = ("step", "chain")
MAX_LINE_CHARS = 1 << 24
"""Limit on one line, which has some hundred characters for each value of a step."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One step of the curve."""

    step: int
    values: Mapping[str, Float]
    """By name; NAMES that are absent are written as null."""
    chain: str
    """C_k, 32 hexadecimal digits."""


def curve_line(point: CurvePoint) -> str:
    """A step as its line, newline included; TraceError for a name that is taken."""
    if taken := [name for name in TAKEN if name in point.values]:
        raise TraceError(f"the curve name {taken[0]!r} is reserved", legal=f"any name but {', '.join(TAKEN)}")
    values = {name: plain(point.values.get(name)) for name in (*NAMES, *point.values)}
    return json.dumps({"step": point.step, **values, "chain": point.chain}) + "\n"


def parse_curve(text: str) -> list[CurvePoint]:
    """The steps of a curve, up to the first line that is truncated, malformed or too long."""
    points: list[CurvePoint] = []
    for line in text.split("\n")[:-1]:  # what stands after the last newline is cut
        if len(line) > MAX_LINE_CHARS:
            break
        try:
            points.append(_point(json.loads(line)))
        except MALFORMED:  # TraceError is a ValueError
            break
    return points


def bad_line(text: str, num_good: int) -> int | None:
    """Return the number, from 1, of the line after the `num_good` that could be parsed; None if there is none."""
    num_lines = text.count("\n") + (not text.endswith("\n") and text != "")
    return num_good + 1 if num_good < num_lines else None


def _point(fields: dict[str, object]) -> CurvePoint:
    values = {
        name: Float.parse(str(value[0]))
        for name, value in fields.items()
        if name not in TAKEN and isinstance(value, list)
    }
    return CurvePoint(int(str(fields["step"])), values, str(fields["chain"]))
