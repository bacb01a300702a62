"""The rule that tells rounding from a difference, on steps written by hand; and what a nudge moves."""

import math
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.recording.locked_steps import (
    MARGIN,
    LockedSteps,
    Rounding,
    common_factor,
    compare_step,
    measure_step,
    read_lines,
    roundings_of,
)

GRADIENTS = {"0": torch.tensor([1.0, 2.0]), "1": torch.tensor([3.0])}


def step(
    gradient: Mapping[str, torch.Tensor] = GRADIENTS, lr: float = 0.1, number: int = 0, **phases: Any
) -> dict[str, Any]:
    weights = {"0": torch.tensor([0.5, 0.25]), "1": torch.tensor([0.125])}
    whole = {"before": weights, "after": {name: each - 0.1 for name, each in weights.items()}, "state": {}}
    named = {"optimizer": 0, "number": number, "names": ["net.weight", "net.bias"], "num_gradients": 1}
    return {**whole, **named, "settings": {"group0.lr": lr}, "gradient": gradient, **phases}


def scaled(factor: float) -> dict[str, torch.Tensor]:
    return {name: each * factor for name, each in GRADIENTS.items()}


def test_equal_bits_are_equal_and_a_zero_of_another_sign_is_a_bit() -> None:
    assert compare_step(step(), step(), {}) == {"bit": None, "worst": None, "difference": None}
    nan = {"0": torch.tensor([math.nan, 0.0])}
    assert compare_step(step(nan), step(nan), {})["bit"] is None
    found = compare_step(step(nan), step({"0": torch.tensor([math.nan, -0.0])}), {})
    assert (found["bit"], found["difference"]) == (["gradient", "net.weight"], None)


def test_the_margin_is_eight_times_what_nudged_runs_show() -> None:
    roundings = {(0, "gradient", "0"): Rounding({0: (1e-3, 1.0)})}
    for times, is_real in ((0.9 * MARGIN, False), (1.1 * MARGIN, True)):
        moved = {**GRADIENTS, "0": GRADIENTS["0"] + torch.tensor([times * 1e-3, 0.0])}
        found = compare_step(step(), step(moved), roundings)
        assert found["bit"] == ["gradient", "net.weight"]
        assert bool(found["difference"]) is is_real
    assert found["difference"]["times"] == pytest.approx(1.1 * MARGIN, rel=1e-2)


def test_one_number_that_agrees_by_chance_has_the_spread_of_the_other_steps() -> None:
    lines = [
        {"optimizer": 0, "number": n, "spreads": {"gradient": {"1": [spread, 3.0]}}}
        for n, spread in enumerate((0.0, 1e-3, 1e-3))
    ]
    rounding = roundings_of([lines])[0, "gradient", "1"]
    assert rounding.multiple(torch.tensor([3.002]), torch.tensor([3.0]), 0) == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize(("dtype", "floor"), [(torch.float32, 4.0), (torch.bfloat16, 1.0), (torch.float16, 1.0)])
def test_without_a_spread_the_floor_is_some_ulps_of_the_norm(dtype: torch.dtype, floor: float) -> None:
    base = torch.ones(1, dtype=dtype)
    away = base + torch.finfo(dtype).eps
    assert Rounding().multiple(away, base, 0) == pytest.approx(1 / floor)
    assert Rounding().multiple(torch.tensor([2]), torch.tensor([1]), 0) == math.inf, "whole numbers do not round"


def test_one_factor_for_all_gradients() -> None:
    found = compare_step(step(), step(scaled(4.0)), {})["difference"]
    assert (found["kind"], found["of"], found["factor"]) == ("FACTOR", "gradients", pytest.approx(4.0))
    assert compare_step(step(), step({**scaled(4.0), "1": GRADIENTS["1"]}), {})["difference"]["kind"] == "DIFFERENT"
    assert compare_step(step(), step(scaled(1.0005)), {})["difference"]["kind"] == "DIFFERENT", "too near to 1"
    turned = {"0": torch.tensor([1 + 2j])}
    assert common_factor({"0": turned["0"] * 4}, turned, lambda name: Rounding(), 0) == pytest.approx(4.0)
    assert common_factor({"0": torch.zeros(2)}, {"0": torch.zeros(2)}, lambda name: Rounding(), 0) is None


def test_one_factor_for_the_update() -> None:
    base = step()
    weights = {name: base["before"][name] - 0.2 for name in base["after"]}
    roundings = {(0, "update", name): Rounding({0: (1e-6, 0.1)}) for name in weights}
    found = compare_step(base, step(after=weights), roundings)["difference"]
    assert (found["kind"], found["of"], found["factor"]) == ("FACTOR", "update", pytest.approx(2.0, rel=1e-5))


def test_settings_come_before_the_weights_that_they_move() -> None:
    found = compare_step(step(), step(lr=0.2, after={}), {})["difference"]
    assert found == {"kind": "SETTINGS", "name": "group0.lr", "values": [0.1, 0.2]}
    assert compare_step(step(), step(lr=0.1 + 1e-12), {})["difference"] is None, "computed in another way"


@pytest.mark.parametrize(
    ("gradient", "problem"),
    [
        ({"0": GRADIENTS["0"]}, "its shape is none, the base's [1]"),
        ({**GRADIENTS, "1": torch.ones(2)}, "its shape is [2], the base's [1]"),
        ({**GRADIENTS, "1": torch.tensor([math.nan])}, "it is not finite"),
    ],
)
def test_what_cannot_be_compared_says_why(gradient: dict[str, torch.Tensor], problem: str) -> None:
    found = compare_step(step(), step(gradient), {})["difference"]
    assert (found["kind"], found["name"], found["problem"]) == ("DIFFERENT", "net.bias", problem)


def test_iterations_within_a_step_are_compared_by_their_first_gradient() -> None:
    other = step(after={"0": torch.zeros(2), "1": torch.zeros(1)})
    assert compare_step(step(), other, {})["difference"] is not None
    assert compare_step(step(num_gradients=3), other, {})["difference"] is None


def test_a_nudged_step_is_measured() -> None:
    assert measure_step(step(), step(scaled(2.0)))["gradient"]["1"] == (3.0, 3.0)


def test_a_nudge_moves_each_weight_by_one_ulp_at_most_and_no_whole_number(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.cat([torch.rand(64), torch.ones(4), torch.zeros(4)]))
    before = weight.detach().clone()
    locked = LockedSteps.__new__(LockedSteps)
    locked._nudges, locked._coarse = torch.Generator().manual_seed(0), 0.0
    locked._moves = weakref.WeakKeyDictionary()
    with torch.no_grad():
        locked._nudge(torch.optim.SGD([weight]))
    away = ((weight - before) / before).nan_to_num().abs()
    assert 0 < (away > 0).sum() < 64
    assert away.max() <= 2 * torch.finfo(torch.float32).eps
    assert torch.equal(weight[64:], before[64:])
    assert read_lines(tmp_path) == []
