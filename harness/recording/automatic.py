"""Records a PyTorch program that knows nothing of it: an optimizer's step ends a step of the trace.

    DataLoader ─batch─▶ backward() ─loss, gradients─▶ Optimizer.step() ─▶ weights, state ─▶ the frame is written

An optimizer that is given a closure has it call backward within its step: gradients are recorded after each call.
Optimizers that step within backward, and those that step after the same backward, make one step of the trace.
The hooks look and pass on: what the program computes, draws and prints stays as it is. Whatever goes wrong in them
ends the recording, never the program.
"""

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.optim import Optimizer

from harness.recording import hooks
from harness.recording.determinism import set_flags
from harness.recording.metrics import PrintedMetrics
from harness.recording.names import ParameterNames, note_modules, parameters_of
from harness.recording.operations import OpMode
from harness.recording.process import Place, ProcessLog
from harness.recording.program_state import (
    AT_ONCE,
    RandomStates,
    State,
    TrainingThreads,
    is_capturing,
    is_in_backward,
    outside_modes,
)
from harness.recording.recorder import (
    DigestCache,
    Group,
    NullRecorder,
    Observation,
    Recorder,
    float_of,
    look,
    look_at_groups,
    make_callbacks,
)
from harness.recording.run_spec import RunEnded, RunSpec
from harness.recording.tensors import Digested, WatchedValues, named_values
from harness.trace.format import BATCH_ORIGIN, LOADER_SEED, Scope
from harness.trace.values import Float

# ------------------------------------------------------------------------------------------------- values of optimizers
# What a step of an optimizer reads and writes: gradients, what it remembers of each weight, and its settings.

Setting = tuple[str, Any]
REMEMBERED = (int, float, torch.Tensor)
LARGE_BYTES = 2**16
WHOLE_EVERY = 8
"""Large state is read at every so many steps: it follows from gradients and earlier state."""
OF_PARAMETERS = ("params", "param_names")
"""Entries of a group that hold what it optimizes, not how."""
MAX_DEPTH = 3
"""Of tuples within tuples."""


def settings_of(optimizer: Optimizer, seen: dict[str, Any]) -> list[Setting]:
    """(name, value) of each setting to record now: group0.betas.1, group0.lr.

    A number is recorded in every step: schedules change it. An element of a tuple, a boolean, a text or None is
    recorded in an optimizer's first step, and in each step in which it is not as in `seen`.
    """
    found: list[Setting] = []
    for index, group in enumerate(optimizer.param_groups):
        for key, value in sorted(group.items()):
            name, is_number = f"group{index}.{key}", isinstance(value, int | float) and not isinstance(value, bool)
            for each_name, each in _elements(name, value) if key not in OF_PARAMETERS else ():
                if is_number or isinstance(each, torch.Tensor):
                    found.append((each_name, each))
                elif each_name not in seen or type(seen[each_name]) is not type(each) or seen[each_name] != each:
                    seen[each_name] = each
                    found.append((each_name, str(each) if each is None else each))
    return found


def _elements(name: str, value: Any, depth: int = 0) -> Iterator[Setting]:
    """Yield what can be recorded of an entry; nothing of objects, such as functions."""
    if value is None or isinstance(value, int | float | str | torch.Tensor):
        yield name, value
    elif isinstance(value, list | tuple) and depth < MAX_DEPTH:
        for index, each in enumerate(value):
            yield from _elements(f"{name}.{index}", each, depth + 1)


def gradients_of(parameters: "Named") -> list[tuple[str, torch.Tensor]]:
    """Return each gradient there is, by its parameter's name."""
    return [(name, parameter.grad) for name, parameter in parameters if parameter.grad is not None]


def state_of(optimizer: Optimizer, name: str, parameter: torch.Tensor) -> tuple[list[Setting], list[Setting]]:
    """Return what an optimizer remembers of a weight: (numbers and small tensors, large ones)."""
    small, large = list[Setting](), list[Setting]()
    for key, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, REMEMBERED):
            is_large = isinstance(value, torch.Tensor) and value.nbytes >= LARGE_BYTES
            (large if is_large else small).append((f"{name} {key}", value))
    return small, large


# -------------------------------------------------------------------------------------------------- steps of optimizers
# Optimizers of a program: their names, and which of their steps are one step of the trace.
#
# | the program | steps of the trace |
# |---|---|
# | `loss.backward(); muon.step(); adam.step()` | one: different optimizers apply gradients of the same backward |
# | `d_loss.backward(); d.step(); g_loss.backward(); g.step()` | two, each with a backward of its own |
# | optimizers that step within backward, one for each parameter | one: that of the backward |
# | `loss.backward()`, then each optimizer is made when it first steps | one: others may follow |
#
# Whether another optimizer follows is not known when one has stepped. The step of the trace waits for what happens next
# if another has ever followed this one, if gradients of others are left, and if an optimizer was made after the
# backward. It is written when a batch, a backward, a logged value or the end of the process comes.


