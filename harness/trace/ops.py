"""The operations of one step as they were recorded, and the first one that differs between two records. No torch.

    ops/rank-0-step-7.jsonl:   {"k": "head", ...}  {"k": "op", ...} ...  {"k": "end", ...}

The order is that in which operations began. Two records are walked side by side: an operation differs in what is
called, in what it reads, or in what it gives. A value that was not read, such as uninitialized memory, is equal
to anything.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import Any

from harness.bits.digests import RAW
from harness.bits.errors import TraceError
from harness.bits.files import MALFORMED, read_text
from harness.bits.findings import Finding
from harness.trace.reasons import VerdictCode
from harness.trace.values import FLOATS, Float

OPS = "ops"
MAX_BYTES = 1 << 30
"""Limit on one record; a step of 100,000 operations has about 60 MB."""
VERSION = 2
UNREAD = "none"
"""In place of an algorithm."""
NUMBER = "value"
"""In place of an algorithm, of a number that is no tensor."""
NAN, INF = "nan", "inf"
OUTSIDE = -1
_REAL = {"complex64": "f32", "complex128": "f64"}
"""Of what a complex number consists."""
_PLACES = ("strides=", "offset=")
"""What of a layout belongs to the call: which part of its memory a tensor is."""


def ops_name(rank: int, step: int) -> str:
    """The file of one rank's operations of a step, in the directory OPS."""
    return f"rank-{rank}-step-{step}.jsonl"


@dataclass(frozen=True, slots=True)
class OpValue:
    """A tensor that an operation read or gave, or a number that it gave."""

    dtype: str
    shape: str
    """Its sizes, joined by commas."""
    algorithm: str
    """Algorithm of the digest; UNREAD for none, NUMBER for a number."""
    digest: str
    """In hexadecimal digits; the number; why it was not read."""
    layout: tuple[str, ...] = ()
    """Properties beyond dtype and shape: "strides=1,4", "align=16", "conj"; NAN and INF of what is not all finite."""

    @property
    def kind(self) -> tuple[str, ...]:
        """What is part of the call, not of the value; how its address is aligned is part of neither."""
        return self.dtype, self.shape, *[word for word in self.layout if word.startswith(_PLACES)]

    @property
    def not_finite(self) -> frozenset[str]:
        """What it holds beside finite numbers, of NAN and INF; nothing of what was not read, or is no float."""
        if self.algorithm == NUMBER:
            return _words(_parts(self.dtype, self.digest))
        if self.algorithm == RAW and (kind := FLOATS.get(_REAL.get(self.dtype, self.dtype))):
            data, size = bytes.fromhex(self.digest), kind.num_bytes
            dtype = _REAL.get(self.dtype, self.dtype)
            bits = [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]
            return _words([Float(dtype, each).value() for each in bits])
        return frozenset(self.layout) & {NAN, INF}

    def equals(self, other: "OpValue") -> bool | None:
        """Whether the values are the same; None where that is not known."""
        if self.kind != other.kind:
            return False
        if self.algorithm != other.algorithm or self.algorithm == UNREAD:
            return None
        return self.digest == other.digest


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a step."""

    index: int
    phase: str
    """forward, backward or optimizer."""
    name: str
    """Torch's name: "aten.addmm.default"."""
    at: str
    """The user's source line: "train.py:41 forward"; in backward that of the forward operation; "engine" for none."""
    via: str
    """The innermost line outside torch where that is a package's, or the autograd node."""
    arguments: str
    """Those that are no tensors."""
    inputs: tuple[OpValue, ...]
    makers: tuple[int, ...]
    """Last writer of each input; OUTSIDE for one that was not recorded."""
    random: str
    """The state of the generator it drew from; empty where it drew from none."""
    outputs: tuple[OpValue, ...]


@dataclass(frozen=True, slots=True)
class OpRecord:
    """The operations of one step of one rank, in the order in which they began."""

    path: Path
    operations: tuple[Operation, ...]
    problem: str
    """Why it is incomplete; empty if it is complete."""


FROM_PYTHON = "aten.lift_fresh."
"""Beginning of the operation through which Python and NumPy values become tensors."""


