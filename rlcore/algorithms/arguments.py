"""What every algorithm asks of its arguments, and the only ways in which they read through a mask."""

import math
from collections.abc import Iterable, MutableMapping

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from rlcore.errors import EmptyMaskError, InvalidValueError, NonFiniteError, ShapeError

_passed: MutableMapping[Tensor, int] = WeakIdKeyDictionary()
"""Masks without an empty sample, with the number of writes that they had then: loss, KL and metrics share a mask."""


def check_number(name: str, number: float, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """Refuse a number outside [low, high], or (low, high] if `open_low`, and NaN; raises InvalidValueError."""
    if not (low <= number <= high) or (open_low and number == low):
        legal = f"{'above' if open_low else 'at least'} {low:g}" + (f", at most {high:g}" if high < math.inf else "")
        raise InvalidValueError(f"{name} is {number!r}", legal=legal)


def check_choice(name: str, choice: str, legal: Iterable[str]) -> None:
    """Refuse a name that is not one of `legal`; raises InvalidValueError."""
    if choice not in (known := tuple(legal)):
        raise InvalidValueError(f"{name} is {choice!r}", legal=", ".join(known))


def check_tokens(loss_mask: Tensor, **tensors: Tensor) -> None:
    """Refuse a mask that is not bool [samples, positions] or misses a sample, and tensors of another shape.

    Raises ShapeError, and EmptyMaskError with the samples that have no loss token. Waits for the device once
    for each mask.
    """
    if loss_mask.dtype != torch.bool or loss_mask.ndim != 2:
        raise ShapeError(
            f"loss_mask is {described(loss_mask)}", legal="bool [samples, positions]", remedy="compare it: mask > 0"
        )
    for name, tensor in tensors.items():
        if tensor.shape != loss_mask.shape or not tensor.is_floating_point():
            raise ShapeError(
                f"{name} is {described(tensor)}, loss_mask {described(loss_mask)}",
                legal=f"floats of shape {list(loss_mask.shape)}",
                remedy="advantages.per_token spreads numbers of samples over their loss tokens"
                if tensor.ndim == 1
                else "",
            )
    num_writes = -1 if loss_mask.is_inference() else loss_mask._version
    if num_writes >= 0 and _passed.get(loss_mask) == num_writes:
        return
    empty = (~loss_mask.any(dim=-1)).nonzero().flatten().tolist()
    if empty or not len(loss_mask):
        raise EmptyMaskError(
            f"no loss token in sample {_listed(empty)}" if empty else "no sample",
            legal="at least one loss token in each of at least one sample",
            remedy="leave samples without loss tokens out of the batch, and padding rows out of the slice",
        )
    if num_writes >= 0:
        _passed[loss_mask] = num_writes


def check_samples(name: str, values: Tensor, included: Tensor | None, **tensors: Tensor) -> Tensor:
    """Return the samples that count, bool [samples]: `included`, or every sample without it.

    `values`, called `name`, is floats [samples], finite where a sample counts; `tensors` are of its shape. Raises
    ShapeError, NonFiniteError, and EmptyMaskError where no sample counts.
    """
    counted = torch.ones_like(values, dtype=torch.bool) if included is None else included
    if not values.is_floating_point() or values.ndim != 1:
        raise ShapeError(f"{name} is {described(values)}", legal="floats [samples]")
    if counted.dtype != torch.bool or counted.shape != values.shape:
        raise ShapeError(f"included is {described(counted)}", legal=f"bool of shape {list(values.shape)}")
    for other, tensor in tensors.items():
        if tensor.shape != values.shape:
            raise ShapeError(f"{other} is {described(tensor)}", legal=f"of shape {list(values.shape)}")
    if not counted.any():
        raise EmptyMaskError(
            "no sample is included", legal="at least one", remedy="draw other prompts, or fix the reward function"
        )
    check_finite(name, values, counted)
    return counted


def check_finite(name: str, values: Tensor, counted: Tensor) -> None:
    """Refuse NaN and infinity where `counted`, in what samples share; raises NonFiniteError with the samples."""
    spreading = (counted & ~values.isfinite()).nonzero()
    if len(spreading):
        samples = sorted({index[0] for index in spreading.tolist()})
        raise NonFiniteError(
            f"{name}: sample {_listed(samples)} holds {values[tuple(spreading[0])].item()}, and would spread to others",
            legal="a finite number, or a sample that is not included",
            remedy="return None from the reward function for a completion without a reward",
        )


def included_tokens(loss_mask: Tensor, included: Tensor | None) -> Tensor:
    """Loss tokens of the samples that count, bool [samples, positions]; raises ShapeError."""
    if included is None:
        return loss_mask
    if included.dtype != torch.bool or included.shape != loss_mask.shape[:1]:
        raise ShapeError(f"included is {described(included)}", legal=f"bool of shape {list(loss_mask.shape[:1])}")
    return loss_mask & included.unsqueeze(-1)


def only(mask: Tensor, values: Tensor) -> Tensor:
    """`values` where the mask is True, 0 elsewhere; neither NaN nor a gradient comes from elsewhere.

    A product with the mask would do neither: NaN * 0 is NaN.
    """
    return torch.where(mask, values, 0.0)


def sample_mean(loss_mask: Tensor, values: Tensor) -> Tensor:
    """The mean over each sample's loss tokens, [samples]; of a mask that check_tokens has passed."""
    return only(loss_mask, values).sum(dim=-1) / loss_mask.sum(dim=-1)


def described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _listed(samples: list[int]) -> str:
    return ", ".join(map(str, samples[:8])) + (f" and {len(samples) - 8} more" if len(samples) > 8 else "")
