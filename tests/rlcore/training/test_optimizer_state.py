"""An optimizer goes on from its named tensors to the bit; from nothing it does not."""

import pytest
import torch
from torch import Tensor, nn

from rlcore.checkpoints.checkpoint import load, save
from rlcore.checkpoints.optimizer_state import optimizer_tensors, restore_optimizer
from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.weights.digests import weights_digest


def made(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.optim.AdamW]:
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model = model.to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)


def go(model: nn.Module, optimizer: torch.optim.AdamW, first: int, last: int) -> None:
    for step in range(first, last):
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(step)
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if name == "1.bias" and step < 5:
                parameter.grad = None  # has no step at first
        optimizer.step()


def digests(model: nn.Module, optimizer: torch.optim.AdamW) -> tuple[str, str]:
    return weights_digest(model.state_dict()), weights_digest(optimizer_tensors(optimizer, model.named_parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at", [0, 3, 6])
def test_it_goes_on_to_the_bit(tmp_path: object, dtype: torch.dtype, at: int) -> None:
    straight = made(dtype)
    go(*straight, 0, 8)
    before = made(dtype)
    go(*before, 0, at)
    named = dict(before[0].named_parameters())
    groups = {"policy": named, "optimizer": optimizer_tensors(before[1], named.items())}
    found = load(save(tmp_path, at, groups, {}, keep=1))  # type: ignore[arg-type]  # a Path
    after = made(dtype)
    go(*after, 0, 2)  # what was there before is replaced
    after[0].load_state_dict(found.tensors["policy"])
    restore_optimizer(after[1], after[0].named_parameters(), found.tensors["optimizer"])
    assert digests(*after) == digests(*before)
    go(*after, at, 8)
    assert digests(*after) == digests(*straight)


def test_without_its_state_it_goes_elsewhere() -> None:
    straight, after = made(), made()
    go(*straight, 0, 8)
    go(*after, 0, 3)
    after = after[0], torch.optim.AdamW(after[0].parameters(), lr=1e-2, foreach=True)
    go(*after, 3, 8)
    assert digests(*after)[0] != digests(*straight)[0]


def test_what_is_restored_is_a_copy() -> None:
    model, optimizer = made()
    go(model, optimizer, 0, 2)
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, model.named_parameters()).items()}
    before = weights_digest(tensors)
    restore_optimizer(optimizer, model.named_parameters(), tensors)
    go(model, optimizer, 2, 4)
    assert weights_digest(tensors) == before


def state() -> tuple[nn.Module, torch.optim.AdamW, dict[str, Tensor]]:
    model, optimizer = made()
    go(model, optimizer, 0, 2)
    return model, optimizer, dict(optimizer_tensors(optimizer, model.named_parameters()))


def test_state_is_named_after_parameters() -> None:
    _, _, tensors = state()
    names = {f"{parameter}.{kind}" for parameter in ("0.weight", "0.bias", "1.weight") for kind in
             ("step", "exp_avg", "exp_avg_sq")}  # fmt: skip
    assert set(tensors) == names
    assert tensors["0.weight.step"].item() == 2.0


@pytest.mark.parametrize(("change", "told"), [
    (lambda t: t.update({"2.weight.exp_avg": torch.zeros(1)}), "optimizer state of 2.weight"),
    (lambda t: t.update({"0.weight.exp_avg": torch.zeros(2)}), r"0.weight.exp_avg is \[2\]"),
    (lambda t: t.pop("0.bias.exp_avg_sq"), "optimizer state of 0.bias without exp_avg_sq"),
    (lambda t: t.pop("0.weight.step"), "optimizer state of 0.weight without step"),
])  # fmt: skip
def test_state_of_another_model_is_refused_and_nothing_changed(change: object, told: str) -> None:
    model, optimizer, tensors = state()
    before = digests(model, optimizer)
    change(tensors)  # type: ignore[operator]  # one of the functions above
    with pytest.raises(CheckpointError, match=told):
        restore_optimizer(optimizer, model.named_parameters(), tensors)
    assert digests(model, optimizer) == before


def test_a_parameter_without_a_name_is_refused() -> None:
    model, optimizer, tensors = state()
    with pytest.raises(InvalidValueError, match="moves 4 parameters without a name"):
        optimizer_tensors(optimizer, [])
    with pytest.raises(InvalidValueError):
        restore_optimizer(optimizer, list(model.named_parameters())[:3], tensors)


def test_state_that_is_no_tensor_is_refused() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([parameter])
    optimizer.state[parameter] = {"step": 3}
    with pytest.raises(InvalidValueError, match="its step is a int"):
        optimizer_tensors(optimizer, [("a", parameter)])
