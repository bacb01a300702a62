"""What a warm start leaves in the first step: a fault at work in it is found there, and in its phase."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch

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