# --------------------------------------------------------------------------------------------------- origins of batches
# Where a batch of a DataLoader came from: its worker, the generators that shuffle, the seed of the workers.
#
# All of it is of scope CONTEXT: it explains a difference, and is not compared by itself.

MAIN_PROCESS = -1
"""In place of a worker's number, of a batch that the program's own process has made."""
MAX_SAMPLERS = 4
"""Of samplers that hold a sampler."""


class BatchOrigins:
    """Finds out for each batch where it came from, from the first batch of a worker on."""

    def __init__(self) -> None:
        self._seed: int | None = None
        self._has_workers = False

    def of_batch(self, iterator: Any, tasks: Mapping[int, Any]) -> list[Observation]:
        """Return what to record before the batch that an iterator has just handed out.

        `tasks` are those that its workers had before.
        """
        num_workers = int(getattr(iterator, "_num_workers", 0))
        self._has_workers = self._has_workers or num_workers > 0
        if not self._has_workers:
            return []
        found: list[tuple[str, Any]] = []
        seed = getattr(iterator, "_base_seed", None)
        if num_workers and isinstance(seed, int) and seed != self._seed:
            self._seed = seed
            found.append((LOADER_SEED, seed))
        index, worker = _task(iterator, tasks) if num_workers else (0, MAIN_PROCESS)
        found.append((BATCH_ORIGIN, torch.tensor([index, worker, num_workers], dtype=torch.int32)))
        return [each._replace(tensor=None) for each in look(found, Scope.CONTEXT)]


def generators_of(iterator: Any) -> Iterator[torch.Generator]:
    """Yield the generators that a DataLoader's samplers were given; those of torch itself are not among them."""
    sampler = getattr(iterator, "_index_sampler", None)
    for _ in range(MAX_SAMPLERS):
        held = getattr(sampler, "__dict__", {})
        yield from (each for each in held.values() if isinstance(each, torch.Generator))
        sampler = held.get("sampler", held.get("batch_sampler"))
        if sampler is None:
            return


def _task(iterator: Any, tasks: Mapping[int, Any]) -> tuple[int, int]:
    """(batch, worker) of the task that was handed out; (0, MAIN_PROCESS) where torch does not say."""
    done = tasks.keys() - hooks.tasks_of(iterator).keys()
    # Workers that have come to their end leave tasks behind, which go with the one that is handed out.
    index = getattr(iterator, "_rcvd_idx", 0) - 1 if getattr(iterator, "_in_order", True) else max(done, default=-1)
    task = tasks.get(index)
    return (index, int(task[0])) if index in done and task else (0, MAIN_PROCESS)


# --------------------------------------------------------------------------------------------------- steps of the trace
# Steps of the trace of a program that knows nothing of it: when one begins, what joins it, and when it ends.


