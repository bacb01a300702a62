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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import torch
from torch.optim import Optimizer

from harness.recording.batch_origins import BatchOrigins, generators_of
from harness.recording.callbacks import make_callbacks
from harness.recording.closures import Arguments, HookedClosure, closure_of, replace_closure
from harness.recording.compiled import NOT_RECORDED, CompiledSteps
from harness.recording.cuda_state import is_capturing
from harness.recording.digest_cache import DigestCache, Group, look_at_groups
from harness.recording.hooks import (
    Stepping,
    hook_backward,
    hook_forward,
    hook_loaders,
    hook_optimizers,
    hook_scalers,
    hook_steps,
)
from harness.recording.names import ParameterNames, note_modules
from harness.recording.nested_values import WatchedValues, named_values
from harness.recording.op_mode import OpMode
from harness.recording.optimizer_steps import OptimizerNames
from harness.recording.optimizer_values import WHOLE_EVERY, OptimizerSettings, Setting, gradients_of, state_of
from harness.recording.process import ProcessLog
from harness.recording.program_modes import outside_modes
from harness.recording.recorder import Observation, Recorder, float_of, look
from harness.recording.run_spec import RunEnded
from harness.recording.tensors import Digested
from harness.recording.trace_steps import TraceSteps
from harness.recording.training_threads import AT_ONCE, TrainingThreads, is_in_backward
from harness.trace.chain import Scope

