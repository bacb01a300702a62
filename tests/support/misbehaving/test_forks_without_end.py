"""Hangs among two hundred processes, each of which makes two more when it is asked to end: TIMED_OUT, none left."""

import os
import signal
import time

NUM_PROCESSES = 200
LIFE_S = 60  # should nobody end them


def multiply(number: int, frame: object) -> None:
    for _ in range(2):
        if os.fork() == 0:
            return


def test_forks() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, multiply)
    until_s = time.monotonic() + LIFE_S
    for _ in range(NUM_PROCESSES):
        if os.fork() == 0:
            break
    while time.monotonic() < until_s:
        time.sleep(1)
    os._exit(1)
