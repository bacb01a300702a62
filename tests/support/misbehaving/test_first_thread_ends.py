"""Ends its first thread alone, so that the process shows as a zombie and lives on: TIMED_OUT."""

import ctypes
import threading
import time


def test_ends_its_first_thread() -> None:
    threading.Thread(target=time.sleep, args=(1_000,), daemon=True).start()
    ctypes.CDLL(None).pthread_exit(None)
