"""Effects of a divergence on a whole run: floats only, or tokens, rewards and signs of advantages too. Pure.

The effects follow from the recorded values of rollouts, rewards and advantages, over all steps of both traces. Values
with equal digests are equal. The others are compared if both traces have them, as raw values or as kept tensors.
"""

from collections.abc import Mapping, Sequence
from math import isnan, prod

from harness.trace.chain import Key, RecordedValue, Scope
from harness.trace.element_diff import compare, numbers
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
RankValue = tuple[int, RecordedValue]


def attribute(a: Trace, b: Trace) -> Mapping[str, Count]:
    """Return counts by kind, as the verdict names them; kinds without recorded values are absent.

    TraceError where a file of kept tensors cannot be read.
    """
    counts: dict[str, Count] = {}
    steps_b = set(b.steps)
    is_by_rank = a.ranks.keys() == b.ranks.keys()
    for step in (step for step in a.steps if step in steps_b):
        found_a, found_b = (_counted(one, step, other if is_by_rank else None) for one, other in ((a, b), (b, a)))
        seen: set[Key] = set()
        for where in dict.fromkeys([*found_a, *found_b]):
            one, other = found_a.get(where), found_b.get(where)
            _, scope, key = where
            if scope is Scope.LOGICAL and key in seen and one and other and one[1] == other[1]:
                continue  # a global value that a lower rank has had already
            seen.add(key)
            _count(counts, step, (a, *(one or (0, None))), (b, *(other or (0, None))))
    return counts


def _counted(trace: Trace, step: int, counterpart: Trace | None) -> dict[tuple[int, Scope, Key], RankValue]:
    """Return the values that count by rank, scope and key, of ranks that have the step in both traces.

    `counterpart` is the other trace if it has the same ranks. Without it, global values are keyed by rank 0, and by
    their own rank if it disagrees with the lowest. Shards are left out, whose elements have no place that people know,
    and parts of a kind of which there are global values.
    """
    found: dict[tuple[int, Scope, Key], RankValue] = {}
    ranks = trace.logs(step) if counterpart is None else trace.logs(step).keys() & counterpart.logs(step).keys()
    for rank in sorted(ranks):
        values = [value for _, value in trace.columns(step, rank).of_phases(PHASES) if kind_of(value)]
        global_kinds = {kind_of(value) for value in values if value.scope is Scope.LOGICAL}
        for value in values:
            is_part = value.scope is Scope.PHYSICAL and kind_of(value) not in global_kinds and counterpart is not None
            if value.scope is Scope.LOGICAL or is_part:
                lowest = found.setdefault((0 if counterpart is None else rank, value.scope, value.key), (rank, value))
                if lowest[1] != value:
                    found[rank, value.scope, value.key] = rank, value
    return found


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


def _count(
    counts: dict[str, Count],
    step: int,
    a: tuple[Trace, int, RecordedValue | None],
    b: tuple[Trace, int, RecordedValue | None],
) -> None:
    (trace_a, rank_a, one), (trace_b, rank_b, other) = a, b
    value = one or other
    assert value is not None
    kind = kind_of(value)
    count = counts.setdefault(kind, Count())
    num_elements = 0 if value.dtype in TEXTS else prod(value.shape)
    element = None
    if one == other:
        count.num_compared += num_elements
        return
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        count.num_unknown += 1
    else:
        x, y = trace_a.tensor(step, rank_a, one), trace_b.tensor(step, rank_b, other)
        if x is None or y is None or len(x) != len(y) or value.dtype not in ELEMENT_BYTES:
            count.num_unknown += 1
        else:
            count.num_compared += num_elements
            num_different, element = _changed(kind, value.dtype, x, y)
            count.num_different += num_different
            if not num_different:
                return
    if count.first is None:
        count.first = Element(step, rank_a if one else rank_b, value.name, value.shape, element)


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