class TraceSteps:
    """Begins and ends steps of the trace, and the record of a step's operations with them; names optimizers.

    An optimizer has the name of its class, numbered in the order in which they were made: Muon, AdamW, AdamW#2.
    `guard` calls what it is given as the hooks are called: a mistake ends the recording, never the program.
    """

    def __init__(self, log: ProcessLog, recorder: Recorder, guard: Callable[[Callable[[], None]], None]) -> None:
        self._log, self._recorder, self._guard = log, recorder, guard
        self.random = RandomStates()
        self.loss: Callable[[], Float | None] | None = None
        """Returns that of the last backward in this step, where it is one number."""
        self.is_within = False
        """Whether a backward or an optimizer's step has begun since the last step of the trace ended."""
        self.is_over = False
        """Whether the step of the trace ends with what happens now."""
        self.operations: OpMode | None = None
        """While the operations of a step are recorded."""
        self._step_of_operations = 0
        self._stopped: OpMode | None = None
        """What has recorded operations, as long as it cannot be taken off."""
        self._step = 0
        self._is_finishing = False
        self._states: dict[str, State] | None = None
        """Of generators that were used, as a step left them that waits for other optimizers."""
        self._names: weakref.WeakKeyDictionary[Optimizer, str] = weakref.WeakKeyDictionary()
        self._counts = Counter[str]()
        """How many optimizers of each class were made."""
        self._alone: str | None = None
        """The optimizer that was the only one when it first stepped."""
        self._num_steps: dict[str, int] = {}
        self._stepped: list[str] = []
        """Optimizers of the step that waits."""
        self._last: str | None = None
        """The optimizer that has stepped, if nothing else has happened since."""
        self._followed: set[str] = set()
        """Optimizers right after which another one has ever stepped."""
        self.is_growing = self.has_grown = False
        """Whether an optimizer was made after the last backward, or after any: others may be made before the next."""

    def begin(self) -> bool:
        """Begin a step, if none has begun; says whether it has."""
        if self._recorder.step is not None:
            return False
        self._recorder.begin_step(self._step)
        states, self._states = self._states, None
        self.record_states(self.random.changed() if states is None else states)
        self._start_operations(self._step)
        return True

    def record_states(self, states: Mapping[str, State]) -> None:
        """Record states of random-number generators, by name."""
        found = [Observation(name, Digested("state", (), *state), Scope.CONTEXT) for name, state in states.items()]
        self._recorder.record_seen("rollout", found)

    # ---------------------------------------------------------------------------------------------------- optimizers

    def meet(self, optimizer: Optimizer) -> None:
        """Name an optimizer that has been made, in whatever thread."""
        self._name(optimizer)
        self.is_growing = self.is_growing or self.is_within or self._last is not None
        self.has_grown = self.has_grown or self.is_growing

    def _name(self, optimizer: Optimizer) -> str:
        if (name := self._names.get(optimizer)) is None:
            kind = type(optimizer).__name__
            self._counts[kind] += 1
            name = self._names[optimizer] = kind if self._counts[kind] == 1 else f"{kind}#{self._counts[kind]}"
        return name

    def living(self) -> list[Optimizer]:
        """Return the optimizers that still are, in the order in which they were made."""
        return list(self._names)

    def prefix(self, optimizer: Optimizer) -> str:
        """Return what stands before the names of an optimizer's settings; empty for one that first stepped alone."""
        name = self._name(optimizer)
        return "" if name == self._alone else f"{name}."

    def count(self, optimizer: Optimizer, owner: str = "") -> tuple[str, int]:
        """Count a step; return (prefix, number of the step among this optimizer's own).

        `owner`, a parameter's name, names an optimizer in its first step: in which order it was made must not count.
        """
        name = self._name(optimizer)
        if owner and name not in self._num_steps:
            name = self._names[optimizer] = f"{type(optimizer).__name__} of {owner}"
        elif not self._num_steps and self._counts.total() == 1:
            self._alone = name
        number = self._num_steps[name] = self._num_steps.get(name, -1) + 1
        return self.prefix(optimizer), number

    def join(self, optimizer: Optimizer) -> None:
        """Before an optimizer steps, end the step of the trace that waits, unless this optimizer joins it."""
        name, was_waiting = self._name(optimizer), bool(self._stepped)
        if self._last is not None and name not in (self._last, *self._stepped):
            self._followed.add(self._last)
            return
        self._stepped.clear()
        if was_waiting:
            self.is_over = True
            self.finish()

    def end_or_wait(
        self, stepped: Sequence[Optimizer], leaves_gradients: Callable[[Sequence[Optimizer]], bool]
    ) -> None:
        """Note that optimizers have stepped: the step of the trace is over, unless others are waited for.

        `leaves_gradients` says whether any of these optimizers has gradients that it has not applied.
        """
        self._stepped += [self._name(each) for each in stepped]
        self._last = self._stepped[-1]
        others = [each for each in self._names if self._names[each] not in self._stepped]
        if not self.is_growing and self._last not in self._followed and not leaves_gradients(others):
            self._stepped.clear()
        self.is_over = not self._stepped
        if not self.is_over:
            self._states = {**(self._states or {}), **self.random.changed()}
            self._start_operations(self._step + 1)  # of a step that has begun, if no other optimizer follows
            self.in_phase("forward")

    def settle(self) -> None:
        """Before anything else happens: end the step of the trace that waits for other optimizers."""
        if self._is_finishing:  # the values of the curve that a step ends with
            return
        was_waiting, self._last, self.is_growing = bool(self._stepped), None, False
        self._stepped.clear()
        if was_waiting:
            self.is_over = True
            self.finish()

    def finish(self) -> None:
        """End the step of the trace, if it is over, and begin the next."""
        if self.is_over:
            if self._step_of_operations == self._step:
                self.stop_operations()
            self._guard(self._finish)

    def _finish(self) -> None:
        self.is_within = self.is_over = False
        loss, self.loss = self.loss, None
        self._is_finishing = True
        self._recorder.end_step(**({} if loss is None else {"loss": loss}))
        self._is_finishing = False
        self._step += 1
        if self._log.is_recording:
            self.begin()

    # ---------------------------------------------------------------------------------------------------- operations

    def in_phase(self, phase: str) -> None:
        """Operations are of this phase from now on."""
        if self.operations is not None:
            self.operations.phase = phase

    def stop_operations(self) -> None:
        """Record no operations any more."""
        if self.operations is not None:
            self.operations.stop()
            self.operations, self._stopped = None, self.operations

    def take_off(self) -> None:
        """Take off what has recorded operations, if that was not possible yet."""
        if self._stopped is not None and self._stopped.leave():
            self._stopped = None

    def _start_operations(self, step: int) -> None:
        if step == self._log.orders.op_step and self.operations is None:
            self.operations, self._step_of_operations = self._log.operations(step), step
            self.operations.start()


