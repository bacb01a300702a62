"""Needs one GPU, and crashes."""

import ctypes

import pytest


@pytest.mark.gpus(1)
def test_copy() -> None:
    # PLANTED: a segmentation fault. It ends this file's process, and no other file.
    ctypes.string_at(0)
