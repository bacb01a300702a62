"""Records of each optimizer step what a resumed run has to find again: a line of JSON for each step.

    forward(inputs) ─▶ backward(loss) ─▶ step(): weights, state, gradients, settings ─▶ steps-RANK-PID.jsonl

A trace has what changed in a step. A line has all that a process holds before a step: a resumed run begins anywhere,
and is compared with every step of the straight one. Values are digests; numbers are kept, and decide nothing by their
size. The program's own optimizers, modules, loaders and `torch.save` are looked at, in its main thread.
"""

import atexit
import json
import os
import random
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.optim import Optimizer
from xxhash import xxh3_64_hexdigest

from harness.bits.tensor_digests import digests_of, host_bytes
from harness.recording import hooks
from harness.recording.automatic import REMEMBERED
from harness.recording.names import ParameterNames, parameters_of
from harness.recording.process import rank_and_world_size
from harness.recording.program_state import is_capturing, is_in_backward, outside_modes, read_states
from harness.recording.recorder import RecorderCallback
from harness.recording.tensors import named_values, tensor_bytes

ROUNDED = (torch.bfloat16, torch.float16)
MAX_ROWS = 4096
GRACE_STEPS = 2
"""Steps that a process may take after SIGTERM."""
Line = dict[str, Any]


