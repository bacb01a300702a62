"""Random batches of ragged samples for property tests, in float64."""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.algorithms.aggregation import Denominators, Mode, sample_shares
from rlcore.algorithms.losses import Tokens

SEEDED = settings(derandomize=True, max_examples=20)
VOCABULARY = 5
POISONS = st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e300])


@dataclass(frozen=True)
class Batch:
    """Tensors by the names that functions give their parameters."""

    loss_mask: Tensor
    """bool [samples, positions], True somewhere in every row, with holes."""
    tokens: dict[str, Tensor]
    """[samples, positions], and logits [samples, positions, vocabulary]."""
    samples: dict[str, Tensor]
    """[samples]."""

    def __getitem__(self, name: str) -> Tensor:
        return {"loss_mask": self.loss_mask, **self.tokens, **self.samples}[name]

    def rows(self, index: Tensor | slice) -> "Batch":
        """These samples of it, in this order."""
        return Batch(
            self.loss_mask[index],
            {name: tensor[index] for name, tensor in self.tokens.items()},
            {name: tensor[index] for name, tensor in self.samples.items()},
        )

    def to(self, dtype: torch.dtype) -> "Batch":
        """The same with floats of this dtype."""
        return Batch(
            self.loss_mask,
            {name: tensor.to(dtype) for name, tensor in self.tokens.items()},
            {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in self.samples.items()},
        )

    def poisoned(self, poison: float) -> "Batch":
        """The same with `poison` in place of every number outside the mask."""
        outside = ~self.loss_mask
        tokens = {name: tensor.clone() for name, tensor in self.tokens.items()}
        for tensor in tokens.values():
            tensor[outside] = poison
        return Batch(self.loss_mask, tokens, self.samples)


def compared(logprobs: Tensor, reference: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tokens:
    """Tokens of a policy to compare with another, which sampled and was the policy before the step."""
    return Tokens(logprobs, reference, reference, advantages, loss_mask)


def batch_of(seed: int, num_samples: int, num_positions: int) -> Batch:
    """A batch drawn from a seed; sampler, trainer and reference agree about as well as they do in training."""
    draw = torch.Generator().manual_seed(seed)
    shape = (num_samples, num_positions)

    def noise(scale: float = 1.0, *more: int) -> Tensor:
        return scale * torch.randn(*shape, *more, generator=draw, dtype=torch.float64)

    loss_mask = torch.rand(shape, generator=draw) < 0.7
    kept = torch.randint(num_positions, (num_samples,), generator=draw)
    loss_mask[torch.arange(num_samples), kept] = True
    logprobs = -noise().abs() - 0.05
    values = noise()
    tokens = {
        "logprobs": logprobs,
        "old_logprobs": logprobs + noise(0.3),
        "rollout_logprobs": logprobs + noise(0.3),
        "ref_logprobs": logprobs + noise(0.5),
        "advantages": noise(),
        "values": values,
        "old_values": values + noise(0.3),
        "returns": values + noise(),
        "token_rewards": noise(),
        "log_ratio": noise(0.5),
        "losses": noise(),
        "weights": noise().exp(),
        "logits": noise(1.0, VOCABULARY),
    }
    samples = {
        "rewards": torch.randn(num_samples, generator=draw, dtype=torch.float64),
        "baselines": torch.randn(num_samples, generator=draw, dtype=torch.float64),
        "groups": torch.randint(3, (num_samples,), generator=draw),
    }
    return Batch(loss_mask, tokens, samples)


def batches(min_samples: int = 1, max_samples: int = 6, min_positions: int = 1) -> st.SearchStrategy[Batch]:
    return st.builds(
        batch_of,
        st.integers(0, 2**32 - 1),
        st.integers(min_samples, max_samples),
        st.integers(min_positions, 7),
    )


def permutations(num: int, random: Any) -> Tensor:
    """An order of `num` samples from hypothesis' random numbers."""
    order = list(range(num))
    random.shuffle(order)
    return torch.tensor(order)


def count(loss_mask: Tensor, horizon: float = 1.0) -> Denominators:
    """The denominators of a batch that is whole."""
    return Denominators(int(loss_mask.sum()), len(loss_mask), horizon)


def aggregate(losses: Tensor, loss_mask: Tensor, mode: Mode, denominators: Denominators) -> Tensor:
    return sample_shares(losses, loss_mask, mode, denominators).sum()
