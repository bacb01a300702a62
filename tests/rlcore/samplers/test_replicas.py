"""Replicas: weights reach all of them or the one that differs is named; threads compute at the caller's level."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.data.trajectory import Trajectory
from rlcore.errors import WeightSyncError
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import following, is_invariant
from rlcore.numerics.probe import STRATEGIES, num_threads
from rlcore.samplers.local_target import FencedTarget, LocalTarget
from rlcore.samplers.replicas import ReplicaSampler, ReplicaTarget
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.types import SampleRequest
from rlcore.weights.proven_sync import sync
from rlcore.weights.receipts import Check
from rlcore.weights.target import NamedTensors, TargetState
from tests.rlcore.training.recorded import config, first_difference, recorded
from tests.support.samplers import TOKENIZER, decoder_of, requests_of

TRAINING: dict[str, Any] = {"num_steps": 2, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4}


class Watched(TorchSampler):
    """Notes what it is given, and how it computes; fails with `failure`."""

    def __init__(self, decoder: Decoder, failure: Exception | None = None) -> None:
        super().__init__(decoder, TOKENIZER)
        self.given: list[SampleRequest] = []
        self.computed: set[tuple[bool, int]] = set()
        self.failure = failure

    def sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        self.given += requests
        self.computed.add((is_invariant(), torch.get_num_threads()))
        if self.failure is not None:
            raise self.failure
        return super().sample(requests)


@pytest.mark.parametrize("count", [1, 2])
def test_threads_compute_as_the_caller_does(count: int) -> None:
    samplers = [Watched(decoder_of()) for _ in range(2)]
    with following(STRATEGIES[0]), num_threads(count):
        ReplicaSampler(samplers).sample(requests_of(1))
        assert torch.get_num_threads() == count
    assert all(each.computed == {(True, count)} for each in samplers)


def test_the_error_is_that_of_the_first_replica_that_fails() -> None:
    failures = [None, KeyError("second"), KeyError("third")]
    sampler = ReplicaSampler([Watched(decoder_of(), failure) for failure in failures])
    with pytest.raises(KeyError, match="second"):
        sampler.sample(requests_of(2))
    with pytest.raises(KeyError, match="second"), sampler.weight_target.sampling():
        raise KeyError("second")  # nothing is left locked


# ------------------------------------------------------------------------------------------------------------- weights


class Forgetful(LocalTarget):
    """Leaves a parameter out."""

    def write(self, weights: NamedTensors) -> None:
        super().write((name, tensor) for name, tensor in weights if name != "embedding")


class Deaf(LocalTarget):
    """Computes with other weights than it holds."""

    def canary(self, tokens: Tensor) -> Tensor:
        return super().canary(tokens) - 1e-6


class Behind(LocalTarget):
    """Has a version of its own."""

    def describe(self) -> TargetState:
        return replace(super().describe(), policy_version=7)


def local(kind: Callable[[Decoder], FencedTarget] = LocalTarget) -> FencedTarget:
    return kind(decoder_of())


@pytest.mark.parametrize(
    ("kind", "check", "what"),
    [
        (Forgetful, Check.READ_BACK, "embedding of replica 2 of 3: the digest is"),
        (Deaf, Check.CANARY, "of replica 2 of 3: the canary is"),
        (Behind, Check.FENCE, "of replica 2 of 3: the version is 7, and 0 of replica 0"),
    ],
)
def test_a_replica_that_answers_differently_is_named(
    kind: Callable[[Decoder], FencedTarget], check: Check, what: str
) -> None:
    policy = decoder_of(spread=10.0)
    assert sync(policy, ReplicaTarget([local(), local(), local()]), 1, None).policy_version == 1
    with pytest.raises(WeightSyncError, match=what) as caught:
        sync(policy, ReplicaTarget([local(), local(), local(kind)]), 1, None)
    assert caught.value.check == check


def test_a_replica_that_is_written_between_syncs_is_named() -> None:
    policy, decoders = decoder_of(), [decoder_of(), decoder_of()]
    target = ReplicaTarget([LocalTarget(each) for each in decoders])
    receipt = sync(policy, target, 1, None)
    with torch.no_grad():
        decoders[1].embedding[0, 0] += 1
        policy.embedding.add_(1)
    with pytest.raises(WeightSyncError, match="embedding of replica 1 of 2"):
        sync(policy, target, 2, receipt)


# ---------------------------------------------------------------------------------------------------------------- runs


def test_replicas_move_no_bit_of_a_run(tmp_path: Path) -> None:
    first = recorded(config(training=TRAINING), tmp_path / "one")
    runtime = {"arrival_seed": 3, "concurrency": 2, "preempt_every": 3, "sampling_threads": 2}
    of = config(training=TRAINING, sampler={"replicas": 3}, runtime=runtime)
    assert first_difference(first, recorded(of, tmp_path / "three")) is None


@pytest.mark.full
def test_two_runs_agree_at_level_deterministic(tmp_path: Path) -> None:
    of = config(training=TRAINING, sampler={"replicas": 2})
    first, second = (recorded(of, tmp_path / name, level="deterministic") for name in "ab")
    assert first_difference(first, second) is None
