"""Passes, and leaves a daemon of a double fork in a session and an environment of its own, to which nothing leads
back: PASSED, the daemon named and killed."""

import os


def test_becomes_a_daemon() -> None:
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.execve("/bin/sleep", ["sleep", "1001"], {})
        os._exit(0)
    os.waitpid(child, 0)
