"""Generators are told once they are used, and looking uses none."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from harness.recording.program_state import RandomStates, read_states


@pytest.fixture(autouse=True)
def states_are_put_back() -> Iterator[None]:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


def test_what_nobody_uses_is_never_told() -> None:
    states = RandomStates()
    assert states.changed() == {}
    assert states.changed() == {}


def test_each_generator_is_told_when_it_was_drawn_from() -> None:
    states = RandomStates()
    random.random()
    assert list(states.changed()) == ["random.python"]
    torch.rand(1)
    np.random.rand()
    assert sorted(states.changed()) == ["random.numpy", "random.torch"]
    assert states.changed() == {}


def test_a_seed_that_makes_the_same_state_is_the_same_digest() -> None:
    random.seed(5)
    first = read_states()["random.python"]
    random.random()
    assert read_states()["random.python"] != first
    random.seed(5)
    assert read_states()["random.python"] == first


def test_a_half_used_pair_of_gaussians_is_part_of_the_state() -> None:
    """Python's and NumPy's draw two at once and hold one back: the words alone do not tell."""
    draws: dict[str, Callable[[], object]] = {
        "random.python": lambda: random.gauss(0, 1),
        "random.numpy": np.random.randn,
    }
    for name, draw in draws.items():
        draw()
        with_one_held = read_states()[name]
        draw()
        assert read_states()[name] != with_one_held


def test_a_generator_that_appears_is_not_one_that_was_used() -> None:
    states = RandomStates()
    del states._seen["random.numpy"]
    states.meet_new()
    assert states.changed() == {}
    np.random.rand()
    assert list(states.changed()) == ["random.numpy"]
