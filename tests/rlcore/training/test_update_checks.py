"""What holds of every update is looked at in every update: each check passes what is right, and finds what is not."""

from collections.abc import Callable
from itertools import accumulate, repeat
from operator import mul
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.batching import minibatches as minibatches_module
from rlcore.batching.batch import Batch
from rlcore.batching.minibatches import minibatches
from rlcore.checks.observers import MinibatchChecks
from rlcore.checks.update_checks import (
    check_clipped,
    check_configured,
    check_epoch,
    check_frozen,
    check_kept,
    check_no_gradient,
    check_own_memory,
    check_passes,
    check_rate,
    check_stepped,
    kept,
    num_steps_of,
)
from rlcore.config import OptimizerSection
from rlcore.errors import StepError
from rlcore.observability.observers import Observers
from rlcore.trainers import models as models_module
from rlcore.trainers.local import build_adamw
from tests.rlcore.training.recorded import config, recorded

LENGTHS = (5, 3, 4, 6)
RATES = accumulate(repeat(0.5), mul, initial=0.001)
"""One after the other, each half of the one before."""


def batch_of() -> Batch:
    """Four samples with prompts of two tokens."""
    lengths = torch.tensor(LENGTHS)
    positions = torch.arange(max(LENGTHS))
    mask = (positions >= 2) & (positions < lengths.unsqueeze(1))
    entries = {
        "tokens": torch.where(positions < lengths.unsqueeze(1), 7, 0),
        "loss_mask": mask,
        "values": mask.float(),
        "returns": mask.float(),
        "groups": torch.tensor([0, 0, 1, 1]),
        "included": torch.ones(4, dtype=torch.bool),
        "lengths": lengths,
        "prompt_lengths": torch.full((4,), 2),
    }
    return Batch(entries)


# -------------------------------------------------------------------------------------------------- minibatches, lanes


def test_an_epoch_has_every_sample_with_a_reward_once() -> None:
    included = [True, True, False, True]
    check_epoch([3, 0, 1], included)
    for wrong, said in (
        ([0, 1], "sample 3 is in an epoch 0 times, one of 1"),
        ([0, 0, 1, 1], "sample 0 is in an epoch 2 times, one of 3"),
        ([0, 1, 2, 3], "sample 2 is in an epoch 1 times, one of 1"),
    ):
        with pytest.raises(StepError, match=said):
            check_epoch(wrong, included)


def add_to_returns(batch: Batch) -> None:
    batch["returns"].add_(1)


def move_values(batch: Batch) -> None:
    batch["values"][0, 2] = 2.0


def no_tokens(batch: Batch) -> None:
    batch["tokens"].zero_()


@pytest.mark.parametrize(
    ("write", "name", "phase"),
    [(add_to_returns, "returns", "advantage"), (move_values, "values", "reference"), (no_tokens, "tokens", "rollout")],
)
def test_what_is_learned_from_is_not_written_meanwhile(write: Callable[[Batch], None], name: str, phase: str) -> None:
    batch = batch_of()
    as_it_was = kept(batch)
    check_kept(batch, as_it_was)
    write(batch)
    with pytest.raises(StepError, match=f"{name} of the batch were written") as raised:
        check_kept(batch, as_it_was)
    assert raised.value.phases == (phase, "loss")


def test_another_batch_is_not_what_learning_began_with() -> None:
    batch = batch_of()
    with pytest.raises(StepError, match="values of the batch were written"):
        check_kept(batch.extended(values=batch["values"].clone()), kept(batch))