Named = list[tuple[str, torch.Tensor]]
SKIPPED = "skipped"
"""Name of the value that stands in a step that a GradScaler has left out."""


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
        self._settings, self._origins = OptimizerSettings(), BatchOrigins()
        self.watched = WatchedValues()
        self._weights: dict[str, Digested] = {}
        """By name, as they were when they were seen last."""
        self._gradients: dict[str, list[Observation]] = {}
        """By name, after each backward since the last step of their optimizer; copies where tensors are kept."""
        self._unchanged, self._made_gradients = DigestCache(), DigestCache()
        self._optimizers = OptimizerNames()
        self._steps = TraceSteps(log, self._recorder, self._optimizers, self._guarded)
        self._stepping = Stepping()
        self._num_begun = 0
        """Steps that optimizers have begun, recorded or not."""
        self._awaits_closure = False
        """Whether the optimizer that steps has a closure that it has not called yet."""
        self._in_backward = False
        self._stepped_in_backward: list[Optimizer] = []
        """Those that have stepped within the present backward."""
        self._is_resting = self._is_paused = False
        self._threads, self._compiled = TrainingThreads(), CompiledSteps()
        self._lock = threading.RLock()
        """Held while something is recorded: the autograd engine has a thread for each GPU."""
        os.register_at_fork(after_in_child=self._renew_lock)
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
        hook_steps(self._begin_step, self._end_step, self._stepping, self._compiled)
        hook_optimizers(self.see_optimizer)
        hook_backward(self._enter_backward, self._leave_backward)
        hook_scalers(lambda: self._num_begun, self._leave_out_step)
        hook_loaders(self._receive_batch)
        hook_forward(self._enter_forward)
        if self._log.orders.op_step == 0 and not self._log.orders.has_entry:
            self._steps.begin()  # nothing announces the first forward, and weights are made before it

    def meet_generators(self) -> None:
        """A module that brings a random-number generator has just been imported."""
        self._guarded(self._steps.random.meet_new)

    def rest(self, is_resting: bool = True) -> None:
        """Pause or resume the hooks: a program that records itself does not need them."""
        self._is_resting = is_resting

    def pause(self, is_paused: bool) -> None:
        """Pause the hooks while a step is repeated; they resume unless they rested before."""
        self._is_paused = is_paused

    def hand_over(self) -> OpMode | None:
        """Rest for good; what records operations since torch was imported, if step 0 was asked for, is the caller's."""
        self.rest()
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
        return self._is_resting or self._is_paused or not self._log.is_recording

    def _renew_lock(self) -> None:
        """In a forked child: whoever held the lock is not there."""
        self._lock = threading.RLock()

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
        self._log.give_up(NOT_RECORDED)

    # -------------------------------------------------------------------------------------------------- what happens

    def see_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        """An optimizer has been made, in whatever thread; it may go again."""
        if not self._is_resting:
            self._steps.meet(optimizer)

    def see_batch(self, batch: Any, iterator: Any = None, tasks: Mapping[int, Any] = MappingProxyType({})) -> None:
        """An iterator of a DataLoader has handed out a batch; its workers had these tasks before."""
        states = self._steps.random.meet(generators_of(iterator))
        self._steps.begin()
        self._steps.record_states(states)
        self._record("rollout", self._origins.of_batch(iterator, tasks))
        self._record("rollout", look(list(named_values(batch, "batch")), Scope.PHYSICAL))
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
            self._record("rollout", seen)

    def see_rollout(self, phase: str, name: str, value: Any) -> None:
        """A trainer that is known has sampled, rewarded or weighed completions; small ones are kept."""
        self._steps.begin()
        self._recorder.record(phase, name, value, scope=Scope.PHYSICAL)

    def before_backward(self, tensors: Any) -> None:
        """The program calls backward on these."""
        self._steps.is_within = self._in_backward = True
        self._stepped_in_backward, self._has_batch = [], False
        first = self._steps.begin()
        parameters = self._parameters(self._optimizers.living())
        losses = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        if not self._num_begun or self._steps.joined.has_grown:  # optimizers may be made for some of the leaves
            self._names.meet(losses)
        if not self._num_begun and not parameters:
            self._names.assign([], with_leaves=True)
        is_new = first or self._seen_in != self._recorder.step
        if is_new:
            self._seen_in = self._recorder.step
            self._versions = {name: _version(each) for name, each in self._names.untracked()}
        # State before the loss, which may follow from a target network.
        *state, seen = look_at_groups(
            [
                Group(parameters if is_new else [], cache=self._unchanged),
                Group(self._names.untracked() if is_new else [], cache=self._unchanged),
                Group([*self.watched.named(), *self._names.modes()] if is_new else []),
                Group([("loss", loss) for loss in losses], Scope.PHYSICAL),
            ]
        )
        for values in state:
            self._record_changed(values)
        self._record("loss", seen)
        if seen:
            loss = seen[-1].tensor
            self._steps.loss = partial(float_of, seen[-1]._replace(tensor=None if loss is None else loss.detach()))

    def after_backward(self) -> None:
        """The gradients are there; those that optimizers have not applied yet within backward."""
        stepped, self._stepped_in_backward, self._in_backward = self._stepped_in_backward, [], False
        others = [each for each in self._optimizers.living() if not any(each is one for one in stepped)]
        parameters = self._parameters(others)
        self._unknown = [] if parameters or self._num_begun else self._names.without_optimizer()
        gradients = gradients_of(parameters or self._unknown)
        (found,) = look_at_groups([Group(gradients, Scope.PHYSICAL, self._made_gradients, is_anew=True)])
        for seen in found:
            # What clipping changes later is kept as it is now.
            copy = seen.tensor.clone() if seen.tensor is not None and self._recorder.needs_tensors else None
            self._gradients.setdefault(seen.name, []).append(seen._replace(tensor=copy))
        if stepped:
            self._steps.end_or_wait(stepped, self._leave_gradients)

    def before_step(self, optimizer: Optimizer, has_closure: bool = False) -> None:
        """An optimizer begins a step: without a closure, the gradients are those that it gets."""
        self._stepping.optimizers.append(optimizer)
        if len(self._stepping.optimizers) > 1:  # a class whose step calls that of its base
            return
        self._steps.is_within = True
        self._steps.in_phase("optimizer")
        self._awaits_closure = has_closure
        first = self._steps.begin() or self._steps.joined.is_growing
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
        self._record_inputs(optimizer, untracked, [*watched, *(parameters if first else [])])

    def before_closure(self) -> None:
        """An optimizer calls its closure."""
        self._steps.in_phase("forward")

    def after_closure(self, optimizer: Optimizer, has_returned: bool) -> None:
        """A closure has ended; if it returned, its optimizer gets these gradients."""
        if not has_returned:  # the step ends with it
            self._stepping.optimizers.clear()
            return
        self._steps.in_phase("optimizer")
        self._record_of_closure(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has ended a step; the trace ends one too, if no other optimizer is waited for."""
        if self._stepping.optimizers:
            self._stepping.optimizers.pop()
        if self._stepping.optimizers:
            return
        if self._awaits_closure:  # it was never called
            self._record_of_closure(optimizer)
        parameters = self._parameters([optimizer])
        names = {name for name, _ in parameters}
        is_whole = self._has_whole_state()
        groups = []
        for name, each in parameters:
            small, large = state_of(optimizer, name, each)
            groups.append(Group([(name, each)], cache=self._unchanged, is_anew=True))
            groups += [Group(small), Group(large if is_whole else [], Scope.PHYSICAL)]
        seen = [each for group in look_at_groups(groups) for each in group]
        self._record("optimizer", seen)
        self._weights |= {each.name: each.digested for each in seen if each.name in names}
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
        self._stepping.optimizers.pop()
        self._record("optimizer", look([(f"{self._optimizers.prefix(optimizer)}{SKIPPED}", True)]))
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
            self._record("optimizer", changed)
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

    def _begin_step(self, optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments | None:
        """The arguments of the step, where they have to be others."""
        self._num_begun += 1
        self._unknown = []
        closure = closure_of(args, kwargs)
        if not self._stepping.optimizers and closure is None:
            self._steps.join(optimizer)
        elif not self._stepping.optimizers:  # it applies gradients of a backward of its own
            self._steps.settle()
        self.guarded(self.before_step, optimizer, closure is not None)
        if closure is None or len(self._stepping.optimizers) != 1 or not self._awaits_closure:
            return None
        hooked = HookedClosure(
            closure,
            lambda: self.guarded(self.before_closure),
            lambda has_returned: self.guarded(self.after_closure, optimizer, has_returned),
        )
        return replace_closure(args, kwargs, hooked)

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
        self, optimizer: Optimizer, untracked: Named, others: Named, *, is_first: bool = True, is_closure: bool = False
    ) -> None:
        """Record what a step of an optimizer, or a call of its closure, depends on; with one wait for a GPU.

        In this order: untracked state (buffers, frozen weights, averaged and target networks) and `others`, where they
        are not as they were; gradients as each backward has left them, then as the optimizer gets them, since clipping
        lies in between; settings. Others are watched values, and weights that the recorder has not seen or that
        something else than their optimizer may have changed. Every element of these is read, so that a write past
        torch's count is found in its step.
        """
        parameters = self._parameters([optimizer])
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
        self._record("backward", final)
        if is_closure:  # it may end with zero_grad
            names = {name for name, _ in parameters}
            self._record_made([name for name in self._gradients if name.partition(" ")[0] in names])
        for values in how:
            self._record("optimizer", values)

    def _record_changed(self, values: Sequence[Observation]) -> None:
        for each in values:
            self._recorder.record_seen("forward", each, previous=self._weights.get(each.name))
            self._weights[each.name] = each.digested

    def _record_of_closure(self, optimizer: Optimizer) -> None:
        """What one call of a closure has left; the optimizer's settings with the first call of a step."""
        is_first, self._awaits_closure = self._awaits_closure, False
        untracked, watched = self._names.untracked(), list(self.watched.named())
        self._record_inputs(optimizer, untracked, watched, is_first=is_first, is_closure=True)

    def _settings_of(self, optimizer: Optimizer, parameters: Named) -> tuple[list[Setting], list[Setting]]:
        """How an optimizer steps, under its name where the program has several; then the number of its step."""
        is_one_of_several = self._steps.joined.is_growing and self._names.has_reserved
        prefix, number = self._optimizers.begin(optimizer, parameters[0][0] if is_one_of_several and parameters else "")
        settings = [(f"{prefix}{name}", value) for name, value in self._settings.settings(optimizer)]
        return settings, [(f"{prefix}step", number)] if prefix else []

    def _record_made(self, names: Sequence[str]) -> None:
        """What each backward has left of the gradients of these parameters."""
        made = [self._gradients.pop(name, []) for name in names]
        for of_one_backward in zip_longest(*made):
            self._record("backward", [each for each in of_one_backward if each is not None])

    def _record(self, phase: str, values: Sequence[Observation]) -> None:
        for each in values:
            self._recorder.record_seen(phase, each)

    def _parameters(self, optimizers: Sequence[Optimizer]) -> Named:
        """(name, parameter) of everything that these optimize, once where several do."""
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        parameters = list({id(each): each for group in groups for each in group["params"]}.values())
        self._names.assign(parameters, with_leaves=self._steps.joined.is_growing)
        return [(self._names.name(parameter) or "", parameter) for parameter in parameters]


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _is_data(value: Any) -> bool:
    """Whether a value is a tensor with memory that follows from nothing; not a parameter, nor what vmap has."""
    if type(value) is not torch.Tensor or value.grad_fn is not None or value.is_meta:
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(value)
