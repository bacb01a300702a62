"""Several samplers that work as one: each draws its share of the requests, and all get the same weights.

    requests ──split in order──▶ share 0 ──▶ replica 0 ─┐
                                 share 1 ──▶ replica 1 ─┼──▶ trajectories, in the order of the requests
                                 share 2 ──▶ replica 2 ─┘

Replicas have a thread each; the caller waits for all. Which replica draws a completion follows
from its index among the requests, never from time, so that two runs agree at level deterministic too. At level
invariant it moves no bit.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from rlcore.data.trajectory import Trajectory
from rlcore.errors import WeightSyncError
from rlcore.samplers.base import NextToken, NextTokenRequest, NextTokenSampler
from rlcore.samplers.local_target import Fence
from rlcore.types import SampleRequest
from rlcore.weights.receipts import Check
from rlcore.weights.target import NamedTensors, TargetState, WeightTarget
from rlcore.weights.transports.packing import chunks

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
CHUNK_BYTES = 256 << 20
"""Weights that are fetched before each replica gets them."""


class ReplicaSampler:
    """Several samplers with equal weights as one, as `rlcore.samplers.base.NextTokenSampler`.

    Each has a thread, which computes at the caller's level.
    """

    def __init__(self, samplers: Sequence[NextTokenSampler]) -> None:
        self._samplers = tuple(samplers)
        self.weight_target = ReplicaTarget([each.weight_target for each in samplers])

    def sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        """As `Sampler.sample`. If several replicas fail, the error is that of the first of them."""
        with self.weight_target.sampling():
            return self._by_share(list(requests), lambda number, share: self._samplers[number].sample(share))

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        """As `NextTokenSampler.next_tokens`."""
        with self.weight_target.sampling():
            return self._by_share(list(requests), lambda number, share: self._samplers[number].next_tokens(share))

    def _by_share(
        self, asked: Sequence[Asked], compute: Callable[[int, Sequence[Asked]], list[Answer]]
    ) -> list[Answer]:
        """Let each replica compute its share; return the answers in the order of what is asked.

        Shares are split in order and differ by one at most: completions of a prompt mostly stay together.
        """
        count, num_threads = len(self._samplers), torch.get_num_threads()
        shares = [asked[len(asked) * n // count : len(asked) * (n + 1) // count] for n in range(count)]
        calls = [(number, share) for number, share in enumerate(shares) if share]

        def in_thread(number: int, share: Sequence[Asked]) -> list[Answer]:
            torch.set_num_threads(num_threads)  # torch counts per thread
            return compute(number, share)

        with ThreadPoolExecutor(count, "replica") as pool:
            # The level of determinism is in the caller's context, and a new thread has none.
            running = [pool.submit(copy_context().run, partial(in_thread, *call)) for call in calls]
        return [answer for each in running for answer in each.result()]


class ReplicaTarget:
    """Several targets as one, as `WeightTarget`: their answers have to be equal.

    Raises WeightSyncError, naming the replica, for an answer that differs from the other replicas'.
    """

    def __init__(self, targets: Sequence[WeightTarget]) -> None:
        self._targets, self._fence = tuple(targets), Fence()

    def sampling(self) -> AbstractContextManager[None]:
        """Keep syncs away from all replicas while any of them draws."""
        return self._fence.sampling()

    def describe(self) -> TargetState:
        """As `WeightTarget.describe`; replicas have memory of their own, and the first one's is returned."""
        states = [each.describe() for each in self._targets]
        _agree([state.policy_version for state in states], Check.FENCE, "the version")
        _agree([state.weights_digest for state in states], Check.HELD, "the digest of the weights")
        return states[0]

    def begin(self, policy_version: int) -> None:
        """As `WeightTarget.begin`: no replica begins while any of them draws."""
        with self._fence.idle("weights are being loaded"):
            for each in self._targets:
                each.begin(policy_version)

    def write(self, weights: NamedTensors) -> None:
        for chunk in chunks(weights, CHUNK_BYTES):
            for each in self._targets:
                each.write(chunk.items())

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        found = [each.digests(names) for each in self._targets]
        for name in names:
            _agree([each.get(name) for each in found], Check.READ_BACK, "the digest", name)
        return found[0]

    def canary(self, tokens: Tensor) -> Tensor:
        """As `WeightTarget.canary`; log-probabilities of replicas are equal to the bit."""
        found = [each.canary(tokens) for each in self._targets]
        _agree([each.tolist() for each in found], Check.CANARY, "the canary")
        return found[0]

    def commit(self, weights_digest: str) -> None:
        for each in self._targets:
            each.commit(weights_digest)


def _agree(answers: Sequence[object], check: Check, what: str, parameter: str = "") -> None:
    """Raise WeightSyncError with the first replica whose answer is not the most frequent one."""
    texts = [repr(each) for each in answers]
    expected, count = Counter(texts).most_common(1)[0]
    if count == len(texts):
        return
    number = next(at for at, text in enumerate(texts) if text != expected)
    raise WeightSyncError(
        f"of replica {number} of {len(texts)}: {what} is {texts[number]:.80}, and {expected:.80} of replica "
        f"{texts.index(expected)}",
        check=check,
        parameter=parameter,
        remedy="find who else writes that replica's weights, or loses them; then sync with previous=None",
    )
