"""Records each operation of a step: what it read, what it gave, and whose line asked for it.

    with OpMode(OpLog(directory, rank=0, step=7, say=print)) as mode: ...        # or start() and stop() in hooks
    mode.phase = "optimizer"                                                     # while the optimizer steps

It sees what torch's dispatcher hands to Python: every operation of the thread that started it and of the autograd
engine's threads, below autograd and autocast. Tensors of a subclass are opened: their inner operations are recorded.
It looks, and leaves as it is: no bit, no draw of a generator, no kernel is another with it. What it does not see:
kernels inside torch.compile's regions and CUDA graphs, other threads, other processes.

What an operation writes is read from its schema. What schemas do not say stands in tables here: operators that
overwrite without reading, that write without declaring it, that return uninitialized memory, or that are not finished
when they return.
"""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from xxhash import xxh3_64_hexdigest

from harness.bits.digests import digest
from harness.recording.compiled import is_in_compiled_call
from harness.recording.cuda_state import is_capturing
from harness.recording.op_log import OpLog
from harness.recording.op_source import SourceLines
from harness.recording.op_values import UNFINISHED, UNWRITTEN, WORKING_MEMORY, OpValues
from harness.recording.tensors import tensor_bytes

FACTORIES_UNWRITTEN = frozenset(
    ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize", "resize_")
)
"""Their result is whatever the memory held: not a value."""
SHAPE_ONLY = frozenset(
    (
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
    )
)
"""They ask their argument for its shape, dtype and device, and not for its value."""
ENTRANCES = frozenset(("lift", "lift_fresh", "lift_fresh_copy"))
"""Through which Python values become tensors: views by their schema, and the first sight of what they hold."""
OVERWRITES = frozenset(
    (
        *("recv_", "recv_any_source_", "irecv", "wait_tensor"),
        *("copy_", "_foreach_copy_", "fill_", "zero_", "_foreach_zero_", "set_", "resize_", "resize_as_"),
        *("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"),
        *("arange_", "eye_"),
    )
)
"""What their written argument held before has no part in what it holds afterwards."""
OUTPUT_NAMES = ("out", "result", "all_gather_output")
"""With which the names of arguments begin that are there to be written to."""
UNDECLARED_WRITES = {
    "native_batch_norm": (3, 4),
    "cudnn_batch_norm": (3, 4),
    "miopen_batch_norm": (3, 4),
    "all_gather_copy_in": (1,),
}
"""Positions of arguments that are written though the schema does not say so: running statistics, FSDP2's buffer."""
UNREAD_RESULTS = {
    "_scaled_dot_product_flash_attention": (6, 7, 8),
    "_scaled_dot_product_efficient_attention": (2, 3),
    "_scaled_dot_product_cudnn_attention": (6, 7, 8),
    "_flash_attention_forward": (2, 3, 4),
    "_efficient_attention_forward": (2, 3),
    "cudnn_batch_norm": (3,),
    "_batch_norm_with_update": (3,),
    "_cudnn_rnn": (4,),
    "mkldnn_rnn_layer": (3,),
    "all_gather_copy_in": (1,),
}
"""Positions of results that are working memory of the backward pass, written in part or not at all."""
COLLECTIVES = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd"))
FINISHES = frozenset(("wait_tensor", "_wrap_tensor_autograd"))
SENDS = frozenset(("send", "isend", "barrier", "monitored_barrier_", "check_for_nan"))
"""Of COLLECTIVES, those that write to none of their arguments."""
IGNORED = frozenset(("profiler", "prim", "prims_symint", "debugprims"))
"""Namespaces whose operators compute nothing."""

Argument = int | str
"""A position, or the name of a keyword."""


