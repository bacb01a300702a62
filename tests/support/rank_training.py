"""A small odd model, and what ranks train of it in tests: every function is called on each of four ranks."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from harness.bits.tensor_digests import tensor_digest
from rlcore.config import OptimizerSection, RuntimeSection
from rlcore.data.microbatches import Microbatch, divide_among_workers
from rlcore.models.adapters import attach
from rlcore.models.config import DecoderConfig, LoraConfig
from rlcore.models.decoder import Decoder
from rlcore.trainers import reductions
from rlcore.trainers.gradients import MicrobatchLoss, full_tensor, trained_parameters
from rlcore.trainers.ranks import RankGrid, build_grid
from rlcore.trainers.trainer import Trainer

CONFIG = DecoderConfig(
    family="qwen2", vocab_size=37, width=18, num_layers=2, num_heads=3, num_kv_heads=1, head_width=6, ffn_width=23
)
LORA = LoraConfig(3, 6.0, frozenset(CONFIG.projections))
"""Adapters with fewer rows than there are ranks."""
NUM_MICROBATCHES = 13
"""Numbers without a microbatch: a tree of 13 values has 11."""
NUM_STEPS = 2


class Odd(nn.Module):
    """A decoder with tied embeddings and odd sizes, and a parameter with fewer rows than there are ranks."""

    def __init__(self, *, is_adapted: bool = False) -> None:
        super().__init__()
        self.decoder = Decoder(CONFIG).initialise(3)
        if is_adapted:
            self.decoder = attach(self.decoder, LORA, 3)
        self.gains = nn.Parameter(torch.tensor([1.0, 0.1, 0.5]))

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, length] -> logits [batch, length, vocabulary]."""
        logits: Tensor = self.decoder(tokens)
        return logits * self.gains[0] + logits.tanh() * self.gains[1] + logits.square() * self.gains[2]


