"""Effects of a divergence on a whole run: floats only, or tokens, rewards and signs of advantages too. Pure.

The effects follow from the recorded values of rollouts, rewards and advantages, over all steps of both traces. Values
with equal digests are equal. The others are compared if both traces have them, as raw values or as kept tensors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, prod

from harness.bits.digests import DIGEST_BYTES
from harness.trace.chain import Key, RecordedValue, Scope
from harness.trace.element_diff import compare, numbers
from harness.trace.format import Columns
from harness.trace.reader import Trace
from harness.trace.values import ELEMENT_BYTES, FLOATS
from harness.trace.verdict import ADVANTAGE_SIGNS, BATCHES, INTEGERS, REWARDS, TOKENS, Count, Element

NO_TOKENS = ("mask", "position")
"""Integers of a rollout are tokens, [sequences, positions], but for batches and values with such a word in the name."""
BATCH = "batch"
"""Name of a DataLoader's batch, and prefix of its parts: the program read these values and did not generate them."""
TEXTS = ("text", "texts", "bytes")
DIGEST = "digest"
"""Part of the names of texts that describe other values, perhaps floats; such a text is not counted."""
PHASES = ("rollout", "reward", "advantage")


def attribute(a: Trace, b: Trace) -> Mapping[str, Count]:
    """Return counts by kind, as the verdict names them; kinds without recorded values are absent.

    TraceError where a file of kept tensors cannot be read.
    """
    counts: dict[str, Count] = {}
    steps_b, finder = set(b.steps), _Finder()
    is_by_rank = a.ranks.keys() == b.ranks.keys()
    for step in (step for step in a.steps if step in steps_b):
        found_a, found_b = (finder.all_of(one, step, other if is_by_rank else None) for one, other in ((a, b), (b, a)))
        told: set[Key] = set()
        for where in dict.fromkeys([*found_a, *found_b]):
            one, other = found_a.get(where), found_b.get(where)
            _, scope, key = where
            if scope is Scope.LOGICAL and key in told and _is_alike(one, other):
                continue  # a whole that a lower rank has had already
            told.add(key)
            _count(counts, step, (a, one), (b, other))
    return counts


@dataclass(frozen=True, slots=True)
class _Found:
    """One leaf that counts, not decoded."""

    kind: str
    rank: int
    columns: Columns
    index: int
    template: RecordedValue
    """The leaf, of another step perhaps: all but its digest."""

    @property
    def digest(self) -> bytes:
        return self.columns.digests[self.index * DIGEST_BYTES : (self.index + 1) * DIGEST_BYTES]

    @property
    def value(self) -> RecordedValue:
        each = self.template
        return RecordedValue(*each.key, each.dtype, each.shape, each.algorithm, self.digest, each.scope)


class _Finder:
    """Finder of the values that count, step by step; it searches steps with the same values once."""

    def __init__(self) -> None:
        self._last: dict[int, Columns] = {}
        """By rank: of the step before, or of the other trace."""
        self._found: dict[int, list[tuple[str, int, RecordedValue]]] = {}

    def all_of(self, trace: Trace, step: int, counterpart: Trace | None) -> dict[tuple[int, Scope, Key], _Found]:
        """Return them by rank, scope and key, of ranks that have the step in both traces.

        `counterpart` is the other trace if it has the same ranks. Without it, global values are keyed by rank 0, and by
        their own rank if it disagrees with the lowest.
        """
        found: dict[tuple[int, Scope, Key], _Found] = {}
        ranks = trace.logs(step) if counterpart is None else trace.logs(step).keys() & counterpart.logs(step).keys()
        for rank in sorted(ranks):
            columns = trace.columns(step, rank)
            for kind, index, value in self._chosen(rank, columns):
                if counterpart is not None or value.scope is Scope.LOGICAL:
                    each = _Found(kind, rank, columns, index, value)
                    lowest = found.setdefault((0 if counterpart is None else rank, value.scope, value.key), each)
                    if not _is_alike(lowest, each):
                        found[rank, value.scope, value.key] = each
        return found

    def _chosen(self, rank: int, columns: Columns) -> list[tuple[str, int, RecordedValue]]:
        last = self._last.get(rank)
        if last is None or not columns.has_values_of(last):
            found = list(_counted_values(columns))
            global_values_ = {kind for kind, _, value in found if value.scope is Scope.LOGICAL}
            self._found[rank] = [
                each for each in found if each[2].scope is Scope.LOGICAL or each[0] not in global_values_
            ]
        self._last[rank] = columns
        return self._found[rank]


def _counted_values(columns: Columns) -> Iterator[tuple[str, int, RecordedValue]]:
    """(kind, index, leaf); shards are left out, whose elements have no place that people know."""
    for index, value in columns.of_phases(PHASES):
        if value.scope in (Scope.LOGICAL, Scope.PHYSICAL) and (kind := kind_of(value)):
            yield kind, index, value


def kind_of(value: RecordedValue) -> str:
    """Return the kind that a value of PHASES counts as; empty if it is not counted."""
    if value.phase == "rollout":
        is_integer = value.dtype in ELEMENT_BYTES and value.dtype not in FLOATS and value.dtype != "bool"
        if value.name == BATCH or value.name.startswith(f"{BATCH}."):
            return BATCHES if is_integer or value.dtype in TEXTS else ""
        if value.dtype in TEXTS or (is_integer and len(value.shape) < 2):
            return "" if DIGEST in value.name.lower() else INTEGERS
        return TOKENS if is_integer and not any(word in value.name.lower() for word in NO_TOKENS) else ""
    return REWARDS if value.phase == "reward" else ADVANTAGE_SIGNS


def _is_alike(one: _Found | None, other: _Found | None) -> bool:
    return one is not None and other is not None and one.value == other.value


def _count(counts: dict[str, Count], step: int, a: tuple[Trace, _Found | None], b: tuple[Trace, _Found | None]) -> None:
    (trace_a, one), (trace_b, other) = a, b
    either = one or other
    assert either is not None
    count = counts.setdefault(either.kind, Count())
    value = either.template
    num_elements = 0 if value.dtype in TEXTS else prod(value.shape)
    element = None
    if _is_alike(one, other):
        count.num_compared += num_elements
        return
    if one is None or other is None or (value.dtype, value.shape) != (other.template.dtype, other.template.shape):
        count.num_unknown += 1
    else:
        x = trace_a.tensor(step, one.rank, one.value)
        y = trace_b.tensor(step, other.rank, other.value)
        if x is None or y is None or len(x) != len(y) or value.dtype not in ELEMENT_BYTES:
            count.num_unknown += 1
        else:
            count.num_compared += num_elements
            num_different, element = _changed(either.kind, value.dtype, x, y)
            count.num_different += num_different
            if not num_different:
                return
    if count.first is None:
        count.first = Element(step, either.rank, value.name, value.shape, element)


def _changed(kind: str, dtype: str, a: bytes, b: bytes) -> tuple[int, int | None]:
    """(how many elements changed, the first of them)."""
    if kind == ADVANTAGE_SIGNS:
        changed = [at for at, (x, y) in enumerate(zip(_signs(dtype, a), _signs(dtype, b), strict=True)) if x != y]
        return len(changed), changed[0] if changed else None
    found = compare(dtype, a, b)
    return (found.num_different, found.first) if found else (0, None)


def _signs(dtype: str, data: bytes) -> Sequence[int | None]:
    """1, 0 or -1 for each element; None for NaN."""
    return [None if isnan(x) else (x > 0) - (x < 0) for x in numbers(dtype, data)]
