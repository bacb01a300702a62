"""The closure that a program gives to `Optimizer.step`: it computes the loss and its gradients within the step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from harness.recording.compiled import keep_uncompiled

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
