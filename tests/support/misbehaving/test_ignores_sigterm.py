"""Hangs and ignores SIGINT and SIGTERM: TIMED_OUT."""

import signal
import time


def test_hangs() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)
