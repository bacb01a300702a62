"""The runner's side of the warm session, with a process in its place that never forks."""

import asyncio
import errno
import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from harness.process.supervisor.fork_server import Forked
from harness.runner.isolation_notes import NotForked
from harness.runner.sessions import warm_parent
from harness.runner.sessions.warm_parent import WarmParent, WarmState


def test_a_fork_that_was_killed_before_it_could_answer_costs_one_interpreter_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(server: socket.socket, stderr: int) -> Forked:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(warm_parent, "ask_for_fork", ask)
    with closing(WarmParent(("sleep",), tmp_path, {}, tmp_path / "log", "marker-of-this-test")) as parent:
        parent._state = WarmState()
        assert asyncio.run(parent.fork(stderr=2)) is None
        assert parent.is_ready, "the session itself is not lost"
        (note,) = parent.notes
        assert (note.reason, note.detail) == (NotForked.NO_FORK, "Resource temporarily unavailable")
        assert note.num_processes == 1


def test_a_session_says_why_files_are_not_forked_and_of_how_many(tmp_path: Path) -> None:
    with closing(WarmParent(("sleep",), tmp_path, {"A": "1"}, tmp_path / "log", "marker-of-this-test")) as parent:
        assert not parent.can_fork({})
        parent._state = WarmState(reads={"A": "suite.mod"})
        assert parent.can_fork({"A": "1"})
        assert [parent.can_fork({"A": "2"}) for _ in range(2)] == [False, False]
        parent._state = WarmState(hazards=((NotForked.THREADS, "Thread-1"), (NotForked.CUDA, "")))
        assert not parent.can_fork({"A": "1"})
        assert [(note.reason, note.detail, note.num_processes) for note in parent.notes] == [
            (NotForked.NOT_READY, "", 1),
            (NotForked.READS, "A suite.mod", 2),
            (NotForked.THREADS, "Thread-1", 1),
        ]
    with closing(WarmParent(("sleep",), tmp_path, {}, tmp_path / "log", "marker-of-this-test")) as parent:
        parent._state = WarmState(hazards=((NotForked.CUDA, ""),))
        assert [(note.reason, note.num_processes) for note in parent.notes] == [(NotForked.CUDA, 0)]
