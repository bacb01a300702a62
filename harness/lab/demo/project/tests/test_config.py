"""Needs no GPU: runs in a CPU slot beside the files that do."""

import time


def test_defaults() -> None:
    time.sleep(0.5)  # instead of real work, here and in the other files
    assert {"lr": 1e-3} | {"lr": 5e-2} == {"lr": 5e-2}
