"""The seam between the trainer and whatever draws completions: rlcore's own sampler, or an engine beside it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from rlcore.types import Completion, SampleRequest

Progress = Callable[[int, int], None]
"""Told (how many completions are done, how many were asked for) whenever some are."""


class Sampler(Protocol):
    """Draws completions with its own copy of the weights.

    A completion follows from its request and the weights alone: not from the requests beside it, nor from their order.
    `tests/conformance/sampler_suite.py` is what that means.
    """

    @property
    def policy_version(self) -> int:
        """Of the weights it holds."""

    @property
    def weights_digest(self) -> str:
        """The same, by their bits."""

    def sample(self, requests: Sequence[SampleRequest], *, progress: Progress | None = None) -> list[Completion]:
        """A completion for each request, in their order.

        Raises InvalidValueError for a request that cannot be done, before anything is drawn.
        """

    def parameters(self) -> dict[str, Tensor]:
        """Its weights, live, under the names of `Decoder.named_parameters()`: what is written here is sampled with."""

    def loaded(self, policy_version: int, weights_digest: str) -> None:
        """Say that the weights have been written: what was computed with the old ones is void.

        Raises WeightSyncError while it samples.
        """

    def canary(self, tokens: Tensor) -> Tensor:
        """The log-probability of each token of a sequence but the first: [length] -> fp32 [length - 1]."""
