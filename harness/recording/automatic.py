"""Records a PyTorch program that knows nothing of it: an optimizer's step ends a step of the trace.

    DataLoader ─batch─▶ backward() ─loss, gradients─▶ Optimizer.step() ─▶ weights, state ─▶ the frame is written

An optimizer that is given a closure has it call backward within its step: gradients are recorded after each call.
The hooks look and pass on: what the program computes, draws and prints stays as it is. Whatever goes wrong in them
ends the recording, never the program.
"""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from harness.recording.batch_origins import BatchOrigins, generators_of
from harness.recording.callbacks import make_callbacks
from harness.recording.closures import Arguments, HookedClosure, closure_of, replace_closure
from harness.recording.compiled import NOT_RECORDED, CompiledSteps
from harness.recording.cuda_state import is_capturing
from harness.recording.digest_cache import DigestCache, Group, look_at_groups
from harness.recording.hooks import hook_backward, hook_loaders, hook_optimizers, hook_steps
from harness.recording.names import ParameterNames
from harness.recording.nested_values import named_values
from harness.recording.op_mode import OpMode
from harness.recording.optimizer_settings import OptimizerSettings
from harness.recording.process import ProcessLog
from harness.recording.random_states import RandomStates, State
from harness.recording.recorder import Observation, Recorder, as_float, look
from harness.recording.tensors import Digested
from harness.recording.watched_values import WatchedValues
from harness.trace.chain import Scope

Named = list[tuple[str, torch.Tensor]]
REMEMBERED = (int, float, torch.Tensor)