@dataclass(frozen=True, slots=True)
class OpSchema:
    """What is to be known of one operator."""

    name: str
    """As traces spell it: "aten.addmm.default"."""
    is_ignored: bool = False
    is_view: bool = False
    """It gives another look at memory, and computes nothing."""
    is_entrance: bool = False
    is_unwritten: bool = False
    """Whether its results are uninitialized memory."""
    reads_shapes: bool = False
    """It asks its arguments for their shapes only."""
    is_unfinished: bool = False
    """Its results are not there yet when it returns: a collective."""
    is_waited_for: bool = False
    """An operation of its own says when they are there; else the program waits in a way that no operation shows."""
    is_random: bool = False
    """It draws from a generator of random numbers."""
    written: frozenset[Argument] = frozenset()
    """Positional arguments by position, the others by name."""
    overwritten: frozenset[Argument] = frozenset()
    """Arguments that held nothing before that has a part in anything afterwards."""
    unread_results: frozenset[int] = frozenset()


def schema_of(func: Any) -> OpSchema:
    """What an operator does; of a higher-order one, or one whose schema cannot be read, only its name."""
    if not isinstance(func, torch._ops.OpOverload):
        return OpSchema(f"{getattr(func, 'namespace', 'higher_order')}.{getattr(func, '__name__', func)}")
    namespace, short = func.namespace, func._schema.name.split("::")[-1]
    is_collective = namespace in COLLECTIVES
    written, overwritten = _written(func, short, is_collective=is_collective)
    return OpSchema(
        name=str(func),
        is_ignored=namespace in IGNORED,
        is_view=_is_view(func) and short not in ENTRANCES and not is_collective,
        is_entrance=short in ENTRANCES,
        is_unwritten=short in FACTORIES_UNWRITTEN,
        reads_shapes=short in SHAPE_ONLY,
        is_unfinished=is_collective and short not in FINISHES,
        is_waited_for=is_collective and namespace != "c10d" and short not in FINISHES,
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        written=written,
        overwritten=overwritten,
        unread_results=frozenset(UNREAD_RESULTS.get(short, ())),
    )


def _written(
    func: "torch._ops.OpOverload[..., Any]", short: str, *, is_collective: bool
) -> tuple[frozenset[Argument], frozenset[Argument]]:
    """(arguments that are written, those whose value before is lost)."""
    written: set[Argument] = set()
    overwritten: set[Argument] = set()
    for position, argument in enumerate(func._schema.arguments):
        key: Argument = argument.name if argument.kwarg_only else position
        is_declared = argument.alias_info is not None and argument.alias_info.is_write
        is_brought = is_collective and short not in SENDS and not argument.name.startswith("input")
        if is_declared or is_brought or position in UNDECLARED_WRITES.get(short, ()):
            written.add(key)
            if argument.name.startswith(OUTPUT_NAMES) or short in OVERWRITES:
                overwritten.add(key)
    return frozenset(written), frozenset(overwritten)


def _is_view(func: "torch._ops.OpOverload[..., Any]") -> bool:
    aliases = [result.alias_info for result in func._schema.returns]
    return any(alias is not None for alias in aliases) and not any(alias and alias.is_write for alias in aliases)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor of an argument or a result, lists of them opened."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def named_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Argument, Any]]:
    """Each argument of a call, as OpSchema names them."""
    return [*enumerate(args), *kwargs.items()]


