"""metrics.jsonl, which an entry may write into the directory of its run: a line of numbers for each step."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.bits.files import MALFORMED, read_text

METRICS = "metrics.jsonl"


def read_metrics(path: Path) -> Iterator[Mapping[str, float]]:
    """Yield the numbers of each line; nothing for a missing or unreadable file."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        try:
            yield {
                str(name): float(value)
                for name, value in json.loads(line).items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
        except MALFORMED:  # cut, or an entry's own format
            continue