class OpDifference(Enum):
    """In what an operation differs, first match."""

    ONLY_IN_A = "only_in_a"
    ONLY_IN_B = "only_in_b"
    OTHER_OPERATION = "other_operation"
    OTHER_ARGUMENTS = "other_arguments"
    """The same operation with other arguments, or with tensors of other shapes, dtypes or strides."""
    INPUT = "input"
    RANDOM_STATE = "random_state"
    OUTPUT = "output"
    """Out of equal inputs it has made other outputs."""


@dataclass(frozen=True, slots=True)
class OpDivergence:
    """The first operation that differs."""

    what: OpDifference
    a: Operation | None
    b: Operation | None
    inputs_equal: tuple[bool | None, ...] = ()
    """Whether each input is equal; None where that is not known."""
    outputs_equal: tuple[bool | None, ...] = ()
    last_equal: Operation | None = None
    """The operation before it."""
    makers: tuple[Operation | None, ...] = ()
    """Writer in A of each input that differs; None for a value from outside."""


@dataclass(frozen=True, slots=True)
class OpVerdict:
    """Result of comparing two records of one step."""

    rank: int
    step: int
    num_a: int
    num_b: int
    first: OpDivergence | None
    made: OpDivergence | None = None
    """The first one that makes other outputs out of equal inputs, where `first` only reads something else."""
    problems: tuple[str, ...] = ()
    """Why a record is incomplete: it is compared as far as it goes."""


