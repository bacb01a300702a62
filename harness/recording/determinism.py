"""What a level switches on in a process that has just imported torch, and whether it took effect.

Variables, which must be there before the interpreter starts, are in harness/bits/levels.py. The
generator of numpy is seeded by boot_hooks.py: a program may have numpy and never torch.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.bits.levels import DETERMINISTIC
from harness.recording.notices import say_once

SEED = 0
"""For generators that the program does not seed itself."""


def set_flags(level: str) -> tuple[str, ...]:
    """Set the determinism flags of the level for torch and Python's generator; return those without effect.

    Operations without a deterministic implementation warn and run: if their results differ, the traces show it.
    """
    if level != DETERMINISTIC:
        return ()
    # Not use_deterministic_algorithms: it imports the compiler, which TORCHINDUCTOR_DETERMINISTIC sets already.
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    make_attention_deterministic()
    torch.manual_seed(SEED)
    random.seed(SEED)
    return without_effect()


def without_effect() -> tuple[str, ...]:
    """What of the switches an operation shows not to be on; draws nothing from any generator."""
    found = []
    if not bool(torch.empty(4).isnan().all()):  # deterministic mode fills uninitialised memory
        found.append("torch.set_deterministic_debug_mode")
    if torch.initial_seed() != SEED:
        found.append("torch.manual_seed")
    if torch.backends.cudnn.benchmark or not torch.backends.cudnn.deterministic:
        found.append("torch.backends.cudnn")
    if not is_attention_deterministic():
        found.append("torch.nn.functional.scaled_dot_product_attention")
    return tuple(found)


# ------------------------------------------------------------------------------------------------------------ attention
# Has torch's attention on CUDA compute equal gradients each time, at level deterministic.
#
#     backward ─▶ aten::_scaled_dot_product_flash_attention_backward ─▶ our kernel at AutogradCUDA ─▶ torch's kernel
#                                           deterministic algorithms in error mode, for as long as this takes
#
# Flash and memory-efficient attention add gradients with atomics unless torch's deterministic algorithms are in error
# mode: in warning mode, which the level uses, they warn. Error mode for a whole program would end it at each operation
# without a deterministic implementation. So it is on only while these operations run. cuDNN's attention has no
# deterministic gradients: it is turned off, and reported if the program selects it again.

ONLY_IN_ERROR_MODE = (
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_flash_attention_backward",
    "_efficient_attention_backward",
)
"""Operations of torch whose CUDA kernels are deterministic in error mode only."""
NEVER = ("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward")
CUDA = "AutogradCUDA"
"""Above torch's kernels for CUDA: replacing nothing, and called by autograd as by compiled graphs."""
_libraries: list[Any] = []
"""Hold the kernels for as long as the process lives."""
_lock = threading.Lock()
_running = [0]
"""How many of the operations run now; the autograd engine has a thread for each GPU."""


def make_attention_deterministic(dispatch_key: str = CUDA) -> None:
    """Put a kernel around the gradients of torch's attention; once in a process."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    for name in (*ONLY_IN_ERROR_MODE, *NEVER):
        library.impl(name, _around(getattr(torch.ops.aten, name).default, name in NEVER), dispatch_key)  # type: ignore[no-untyped-call]


def is_attention_deterministic(dispatch_key: str = CUDA) -> bool:
    """Whether the kernels are in the way of every call of these operations, and cuDNN's attention is off."""
    are_there = [torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", dispatch_key) for name in NEVER]
    return bool(_libraries) and all(are_there) and not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]


def _around(operation: Any, is_never: bool) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if is_never and _is_level_on():
            say_once("cuDNN's attention has no deterministic gradients: select another backend with sdpa_kernel()")
        if torch.is_grad_enabled():
            return _OnceDifferentiable.apply(operation, kwargs, *args)  # type: ignore[no-untyped-call]
        return _call(operation, args, kwargs)

    return kernel


def _call(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch._C._AutoDispatchBelowAutograd(), _error_mode():
        return operation(*args, **kwargs)


class _OnceDifferentiable(torch.autograd.Function):
    """The operations have no derivatives of their own, as without our kernel: to ask for one is an error."""

    @staticmethod
    def forward(ctx: Any, operation: Any, kwargs: dict[str, Any], *args: Any) -> Any:
        """Compute the gradients of attention."""
        ctx.name = operation.name()
        return _call(operation, args, kwargs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Raise what torch raises."""
        raise RuntimeError(f"derivative for {ctx.name} is not implemented")


def _is_level_on() -> bool:
    """Whether deterministic algorithms are in warning mode; or in error mode for one of the operations here."""
    return torch.are_deterministic_algorithms_enabled() and (
        torch.is_deterministic_algorithms_warn_only_enabled() or bool(_running[0])
    )


@contextmanager
def _error_mode() -> Iterator[None]:
    """Error mode until the last of the operations that run at the same time has ended; nothing if the level is off."""
    with _lock:
        is_on = _is_level_on()
        if is_on:
            _running[0] += 1
            torch._C._set_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        with _lock:
            if is_on:
                _running[0] -= 1
                if not _running[0]:
                    torch._C._set_deterministic_algorithms(True, warn_only=True)
