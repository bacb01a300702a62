"""Hooks in torch: around optimizers, backward and data loaders. What a program computes with them is as without them.

torch.compile traces the Python of a program, these functions included: whatever they read before they have asked
`torch.compiler.is_compiling()` is guarded in the program's compiled code.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from harness.recording.metrics import LogValues, floats

# -------------------------------------------------------------------------------------------------------- torch.compile
# Hooks in programs that use torch.compile: Dynamo traces the Python that it compiles, and must not trace a hook.
#
# | a hook is called | then |
# |---|---|
# | while Dynamo traces | it asks `torch.compiler.is_compiling()`, a constant there, and adds nothing to the graph |
# | at a graph break of compiled code | `keep_uncompiled` has Dynamo leave its frame to Python, and it works as usual |
# | never, since the step of its optimizer is compiled whole | `CompiledSteps` knows, at each run of the compiled code |
#
# Most of torch's optimizers break the graph in each step. A wrapper around that part is called at a graph break.

NOT_RECORDED = (
    "torch.compile has compiled the optimizer's step, and nothing within compiled code can be recorded:"
    " call step() outside the compiled function"
)


_COMPILED_CALL = "compile_wrapper"
"""The frame that torch._dynamo.eval_frame has for each call of a compiled function."""


class CompiledSteps:
    """Whether a step of an optimizer was carried out by compiled code.

    A hook assigns `have_run` while it is traced. Dynamo repeats the assignment whenever the compiled code runs; that
    needs no operation of the graph and no guard.
    """

    def __init__(self) -> None:
        self.have_run = False


def keep_uncompiled(code: CodeType, *, with_callees: bool) -> None:
    """Have Dynamo leave the frames of this code to Python; with those of all that it calls if `with_callees`.

    Frames that Dynamo inlines while it traces a caller are not affected.
    """
    dynamo: Any = torch._C._dynamo.eval_frame
    if not hasattr(dynamo, "set_code_exec_strategy"):  # torch before 2.7
        dynamo.skip_code(code)
        return
    leave, usual = dynamo._FrameAction.SKIP, dynamo._FrameAction.DEFAULT
    dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(leave, leave if with_callees else usual))


def is_in_compiled_call() -> bool:
    """Return whether a function that torch.compile made is on the stack of this thread.

    When it returns, it restores the dispatch keys that it was called with: no dispatch mode may begin or end within it.
    """
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    name = getattr(dynamo, "__file__", None)
    frame: FrameType | None = sys._getframe() if name else None
    while frame is not None:
        if frame.f_code.co_name == _COMPILED_CALL and frame.f_code.co_filename == name:
            return True
        frame = frame.f_back
    return False


def breaks_graph(function: Any) -> bool:
    """Return whether a function, or one that it wraps, calls torch._dynamo.graph_break()."""
    while function is not None:
        if "graph_break" in getattr(getattr(function, "__code__", None), "co_names", ()):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


# ------------------------------------------------------------------------------------------------------------- closures
# The closure that a program gives to `Optimizer.step`: it computes the loss and its gradients within the step.

Closure = Callable[..., Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class HookedClosure:
    """Calls two hooks around each call of a closure, and passes for the closure in all else.

    `after` is given whether the closure returned. The result, exceptions and attributes are those of the closure.
    """

    def __init__(self, closure: Closure, before: Callable[[], None], after: Callable[[bool], None]) -> None:
        self._closure = closure
        self._before, self._after = before, after
        for hook in (before, after):
            keep_uncompiled(hook.__code__, with_callees=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._closure(*args, **kwargs)
        self._before()
        has_returned = False
        try:
            result = self._closure(*args, **kwargs)
            has_returned = True
        finally:
            self._after(has_returned)
        return result

    def __getattr__(self, name: str) -> Any:
        if name == "_closure":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._closure, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._closure == (other._closure if isinstance(other, HookedClosure) else other))

    def __hash__(self) -> int:
        return hash(self._closure)


keep_uncompiled(HookedClosure.__call__.__code__, with_callees=False)


def closure_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Closure | None:
    """Return the closure among the arguments of `Optimizer.step`, the optimizer being the first; None without one."""
    given = args[1] if len(args) > 1 else kwargs.get("closure")
    return given if callable(given) and not isinstance(given, torch.nn.Module) else None


def replace_closure(args: Sequence[Any], kwargs: Mapping[str, Any], closure: Closure) -> Arguments:
    """Return the arguments of `Optimizer.step` with this closure instead of their own."""
    if len(args) > 1:
        return (args[0], closure, *args[2:]), dict(kwargs)
    return tuple(args), {**kwargs, "closure": closure}


# ------------------------------------------------------------------------------------------------------- hooks in torch


class Stepping(threading.local):
    """Optimizers that step now in this thread: those of the autograd engine step beside each other."""

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []


def hook_steps(
    before: Callable[[Optimizer, bool], None],
    after: Callable[[Optimizer], None],
    after_closure: Callable[[Optimizer], None],
    compiled: CompiledSteps,
    before_closure: Callable[[], None] = lambda: None,
) -> Stepping:
    """Call `before` and `after` around each step of an optimizer that no other's step calls.

    `before` is given whether the step has a closure: `before_closure` precedes each call of it, `after_closure` follows
    each that has returned. Returns what knows the optimizers that step now.
    """
    stepping = Stepping()
    kinds = [each for each in vars(torch.optim).values() if isinstance(each, type) and issubclass(each, Optimizer)]
    breaking = tuple(each for each in kinds if each is not Optimizer and breaks_graph(each.step))

    def begin(optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments | None:
        stepping.optimizers.append(optimizer)
        if len(stepping.optimizers) > 1:  # a class whose step calls that of its base
            return None
        closure = closure_of(args, kwargs)
        before(optimizer, closure is not None)

        def leave_closure(has_returned: bool) -> None:
            if has_returned:
                after_closure(optimizer)
            else:  # the step ends with it
                stepping.optimizers.clear()

        return closure and replace_closure(args, kwargs, HookedClosure(closure, before_closure, leave_closure))

    def end(optimizer: Optimizer) -> None:
        if stepping.optimizers:
            stepping.optimizers.pop()
        if not stepping.optimizers:
            after(optimizer)

    def enter(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if torch.compiler.is_compiling():
            if type(optimizer) not in breaking:
                compiled.have_run = True
            return None
        return begin(optimizer, args, kwargs)

    def leave(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():
            end(optimizer)

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        """Hook a step that breaks the graph, where the hooks of its class were traced: called within the break."""

        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or stepping.optimizers:
                return original(optimizer, *args, **kwargs)
            args, kwargs = begin(optimizer, (optimizer, *args), kwargs) or ((optimizer, *args), kwargs)
            result = original(*args, **kwargs)
            end(optimizer)
            return result

        return _replace(original, step)

    _leave_to_python(begin, end, enter, leave)
    register_optimizer_step_pre_hook(enter)
    register_optimizer_step_post_hook(leave)
    for each in breaking:
        if "step" in vars(each):
            each.step = around(each.step)  # type: ignore[method-assign]
    return stepping


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
    before: list[int] = []

    def step_is_over(_: Any, scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        if before.pop() == num_begun():
            overflow(scaler, optimizer)

    look_at_calls(torch.amp.GradScaler, "step", lambda *_, **__: before.append(num_begun()), step_is_over)


def hook_loaders(receive: Callable[[Any, Any, dict[int, Any]], None]) -> None:
    """Call `receive` with each batch that a DataLoader has handed out, its iterator, and the tasks of its workers.

    The tasks are those before the batch was handed out.
    """
    tasks: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()
    look_at_calls(
        torch.utils.data.dataloader._BaseDataLoaderIter,
        "__next__",
        lambda iterator: tasks.update({iterator: tasks_of(iterator)}),
        lambda batch, iterator: receive(batch, iterator, tasks[iterator]),
    )


def tasks_of(iterator: Any) -> dict[int, Any]:
    """Return what a DataLoader's workers were asked for and have not handed out: batch -> (worker, ...)."""
    tasks = getattr(iterator, "_task_info", None)
    return dict(tasks) if isinstance(tasks, dict) else {}


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


