"""Passes, and leaves a grandchild that keeps standard output open and prints: PASSED, the grandchild named, killed."""

import subprocess
import sys

import pytest

PRINTS = "import time\nfor _ in range(10_000): print('still here', flush=True); time.sleep(0.1)"
STARTS_IT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {PRINTS!r}])"


def test_starts_a_grandchild(capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():  # the real standard output
        subprocess.run([sys.executable, "-c", STARTS_IT], check=True)
