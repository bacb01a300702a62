"""Lower bounds of the makespan: no schedule whatever can end sooner, so a plan that reaches one is optimal.

A set of m equal slots (GPUs, or CPU slots) is bounded by the largest of several terms over the units that can run
in no other set; q is a unit's width in slots, p its seconds:

    longest         the longest p
    area            sum of p q / m
    one at a time   sum of p over the units with q > m/2, no two of which fit together
    beside          p_j + sum of p_i over the i with q_i > m/2 and q_i > m - q_j, for the worst j
    dual feasible   sum of p f(q/m) for functions f with sum f(x) <= 1 wherever sum x <= 1 (Fekete and Schepers 2001)
    chain           r + 1 of the k longest units follow one another if r heaps that fit side by side cannot hold all k
    preemptive      the least makespan if units could be interrupted (`preemptive_bound`): dearer, so only if asked for

Units that share a GPU are bounded by their memory (`shared_bound`); those that fill half of one count as whole GPUs.

Units that can run beside no other of their set are set aside first: whatever the schedule, their seconds add to those
of the rest. Exclusive units are, in the same way, set aside for the whole machine.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from heapq import nsmallest
from math import ceil, inf

from harness.runner.schedule.first_fit import Job
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.preemptive_bound import preemptive_bound
from harness.runner.schedule.shared_bound import fills_a_gpu, memory_bound

TOLERANCE = 1e-9
"""Relative difference below which two spans of time count as equal: of equal terms, the simplest is named."""
NUM_CHAINED = 64
"""Longest units among which chains are sought."""
MAX_STEPS = 12
"""Greatest k of the functions u(k)."""


class Term(StrEnum):
    """Reason of a bound; its value is the text for the user."""

    NOTHING = "no file to run"
    LONGEST = "the longest file"
    AREA = "all the work shared evenly"
    ONE_AT_A_TIME = "files of which no two can run at the same time"
    BESIDE = "one file and those that cannot run at the same time"
    DUAL_FEASIBLE = "the numbers of GPUs that the files need"
    CHAIN = "long files of which some must run one after another"
    PREEMPTIVE = "a schedule in which files could be interrupted"
    MEMORY = "the memory of the GPUs that files share"


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound of the makespan and what sets it."""

    value_s: float
    term: Term
    unit: int | None = None
    """`Job.index` of the unit whose length sets the bound, so that splitting it in two files that can run side by side
    would lower it; None where no single unit does."""
    num_places: int = 0
    """Size of the set of GPUs, or of CPU slots, that sets the bound; 0 if exclusive units alone do."""
    is_cpu: bool = False
    exclusive_s: float = 0.0
    """Part of `value_s` in which exclusive units have the machine."""


def lower_bound(jobs: Sequence[Job], table: LeaseTable, enough_s: float = inf) -> Bound:
    """Return the greatest known lower bound for `jobs` on the GPUs and CPU slots of `table`, leased or not.

    Taken over the CPU slots and every distinct set of GPUs some unit is confined to. Units that can never run (see
    `LeaseTable.why_never`) must be left out. The dear term is computed only for a bound that is below `enough_s`, the
    makespan already reached.
    """
    side_by_side = [(job, table.choice.eligible(job.need)) for job in jobs if not job.need.exclusive]
    exclusive_s = sum((job.expected_s for job in jobs if job.need.exclusive), 0.0)
    bounds = []
    for gpus in _gpu_sets(eligible for _, eligible in side_by_side):
        members = [job for job, eligible in side_by_side if eligible == gpus or (eligible and not eligible & ~gpus)]
        num_places = gpus.bit_count() if gpus else table.cpu_units
        gpu_bytes = max((round(gpu.memory_gb * 1e9) for gpu in table.choice.gpus_in(gpus)), default=0)
        filling = [job for job in members if fills_a_gpu(job, gpu_bytes)]
        bound = places_bound(
            [job.expected_s for job in filling],
            [job.need.gpus or 1 for job in filling],
            num_places,
            enough_s - exclusive_s,
        )
        unit = None if bound.unit is None else filling[bound.unit].index
        bounds.append(replace(bound, unit=unit, is_cpu=gpus == 0))
        if any(job.need.shared for job in members):
            bounds += _bounds_with_sharing(members, gpu_bytes, num_places)
    return with_exclusives(bounds, exclusive_s)


