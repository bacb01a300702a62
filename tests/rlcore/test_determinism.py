"""The level of a run, entered around all of it."""

import pytest

from rlcore import determinism
from rlcore.determinism import at_level
from rlcore.models.config import DecoderConfig

CONFIG = DecoderConfig("qwen3", 12, 8, 1, 2, 1, 4, 12, max_length=16)


def test_numbers_of_threads_that_no_certificate_holds_for_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(
        "rlcore.determinism.check_threads", lambda invariance_report, count, **shapes: looked_at.append(count)
    )
    determinism._check_threads.cache_clear()
    with at_level("invariant", CONFIG, length=64, threads=(1, 5, 2, 3)):
        pass
    with at_level("off", CONFIG, length=64, threads=(7,)):
        pass
    determinism._check_threads.cache_clear()
    assert looked_at == [3, 5]