def negative_likelihood(model: nn.Module, microbatch: Microbatch, *, scale: float = 0.01) -> MicrobatchLoss:
    """The negated log-likelihood of a microbatch's tokens."""
    logprobs = model(microbatch.tokens[:, :-1]).float().log_softmax(-1)
    drawn = logprobs.gather(-1, microbatch.tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    mask = torch.ones_like(drawn, dtype=torch.bool)
    return MicrobatchLoss(-scale * drawn.sum(), {"logprobs": drawn.detach()}, mask)


def microbatches_of(step: int) -> list[Microbatch]:
    """Return the fixed microbatches of a step: they are ragged."""
    draw = torch.Generator().manual_seed(100 + step)
    found = []
    for number in range(NUM_MICROBATCHES):
        length = 5 + 4 * int(torch.randint(4, (), generator=draw))
        tokens = torch.randint(CONFIG.vocab_size, (2, length), generator=draw)
        found.append(Microbatch(number, (2 * number, 2 * number + 1), tokens, 1))
    return found


Division = Callable[[Sequence[Microbatch], int], list[list[Microbatch]]]
"""Divides the microbatches of a step among ranks."""


def shuffled(microbatches: Sequence[Microbatch], world_size: int) -> list[list[Microbatch]]:
    """Divide at random, and leave the last of several ranks without any."""
    draw = random.Random(len(microbatches) * 7 + world_size)
    parts: list[list[Microbatch]] = [[] for _ in range(world_size)]
    for microbatch in draw.sample(list(microbatches), len(microbatches)):
        parts[draw.randrange(max(1, world_size - 1))].append(microbatch)
    return parts


def contiguous(microbatches: Sequence[Microbatch], world_size: int) -> list[list[Microbatch]]:
    """Divide into neighbours, as many for each rank as there can be."""
    size = -(-len(microbatches) // world_size)
    return [list(microbatches[size * rank : size * (rank + 1)]) for rank in range(world_size)]


def lone(microbatches: Sequence[Microbatch], world_size: int) -> list[list[Microbatch]]:
    """Give all to the first rank: other replicas have none."""
    return [list(microbatches), *([] for _ in range(world_size - 1))]


DIVISIONS: Mapping[str, Division] = {
    "balanced": divide_among_workers,
    "shuffled": shuffled,
    "contiguous": contiguous,
    "lone": lone,
}


class Trained(NamedTuple):
    """All that training must agree on, by digests."""

    norms: tuple[float, ...]
    gradients: dict[str, str]
    """Of the last step, before clipping."""
    state: dict[str, str]
    """Weights, and what the optimizer keeps."""


@dataclass(frozen=True)
class Case:
    """A way to train."""

    num_ranks: int = 1
    num_shards: int = 1
    division: str = "balanced"
    dtype: torch.dtype = torch.float32
    is_canonical: bool = True
    max_norm: float = 0.5
    bucket_elements: int = reductions.BUCKET_ELEMENTS
    is_adapted: bool = False
    """Whether the decoder has adapters, and its base is frozen."""


def local_trainer(
    dtype: torch.dtype = torch.float32,
    model: nn.Module | None = None,
    *,
    grid: RankGrid | None = None,
    is_canonical: bool = True,
    sentinel_every: int = 0,
) -> Trainer:
    """Build the trainer of one process, or of a rank of a grid."""
    section, runtime = OptimizerSection(learning_rate=0.01, weight_decay=0.1), RuntimeSection(training_threads=1)
    model = (Odd() if model is None else model).to(dtype)
    return Trainer(
        "policy",
        model,
        0.01,
        section=section,
        runtime=runtime,
        grid=grid,
        is_canonical=is_canonical,
        sentinel_every=sentinel_every,
    )


def local_training(dtype: torch.dtype = torch.float32, max_norm: float = 0.5, *, is_adapted: bool = False) -> Trained:
    """Train in one process."""
    trainer, norms = local_trainer(dtype, Odd(is_adapted=is_adapted)), []
    gradients = dict[str, str]()
    for step in range(NUM_STEPS):
        trainer.forward_backward(microbatches_of(step), negative_likelihood)
        assert trainer.gradients is not None
        names = trained_parameters(trainer.model)
        gradients = {name: tensor_digest(g.to(dtype)) for name, g in zip(names, trainer.gradients, strict=True)}
        norms.append(trainer.optimizer_step(learning_rate=0.01, max_norm=max_norm))
    return trained(trainer)._replace(norms=tuple(norms), gradients=gradients)


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the digest of each tensor."""
    return {name: tensor_digest(tensor) for name, tensor in tensors.items()}


@cache
def grid_of(num_shards: int, num_ranks: int = 4) -> RankGrid | None:
    """Return the grid of the first ranks, built once: each of gloo's groups has threads, and connects all its ranks."""
    return build_grid(num_shards, timeout_s=120, members=range(num_ranks))


def parallel_trainer(case: Case, model: nn.Module | None = None) -> tuple[Trainer, RankGrid] | None:
    """Build the trainer of this rank; None if it is not one of the case's. Every rank calls it."""
    grid = grid_of(case.num_shards, case.num_ranks)
    if grid is None:
        return None
    return local_trainer(case.dtype, model, grid=grid, is_canonical=case.is_canonical), grid


def parallel_training(case: Case) -> Trained | None:
    """Train on the first ranks; None on the others."""
    built = parallel_trainer(case, Odd(is_adapted=case.is_adapted))
    if built is None:
        return None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reductions, "BUCKET_ELEMENTS", case.bucket_elements)
        return training_of(case, *built)


def training_of(case: Case, trainer: Trainer, grid: RankGrid) -> Trained:
    """Train on this rank."""
    norms, gradients = [], dict[str, str]()
    for step in range(NUM_STEPS):
        own = DIVISIONS[case.division](microbatches_of(step), grid.world.size)[grid.world.rank]
        losses = trainer.forward_backward(own, negative_likelihood)
        assert len(losses) == len(own)
        assert trainer.gradients is not None
        names = trained_parameters(trainer.model)
        gradients = {
            name: tensor_digest(full_tensor(gradient).to(case.dtype))
            for name, gradient in zip(names, trainer.gradients, strict=True)
        }
        norms.append(trainer.optimizer_step(learning_rate=0.01, max_norm=case.max_norm))
    return trained(trainer)._replace(norms=tuple(norms), gradients=gradients)


def trained(trainer: Trainer) -> Trained:
    """Return the digests of weights and moments; collective if they are sharded."""
    return Trained((), {}, digests({name: full_tensor(each) for name, each in trainer.state().items()}))