def _bounds_with_sharing(jobs: Sequence[Job], gpu_bytes: int, num_gpus: int) -> Iterator[Bound]:
    """The bounds by the longest unit beside those that need every GPU, and by memory."""
    alone_s = sum(job.expected_s for job in jobs if job.need.gpus == num_gpus and not job.need.shared)
    longest = max((job for job in jobs if job.need.shared), key=lambda job: job.expected_s)
    term = Term.BESIDE if alone_s else Term.LONGEST
    yield Bound(alone_s + longest.expected_s, term, longest.index, num_gpus)
    yield Bound(memory_bound(jobs, gpu_bytes, num_gpus), Term.MEMORY, None, num_gpus)


def with_exclusives(bounds: Iterable[Bound], exclusive_s: float) -> Bound:
    """The greatest of several bounds that hold side by side, after `exclusive_s` seconds in which nothing else runs."""
    nothing = Bound(0.0, Term.ONE_AT_A_TIME if exclusive_s > 0 else Term.NOTHING)
    best = max(bounds, key=lambda bound: bound.value_s, default=nothing)
    return replace(best, value_s=best.value_s + exclusive_s, exclusive_s=exclusive_s)


def places_bound(seconds: Sequence[float], widths: Sequence[int], num_places: int, enough_s: float = inf) -> Bound:
    """Return a lower bound for units that all run on the same `num_places` equal slots and are not wider than that.

    `unit` of the result is a position in `seconds`; `enough_s` is as for `lower_bound`.
    """
    alone = run_alone(widths, num_places)
    alone_s = sum(seconds[i] for i in alone)
    if not seconds:
        best = Bound(0.0, Term.NOTHING, num_places=num_places)
    elif len(alone) == len(seconds):
        best = Bound(0.0, Term.LONGEST if len(alone) == 1 else Term.ONE_AT_A_TIME, num_places=num_places)
        if len(alone) == 1 and 2 * widths[0] <= num_places:
            best = replace(best, unit=0)
    else:
        rest = sorted(set(range(len(seconds))) - set(alone), key=lambda i: -seconds[i])
        best = _best_term([_Piece(seconds[i], widths[i], i) for i in rest], num_places, enough_s - alone_s)
        if alone and best.term is Term.LONGEST:
            best = replace(best, term=Term.BESIDE)
    return replace(best, value_s=best.value_s + alone_s)


def run_alone(widths: Sequence[int], num_places: int) -> list[int]:
    """Positions of the units that fit beside no other: their seconds add to the makespan of the others."""
    least_two = nsmallest(2, widths)
    alone = []
    for position, width in enumerate(widths):
        # The narrowest of the *others*: the second least where this one is itself the least.
        narrowest = least_two[-1] if width == least_two[0] else least_two[0]
        if len(widths) == 1 or width + narrowest > num_places:
            alone.append(position)
    return alone


@dataclass(frozen=True, slots=True)
class _Piece:
    seconds: float
    width: int
    position: int


def _best_term(pieces: list[_Piece], num_places: int, enough_s: float) -> Bound:
    """The greatest term over `pieces`, at least two, longest first; the first named of equal ones."""
    best = Bound(0.0, Term.NOTHING, num_places=num_places)
    for term, value_s, piece in _cheap_terms(pieces, num_places):
        if value_s > best.value_s * (1 + TOLERANCE):
            splits = piece is not None and 2 * piece.width <= num_places
            best = Bound(value_s, term, piece.position if piece and splits else None, num_places)
    if best.value_s * (1 + TOLERANCE) < enough_s:
        widths = [piece.width for piece in pieces]
        value_s = preemptive_bound([piece.seconds for piece in pieces], widths, num_places, enough_s)
        if value_s > best.value_s * (1 + TOLERANCE):
            best = Bound(value_s, Term.PREEMPTIVE, None, num_places)
    return best


