"""What a trainer on ranks is asked beside training, and how it fails: functions that each of four ranks calls."""

import ctypes
import gc
import weakref
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rlcore.data.microbatches import Microbatch
from rlcore.models.decoder import Decoder
from rlcore.train import read_logprobs as read_logprobs_at
from rlcore.train import read_tokens
from rlcore.trainers.gradients import MicrobatchLoss
from rlcore.trainers.reductions import owned
from rlcore.trainers.trainer import Trainer
from rlcore.weights.canary import canary_tokens
from tests.support.rank_training import (
    CONFIG,
    Case,
    digests,
    local_trainer,
    microbatches_of,
    negative_likelihood,
    parallel_trainer,
    shuffled,
)


def policy_loss(model: nn.Module, microbatch: Microbatch) -> MicrobatchLoss:
    """A loss as recipes have it: it reads the decoder by `hidden` and `logits`, not by calling it."""
    assert isinstance(model, Decoder)
    logprobs, entropy = read_tokens(1.0, model, microbatch)
    return MicrobatchLoss(
        -0.01 * logprobs.sum() - 0.001 * entropy.sum(), {}, torch.ones_like(logprobs, dtype=torch.bool)
    )


def read_logprobs(model: nn.Module, microbatch: Microbatch) -> Tensor:
    """Read the log-probabilities of a microbatch."""
    return read_logprobs_at(1.0, model, microbatch)


@dataclass
class Answers:
    """All that a trainer answers after a step and a backward pass."""

    weights: dict[str, str]
    gradients: str
    optimizer: str
    logprobs: Tensor
    read: dict[int, Tensor]
    """By the number of the microbatch."""

    def is_equal(self, other: "Answers") -> bool:
        """Whether all of it is bitwise equal; of what was read, what both have read."""
        both = self.read.keys() & other.read.keys()
        return (
            (self.weights, self.gradients, self.optimizer) == (other.weights, other.gradients, other.optimizer)
            and torch.equal(self.logprobs, other.logprobs)
            and all(torch.equal(self.read[number], other.read[number]) for number in both)
        )


def answers_of(trainer: Trainer, own: list[list[Microbatch]]) -> Answers:
    """Ask a trainer with these microbatches of two steps."""
    trainer.forward_backward(own[0], policy_loss)
    trainer.weights().logprobs(canary_tokens(CONFIG))  # a pass without a gradient leaves no full weights to be moved
    trainer.optimizer_step(learning_rate=0.01, max_norm=0.5)
    read = trainer.read(own[0], read_logprobs)
    trainer.forward_backward(own[1], policy_loss)
    weights = trainer.weights()
    return Answers(
        weights.digests(),
        trainer.gradient_digest(),
        trainer.optimizer_digest(),
        weights.logprobs(canary_tokens(CONFIG)),
        {each.number: part for each, part in zip(own[0], read, strict=True)},
    )


def local_answers(dtype: torch.dtype) -> Answers:
    """Ask the trainer of one process."""
    return answers_of(local_trainer(dtype, Decoder(CONFIG).initialise(3)), [microbatches_of(step) for step in range(2)])


def parallel_answers(case: Case) -> Answers | None:
    """Ask the trainer of this rank."""
    built = parallel_trainer(case, Decoder(CONFIG).initialise(3))
    if built is None:
        return None
    trainer, grid = built
    own = [shuffled(microbatches_of(step), grid.world.size)[grid.world.rank] for step in range(2)]
    return answers_of(trainer, own)


def owned_values(case: Case) -> dict[str, str]:
    """Return the digests of what this rank is handed of weights, gradients and moments."""
    built = parallel_trainer(case)
    assert built is not None
    trainer, grid = built
    for step in range(2):
        own = shuffled(microbatches_of(step), grid.world.size)[grid.world.rank]
        trainer.forward_backward(own, negative_likelihood)
        if step == 0:
            trainer.optimizer_step(learning_rate=0.01, max_norm=0.5)
    assert trainer.gradients is not None
    gradients = {f"{name}.grad": each for name, each in zip(trainer.masters, trainer.gradients, strict=True)}
    return digests(dict(owned({**trainer.state(), **gradients}.items(), grid)))


class Wide(nn.Module):
    """Layers of 2 MiB each, which nobody calls."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 512, bias=False) for _ in range(num_layers))


def streamed(num_layers: int, keeps: bool) -> tuple[int, int]:
    """Stream the weights of a sharded model; return the most whole tensors that were alive at once, and peak bytes.

    With `keeps` the reader keeps them all.
    """
    built = parallel_trainer(Case(4, 4), Wide(num_layers))
    assert built is not None
    trainer, _ = built
    tensors = trainer.weights().tensors
    for _ in tensors.values():
        pass  # torch imports what it needs
    before_bytes = reset_peak()
    seen, kept, most = list[weakref.ref[Tensor]](), [], 0
    for tensor in tensors.values():
        seen.append(weakref.ref(tensor))
        if keeps:
            kept.append(tensor)
        most = max(most, sum(reference() is not None for reference in seen))
        del tensor
    return most, peak_bytes() - before_bytes


M_MMAP_THRESHOLD = -3
"""Of malloc.h: blocks from this size on are given back when they are freed."""


def reset_peak() -> int:
    """Give freed memory back, forget the peak of this process so far, and return its memory, in bytes."""
    gc.collect()
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, 1 << 16)  # else malloc keeps large blocks that were freed, and they count
    library.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    return peak_bytes()


def peak_bytes() -> int:
    """Return the most memory that this process has had, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text("ascii").splitlines() if "VmHWM" in line)
    return 1024 * int(line.split()[1])
