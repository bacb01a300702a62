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

import ctypes
import json
import math
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from xxhash import xxh3_64_hexdigest

from harness.bits.digests import RAW, digest
from harness.bits.shard_sums import on_host
from harness.recording.hooks import is_in_compiled_call
from harness.recording.program_state import is_capturing
from harness.recording.tensors import MISSING, digest_placed, dtype_name, ends_at, tensor_bytes
from harness.trace.ops import OPS, VERSION, ops_name
from harness.trace.writer import AppendedFile

# -------------------------------------------------------------------------------------------------------------- the log
# The record of one step's operations: a line of JSON each, in the file of one rank.
#
#     {"k": "head", "version": 1, "rank": 0, "step": 7}
#     {"k": "op", "i": 0, "phase": "forward", "op": "aten.addmm.default", "at": "train.py:41 forward", ...}
#     {"k": "end", "num_ops": 213, "problem": ""}
#
# A line is handed to the kernel in one piece before the next operation runs, so that kill -9 costs at most the
# operation at hand. What cannot be written ends the record, never the program.

_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class OpLog:
    """Writes the operations of one step; `say` is given one line where the record ends early."""

    def __init__(self, directory: Path, *, rank: int, step: int, say: Callable[[str], None]) -> None:
        self.path = directory / OPS / ops_name(rank, step)
        self.num_ops, self.ended_by, self._say = 0, "", say
        """`ended_by`: why nothing is recorded any more; empty while it is."""
        self._file: AppendedFile | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = AppendedFile(self.path)
        except OSError as error:
            self._end(error.strerror or "unknown")
        self._write({"k": "head", "version": VERSION, "rank": rank, "step": step})

    def append(self, operation: Mapping[str, Any]) -> None:
        """Write one operation, {"k": "op", ...}; nothing where the record has ended."""
        if self._write(operation):
            self.num_ops += 1

    def close(self, problem: str = "") -> None:
        """End the record, in order or because of a problem. Once is enough."""
        if self._write({"k": "end", "num_ops": self.num_ops, "problem": problem}):
            self._end(problem)

    def _write(self, line: Mapping[str, Any]) -> bool:
        """Hand a line to the kernel; says whether the record goes on after it."""
        if self._file is not None and not self.ended_by:
            try:
                self._file.append(_ENCODER.encode(line).encode() + b"\n")
            except OSError as error:
                self._end(error.strerror or "unknown")
        return not self.ended_by

    def _end(self, problem: str) -> None:
        self.ended_by = problem or "closed"
        if self._file is not None:
            self._file.close()
        if problem:
            what = f"recording of operations ended after {self.num_ops}, the program continues"
            self._say(f"{what}: {problem} ({self.path})")


# --------------------------------------------------------------------------------------------------------- source lines
# Where in the user's program an operation comes from: the innermost frame that is neither torch's nor a package's.
#
# In backward no frame of the user's is near: the engine walks the graph. There the line is that of the forward
# operation whose gradient it is, found again by its autograd node's sequence number. Recomputed forward operations and
# backward functions that the user wrote have frames of their own between the engine and the operation, which identify
# them.
#
# A function that hides itself from pytest's tracebacks is passed over: a wrapper that calls operations for others.
#
# Functions of ours lie around the program's, and call them: what is done below the program's is the program's.
#
# | frames from the operation outwards | the operation is |
# |---|---|
# | a function of the recorder's that is called `guarded`, at any depth | the recorder's |
# | the program's or a package's, then a wrapper of ours | the program's |
# | torch's alone, then one of `_WRAPPERS`, which call torch's own functions | the program's |
# | torch's alone, then any other of ours | the recorder's |

ENGINE = "engine"
"""Line of operations of the autograd engine itself: adding up and storing gradients."""
_HARNESS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_HERE = os.path.dirname(os.path.abspath(__file__))
_WRAPPERS = frozenset(os.path.join(_HERE, name) for name in ("automatic.py", "hooks.py"))
"""Files with replacements of functions of torch, which call them."""
_GUARDS = frozenset(("guarded", "_guarded"))
"""What the recorder and the sentinel do within such a function of theirs is below these."""
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_ENGINE_FILE = os.path.join(_TORCH, "autograd", "graph.py")
_ENGINE_ENTRY = "_engine_run_backward"
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_PACKAGES = ("site-packages", "dist-packages")
_HIDES_ITSELF = "__tracebackhide__"
"""A local name, of pytest's."""
_ACCUMULATE_GRAD = 2**64 - 1
"""The sequence number of every node that stores a gradient."""
MAX_FORWARD_LINES = 10**6


