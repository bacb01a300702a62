"""The operations of one step as they were recorded, and the first one that differs between two records. No torch.

    ops/rank-0-step-7.jsonl:   {"k": "head", ...}  {"k": "op", ...} ...  {"k": "end", ...}

The order is that in which operations began. Two records are walked side by side: an operation differs in what is
called, in what it reads, or in what it gives. A value that was not read, such as uninitialized memory, is equal
to anything.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import Any

from harness.bits.digests import RAW
from harness.bits.errors import TraceError
from harness.bits.files import MALFORMED, read_text
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
        for line in map(json.loads, text.split("\n")[:-1]):  # what follows the last line break was cut
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


# ----------------------------------------------------------------------------------- the first value that is not finite
# Origin of the first NaN of a step, by its record of operations. Pure, no torch.
#
#     exp ─Inf─▶ ... ─Inf─▶ sub ─NaN─▶ mean ─NaN─▶ ...
#     ^ origin              ^ made it
#
# An operation makes a NaN where none of what it reads is one. Where it reads an Inf, which is how most NaN begin, that
# Inf is followed back, from each operation to the one that wrote what it reads, to the one that made it of finite
# numbers. An Inf on its own may be intended, as in a mask: it is reported only if there is no NaN. An Inf or a NaN that
# an argument requested, for a mask or to mark memory, is not reported.


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Origin of the first non-finite value of a step; operations in the order in which they began."""

    kind: str
    """NAN; INF where there is no NaN."""
    made_by: Operation | None
    """The first that gives it and reads none; None where it was there before."""
    read_by: Operation | None = None
    """The first to read one that was there before."""
    origin: Operation | None = None
    """Operation that made, from finite numbers, the Inf that led to the NaN; None if there is none."""
    num_between: int = 0
    """How many operations have handed the Inf on between `origin` and `made_by`."""
    is_argument: bool = False
    """Whether an argument of `made_by` names it, as a mask does, and no other is there."""


def find_non_finite(record: OpRecord) -> NonFinite | None:
    """The first NaN of a step, else the first Inf, else the first that an argument names; None where all is finite."""
    by_index = {operation.index: operation for operation in record.operations}
    if found := _first(by_index, NAN) or _first(by_index, INF):
        return found
    named = ((kind, each) for kind in (NAN, INF) for each in record.operations if _gives(each, kind))
    return next((NonFinite(kind, each, is_argument=True) for kind, each in named), None)


def _first(by_index: Mapping[int, Operation], kind: str) -> NonFinite | None:
    """The first of a kind that nobody has asked for; what was asked for may be handed on."""
    for operation in by_index.values():
        reads = _makers_of(operation, kind)
        if any(maker not in by_index for maker in reads):
            return NonFinite(kind, None, read_by=operation)
        if reads or not _gives(operation, kind) or _names(operation, kind):
            continue
        return _with_origin(operation, by_index) if kind == NAN else NonFinite(kind, operation)
    return None


def _with_origin(made_by: Operation, by_index: Mapping[int, Operation]) -> NonFinite:
    """Follow the Inf that an operation has made a NaN of back to where it began."""
    origin, num_handed_on = made_by, 0
    while reads := _makers_of(origin, INF):
        makers = [by_index[maker] for maker in reads if maker in by_index and maker < origin.index]
        if not makers:
            return NonFinite(NAN, made_by, num_between=num_handed_on)
        num_handed_on += origin is not made_by
        origin = min(makers, key=lambda each: each.index)
    return NonFinite(NAN, made_by, origin=None if origin is made_by else origin, num_between=num_handed_on)


def _gives(operation: Operation, kind: str) -> bool:
    return any(kind in value.not_finite for value in operation.outputs)


def _makers_of(operation: Operation, kind: str) -> list[int]:
    """Writer of each input that holds it."""
    pairs = zip(operation.makers, operation.inputs, strict=True)
    return [maker for maker, value in pairs if kind in value.not_finite]


def _names(operation: Operation, kind: str) -> bool:
    """Whether it is among the arguments: the operation gives what it was asked for."""
    return re.search(rf"\b{kind}\b", operation.arguments) is not None


# ------------------------------------------------------------------- operations that are documented as nondeterministic
# Operations that torch documents as nondeterministic: their sums may be added in a different order each time. Pure.
#
# From the documentation of torch.use_deterministic_algorithms. A record of operations does not say on which device one
# ran: in a program that uses no GPU, only those count that are nondeterministic with several threads of a processor.

_OTHER_KERNEL = """
index_put index_add index_copy index_select_backward put scatter scatter_add scatter_reduce gather_backward
embedding_dense_backward repeat_interleave cumsum bmm convolution convolution_backward cudnn_convolution
cudnn_convolution_transpose replication_pad2d_backward _scaled_dot_product_flash_attention_backward
_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward
_flash_attention_backward _efficient_attention_backward
"""
_NO_KERNEL = """
avg_pool3d_backward adaptive_avg_pool2d_backward adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
max_pool3d_with_indices_backward fractional_max_pool2d_backward fractional_max_pool3d_backward max_unpool2d
max_unpool3d upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward
upsample_trilinear3d_backward upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward
replication_pad3d_backward nll_loss2d_forward nll_loss2d_backward _ctc_loss _ctc_loss_backward _embedding_bag
_embedding_bag_dense_backward grid_sampler_2d_backward grid_sampler_3d_backward histc bincount kthvalue median
_cdist_backward segment_reduce _segment_reduce_backward
"""
_ON_HOST = """
index_put index_add put scatter scatter_add scatter_reduce embedding_dense_backward _embedding_bag_dense_backward
index_reduce histc bincount
"""
HAVE_OTHER_KERNEL = frozenset(_OTHER_KERNEL.split())
"""Those for which torch has a deterministic kernel, which level deterministic chooses."""
DOCUMENTED = HAVE_OTHER_KERNEL | frozenset(_NO_KERNEL.split())
ON_HOST = frozenset(_ON_HOST.split())
"""Those that are nondeterministic on a processor with several threads."""


def suspects(operations: Iterable[Operation], *, has_gpu: bool) -> tuple[Operation, ...]:
    """Return the operations that torch documents as nondeterministic, one for each name and line, in their order."""
    names = DOCUMENTED if has_gpu else ON_HOST
    found: dict[tuple[str, str, str], Operation] = {}
    for each in operations:
        if base_name(each.name) in names:
            found.setdefault((each.phase, each.name, each.at), each)
    return tuple(found.values())


def has_deterministic_kernel(operation: Operation) -> bool:
    """Whether level deterministic makes a suspect repeatable, by torch's documentation."""
    return base_name(operation.name) in HAVE_OTHER_KERNEL


def base_name(name: str) -> str:
    """index_put of aten.index_put_.default and of aten._index_put_impl_.default."""
    base = name.split(".")[1] if name.count(".") else name
    base = "index_put" if base.startswith("_index_put_impl") else base
    return base.removesuffix("_")
