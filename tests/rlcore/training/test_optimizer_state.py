"""State of an optimizer that is not its own is refused, and nothing is changed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from harness.bits.tensor_digests import weights_digest
from rlcore.checkpoints.optimizer_state import optimizer_tensors, restore_optimizer
from rlcore.errors import CheckpointError, InvalidValueError

Tensors = dict[str, Tensor]


def stepped() -> tuple[nn.Module, torch.optim.AdamW, Tensors]:
    """A model, its optimizer after a step, and a copy of its state."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    model(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    live = optimizer_tensors(optimizer, model.named_parameters())
    return model, optimizer, {name: tensor.clone() for name, tensor in live.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({"2.weight.exp_avg": torch.zeros(1)}), "optimizer state of 2.weight"),
        (lambda t: t.update({"0.weight.exp_avg": torch.zeros(2)}), r"0.weight.exp_avg is \[2\]"),
        (lambda t: t.pop("0.bias.exp_avg_sq"), "optimizer state of 0.bias without exp_avg_sq"),
        (lambda t: t.pop("0.weight.step"), "optimizer state of 0.weight without step"),
    ],
)
def test_state_of_another_model_changes_nothing(change: Callable[[Tensors], object], message: str) -> None:
    model, optimizer, tensors = stepped()
    before = weights_digest(tensors)
    change(tensors)
    with pytest.raises(CheckpointError, match=message):
        restore_optimizer(optimizer, model.named_parameters(), tensors)
    assert weights_digest(optimizer_tensors(optimizer, model.named_parameters())) == before


def test_a_parameter_without_a_name_and_state_that_is_no_tensor_are_refused() -> None:
    model, optimizer, tensors = stepped()
    with pytest.raises(InvalidValueError, match="moves 4 parameters without a name"):
        optimizer_tensors(optimizer, [])
    with pytest.raises(InvalidValueError, match="moves 1 parameters without a name"):
        restore_optimizer(optimizer, list(model.named_parameters())[:3], tensors)
    optimizer.state[next(model.parameters())]["step"] = 3
    with pytest.raises(InvalidValueError, match="its step is a int"):
        optimizer_tensors(optimizer, model.named_parameters())