class _File(Enum):
    """Whose code a file holds."""

    USER = "user"
    PACKAGE = "package"
    TORCH = "torch"
    ENGINE = "engine"
    SYSTEM = "system"
    RECORDER = "recorder"


class Line(NamedTuple):
    """Where an operation comes from."""

    at: str
    """The user's line, "train.py:41 forward"; ENGINE where no user's code asked for it."""
    via: str = ""
    """The innermost line outside torch, where it is a package's: "transformers/models/llama/modeling_llama.py:90 f"."""


class SourceLines:
    """Finds source lines, and remembers those of forward operations. Lines are relative to `root`."""

    def __init__(self, root: str) -> None:
        self._root = os.path.join(os.path.realpath(root), "")
        self._files: dict[str, tuple[_File, str]] = {}
        self._forward: dict[int, Line] = {}
        """By the sequence number of the autograd node."""
        self._thread = threading.get_ident()  # sequence numbers are counted by each thread for itself
        self._next = _next_sequence_number()
        self._last: Line | None = None
        self._last_wrote = False

    def line(self, frame: FrameType | None, *, is_writing: bool, in_backward: bool) -> Line | None:
        """The line of the operation that `frame` has called; None where it was not the program's, but the recorder's.

        Called for each operation, in order.
        """
        own, is_ours = self._walk(frame)
        if is_ours:
            return None
        line = own or Line(ENGINE)
        if in_backward and own is None:
            line = self._of_gradient() or line
        if threading.get_ident() == self._thread:
            self._remember(line, is_writing)
        return line

    def _walk(self, frame: FrameType | None) -> tuple[Line | None, bool]:
        """(the line that these frames show, whether they are the recorder's own)."""
        via = ""
        while frame is not None:
            code = frame.f_code
            kind, shown = self._files.get(code.co_filename) or self._look(code.co_filename)
            if kind is _File.USER and _HIDES_ITSELF not in code.co_varnames:
                return Line(f"{shown}:{frame.f_lineno} {code.co_name}", via), False
            if kind is _File.RECORDER and (code.co_name in _GUARDS or (shown and not via)):
                return None, True
            if kind is _File.PACKAGE and not via:
                via = f"{shown}:{frame.f_lineno} {code.co_name}"
            if kind is _File.ENGINE and code.co_name == _ENGINE_ENTRY:
                break
            frame = frame.f_back
        return (Line(via, "") if via else None), False

    def _look(self, name: str) -> tuple[_File, str]:
        self._files[name] = found = _whose(name, self._root)
        return found

    def _of_gradient(self) -> Line | None:
        node = torch._C._current_autograd_node()
        if node is None:
            return None
        number = node._sequence_nr()
        return Line(ENGINE, node.name()) if number == _ACCUMULATE_GRAD else self._forward.get(number)

    def _remember(self, line: Line, is_writing: bool) -> None:
        """Note whose autograd nodes were made since the operation before.

        An operation's node is made before it runs; that of a write into a view after it has run.
        """
        number = _next_sequence_number()
        if len(self._forward) > MAX_FORWARD_LINES:
            self._forward.clear()
        for each in range(self._next, number):
            is_of_the_last = self._last_wrote and self._last is not None and each < number - 1
            self._forward[each] = self._last if is_of_the_last and self._last is not None else line
        self._next, self._last, self._last_wrote = number, line, is_writing


def _whose(name: str, root: str) -> tuple[_File, str]:
    """(whose file it is, how it is shown)."""
    is_system = name.startswith(("<frozen", _STANDARD_LIBRARY + os.sep))
    if is_system and not any(packages in name for packages in _PACKAGES):
        return _File.SYSTEM, name
    if name == _ENGINE_FILE:
        return _File.ENGINE, name
    if name.startswith(_TORCH + os.sep):
        return _File.TORCH, name
    if name.startswith(_HARNESS + os.sep):
        return _File.RECORDER, "" if name in _WRAPPERS else name
    for packages in _PACKAGES:
        _, found, rest = name.rpartition(f"{os.sep}{packages}{os.sep}")
        if found:
            return _File.PACKAGE, rest
    full = os.path.realpath(name) if os.path.isabs(name) else name
    return _File.USER, full.removeprefix(root)