class AutomaticRecorder:
    """Turns what a program does with torch into steps of a trace. One thread steps the optimizers."""

    def __init__(self, log: ProcessLog) -> None:
        self._log = log
        orders = log.orders
        if not orders.has_entry:
            log.callbacks = make_callbacks(orders.callbacks)
        self._recorder = Recorder(log, keeps=frozenset(orders.keep).__contains__, callbacks=log.callbacks)
        log.recorder = self._recorder
        self._names = ParameterNames()
        self._random = RandomStates()
        self._settings, self._origins = OptimizerSettings(), BatchOrigins()
        self.watched = WatchedValues()
        self._weights: dict[str, Digested] = {}
        """By name, as they were when they were seen last."""
        self._gradients: dict[str, list[Observation]] = {}
        """By name, after each backward since the last step of their optimizer; copies where tensors are kept."""
        self._unchanged, self._made_gradients = DigestCache(), DigestCache()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._stepping: list[Optimizer] = []
        self._awaits_closure = False
        """Whether the optimizer that steps has a closure that it has not called yet."""
        self._loss: torch.Tensor | None = None
        self._step = 0
        self._is_resting = False
        self._is_paused = False
        self._thread: int | None = None
        """The one that trains."""
        self._operations: OpMode | None = None
        """While the operations of a step are recorded."""
        self._stopped: OpMode | None = None
        """What has recorded operations, as long as it cannot be taken off."""
        self._compiled = CompiledSteps()
        log.before_close = self._look_for_compiled_steps

    def install(self) -> None:
        """Put the hooks in. Once, right after torch has been imported."""
        hook_steps(self._begin_step, self._end_step, self._stepping, self._compiled)
        hook_optimizers(self.see_optimizer)
        hook_backward(self._enter_backward, self._leave_backward)
        hook_loaders(self._receive_batch)
        if self._log.orders.op_step == 0 and not self._log.orders.has_entry:
            self._begin()  # nothing announces the first forward, and weights are made before it

    def meet_generators(self) -> None:
        """A module that brings a random-number generator has just been imported."""
        self._random.meet_new()

    def rest(self, is_resting: bool = True) -> None:
        """Pause or resume the hooks: a program that records itself does not need them."""
        self._is_resting = is_resting

    def pause(self, is_paused: bool) -> None:
        """Pause the hooks while a step is repeated; they resume unless they rested before."""
        self._is_paused = is_paused

    def hand_over(self) -> OpMode | None:
        """Rest for good; what records operations since torch was imported, if step 0 was asked for, is the caller's."""
        self.rest()
        operations, self._operations = self._operations, None
        return operations

    def guarded(self, what: Callable[..., None], *arguments: Any) -> None:
        """Call one of the hooks; a mistake in it ends the recording."""
        if self._is_resting or self._is_paused or not self._log.is_recording:
            return
        if self._thread not in (None, threading.get_ident()):
            self._log.give_up("two threads train in one process, and the order between threads is not known")
            return
        if is_capturing():
            self._log.give_up("the step is captured into a CUDA graph, from which no value can be read")
            return
        if self._compiled.have_run:
            self._look_for_compiled_steps()
            return
        if self._stopped is not None and self._stopped.leave():
            self._stopped = None
        try:
            with torch.no_grad(), self._unrecorded():
                what(*arguments)
        except Exception as error:  # whatever it is: a program must end as it would have ended unrecorded
            self._log.give_up(f"{type(error).__name__}: {error}")

    def _look_for_compiled_steps(self) -> None:
        """End the recording if a step was carried out by compiled code, which nothing was seen of."""
        if not self._compiled.have_run or self._is_resting:
            return
        self._stop_operations()
        self._log.give_up(NOT_RECORDED)

    # -------------------------------------------------------------------------------------------------- what happens

    def see_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        """An optimizer has been made, in whatever thread; it may go again."""
        if self._is_resting:
            return
        self._optimizers = [each for each in self._optimizers if each() not in (None, optimizer)]
        self._optimizers.append(weakref.ref(optimizer))

    def see_batch(self, batch: Any, iterator: Any = None, tasks: Mapping[int, Any] = MappingProxyType({})) -> None:
        """An iterator of a DataLoader has handed out a batch; its workers had these tasks before."""
        states = self._random.meet(generators_of(iterator))
        self._begin()
        self._record_states(states)
        self._record("rollout", self._origins.of_batch(iterator, tasks))
        self._record("rollout", look(list(named_values(batch, "batch")), Scope.PHYSICAL))

    def see_rollout(self, phase: str, name: str, value: Any) -> None:
        """A trainer that is known has sampled, rewarded or weighed completions; small ones are kept."""
        self._begin()
        self._recorder.record(phase, name, value, scope=Scope.PHYSICAL)

    def before_backward(self, tensors: Any) -> None:
        """The program calls backward on these; from then on, its thread is the one that trains."""
        self._thread = threading.get_ident()
        first = self._begin()
        parameters = self._parameters(self._living_optimizers())
        if first or not self._gradients:
            self._record_weights(parameters)
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
            self._recorder.record("loss", "loss", tensor, scope=Scope.PHYSICAL)
            self._loss = tensor.detach()

    def after_backward(self) -> None:
        """The gradients are there."""
        gradients = _gradients(self._parameters(self._living_optimizers()))
        (found,) = look_at_groups([Group(gradients, Scope.PHYSICAL, self._made_gradients, is_anew=True)])
        for seen in found:
            # What clipping changes later is kept as it is now.
            copy = seen.tensor.clone() if seen.tensor is not None and self._recorder.keeps_tensors else None
            self._gradients.setdefault(seen.name, []).append(seen._replace(tensor=copy))

    def before_step(self, optimizer: Optimizer, has_closure: bool = False) -> None:
        """An optimizer begins a step: without a closure, the gradients are those that it gets."""
        self._stepping.append(optimizer)
        if len(self._stepping) > 1:  # a class whose step calls that of its base
            return
        if self._operations is not None:
            self._operations.phase = "optimizer"
        self._awaits_closure = has_closure
        first = self._begin()
        if not has_closure:
            self._record_untracked()
        if not any(each() is optimizer for each in self._optimizers):
            self.see_optimizer(optimizer)
        parameters = self._parameters([optimizer])
        if first:
            self._record_weights(parameters)
        if not has_closure:
            self._record_gradients(parameters)
            self._record("optimizer", look(self._settings.settings(optimizer)))

    def before_closure(self) -> None:
        """An optimizer calls its closure."""
        if self._operations is not None:
            self._operations.phase = "forward"

    def after_closure(self, optimizer: Optimizer, has_returned: bool) -> None:
        """A closure has ended; if it returned, its optimizer gets these gradients."""
        if not has_returned:  # the step ends with it
            self._stepping.clear()
            return
        if self._operations is not None:
            self._operations.phase = "optimizer"
        self._record_of_closure(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has ended a step, and the trace one of its own."""
        if self._stepping:
            self._stepping.pop()
        if self._stepping:
            return
        if self._awaits_closure:  # it was never called
            self._record_of_closure(optimizer)
        parameters = self._parameters([optimizer])
        names = {name for name, _ in parameters}
        seen = look(_states(optimizer, parameters))
        self._record("optimizer", seen)
        self._weights |= {each.name: each.digested for each in seen if each.name in names}
        loss, self._loss = self._loss, None
        values = {} if loss is None or loss.numel() != 1 else {"loss": as_float(loss)}
        self._recorder.end_step(**values)
        self._step += 1
        if self._log.is_recording:
            self._begin()

    def _enter_backward(self, tensors: Any) -> None:
        self.guarded(self.before_backward, tensors)

    def _leave_backward(self) -> None:
        self.guarded(self.after_backward)

    def _receive_batch(self, batch: Any, iterator: Any, tasks: Mapping[int, Any]) -> None:
        if self._thread in (None, threading.get_ident()):  # one that is fetched ahead has no step
            self.guarded(self.see_batch, batch, iterator, tasks)

    def _begin_step(self, optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments | None:
        """The arguments of the step, where they have to be others."""
        closure = closure_of(args, kwargs)
        self.guarded(self.before_step, optimizer, closure is not None)
        if closure is None or len(self._stepping) != 1 or not self._awaits_closure:
            return None
        hooked = HookedClosure(
            closure,
            lambda: self.guarded(self.before_closure),
            lambda has_returned: self.guarded(self.after_closure, optimizer, has_returned),
        )
        return replace_closure(args, kwargs, hooked)

    def _end_step(self, optimizer: Optimizer) -> None:
        if len(self._stepping) <= 1:
            self._stop_operations()
        self.guarded(self.after_step, optimizer)

    def _stop_operations(self) -> None:
        if self._operations is not None:
            self._operations.stop()
            self._operations, self._stopped = None, self._operations

    def _unrecorded(self) -> AbstractContextManager[Any]:
        """What the hooks do themselves is no operation of the program."""
        return nullcontext() if self._operations is None else _disable_current_modes()

    # ------------------------------------------------------------------------------------------------------- records

    def _begin(self) -> bool:
        """Begin a step, if none has begun; says whether it has."""
        if self._recorder.step is not None:
            return False
        self._recorder.begin_step(self._step)
        self._record_states(self._random.changed())
        if self._step == self._log.orders.op_step:
            self._operations = self._log.operations(self._step)
            self._operations.start()
        return True

    def _record_states(self, states: Mapping[str, State]) -> None:
        for name, state in states.items():
            self._recorder.record_seen("rollout", Observation(name, Digested("state", (), *state), Scope.CONTEXT))

    def _record_weights(self, parameters: Named) -> None:
        """Those that nobody has seen yet, or that somebody else than their optimizer has changed.

        Every element is read: a write to a single one, past torch's count of writes, is found in its step.
        """
        self._record_changed(look(parameters))

    def _record_untracked(self) -> None:
        """Buffers, frozen weights, averaged and target networks, watched values, where they are not as they were."""
        self._record_changed(self._unchanged.look(self._names.untracked()))
        self._record_changed(look(list(self.watched.named())))

    def _record_changed(self, values: Sequence[Observation]) -> None:
        changed = [each for each in values if self._weights.get(each.name) != each.digested]
        self._weights |= {each.name: each.digested for each in changed}
        self._record("forward", changed)

    def _record_of_closure(self, optimizer: Optimizer) -> None:
        """What one call of a closure has left; the optimizer's settings with the first call of a step."""
        is_first_call, self._awaits_closure = self._awaits_closure, False
        self._record_untracked()
        parameters = self._parameters([optimizer])
        self._record_gradients(parameters)
        names = {name for name, _ in parameters}  # the closure may end with zero_grad
        self._record_made([name for name in self._gradients if name.partition(" ")[0] in names])
        if is_first_call:
            self._record("optimizer", look(self._settings.settings(optimizer)))

    def _record_gradients(self, parameters: Named) -> None:
        """What each backward has left, then what the optimizer gets: clipping lies in between."""
        final = self._made_gradients.look(_gradients(parameters))
        self._record_made([each.name for each in final])
        self._record("backward", final)

    def _record_made(self, names: Sequence[str]) -> None:
        """What each backward has left of the gradients of these parameters."""
        made = [self._gradients.pop(name, []) for name in names]
        for of_one_backward in zip_longest(*made):
            self._record("backward", [each for each in of_one_backward if each is not None])

    def _record(self, phase: str, values: Sequence[Observation]) -> None:
        for each in values:
            self._recorder.record_seen(phase, each)

    def _living_optimizers(self) -> list[Optimizer]:
        return [optimizer for each in self._optimizers if (optimizer := each()) is not None]

    def _parameters(self, optimizers: Sequence[Optimizer]) -> Named:
        """(name, parameter) of everything that these optimize."""
        parameters = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        self._names.assign(parameters)
        return [(self._names.name(parameter) or "", parameter) for parameter in parameters]


def _gradients(parameters: Named) -> Named:
    return [(name, parameter.grad) for name, parameter in parameters if parameter.grad is not None]


def _states(optimizer: Optimizer, parameters: Named) -> list[tuple[str, Any]]:
    """Each weight, then what its optimizer remembers of it."""
    found: list[tuple[str, Any]] = []
    for name, parameter in parameters:
        found.append((name, parameter))
        state = optimizer.state.get(parameter, {})
        found += [(f"{name} {key}", value) for key, value in state.items() if isinstance(value, REMEMBERED)]
    return found
