"""The recorder a program calls: three calls a step. Everything that records a step comes through here.

    recorder.begin_step(7)
    recorder.record("backward", "layers.0.weight", parameter.grad)
    recorder.end_step(loss=loss, reward_mean=reward)

A value is digested when it is recorded, where it lies, and is left as it is; nothing draws a random number. A step that
has values on a GPU is written when the next one ends, or with the next value of the curve: nothing waits for them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch

from harness.bits.digests import RAW, digest
from harness.bits.errors import TraceError
from harness.recording.notices import say_once
from harness.recording.operations import OpMode
from harness.recording.program_state import outside_modes
from harness.recording.run_spec import RunEnded
from harness.recording.tensors import (
    MISSING,
    Digested,
    Memory,
    PlacedShard,
    digest_placed,
    digest_tensor,
    memory_of,
    place,
    strided_parts,
    tensor_bytes,
)
from harness.trace.format import RecordedValue, Scope
from harness.trace.values import FLOATS, Float

# ------------------------------------------------------------------------------------------------------------ callbacks
# What looks on while a process records: the one seam for those who want more than a trace of it.
#
#     Recorder(sink, watchers=[Breakpoints(...), ...])
#
#     begin_step ─▶ on_begin_step    record ─▶ (its value is digested) ─▶ on_value    end_step ─▶ on_end_step
#
# A watcher sees the program's own tensors. It may raise RunEnded, which ends the run right there.


class RecorderCallback:
    """Looks on, and does nothing; what a watcher is for, it overrides."""

    pauses = False
    """Whether it lets a person stop the program: of processes that record together, only the first has it."""

    def on_begin_step(self, step: int) -> None:
        """A step begins."""

    def on_value(self, recorded_value: RecordedValue, value: Any) -> None:
        """A value was digested; `value` is a whole tensor or a text; None for a part of a tensor."""

    def on_end_step(self, step: int, values: Mapping[str, Float]) -> None:
        """A step has been handed to the sink; `values` are those of the curve."""

    def on_values(self, values: Mapping[str, Float]) -> None:
        """Values of the curve, of the step that has ended last: those that it ended with, and what is printed later."""

    def on_break_off(self, step: int, error: BaseException | None) -> None:
        """The program has gone no further than the middle of this step: because of `error`, or in order."""


def make_callbacks(told: Mapping[str, Mapping[str, Any]], *, is_first: bool = True) -> list[RecorderCallback]:
    """Those that the orders of a process name: "module:class" -> the keyword arguments, plain values, of its making.

    `is_first`: whether the process is the first of those that record together.
    """
    kinds = [(getattr(import_module(module), kind), name) for name in told for module, _, kind in [name.partition(":")]]
    return [kind(**told[name]) for kind, name in kinds if is_first or not kind.pauses]


# --------------------------------------------------------------------------------------------------------- the recorder

KEPT_PHASES = frozenset(("rollout", "reward", "advantage"))
MAX_KEPT_BYTES = 2**16
"""Of a value in one of KEPT_PHASES that is kept in every step: so that flipped tokens can be named afterwards."""

MAX_HELD_BYTES = 2**28
"""So many bytes of values that are recorded together are held until they are digested."""

Kept = tuple[RecordedValue, bytes]


class Observation(NamedTuple):
    """A value that has been looked at, and not yet recorded."""

    name: str
    digested: Digested
    scope: Scope
    tensor: torch.Tensor | None = None
    """The value itself, where it is a whole tensor."""
    text: Any = None
    """The value itself, where it is a text, bytes or a list of texts."""


@dataclass(slots=True)
class Held:
    """What was recorded of a step, with digests that a GPU may still be computing."""

    number: int
    values: list[RecordedValue] = field(default_factory=list)
    previous: dict[int, Digested] = field(default_factory=dict)
    """By index: what a value was before; it counts only if it differs."""
    tensors: list[Kept] = field(default_factory=list)
    counts: dict[tuple[Scope, str, str], int] = field(default_factory=dict)
    curve: Mapping[str, Float | Callable[[], Float | None]] = field(default_factory=dict)
    is_pending: bool = False
    """Whether a GPU computes digests of it."""

    def settled(self) -> list[RecordedValue]:
        """The values that count, with their bytes; waits for the GPU."""
        if not self.is_pending:
            return self.values
        found, counts = list[RecordedValue](), dict[tuple[Scope, str, str], int]()
        for index, value in enumerate(self.values):
            if (before := self.previous.get(index)) is not None and before == Digested(*value[3:7]):
                continue
            key = (value.scope, value.phase, value.name)
            counts[key] = counts.get(key, -1) + 1
            found.append(value._replace(occurrence=counts[key], digest=bytes(value.digest)))
        return found


class Sink(Protocol):
    """Where whole steps go: the log of one process."""

    def append(self, step: int, recorded_values: Sequence[RecordedValue], tensors: Sequence[Kept]) -> None:
        """One step, the leaves in the order in which they came about."""

    def log_values(self, values: Mapping[str, Float]) -> None:
        """Values of the curve, of the step that was appended last."""


class Recorder:
    """Records the steps of one process into a sink.

    `keeps` returns for a step whether all of its tensors are kept, not only their digests; `operations` gives what
    records the operations of a step, or None. After `last_step` the program is ended. `callbacks` are called for each
    value. One thread at a time.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        keeps: Callable[[int], bool] = lambda step: False,
        operations: Callable[[int], OpMode | None] = lambda step: None,
        last_step: int | None = None,
        callbacks: Sequence[RecorderCallback] = (),
        share: Callable[[int], Sequence[Callable[[], Any]]] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._sink, self._share, self._callbacks, self._keeps = sink, share, callbacks, keeps
        self._operations_of, self._last_step = operations, last_step
        self.close = close
        """Ends the record of this process before the process ends, if it is its own."""
        self.describe: Callable[[Mapping[str, str]], None] = lambda content: None
        """Takes, before the first step, digests by name of what the program's configuration names: data, say."""
        self._operations: OpMode | None = None
        self._current: Held | None = None
        self._held: Held | None = None
        """The step that has ended last, while it is not written."""

    @property
    def step(self) -> int | None:
        """The step that has begun and not ended; None between steps."""
        return None if self._current is None else self._current.number

    @property
    def unfinished_step(self) -> int | None:
        """The step that has begun, once more of it is recorded than what it begins with; None between steps."""
        values = self._current.values if self._current is not None else ()
        return self.step if any(each.scope is not Scope.CONTEXT for each in values) else None

    @property
    def keeps_tensors(self) -> bool:
        """Whether all tensors of the step that has begun are kept."""
        return self._current is not None and self._keeps(self._current.number)

    @property
    def needs_tensors(self) -> bool:
        """Whether tensors of the step that has begun are kept, or a person may ask for them."""
        return self.keeps_tensors or any(each.pauses for each in self._callbacks)

    def begin_step(self, step: int) -> None:
        """Begin a step; what was recorded of one that was not ended is dropped."""
        self._stop_operations()
        self._current = Held(step)
        if (operations := self._operations_of(step)) is not None:
            self._operations = operations
            operations.start()
        for callback in self._callbacks:
            callback.on_begin_step(step)

    def record(self, phase: str, name: str, value: Any, *, scope: Scope = Scope.LOGICAL) -> None:
        """Record one value: a tensor, a NumPy array, a number, text, bytes, or a list of numbers.

        The second value of a phase and name is its second occurrence. Small ones of KEPT_PHASES are kept beside their
        digests. TraceError outside a step, and for other values.
        """
        self.record_all(phase, [(name, value)], scope=scope)

    def record_all(self, phase: str, values: Iterable[tuple[str, Any]], *, scope: Scope = Scope.LOGICAL) -> None:
        """Record many named values, as `record` does each: those on a GPU with one launch and one wait for all.

        `values` may be made one after the other: they are digested whenever MAX_HELD_BYTES of them have come.
        """
        # callbacks stand at one value after the other
        for batch in ([each] for each in values) if self._callbacks else _batches(values):
            self.record_seen(phase, look(batch, scope), keeps_small=phase in KEPT_PHASES)

    def record_seen(
        self,
        phase: str,
        values: Sequence[Observation],
        *,
        keeps_small: bool = False,
        previous: Mapping[str, Digested] = MappingProxyType({}),
    ) -> None:
        """Record values that were digested, without those that are as in `previous`, by name.

        Small tensors are kept too if `keeps_small`, and all in a step that `keeps`.
        """
        if (step := self._current) is None:
            raise TraceError(f"a value of {phase} outside a step", remedy="call begin_step(step) first")
        keeps_all, callbacks, recorded, counts = self.keeps_tensors, self._callbacks, step.values, step.counts
        for name, each, scope, tensor, text in values:
            is_kept = tensor is not None and (keeps_all or (keeps_small and tensor.nbytes <= MAX_KEPT_BYTES))
            digested = each.settled() if is_kept or callbacks else each
            before = previous.get(name)
            if digested.is_pending:
                step.is_pending = True
                if before is not None:
                    step.previous[len(recorded)] = before
            elif before == digested:
                continue
            key = scope, phase, name
            counts[key] = count = counts.get(key, -1) + 1
            value = RecordedValue(phase, name, count, *digested, scope)
            recorded.append(value)
            if is_kept and tensor is not None:
                step.tensors.append((value, bytes(tensor_bytes(tensor))))
            for callback in callbacks:
                callback.on_value(value, text if tensor is None else tensor)

    def end_step(self, **values: Any) -> None:
        """End the step: it is on its way to the disk when this returns, unless a GPU computes digests of it.

        `values` are those of the curve, or functions that return one once the digests are there. TraceError where no
        step has begun; RunEnded, once it is written, after the last step that is wanted.
        """
        if (ended := self._current) is None:
            raise TraceError("a step ended that had not begun", remedy="call begin_step(step) first")
        self._stop_operations()
        ended.curve = {
            name: value if callable(value) else as_float(value) for name, value in values.items() if value is not None
        }
        self._current = None
        self.flush()
        self._held = ended
        if ended.is_pending and ended.number != self._last_step:
            return
        logged = self.flush()
        for callback in self._callbacks:
            callback.on_end_step(ended.number, logged)
        if ended.number == self._last_step:
            raise RunEnded

    def flush(self) -> Mapping[str, Float]:
        """Write the step that has ended last, unless it is written; return its curve. Waits for the GPU."""
        held, self._held = self._held, None
        if held is None:
            return {}
        self._sink.append(held.number, held.settled(), held.tensors)
        found = {name: value() if callable(value) else value for name, value in held.curve.items()}
        logged = {name: value for name, value in found.items() if value is not None}
        self._sink.log_values(logged)
        return logged

    def forget(self) -> None:
        """Drop what is not written: in a forked child it is the parent's."""
        self._held = None

    def share(self, num_others: int) -> Sequence[Callable[[], Any]]:
        """Record as rank 0 with that many other processes; return what each of them calls to open its recorder.

        The functions can be pickled. TraceError for a recorder that has no process of its own.
        """
        if self._share is None:
            raise TraceError("a recorder of another program's steps is shared", legal="one of open_recorder()")
        return self._share(num_others)

    def break_off(self, error: BaseException | None = None) -> Held | None:
        """End the step in its middle, where the program has gone no further: `error` says why, if it was not in order.

        What was recorded of it; None where no step has begun.
        """
        self._stop_operations()
        broken, self._current = self._current, None
        if broken is not None:
            for callback in self._callbacks:
                callback.on_break_off(broken.number, error)
        self.flush()
        return broken

    def _stop_operations(self) -> None:
        operations, self._operations = self._operations, None
        if operations is not None:
            operations.stop()


