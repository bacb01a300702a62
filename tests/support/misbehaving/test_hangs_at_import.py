"""Hangs while it is imported: COLLECT_TIMEOUT."""

import time

while True:
    time.sleep(1)


def test_never_runs() -> None:
    pass
