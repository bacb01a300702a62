"""The probe picks by what it sees, the switch asserts that it is at work, and both leave things as they were."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.errors import LevelError
from rlcore.numerics import attention as attention_module
from rlcore.numerics import probe
from rlcore.numerics import product as product_module
from rlcore.numerics.attention import attention
from rlcore.numerics.level import Strategy, active, in_tiles, is_invariant
from rlcore.numerics.probe import STRATEGIES, InvarianceReport, certify, check_threads, invariant

SMALL: dict[str, Any] = {"shapes": [(32, 48)], "heads": [(2, 1, 16)]}
TILES = STRATEGIES[-1]
WIDE = replace(TILES, name="tile256", rows=256)
"""Whatever the probe's rows are, a product has as many."""


def report_of(padding: Strategy) -> InvarianceReport:
    return InvarianceReport(padding, torch.float32, ((32, 48),), ((2, 1, 16),), 128)


@pytest.fixture
def by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make products depend on the batch: a row gets a little of the number of rows."""
    monkeypatch.setattr(product_module, "product", lambda x, weight: F.linear(x, weight) * (1 + x.shape[0] / 1000))


@pytest.fixture
def by_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make attention depend on the number of queries."""
    plain = attention_module.plain_attention

    def uneven(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        return plain(q, k, v, seen) + q.shape[2]

    monkeypatch.setattr(attention_module, "plain_attention", uneven)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_padding_holds_here(dtype: torch.dtype) -> None:
    found = certify(dtype, **SMALL)
    assert found.strategy in STRATEGIES
    measured = probe.measure(found)
    assert [(m.operation, m.num_different) for m in measured] == [("linear", 0), ("attention", 0), ("rows", 0)]
    with invariant(found):
        assert active() == replace(found.strategy, longest=found.length)


@pytest.mark.usefixtures("by_batch")
def test_a_padding_that_does_not_hold_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "STRATEGIES", (Strategy(), WIDE))
    assert certify(**SMALL).strategy == WIDE
    monkeypatch.setattr(probe, "STRATEGIES", (Strategy(),))
    with pytest.raises(LevelError, match=r"linear pad16: .* differ, first 1 rows of 32 to 48, threads 1"):
        certify(**SMALL)


@pytest.mark.usefixtures("by_queries")
def test_nothing_that_holds_is_an_error_that_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "STRATEGIES", (Strategy(),))
    with pytest.raises(LevelError, match=r"no kernel strategy is batch-invariant .*attention pad16: "):
        certify(**SMALL)
    assert active() is None


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    certify(**SMALL)
    with pytest.raises(RuntimeError), probe.num_threads(before + 1):
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_two_probes_see_the_same() -> None:
    a, b = (certify(**SMALL) for _ in range(2))
    assert a == b


def test_a_length_that_cuts_sums_otherwise_takes_another_padding() -> None:
    """Two blocks of torch's attention: sixteen keys at a time hold for short sequences only, here."""
    short = certify(length=128, **SMALL)
    long = certify(length=640, **SMALL)
    assert (short.length, long.length) == (128, 640)
    if short.strategy == long.strategy:
        pytest.skip(f"{short.strategy.name} holds for long sequences too on this machine")
    measured = probe.measure(replace(short, length=640))
    assert [m.operation for m in measured if m.num_different] == ["attention"]


def test_longer_sequences_than_certified_are_refused() -> None:
    q = torch.zeros(1, 1, 129, 8)
    with pytest.raises(LevelError, match="attention over 129 keys"), invariant(report_of(Strategy())):
        attention(q, q, q)


# ----------------------------------------------------------------------------------------------------------- the switch


def test_the_switch_is_off_again_however_it_ends() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ZeroDivisionError), invariant(report_of(Strategy())):
            assert is_invariant()
            assert torch.get_float32_matmul_precision() == "highest"
            with invariant(report_of(WIDE)):
                assert active() == replace(WIDE, longest=128)
            assert active() == replace(Strategy(), longest=128)
            raise ZeroDivisionError
        assert not is_invariant()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("broken", ["by_batch", "by_queries"])
def test_a_switch_without_effect_is_refused(broken: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(broken)
    with pytest.raises(LevelError, match="certify again"), invariant(report_of(Strategy())):
        pytest.fail("entered")
    assert not is_invariant()


def test_what_undoes_the_level_inside_is_seen_at_the_end() -> None:
    with pytest.raises(LevelError, match="'medium' precision"), invariant(report_of(Strategy())):
        torch.set_float32_matmul_precision("medium")
    assert torch.get_float32_matmul_precision() == "highest"


def test_numbers_flushed_to_zero_are_refused() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush them")
    try:
        with pytest.raises(LevelError, match="flushed to zero"):
            certify(**SMALL)
    finally:
        torch.set_flush_denormal(False)


def test_autocast_is_refused() -> None:
    with torch.autocast("cpu"), pytest.raises(LevelError, match="autocast"):
        probe.check_effect(report_of(Strategy()))


def test_numbers_of_threads_that_move_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products hold with one thread and with two, and are others with more."""
    check_threads(report_of(TILES), 3)
    tiles = in_tiles

    def by_threads(x: Tensor, multiple: int, dim: int) -> tuple[Tensor, ...]:
        return tuple(tile * max(2, torch.get_num_threads()) for tile in tiles(x, multiple, dim))

    monkeypatch.setattr(product_module, "in_tiles", by_threads)
    monkeypatch.setattr(probe, "STRATEGIES", (TILES,))
    found = certify(**SMALL)
    check_threads(found, 2)
    with pytest.raises(LevelError, match=r"differ bitwise between 3 threads and one .*linear tile32.*threads 3"):
        check_threads(found, 3)
