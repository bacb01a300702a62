"""Operations of a step as text or JSON: the first that differs, and the first NaN."""

from collections.abc import Iterator, Sequence

from harness.bits.digests import RAW
from harness.bits.text import count, one_line
from harness.render.console import at_most
from harness.trace.ops import (
    FROM_PYTHON,
    INF,
    NAN,
    NonFinite,
    OpDifference,
    OpDivergence,
    Operation,
    OpValue,
    OpVerdict,
    has_deterministic_kernel,
)
from harness.trace.values import compare

MAX_CHARS = 90
MAX_VALUES = 6
"""Maximum number of inputs or outputs of an operation that are shown."""
MAX_SUSPECTS = 8
SHOWN = {NAN: "NaN", INF: "Inf"}
VALIDITY = "valid only if this recording does not change the step; rlharness replay --step K --trace-ops checks that"
FROM_OUTSIDE = (
    "no recorded operation wrote the differing value: it existed before the step, or NumPy or compiled code wrote it"
)
TAKEN_MEMORY = "aten.set_.source_Storage"
"""With it a tensor takes memory that is there already: that of a batch which a worker process has filled."""
FROM_WORKER = (
    "it takes memory that another process filled, as a DataLoader worker does: look at __getitem__ and its seeds"
)
PYTHON_INPUT = "its input comes from Python or NumPy and already differs"
PHRASES = {
    OpDifference.ONLY_IN_A: "exists only in A",
    OpDifference.ONLY_IN_B: "exists only in B",
    OpDifference.OTHER_OPERATION: "B runs a different operation here",
    OpDifference.OTHER_ARGUMENTS: "its arguments differ",
    OpDifference.INPUT: "its inputs differ",
    OpDifference.RANDOM_STATE: "the states of its random-number generator differ",
    OpDifference.OUTPUT: "inputs are identical, outputs differ",
}


def operations_text(verdict: OpVerdict) -> list[str]:
    """The lines below the verdict on two traces."""
    equal = "" if verdict.first else ", none differs"
    return [
        f"  operations of step {verdict.step}, rank {verdict.rank}: A {verdict.num_a:,}, B {verdict.num_b:,}{equal}",
        *(f"    {each}" for each in _lines(verdict)),
        *(f"    note: {one_line(problem)}" for problem in verdict.problems),
        f"    {VALIDITY}",
    ]


def _lines(verdict: OpVerdict) -> Iterator[str]:
    if verdict.first is not None:
        yield from _divergence("first operation that differs", verdict.first)
    if verdict.made is not None:
        yield from _divergence("first operation with identical inputs and different outputs", verdict.made)
    if verdict.first is not None and verdict.first.last_equal is not None:
        yield f"last equal operation: {named(verdict.first.last_equal)}"


def _divergence(title: str, place: OpDivergence) -> Iterator[str]:
    operation = place.a or place.b
    assert operation is not None
    yield f"{title}: {named(operation)}"
    is_entrance = place.what is OpDifference.INPUT and operation.name.startswith(FROM_PYTHON)
    is_taken = place.what is OpDifference.OUTPUT and operation.name.startswith(TAKEN_MEMORY)
    yield f"  {PYTHON_INPUT if is_entrance else FROM_WORKER if is_taken else PHRASES[place.what]}"
    if place.a is None or place.b is None:
        return
    if place.what is OpDifference.OTHER_OPERATION:
        yield f"  B: {named(place.b)}"
        return
    if place.a.at != place.b.at:
        yield f"  in B called from {one_line(place.b.at, MAX_CHARS)}"
    if place.what is OpDifference.OTHER_ARGUMENTS:
        yield f"  A: {_call(place.a)}"
        yield f"  B: {_call(place.b)}"
        return
    yield from _values("inputs", place.a.inputs, place.b.inputs, place.inputs_equal)
    if is_entrance:
        return
    yield from _values("outputs", place.a.outputs, place.b.outputs, place.outputs_equal)
    for maker in place.makers:
        yield f"  the differing value was written by {named(maker)}" if maker else f"  {FROM_OUTSIDE}"


