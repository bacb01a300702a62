"""Is SIGKILLed by another process, as by the kernel when memory runs out: CRASHED."""

import os
import subprocess


def test_is_killed() -> None:
    subprocess.run(["/bin/sh", "-c", f"kill -KILL {os.getpid()}"], check=True)
