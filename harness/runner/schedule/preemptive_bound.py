"""The least makespan if units could be interrupted and resumed: a lower bound, by linear programming.

A schedule that may interrupt is a number of *sets* of units, each run side by side for some seconds. The shortest is

    minimise  sum over S of x_S   where, for every unit j,   sum over the S that hold j of x_S  =  p_j,   x >= 0

over all sets S whose widths fit. Its dual gives each unit a price y_j such that no fitting set costs more than 1, and
any such prices prove that the makespan is at least sum p_j y_j: a dual feasible function is a price that depends on
the width alone, and "p_j plus all wide units that cannot run beside j" is one that does not. So this bound is no
less than either, and it closes most of the gap they leave for short suites (see tests/benchmarks/packing.py).

The sets are too many to list: each one that enters is the best at the present prices, a knapsack over the slots
(Gilmore and Gomory's column generation, 1961). Every iteration's prices, scaled until no set costs more than 1, are a
proof by themselves, so that stopping early is sound.

To keep it small, only the longest units have a price of their own; the others of one width share one and are
treated as a single amount of work that any number of slots may share. That is a relaxation, so still a bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

NUM_OWN_PRICES = 24
MAX_PIVOTS = 400
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class _Row:
    """One unit, or what is left of one width."""

    width: int
    seconds: float
    is_shared: bool
    """Stands for many units: a set may hold it several times."""


def preemptive_bound(seconds: Sequence[float], widths: Sequence[int], num_places: int, enough_s: float) -> float:
    """Return a lower bound, in seconds, of the makespan of units of these durations and widths on `num_places` slots.

    Every width is from 1 to `num_places`. Stops as soon as the bound reaches `enough_s`.
    """
    rows = _rows(seconds, widths)
    # The first basis: each row alone, as often as it fits. `inverse` is the inverse of the basis matrix.
    copies = [num_places // row.width if row.is_shared else 1 for row in rows]
    size = range(len(rows))
    inverse = [[1 / copies[i] if i == j else 0.0 for j in size] for i in size]
    amounts = [row.seconds / count for row, count in zip(rows, copies, strict=True)]
    prices = [1 / count for count in copies]
    best_s = 0.0
    for _ in range(MAX_PIVOTS if rows else 0):
        cost, column = _dearest_set(prices, rows, num_places)
        best_s = max(best_s, sum(row.seconds * max(0.0, y) for row, y in zip(rows, prices, strict=True)) / cost)
        if cost <= 1 + EPSILON or best_s >= enough_s:
            break
        direction = [sum(line[j] * count for j, count in column.items()) for line in inverse]
        leaving = min(
            (i for i in size if direction[i] > EPSILON), key=lambda i: amounts[i] / direction[i], default=None
        )
        if leaving is None:  # rounding has spoilt the basis: what is proven stays proven
            break
        gain = 1 - sum(prices[j] * count for j, count in column.items())
        _pivot(inverse, amounts, direction, leaving)
        prices = [y + gain * entry for y, entry in zip(prices, inverse[leaving], strict=True)]
    return best_s


def _rows(seconds: Sequence[float], widths: Sequence[int]) -> list[_Row]:
    ranked = sorted(((p, q) for p, q in zip(seconds, widths, strict=True) if p > 0), reverse=True)
    rows = [_Row(q, p, is_shared=False) for p, q in ranked[:NUM_OWN_PRICES]]
    shared: dict[int, float] = {}
    for p, q in ranked[NUM_OWN_PRICES:]:
        shared[q] = shared.get(q, 0.0) + p
    return rows + [_Row(q, p, is_shared=True) for q, p in shared.items()]


def _dearest_set(prices: list[float], rows: list[_Row], num_places: int) -> tuple[float, dict[int, int]]:
    """The fitting set of greatest price: that price, and how often it holds each row (a knapsack)."""
    best = [0.0] * (num_places + 1)
    chains: list[tuple[int, int]] = []  # (row, place in this list of the rest of its set): sets share their tails
    heads = [-1] * (num_places + 1)
    for number, row in enumerate(rows):
        price = prices[number]
        if price <= 0:
            continue
        # Ascending, a row can be taken again and again; descending, once.
        rooms = range(row.width, num_places + 1) if row.is_shared else range(num_places, row.width - 1, -1)
        for room in rooms:
            value = best[room - row.width] + price
            if value > best[room]:
                best[room] = value
                chains.append((number, heads[room - row.width]))
                heads[room] = len(chains) - 1
    column: dict[int, int] = {}
    link = heads[num_places]
    while link >= 0:
        number, link = chains[link]
        column[number] = column.get(number, 0) + 1
    return best[num_places], column


def _pivot(inverse: list[list[float]], amounts: list[float], direction: list[float], leaving: int) -> None:
    """Exchange the basis column of row `leaving` for the one whose image is `direction`, in place."""
    pivot = direction[leaving]
    inverse[leaving] = [entry / pivot for entry in inverse[leaving]]
    amounts[leaving] /= pivot
    for i, factor in enumerate(direction):
        if i != leaving and factor != 0.0:
            inverse[i] = [a - factor * b for a, b in zip(inverse[i], inverse[leaving], strict=True)]
            amounts[i] -= factor * amounts[leaving]
