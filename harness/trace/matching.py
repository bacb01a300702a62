"""Processes without a rank: their logs are numbered by arrival, and two traces are matched by what the logs hold.

    A  rank-0.log  x x x        B  rank-0.log  y y z        A's process 0 is B's process 1,
       rank-1.log  y y y           rank-1.log  x x x        A's process 1 is B's process 0

Logs that are equal in every step belong together; of the others, those that are equal for the longest time. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product, takewhile

from harness.bits.findings import Finding
from harness.trace.chain import Scope
from harness.trace.reader import RankLog, Trace
from harness.trace.reasons import VerdictCode
from harness.trace.value_diff import compare_columns

MAX_PAIRS = 4096
"""So many pairs of processes are compared, about a second; of more, those with equal numbers are matched: a guess."""
Likeness = tuple[int, int]
"""(equal steps at the beginning, equal values in the step after them)."""


@dataclass(frozen=True, slots=True)
class Match:
    """Two traces whose processes were matched."""

    b: Trace
    """The second trace, its logs under the numbers of the first one's."""
    numbers: Mapping[int, int]
    """The number in the first trace -> that in the second, of processes without a rank; empty without a choice."""
    is_guess: bool = False
    """Whether another match would be as good."""

    @property
    def has_other_curve(self) -> bool:
        """Whether the curve of the second trace is that of another process: it is the one with number 0."""
        return self.numbers.get(0, 0) != 0

    def notes(self) -> Iterator[Finding]:
        """Yield notes on the matching, for readers of the comparison."""
        if self.is_guess or any(number != other for number, other in self.numbers.items()):
            code = VerdictCode.PROCESSES_GUESSED if self.is_guess else VerdictCode.PROCESSES_MATCHED
            yield code(numbers=tuple(self.numbers.items()))
        if self.has_other_curve:
            yield VerdictCode.CURVES_OF_OTHER_PROCESSES()


def match_processes(a: Trace, b: Trace) -> Match:
    """Match the processes of two traces that have no rank; the others belong together by their ranks."""
    of_a, of_b = (sorted(trace.ranks.keys() & set(trace.unranked)) for trace in (a, b))
    if not of_a or not of_b:
        return Match(b, {})
    numbers = _match_equal(a, b, of_a, of_b)
    left_a = [each for each in of_a if each not in numbers]
    taken = set(numbers.values())
    left_b = [each for each in of_b if each not in taken]
    found, is_guess = _match_alike(a, b, left_a, left_b)
    numbers = dict(sorted({**numbers, **found}.items()))
    return Match(_renumbered(b, numbers), numbers, is_guess)


def _match_equal(a: Trace, b: Trace, of_a: list[int], of_b: list[int]) -> dict[int, int]:
    """The processes whose logs are equal in every step; under the same number where there is a choice."""
    roots_a, roots_b = ({each: tuple(_roots(trace.ranks[each])) for each in of} for trace, of in ((a, of_a), (b, of_b)))
    found = {number: number for number in of_a if number in roots_b and roots_a[number] == roots_b[number]}
    free: dict[tuple[tuple[int, bytes], ...], list[int]] = {}
    for other in reversed([each for each in of_b if each not in found]):
        free.setdefault(roots_b[other], []).append(other)
    for number in of_a:
        if number not in found and (others := free.get(roots_a[number])):
            found[number] = others.pop()
    return found


def _match_alike(a: Trace, b: Trace, of_a: list[int], of_b: list[int]) -> tuple[dict[int, int], bool]:
    """(the other processes, the most alike first; whether there was a choice between equally good ones)."""
    if len(of_a) * len(of_b) > MAX_PAIRS:
        both = {*of_a} & {*of_b}
        left_a, left_b = ([each for each in of if each not in both] for of in (of_a, of_b))
        return {**{each: each for each in both}, **dict(zip(left_a, left_b, strict=False))}, True
    found: dict[int, int] = {}
    is_guess = False
    is_choice = len(of_a) + len(of_b) > 2
    likeness = {pair: _likeness(a, b, *pair) if is_choice else (0, 0) for pair in product(of_a, of_b)}
    free_a, free_b = dict.fromkeys(of_a), dict.fromkeys(of_b)
    for x, y in sorted(likeness, key=lambda pair: (*(-each for each in likeness[pair]), pair[0] != pair[1], pair)):
        if x not in free_a or y not in free_b:
            continue
        del free_a[x], free_b[y]
        rivals = (*((x, other) for other in free_b), *((other, y) for other in free_a))
        is_guess = is_guess or any(likeness[pair] == likeness[x, y] for pair in rivals)
        found[x] = y
    return found, is_guess


def _roots(log: RankLog) -> list[tuple[int, bytes]]:
    return [(step, head.root) for step, head in log.heads.items()]


def _likeness(a: Trace, b: Trace, number: int, other: int) -> Likeness:
    roots_a, roots_b = _roots(a.ranks[number]), _roots(b.ranks[other])
    pairs = zip(roots_a, roots_b, strict=False)
    num_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    steps = [roots[num_equal][0] for roots in (roots_a, roots_b) if num_equal < len(roots)]
    if len(steps) < 2 or steps[0] != steps[1]:
        return num_equal, 0
    opened = compare_columns(a.columns(steps[0], number), b.columns(steps[0], other), tuple(Scope))
    return num_equal, opened.num_values - opened.num_different


def _renumbered(trace: Trace, numbers: Mapping[int, int]) -> Trace:
    """A trace with the logs `numbers.values()` under `numbers`; any other keeps its number, or gets a free one."""
    ranks = {number: trace.ranks[other] for number, other in numbers.items()}
    unused = iter(range(2 * len(trace.ranks) + 1))
    for number in sorted(trace.ranks.keys() - {*numbers.values()}):
        free = number if number not in ranks else next(each for each in unused if each not in ranks)
        ranks[free] = trace.ranks[number]
    return replace(trace, ranks=dict(sorted(ranks.items())), damaged=set(), _opened={})
