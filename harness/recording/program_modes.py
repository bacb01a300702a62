"""The program's own modes, which intercept operations and functions of torch: the recorder works outside of them.

A mode may add noise, count, or draw from a generator. What the recorder does within one would change the program.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def outside_modes() -> Iterator[None]:
    """Work outside every dispatch mode and function mode that is active; they are active again afterwards."""
    num_functions = torch._C._len_torch_function_stack()
    if not num_functions and not torch._C._len_torch_dispatch_stack():
        yield
        return
    with _disable_current_modes():
        functions = [_pop_mode() for _ in range(num_functions)]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for mode in reversed(functions):
                _push_mode(mode)  # type: ignore[no-untyped-call]