class NullRecorder:
    """The same three calls where nothing is recorded."""

    def begin_step(self, step: int) -> None:
        """Nothing."""

    def record(self, phase: str, name: str, value: Any, *, scope: Scope = Scope.LOGICAL) -> None:
        """Nothing."""

    def record_all(self, phase: str, values: Iterable[tuple[str, Any]], *, scope: Scope = Scope.LOGICAL) -> None:
        """Make the values, since ranks may make them together, and record none."""
        for _ in values:
            pass

    def end_step(self, **values: Any) -> None:
        """Nothing."""

    def share(self, num_others: int) -> Sequence[Callable[[], Any]]:
        """Let no other process record either."""
        return [NullRecorder] * num_others

    def close(self) -> None:
        """Nothing."""


def _batches(values: Iterable[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    """The values in order, in batches of MAX_HELD_BYTES at least: each may be a copy that nobody else holds."""
    batch: list[tuple[str, Any]] = []
    num_bytes = 0
    for name, value in values:
        batch.append((name, value))
        num_bytes += value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
        if num_bytes >= MAX_HELD_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def as_tensor(value: Any) -> torch.Tensor | None:
    """A value as a tensor that shares its memory where it can; None for what is no number nor list of numbers."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return None
    if isinstance(value, int | float):
        dtype = torch.float64 if isinstance(value, float) else torch.bool if isinstance(value, bool) else torch.int64
        return torch.tensor(value, dtype=dtype)
    if hasattr(value, "__array_interface__"):
        return _of_array(value)
    if isinstance(value, list | tuple) and value and all(isinstance(each, int | float) for each in value):
        return torch.tensor(value, dtype=torch.float64 if any(isinstance(v, float) for v in value) else torch.int64)
    return None


@outside_modes()
def as_float(value: Any) -> Float:
    """A value of the curve by its bits, in its own dtype; a Python number is a float64.

    TraceError for what is no single number.
    """
    if isinstance(value, Float):
        return value
    tensor = as_tensor(value)
    if tensor is None or tensor.numel() != 1 or tensor.is_complex():
        raise TraceError(f"the value {value!r} of a curve", legal="one number")
    if (name := digest_tensor(tensor).dtype) in FLOATS:
        return Float(name, int.from_bytes(tensor_bytes(tensor), "little"))
    return Float.of(float(tensor.item()))


def float_of(seen: Observation) -> Float | None:
    """The number that was looked at, by its bits, as `as_float` has it; None for what is no single real number."""
    dtype, _, algorithm, digested = seen.digested
    tensor = seen.tensor
    if tensor is None or algorithm != RAW or tensor.numel() != 1 or tensor.is_complex():
        return None
    if dtype in FLOATS:
        return Float(dtype, int.from_bytes(bytes(digested)[: tensor.element_size()], "little"))
    return as_float(tensor)


def _of_array(array: Any) -> torch.Tensor | None:
    """A copy of a NumPy array, which torch.from_numpy would warn of where it cannot be written to."""
    dtype = getattr(torch, str(array.dtype), None)
    if not isinstance(dtype, torch.dtype):
        return None
    data = bytearray(array.tobytes())
    return (torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)).reshape(array.shape)


def _digest_of_text(name: str, value: Any) -> Digested:
    if isinstance(value, int):
        value = str(value)
    if isinstance(value, str):
        data, kind = value.encode("utf-8", "surrogatepass"), "text"
    elif isinstance(value, bytes | bytearray | memoryview):
        data, kind = bytes(value), "bytes"
    elif isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        data, kind = "".join(f"{len(each)}:{each}" for each in value).encode("utf-8", "surrogatepass"), "texts"
    else:
        raise TraceError(
            f"{name} is of type {type(value).__name__}",
            legal="a tensor, an array, a number, text, bytes, or a list of numbers or texts",
        )
    algorithm, digested = digest(data)
    return Digested(kind, (len(data),), algorithm, digested)


# ----------------------------------------------------------------------------------------------------- cache of digests
# Cache of digests: those of values that were not written since they were digested.
#
# torch counts the writes that it knows of. Those that go past it, through `.data` or a kernel of one's own, are looked
# for in a sample of the words: they copy or scale whole tensors. What would be missed is a write to a few elements of a
# large tensor, past torch. On a GPU every value is digested anew: it reads 1 GB in 0.3 ms, and nothing has to wait.

MIN_BYTES = 2**16
"""Below this, digesting is as fast as looking."""
SAMPLE_BYTES = 64


class _Mark(NamedTuple):
    """By what a value is known again."""

    address: int
    shape: tuple[int, ...]
    version: int
    samples: tuple[Any, ...]


DigestCache = dict[str, tuple[_Mark, Digested]]
"""Values by name; none of them is held."""


class Group(NamedTuple):
    """Values that are looked at together with others."""

    values: Sequence[tuple[str, Any]]
    scope: Scope = Scope.LOGICAL
    cache: DigestCache | None = None
    """Remembers them; None: they are digested and forgotten."""
    is_anew: bool = False
    """Whether they are digested although the cache knows them."""


def look(values: Sequence[tuple[str, Any]], scope: Scope = Scope.LOGICAL) -> list[Observation]:
    """Digest these named values, all at once; a sparse tensor gives two. TraceError for what cannot be recorded."""
    return look_at_groups([Group(values, scope)])[0]


@outside_modes()
def look_at_groups(groups: Sequence[Group]) -> list[list[Observation]]:
    """What the values of each group are: with one launch for each GPU, which nothing waits for."""
    found: list[list[Observation]] = [[] for _ in groups]
    others: list[tuple[list[Observation], int, list[Observation]]] = []
    placed: list[tuple[list[Observation], str, PlacedShard, DigestCache | None, _Mark | None]] = []
    for of_group, (values, scope, cache, is_anew) in zip(found, groups, strict=True):
        for name, value in values:
            memory, mark = memory_of(value), None
            if cache is not None and (local := memory or memory_of(getattr(value, "_local_tensor", None))) is not None:
                mark = _mark(value, local)
                known = None if is_anew or mark is None else cache.get(name)
                if known is not None and known[0] == mark:
                    of_group.append(_observed(name, known[1], place(value, scope)))
                    continue
            if memory is not None:
                digested = memory.digested()
                if mark is not None and cache is not None:
                    cache[name] = mark, digested
                of_group.append(Observation(name, digested, scope, value))
                continue
            if cache is not None:
                cache.pop(name, None)
            of_one = list[Observation]()
            others.append((of_group, len(of_group), of_one))
            if (tensor := as_tensor(value)) is None:
                of_one.append(Observation(name, _digest_of_text(name, value), scope, text=value))
                continue
            for suffix, part in strided_parts(tensor):
                placed.append((of_one, name + suffix, place(part, scope), cache, mark))
    digests = digest_placed([each.value for _, _, each, _, _ in placed])
    for (of_one, name, each, cache, mark), digested in zip(placed, digests, strict=True):
        of_one.append(_observed(name, digested, each))
        if cache is not None and mark is not None:
            cache[name] = mark, digested
    for of_group, index, of_one in reversed(others):
        of_group[index:index] = of_one
    return found


def _mark(tensor: torch.Tensor, memory: Memory) -> _Mark | None:
    """None for a value that is not worth it, or whose writes nobody counts."""
    data, local = memory.data, memory.tensor()
    if len(data) < MIN_BYTES or local is None or tensor.is_inference() or local.is_inference():
        return None
    half, version = len(data) // 2, local._version if local is tensor else tensor._version + local._version
    samples = data[:SAMPLE_BYTES], data[half : half + SAMPLE_BYTES], data[-SAMPLE_BYTES:]
    return _Mark(memory.address, memory.shape, version, samples)


def _observed(name: str, digested: Digested, placed: PlacedShard) -> Observation:
    """What was looked at; a value without memory is none that could decide a comparison."""
    if digested.dtype not in MISSING:
        whole = placed.value if isinstance(placed.value, torch.Tensor) else None
        return Observation(name, digested, placed.scope, whole)
    say_once(f"{name} and other values without memory are recorded as `{digested.dtype}`, and not compared")
    return Observation(name, digested, Scope.PHYSICAL)
