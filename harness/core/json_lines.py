"""JSON objects among the lines of an output that libraries write to as well, and of files that may be cut."""

import json
import math
from typing import Any

from harness.core.malformed import MALFORMED


def json_objects(text: str) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects; others, cut ones and those nested too deeply are left out."""
    found = []
    for line in text.split("\n"):
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except MALFORMED:
                continue
            if isinstance(value, dict):
                found.append(value)
    return found


def as_float(value: object) -> float:
    """Return a number as a float; NaN for what is no number, or one that no float holds."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan
