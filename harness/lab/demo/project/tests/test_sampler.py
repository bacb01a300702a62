"""Needs one GPU, and hangs."""

import threading

import pytest


@pytest.mark.gpus(1)
@pytest.mark.timeout(3)
def test_decode() -> None:
    # PLANTED: a deadlock. The runner terminates the process tree after the limit above, and shows this line.
    lock = threading.Lock()
    with lock:
        lock.acquire()
