"""The five layers that make a run reproducible, each removed alone: which runs then differ, and which check finds it.

The layers are those of verl's full determinism; here each is a mechanism that a patch takes away. Runs without checks
show where bits differ. Runs with the checks show which one ends the run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rlcore.config import RunConfig
from rlcore.data.batch import Batch
from rlcore.data.microbatches import Microbatch, microbatches_by_budget
from rlcore.data.trajectory import Trajectory
from rlcore.errors import RlcoreError
from rlcore.models.classifier import Classifier
from rlcore.numerics.level import following
from rlcore.rewards.reward_model import TorchScorer
from rlcore.samplers.replicas import ReplicaSampler
from rlcore.samplers.vllm.pooling import VllmScorer
from rlcore.seeds import permutation
from rlcore.train import TrainState
from rlcore.types import SampleRequest
from tests.rlcore.training.recorded import Digests, RecordedValue, config, first_difference, recorded

Sample = Callable[..., list[Trajectory]]
MODEL = {"width": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_width": 32, "ffn_width": 128}
"""Sizes that vLLM's own attention takes, for the reward model."""
JITTER = {"arrival_seed": 11, "concurrency": 3, "preempt_every": 5, "token_budget": 64, "world_size": 2}
"""Runtime settings of a run whose requests arrive differently and are batched differently."""


