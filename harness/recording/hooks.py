"""Hooks in torch: around optimizers, backward and data loaders. What a program computes with them is as without them.

torch.compile traces the Python of a program, these functions included: whatever they read before they have asked
`torch.compiler.is_compiling()` is guarded in the program's compiled code.
"""

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from harness.recording.batch_origins import tasks_of
from harness.recording.closures import Arguments, HookedClosure, closure_of, replace_closure
from harness.recording.compiled import CompiledSteps, breaks_graph, keep_uncompiled

Begin = Callable[[Optimizer, Sequence[Any], dict[str, Any]], Arguments | None]


class Stepping(threading.local):
    """Optimizers that step now in this thread: those of the autograd engine step beside each other."""

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []


def hook_steps(begin: Begin, end: Callable[[Optimizer], None], stepping: Stepping, compiled: CompiledSteps) -> None:
    """Call `begin` and `end` around each step of an optimizer.

    `begin` gets the arguments of the step, and may return others. `stepping` holds optimizers while they step.
    """
    breaking = tuple(each for each in _optimizer_classes() if breaks_graph(each.step))

    def enter(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if torch.compiler.is_compiling():
            if type(optimizer) not in breaking:
                compiled.have_run = True
            return None
        return begin(optimizer, args, kwargs)

    def leave(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            end(optimizer)

    _leave_to_python(begin, end, enter, leave)
    register_optimizer_step_pre_hook(enter)
    register_optimizer_step_post_hook(leave)
    for each in breaking:
        if "step" in vars(each):
            each.step = _around_step(each.step, begin, end, stepping)  # type: ignore[method-assign]


def hook_outermost_steps(
    before: Callable[[Optimizer, bool], None],
    after: Callable[[Optimizer], None],
    after_closure: Callable[[Optimizer], None],
    compiled: CompiledSteps,
) -> None:
    """Call `before` and `after` around each step of an optimizer that no other's step calls.

    `before` is given whether the step has a closure, each call of which `after_closure` follows if it has returned.
    """
    stepping = Stepping()

    def begin(optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments | None:
        stepping.optimizers.append(optimizer)
        if len(stepping.optimizers) > 1:  # a class whose step calls that of its base
            return None
        closure = closure_of(args, kwargs)
        before(optimizer, closure is not None)

        def leave(has_returned: bool) -> None:
            if has_returned:
                after_closure(optimizer)
            else:  # the step ends with it
                stepping.optimizers.clear()

        return closure and replace_closure(args, kwargs, HookedClosure(closure, lambda: None, leave))

    def end(optimizer: Optimizer) -> None:
        if stepping.optimizers:
            stepping.optimizers.pop()
        if not stepping.optimizers:
            after(optimizer)

    hook_steps(begin, end, stepping, compiled)


def look_at_calls(
    owner: Any, name: str, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> None:
    """Call `before` with the arguments of a function of a module or a class, and `after` with its result and them."""
    original, hooks = getattr(owner, name), [each for each in (before, after) if each is not None]

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        if before is not None:
            before(*args, **kwargs)
        result = original(*args, **kwargs)
        if after is not None:
            after(result, *args, **kwargs)
        return result

    _leave_to_python(*hooks)
    setattr(owner, name, _replace(original, call))


def _around_step(
    original: Callable[..., Any], begin: Begin, end: Callable[[Optimizer], None], stepping: Stepping
) -> Callable[..., Any]:
    """Hook a step that breaks the graph, where the hooks of its class were traced: it is called within the break."""

    def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or stepping.optimizers:
            return original(optimizer, *args, **kwargs)
        args, kwargs = begin(optimizer, (optimizer, *args), kwargs) or ((optimizer, *args), kwargs)
        result = original(*args, **kwargs)
        end(optimizer)
        return result

    return _replace(original, step)


def hook_optimizers(see: Callable[[Optimizer], None]) -> None:
    """Call `see` with each optimizer that has been made."""
    look_at_calls(Optimizer, "__init__", after=lambda _, optimizer, *__, **___: see(optimizer))


def hook_backward(before: Callable[[Any], None], after: Callable[[], None]) -> None:
    """Call `before` with the tensors that backward begins at, and `after`."""
    look_at_calls(torch.autograd, "backward", lambda tensors, *_, **__: before(tensors), lambda *_, **__: after())


def hook_forward(before: Callable[[Any, Any, Any], None], after: Callable[[Any], None] = lambda output: None) -> None:
    """Call `before` with a module and its arguments, and `after` with its output, where no other module calls it."""
    original = torch.nn.Module.__call__
    within = threading.local()

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or hasattr(within, "module") or _is_graph(module):
            return original(module, *args, **kwargs)
        before(module, args, kwargs)
        within.module = module
        try:
            output = original(module, *args, **kwargs)
        finally:
            del within.module
        after(output)
        return output

    _leave_to_python(before, after)
    torch.nn.Module.__call__ = _replace(original, call)  # type: ignore[method-assign]


def hook_scalers(num_begun: Callable[[], int], overflow: Callable[[Any, Optimizer], None]) -> None:
    """Call `overflow` with a GradScaler and the optimizer whose step it may have left out: `num_begun` stays as it was.

    `num_begun` counts the steps that optimizers have begun.
    """
    original = torch.amp.GradScaler.step

    def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(scaler, optimizer, *args, **kwargs)
        before = num_begun()
        result = original(scaler, optimizer, *args, **kwargs)
        if num_begun() == before:
            overflow(scaler, optimizer)
        return result

    _leave_to_python(num_begun, overflow)
    torch.amp.GradScaler.step = _replace(original, step)  # type: ignore[method-assign]


def hook_loaders(receive: Callable[[Any, Any, dict[int, Any]], None]) -> None:
    """Call `receive` with each batch that a DataLoader has handed out, its iterator, and the tasks of its workers.

    The tasks are those before the batch was handed out.
    """
    loader = torch.utils.data.dataloader._BaseDataLoaderIter
    original = loader.__next__

    def next_batch(iterator: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(iterator)
        tasks = tasks_of(iterator)
        batch = original(iterator)
        receive(batch, iterator, tasks)
        return batch

    _leave_to_python(receive, tasks_of)
    loader.__next__ = _replace(original, next_batch)  # type: ignore[method-assign]


def _is_graph(module: Any) -> bool:
    """Return whether torch.compile made this module, and may call it with tensors that have no memory."""
    graphs = sys.modules.get("torch.fx.graph_module")
    return graphs is not None and issubclass(type(module), graphs.GraphModule)


def _replace(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement, under the name of the original; the original may be compiled, its replacement may not."""
    keep_uncompiled(replacement.__code__, with_callees=False)
    return functools.update_wrapper(replacement, original)


def _leave_to_python(*hooks: Callable[..., Any]) -> None:
    for hook in hooks:
        keep_uncompiled(hook.__code__, with_callees=True)


def _optimizer_classes() -> list[type[Optimizer]]:
    found = [each for each in vars(torch.optim).values() if isinstance(each, type) and issubclass(each, Optimizer)]
    return [each for each in found if each is not Optimizer]
