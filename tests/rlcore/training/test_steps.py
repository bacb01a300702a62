"""One step of each algorithm, against the same mathematics written out over the whole batch, and what a step tells."""

import copy
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from rlcore.algorithms.named import correction_weights
from rlcore.checks import Checks
from rlcore.config import CorrectionSection, RunConfig
from rlcore.data.tasks import make_task
from rlcore.determinism import at_level
from rlcore.entrypoint import prepare
from rlcore.log import RunLog
from rlcore.models.build import build_model
from rlcore.models.decoder import Critic, Decoder
from rlcore.numerics.log_softmax import log_softmax
from rlcore.train import TrainState, make_step
from rlcore.trainers.trainer import Trainer
from rlcore.weights.proven_sync import sync
from tests.rlcore.training.recorded import config, recorded, trained
from tests.support.run_configs import with_section


class Kept:
    """A recorder that keeps the tensors."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[Any]] = {}

    def begin_step(self, step: int) -> None:
        pass

    def record(self, phase: str, name: str, value: Any) -> None:
        kept = value.detach().clone() if isinstance(value, Tensor) else value
        self.values.setdefault((phase, name), []).append(kept)

    def end_step(self, **values: Any) -> None:
        pass

    def of(self, phase: str, name: str) -> Any:
        (value,) = self.values[phase, name]
        return value


def state_of(of: RunConfig, directory: Path, recorder: Kept, level: str = "off") -> TrainState:
    tokenizer, decoder = build_model(of)
    log = RunLog(directory, of.output)
    try:
        state, _ = prepare(
            of,
            level,
            make_task(of.task, tokenizer, of.seed),
            tokenizer,
            decoder,
            recorder=recorder,
            log=log,
        )
    finally:
        log.close()
    state.receipt = sync(state.decoder, state.sampler.weight_target, 0, None)
    return state


def written_out(decoder: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of every token but the first, [samples, positions - 1]."""
    vocabulary = log_softmax(decoder(tokens)[:, :-1])
    return vocabulary.gather(-1, tokens[:, 1:, None]).squeeze(-1), -(vocabulary.exp() * vocabulary).sum(-1)