def shown_file(name: str) -> str | None:
    """How a source file of the user's or of a package is shown; None of torch's, the standard library's and ours."""
    kind, shown = _whose(name, os.path.join(os.getcwd(), ""))
    return shown if kind in (_File.USER, _File.PACKAGE) else None


def _next_sequence_number() -> int:
    return int(torch._C._autograd._get_sequence_nr())


# --------------------------------------------------------------------------------------------------------------- values
# What an operation read and wrote, as the record of operations has it: a line of text for each tensor.
#
#     "f32 64,128 xxh3_128 <32 hexadecimal digits>"           in memory as its shape says
#     "f32 128,64 xxh3_128 <32 hexadecimal digits> strides=1,128"
#     "f32 64,128 xxh3_128 <32 hexadecimal digits> nan inf"   some elements are not finite: NaN, Inf or both
#     "f32 64,128 none unwritten"                             no value: why not
#
# The bytes that are digested are those in the order of the memory, so that a transposed weight is not copied.

MAX_MEMORIES = 2**14
"""So many storages are remembered before the dead ones are dropped."""
ALIGNMENT = 64
NONE = "none"
"""In place of an algorithm: the tensor was not read."""
WORKING_MEMORY = "working_memory"
UNWRITTEN = "unwritten"
UNFINISHED = "unfinished"
OUTSIDE = -1
"""Maker of a value that no recorded operation has written."""
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
"""Floats that torch does not add."""
_NOTHING = f"{RAW} {bytes(16).hex()}"


@dataclass(slots=True)
class _Memory:
    """What is known of one storage; the weak reference keeps its address from being given to another."""

    reference: StorageWeakRef
    maker: int = OUTSIDE
    content: str = ""
    """What it holds where that is no value: one of WORKING_MEMORY, UNWRITTEN, UNFINISHED."""


