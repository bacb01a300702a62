"""The probe picks by what it sees, the switch asserts that it is at work, and both leave things as they were."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.errors import LevelError
from rlcore.numerics.attention import attention, plain_attention
from rlcore.numerics.cases import Draw
from rlcore.numerics.invariance_report import InvarianceReport, check_effect, invariant
from rlcore.numerics.level import KernelStrategy, active, is_invariant
from rlcore.numerics.padding import Padding
from rlcore.numerics.probe import STRATEGIES, certify, check_threads, num_threads
from rlcore.numerics.tiles import Tiles

SMALL = {"shapes": [(32, 48)], "heads": [(2, 1, 16)]}


@dataclass(frozen=True)
class Broken:
    """A recipe whose rows depend on the batch: a row gets a little of the batch's size."""

    name: str = "broken"

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight) * (1 + x.shape[0] / 1000)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        return plain_attention(q, k, v, seen)


@dataclass(frozen=True)
class BrokenAttention(Broken):
    """Products hold, attention depends on the number of queries."""

    name: str = "broken attention"

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return Tiles().linear(x, weight)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        return plain_attention(q, k, v, seen) + q.shape[2]


@dataclass(frozen=True)
class BrokenByThreads(Broken):
    """Products hold with one thread and with two, and are others with more."""

    name: str = "broken by threads"

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return Tiles().linear(x, weight) * max(2, torch.get_num_threads())

    def attention(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        return Tiles().attention(q, k, v, seen)


def invariance_report(strategy: KernelStrategy) -> InvarianceReport:
    return InvarianceReport(strategy, torch.float32, "cpu", 128, (), "this one")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_recipe_holds_here(dtype: torch.dtype) -> None:
    found = certify(dtype, **SMALL)  # type: ignore[arg-type]
    assert found.strategy in STRATEGIES
    assert all(m.held for m in found.measurements if m.strategy == found.strategy.name)
    assert {m.operation for m in found.measurements if m.strategy == found.strategy.name} == {
        "linear",
        "attention",
        "rows",
    }
    assert found.lines()[0].startswith(found.strategy.name)
    with invariant(found):
        assert active() is found.strategy


def test_what_does_not_hold_is_passed_over() -> None:
    found = certify(strategies=[Broken(), BrokenAttention(), Tiles()], **SMALL)  # type: ignore[arg-type]
    assert found.strategy == Tiles()
    broken = {(m.strategy, m.operation): m for m in found.measurements if not m.held}
    assert {("broken", "linear"), ("broken attention", "attention")} <= set(broken)
    assert ("broken attention", "linear") not in broken
    assert broken["broken", "linear"].first.startswith("1 rows of 32 to 48")
    assert "differ, first 1 rows of 32 to 48, threads 1" in str(broken["broken", "linear"])


def test_nothing_that_holds_is_an_error_that_says_what_was_tried() -> None:
    with pytest.raises(LevelError, match=r"no kernel strategy is batch-invariant .* linear broken: "):
        certify(strategies=[Broken()], **SMALL)  # type: ignore[arg-type]
    assert active() is None


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    certify(strategies=[Tiles()], **SMALL)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError), num_threads(before + 1):
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_two_looks_see_the_same() -> None:
    a, b = (certify(**SMALL, clock=lambda: 0.0) for _ in range(2))  # type: ignore[arg-type]
    assert a == b
    assert torch.equal(*(Draw.seeded(torch.float32, "cpu")(5) for _ in range(2)))


def test_a_length_that_cuts_sums_otherwise_takes_another_recipe() -> None:
    """Two blocks of torch's attention: sixteen keys at a time hold for short sequences only, here."""
    short = certify(length=128, **SMALL)  # type: ignore[arg-type]
    long = certify(length=640, **SMALL)  # type: ignore[arg-type]
    assert (short.length, long.length) == (128, 640)
    if short.strategy == long.strategy:
        pytest.skip(f"{short.strategy.name} holds for long sequences too on this machine")
    failed = [m for m in long.measurements if m.strategy == short.strategy.name and not m.held]
    assert [m.operation for m in failed] == ["attention"]


def test_longer_sequences_than_certified_are_refused() -> None:
    q = torch.zeros(1, 1, 129, 8)
    with pytest.raises(LevelError, match="attention over 129 keys"), invariant(invariance_report(Padding())):
        attention(q, q, q)


# ----------------------------------------------------------------------------------------------------------- the switch


def test_the_switch_is_off_again_however_it_ends() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ZeroDivisionError), invariant(invariance_report(Padding())):
            assert is_invariant()
            assert torch.get_float32_matmul_precision() == "highest"
            with invariant(invariance_report(Tiles())):
                assert active() == Tiles()
            assert active() == Padding()
            raise ZeroDivisionError
        assert not is_invariant()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("strategy", [Broken(), BrokenAttention()], ids=lambda strategy: strategy.name)
def test_a_switch_without_effect_is_refused(strategy: KernelStrategy) -> None:
    with pytest.raises(LevelError, match="certify again"), invariant(invariance_report(strategy)):
        pytest.fail("entered")
    assert not is_invariant()


def test_what_undoes_the_level_inside_is_seen_at_the_end() -> None:
    with pytest.raises(LevelError, match="'medium' precision"), invariant(invariance_report(Padding())):
        torch.set_float32_matmul_precision("medium")
    assert torch.get_float32_matmul_precision() == "highest"


def test_numbers_flushed_to_zero_are_refused() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush them")
    try:
        with pytest.raises(LevelError, match="flushed to zero"):
            certify(**SMALL)  # type: ignore[arg-type]
    finally:
        torch.set_flush_denormal(False)


def test_autocast_is_refused() -> None:
    with torch.autocast("cpu"), pytest.raises(LevelError, match="autocast"):
        check_effect(invariance_report(Padding()))


def test_numbers_of_threads_that_move_bits_are_refused() -> None:
    found = certify(strategies=[BrokenByThreads()], **SMALL)  # type: ignore[arg-type]
    check_threads(found, 2, **SMALL)  # type: ignore[arg-type]
    with pytest.raises(
        LevelError, match=r"differ bitwise between 3 threads and one .*linear broken by threads.*threads 3"
    ):
        check_threads(found, 3, **SMALL)  # type: ignore[arg-type]
    check_threads(invariance_report(Tiles()), 3, **SMALL)  # type: ignore[arg-type]
