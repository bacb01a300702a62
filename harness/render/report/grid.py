"""Grid of the values that differ between two traces: rows of values, columns of steps, a limited number of cells.

    each step of both ─▶ opened ─▶ pairs of values, those that differ ─▶ counted by cell, the first of each cell kept

A row is all of a phase and name, whatever its occurrences and ranks. Beyond MAX_ROWS neighbouring values of a phase
share a row; where the cells would still be too many, neighbouring steps share a column.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from math import ceil
from operator import ne
from struct import iter_unpack

from harness.bits.digests import DIGEST_BYTES
from harness.trace.chain import PHASES, Key, RecordedValue, Scope
from harness.trace.format import Columns
from harness.trace.global_values import paired_global_values, shard_sums
from harness.trace.reader import Trace
from harness.trace.verdict import Difference

MAX_CELLS = 100_000
MAX_ROWS = 1_000
SHOWN = frozenset((Scope.LOGICAL, Scope.SHARD, Scope.PHYSICAL))
"""Scopes that have rows; the states of random-number generators explain, and may differ in runs that agree."""
NUM_LAYOUTS = 4
"""So many lists of leaves are remembered: a step mostly has those of the step before."""
RowKey = tuple[str, str, bool]
"""Phase, name, whether it is a rank's or micro-batch's part."""


@dataclass(frozen=True, slots=True)
class First:
    """The first difference of a cell."""

    step: int
    rank: int | None
    """None where wholes were merged over ranks."""
    what: Difference
    a: RecordedValue | None
    """All but its digest; None where A has none."""
    b: RecordedValue | None
    digest_a: bytes
    """16 bytes; empty where A has none."""
    digest_b: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """Leaves that share a row, in the order in which they were recorded."""

    phase: str
    names: tuple[str, ...]
    is_part: bool
    """Whether they belong to one rank or microbatch, which does not affect the verdict."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Differences by value and step. A cell is row times the number of columns, plus column."""

    rows: tuple[Row, ...]
    columns: tuple[tuple[int, ...], ...]
    """The steps of each."""
    num_pairs: Counter[int]
    """Number of values by cell that one or both traces have, in steps that both have."""
    num_different: Counter[int]
    """Number of these that differ, by cell."""
    firsts: dict[int, First] = field(default_factory=dict)
    only_in_a: tuple[int, ...] = ()
    """Steps that B does not have."""
    only_in_b: tuple[int, ...] = ()

    @property
    def num_values(self) -> int:
        """Before neighbours were put together."""
        return sum(len(row.names) for row in self.rows)