def check_gradients(recorder: Kept, learner: str, model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        found = recorder.of("backward", f"{learner}.{name}")
        expected = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        assert torch.allclose(found, expected, atol=2e-6, rtol=2e-4), name


@pytest.mark.full
@pytest.mark.parametrize("token_budget", [64, 10**5])
def test_a_grpo_step_has_the_gradient_of_its_paper(tmp_path: Path, token_budget: int) -> None:
    """Mean over all tokens of -A r + kl_coef k3 - entropy_coef H, r = 1 on policy; A of groups of four."""
    of = config(algorithm={"name": "grpo", "kl_coef": 0.3, "entropy_coef": 0.05}, optimizer={"max_gradient_norm": None},
                runtime={"token_budget": token_budget})  # fmt: skip
    recorder, state, reference = started(of, tmp_path)
    policy = copy.deepcopy(state.decoder)
    with at_level("off", policy.config, length=64):
        make_step(state, 0)

    tokens, mask = recorder.of("rollout", "tokens"), recorder.of("rollout", "loss_mask")[:, 1:]
    rewards = recorder.of("reward", "rewards").reshape(4, 4)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    advantages[rewards.std(1) == 0] = 0.0
    logprobs, entropy = written_out(policy, tokens)
    with torch.no_grad():
        d = written_out(reference, tokens)[0] - logprobs.detach()
        weight = 1.0 - d.exp()  # the gradient of k3 by logprobs
    surrogate = -advantages.float().reshape(-1, 1) * logprobs + 0.3 * weight * logprobs - 0.05 * entropy
    (surrogate * mask).sum().div(mask.sum()).backward()
    check_gradients(recorder, "policy", policy)


def test_a_ppo_step_has_the_gradients_of_its_paper(tmp_path: Path) -> None:
    of = config("ppo", algorithm={"name": "ppo", "lam": 0.9, "gamma": 0.95, "whitens_advantages": False},
                optimizer={"max_gradient_norm": None})  # fmt: skip
    recorder = Kept()
    state = state_of(of, tmp_path, recorder)
    critic = cast(Critic, cast(Trainer, state.critic).model)
    with torch.no_grad():
        critic.value_head.weight.copy_(torch.linspace(-0.3, 0.3, 32))
        critic.value_head.bias.fill_(0.2)
    policy, old_critic = copy.deepcopy(state.decoder), copy.deepcopy(critic)
    with at_level("off", policy.config, length=64):
        make_step(state, 0)

    tokens, mask = recorder.of("rollout", "tokens"), recorder.of("rollout", "loss_mask")
    rewards = recorder.of("reward", "rewards")
    values = old_critic(tokens)[:, :-1]
    fixed, advantages = values.detach(), torch.zeros(tokens.shape)
    for sample in range(len(tokens)):
        places = mask[sample].nonzero().flatten().tolist()
        following = 0.0
        for place in reversed(places):
            is_last = place == places[-1]
            after = 0.0 if is_last else float(fixed[sample, place])
            delta = (float(rewards[sample]) if is_last else 0.0) + 0.95 * after - float(fixed[sample, place - 1])
            following = delta + 0.95 * 0.9 * (0.0 if is_last else following)
            advantages[sample, place] = following
    torch.testing.assert_close(recorder.of("advantage", "advantages"), advantages, atol=1e-5, rtol=1e-4)
    logprobs, _ = written_out(policy, tokens)
    count = mask.sum()
    (-(advantages[:, 1:] * logprobs * mask[:, 1:]).sum() / count).backward()
    check_gradients(recorder, "policy", policy)
    returns = advantages[:, 1:] + values.detach()
    (0.5 * ((values - returns).square() * mask[:, 1:]).sum() / count).backward()
    check_gradients(recorder, "critic", old_critic)


def test_a_group_of_equal_rewards_teaches_nothing(tmp_path: Path) -> None:
    of = config(task={"name": "reverse_text", "rewards": (f"{__name__}:same",), "num_prompts": 24, "num_heldout": 4})
    recorder = Kept()
    state = state_of(of, tmp_path, recorder)
    before = copy.deepcopy(state.decoder.state_dict())
    with at_level("off", state.decoder.config, length=64):
        metrics = make_step(state, 0)
    assert metrics["grad_norm"] == 0.0
    assert all(torch.equal(value, before[name]) for name, value in state.decoder.state_dict().items())


def same(completions: list[str], **_: Any) -> list[float]:
    return [0.9] * len(completions)


def by_turns(completions: list[str], **_: Any) -> list[float | None]:
    return [5.0 if number % 2 == 0 else None for number in range(len(completions))]


def graded(completions: list[str], **_: Any) -> list[float | None]:
    return [None if number % 3 == 1 else 1.0 + len(text) for number, text in enumerate(completions)]


def task_of(rewards: str) -> dict[str, Any]:
    return {"name": "reverse_text", "rewards": (f"{__name__}:{rewards}",), "num_prompts": 24, "num_heldout": 4}


@pytest.mark.full
def test_a_critic_learns_nothing_of_a_completion_without_a_reward(tmp_path: Path) -> None:
    of = config("ppo", task=task_of("by_turns"), training={"num_steps": 40},
                algorithm={"name": "ppo", "critic_learning_rate": 0.05, "value_clip_eps": None})  # fmt: skip
    state = trained(of, tmp_path)
    with torch.no_grad():
        expected = cast(Trainer, state.critic).model(torch.tensor([state.task.train[0].tokens]))
    assert float(expected[0, -1]) == pytest.approx(5.0, abs=0.2)


AGGREGATIONS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "token-mean": lambda rows: torch.cat(rows).mean(),
    "seq-mean-token-sum": lambda rows: torch.stack([row.sum() for row in rows]).mean(),
    "seq-mean-token-sum-norm": lambda rows: torch.stack([row.sum() / 8 for row in rows]).mean(),
    "seq-mean-token-mean": lambda rows: torch.stack([row.mean() for row in rows]).mean(),
}
"""Each over rows of the losses of tokens, one row a completion with a reward; 8 is the longest completion."""


