"""A process from which supervisors are forked, with all that it has imported.

    runner ──three files──▶ server ──fork──▶ go-between ──fork──▶ supervisor (the files are its 0, 1 and 2)
           ◀─its number────                     └─ends at once: the supervisor becomes the runner's child, since
                                                   orphans come to the nearest subreaper

So each supervisor is the runner's own child and no longer needs this process.
"""

import contextlib
import errno
import gc
import os
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple, NoReturn

NUM_FILES = 3
FORK = b"f"
MAX_REQUEST_BYTES = 1 << 17


class Forked(NamedTuple):
    """A supervisor, and the runner's ends of its pipes."""

    pid: int
    stdin: int
    stdout: int


def ask_for_fork(server: socket.socket, stderr: int) -> Forked:
    """Have the process at the other end of `server` fork a supervisor whose complaints go to the file `stderr`.

    Raises OSError where it cannot, ConnectionError where it has ended, TimeoutError where it does not answer.
    """
    its_stdin, stdin = os.pipe()
    stdout, its_stdout = os.pipe()
    try:
        socket.send_fds(server, [FORK], [its_stdin, its_stdout, stderr])
        answer = server.recv(64)
        if not answer:
            raise ConnectionResetError(errno.ECONNRESET, "the fork server has ended")
        if int(answer) < 0:
            raise OSError(-int(answer), f"a supervisor cannot be forked: {os.strerror(-int(answer))}")
    except OSError:
        os.close(stdin)
        os.close(stdout)
        raise
    finally:
        os.close(its_stdin)
        os.close(its_stdout)
    return Forked(int(answer), stdin, stdout)


def serve(server: socket.socket, supervise: Callable[[], None], answer: Callable[[bytes], bytes]) -> None:
    """The life of a fork server on its socket: until the runner goes, fork children to call `supervise`.

    It answers with the child's number, or with an error's number below zero; whatever is no order to fork, with what
    `answer` makes of it. A supervisor keeps the files that this process has opened.
    """
    gc.freeze()  # a collection in a supervisor would touch, and so copy, the pages that all of them share
    gc.enable()
    # A runner that is killed between its question and the answer closes the socket as well.
    with server, contextlib.suppress(ConnectionError):
        while True:
            request, files, _, _ = socket.recv_fds(server, MAX_REQUEST_BYTES, NUM_FILES)
            if not request:
                return
            if request != FORK:
                server.send(answer(request))
                continue
            try:
                number = _fork_orphan(files, supervise, server.fileno())
            except OSError as error:
                number = -(error.errno or errno.EAGAIN)
            for fd in files:
                os.close(fd)
            server.send(b"%d" % number)


def _fork_orphan(files: list[int], supervise: Callable[[], None], server: int) -> int:
    """Fork a supervisor by way of a go-between; its number, once it is the runner's child and has its own files."""
    if len(files) < NUM_FILES:
        raise OSError(errno.EMFILE, "the kernel leaves out what a process has no room for")
    number_read, number_write = os.pipe()
    with open(number_read, "rb", buffering=0) as number, open(number_write, "wb", buffering=0) as answer:
        go_between = os.fork()
        if go_between == 0:
            _be_go_between(files, supervise, server, answer.fileno())
        os.waitpid(go_between, 0)
        answer.close()  # so that the other end reads as closed if they die without a word
        return int(number.read(64) or -errno.EAGAIN)


def _be_go_between(files: list[int], supervise: Callable[[], None], server: int, answer: int) -> NoReturn:
    try:
        if os.fork() == 0:
            _be_supervisor(files, supervise, server, answer)
    except OSError as error:
        os.write(answer, b"%d" % -(error.errno or errno.EAGAIN))
    os._exit(0)


def _be_supervisor(files: list[int], supervise: Callable[[], None], server: int, answer: int) -> NoReturn:
    """A session and files of its own, then its work; then an end without the interpreter's, which takes 5 ms."""
    status = 1
    try:
        os.setsid()
        for fd, file in enumerate(files):
            os.dup2(file, fd)
        os.write(answer, b"%d" % os.getpid())
        for fd in (server, *files, answer):
            os.close(fd)
        supervise()
        status = 0
    except BaseException:  # os._exit leaves out what Python does about it: a traceback in supervisor.log
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)
