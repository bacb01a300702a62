"""The interface between the trainer and a sampler: rlcore's own decoder, or an engine in another process."""

from collections.abc import Callable, Sequence
from typing import Protocol

from rlcore.data.trajectory import Trajectory
from rlcore.types import SampleRequest
from rlcore.weights.target import WeightTarget

Progress = Callable[[int, int], None]
"""Called with (completions done, completions asked for) whenever some are done. An exception that it raises cancels."""


class Sampler(Protocol):
    """Draws completions with its own copy of the weights, in this process or in another one.

    A completion follows from its request and the weights alone: not from the requests beside it, nor from their order.
    A sampler decodes a bounded number of completions at once, however many it is asked for. Nothing here hands out a
    tensor of the sampler. `tests/conformance/sampler_suite.py` is the contract as tests.
    """

    @property
    def policy_version(self) -> int:
        """Version of the weights it samples with."""

    @property
    def weights_digest(self) -> str:
        """Digest of the weights it samples with."""

    @property
    def weight_target(self) -> WeightTarget:
        """Target of the syncs that give it other weights."""

    def sample(self, requests: Sequence[SampleRequest], *, progress: Progress | None = None) -> list[Trajectory]:
        """Return a trajectory of one completion for each request, in their order.

        An exception of `progress` cancels the call: the completions that are not done are dropped, and the sampler
        takes the next call. Raises InvalidValueError for a request that cannot be done, before anything is drawn, and
        WeightSyncError between the `begin` and the `commit` of its weight target.
        """
