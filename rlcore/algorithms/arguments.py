"""What every algorithm asks of its arguments, and the only ways in which they read through a mask."""

import torch
from torch import Tensor

from rlcore.errors import EmptyMaskError, NonFiniteError, ShapeError

MAX_LOG_RATIO = 20.0
"""Where the log-ratio of a token is clamped, either way: exp(20) squared is still finite in float32."""


def check_tokens(loss_mask: Tensor, **tensors: Tensor) -> None:
    """Refuse a mask that is not bool [samples, positions], and tensors of another shape; raises ShapeError."""
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
            f"{name}: sample {listed(samples)} holds {values[tuple(spreading[0])].item()}, and would spread to others",
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


def listed(samples: list[int]) -> str:
    """Return the first samples of a list, for messages."""
    return ", ".join(map(str, samples[:8])) + (f" and {len(samples) - 8} more" if len(samples) > 8 else "")