def test_minibatches_look_at_both(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, of = (
        batch_of(),
        config("ppo", training={"group_size": 1, "microbatch_size": 1, "num_minibatches": 2, "num_epochs": 2}),
    )
    watched = Observers(MinibatchChecks())
    assert len(list(minibatches(batch, of, "invariant", 0, watched))) == 4
    for _ in minibatches(batch, of, "invariant", 0, Observers()):
        batch["groups"].add_(1)
    with pytest.raises(StepError, match="groups of the batch were written"):
        for _ in minibatches(batch, of, "invariant", 0, watched):
            batch["groups"].add_(1)
    monkeypatch.setattr(minibatches_module, "permutation", lambda *given: [0, 0, 1, 2])
    with pytest.raises(StepError, match="sample 0 is in an epoch 2 times"):
        next(minibatches(batch, of, "invariant", 0, watched))


# ---------------------------------------------------------------------------------------------------- passes, weights


def test_every_sample_and_token_is_read_once() -> None:
    masks = [torch.tensor([[True, False], [True, True]]), torch.tensor([[True, True]])]
    check_passes(masks, 5, 3)
    for wrong in (masks[:1], [*masks, masks[1]], [masks[0], torch.tensor([[True, False]])]):
        with pytest.raises(StepError, match="the passes of an update read"):
            check_passes(wrong, 5, 3)


def test_a_pass_begins_without_gradients() -> None:
    model = torch.nn.Linear(2, 2)
    check_no_gradient(model.parameters())
    model(torch.ones(2)).sum().backward()
    with pytest.raises(StepError, match="begins with the gradients"):
        check_no_gradient(model.parameters())


def stepped(model: torch.nn.Module, optimizer: torch.optim.Optimizer, num_times: int = 1) -> None:
    before = num_steps_of(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for _ in range(num_times):
        optimizer.step()
    check_stepped(model, optimizer, before)


def test_an_update_moves_every_parameter_once() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    stepped(model, optimizer)
    stepped(model, optimizer)
    with pytest.raises(StepError, match="weight has had 2 steps of the optimizer in one update"):
        stepped(model, optimizer, num_times=2)
    with pytest.raises(StepError, match="bias has had 0 steps of the optimizer in one update"):
        stepped(model, torch.optim.AdamW([model.weight]))


def test_the_optimizer_is_what_the_configuration_says() -> None:
    section, model = OptimizerSection(weight_decay=0.1), torch.nn.Linear(2, 2)
    check_configured(build_adamw(model, section, 0.1), section)
    for other, said in (
        (build_adamw(model, OptimizerSection(), 0.1), r"weight_decay 0.0 \(configured: 0.1\)"),
        (build_adamw(model, OptimizerSection(weight_decay=0.1, beta2=0.99), 0.1), r"betas \(0.9, 0.99\)"),
        (torch.optim.AdamW(model.parameters(), weight_decay=0.1, fused=True), "foreach None"),
        (torch.optim.Adam(model.parameters(), weight_decay=0.1, foreach=True), "a Adam "),
    ):
        with pytest.raises(StepError, match=f"optimizer: the optimizer has {said}"):
            check_configured(other, section)


def test_a_clip_has_its_effect_and_a_step_its_rate() -> None:
    check_clipped(torch.ones(2), torch.full((2,), 0.5), 0.5)
    with pytest.raises(StepError, match=r"should have multiplied gradients by 0\.5"):
        check_clipped(torch.ones(2), torch.ones(2), 0.5)
    check_rate(0.1, None)
    check_rate(0.1, 0.1)
    with pytest.raises(StepError, match=r"learning rate 0\.05 after 0\.1, in one step"):
        check_rate(0.05, 0.1)


@pytest.mark.parametrize(
    ("place", "wrong", "said"),
    [
        ("trainers.local.build_adamw", lambda model, *_: torch.optim.Adam(model.parameters()), "a Adam"),
        ("recipes.update.learning_rate", lambda *_: next(RATES), "the policy learns at rate 0.001"),
    ],
)
def test_a_run_looks_at_its_optimizer_and_its_rates(
    place: str, wrong: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"rlcore.{place}", wrong)
    with pytest.raises(StepError, match=said):
        recorded(config(training={"num_minibatches": 2}), tmp_path)


def test_no_two_models_have_the_same_weights_in_memory() -> None:
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    check_own_memory({"policy": one, "critic": other})
    for name, phase in (("critic", "optimizer"), ("reference", "reference")):
        with pytest.raises(StepError, match=f"the {name} has weights in the memory of the policy") as raised:
            check_own_memory({"policy": one, name: torch.nn.Sequential(other, one)})
        assert raised.value.phases == (phase,)


def test_a_run_looks_at_it_before_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = models_module.build_critic

    def shared(decoder: Any) -> Any:
        critic = made(decoder)
        critic.decoder = decoder
        return critic

    monkeypatch.setattr(models_module, "build_critic", shared)
    with pytest.raises(StepError, match="the critic has weights in the memory of the policy"):
        recorded(config("ppo"), tmp_path)


def test_nobody_writes_the_reference() -> None:
    model = torch.nn.Linear(2, 2).requires_grad_(False)
    first = check_frozen(model, "")
    assert check_frozen(model, first) == first
    model.weight.data = torch.ones(2, 2)  # which torch's count of writes does not see
    with pytest.raises(StepError, match="reference policy were written"):
        check_frozen(model, first)
