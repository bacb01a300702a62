"""Hooks in programs that use torch.compile: Dynamo traces the Python that it compiles, and must not trace a hook.

| a hook is called | then |
|---|---|
| while Dynamo traces | it asks `torch.compiler.is_compiling()`, a constant there, and adds nothing to the graph |
| at a graph break of compiled code | `keep_uncompiled` has Dynamo leave its frame to Python, and it works as usual |
| never, since the step of its optimizer is compiled whole | `CompiledSteps` knows, at each run of the compiled code |

Most of torch's optimizers break the graph in each step. A wrapper around that part is called at a graph break.
"""

import sys
from types import CodeType, FrameType
from typing import Any

import torch

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
