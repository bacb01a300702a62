"""Rewards for a text with one right answer, in the column `answer`. All lie in 0 to 1.

1 is for the answer itself, ended by the end of sequence. The end counts as a character after the last one, so the
reward distinguishes a completion that was cut off, or continues, from one that is done.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rlcore.types import StopReason

Symbols = list[str | None]
"""Characters, and None for the end of sequence."""


def exact(completions: Sequence[str], answer: Sequence[str], stop_reasons: Sequence[str], **_: Any) -> list[float]:
    """1 for the answer, 0 for anything else."""
    return [float(given == right) for given, right in _pairs(completions, answer, stop_reasons)]


def matching(completions: Sequence[str], answer: Sequence[str], stop_reasons: Sequence[str], **_: Any) -> list[float]:
    """Return the share of positions at which completion and answer agree, of the positions in the longer one.

    A wrong text of the right length has a right end: 1 / (length + 1). "abd" for "abc" is 3/4, "ab" 2/4, "xabc" 0.
    """
    return [
        sum(a == b for a, b in zip(given, right, strict=False)) / max(len(given), len(right))
        for given, right in _pairs(completions, answer, stop_reasons)
    ]


def common(completions: Sequence[str], answer: Sequence[str], stop_reasons: Sequence[str], **_: Any) -> list[float]:
    """Twice the longest common subsequence, by the sum of both lengths: forgives a character too many or too few.

    "xabc" for "abc" is 8/9. Anything that ends has at least the end in common.
    """
    return [
        2 * _longest_common(given, right) / (len(given) + len(right))
        for given, right in _pairs(completions, answer, stop_reasons)
    ]


def _pairs(
    completions: Sequence[str], answer: Sequence[str], stop_reasons: Sequence[str]
) -> Iterator[tuple[Symbols, Symbols]]:
    """Completion and answer, each with its end."""
    for text, right, reason in zip(completions, answer, stop_reasons, strict=True):
        yield [*text, None] if reason == StopReason.EOS else [*text], [*right, None]


def _longest_common(one: Symbols, two: Symbols) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(two) + 1)
    for a in one:
        above, row = row, [0]
        for column, b in enumerate(two):
            row.append(above[column] + 1 if a == b else max(above[column + 1], row[column]))
    return row[-1]
