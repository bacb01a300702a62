"""Passes, and leaves a thread that keeps the interpreter from ending: TIMED_OUT, saying that pytest had finished."""

import threading
import time


def test_passes() -> None:
    threading.Thread(target=time.sleep, args=(1_000,)).start()
