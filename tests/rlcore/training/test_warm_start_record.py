"""What a warm start leaves in the first step: a fault at work in it is found there, and in its phase."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import rlcore.trainers.gradients as update_module
from rlcore.models.build import build_model
from rlcore.models.decoder import Decoder
from tests.rlcore.training.recorded import Digests, RecordedValue, config, first_difference, recorded
from tests.support.run_configs import with_section

SHORT = with_section(config(), "training", {"num_steps": 2})
NUM_PARAMETERS = len(list(build_model(SHORT)[1].parameters()))
DIGEST = "warm_start.gradient_digest"
VALUES = (("loss", "warm_start"), ("backward", DIGEST), ("optimizer", "warm_start.gradient_norm"))


def of_warm_start(found: Digests) -> list[RecordedValue]:
    return [leaf for leaf in found.leaves if leaf[2].startswith("warm_start")]


@pytest.mark.full
def test_each_supervised_step_is_told_before_the_first_rollout(tmp_path: Path) -> None:
    found = recorded(SHORT, tmp_path)
    told = of_warm_start(found)
    assert told == list(found.leaves)[: len(told)]
    assert told[0] == (0, "optimizer", "warm_start.weights_digest", 0)
    assert told[1:] == [(0, *place, number) for number in range(6) for place in VALUES]


def test_it_ends_where_the_warm_start_has_ended(tmp_path: Path) -> None:
    enough = with_section(SHORT, "warm_start", {"target_reward": 0.0, "check_every": 2})
    assert len(of_warm_start(recorded(enough, tmp_path))) == 1 + 3 * 2


@pytest.mark.full
def test_without_one_nothing_is_told_of_it(tmp_path: Path) -> None:
    assert not of_warm_start(recorded(with_section(SHORT, "warm_start", {"num_steps": 0}), tmp_path / "none"))
    recorded(with_section(SHORT, "output", {"checkpoint_every": 1}), tmp_path / "first")
    longer = with_section(SHORT, "training", {"num_steps": 3})
    resumed = recorded(with_section(longer, "output", {"resume": str(tmp_path / "first")}), tmp_path / "resumed")
    assert {leaf[0] for leaf in resumed.leaves} == {2}
    assert not of_warm_start(resumed)


@contextmanager
def in_supervised_step(number: int, name: str, changed: Any) -> Iterator[None]:
    """A function of `update` gives something else in one supervised step."""
    honest, calls = getattr(update_module, name), iter(range(10**6))

    def faulty(*given: Any, **named: Any) -> Any:
        found = honest(*given, **named)
        return changed(found) if next(calls) == number else found

    with patch.object(update_module, name, faulty):
        yield


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "call", "changed", "leaf"),
    [
        ("global_norm", 3, lambda norm: norm * (1 + 2**-50), (0, "optimizer", "warm_start.gradient_norm", 3)),
        # Two microbatches a step.
        (
            "take_gradient",
            8 * NUM_PARAMETERS,
            lambda gradient: gradient * (1 + 2**-20),
            (0, "backward", "warm_start.gradient_digest", 4),
        ),
    ],
)
def test_a_fault_in_one_supervised_step_is_found_there(
    tmp_path: Path, name: str, call: int, changed: Any, leaf: RecordedValue
) -> None:
    honest = recorded(SHORT, tmp_path / "honest")
    with in_supervised_step(call, name, changed):
        faulty = recorded(SHORT, tmp_path / "faulty")
    assert first_difference(honest, faulty) == leaf


def test_other_weights_to_begin_with_are_found_before_anything_is_learned(tmp_path: Path) -> None:
    honest, initialise = recorded(SHORT, tmp_path / "honest"), Decoder.initialise

    def moved(decoder: Decoder, seed: int) -> Decoder:
        initialise(decoder, seed)
        with torch.no_grad():
            decoder.embedding[0, 0] += 1e-3
        return decoder

    with patch.object(Decoder, "initialise", moved):
        other = recorded(SHORT, tmp_path / "other")
    assert first_difference(honest, other) == (0, "optimizer", "warm_start.weights_digest", 0)
