"""Gradients of lanes, their norm, and the optimizer's step."""

import math

import pytest
import torch
from torch import Tensor, nn

from rlcore.batching.microbatches import Lane
from rlcore.config import OptimizerSection
from rlcore.errors import NonFiniteError, StepError
from rlcore.trace import NullRecorder
from rlcore.trainers.local import LanePart, Learner, adamw, global_norm, gradient, step_optimizer


class Doubled(nn.Module):
    """One matrix and a vector that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.unused = nn.Parameter(torch.ones(2))


def lanes(count: int) -> list[Lane]:
    return [Lane(number, (number,), torch.full((1, 4), number), 1) for number in range(count)]


def part_of(model: Doubled, lane: Lane, *, scale: float = 1.0) -> LanePart:
    number = float(lane.tokens[0, 0]) + 1.0
    loss = scale * (model.weight * number).sum()
    return LanePart(loss, {"number": torch.full((1, 3), number)}, torch.ones(1, 3, dtype=torch.bool))


def learner_of(model: nn.Module, **section: float | None) -> Learner:
    of = OptimizerSection(learning_rate=0.1, **section)  # type: ignore[arg-type]
    return Learner("policy", model, adamw(model, of, 0.1), 0.1)


def test_a_gradient_is_the_sum_of_all_lanes_and_parts_come_in_their_order() -> None:
    model, given = Doubled(), lanes(4)
    found = gradient(model, [[given[3], given[1]], [], [given[2], given[0]]], lambda lane: part_of(model, lane))
    assert found.flat.tolist() == [10.0] * 6 + [0.0] * 2
    assert [float(part.seen["number"][0, 0]) for part in found.parts] == [1.0, 2.0, 3.0, 4.0]
    assert not found.parts[0].loss.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_that_is_no_number_names_its_lane() -> None:
    model, given = Doubled(), lanes(2)

    def loss_of(lane: Lane) -> LanePart:
        return part_of(model, lane, scale=math.nan if lane.number else 1.0)

    with pytest.raises(NonFiniteError, match=r"the loss of lane 1 is nan \(samples \[1\]\)"):
        gradient(model, [given], loss_of)


def test_a_gradient_that_is_no_number_names_its_tensor_and_place() -> None:
    model = Doubled()
    flat = torch.zeros(8)
    flat[4] = math.inf
    with pytest.raises(NonFiniteError, match=r"the gradient of weight is inf at \[1, 1\]"):
        step_optimizer(learner_of(model), flat, learning_rate=0.1, max_norm=1.0, recorder=NullRecorder())
    assert torch.equal(model.weight, torch.arange(6.0).reshape(2, 3)), "nothing was learned from it"


def test_a_step_moves_every_parameter() -> None:
    learner = learner_of(Doubled())
    learner.optimizer.param_groups[0]["params"].pop()
    with pytest.raises(StepError, match="unused has had 0 steps of the optimizer"):
        step_optimizer(learner, torch.ones(8), learning_rate=0.1, max_norm=1.0, recorder=NullRecorder())


def test_a_step_sees_that_it_was_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_foreach_mul_", lambda *given: None)
    with pytest.raises(StepError, match="the clip should have multiplied"):
        step_optimizer(learner_of(Doubled()), torch.ones(8), learning_rate=0.1, max_norm=1.0, recorder=NullRecorder())


def test_a_step_is_torchs_own_with_the_gradient_clipped() -> None:
    """Over two steps, the first below the bound: Adam's first step is the same whatever the gradient's scale."""
    ours, theirs = Doubled(), Doubled()
    learner, optimizer = learner_of(ours), torch.optim.AdamW(theirs.parameters(), lr=0.05, weight_decay=0.0)
    for flat in (torch.linspace(0.1, -0.05, 8), torch.linspace(-1, 1, 8)):
        norm = step_optimizer(learner, flat.clone(), learning_rate=0.05, max_norm=0.5, recorder=NullRecorder())
        theirs.weight.grad, theirs.unused.grad = flat[:6].reshape(2, 3).clone(), flat[6:].clone()
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)), rel=1e-6)
        optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.unused, theirs.unused)


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
