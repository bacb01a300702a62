"""Lower bounds of the makespan: no schedule whatever can end sooner, so a plan that reaches one is optimal.

A set of m equal slots (GPUs, or CPU slots) is bounded by the largest of several terms over the units that can run
in no other set; q is a unit's width in slots, p its seconds:

    longest         the longest p
    area            sum of p q / m
    one at a time   sum of p over the units with q > m/2, no two of which fit together
    beside          p_j + sum of p_i over the i with q_i > m/2 and q_i > m - q_j, for the worst j

Units that share a GPU are bounded by their memory; those that fill more than half of one count as whole GPUs.

Units that can run beside no other of their set are set aside first: whatever the schedule, their seconds add to those
of the rest. Exclusive units are, in the same way, set aside for the whole machine.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import nsmallest

from harness.runner.schedule.first_fit import Job
from harness.runner.schedule.leases import LeaseTable

TOLERANCE = 1e-9
"""Relative difference below which two spans of time count as equal: of equal terms, the simplest is named."""


class Term(StrEnum):
    """Reason of a bound; its value is the text for the user."""

    NOTHING = "no file to run"
    LONGEST = "the longest file"
    AREA = "all the work shared evenly"
    ONE_AT_A_TIME = "files of which no two can run at the same time"
    BESIDE = "one file and those that cannot run at the same time"
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


def lower_bound(jobs: Sequence[Job], table: LeaseTable) -> Bound:
    """Return the greatest known lower bound for `jobs` on the GPUs and CPU slots of `table`, leased or not.

    Taken over the CPU slots and every distinct set of GPUs some unit is confined to. Units that can never run (see
    `LeaseTable.why_never`) must be left out.
    """
    side_by_side = [(job, table.choice.eligible(job.need)) for job in jobs if not job.need.exclusive]
    exclusive_s = sum((job.expected_s for job in jobs if job.need.exclusive), 0.0)
    bounds = []
    for gpus in _gpu_sets(eligible for _, eligible in side_by_side):
        members = [job for job, eligible in side_by_side if eligible == gpus or (eligible and not eligible & ~gpus)]
        num_places = gpus.bit_count() if gpus else table.cpu_units
        gpu_bytes = max((round(gpu.memory_gb * 1e9) for gpu in table.choice.gpus_in(gpus)), default=0)
        filling = [job for job in members if not job.need.shared or 2 * job.need.budget_bytes > gpu_bytes]
        bound = places_bound([job.expected_s for job in filling], [job.need.gpus or 1 for job in filling], num_places)
        unit = None if bound.unit is None else filling[bound.unit].index
        bounds.append(replace(bound, unit=unit, is_cpu=gpus == 0))
        if any(job.need.shared for job in members):
            bounds += _bounds_with_sharing(members, gpu_bytes, num_places)
    nothing = Bound(0.0, Term.ONE_AT_A_TIME if exclusive_s > 0 else Term.NOTHING)
    best = max(bounds, key=lambda bound: bound.value_s, default=nothing)
    return replace(best, value_s=best.value_s + exclusive_s, exclusive_s=exclusive_s)


def _bounds_with_sharing(jobs: Sequence[Job], gpu_bytes: int, num_gpus: int) -> Iterator[Bound]:
    """The bounds by the longest unit beside those that need every GPU, and by memory."""
    alone_s = sum(job.expected_s for job in jobs if job.need.gpus == num_gpus and not job.need.shared)
    longest = max((job for job in jobs if job.need.shared), key=lambda job: job.expected_s)
    term = Term.BESIDE if alone_s else Term.LONGEST
    yield Bound(alone_s + longest.expected_s, term, longest.index, num_gpus)
    shares = [min(job.need.budget_bytes / gpu_bytes, 1.0) if job.need.shared else job.need.gpus for job in jobs]
    area_s = sum(share * job.expected_s for share, job in zip(shares, jobs, strict=True))
    yield Bound(area_s / num_gpus, Term.MEMORY, None, num_gpus)


def places_bound(seconds: Sequence[float], widths: Sequence[int], num_places: int) -> Bound:
    """Return a lower bound for units that all run on the same `num_places` equal slots and are not wider than that.

    `unit` of the result is a position in `seconds`.
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
        best = _best_term([_Piece(seconds[i], widths[i], i) for i in rest], num_places)
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


def _best_term(pieces: list[_Piece], num_places: int) -> Bound:
    """The greatest term over `pieces`, at least two, longest first; the first named of equal ones."""
    best = Bound(0.0, Term.NOTHING, num_places=num_places)
    for term, value_s, piece in _terms(pieces, num_places):
        if value_s > best.value_s * (1 + TOLERANCE):
            splits = piece is not None and 2 * piece.width <= num_places
            best = Bound(value_s, term, piece.position if piece and splits else None, num_places)
    return best


def _terms(pieces: list[_Piece], num_places: int) -> Iterator[tuple[Term, float, _Piece | None]]:
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


def _gpu_sets(eligible: Iterable[int]) -> list[int]:
    """Each distinct set of GPUs some unit is confined to (0: the CPU places), and all of these GPUs together."""
    masks = set(eligible)
    everything = 0
    for mask in masks:
        everything |= mask
    return sorted(masks | {everything} if everything else masks)