def read_wide(decoder: Any, recorder: Kept) -> list[tuple[Tensor, Tensor]]:
    """Log-probability and entropy of the drawn tokens of each completion, in float64."""
    tokens, mask = recorder.of("rollout", "tokens"), recorder.of("rollout", "loss_mask")
    with torch.no_grad():
        vocabulary = torch.log_softmax(decoder(tokens)[:, :-1].double(), -1)
    logprobs = vocabulary.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    entropy = torch.special.entr(vocabulary.exp()).sum(-1)
    return [(logprobs[row][drawn], entropy[row][drawn]) for row, drawn in enumerate(mask[:, 1:])]


def started(of: RunConfig, directory: Path) -> tuple[Kept, TrainState, Decoder]:
    """What a step begins with, of two updates of one model; and the reference, which is not the policy."""
    recorder = Kept()
    state = state_of(of, directory, recorder)
    reference = cast(Decoder, cast(Trainer, state.reference).model)
    with torch.no_grad():
        reference.embedding.mul_(1.5)
    state.checks = Checks(state)
    return recorder, state, reference


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_grpo_learns_nothing_of_a_completion_without_a_reward(tmp_path: Path, aggregation: str) -> None:
    of = config(task=task_of("graded"), algorithm={
        "name": "grpo", "kl_coef": 0.3, "kl_estimator": "k3", "entropy_coef": 0.05, "aggregation": aggregation,
    })  # fmt: skip
    recorder, state, reference = started(of, tmp_path)
    policy = copy.deepcopy(state.decoder)
    with at_level("off", policy.config, length=64):
        metrics = make_step(state, 0)

    read, rewards = read_wide(policy, recorder), recorder.of("reward", "rewards")
    rows, entropies, distances = [], [], []
    for sample, (given, of_reference) in enumerate(zip(read, read_wide(reference, recorder), strict=True)):
        group = [float(rewards[other]) for other in range(16) if other // 4 == sample // 4 and other % 3 != 1]
        if sample % 3 != 1:
            spread = statistics.stdev(group)
            advantage = (float(rewards[sample]) - statistics.mean(group)) / (spread + 1e-6) if spread else 0.0
            d = given[0] - of_reference[0]
            distances.append((-d).exp() - 1 + d)
            entropies.append(given[1])
            rows.append(-advantage + 0.3 * distances[-1] - 0.05 * entropies[-1])
    expected = {
        "loss": AGGREGATIONS[aggregation](rows),
        "ref_kl": torch.cat(distances).mean(),
        "entropy": torch.cat(entropies).mean(),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(
        {name: float(value) for name, value in expected.items()}, rel=1e-4, abs=1e-6
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_ppo_learns_nothing_of_a_completion_without_a_reward(tmp_path: Path, aggregation: str) -> None:
    of = config("ppo", task=task_of("graded"), algorithm={
        "name": "ppo", "lam": 0.9, "gamma": 0.95, "entropy_coef": 0.05, "aggregation": aggregation,
        "kl_coef": 0.3, "kl_target": 0.01, "kl_horizon": 100, "whitens_advantages": True,
    })  # fmt: skip
    recorder, state, reference = started(of, tmp_path)
    critic = cast(Critic, cast(Trainer, state.critic).model)
    with torch.no_grad():
        critic.value_head.weight.copy_(torch.linspace(-0.3, 0.3, 32))
    policy, old_critic = copy.deepcopy(state.decoder), copy.deepcopy(critic)
    with at_level("off", policy.config, length=64):
        metrics = make_step(state, 0)

    tokens, mask = recorder.of("rollout", "tokens"), recorder.of("rollout", "loss_mask")
    with torch.no_grad():
        values = old_critic(tokens)[:, :-1].double()
    read, read_by_reference = read_wide(policy, recorder), read_wide(reference, recorder)
    advantages, critic_losses, entropies, distances = [], [], [], []
    for sample in (sample for sample in range(16) if sample % 3 != 1):
        expected_values = values[sample][mask[sample, 1:]].tolist()
        distances.append(read[sample][0] - read_by_reference[sample][0])
        given = [-0.3 * distance for distance in distances[-1].tolist()]
        given[-1] += float(recorder.of("reward", "rewards")[sample])
        # Equation 16 of the paper as it stands: a sum over all that follows.
        deltas = [
            reward + 0.95 * after - value
            for reward, value, after in zip(given, expected_values, [*expected_values[1:], 0.0], strict=True)
        ]
        estimates = [
            sum((0.95 * 0.9) ** (later - now) * deltas[later] for later in range(now, len(deltas)))
            for now in range(len(deltas))
        ]
        advantages.append(torch.tensor(estimates, dtype=torch.float64))
        critic_losses.append(0.5 * advantages[-1].square())  # V is what it was: the distance to A + V is A
        entropies.append(read[sample][1])
    std, mean = torch.std_mean(torch.cat(advantages))
    rows = [-(row - mean) / std - 0.05 * entropy for row, entropy in zip(advantages, entropies, strict=True)]
    found = {**metrics, "next_kl_coef": state.kl_coef}
    error = min(max(float(torch.cat(distances).mean()) / 0.01 - 1, -0.2), 0.2)
    expected: dict[str, Tensor | float] = {
        "loss": AGGREGATIONS[aggregation](rows),
        "critic_loss": AGGREGATIONS[aggregation](critic_losses),
        "entropy": torch.cat(entropies).mean(),
        "next_kl_coef": 0.3 * (1 + error * len(rows) / 100),
    }
    assert {name: found[name] for name in expected} == pytest.approx(
        {name: float(value) for name, value in expected.items()}, rel=1e-4, abs=1e-5
    )


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, None),
        ({"weights": "token"}, [[0.5, 1.0, 2.0], [1.0, 1.0, 0.0]]),
        ({"weights": "token", "outside": "icepop"}, [[0.5, 1.0, 0.0], [1.0, 1.0, 0.0]]),
        ({"weights": "sequence"}, [[2.0, 2.0, 2.0], [1.0, 1.0, 0.0]]),
        ({"max_mean_k3": 0.5}, [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
        ({"max_mean_k3": 0.6}, [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
        ({"max_mean_k3": 1.8}, [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]),
    ],
)
def test_losses_are_weighed_for_a_sampler_of_other_numbers(
    section: dict[str, Any], expected: list[list[float]] | None
) -> None:
    """Trainer to sampler: a half, equal, eight times; the other completion is the sampler's own."""
    ratio = torch.tensor([[0.5, 1.0, 8.0], [1.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    sampled = torch.full((2, 3), -1.5)
    found = correction_weights(CorrectionSection.model_validate(section), sampled + ratio.log(), sampled, mask)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        torch.testing.assert_close(found, torch.tensor(expected))


def test_a_correction_is_nothing_at_level_invariant(tmp_path: Path) -> None:
    """Weights are 1 to the bit there: the same gradients as without."""
    found = []
    for number, correction in enumerate(({}, {"weights": "token", "max_mean_k3": 0.1})):
        of = with_section(config(correction=correction), "training", {"num_steps": 2})
        digests = recorded(of, tmp_path / str(number))
        found.append({leaf: value for leaf, value in digests.leaves.items() if leaf[1] in ("backward", "optimizer")})
    assert found[0] == found[1]