def _cheap_terms(pieces: list[_Piece], num_places: int) -> Iterator[tuple[Term, float, _Piece | None]]:
    work: dict[int, float] = {}  # seconds by width
    longest: dict[int, _Piece] = {}  # by width
    for piece in pieces:
        work[piece.width] = work.get(piece.width, 0.0) + piece.seconds
        longest.setdefault(piece.width, piece)
    yield Term.LONGEST, pieces[0].seconds, pieces[0]
    yield Term.AREA, sum(width * p for width, p in work.items()) / num_places, None
    yield Term.ONE_AT_A_TIME, sum(p for width, p in work.items() if 2 * width > num_places), None
    for width, piece in longest.items():
        # All units of one width exclude the same ones, so the longest of them makes the most of this term.
        excluded_s = sum(p for other, p in work.items() if 2 * other > num_places and other + width > num_places)
        own_s = 0.0 if 2 * width > num_places else piece.seconds
        yield Term.BESIDE, own_s + excluded_s, piece
    for weights in dual_feasible_functions(num_places):
        yield Term.DUAL_FEASIBLE, sum(weights[width] * p for width, p in work.items()), None
    for weights in dual_feasible_functions(num_places):
        yield Term.CHAIN, _chain(pieces[:NUM_CHAINED], weights), None


def _chain(pieces: list[_Piece], weights: tuple[float, ...]) -> float:
    """Units that overlap pairwise all overlap at one moment, and so weigh at most 1 together. Hence units of total
    weight w fall in no fewer than ceil(w) such heaps, and intervals that need r heaps have r disjoint ones among them
    (interval graphs are perfect): at best the r shortest."""
    total = best_s = 0.0
    for k, piece in enumerate(pieces):
        total += weights[piece.width]
        num_heaps = ceil(total - TOLERANCE)
        best_s = max(best_s, sum(shorter.seconds for shorter in pieces[k + 1 - num_heaps : k + 1]))
    return best_s


@lru_cache(maxsize=64)
def dual_feasible_functions(num_places: int) -> tuple[tuple[float, ...], ...]:
    """Distinct functions f as tables over the widths 0 to `num_places`: sum f(q) <= 1 wherever sum q <= `num_places`.

    Fekete and Schepers' u(k), which rounds to multiples of 1/k; U(eps), which drops what is below eps and makes up for
    it above 1 - eps; phi(eps), which counts what still fits in units of eps; and u(k) after U(eps).
    """
    one = num_places
    whole = range(one + 1)

    def rounded(q: int, k: int) -> Fraction:
        return Fraction(q, one) if (k + 1) * q % one == 0 else Fraction((k + 1) * q // one, k)

    def cut(q: int, eps: int) -> int:
        return one if q > one - eps else 0 if q < eps else q

    def counted(q: int, eps: int) -> Fraction:
        if 2 * q > one:
            return 1 - Fraction((one - q) // eps, one // eps)
        return Fraction(1, one // eps) if q >= eps else Fraction(0)

    tables: dict[tuple[float, ...], None] = {}  # a dictionary keeps their order
    steps = range(1, min(one, MAX_STEPS) + 1)
    cuts = range(1, one // 2 + 1)
    for k in steps:
        tables[tuple(float(rounded(q, k)) for q in whole)] = None
    for eps in cuts:
        tables[tuple(float(Fraction(cut(q, eps), one)) for q in whole)] = None
        tables[tuple(float(counted(q, eps)) for q in whole)] = None
        for k in steps:
            tables[tuple(float(rounded(cut(q, eps), k)) for q in whole)] = None
    return tuple(tables)


def _gpu_sets(eligible: Iterable[int]) -> list[int]:
    """Each distinct set of GPUs some unit is confined to (0: the CPU places), and all of these GPUs together."""
    masks = set(eligible)
    everything = 0
    for mask in masks:
        everything |= mask
    return sorted(masks | {everything} if everything else masks)