def difference_grid(a: Trace, b: Trace, max_cells: int = MAX_CELLS, *, only: int | None = None) -> Grid:
    """The grid of two traces, or of one step of them; TraceError where a log holds frames that are whole and wrong."""
    steps_a, steps_b = set(a.steps), set(b.steps)
    steps = sorted(steps_a | steps_b) if only is None else [only]
    most = max((log.heads[step].num_values for log in a.ranks.values() for step in log.heads), default=1)
    columns = _bins(steps, max_cells // max(1, min(most, MAX_ROWS)))
    cells = _Cells(len(columns))
    for column, members in enumerate(columns):
        for step in members:
            if step in steps_a and step in steps_b:
                _add_step(cells, column, a, b, step)
    only_in_a, only_in_b = (tuple(sorted(each)) for each in (steps_a - steps_b, steps_b - steps_a))
    return cells.folded(columns, max_cells, only_in_a, only_in_b)


def _bins(steps: Sequence[int], num: int) -> list[tuple[int, ...]]:
    """Neighbours together, in at most `num` bins of as many each."""
    size = max(1, ceil(len(steps) / max(1, num)))
    return [tuple(steps[start : start + size]) for start in range(0, len(steps), size)]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The leaves of a step by their index, digests apart, and the row of each; -1 for one that has none."""

    columns: Columns
    values: tuple[RecordedValue, ...]
    rows: tuple[int, ...]


class _Cells:
    """What the steps seen so far have shown, a row for each key; rows are numbered as they turn up."""

    def __init__(self, num_columns: int) -> None:
        self.num_columns = num_columns
        self.row_of: dict[RowKey, int] = {}
        self.num_pairs: Counter[int] = Counter()
        self.num_different: Counter[int] = Counter()
        self.firsts: dict[int, First] = {}
        self._layouts: list[_Layout] = []
        self._seen: Counter[tuple[int, int]] = Counter()
        """How many steps of a column had a layout, by the layout's id and the column."""
        self._kept: dict[int, _Layout] = {}

    def row(self, value: RecordedValue) -> int:
        """The row of a leaf; a new one for a new key, -1 for a scope that has none."""
        if value.scope not in SHOWN:
            return -1
        return self.row_of.setdefault((value.phase, value.name, value.scope is Scope.PHYSICAL), len(self.row_of))

    def layout(self, columns: Columns) -> _Layout:
        """The leaves of a step; decoded only where they are not those of a step before."""
        for at, known in enumerate(self._layouts):
            if columns.has_values_of(known.columns):
                self._layouts.insert(0, self._layouts.pop(at))
                return known
        values = tuple(columns.values())
        made = _Layout(columns, values, tuple(map(self.row, values)))
        self._layouts = [made, *self._layouts[: NUM_LAYOUTS - 1]]
        return made

    def add_alike(self, layout: _Layout, column: int) -> None:
        """A step of a rank whose two lists of leaves are this one; counted at the end, once for all of its kind."""
        self._kept[id(layout)] = layout
        self._seen[id(layout), column] += 1

    def add_difference(self, row: int, column: int, first: First) -> None:
        """A pair of leaves that differs."""
        cell = row * self.num_columns + column
        self.num_different[cell] += 1
        self.firsts.setdefault(cell, first)

    def add_values(
        self,
        layout: _Layout,
        column: int,
        indices: Sequence[int],
        both: tuple[Columns, Columns],
        place: tuple[int, int | None],
    ) -> None:
        """Leaves of one layout whose values differ: `place` is step and rank. A million a second."""
        touched = [layout.rows[index] * self.num_columns + column for index in indices]
        self.num_different.update(touched)
        for index, cell in zip(indices, touched, strict=True):
            if cell not in self.firsts:
                value, at = layout.values[index], index * DIGEST_BYTES
                digests = [each.digests[at : at + DIGEST_BYTES] for each in both]
                self.firsts[cell] = First(*place, Difference.VALUE, value, value, *digests)

    def folded(
        self, columns: Sequence[tuple[int, ...]], max_cells: int, only_in_a: tuple[int, ...], only_in_b: tuple[int, ...]
    ) -> Grid:
        """The grid: rows by phase, neighbours put together where there are too many."""
        for (which, column), num_steps in self._seen.items():
            for row in self._kept[which].rows:
                if row >= 0:
                    self.num_pairs[row * self.num_columns + column] += num_steps
        rows, row_of = _grouped(list(self.row_of))
        size = max(1, ceil(len(columns) / max(1, max_cells // max(1, len(rows)))))
        wide = [sum(columns[start : start + size], ()) for start in range(0, len(columns), size)]

        def place(cell: int) -> int:
            row, column = divmod(cell, self.num_columns)
            return row_of[row] * len(wide) + column // size

        grid = Grid(tuple(rows), tuple(wide), Counter(), Counter(), {}, only_in_a, only_in_b)
        for mine, theirs in ((self.num_pairs, grid.num_pairs), (self.num_different, grid.num_different)):
            for cell, num in mine.items():
                theirs[place(cell)] += num
        for cell, first in sorted(self.firsts.items()):
            known = grid.firsts.setdefault(place(cell), first)
            if first.step < known.step:
                grid.firsts[place(cell)] = first
        return grid


def _grouped(keys: Sequence[RowKey]) -> tuple[list[Row], dict[int, int]]:
    """(the rows by phase, the row of each key by its number); neighbours of a phase share one beyond MAX_ROWS."""
    known = {phase: at for at, phase in enumerate(PHASES)}
    order = sorted(range(len(keys)), key=lambda at: (known.get(keys[at][0], len(known)), keys[at][0], keys[at][2]))
    size = max(1, ceil(len(keys) / MAX_ROWS))
    rows: list[Row] = []
    row_of: dict[int, int] = {}
    for at in order:
        phase, name, is_part = keys[at]
        last = rows[-1] if rows else None
        if last and (last.phase, last.is_part) == (phase, is_part) and len(last.names) < size:
            rows[-1] = Row(phase, (*last.names, name), is_part)
        else:
            rows.append(Row(phase, (name,), is_part))
        row_of[at] = len(rows) - 1
    return rows, row_of


# -------------------------------------------------------------------------------------------------------------- a step


def _add_step(cells: _Cells, column: int, a: Trace, b: Trace, step: int) -> None:
    if a.ranks.keys() != b.ranks.keys():
        global_values_ = paired_global_values(a, b, step)
        _add_unlike(cells, column, step, None, (_by_key(global_values_.a), _by_key(global_values_.b)))
        return
    alike = _alike_sums(a, b, step)
    for rank in a.logs(step).keys() & b.logs(step).keys():
        one, other = a.columns(step, rank), b.columns(step, rank)
        layout = cells.layout(one)
        if not other.has_values_of(layout.columns):
            of_a, of_b = (_by_key(each.values(), alike) for each in (one, other))
            _add_unlike(cells, column, step, rank, (of_a, of_b))
            continue
        found = [index for index in _different(one.digests, other.digests) if layout.rows[index] >= 0]
        if alike:
            values = layout.values
            found = [at for at in found if values[at].scope is not Scope.SHARD or values[at].key not in alike]
        cells.add_alike(layout, column)
        cells.add_values(layout, column, found, (one, other), (step, rank))


def _alike_sums(a: Trace, b: Trace, step: int) -> set[Key]:
    """Keys whose shards add up to the same whole: cut otherwise over the ranks, they do not differ."""
    if not any(log.heads[step].num_shards for log in a.logs(step).values()):
        return set()
    sums_a, sums_b = shard_sums(a, step), shard_sums(b, step)
    return {key for key, (total, _) in sums_a.items() if key in sums_b and sums_b[key][0] == total}


def _by_key(values: Sequence[RecordedValue], alike: Collection[Key] = ()) -> dict[tuple[Scope, Key], RecordedValue]:
    shown = (value for value in values if value.scope in SHOWN)
    return {
        (value.scope, value.key): value for value in shown if not (value.scope is Scope.SHARD and value.key in alike)
    }


def _add_unlike(
    cells: _Cells,
    column: int,
    step: int,
    rank: int | None,
    values: tuple[dict[tuple[Scope, Key], RecordedValue], dict[tuple[Scope, Key], RecordedValue]],
) -> None:
    """A step whose leaves need not be the same ones."""
    of_a, of_b = values
    for key in dict.fromkeys([*of_a, *of_b]):
        x, y = of_a.get(key), of_b.get(key)
        either = x or y
        assert either is not None
        row = cells.row(either)
        cells.num_pairs[row * cells.num_columns + column] += 1
        if (what := _difference(x, y)) is not None:
            digests = (x.digest if x else b"", y.digest if y else b"")
            cells.add_difference(row, column, First(step, rank, what, x, y, *digests))


def _difference(a: RecordedValue | None, b: RecordedValue | None) -> Difference | None:
    """Return the kind of difference; None also for digests of different algorithms."""
    if a is None or b is None:
        return Difference.VALUE_ONLY_IN_B if a is None else Difference.VALUE_ONLY_IN_A
    if a.dtype != b.dtype:
        return Difference.DTYPE
    if a.shape != b.shape:
        return Difference.SHAPE
    return Difference.VALUE if a.algorithm == b.algorithm and a.digest != b.digest else None


def _different(a: bytes, b: bytes) -> Iterator[int]:
    """The indices of digests that are not the same, in order."""
    if a == b:
        return iter(())
    unit = f"{DIGEST_BYTES}s"
    return compress(count(), map(ne, iter_unpack(unit, a), iter_unpack(unit, b)))
