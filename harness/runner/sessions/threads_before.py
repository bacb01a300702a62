"""Threads that run before a test file is imported, and whose they are."""

import sys
import threading
from collections.abc import Iterable
from types import ModuleType

CONFTEST = "conftest.py"


def other_threads() -> set[threading.Thread]:
    """Return the threads of Python, without the main one."""
    return {each for each in threading.enumerate() if each is not threading.main_thread()}


def plugin_of(threads: Iterable[threading.Thread], plugins: Iterable[tuple[str, object]]) -> str:
    """Return the name of the plugin, among those with their names, that has started one of the threads; "" for none."""
    packages = {_module(thread).partition(".")[0] for thread in threads} - {""}
    for name, plugin in plugins:
        is_module = isinstance(plugin, ModuleType) and plugin.__name__.partition(".")[0] in packages
        if is_module and not name.endswith(CONFTEST):
            return name
    return ""


def _module(thread: threading.Thread) -> str:
    """The outermost module that a thread runs; empty if it runs none."""
    frame, module = sys._current_frames().get(thread.ident or 0), ""
    while frame is not None:
        if (name := str(frame.f_globals.get("__name__", ""))) != threading.__name__:
            module = name
        frame = frame.f_back
    return module