def generator_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """The generator that a call names; None where it uses its device's own."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Generator):
            return value
    return None


MAX_ARGUMENT_CHARS = 160
_PLAIN = (int, float, complex, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
_OUTSIDE_BACKWARD = -1


@dataclass(slots=True)
class _Call:
    """An operation between its beginning and its end."""

    index: int
    schema: OpSchema
    phase: str
    at: str
    via: str
    reads: list[tuple[str, int]] = field(default_factory=list)
    """Description and maker of each tensor among the arguments."""
    random: str = ""
    """The state of the generator it draws from, before it does."""


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations into a log while it is on; `root` is the directory that source lines are relative to.

    A mistake of its own ends the record, never the program.
    """

    supports_higher_order_operators = True  # else their call would raise where it did not before

    def __init__(self, log: OpLog, root: str = ".") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log
        self._pid = os.getpid()
        self._lock = threading.Lock()  # the engine has a thread for each GPU
        self._lines = SourceLines(root)
        self._values = OpValues()
        self._schemas: dict[Any, OpSchema] = {}
        self._num_ops = 0
        self._is_on = False
        self._phase, self._phase_task = "forward", _OUTSIDE_BACKWARD

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions run as they are compiled: falling back to eager would be another program."""
        return True

    @property
    def phase(self) -> str:
        """That of operations outside backward: "forward" or "optimizer"."""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self._phase, self._phase_task = phase, torch._C._current_graph_task_id()

    def start(self) -> None:
        """Record from here on; in hooks, which cannot use `with`.

        Once is enough. Do not call it inside a mode of the program's own: leaving that mode would remove ours
        instead.
        """
        if self._is_on:
            return
        if (other := _get_current_dispatch_mode()) is not None:
            self._log.give_up(f"the program has an active dispatch mode of its own, {type(other).__name__}")
            return
        if is_in_compiled_call():
            self._log.give_up("the step begins within a function that torch.compile has compiled")
            return
        self._is_on = True
        super().__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Record no more, and end the log in order. Once is enough."""
        self._is_on = False
        self._log.close()
        self.leave()

    def leave(self) -> bool:
        """Take the stopped mode off; False where it has to stay for now, and passes everything on."""
        if _get_current_dispatch_mode() is self:  # else the program has put a mode of its own on top of it
            if is_in_compiled_call():
                return False
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._is_on or os.getpid() != self._pid:  # stopped below another mode; a DataLoader's worker
            return func(*args, **kwargs)
        if torch._C._len_torch_dispatch_stack():  # torch's own modes lie below all others: this is traced, not computed
            return func(*args, **kwargs)
        if is_capturing():  # to read would break the graph
            return func(*args, **kwargs)
        if any(kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl for kind in types):
            return NotImplemented  # the subclass opens itself, and its parts come here
        called = self._guarded(self._before, func, args, kwargs, sys._getframe(1))
        result = func(*args, **kwargs)
        if called is not None:
            self._guarded(self._after, called, args, kwargs, result)
        return result

    def _guarded(self, what: Any, *arguments: Any) -> Any:
        try:
            with self._lock:
                return what(*arguments)
        except Exception as error:  # whatever it is: a program must end as it would have ended unrecorded
            self._is_on = False
            self._log.give_up(f"{type(error).__name__}: {error}")
            return None

    def _before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> "_Call | None":
        """What an operation is and reads; None where it is not to be recorded."""
        if (schema := self._schemas.get(func)) is None:
            schema = self._schemas[func] = schema_of(func)
        task = torch._C._current_graph_task_id()
        in_backward = task != _OUTSIDE_BACKWARD
        line = self._lines.line(frame, is_writing=bool(schema.written), in_backward=in_backward)
        if schema.is_ignored or schema.is_view or line is None:
            return None
        phase = self._phase if task == self._phase_task else "backward" if in_backward else "forward"
        call = _Call(self._num_ops, schema, phase, line.at, line.via)
        self._num_ops += 1
        arguments = [(tensor, key) for key, value in named_arguments(args, kwargs) for tensor in tensors_in(value)]
        self._values.fetch([tensor for tensor, key in arguments if not self._unread(tensor, key, schema)])
        call.reads += [self._read(tensor, key, schema) for tensor, key in arguments]
        if schema.is_random:
            call.random = _random_state(args, kwargs)
        return call

    def _read(self, tensor: torch.Tensor, key: Argument, schema: OpSchema) -> tuple[str, int]:
        """(description, maker) of an argument."""
        why = self._unread(tensor, key, schema)
        return self._values.look(tensor, why) if why else self._values.read(tensor)

    def _unread(self, tensor: torch.Tensor, key: Argument, schema: OpSchema) -> str:
        """Why an operation does not read the value of an argument; empty where it does."""
        if key in schema.overwritten:
            return "overwritten"
        if key in schema.written and self._values.is_unwritten(tensor):
            return UNWRITTEN
        return "shape_only" if schema.reads_shapes else ""

    def _after(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Write an operation down with what it has given."""
        name = call.schema.name
        line: dict[str, Any] = {"k": "op", "i": call.index, "phase": call.phase, "op": name, "at": call.at}
        if call.via:
            line["via"] = call.via
        line["args"] = _arguments_text(args, kwargs)
        line["in"] = [description for description, _ in call.reads]
        line["from"] = [maker for _, maker in call.reads]
        if call.random:
            line["random"] = call.random
        line["out"] = list(self._results(call, args, kwargs, result))
        self._log.append(line)

    def _results(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Iterator[str]:
        """A description of each result, then of each written argument that is no result."""
        schema, index = call.schema, call.index
        results = result if isinstance(result, list | tuple) else (result,)
        shown: list[torch.Tensor] = []
        self._values.fetch(
            [] if schema.is_unwritten or schema.is_unfinished else _read_after(schema, args, kwargs, results)
        )
        for position, value in enumerate(results):
            for tensor in tensors_in(value):
                shown.append(tensor)
                yield self._result(tensor, schema, index, is_unread=position in schema.unread_results)
            if isinstance(value, bool | int | float | complex):
                yield f"{type(value).__name__}  value {value.hex() if isinstance(value, float) else value}"
        for key, value in named_arguments(args, kwargs):
            if key in schema.written:
                for tensor in tensors_in(value):
                    if not any(tensor is each for each in shown):
                        yield self._result(tensor, schema, index, is_unread=False)

    def _result(self, tensor: torch.Tensor, schema: OpSchema, index: int, *, is_unread: bool) -> str:
        content = WORKING_MEMORY if is_unread else UNWRITTEN if schema.is_unwritten else ""
        self._values.wrote(tensor, index, UNFINISHED if schema.is_waited_for else content)
        if schema.is_unwritten or schema.is_unfinished:
            return self._values.look(tensor, UNWRITTEN if schema.is_unwritten else UNFINISHED)[0]
        return self._values.read(tensor)[0]


def _read_after(
    schema: OpSchema, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[Any]
) -> list[torch.Tensor]:
    """The tensors that an operation has given or written, without its working memory."""
    given = [value for position, value in enumerate(results) if position not in schema.unread_results]
    written = [value for key, value in named_arguments(args, kwargs) if key in schema.written]
    return list({id(tensor): tensor for tensor in tensors_in([*given, *written])}.values())


def _random_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """(algorithm and digest) of the state of the generator that a call draws from."""
    generator = generator_in(args, kwargs)
    if generator is None:
        tensor = next(tensors_in((*args, *kwargs.values())), None)
        device = kwargs.get("device") or (tensor.device if tensor is not None else torch.device("cpu"))
        generator = _default_generator(torch.device(device))
    if generator is None:
        return ""
    algorithm, value = digest(tensor_bytes(generator.get_state()))
    return f"{algorithm} {value.hex()}"


def _default_generator(device: torch.device) -> torch.Generator | None:
    """The generator of a device; None of one that is neither the host nor a CUDA GPU."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type != "cuda":
        return None
    _, _, index = str(device).partition(":")
    return torch.cuda.default_generators[int(index or torch.cuda.current_device())]


def _arguments_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a call that are no tensors; a long text is cut, and ends with a digest of the whole."""
    parts = [_argument_text(value) for value in args]
    parts += [f"{name}={_argument_text(value)}" for name, value in kwargs.items()]
    text = ", ".join(parts)
    if len(text) <= MAX_ARGUMENT_CHARS:
        return text
    return f"{text[:MAX_ARGUMENT_CHARS]}... {xxh3_64_hexdigest(text.encode('utf-8', 'surrogatepass'))}"


def _argument_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_argument_text, value))}]"
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__