def suspect_lines(step: int, suspects: Sequence[Operation]) -> Iterator[str]:
    """Yield the operations that may be the cause of an intermittent difference, and what a level does about them."""
    if not suspects:
        yield f"torch documents none of the operations of step {step} as nondeterministic: look at threads and timing"
        return
    yield f"torch documents these operations of step {step} as nondeterministic:"
    lines = [
        named(op) + ("" if has_deterministic_kernel(op) else "; without a deterministic kernel") for op in suspects
    ]
    yield from (f"  {line}" for line in at_most(lines, MAX_SUSPECTS))
    if any(map(has_deterministic_kernel, suspects)):
        yield "--level deterministic uses deterministic kernels where torch has them"


def named(operation: Operation) -> str:
    """backward aten.index_put.default (#57), train.py:41 forward."""
    via = f", in {one_line(operation.via, MAX_CHARS)}" if operation.via else ""
    where = f"{one_line(operation.at, MAX_CHARS)}{via}"
    return f"{one_line(operation.phase)} {one_line(operation.name, MAX_CHARS)} (#{operation.index}), {where}"


def _values(
    title: str, a: tuple[OpValue, ...], b: tuple[OpValue, ...], equal: tuple[bool | None, ...]
) -> Iterator[str]:
    """Which of the inputs or outputs are equal, and the digests of those that are not."""
    if not equal:
        return
    if False not in equal:
        yield f"  {title}: {'none that was read differs' if None in equal else 'equal'}"
        return
    different = [place for place, same in enumerate(equal) if same is False]
    yield f"  {title}: {len(different)} of {len(equal)} {'differs' if len(different) == 1 else 'differ'}"
    for place in different[:MAX_VALUES]:
        x, y = a[place], b[place]
        texts, distance = (f"{x.algorithm} {x.digest}", f"{y.algorithm} {y.digest}"), ""
        is_known = x.algorithm == y.algorithm == RAW and x.dtype == y.dtype
        if is_known and (found := compare(x.dtype, bytes.fromhex(x.digest), bytes.fromhex(y.digest))):
            texts = found.a, found.b
            distance = "" if found.max_ulp is None else f"  {count(found.max_ulp, 'ulp', 'ulp')} apart"
        yield f"    {place + 1}: A {value_kind(x)}  {texts[0]}"
        yield f"    {place + 1}: B {value_kind(y)}  {texts[1]}{distance}"
    if (more := len(different) - MAX_VALUES) > 0:
        yield f"    and {more:,} more"


def value_kind(value: OpValue) -> str:
    """f32 [64, 128], with what of its strides and offset is not as usual."""
    strides = "".join(f" {word}" for word in value.kind[2:])
    return one_line(f"{value.dtype} [{value.shape.replace(',', ', ')}]{strides}", MAX_CHARS)


def _call(operation: Operation) -> str:
    kinds = "; ".join(value_kind(value) for value in operation.inputs[:MAX_VALUES])
    return one_line(f"({operation.arguments}) of {kinds or 'no tensor'}", 2 * MAX_CHARS)


def non_finite_lines(found: NonFinite) -> Iterator[str]:
    """Yield the operation that produced the first NaN or Inf, its inputs, and the origin of the Inf."""
    kind = SHOWN[found.kind]
    if found.made_by is None:
        assert found.read_by is not None
        yield f"first {kind}: it existed before the step, or NumPy or compiled code wrote it"
        yield f"  first read by {named(found.read_by)}"
        return
    if found.is_argument:
        yield "all numbers are finite, except those that arguments name"
        yield f"  first {kind}: an argument of {named(found.made_by)}"
        return
    yield f"first {kind}: produced by {named(found.made_by)}"
    yield from _inputs(found.made_by)
    if found.origin is not None:
        passed_on = f", passed on by {count(found.num_between, 'operation')}," if found.num_between else ""
        yield f"  from an Inf{passed_on} that was produced from finite numbers by {named(found.origin)}"
        yield from _inputs(found.origin)
    elif found.kind == NAN and any(INF in value.not_finite for value in found.made_by.inputs):
        yield "  from an Inf that existed before the step, or that NumPy or compiled code wrote"


def _inputs(operation: Operation) -> Iterator[str]:
    """Yield the inputs of an operation: dtypes, shapes, and whether they are finite."""
    words = [" and ".join(SHOWN[word] for word in sorted(value.not_finite)) for value in operation.inputs]
    found = [
        value_kind(value) + (f" with {word}" if word else "")
        for value, word in zip(operation.inputs, words, strict=True)
    ]
    yield f"    it read {'; '.join(at_most(found, MAX_VALUES)) or 'no tensor'}"
