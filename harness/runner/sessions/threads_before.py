"""Threads that run before a test file is imported, and whose they are."""

import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType, ModuleType

CONFTEST = "conftest.py"


def other_threads() -> set[threading.Thread]:
    """Return the threads of Python, without the main one."""
    return {each for each in threading.enumerate() if each is not threading.main_thread()}


def origin(thread: threading.Thread) -> tuple[str, str]:
    """Return the module and the function that a thread runs; two empty texts if it runs none."""
    found = ("", "")
    for frame in _frames(sys._current_frames().get(thread.ident or 0)):
        if (module := str(frame.f_globals.get("__name__", ""))) != threading.__name__:
            found = (module, frame.f_code.co_name)
    return found


def plugin_of(threads: Iterable[threading.Thread], plugins: Iterable[tuple[str, object]]) -> str:
    """Return the name of the plugin, among those with their names, that has started one of the threads; "" for none."""
    packages = {origin(thread)[0].partition(".")[0] for thread in threads} - {""}
    for name, plugin in plugins:
        is_module = isinstance(plugin, ModuleType) and plugin.__name__.partition(".")[0] in packages
        if is_module and not name.endswith(CONFTEST):
            return name
    return ""


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those that called it, from the innermost."""
    while frame is not None:
        yield frame
        frame = frame.f_back
