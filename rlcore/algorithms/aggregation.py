"""From the losses of tokens to one number, with denominators of the whole batch.

A rank sees a part of the batch, a microbatch a part of that. Were each to divide by what it sees, gradients would
depend on the split; here the caller counts the whole batch once and hands the counts to every part. The parts' losses,
and gradients, then ADD UP to those of the batch: ranks sum gradients, they do not average them.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rlcore.algorithms.arguments import check_tokens, listed, only
from rlcore.errors import EmptyMaskError

Mode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]


@dataclass(frozen=True, slots=True)
class Denominators:
    """What the losses of a whole batch are divided by: counts over all its ranks and microbatches."""

    num_tokens: float
    """Number of loss tokens. It includes tokens that a mask or a rejection drops, unless the caller excludes them."""
    num_samples: float
    horizon: float = 1.0
    """The constant that seq-mean-token-sum-norm divides by: the longest completion that is allowed, say."""


def sample_shares(losses: Tensor, loss_mask: Tensor, mode: Mode, denominators: Denominators) -> Tensor:
    """Each sample's share of the batch's loss, [samples]; it depends on no other sample of this part.

    `losses`: floats [samples, positions]. With N loss tokens and S samples in the batch, n of them in this sample:

        token-mean               sum / N        every token counts alike (DAPO, arXiv:2503.14476, section 3.3)
        token-sum                sum
        seq-mean-token-sum       sum / S        longer completions count more (Dr. GRPO, arXiv:2503.20783)
        seq-mean-token-sum-norm  sum / S / H    the same on the scale of a mean, by the horizon H
        seq-mean-token-mean      sum / n / S    every sample counts alike (GRPO, arXiv:2402.03300, equation 3)

    Raises ShapeError, and EmptyMaskError with the samples that have no loss token. Waits for the device.
    """
    check_tokens(loss_mask, losses=losses)
    if empty := (~loss_mask.any(dim=-1)).nonzero().flatten().tolist():
        raise EmptyMaskError(
            f"no loss token in sample {listed(empty)}",
            legal="at least one loss token in each sample",
            remedy="leave samples without loss tokens out of the batch, and padding rows out of the slice",
        )
    sums = only(loss_mask, losses).sum(dim=-1)
    match mode:
        case "token-mean":
            return sums / denominators.num_tokens
        case "token-sum":
            return sums
        case "seq-mean-token-sum":
            return sums / denominators.num_samples
        case "seq-mean-token-sum-norm":
            return sums / denominators.num_samples / denominators.horizon
        case "seq-mean-token-mean":
            return sums / loss_mask.sum(dim=-1) / denominators.num_samples
