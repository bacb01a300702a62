"""One program in the terminal of this process, as if it had been started without it.

    terminal ──Ctrl-C──▶ the whole foreground group: the program has it already, nothing is passed on
    a person ──kill────▶ this process alone: passed on to the program
             ──kill -9─▶ this process alone: the kernel sends the program the same (PR_SET_PDEATHSIG)
    program  ──ends────▶ its status

It keeps this process's standard input, output and error, process group and session: isatty, job control and the
terminal's signals are what they would be. Nothing else is ended here: what the program has started is its own, also
where this process is killed, since holding that would put it between the program and its terminal.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence

from harness.bits.errors import UsageError
from harness.process.exhaustion import exhaustion_of
from harness.process.supervisor.syscalls import die_with_parent

PASSED_ON = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})


def run_in_foreground(
    argv: Sequence[str],
    env: Mapping[str, str],
    on_start: Callable[[int], None] = lambda pid: None,
    *,
    stdout: int | None = None,
) -> int:
    """Run a program to its end; return its exit code, or the negative number of the signal that ended it.

    `argv[0]` is looked for on the path of `env`. Raises UsageError if it cannot be started, ExhaustedError
    where this machine has no process or memory left for it. `on_start` gets its
    pid; `stdout` is a descriptor that it gets instead of this process's standard output. For a process with one
    thread only: a signal for it must find that one.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody's status can be waited for
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    try:
        process = _start(argv, env, before, stdout)
        on_start(process.pid)
        return _wait(process)
    finally:
        while signal.sigtimedwait(PASSED_ON, 0):  # the Ctrl-C that ended the program is not to end this process too
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(
    argv: Sequence[str], env: Mapping[str, str], mask: Iterable[int], stdout: int | None
) -> "subprocess.Popen[bytes]":
    """Start a program with a signal mask, that does not outlive us; UsageError where it cannot be started."""
    own_pid = os.getpid()

    def arrange() -> None:
        die_with_parent()
        if os.getppid() != own_pid:  # we died before that could reach the kernel
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        # Not posix_spawn: glibc leaves two signals ignored that the program would not have ignored without us.
        return subprocess.Popen(argv, env=env, stdout=stdout, close_fds=False, preexec_fn=arrange)  # noqa: PLW1509
    except OSError as error:
        if exhausted := exhaustion_of(error):
            raise exhausted from None
        found = shutil.which(argv[0], path=env.get("PATH"))
        raise UsageError(
            f"{argv[0]} cannot be started: {error.strerror}",
            legal="a program that can be executed" if found else "a program on the path, or the path of one",
            remedy="begin its first line with #!, or name its interpreter" if found else "check its spelling",
        ) from None


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a child, passing on what others send to this process meanwhile."""
    while (status := process.poll()) is None:
        heard = signal.sigwaitinfo({*PASSED_ON, signal.SIGCHLD})
        is_from_process = heard.si_code <= 0  # the kernel's own, a terminal's among them, are above
        if heard.si_signo != signal.SIGCHLD and is_from_process:
            process.send_signal(heard.si_signo)
    return status
