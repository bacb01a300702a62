"""Which thread of a process trains: one at a time, since the order between threads differs from run to run.

| a hook is called | then |
|---|---|
| by the thread that trains | it is recorded |
| by the autograd engine, which has a thread for each GPU | it belongs to the thread that called backward |
| by another, when the first has ended, or has ended its step | that one trains from then on |
| by another, while the first one is in a step | both train at once |
| by a former one, while its successor lives | both train at once |
"""

import sys
import threading
import weakref

import torch

AT_ONCE = (
    "two threads train at once in one process, and their order differs from run to run: start the second one after the"
    " first has ended (thread.join()), or give each a process of its own"
)


def is_in_backward() -> bool:
    """Return whether the autograd engine has called this, in any thread: a hook, or the backward of a function."""
    return torch._C._current_graph_task_id() != -1


class TrainingThreads:
    """Remembers the thread that trains, and those that did."""

    def __init__(self) -> None:
        self._ident: int | None = None
        self._thread: weakref.ref[threading.Thread] | None = None
        self._former: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    @property
    def is_another(self) -> bool:
        """Whether this thread is another than the one that trains; False before any has trained."""
        return self._ident not in (None, threading.get_ident()) and not is_in_backward()

    def admit(self, *, is_within_step: bool) -> bool:
        """Let this thread train; False where another one does. `is_within_step` says whether a step has begun."""
        ident = threading.get_ident()
        if ident == self._ident or is_in_backward():
            return True
        # Without an object for a thread that has none, which the program would see.
        thread = next((each for each in threading.enumerate() if each.ident == ident), None)
        if self._ident is not None and self._lives(self._ident):
            if is_within_step or thread in self._former:
                return False
            if self._thread is not None and (former := self._thread()) is not None:
                self._former.add(former)
        self._ident, self._thread = ident, None if thread is None else weakref.ref(thread)
        return True

    def _lives(self, ident: int) -> bool:
        if self._thread is None:  # started without the threading module
            return ident in sys._current_frames()
        thread = self._thread()
        return thread is not None and thread.is_alive()