# ----------------------------------------------------------------------------------------------- the automatic recorder

Named = list[tuple[str, torch.Tensor]]


class AutomaticRecorder:
    """Turns what a program does with torch into steps of a trace. One thread trains at a time."""

    def __init__(self, log: ProcessLog) -> None:
        self._log = log
        orders = log.orders
        if not orders.has_entry:
            log.callbacks = make_callbacks(orders.callbacks)
        keeps, last_step = frozenset(orders.keep).__contains__, None if orders.has_entry else orders.last_step
        self._recorder = Recorder(log, keeps=keeps, last_step=last_step, callbacks=log.callbacks)
        log.recorder = self._recorder
        self._names = ParameterNames()
        self._origins = BatchOrigins()
        self._settings: weakref.WeakKeyDictionary[Optimizer, dict[str, Any]] = weakref.WeakKeyDictionary()
        """Settings of optimizers that were recorded last."""
        self.watched = WatchedValues()
        self._weights: dict[str, Digested] = {}
        """By name, as they were when they were seen last."""
        self._gradients: dict[str, list[Observation]] = {}
        """By name, after each backward since the last step of their optimizer; copies where tensors are kept."""
        self._unchanged, self._made_gradients = DigestCache(), DigestCache()
        self._steps = TraceSteps(log, self._recorder, self._guarded)
        self._num_begun = 0
        """Steps that optimizers have begun, recorded or not."""
        self._awaits_closure = False
        """Whether the optimizer that steps has a closure that it has not called yet."""
        self._in_backward = False
        self._stepped_in_backward: list[Optimizer] = []
        """Those that have stepped within the present backward."""
        self.is_paused = self._is_resting = False
        """Whether hooks rest while a person looks; whether they rest for good."""
        self._threads, self._compiled = TrainingThreads(), hooks.CompiledSteps()
        self._lock = threading.RLock()
        """Held while something is recorded: the autograd engine has a thread for each GPU."""
        os.register_at_fork(after_in_child=lambda: setattr(self, "_lock", threading.RLock()))  # its holder is not there
        self._inputs: dict[str, weakref.ref[torch.Tensor]] = {}
        """Tensors by the names under which they entered modules last."""
        self._known_inputs, self._has_batch = DigestCache(), False
        """`_has_batch` says whether a DataLoader has handed out what the next backward follows from."""
        self._unknown: Named = []
        """What the last gradients are of if its optimizer is not torch's; held until its step has ended."""
        self._seen_in: int | None = None
        """The step in which weights and state were looked at last, before the loss."""
        self._versions: dict[str, int] = {}
        """How often torch has seen each tensor of that state written, then."""
        log.before_close, log.before_values = self._come_to_an_end, self._settle

    def install(self) -> None:
        """Put the hooks in. Once, right after torch has been imported."""
        note_modules()
        self._stepping = hooks.hook_steps(
            self._begin_step,
            self._end_step,
            lambda optimizer: self.guarded(self.after_closure, optimizer),
            self._compiled,
            lambda: self.guarded(self._steps.in_phase, "forward"),
        )
        hooks.hook_optimizers(self.see_optimizer)
        hooks.hook_backward(self._enter_backward, self._leave_backward)
        hooks.hook_scalers(lambda: self._num_begun, self._leave_out_step)
        hooks.hook_loaders(self._receive_batch)
        hooks.hook_forward(self._enter_forward)
        if self._log.orders.op_step == 0 and not self._log.orders.has_entry:
            self._steps.begin()  # nothing announces the first forward, and weights are made before it

    def meet_generators(self) -> None:
        """A module that brings a random-number generator has just been imported."""
        self._guarded(self._steps.random.meet_new)

    def hand_over(self) -> OpMode | None:
        """Rest for good; what records operations since torch was imported, if step 0 was asked for, is the caller's."""
        self._is_resting = True
        operations, self._steps.operations = self._steps.operations, None
        return operations

    def guarded(self, what: Callable[..., None], *arguments: Any) -> None:
        """Call one of the hooks of the thread that trains; a mistake in it ends the recording."""
        if self._is_idle:
            return
        if not self._threads.admit(is_within_step=self._steps.is_within):
            self._log.give_up(AT_ONCE)
            return
        self._guarded(what, *arguments)

    def _guarded(self, what: Callable[..., None], *arguments: Any) -> None:
        """Call what may be called in any thread; a mistake in it ends the recording."""
        if self._is_idle:
            return
        if is_capturing():
            self._log.give_up(
                "the step is captured into a CUDA graph, from which no value can be read:"
                " call optimizer.step() outside it"
            )
            return
        if self._compiled.have_run:
            self._look_for_compiled_steps()
            return
        self._steps.take_off()
        try:
            with self._lock, outside_modes(), torch.no_grad():
                what(*arguments)
        except RunEnded:
            self._log.is_cut = True
            raise
        except Exception as error:  # whatever it is: a program must end as it would have ended unrecorded
            self._log.give_up(f"{type(error).__name__}: {error}")

    @property
    def _is_idle(self) -> bool:
        return self._is_resting or self.is_paused or not self._log.is_recording

    def _come_to_an_end(self) -> None:
        """The process ends: so does a step that waits for other optimizers."""
        self._look_for_compiled_steps()
        self._settle()

    def _settle(self) -> None:
        """Before anything else happens: end a step that is over, whichever optimizer has made it."""
        if self._unknown:
            self._guarded(self._end_unknown_step)
            self._steps.finish()
        self._steps.settle()

    def _look_for_compiled_steps(self) -> None:
        """End the recording if a step was carried out by compiled code, which nothing was seen of."""
        if not self._compiled.have_run or self._is_resting:
            return
        self._steps.stop_operations()
        self._compiled.have_run = False
        self._steps.settle()
        self._steps.finish()  # of a step before it that was about to be written
        self._log.give_up(hooks.NOT_RECORDED)

    # -------------------------------------------------------------------------------------------------- what happens

    def see_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        """An optimizer has been made, in whatever thread; it may go again."""
        if not self._is_idle:
            self._steps.meet(optimizer)

    def see_batch(self, batch: Any, iterator: Any = None, tasks: Mapping[int, Any] = MappingProxyType({})) -> None:
        """An iterator of a DataLoader has handed out a batch; its workers had these tasks before."""
        states = self._steps.random.meet(generators_of(iterator))
        self._steps.begin()
        self._steps.record_states(states)
        self._recorder.record_seen("rollout", self._origins.of_batch(iterator, tasks))
        self._recorder.record_seen("rollout", look(list(named_values(batch, "batch")), Scope.PHYSICAL))
        self._has_batch = True

    def see_inputs(self, module: torch.nn.Module, arguments: Mapping[Any, Any]) -> None:
        """Data of the program's own making enter a module that no other one calls."""
        self._steps.begin()
        named = named_values(arguments, f"batch.{type(module).__name__}")
        data = [(name, each) for name, each in named if _is_data(each)]
        is_known = [(known := self._inputs.get(name)) is not None and known() is each for name, each in data]
        self._inputs |= {name: weakref.ref(each) for name, each in data}
        groups = [
            Group([each], Scope.PHYSICAL, self._known_inputs, is_anew=not known)
            for each, known in zip(data, is_known, strict=True)
        ]
        for seen in look_at_groups(groups):
            self._recorder.record_seen("rollout", seen)

    def see_rollout(self, phase: str, name: str, value: Any) -> None:
        """A trainer that is known has sampled, rewarded or weighed completions; small ones are kept."""
        self._steps.begin()
        self._recorder.record(phase, name, value, scope=Scope.PHYSICAL)

    def before_backward(self, tensors: Any) -> None:
        """The program calls backward on these."""
        self._steps.is_within = self._in_backward = True
        self._stepped_in_backward, self._has_batch = [], False
        first = self._steps.begin()
        parameters = self._parameters(self._steps.living())
        losses = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if not self._num_begun or self._steps.has_grown:  # optimizers may be made for some of the leaves
            self._names.meet(losses)
        if not self._num_begun and not parameters:
            self._names.assign([], with_leaves=True)
        is_new, untracked = first or self._seen_in != self._recorder.step, Named()
        if is_new:
            self._seen_in = self._recorder.step
            untracked = self._names.untracked()
            self._versions = {name: _version(each) for name, each in untracked}
        # State before the loss, which may follow from a target network.
        *state, seen = look_at_groups(
            [
                Group(parameters if is_new else [], cache=self._unchanged),
                Group(untracked, cache=self._unchanged),
                Group([*self.watched.named(), *self._names.modes()] if is_new else []),
                Group([("loss", loss) for loss in losses], Scope.PHYSICAL),
            ]
        )
        for values in state:
            self._record_changed(values)
        self._recorder.record_seen("loss", seen)
        if seen:
            loss = seen[-1].tensor
            self._steps.loss = partial(float_of, seen[-1]._replace(tensor=None if loss is None else loss.detach()))

    def after_backward(self) -> None:
        """The gradients are there; those that optimizers have not applied yet within backward."""
        stepped, self._stepped_in_backward, self._in_backward = self._stepped_in_backward, [], False
        others = [each for each in self._steps.living() if not any(each is one for one in stepped)]
        parameters = self._parameters(others)
        self._unknown = [] if parameters or self._num_begun else self._names.without_optimizer()
        gradients = gradients_of(parameters or self._unknown)
        (found,) = look_at_groups([Group(gradients, Scope.PHYSICAL, self._made_gradients, is_anew=True)])
        needs_tensors = self._recorder.needs_tensors
        for name, digested, scope, tensor, _ in found:
            # What clipping changes later is kept as it is now.
            copy = tensor.clone() if needs_tensors and tensor is not None else None
            self._gradients.setdefault(name, []).append(Observation(name, digested, scope, copy))
        if stepped:
            self._steps.end_or_wait(stepped, self._leave_gradients)

    def before_step(self, optimizer: Optimizer, has_closure: bool = False) -> None:
        """An optimizer begins a step: without a closure, the gradients are those that it gets."""
        self._steps.is_within = True
        self._steps.in_phase("optimizer")
        self._awaits_closure = has_closure
        first = self._steps.begin() or self._steps.is_growing
        has_untracked = not has_closure and not self._stepped_in_backward
        untracked = self._names.untracked() if has_untracked else []
        if self._seen_in == self._recorder.step:  # before the loss: what was written since then
            untracked = [(name, each) for name, each in untracked if self._versions.get(name) != _version(each)]
        if self._in_backward and is_in_backward():
            self._stepped_in_backward.append(optimizer)
        parameters = self._parameters([optimizer])
        if has_closure:
            self._record_changed(look(parameters if first else []))
            return
        watched = list(self.watched.named()) if has_untracked else []
        self._record_inputs(optimizer, parameters, untracked, [*watched, *(parameters if first else [])])

    def after_closure(self, optimizer: Optimizer) -> None:
        """A closure has returned: its optimizer gets these gradients."""
        self._steps.in_phase("optimizer")
        self._record_of_closure(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has ended a step; the trace ends one too, if no other optimizer is waited for."""
        if self._awaits_closure:  # it was never called
            self._record_of_closure(optimizer)
        parameters = self._parameters([optimizer])
        is_whole = self._has_whole_state()
        values, physical = Named(), set[str]()
        for name, each in parameters:
            small, large = state_of(optimizer, name, each)
            values += [(name, each), *small]
            if is_whole:
                values += large
                physical.update([name for name, _ in large])
        (seen,) = look_at_groups([Group(values, cache=self._unchanged, is_anew=True)])
        if physical:
            seen = [each._replace(scope=Scope.PHYSICAL) if each.name in physical else each for each in seen]
        self._recorder.record_seen("optimizer", seen)
        self._weights |= {each.name: each.digested for each in seen}
        self._end_or_wait(optimizer)

    def _has_whole_state(self) -> bool:
        """Whether this step is one whose optimizers' state is recorded with large moments."""
        step, orders = self._recorder.step or 0, self._log.orders
        is_asked = orders.all_state or self._recorder.needs_tensors or self._steps.operations is not None
        return is_asked or step % WHOLE_EVERY == 0 or step == orders.last_step

    def leave_out_step(self, optimizer: Optimizer) -> None:
        """A GradScaler has found gradients that overflowed, and left out the step of their optimizer."""
        self._awaits_closure = False
        self.before_step(optimizer)
        self._recorder.record_seen("optimizer", look([(f"{self._steps.prefix(optimizer)}skipped", True)]))
        self._log.note_skipped()
        self._end_or_wait(optimizer)

    def _end_or_wait(self, optimizer: Optimizer) -> None:
        if self._stepped_in_backward:  # the step of the trace does not end before backward
            self._steps.in_phase("backward")
        else:
            self._steps.end_or_wait([optimizer], self._leave_gradients)

    def _leave_gradients(self, optimizers: Sequence[Optimizer]) -> bool:
        return any(name in self._gradients for name, _ in self._parameters(optimizers))

    def _end_unknown_step(self) -> None:
        """End the step of an optimizer that is not torch's, if a weight was written since the last backward."""
        parameters = self._unknown
        (seen,) = look_at_groups([Group(parameters, cache=self._unchanged)])
        if changed := [each for each in seen if self._weights.get(each.name) != each.digested]:
            self._unknown = []
            self._record_made([name for name, _ in parameters])
            self._weights |= {each.name: each.digested for each in changed}
            self._recorder.record_seen("optimizer", changed)
            self._steps.is_over = True

    def _enter_backward(self, tensors: Any) -> None:
        if is_in_backward():  # activation checkpointing, say: a part of the outer one
            return
        if not self._stepping.optimizers:
            self._settle()
        self.guarded(self.before_backward, tensors)

    def _leave_backward(self) -> None:
        if not is_in_backward():
            self.guarded(self.after_backward)
            self._steps.finish()

    def _enter_forward(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Rollouts and evaluations, which make no graph, are no inputs of a step; batches have been seen."""
        is_other = self._threads.is_another or is_in_backward() or torch._C._get_tracing_state() is not None
        if is_other or self._has_batch or not torch.is_grad_enabled():
            return
        if not self._num_begun:
            self._settle()
        self._guarded(self.see_inputs, module, {**dict(enumerate(args)), **kwargs})

    def _receive_batch(self, batch: Any, iterator: Any, tasks: Mapping[int, Any]) -> None:
        if not self._threads.is_another:  # one that is fetched ahead has no step
            if not self._stepping.optimizers:
                self._settle()
            self.guarded(self.see_batch, batch, iterator, tasks)

    def _begin_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        if self._is_idle:
            return
        self._num_begun += 1
        self._unknown = []
        if has_closure:  # it applies gradients of a backward of its own
            self._steps.settle()
        else:
            self._steps.join(optimizer)
        self.guarded(self.before_step, optimizer, has_closure)

    def _end_step(self, optimizer: Optimizer) -> None:
        self.guarded(self.after_step, optimizer)
        self._steps.finish()

    def _leave_out_step(self, scaler: Any, optimizer: Optimizer) -> None:
        state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
        if any(bool(each) for each in state.get("found_inf_per_device", {}).values()):
            self._steps.join(optimizer)
            self.guarded(self.leave_out_step, optimizer)
            self._steps.finish()

    # ------------------------------------------------------------------------------------------------------- records

    def _record_inputs(
        self,
        optimizer: Optimizer,
        parameters: Named,
        untracked: Named,
        others: Named,
        *,
        is_first: bool = True,
        is_closure: bool = False,
    ) -> None:
        """Record what a step of an optimizer, or a call of its closure, depends on; with one wait for a GPU.

        In this order: untracked state (buffers, frozen weights, averaged and target networks) and `others`, where they
        are not as they were; gradients as each backward has left them, then as the optimizer gets them, since clipping
        lies in between; settings. Others are watched values, and weights that the recorder has not seen or that
        something else than their optimizer may have changed. Every element of these is read, so that a write past
        torch's count is found in its step.
        """
        settings, number = self._settings_of(optimizer, parameters) if is_first else ([], [])
        changing, watched, final, *how = look_at_groups(
            [
                Group(untracked, cache=self._unchanged),
                Group(others),
                Group(gradients_of(parameters), cache=self._made_gradients),
                Group(settings),
                Group(number, Scope.CONTEXT),  # a resumed run counts anew
            ]
        )
        self._record_changed(changing)
        self._record_changed(watched)
        self._record_made([each.name for each in final])
        self._recorder.record_seen("backward", final)
        if is_closure:  # it may end with zero_grad
            names = {name for name, _ in parameters}
            self._record_made([name for name in self._gradients if name.partition(" ")[0] in names])
        for values in how:
            self._recorder.record_seen("optimizer", values)

    def _record_changed(self, values: Sequence[Observation]) -> None:
        self._recorder.record_seen("forward", values, previous=self._weights)
        self._weights |= {each.name: each.digested for each in values}

    def _record_of_closure(self, optimizer: Optimizer) -> None:
        """What one call of a closure has left; the optimizer's settings with the first call of a step."""
        is_first, self._awaits_closure = self._awaits_closure, False
        untracked, watched = self._names.untracked(), list(self.watched.named())
        parameters = self._parameters([optimizer])
        self._record_inputs(optimizer, parameters, untracked, watched, is_first=is_first, is_closure=True)

    def _settings_of(self, optimizer: Optimizer, parameters: Named) -> tuple[list[Setting], list[Setting]]:
        """How an optimizer steps, under its name where the program has several; then the number of its step."""
        is_one_of_several = self._steps.is_growing and self._names.has_reserved
        prefix, number = self._steps.count(optimizer, parameters[0][0] if is_one_of_several and parameters else "")
        seen = self._settings.setdefault(optimizer, {})
        settings = [(f"{prefix}{name}", value) for name, value in settings_of(optimizer, seen)]
        return settings, [(f"{prefix}step", number)] if prefix else []

    def _record_made(self, names: Sequence[str]) -> None:
        """What each backward has left of the gradients of these parameters."""
        made = [self._gradients.pop(name, []) for name in names]
        for of_one_backward in zip_longest(*made):
            self._recorder.record_seen("backward", [each for each in of_one_backward if each is not None])

    def _parameters(self, optimizers: Sequence[Optimizer]) -> Named:
        """(name, parameter) of everything that these optimize, once where several do."""
        parameters = list({id(each): each for one in optimizers for each in parameters_of(one)}.values())
        named = self._names.named(parameters)
        if not parameters or len(named) < len(parameters):
            self._names.assign(parameters, with_leaves=self._steps.is_growing)
            named = self._names.named(parameters)
        return named


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _is_data(value: Any) -> bool:
    """Whether a value is a tensor with memory that follows from nothing; not a parameter, nor what vmap has."""
    if type(value) is not torch.Tensor or value.grad_fn is not None or value.is_meta:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(value)


# ---------------------------------------------------------------------------------------- the recording of this process
# The recording of this process: there is one, or none.


@dataclass(slots=True)
class _Active:
    log: ProcessLog | None = None
    foreign: AutomaticRecorder | None = None


_active = _Active()


def start_recording(orders: RunSpec) -> None:
    """Record this process from here on, by hooks in torch; called once, right after torch has been imported."""
    log = ProcessLog(orders)
    if without_effect := set_flags(orders.level):
        log.give_up(f"the level {orders.level} had no effect on {', '.join(without_effect)}")
    _active.log, _active.foreign = log, AutomaticRecorder(log)
    _active.foreign.install()
    if orders.sentinel:
        from harness.recording.sentinel import start_sentinel

        start_sentinel(orders.sentinel, Path(orders.directory))
    metrics = PrintedMetrics(orders.metrics, log.log_values, log.note_metrics)
    metrics.watch_streams(has_json=not orders.has_entry)


def open_recorder(place: Place | None = None) -> Recorder | NullRecorder:
    """The recorder of this process, for a program that names its steps and phases itself.

    The hooks in torch record nothing from then on. `place` is that of this process among those that record together.
    """
    log, foreign = _active.log, _active.foreign
    if log is None:
        return NullRecorder()
    begun = None
    if foreign is not None:
        begun = foreign.hand_over()
        _active.foreign = None
    orders = log.orders

    if place is not None:
        log.place = place
    log.callbacks = callbacks = make_callbacks(orders.callbacks, is_first=place is None)

    def operations(step: int) -> OpMode | None:
        return (begun or log.operations(step)) if step == orders.op_step else None

    keeps = frozenset(orders.keep).__contains__
    last_step = orders.last_step if place is None else None  # the first process ends the run
    log.recorder = Recorder(
        log, keeps=keeps, operations=operations, last_step=last_step, callbacks=callbacks, share=_share, close=log.close
    )
    log.recorder.describe = partial(setattr, log, "content")
    return log.recorder


def _share(num_others: int) -> list[partial[Recorder | NullRecorder]]:
    """Make this process the first of those that record together; again, if the others have died and start again."""
    log, num_ranks = _active.log, num_others + 1
    assert log is not None, "its recorder is open"
    continues = log.place is not None
    log.place = Place(0, num_ranks)
    if continues:
        log.repeat()
    return [partial(open_recorder, Place(rank, num_ranks, continues)) for rank in range(1, num_ranks)]


def log_values(values: Mapping[str, Float]) -> None:
    """Log values of the curve, where this process records."""
    if _active.log is not None:
        _active.log.log_values(values)


def see_rollout(phase: str, name: str, value: Any) -> None:
    """Record what a known trainer has sampled, rewarded or weighed, if the hooks in torch are at work."""
    if _active.foreign is not None:
        _active.foreign.guarded(_active.foreign.see_rollout, phase, name, value)


def watch(name: str, value: Any) -> None:
    """Watch a value of the program, if the hooks in torch are at work."""
    if _active.foreign is not None:
        _active.foreign.watched.watch(name, value)


def meet_generators() -> None:
    """A module that brings a random-number generator has just been imported."""
    if _active.foreign is not None:
        _active.foreign.guarded(_active.foreign.meet_generators)


@contextmanager
def paused_hooks() -> Iterator[None]:
    """Let the hooks in torch rest."""
    foreign = _active.foreign
    if foreign is not None:
        foreign.is_paused = True
    try:
        yield
    finally:
        if foreign is not None:
            foreign.is_paused = False


def active_log() -> ProcessLog | None:
    """Where values of the curve go; None where nothing is recorded."""
    return _active.log