def read_ops(directory: Path, rank: int, step: int) -> OpRecord | None:
    """The operations of a step from the directory of a trace; None where none were recorded.

    A line that is cut is skipped, with all that follows. TraceError for a newer version, and for lines that are whole
    and wrong.
    """
    path = directory / OPS / ops_name(rank, step)
    try:
        text = read_text(path, max_bytes=MAX_BYTES, errors="replace", follows_links=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    operations: list[Operation] = []
    problem = "its recording was cut"
    try:
        for line in _complete_lines(text):
            if line["k"] == "head" and line["version"] != VERSION:
                raise TraceError(f"{path} has version {line['version']}", legal=f"{VERSION}")
            if line["k"] == "op":
                operations.append(_operation(line))
            elif line["k"] == "end":
                problem = line["problem"]
    except MALFORMED as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{path} is not a record of operations", remedy="record the step again") from None
    return OpRecord(path, tuple(sorted(operations, key=lambda each: each.index)), problem)


def recorded_steps(directory: Path) -> list[tuple[int, int]]:
    """(rank, step) of every record of operations in the directory of a trace."""
    found = []
    for path in sorted((directory / OPS).glob("rank-*-step-*.jsonl")):
        words = path.stem.split("-")
        if len(words) == 4 and words[1].isdecimal() and words[3].isdecimal():
            found.append((int(words[1]), int(words[3])))
    return found


def ops_of_divergence(a: Path, b: Path, step: int, numbers: Mapping[int, int] | None = None) -> OpVerdict | None:
    """The operations of a step in the directories of two traces: of the first rank whose records differ.

    Of the lowest rank where none does; None where no rank has a record in both. `numbers` are those of B by A's rank,
    where it has others.
    """
    numbers = numbers or {}
    ranks_a, ranks_b = ({rank for rank, found in recorded_steps(each) if found == step} for each in (a, b))
    found = None
    for rank in sorted(rank for rank in ranks_a if numbers.get(rank, rank) in ranks_b):
        left, right = read_ops(a, rank, step), read_ops(b, numbers.get(rank, rank), step)
        if left is not None and right is not None:
            verdict = compare_ops(left, right, rank, step)
            if verdict.first is not None:
                return verdict
            found = found or verdict
    return found


def ops_of_other_steps(a: Path, b: Path, step: int) -> list[Finding]:
    """Return a note if operations were recorded in both traces, but not of this step."""
    steps_a, steps_b = ({found for _, found in recorded_steps(each)} for each in (a, b))
    if step in steps_a & steps_b or not steps_a & steps_b:
        return []
    return [VerdictCode.OPERATIONS_OF_OTHER_STEPS(steps=tuple(sorted(steps_a & steps_b)), first_step=step)]


def is_faithful(root_with: bytes, root_without: bytes) -> bool:
    """Whether a step came out with its operations recorded as it does without: else they are those of another step."""
    return root_with == root_without


def compare_ops(a: OpRecord, b: OpRecord, rank: int, step: int) -> OpVerdict:
    """The first operation that differs between two records of one step."""
    first = made = last_equal = None
    num_global = min([len(each.operations) for each in (a, b) if each.problem], default=None)
    pairs = list(zip_longest(a.operations, b.operations))[:num_global]
    for left, right in pairs:
        found = _compare(left, right)
        if found is None:
            last_equal = left if first is None else last_equal
            continue
        if first is None:
            first = replace(found, last_equal=last_equal, makers=_makers(found, a))
        elif found.what is OpDifference.OUTPUT:
            made = found
        if found.what not in (OpDifference.INPUT, OpDifference.RANDOM_STATE):
            break  # the culprit, or operations that are not the same from here on
    problems = tuple(f"{name}: {each.problem}" for name, each in (("A", a), ("B", b)) if each.problem)
    return OpVerdict(rank, step, len(a.operations), len(b.operations), first, made, problems)


def _compare(a: Operation | None, b: Operation | None) -> OpDivergence | None:
    """In what two operations at one place differ; None where they are alike."""
    if a is None or b is None:
        return OpDivergence(OpDifference.ONLY_IN_B if a is None else OpDifference.ONLY_IN_A, a, b)
    if (a.phase, a.name) != (b.phase, b.name):
        return OpDivergence(OpDifference.OTHER_OPERATION, a, b)
    inputs = tuple(x.equals(y) for x, y in zip(a.inputs, b.inputs, strict=False))
    outputs = tuple(x.equals(y) for x, y in zip(a.outputs, b.outputs, strict=False))
    if a.arguments != b.arguments or [x.kind for x in a.inputs] != [x.kind for x in b.inputs]:
        what = OpDifference.OTHER_ARGUMENTS
    elif False in inputs:
        what = OpDifference.INPUT
    elif a.random != b.random:
        what = OpDifference.RANDOM_STATE
    elif False in outputs or len(a.outputs) != len(b.outputs):
        what = OpDifference.OUTPUT
    else:
        return None
    return OpDivergence(what, a, b, inputs, outputs)


def _makers(found: OpDivergence, record: OpRecord) -> tuple[Operation | None, ...]:
    """For each input that differs, who wrote it."""
    if found.a is None:
        return ()
    by_index = {each.index: each for each in record.operations}
    unequal = [maker for maker, equal in zip(found.a.makers, found.inputs_equal, strict=False) if equal is False]
    return tuple(by_index.get(maker) for maker in unequal)


def _complete_lines(text: str) -> Iterator[dict[str, Any]]:
    """Each line as it was written; what follows the last line break was cut."""
    for line in text.split("\n")[:-1]:
        yield json.loads(line)


def _operation(line: dict[str, Any]) -> Operation:
    return Operation(
        index=int(line["i"]),
        phase=str(line["phase"]),
        name=str(line["op"]),
        at=str(line["at"]),
        via=str(line.get("via", "")),
        arguments=str(line["args"]),
        inputs=tuple(map(_value, line["in"])),
        makers=tuple(map(int, line["from"])),
        random=str(line.get("random", "")),
        outputs=tuple(map(_value, line["out"])),
    )


def _parts(kind: str, number: str) -> tuple[float, ...]:
    """The floats that a number consists of, from its text: of an integer none."""
    if kind == "complex":
        value = complex(number)
        return value.real, value.imag
    return (float.fromhex(number),) if kind == "float" else ()


def _words(values: Iterable[float]) -> frozenset[str]:
    """Which of NAN and INF are among these."""
    return frozenset(NAN if math.isnan(value) else INF for value in values if not math.isfinite(value))


def _value(text: str) -> OpValue:
    dtype, shape, algorithm, digest, *layout = text.split(" ")
    return OpValue(dtype, shape, algorithm, digest, tuple(layout))
