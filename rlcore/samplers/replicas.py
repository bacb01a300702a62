"""Several samplers that work as one: each draws its share of the requests, and all get the same weights.

    requests ──split in order──▶ share 0 ──▶ replica 0 ─┐
                                 share 1 ──▶ replica 1 ─┼──▶ trajectories, in the order of the requests
                                 share 2 ──▶ replica 2 ─┘

Replicas that can run together have a thread each; the caller waits for all. Which replica draws a completion follows
from its index among the requests, never from time, so that two runs agree at level deterministic too. At level
invariant it moves no bit.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from itertools import pairwise
from typing import TypeVar

import torch

from rlcore.data.trajectory import Trajectory
from rlcore.errors import InvalidValueError
from rlcore.samplers.base import NextToken, NextTokenRequest, NextTokenSampler, Progress, Sampler
from rlcore.samplers.replica_target import ReplicaTarget
from rlcore.types import SampleRequest

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def replicate(samplers: Sequence[Sampler], *, run_together: bool) -> "ReplicaSampler":
    """Return a sampler of these replicas; it answers `next_tokens` if all of them do. As `ReplicaSampler`."""
    can_search = all(isinstance(each, NextTokenSampler) for each in samplers)
    kind = SearchingReplicaSampler if can_search else ReplicaSampler
    return kind(samplers, run_together=run_together)


class ReplicaSampler:
    """Several samplers as one, as `rlcore.samplers.base.Sampler`.

    `run_together` gives each a thread, which computes at the caller's level; without it they run one after another.
    """

    def __init__(self, samplers: Sequence[Sampler], *, run_together: bool) -> None:
        """Take samplers with equal weights. Raises InvalidValueError for none."""
        if not samplers:
            raise InvalidValueError("0 replicas", legal="1 or more")
        self._samplers, self._run_together = tuple(samplers), run_together
        self._target = ReplicaTarget([each.weight_target for each in samplers])

    @property
    def policy_version(self) -> int:
        """As `Sampler.policy_version`."""
        return self._samplers[0].policy_version

    @property
    def weights_digest(self) -> str:
        """As `Sampler.weights_digest`."""
        return self._samplers[0].weights_digest

    @property
    def weight_target(self) -> ReplicaTarget:
        """As `Sampler.weight_target`: the target of all replicas."""
        return self._target

    def sample(self, requests: Sequence[SampleRequest], *, progress: Progress | None = None) -> list[Trajectory]:
        """As `Sampler.sample`. If several replicas fail, the error is that of the first of them."""
        counts = _Progress(progress, len(requests)) if progress else None

        def draw(number: int, share: Sequence[SampleRequest]) -> list[Trajectory]:
            return self._samplers[number].sample(share, progress=counts.of(number) if counts else None)

        with self._target.sampling():
            try:
                return self._by_share(list(requests), draw)
            except _CancelledError:
                assert counts is not None and counts.error is not None
                raise counts.error from None

    def _by_share(
        self, asked: Sequence[Asked], compute: Callable[[int, Sequence[Asked]], list[Answer]]
    ) -> list[Answer]:
        """Let each replica compute its share; return the answers in the order of what is asked."""
        calls = [(number, share) for number, share in enumerate(_shares(asked, len(self._samplers))) if share]
        if not self._run_together or len(calls) < 2:
            return [answer for call in calls for answer in context_of_caller().run(compute, *call)]
        num_threads = torch.get_num_threads()

        def in_thread(number: int, share: Sequence[Asked]) -> list[Answer]:
            torch.set_num_threads(num_threads)  # torch counts per thread
            return compute(number, share)

        with ThreadPoolExecutor(len(calls), "replica") as pool:
            contexts = [(context_of_caller(), *call) for call in calls]
            running = [pool.submit(context.run, in_thread, number, share) for context, number, share in contexts]
        return [answer for each in running for answer in each.result()]


class SearchingReplicaSampler(ReplicaSampler):
    """Replicas that beams can be searched with, as `rlcore.samplers.base.NextTokenSampler`."""

    @property
    def max_length(self) -> int:
        """As `NextTokenSampler.max_length`: the least of the replicas'."""
        return min(each.max_length for each in self._searching())

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        """As `NextTokenSampler.next_tokens`."""
        samplers = self._searching()
        with self._target.sampling():
            return self._by_share(list(requests), lambda number, share: samplers[number].next_tokens(share))

    def _searching(self) -> list[NextTokenSampler]:
        return [each for each in self._samplers if isinstance(each, NextTokenSampler)]


def context_of_caller() -> Context:
    """Return a copy of the caller's context: the level of determinism is in it, and a new thread has none."""
    return copy_context()


def _shares(asked: Sequence[Asked], num_replicas: int) -> Iterator[Sequence[Asked]]:
    """Split in order, into shares that differ by one at most: completions of a prompt mostly stay together."""
    ends = [len(asked) * number // num_replicas for number in range(num_replicas + 1)]
    return (asked[first:end] for first, end in pairwise(ends))


class _CancelledError(Exception):
    """The caller's progress has raised, in this replica's thread or in another one."""


class _Progress:
    """Adds up the progress of replicas. An exception of the caller cancels all of them."""

    def __init__(self, progress: Progress, num_total: int) -> None:
        self._progress, self._num_total = progress, num_total
        self._lock = threading.Lock()
        self._num_done: dict[int, int] = {}
        self.error: BaseException | None = None
        """Exception of the caller's progress."""

    def of(self, number: int) -> Progress:
        """Return the progress that a replica calls."""

        def report(num_done: int, _: int) -> None:
            with self._lock:
                if self.error is not None:
                    raise _CancelledError
                self._num_done[number] = num_done
                try:
                    self._progress(sum(self._num_done.values()), self._num_total)
                except BaseException as error:  # whatever it is, the caller gets it
                    self.error = error
                    raise _CancelledError from None

        return report