class OpValues:
    """Describes tensors, and follows which operation has written which memory. One thread at a time."""

    def __init__(self) -> None:
        self._memories: dict[int, _Memory] = {}
        self._max_memories = MAX_MEMORIES
        self._fetched: dict[int, str] = {}
        """By id: algorithms and digests of tensors on GPUs that are read next."""

    def read(self, tensor: torch.Tensor) -> tuple[str, int]:
        """Description of each input or output of an operation, and the operation that wrote it last, or OUTSIDE."""
        if obstacle := _obstacle(tensor):
            return self._not_read(tensor, obstacle), OUTSIDE
        storage = tensor.untyped_storage()
        memory = self._memory(storage)
        if memory.content in (WORKING_MEMORY, UNFINISHED):  # unwritten memory may have been written to unseen
            return self._not_read(tensor, memory.content), memory.maker
        if ends_at(tensor) > storage.nbytes():  # FSDP gives memory back under living tensors
            return self._not_read(tensor, "freed"), memory.maker
        return f"{self._head(tensor)} {self._describe(tensor)}", memory.maker

    def fetch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Digest those of an operation's tensors that lie on GPUs, with two waits for all; `read` then has them."""
        on_gpus = [each for each in tensors if not on_host(each) and not _obstacle(each) and each.numel()]
        on_gpus = [each for each in on_gpus if ends_at(each) <= each.untyped_storage().nbytes()]
        self._fetched = dict(zip(map(id, on_gpus), _described(on_gpus), strict=True)) if on_gpus else {}

    def look(self, tensor: torch.Tensor, why: str) -> tuple[str, int]:
        """The same where its value is not to be read: `why`."""
        maker = OUTSIDE if _obstacle(tensor) else self._memory(tensor.untyped_storage()).maker
        return self._not_read(tensor, why), maker

    def is_unwritten(self, tensor: torch.Tensor) -> bool:
        """Whether nothing was written to this memory since an operation gave it out as it was."""
        return not _obstacle(tensor) and self._memory(tensor.untyped_storage()).content == UNWRITTEN

    def wrote(self, tensor: torch.Tensor, index: int, content: str = "") -> None:
        """Note that the operation `index` has written to a tensor; `content` says why that is no value."""
        if not _obstacle(tensor):
            memory = self._memory(tensor.untyped_storage())
            memory.maker = index
            memory.content = content

    def _memory(self, storage: torch.UntypedStorage) -> _Memory:
        key = storage._cdata
        if (memory := self._memories.get(key)) is None:
            if len(self._memories) >= self._max_memories:
                self._memories = {k: m for k, m in self._memories.items() if not m.reference.expired()}  # type: ignore[no-untyped-call]
                self._max_memories = max(MAX_MEMORIES, 2 * len(self._memories))
            memory = self._memories[key] = _Memory(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return memory

    def _head(self, tensor: torch.Tensor) -> str:
        """Dtype and shape."""
        if tensor.is_nested:  # torch raises for the shape
            return f"{dtype_name(tensor.dtype)} ?"
        return f"{dtype_name(tensor.dtype)} {','.join(map(str, tensor.shape))}"

    def _not_read(self, tensor: torch.Tensor, why: str) -> str:
        return f"{self._head(tensor)} {NONE} {why}"

    def _describe(self, tensor: torch.Tensor) -> str:
        """Algorithm, digest and layout."""
        if not tensor.numel():
            return _NOTHING
        dense, layout = _in_memory_order(tensor)
        if offset := tensor.storage_offset():
            layout += f" offset={offset}"
        if tensor.is_conj() or tensor.is_neg():
            layout += (" conj" if tensor.is_conj() else "") + (" neg" if tensor.is_neg() else "")
        if not on_host(tensor):
            return (self._fetched.pop(id(tensor), "") or _described([tensor])[0]) + layout
        address, num_bytes = dense.data_ptr(), dense.numel() * dense.element_size()
        if address % ALIGNMENT:
            layout += f" align={address % ALIGNMENT}"
        algorithm, value = digest((ctypes.c_char * num_bytes).from_address(address))
        return f"{algorithm} {value.hex()}{'' if algorithm == RAW else _not_finite(dense)}{layout}"


def _described(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Algorithm, digest and words for what is not finite of each of these, which lie on GPUs."""
    dense = [_in_memory_order(tensor)[0] for tensor in tensors]
    found = digest_placed(dense)
    are_large = [each.algorithm != RAW for each in found]
    words = iter(_not_finite_of_all([each for each, is_large in zip(dense, are_large, strict=True) if is_large]))
    return [
        f"{NONE} {each.dtype}"
        if each.dtype in MISSING
        else f"{each.algorithm} {bytes(each.digest).hex()}{next(words) if is_large else ''}"
        for each, is_large in zip(found, are_large, strict=True)
    ]


def _not_finite_of_all(tensors: Sequence[torch.Tensor]) -> list[str]:
    """The same as `_not_finite` of each; waits once for each GPU, and again only for those that are not finite."""
    sums: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        if (total := _sum(tensor)) is not None:
            sums.setdefault(total.device, []).append((index, total.isfinite()))
    are_finite = {
        index: is_finite
        for totals in sums.values()
        for (index, _), is_finite in zip(totals, torch.stack([each for _, each in totals]).tolist(), strict=True)
    }
    return ["" if are_finite.get(index, True) else _not_finite(each) for index, each in enumerate(tensors)]


def _not_finite(tensor: torch.Tensor) -> str:
    """The words for what it holds beside finite numbers, each after a blank: " nan", " inf"; of no float nothing.

    A sum that is finite has only finite parts, and takes one pass; only where it is not, each element is looked at.
    """
    total = _sum(tensor)
    if total is None or math.isfinite(total.item()):
        return ""
    if tensor.dtype in NARROW:
        tensor = tensor.float()
    return (" nan" if tensor.isnan().any() else "") + (" inf" if tensor.isinf().any() else "")


def _sum(tensor: torch.Tensor) -> torch.Tensor | None:
    """The sum of all elements, complex ones as two; None of integers."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj()).sum()
    if tensor.dtype in NARROW:
        return tensor.float().sum()
    return tensor.sum() if tensor.dtype in FLOATS else None


def _in_memory_order(tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """(the same elements in the order in which they lie, without repetitions; its strides, if it is not contiguous)."""
    if tensor.is_contiguous():
        return tensor, ""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    dense = tensor.detach().permute(order)
    for dim in reversed([place for place, dim in enumerate(order) if not strides[dim]]):
        dense = dense.select(dim, 0)
    return dense.contiguous(), f" strides={','.join(map(str, strides))}"


def _obstacle(tensor: torch.Tensor) -> str:
    """Why a tensor has no memory that could be read; empty where it has."""
    if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return type(tensor).__name__
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return "meta" if tensor.is_meta else "nested" if tensor.is_nested else ""


# ----------------------------------------------------------------------------------------------------------- operations

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
            self._log.close(f"the program has an active dispatch mode of its own, {type(other).__name__}")
            return
        if is_in_compiled_call():
            self._log.close("the step begins within a function that torch.compile has compiled")
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
            self._log.close(f"{type(error).__name__}: {error}")
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