def run_of(served_by: str, *, num_steps: int, is_jittered: bool) -> RunConfig:
    """Return a run of two replicas and a reward model; 4 prompts of 4 completions a step."""
    return config(
        model=MODEL,
        task={"rewards": ["rlcore.rewards.text:matching"], "reward_model": {"backend": served_by, "max_length": 64}},
        training={"num_steps": num_steps, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4},
        warm_start={"num_steps": 0},
        sampler={"name": served_by, "replicas": 2},
        runtime=JITTER if is_jittered else {},
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: its name at verl, its mechanism here, and how that is taken away."""

    name: str
    mechanism: str
    without: Callable[[], Any]
    """Context manager inside which the mechanism is missing."""


@contextmanager
def _patched(target: object, name: str, value: object) -> Iterator[None]:
    with patch.object(target, name, value):
        yield


def _passes_by_budget() -> Any:
    """Passes of the trainer are cut by the token budget, as at other levels."""

    def by_budget(batch: Batch, samples: list[int], size: int, *, token_budget: int) -> list[Microbatch]:
        return microbatches_by_budget(batch, samples, token_budget=token_budget)

    return patch("rlcore.train.fixed_microbatches", by_budget)


def _no_context() -> Any:
    """Replicas compute in an empty context: the level does not reach them."""
    return patch("rlcore.samplers.replicas.copy_context", Context)


def _sampling(change: Callable[[Sample, ReplicaSampler, Sequence[SampleRequest]], list[Trajectory]]) -> Any:
    """Change how all replicas sample."""
    sample = ReplicaSampler.sample

    def changed(self: ReplicaSampler, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        return change(sample, self, requests)

    return _patched(ReplicaSampler, "sample", changed)


def _plain_kernels() -> Any:
    """Samplers compute with torch's own operations, which depend on the batch."""

    def plain(sample: Sample, sampler: ReplicaSampler, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        with following(None):
            return sample(sampler, requests)

    return _sampling(plain)


def _noise_by_arrival() -> Any:
    """Noise follows from a seed and the place of arrival, as with one stream of random numbers per engine."""

    def by_arrival(sample: Sample, sampler: ReplicaSampler, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        drawn = sample(sampler, [replace(request, key=number) for number, request in enumerate(requests)])
        return [replace(each, request=request) for each, request in zip(drawn, requests, strict=True)]

    return _sampling(by_arrival)


def _in_order_of_arrival() -> Any:
    """The batch has completions as they arrive."""

    def arrived(state: TrainState, wanted: Sequence[SampleRequest]) -> list[Trajectory]:
        order = list(range(len(wanted)))
        if seed := state.config.runtime.arrival_seed:
            order = permutation(len(wanted), "arrival", seed)
        return state.sampler.sample([wanted[index] for index in order])

    return patch("rlcore.train.collect", arrived)


@contextmanager
def _rewards_in_batches() -> Iterator[None]:
    """The reward model scores batches, by kernels that depend on them."""

    def plain(classifier: Classifier, *, batch_size: int, held: object) -> TorchScorer:
        return TorchScorer(classifier, batch_size=batch_size, held=partial(following, None))

    start = VllmScorer.__init__

    def batched(scorer: VllmScorer, directory: Path, **options: Any) -> None:
        # Weights that are packed happen to hold on some processors.
        start(scorer, directory, **options | {"is_serial": False, "is_packed": False})

    with patch("rlcore.rewards.reward_model.TorchScorer", plain), patch.object(VllmScorer, "__init__", batched):
        yield


PER_PASS = ("forward", "loss")
"""Phases that record a value per pass of the trainer: another cut of passes alone would make a difference there."""


def first_bit(one: Digests, other: Digests) -> RecordedValue | None:
    """Return the first recorded value that differs, of those that do not depend on how passes are cut."""
    whole = (
        Digests({leaf: value for leaf, value in each.leaves.items() if leaf[1] not in PER_PASS})
        for each in (one, other)
    )
    return first_difference(*whole)


LAYERS = (
    Layer("PyTorch-level", "the trainer's fixed microbatches, added in one tree", _passes_by_budget),
    Layer("environment propagation", "the level reaches each replica", _no_context),
    Layer("batch invariance", "kernels whose rows do not depend on the batch", _plain_kernels),
    Layer("per-request seed", "noise keyed by step, prompt, sample and position", _noise_by_arrival),
    Layer("scheduling and routing", "completions put in canonical order", _in_order_of_arrival),
    Layer("reward model", "a score depends on its sequence alone", _rewards_in_batches),
)
"""verl's layers, the third in its two halves."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A jittered run without one layer, against the run with all of them."""

    layer: Layer
    difference: RecordedValue | None
    """First recorded value that differs, without any check; None if none does."""
    error: str
    """First line of the error of the check that ended the run; empty if none did."""


def remove(layer: Layer, reference: Digests, served_by: str, directory: Path, *, num_steps: int) -> Removal:
    """Make jittered runs without a layer: one without checks, to compare it, and one with them."""
    difference = difference_without(layer, reference, served_by, directory, num_steps=num_steps)
    error = ""
    try:
        with layer.without():
            recorded(run_of(served_by, num_steps=num_steps, is_jittered=True), directory / f"{layer.name}, checked")
    except RlcoreError as raised:
        error = str(raised).splitlines()[0]
    return Removal(layer, difference, error)


def _nothing(checks: object, step: object) -> None:
    """Check nothing."""


def difference_without(
    layer: Layer, reference: Digests, served_by: str, directory: Path, *, num_steps: int
) -> RecordedValue | None:
    """Return the first difference of a jittered run without a layer and without checks."""
    jittered = run_of(served_by, num_steps=num_steps, is_jittered=True)
    with layer.without(), patch.multiple("rlcore.checks.Checks", before=_nothing, after=_nothing):
        return first_bit(reference, recorded(jittered, directory / layer.name))


def compare(served_by: str, directory: Path, *, num_steps: int) -> tuple[Digests, dict[str, RecordedValue | None]]:
    """Record a run; return it with the first difference of a run again, and of a jittered one, by name."""
    plain = run_of(served_by, num_steps=num_steps, is_jittered=False)
    reference = recorded(plain, directory / "reference")
    again = recorded(plain, directory / "again")
    jittered = recorded(run_of(served_by, num_steps=num_steps, is_jittered=True), directory / "jittered")
    found = {"the same run again": again, "all layers, jittered": jittered}
    return reference, {name: first_difference(reference, each) for name, each in found.items()}
