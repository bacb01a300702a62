"""Gradients of microbatches, their norm, and the optimizer's step."""

import math

import pytest
import torch
from torch import Tensor, nn

from rlcore.batching.microbatches import Microbatch
from rlcore.checks.observers import OptimizerChecks
from rlcore.config import OptimizerSection, RuntimeSection
from rlcore.errors import CheckpointError, NonFiniteError, StepError
from rlcore.observability.observers import Observer, Observers
from rlcore.trainers.base import MicrobatchLoss, TrainerState
from rlcore.trainers.local import LocalTrainer, global_norm


class Doubled(nn.Module):
    """One matrix and a vector that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.unused = nn.Parameter(torch.ones(2))


def microbatches(count: int) -> list[Microbatch]:
    return [Microbatch(number, (number,), torch.full((1, 4), number), 1) for number in range(count)]


def loss_of(model: nn.Module, microbatch: Microbatch, *, scale: float = 1.0) -> MicrobatchLoss:
    number = float(microbatch.tokens[0, 0]) + 1.0
    assert isinstance(model, Doubled)
    loss = scale * (model.weight * number).sum()
    return MicrobatchLoss(loss, {"number": torch.full((1, 3), number)}, torch.ones(1, 3, dtype=torch.bool))


def trainer_of(model: nn.Module, *observers: Observer, world_size: int = 1) -> LocalTrainer:
    section, runtime = OptimizerSection(learning_rate=0.1), RuntimeSection(world_size=world_size)
    watching = Observers(*observers)
    return LocalTrainer("policy", model, 0.1, section=section, runtime=runtime, observers=watching)


def stepped(trainer: LocalTrainer, weight: Tensor, unused: Tensor, max_norm: float | None = 1.0) -> float:
    trainer.gradients = [weight, unused]
    return trainer.optimizer_step(learning_rate=0.05, max_norm=max_norm)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_gradient_is_the_sum_of_all_microbatches_and_losses_come_in_their_order(world_size: int) -> None:
    model = Doubled()
    trainer = trainer_of(model, world_size=world_size)
    found = trainer.forward_backward(microbatches(4)[::-1], loss_of)
    assert trainer.gradients is not None
    assert [each.tolist() for each in trainer.gradients] == [[[10.0] * 3] * 2, [0.0] * 2]
    assert [float(part.observed["number"][0, 0]) for part in found] == [1.0, 2.0, 3.0, 4.0]
    assert not found[0].loss.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_that_is_no_number_names_its_microbatch() -> None:
    model = Doubled()

    def loss(model: nn.Module, microbatch: Microbatch) -> MicrobatchLoss:
        return loss_of(model, microbatch, scale=math.nan if microbatch.number else 1.0)

    with pytest.raises(NonFiniteError, match=r"the loss of fixed microbatch 1 is nan \(samples \[1\]\)"):
        trainer_of(model).forward_backward(microbatches(2), loss)


def test_a_gradient_that_is_no_number_names_its_tensor_and_place() -> None:
    model = Doubled()
    gradient = torch.zeros(2, 3)
    gradient[1, 1] = math.inf
    with pytest.raises(NonFiniteError, match=r"the gradient of weight is inf at \[1, 1\]"):
        stepped(trainer_of(model), gradient, torch.zeros(2))
    assert torch.equal(model.weight, torch.arange(6.0).reshape(2, 3)), "nothing was learned from it"


def test_a_step_moves_every_parameter() -> None:
    for observers in ((OptimizerChecks(),), ()):
        trainer = trainer_of(Doubled(), *observers)
        trainer.optimizer.param_groups[0]["params"].pop()
        if not observers:
            stepped(trainer, torch.ones(2, 3), torch.ones(2))
            continue
        with pytest.raises(StepError, match="unused has had 0 steps of the optimizer"):
            stepped(trainer, torch.ones(2, 3), torch.ones(2))


def test_a_step_sees_that_it_was_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_foreach_mul_", lambda *given: None)
    stepped(trainer_of(Doubled()), torch.ones(2, 3), torch.ones(2))
    with pytest.raises(StepError, match="the clip should have multiplied"):
        stepped(trainer_of(Doubled(), OptimizerChecks()), torch.ones(2, 3), torch.ones(2))


def test_a_step_is_torchs_own_with_the_gradient_clipped() -> None:
    """Over two steps, the first below the bound: Adam's first step is the same whatever the gradient's scale."""
    ours, theirs = Doubled(), Doubled()
    trainer, optimizer = trainer_of(ours), torch.optim.AdamW(theirs.parameters(), lr=0.05, weight_decay=0.0)
    for flat in (torch.linspace(0.1, -0.05, 8), torch.linspace(-1, 1, 8)):
        norm = stepped(trainer, flat[:6].reshape(2, 3).clone(), flat[6:].clone(), max_norm=0.5)
        theirs.weight.grad, theirs.unused.grad = flat[:6].reshape(2, 3).clone(), flat[6:].clone()
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)), rel=1e-6)
        optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.unused, theirs.unused)


def test_a_trainer_that_was_saved_and_loaded_goes_on_to_the_same_bits() -> None:
    one, other = trainer_of(Doubled()), trainer_of(Doubled())
    for _ in range(2):
        stepped(one, torch.linspace(-1, 1, 6).reshape(2, 3), torch.ones(2))
    saved = one.save()
    other.load(TrainerState({name: w.clone() for name, w in saved.weights.items()}, saved.optimizer))
    for trainer in (one, other):
        stepped(trainer, torch.ones(2, 3), torch.ones(2))
    mine, theirs = one.weights().tensors, other.weights().tensors
    assert all(torch.equal(weight, theirs[name]) for name, weight in mine.items())
    assert one.weights().names == tuple(mine) == ("weight", "unused")
    assert one.optimizer_digest() == other.optimizer_digest()
    other.restart_optimizer()
    assert one.optimizer_digest() != other.optimizer_digest() == trainer_of(Doubled()).optimizer_digest()
    with pytest.raises(CheckpointError, match="optimizer state of others"):
        other.load(TrainerState(saved.weights, {"others.step": torch.tensor(1.0)}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_has_the_same_bits_for_any_threads(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=generator).to(dtype) for shape in ((700, 900), (1300,), (), (3, 5, 7))]
    found = []
    before = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(global_norm(gradients))
    torch.set_num_threads(before)
    assert found[0] == found[1]
    every: Tensor = torch.cat([gradient.double().reshape(-1) for gradient in gradients])
    assert found[0] == pytest.approx(float(every.norm()), rel=1e-12)


def test_the_norm_is_free_of_how_rows_are_divided() -> None:
    """Shards along the first dimension never split a row, and their sums are added without rounding."""
    whole = torch.randn((64, 33), generator=torch.Generator().manual_seed(1))
    assert (
        global_norm([whole])
        == global_norm(list(torch.split(whole, 7)))
        == global_norm(list(torch.split(whole.flip(0), 13)))
    )
