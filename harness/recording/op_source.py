"""Where in the user's program an operation comes from: the innermost frame that is neither torch's nor a package's.

In backward no frame of the user's is near: the engine walks the graph. There the line is that of the forward operation
whose gradient it is, found again by its autograd node's sequence number. Recomputed forward operations and backward
functions that the user wrote have frames of their own between the engine and the operation, which identify them.

A function that hides itself from pytest's tracebacks is passed over: a wrapper that calls operations for others.

Functions of ours lie around the program's, and call them: what is done below the program's is the program's.

| frames from the operation outwards | the operation is |
|---|---|
| a function of the recorder's that is called `guarded`, at any depth | the recorder's |
| the program's or a package's, then a wrapper of ours | the program's |
| torch's alone, then one of `_WRAPPERS`, which call torch's own functions | the program's |
| torch's alone, then any other of ours | the recorder's |
"""

import os
import sysconfig
import threading
from enum import Enum
from types import FrameType
from typing import NamedTuple

import torch

ENGINE = "engine"
"""The line of what the autograd engine does by itself: adding gradients up, storing them."""
_HARNESS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_HERE = os.path.dirname(os.path.abspath(__file__))
_WRAPPERS = frozenset(os.path.join(_HERE, name) for name in ("automatic.py", "hooks.py", "closures.py"))
"""Files with replacements of functions of torch, which call them."""
_GUARDS = frozenset(("guarded", "_guarded"))
"""What the recorder and the sentinel do within such a function of theirs is below these."""
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_ENGINE_FILE = os.path.join(_TORCH, "autograd", "graph.py")
_ENGINE_ENTRY = "_engine_run_backward"
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_PACKAGES = ("site-packages", "dist-packages")
_HIDES_ITSELF = "__tracebackhide__"
"""A local name, of pytest's."""
_ACCUMULATE_GRAD = 2**64 - 1
"""The sequence number of every node that stores a gradient."""
MAX_FORWARD_LINES = 10**6


class _File(Enum):
    """Whose code a file holds."""

    USER = "user"
    PACKAGE = "package"
    TORCH = "torch"
    ENGINE = "engine"
    SYSTEM = "system"
    RECORDER = "recorder"


class Line(NamedTuple):
    """Where an operation comes from."""

    at: str
    """The user's line, "train.py:41 forward"; ENGINE where no user's code asked for it."""
    via: str = ""
    """The innermost line outside torch, where it is a package's: "transformers/models/llama/modeling_llama.py:90 f"."""


class SourceLines:
    """Finds source lines, and remembers those of forward operations. Lines are relative to `root`."""

    def __init__(self, root: str) -> None:
        self._root = os.path.join(os.path.realpath(root), "")
        self._files: dict[str, tuple[_File, str]] = {}
        self._forward: dict[int, Line] = {}
        """By the sequence number of the autograd node."""
        self._thread = threading.get_ident()  # sequence numbers are counted by each thread for itself
        self._next = _next_sequence_number()
        self._last: Line | None = None
        self._last_wrote = False

    def line(self, frame: FrameType | None, *, is_writing: bool, in_backward: bool) -> Line | None:
        """The line of the operation that `frame` has called; None where it was not the program's, but the recorder's.

        Called for each operation, in order.
        """
        own, is_ours = self._walk(frame)
        if is_ours:
            return None
        line = own or Line(ENGINE)
        if in_backward and own is None:
            line = self._of_gradient() or line
        if threading.get_ident() == self._thread:
            self._remember(line, is_writing)
        return line

    def _walk(self, frame: FrameType | None) -> tuple[Line | None, bool]:
        """(the line that these frames show, whether they are the recorder's own)."""
        via = ""
        while frame is not None:
            code = frame.f_code
            kind, shown = self._files.get(code.co_filename) or self._look(code.co_filename)
            if kind is _File.USER and _HIDES_ITSELF not in code.co_varnames:
                return Line(f"{shown}:{frame.f_lineno} {code.co_name}", via), False
            if kind is _File.RECORDER and (code.co_name in _GUARDS or (shown and not via)):
                return None, True
            if kind is _File.PACKAGE and not via:
                via = f"{shown}:{frame.f_lineno} {code.co_name}"
            if kind is _File.ENGINE and code.co_name == _ENGINE_ENTRY:
                break
            frame = frame.f_back
        return (Line(via, "") if via else None), False

    def _look(self, name: str) -> tuple[_File, str]:
        self._files[name] = found = _whose(name, self._root)
        return found

    def _of_gradient(self) -> Line | None:
        node = torch._C._current_autograd_node()
        if node is None:
            return None
        number = node._sequence_nr()
        return Line(ENGINE, node.name()) if number == _ACCUMULATE_GRAD else self._forward.get(number)

    def _remember(self, line: Line, is_writing: bool) -> None:
        """Note whose autograd nodes were made since the operation before.

        An operation's node is made before it runs; that of a write into a view after it has run.
        """
        number = _next_sequence_number()
        if len(self._forward) > MAX_FORWARD_LINES:
            self._forward.clear()
        for each in range(self._next, number):
            is_of_the_last = self._last_wrote and self._last is not None and each < number - 1
            self._forward[each] = self._last if is_of_the_last and self._last is not None else line
        self._next, self._last, self._last_wrote = number, line, is_writing


def _whose(name: str, root: str) -> tuple[_File, str]:
    """(whose file it is, how it is shown)."""
    is_system = name.startswith(("<frozen", _STANDARD_LIBRARY + os.sep))
    if is_system and not any(packages in name for packages in _PACKAGES):
        return _File.SYSTEM, name
    if name == _ENGINE_FILE:
        return _File.ENGINE, name
    if name.startswith(_TORCH + os.sep):
        return _File.TORCH, name
    if name.startswith(_HARNESS + os.sep):
        return _File.RECORDER, "" if name in _WRAPPERS else name
    for packages in _PACKAGES:
        _, found, rest = name.rpartition(f"{os.sep}{packages}{os.sep}")
        if found:
            return _File.PACKAGE, rest
    full = os.path.realpath(name) if os.path.isabs(name) else name
    return _File.USER, full.removeprefix(root)


def shown_file(name: str) -> str | None:
    """How a source file of the user's or of a package is shown; None of torch's, the standard library's and ours."""
    kind, shown = _whose(name, os.path.join(os.getcwd(), ""))
    return shown if kind in (_File.USER, _File.PACKAGE) else None


def _next_sequence_number() -> int:
    return int(torch._C._autograd._get_sequence_nr())
