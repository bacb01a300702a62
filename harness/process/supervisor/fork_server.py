"""One process from which every supervisor is forked: it has imported what they need, and they share its pages.

    runner ──three files──▶ fork server ──fork──▶ go-between ──fork──▶ supervisor (the files are its 0, 1 and 2)
           ◀─its number────                          └─ends at once: the supervisor becomes the runner's child, since
                                                        orphans come to the nearest subreaper

So each supervisor is the runner's own child and no longer needs this process. Lost, it is replaced; when the runner's
end of the socket closes, it ends.
"""

import contextlib
import errno
import gc
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from harness.process.supervisor.main import main; main()"
ANSWER_S = 10.0  # a fork takes milliseconds, more where it has to wait for its turn
NUM_FILES = 3
LAST_FD = 255
FORK = b"f"
MAX_REQUEST_BYTES = 1 << 17


class Forked(NamedTuple):
    """A supervisor, and the runner's ends of its pipes."""

    pid: int
    stdin: int
    stdout: int


def start_python(*arguments: str, stdin: int, stdout: int, stderr: int | None = None) -> "subprocess.Popen[bytes]":
    """A Python with this package's `main` and nothing else in it, in a session of its own."""
    root = str(Path(__file__).parents[3])
    bytecode = ["-B"] if sys.dont_write_bytecode else []  # -I does not read the variable that says so
    return subprocess.Popen(
        [sys.executable, "-I", "-S", *bytecode, "-c", BOOT, root, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


class ForkServer:
    """The runner's side. The runner must be a subreaper already.

    One that gives no answer for `answer_s` seconds counts as lost.
    """

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._start()

    @property
    def pid(self) -> int:
        """The fork server's number; another one after it was lost."""
        return self._process.pid

    def fork(self, stderr: int) -> Forked:
        """Fork a supervisor, a child of this process, whose complaints go to the file `stderr`.

        Raises OSError where there is no process, file or answer to be had.
        """
        try:
            return self._fork(stderr)
        except (ConnectionError, TimeoutError):  # killed or stopped; what it forked finds its stdin closed, and ends
            self.close()
            self._start()
            return self._fork(stderr)
        except BlockingIOError:  # the child was killed before it could answer, or processes are short for a moment
            return self._fork(stderr)

    def close(self) -> None:
        """End the fork server; supervisors stay."""
        self._socket.close()
        end_process(self._process, self._answer_s)  # it may have been stopped

    def _start(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = start_python(stdin=its.fileno(), stdout=subprocess.DEVNULL)
        ours.settimeout(self._answer_s)
        self._socket = ours

    def _fork(self, stderr: int) -> Forked:
        return ask_for_fork(self._socket, stderr)


def end_process(process: "subprocess.Popen[bytes]", patience_s: float = 0.0) -> None:
    """Wait for the end of a process for `patience_s`, then kill it."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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


def serve(server: socket.socket, supervise: Callable[[], None], answer: Callable[[bytes], bytes] | None = None) -> None:
    """The life of a fork server on its socket: until the runner goes, fork children to call `supervise`.

    It answers with the child's number, or with an error's number below zero; whatever is no order to fork, with what
    `answer` makes of it. With `answer` given, a supervisor also keeps the files that this process has opened.
    """
    gc.collect()
    gc.freeze()  # a collection in a supervisor would touch, and so copy, the pages that all of them share
    # A runner that is killed between its question and the answer closes the socket as well.
    with server, contextlib.suppress(ConnectionError):
        while True:
            request, files, _, _ = socket.recv_fds(server, MAX_REQUEST_BYTES, NUM_FILES)
            if not request:
                return
            if answer is not None and request != FORK:
                server.send(answer(request))
                continue
            owned = [server.fileno(), *files] if answer is not None else None
            try:
                number = _fork_orphan(files, supervise, owned)
            except OSError as error:
                number = -(error.errno or errno.EAGAIN)
            for fd in files:
                os.close(fd)
            server.send(b"%d" % number)


def _fork_orphan(files: list[int], supervise: Callable[[], None], owned: list[int] | None) -> int:
    """Fork a supervisor by way of a go-between; its number, once it is the runner's child and has its own files."""
    if len(files) < NUM_FILES:
        raise OSError(errno.EMFILE, "the kernel leaves out what a process has no room for")
    number_read, number_write = os.pipe()
    with open(number_read, "rb", buffering=0) as number, open(number_write, "wb", buffering=0) as answer:
        go_between = os.fork()
        if go_between == 0:
            _be_go_between(files, supervise, owned, answer.fileno())
        os.waitpid(go_between, 0)
        answer.close()  # so that the other end reads as closed if they die without a word
        return int(number.read(64) or -errno.EAGAIN)


def _be_go_between(files: list[int], supervise: Callable[[], None], owned: list[int] | None, answer: int) -> NoReturn:
    try:
        if os.fork() == 0:
            _be_supervisor(files, supervise, owned, answer)
    except OSError as error:
        os.write(answer, b"%d" % -(error.errno or errno.EAGAIN))
    os._exit(0)


def _be_supervisor(files: list[int], supervise: Callable[[], None], owned: list[int] | None, answer: int) -> NoReturn:
    """A session and files of its own, then its work; then an end without the interpreter's, which takes 5 ms.

    `owned` are the files of the fork server to close; None for all that are open.
    """
    status = 1
    try:
        os.setsid()
        for fd, file in enumerate(files):
            os.dup2(file, fd)
        os.write(answer, b"%d" % os.getpid())
        if owned is None:
            os.closerange(NUM_FILES, LAST_FD)
        else:
            for fd in (*owned, answer):
                os.close(fd)
        supervise()
        status = 0
    except BaseException:  # os._exit leaves out what Python does about it: a traceback in supervisor.log
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)
