"""Whole runs of two stages: no runtime setting moves a bit, faults of a stage are found, groups are as specified."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.checks import Checks
from rlcore.config import RunConfig
from rlcore.data.trajectory import Trajectory, by_request
from rlcore.entrypoint import train
from rlcore.errors import InvalidValueError, LevelError
from rlcore.models.decoder import Decoder
from rlcore.samplers.base import NextToken, NextTokenRequest
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.train import Step
from tests.rlcore.training.recorded import STAGES, Digests, Lost, first_difference, recorded, two_stages
from tests.support.run_configs import with_section


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Digests:
    """The run that others are compared with."""
    return recorded(two_stages(), tmp_path_factory.mktemp("undisturbed"))


perturbations = st.fixed_dictionaries(
    {
        "arrival_seed": st.integers(0, 2**32),
        "concurrency": st.integers(1, 16),
        "preempt_every": st.sampled_from([0, 1, 2]),
        "sampling_threads": st.sampled_from([1, 2]),
        "training_threads": st.sampled_from([1, 2]),
        "token_budget": st.sampled_from([80, 200, 16_384]),
        "world_size": st.sampled_from([1, 2, 4]),
    }
)


@pytest.mark.full
@settings(max_examples=4, derandomize=True)
@given(perturbation=perturbations)
def test_perturbations_move_no_bit(
    perturbation: dict[str, Any], undisturbed: Digests, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = recorded(with_section(two_stages(), "runtime", perturbation), tmp_path_factory.mktemp("perturbed"))
    assert first_difference(undisturbed, found) is None
    assert found.leaves.keys() == undisturbed.leaves.keys()


@pytest.mark.full
def test_a_crash_and_a_resume_move_no_bit(undisturbed: Digests, tmp_path: Path) -> None:
    of = with_section(two_stages(), "output", {"checkpoint_every": 2})
    with pytest.raises(Lost):
        recorded(of, tmp_path / "lost", stop_after=3)
    found = recorded(with_section(of, "output", {"resume": str(tmp_path / "lost")}), tmp_path / "resumed")
    assert min(step for step, *_ in found.leaves) == 2
    assert first_difference(undisturbed, found) is None


# ---------------------------------------------------------------------------------------------------------- two stages


def seen(of: RunConfig, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Train, and keep what all steps were made of."""
    steps, after = list[Step](), Checks.after

    def kept(self: Checks, step: Step) -> None:
        steps.append(step)
        after(self, step)

    monkeypatch.setattr(Checks, "after", kept)
    train(of, level="invariant", directory=directory, recorder=Digests())
    return steps


@pytest.mark.full
@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo"])
def test_advantages_are_of_distinct_samples_and_a_lone_item_has_none(
    advantage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_of = TorchSampler.next_tokens

    def fewer(self: TorchSampler, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        """Contexts of an odd sum have one continuation: too few beams."""
        found = answers_of(self, requests)
        return [answer[: 1 if sum(each.context) % 2 else None] for each, answer in zip(requests, found, strict=True)]

    monkeypatch.setattr(TorchSampler, "next_tokens", fewer)
    found = seen(two_stages(algorithm={"advantage": advantage}), tmp_path, monkeypatch)
    sizes = set[int]()
    for step in found:
        batch, trajectories = step.batch, step.rollouts
        of_sample = torch.where(batch["loss_mask"], batch["advantages"], -torch.inf).amax(1)
        members: dict[tuple[str | int, ...], list[int]] = {}
        for row, each in enumerate(trajectories):
            members.setdefault(each.group, []).append(row)
        assert sorted(map(len, members.values())) == sorted(Counter(batch["groups"].tolist()).values())
        for group, rows in members.items():
            own = [trajectories[row].tokens for row in rows]
            advantages = of_sample[rows]
            if len(group) == 2:
                sizes.add(len(rows))
                assert len(set(own)) == len(own), "no item twice"
            assert abs(float(advantages.sum())) < 1e-5
            assert len(rows) > 1 or float(advantages) == 0.0, "nothing to compare it with"
        on_tokens = batch["advantages"]
        assert torch.equal(on_tokens != 0.0, batch["loss_mask"] & (of_sample != 0).unsqueeze(1))
        _check_rewards(trajectories, batch["rewards"].tolist())
    assert sizes >= {1, 3}, "some have too few"


def _check_rewards(trajectories: Sequence[Trajectory], rewards: Sequence[float]) -> None:
    """A reasoning is worth the mean of its items."""
    at = 0
    for found in by_request(trajectories):
        own = rewards[at : at + len(found)]
        at += len(found)
        assert len(own) == 1 or own[0] == pytest.approx(sum(own[1:]) / len(own[1:]))


@pytest.mark.parametrize(
    "sections",
    [
        {"algorithm": {"loss": "gspo", "aggregation": "seq-mean-token-mean"}},
        pytest.param(
            {"algorithm": {"loss": "masked_is", "advantage": "reinforce_pp_baseline"}}, marks=pytest.mark.full
        ),
        pytest.param({"training": {"num_minibatches": 2, "num_epochs": 2}}, marks=pytest.mark.full),
        pytest.param(
            {"sampling": {"temperature": 0.7, "top_k": 5}, "algorithm": {"kl_coef": 0.01}}, marks=pytest.mark.full
        ),
        pytest.param(
            {"sampling": {"two_stage": {**STAGES, "forced_text": ""}}, "task": {"shuffles_rewards": True}},
            marks=pytest.mark.full,
        ),
    ],
    ids=["gspo", "masked_is", "minibatches", "temperature", "shuffled"],
)
def test_losses_minibatches_and_temperatures_go_with_two_stages(sections: dict[str, Any], tmp_path: Path) -> None:
    """The trainer's log-probabilities are the sampler's, to the bit, in both stages: it is checked in every step."""
    found = recorded(two_stages(**sections), tmp_path)
    assert found.curve.keys() == set(range(5))


def test_an_adapter_that_only_the_first_stage_has_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items searched with other weights, which the sampler does not report: LoRA that ends with the first stage."""
    answers_of = TorchSampler.next_tokens

    def without_adapter(self: TorchSampler, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        whole = self._decoder
        adapted = Decoder(whole.config).requires_grad_(False)
        adapted.load_state_dict({name: 0.9 * value for name, value in whole.state_dict().items()})
        self._decoder = adapted
        try:
            return answers_of(self, requests)
        finally:
            self._decoder = whole

    monkeypatch.setattr(TorchSampler, "next_tokens", without_adapter)
    with pytest.raises(LevelError, match="the trainer's log-probability"):
        recorded(two_stages(), tmp_path)


def test_what_cannot_be_encoded_is_refused_before_the_warm_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="'!' in a text"):
        recorded(two_stages(sampling={"two_stage": {**STAGES, "forced_text": "!"}}), tmp_path)
