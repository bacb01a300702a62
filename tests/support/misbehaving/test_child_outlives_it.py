"""Passes, and leaves a child running: PASSED, the child named and killed."""

import subprocess


def test_forks() -> None:
    subprocess.Popen(["/bin/sleep", "1000"])