class ResumptionRecorder(RecorderCallback):
    """Writes a line for each step into `directory`.

    Ends the process by SIGKILL after `end_at` steps of its first optimizer, before the next update; with `is_asked` by
    SIGTERM, which it may take two more steps to obey. Ends it before it saves anything outside the directory `inside`.
    """

    def __init__(self, directory: str, inside: str = "/", end_at: int | None = None, is_asked: bool = False) -> None:
        self._ask_at = end_at if is_asked else None
        end_at = end_at + GRACE_STEPS if is_asked and end_at is not None else end_at
        self._directory, self._inside, self._end_at = Path(directory), Path(inside).resolve(), end_at
        self._pid, self._problem = os.getpid(), ""
        self._names = ParameterNames()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        """In the order in which they were made."""
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """In the order in which they first stepped."""
        self._num_steps = 0
        """Of the first optimizer."""
        self._asked: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
        """Indices that a loader's iterator has asked its dataset for, and not handed out."""
        self._has_saved = True
        """Whether variables are recorded with the next step: the first one, and each after a checkpoint."""
        self._line: Line = self._new_line()
        hooks.hook_steps(
            self._begin_step,
            lambda optimizer: self._guarded(self._finish_step, optimizer),
            lambda _: None,
            hooks.CompiledSteps(),
        )
        hooks.hook_optimizers(lambda optimizer: self._optimizers.append(weakref.ref(optimizer)))
        hooks.hook_backward(lambda tensors: self._guarded(self._see_losses, tensors), lambda: None)
        hooks.hook_loaders(lambda batch, iterator, _: self._guarded(self._see_batch, batch, iterator))
        hooks.look_at_calls(
            torch.utils.data.dataloader._BaseDataLoaderIter,
            "_next_index",
            after=lambda index, iterator: self._asked.setdefault(iterator, deque()).append(index),
        )
        hooks.hook_forward(
            lambda _, args, kwargs: self._guarded(self._see_inputs, args, kwargs, torch.is_grad_enabled()),
            lambda output: self._guarded(self._see_output, output),
        )
        hooks.look_at_calls(torch, "save", self._before_save)
        atexit.register(self._guarded, self._end)

    @staticmethod
    def _new_line() -> Line:
        return {"calls": [], "batches": [], "losses": [], "saves": [], "held": {}}

    def _guarded(self, what: Callable[..., None], *arguments: Any) -> None:
        """Call a hook in the main thread of the process; a mistake in it ends this record, never the program."""
        is_here = threading.current_thread() is threading.main_thread() and os.getpid() == self._pid
        if self._problem or not is_here or is_capturing():
            return
        try:
            with outside_modes(), torch.no_grad():
                what(*arguments)
        except Exception as error:  # whatever it is: a program must end as it would have ended unrecorded
            self._problem = f"{type(error).__name__}: {error}"
            self._write({"problem": self._problem})

    # ---------------------------------------------------------------------------------------------------------- hooks

    def _before_save(self, value: Any, *args: Any, **kwargs: Any) -> None:
        if sys._getframe(2).f_globals.get("__name__") != "torch.storage":  # a tensor that is pickled
            self._guarded(self._see_save, value, kwargs.get("f", args[0] if args else None))

    def _hook_safetensors(self) -> None:
        """Names that the program has bound before still call this one, which safetensors.torch looks up by itself."""
        module: Any = sys.modules.get("safetensors.torch")
        if module is not None and not hasattr(module.serialize_file, "__wrapped__"):

            def before(*args: Any, **kwargs: Any) -> None:
                self._guarded(self._see_save, None, kwargs.get("filename", args[1] if len(args) > 1 else None))

            hooks.look_at_calls(module, "serialize_file", before)

    def _begin_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        self._guarded(self._see_step, optimizer)
        self._has_closure = has_closure

    # --------------------------------------------------------------------------------------------------- what is seen

    def _see_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any], has_grad: bool) -> None:
        tensors = [(name, each) for name, each in _tensors([args, kwargs]) if each.grad_fn is None]  # data, no results
        if not self._line["calls"]:
            self._see_random()
        rows = _rows(tensors) if has_grad else []
        self._line["calls"].append({"inputs": _digested(tensors), "rows": rows, "random": _random()})
        if has_grad and not self._line["held"]:
            self._hold()

    def _see_output(self, output: Any) -> None:
        self._line["calls"][-1]["output"] = _digested(_tensors(output)[:1])

    def _see_losses(self, tensors: Any) -> None:
        if not is_in_backward():
            losses = [tensors] if isinstance(tensors, torch.Tensor) else tensors
            self._line["losses"].append(sum(float(each.detach().double().sum()) for each in losses))

    def _see_batch(self, batch: Any, iterator: Any) -> None:
        asked = self._asked.get(iterator)
        index = asked.popleft() if asked else None
        indices = [each for each in (index if isinstance(index, list) else [index]) if isinstance(each, int)]
        self._line["batches"].append({"inputs": _digested(_tensors(batch)), "rows": indices})

    def _see_save(self, value: Any, target: Any) -> None:
        name = getattr(target, "name", target)
        path = Path(name).resolve() if isinstance(name, str | os.PathLike) else self._inside
        if not path.is_relative_to(self._inside):
            problem = f"it would save {path}, outside of its copy of the working directory, where a resume finds it too"
            self._write({"problem": f"{problem}: name a path relative to the working directory"})
            os.kill(os.getpid(), signal.SIGKILL)
        self._has_saved = True
        self._line["saves"].append(values_in(value))

    def _see_random(self) -> None:
        self._line["random"] = _random()
        seed = torch.default_generator.initial_seed()
        fresh = torch.Generator().manual_seed(seed).get_state()
        self._line["seed"] = seed if torch.equal(fresh, torch.default_generator.get_state()) else None

    def _hold(self) -> None:
        """Buffers, frozen weights, averaged and target networks."""
        living = [optimizer for each in self._optimizers if (optimizer := each()) is not None]
        for optimizer in living:
            self._names.assign(parameters_of(optimizer))
        self._line["held"] = dict(_digested(self._names.untracked()))

    def _see_step(self, optimizer: Optimizer) -> None:
        self._hook_safetensors()
        number = self._numbers.setdefault(optimizer, len(self._numbers))
        parameters = parameters_of(optimizer)
        self._names.assign(parameters)
        if not self._line["calls"]:
            self._see_random()
        if not self._line["held"]:
            self._hold()
        self._line |= {
            "optimizer": number,
            "kind": type(optimizer).__name__,
            "names": [self._names.name(each) or "" for each in parameters],
            "weights": _digests(parameters),
            "rounded": {str(kind)[6:]: _digests([_rounded(each, kind) for each in parameters]) for kind in ROUNDED},
            "gradients": _gradients(parameters),
            "state": [_state(optimizer, each) for each in parameters],
            "trains": [each.requires_grad for each in parameters],
            "settings": [_settings(group) for group in optimizer.param_groups],
            "variables": variables(sys._getframe(1)) if self._has_saved else None,
        }
        if self._end_at is not None and number == 0 and self._num_steps >= self._end_at:
            self._write({**self._line, "is_ended": True})
            os.kill(os.getpid(), signal.SIGKILL)

    def _finish_step(self, optimizer: Optimizer) -> None:
        if self._has_closure:  # gradients were computed within the step
            self._line["gradients"] = _gradients(parameters_of(optimizer))
        self._write(self._line)
        self._num_steps += self._line["optimizer"] == 0
        has_stepped, self._line, self._has_saved = self._line["optimizer"] == 0, self._new_line(), False
        if has_stepped and self._num_steps == self._ask_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def _end(self) -> None:
        """The process ends: a line of what is left."""
        if self._numbers:
            self._hold()
            self._write({**self._line, "is_tail": True})

    def _write(self, line: Line) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        rank, _ = rank_and_world_size(os.environ)
        with (self._directory / f"steps-{rank}-{self._pid}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str, separators=(",", ":")) + "\n")


def _random() -> dict[str, str]:
    return {name.removeprefix("random."): digest.hex() for name, (_, digest) in read_states().items()}


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _digests(tensors: Sequence[torch.Tensor]) -> list[str]:
    found = digests_of((str(at), _dense(each.detach())) for at, each in enumerate(tensors))
    return [each[:16] for each in found.values()]


def _digested(named: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[str, str]]:
    found = [(name, each) for name, each in named if not each.is_meta]
    return list(zip([name for name, _ in found], _digests([each for _, each in found]), strict=True))


def _tensors(value: Any) -> list[tuple[str, torch.Tensor]]:
    return [(name, each) for name, each in named_values(value, "") if isinstance(each, torch.Tensor)]


def _rows(named: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
    """Digests of the rows of a batch over all its inputs; of tokens, what the attention mask lets through."""
    sized = [each.detach() for _, each in named if each.dim() and len(each) == len(named[0][1])] if named else []
    if not sized or not 0 < len(sized[0]) <= MAX_ROWS:
        return []
    mask = next((each for name, each in named if name.endswith("attention_mask")), None)
    ids = next((each for name, each in named if name.endswith("input_ids")), sized[0])
    if mask is not None and mask.shape == ids.shape:
        parts = [[tensor_bytes(row[kept.bool()])] for row, kept in zip(ids, mask, strict=True)]
    else:
        whole = [tensor_bytes(_dense(each)) for each in sized]
        sizes = [each.nbytes // len(sized[0]) for each in whole]
        parts = [
            [each[at * size : (at + 1) * size] for each, size in zip(whole, sizes, strict=True)]
            for at in range(len(sized[0]))
        ]
    return [xxh3_64_hexdigest(b"".join(part)) for part in parts]


def _rounded(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return tensor.detach().to(kind).to(tensor.dtype) if tensor.is_floating_point() else tensor


def _gradients(parameters: Sequence[torch.Tensor]) -> list[str | None]:
    given = [each.grad for each in parameters if each.grad is not None]
    found = iter(_digests(given))
    return [None if each.grad is None else next(found) for each in parameters]


def _state(optimizer: Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
    """What an optimizer remembers of a weight: numbers as they are, digests of tensors; "0" before that of zeros."""
    found: dict[str, Any] = {}
    for key, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            found[str(key)] = f"{'' if bool(value.any()) else '0'}#{_digests([value])[0]}"
        elif isinstance(value, REMEMBERED):
            found[str(key)] = float(value)
    return found


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: float(each) if isinstance(each, torch.Tensor) else each
        for key, each in group.items()
        if isinstance(each, int | float | tuple | torch.Tensor) and not isinstance(each, bool)
    }


# ------------------------------------------------------------------------------------------------------------ variables
# Values of a program's variables, by name: what its frames reach, down to five levels, without modules and optimizers.
#
# No code of the program is called: attributes are read where objects keep them, containers by their types' own methods.

Values = dict[str, Any]
"""Numbers and texts as they are; "#..." the digest of an array, "generator#..." that of a generator's state."""
MAX_VALUES = 4000
MAX_DEPTH = 5
MAX_ITEMS = {dict: 200, list: 50, object: 100}
MAX_BYTES = 2**24
"""Of a tensor that a variable holds; larger ones are left out."""
STATE_SIZES = (5056, 16)
"""Bytes of the state of a torch generator, on the CPU and on a GPU."""
_OURS = ("torch", "harness", "runpy", "threading", "functools", "contextlib", "importlib")


def variables(frame: FrameType | None) -> Values:
    """Return the values that a frame and those above it reach; of frames of installed packages `self` alone."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    found: Values = {}
    seen: set[int] = set()
    for each in reversed(frames):
        if str(each.f_globals.get("__name__", "")).partition(".")[0] in _OURS:
            continue
        scope, function = each.f_locals, each.f_code.co_name
        is_installed = "site-packages" in each.f_code.co_filename
        for name in [name for name in scope if not name.startswith("__") and (not is_installed or name == "self")]:
            _visit(name if function == "<module>" else f"{function}: {name}", scope[name], found, seen, MAX_BYTES)
    return found


def values_in(value: Any) -> Values:
    """Return the values that an object holds, such as a checkpoint, whatever their size."""
    found: Values = {}
    _visit("", value, found, set(), sys.maxsize)
    return found


def _visit(name: str, value: Any, found: Values, seen: set[int], max_bytes: int, *, depth: int = 0) -> None:
    kind = type(value)  # isinstance asks proxies what they stand for, and that may do anything
    if len(found) > MAX_VALUES or depth > MAX_DEPTH:
        return
    if value is None or kind in (bool, int, float, str):
        is_nan = kind is float and isnan(value)  # which equals nothing
        found[name] = value[:60] if kind is str else "nan" if is_nan else value
        return
    is_bar = any(each.__module__.partition(".")[0] == "tqdm" for each in kind.__mro__)  # a progress bar trains nothing
    if is_bar or id(value) in seen or issubclass(kind, (type, ModuleType, torch.nn.Module, torch.optim.Optimizer)):
        return
    seen.add(id(value))
    numpy = sys.modules.get("numpy")
    inner: Iterator[tuple[Any, Any]]
    if (generator := _generator(value)) is not None:
        found[name] = f"generator#{xxh3_64_hexdigest(generator)}"
        return
    if issubclass(kind, torch.Tensor):
        if value.layout is torch.strided and not value.is_meta and value.nbytes <= max_bytes:
            found[name] = value.item() if value.numel() == 1 else f"#{_digest(value)}"
        return
    if numpy is not None and issubclass(kind, numpy.ndarray | numpy.generic):
        if value.dtype != object and value.nbytes <= max_bytes:
            found[name] = value.item() if value.size == 1 else f"#{xxh3_64_hexdigest(value.tobytes())}"
        return
    if issubclass(kind, dict):
        found[f"{name} (length)"] = dict.__len__(value)
        pairs = list(dict.items(value))[: MAX_ITEMS[dict]]
        inner = ((f"{name}.{key if type(key) in (str, int) else at}", each) for at, (key, each) in enumerate(pairs))
    elif base := next((each for each in (list, tuple, deque, set) if issubclass(kind, each)), None):
        found[f"{name} (length)"] = base.__len__(value)
        items = list(base.__iter__(value))[: MAX_ITEMS[list]] if base is not set else []
        inner = ((f"{name}[{at}]", each) for at, each in enumerate(items))
    else:
        try:
            held = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        pairs = list(dict.items(held))[: MAX_ITEMS[object]] if isinstance(held, dict) else []
        inner = ((f"{name}.{key}", each) for key, each in pairs if not str(key).startswith("__"))
    for inner_name, each in inner:
        _visit(inner_name, each, found, seen, max_bytes, depth=depth + 1)


def _generator(value: Any) -> bytes | None:
    """The state of a generator, or a state that a program keeps; None for anything else."""
    kind, numpy = type(value), sys.modules.get("numpy")
    if issubclass(kind, torch.Generator):
        return bytes(host_bytes(value.get_state()))
    if issubclass(kind, torch.Tensor):
        is_state = value.dtype == torch.uint8 and value.numel() in STATE_SIZES
        return bytes(host_bytes(value)) if is_state else None
    if kind is random.Random:
        return repr(value.getstate()).encode()
    if kind is tuple and len(value) == 3 and type(value[1]) is tuple and len(value[1]) == 625:
        return repr(value).encode()
    if numpy is not None and kind is numpy.random.Generator:
        return repr(value.bit_generator.state).encode()
    if numpy is not None and kind is numpy.ndarray and value.shape == (624,):
        return bytes(value.tobytes())
    return None


def _digest(tensor: torch.Tensor) -> str:
    return xxh3_64_hexdigest(bytes(f"{tensor.dtype}{[*tensor.shape]}", "ascii") + bytes(host_bytes(tensor)))
