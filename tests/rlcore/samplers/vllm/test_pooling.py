"""Reward models served by vLLM: one sequence at a time, scores depend on nothing else; in batches they do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlcore.errors import InvalidValueError
from rlcore.models.classifier import Classifier
from rlcore.rewards.reward_model import TorchScorer
from rlcore.samplers.vllm.pooling import VllmScorer
from tests.support.reward_models import CONFIG, sequences_of, write_reward_model
from tests.support.vllm_engines import need_vllm

need_vllm()
Start = Callable[..., VllmScorer]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Classifier, Start]:
    directory = tmp_path_factory.mktemp("reward_model")
    classifier = write_reward_model(directory)

    def start(batch_size: int = 16, *, is_serial: bool, is_packed: bool = True) -> VllmScorer:
        return VllmScorer(
            directory,
            max_length=CONFIG.max_length,
            batch_size=batch_size,
            is_serial=is_serial,
            is_packed=is_packed,
        )

    return classifier, start


def test_one_at_a_time_scores_depend_on_their_sequence_alone(served: tuple[Classifier, Start]) -> None:
    _, start = served
    sequences, scorer = sequences_of(), start(is_serial=True)
    first = scorer(sequences)
    assert scorer(sequences[::-1])[::-1] == first
    assert [scorer([each])[0] for each in sequences] == first
    assert start(batch_size=3, is_serial=True)(sequences) == first, "whatever the batch size"
    torch.set_num_threads(2)
    try:
        assert scorer(sequences) == first, "whatever the number of threads"
    finally:
        torch.set_num_threads(1)


def test_in_batches_they_depend_on_their_company(served: tuple[Classifier, Start]) -> None:
    """Of weights that are not packed for oneDNN: those happen to hold on some processors."""
    _, start = served
    sequences = sequences_of()
    serial, batched = (start(is_serial=is_serial, is_packed=False) for is_serial in (True, False))
    together, alone = batched(sequences), [batched([each])[0] for each in sequences]
    assert together != alone
    torch.testing.assert_close(torch.tensor(together), torch.tensor(alone), rtol=0, atol=1e-5)
    assert serial(sequences) == [serial([each])[0] for each in sequences] == alone


def test_they_are_those_of_torch_within_rounding(served: tuple[Classifier, Start]) -> None:
    classifier, start = served
    sequences = sequences_of()
    own = torch.tensor(TorchScorer(classifier, batch_size=1)(sequences))
    assert own.std() > 0.3
    torch.testing.assert_close(torch.tensor(start(is_serial=True)(sequences)), own, rtol=0, atol=1e-5)


def test_a_model_that_vllm_cannot_serve_is_refused(tmp_path: Path) -> None:
    write_reward_model(tmp_path, replace(CONFIG, head_width=8))
    with pytest.raises(InvalidValueError, match="heads are 8 wide") as caught:
        VllmScorer(tmp_path, max_length=96, batch_size=1, is_serial=True)
    assert "torch" in caught.value.remedy