# --------------------------------------------------------------------------------------------------- hooks in libraries
# Hooks in libraries: the curve from what TensorBoard and transformers' trainers are given, and TRL's rollouts.
#
# What TRL's trainers sample, reward and weigh is read where a trainer hands it on. Written against TRL 1.16;
# where a later one has other names, its rollouts are not recorded, which is said once.

See = Callable[[str, str, Any], None]
"""Takes the phase, name and value of a completion, reward or advantage."""
PHASES = {
    "prompt_ids": "rollout",
    "prompt_mask": "rollout",
    "completion_ids": "rollout",
    "completion_mask": "rollout",
    "sampling_per_token_logps": "rollout",
    "ref_per_token_logps": "reference",
    "rewards": "reward",
    "advantages": "advantage",
}
"""Phase of each value that is recorded."""
GENERATED = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
TRAINERS: dict[str, dict[str, tuple[str, ...]]] = {
    "GRPOTrainer": {"_calculate_rewards": ("rewards",), "_generate_and_score_completions": ()},
    "RLOOTrainer": {"_calculate_rewards": ("rewards",), "_generate_and_score_completions": ()},
    "OnlineDPOTrainer": {"_generate": GENERATED, "_calculate_rewards_from_functions": ("rewards",)},
}
"""Methods of each class, with the names of their results; empty if a method returns a dictionary."""


def hook_rollouts(module: ModuleType, _: LogValues, record: See) -> None:
    """See what the trainers of a module generate and score."""
    for kind in TRAINERS.keys() & vars(module).keys():
        for method, names in TRAINERS[kind].items():
            look_at_calls(vars(module)[kind], method, after=_see_result(names, record))


def _see_result(names: tuple[str, ...], record: See) -> Callable[..., None]:
    def see(result: Any, *_: Any, **__: Any) -> None:
        values = dict(zip(names, result if len(names) > 1 else (result,), strict=False)) if names else result
        for name, phase in PHASES.items():
            if values.get(name) is not None:
                record(phase, name, values[name])

    return see


def hook_tensorboard(module: ModuleType, log: LogValues, _: See) -> None:
    """See the scalars that a SummaryWriter is given."""

    def see(_: Any, writer: Any, tag: str, scalar_value: Any, *args: Any, **kwargs: Any) -> None:
        log(floats({tag.removeprefix("train/"): scalar_value}))

    look_at_calls(module.SummaryWriter, "add_scalar", after=see)


def hook_trainer(module: ModuleType, log: LogValues, _: See) -> None:
    """See what a transformers Trainer, or one of TRL's, logs."""

    def see(handler: Any, args: Any, state: Any, control: Any, logs: Any, *more: Any, **kwargs: Any) -> None:
        log(floats(logs))

    look_at_calls(module.CallbackHandler, "on_log", see)
