"""How a fork becomes the leader of an attempt, as an interpreter of its own would be, and how it ends as one."""

import atexit
import ctypes
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from harness.process.child_env import ATTEMPT_MARKER
from harness.process.supervisor.containment import SIGNALS, restore_signals
from harness.process.supervisor.fork_hazards import Watch, open_files

ENV_START, ENV_END = 50, 51
"""Fields of /proc/self/stat, as proc(5) counts them: where the environment lies that the process was started with."""
AFTER_NAME = 3
"""Field after the name of the process, which may hold spaces and brackets."""
FLUSH_FAILED = 120
"""Exit code of an interpreter that cannot flush its standard output."""


class ParentState:
    """What a process from which leaders are forked had before a supervisor came between it and them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._files: frozenset[int] = frozenset()
        self._handlers: dict[int, Any] = {}
        self._restore_random: Callable[[], None]

    def take(self, own_files: Iterable[int]) -> None:
        """Keep what leaders shall have; `own_files` are those that they shall not."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        self._handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
        self._restore_random = keep_random_state()
        self._files = frozenset(open_files()) - frozenset(own_files)

    def give(self, env: Mapping[str, str], unset: Iterable[str]) -> None:
        """In a leader: signals, standard input and random state as they were, and no file of those above it.

        In its environment, only what is its own is changed: each page that a fork touches is copied.
        """
        restore_signals(self._handlers)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd not in self._files:
                with suppress(OSError):
                    os.close(fd)
        self._watch.end()
        for name in unset:
            os.environ.pop(name, None)
        os.environ.update(env)
        show_marker(env.get(ATTEMPT_MARKER, ""))
        sys.stdin = open(0, encoding=sys.getdefaultencoding(), closefd=False)  # noqa: SIM115
        tempfile.tempdir = None
        self._restore_random()


class _Seeding:
    """Notes whether the suite has seeded `random`."""

    def __init__(self) -> None:
        self.is_done = False
        self._seed, random.seed = random.seed, self._note_seed

    def _note_seed(self, *args: Any, **kwargs: Any) -> None:
        self._seed(*args, **kwargs)
        self.is_done = True


_SEEDING = _Seeding()


def keep_random_state() -> Callable[[], None]:
    """Return what gives a fork the state that a suite has seeded, which Python replaces; nothing happens without."""
    state = random.getstate() if _SEEDING.is_done else None
    return lambda: random.setstate(state) if state is not None else None


def begin_fork() -> None:
    """In a fork: forget what is to happen at the end of the process from which it was forked, but for Python's own."""
    atexit._clear()
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        each.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    if logging := sys.modules.get("logging"):
        atexit.register(logging.shutdown)
    if util := sys.modules.get("multiprocessing.util"):
        atexit.register(util._exit_function)


def end(code: int) -> NoReturn:
    """End this process as an interpreter does: threads, exit functions, buffers."""
    steps: Iterable[Callable[[], object]] = (threading._shutdown, atexit._run_exitfuncs)  # type: ignore[attr-defined]
    for step in steps:
        try:
            step()
        except BaseException:  # whatever it is, the interpreter too would print it and go on
            traceback.print_exc()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        code = FLUSH_FAILED
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def show_marker(marker: str) -> None:
    """Write the marker where /proc shows the environment of this process, which a fork has from its parent."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, stop = (int(fields[number - AFTER_NAME]) for number in (ENV_START, ENV_END))
    name = f"\0{ATTEMPT_MARKER}=".encode()
    block = b"\0" + ctypes.string_at(start, max(0, stop - start))
    at = block.find(name)
    if at < 0:
        return
    at += len(name)
    room = block.index(b"\0", at) - at
    if len(value := marker.encode()) <= room:
        ctypes.memmove(start + at - 1, value.ljust(room, b"\0"), room)
