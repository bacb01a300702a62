"""How a trainer on ranks fails: functions that each of four ranks calls, and that return the errors it met."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rlcore.data.microbatches import Microbatch
from rlcore.errors import RlcoreError
from rlcore.trainers import fsdp
from rlcore.trainers.gradients import MicrobatchLoss, local_part
from rlcore.trainers.ranks import Assignment, Ranks, build_grid
from tests.support.rank_training import (
    Case,
    Odd,
    grid_of,
    local_trainer,
    microbatches_of,
    negative_likelihood,
    parallel_trainer,
    shuffled,
)

NUM_ELEMENTS_OF_A_ROW = 18


def error_of(do: Callable[[], object]) -> str:
    """Return the error that is raised, with its type; empty if there is none."""
    try:
        do()
    except (RlcoreError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def own_of(ranks: Ranks, step: int = 0) -> list[Microbatch]:
    """Return this rank's microbatches of a step."""
    return shuffled(microbatches_of(step), ranks.size)[ranks.rank]


def errors_of_assignments(case: Case) -> tuple[str, str]:
    """Give a microbatch to all ranks; give one to none."""
    built = parallel_trainer(case)
    assert built is not None
    trainer, grid = built
    own = own_of(grid.world)

    def attempt(own: list[Microbatch]) -> str:
        return error_of(lambda: trainer.forward_backward(own, negative_likelihood))

    return attempt([*own, *microbatches_of(0)[:1]]), attempt([each for each in own if each.number != 5])


def spoiled(model: nn.Module, microbatch: Microbatch) -> MicrobatchLoss:
    """A loss that is no number for microbatches 7 and 9."""
    return negative_likelihood(model, microbatch, scale=math.nan if microbatch.number in (7, 9) else 0.01)


def errors_of_losses(case: Case) -> tuple[str, str, str]:
    """Meet a loss that is no number; then make the same update without, and return both gradients' digests."""
    built, clean = parallel_trainer(case), parallel_trainer(case)
    assert built is not None
    assert clean is not None
    trainer, grid = built
    own = own_of(grid.world)
    error = error_of(lambda: trainer.forward_backward(own, spoiled))
    for each in (trainer, clean[0]):
        each.forward_backward(own, negative_likelihood)
    return error, trainer.gradient_digest(), clean[0].gradient_digest()


def errors_of_gradients(case: Case, row: int) -> str:
    """Make a gradient infinite in one row of the embedding, and a later one everywhere."""
    built = parallel_trainer(case)
    assert built is not None
    trainer, grid = built
    trainer.forward_backward(own_of(grid.world), negative_likelihood)
    assert trainer.gradients is not None
    names = [name for name, _ in trainer.model.named_parameters()]
    marked = torch.zeros(37, NUM_ELEMENTS_OF_A_ROW)
    marked[row, 3] = math.inf
    index = names.index("decoder.embedding")
    gradient = local_part(trainer.gradients[index])
    first = 0 if len(gradient) == 37 else grid.shard.rank * -(-37 // grid.shard.size)
    gradient.add_(marked[first : first + len(gradient)])
    local_part(trainer.gradients[-1]).fill_(math.nan)
    return error_of(lambda: trainer.optimizer_step(learning_rate=0.01, max_norm=0.5))


class Partial(Odd):
    """A model with a parameter that nothing reads."""

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, length] -> logits [batch, length, vocabulary]."""
        logits: Tensor = self.decoder(tokens)
        return logits


def errors_of_unread() -> str:
    """Shard a model whose parameters are not all read."""
    grid = grid_of(4)
    assert grid is not None
    trainer = local_trainer(model=Partial(), grid=grid)
    own = own_of(grid.world)
    return error_of(lambda: trainer.forward_backward(own, negative_likelihood))


def errors_without_the_guard(timeout_s: float) -> str:
    """Let two ranks make different numbers of passes, each of them sure of its own."""
    grid = build_grid(2, timeout_s=timeout_s, members=range(2))
    if grid is None:
        return ""
    trainer = local_trainer(grid=grid)
    microbatches = microbatches_of(0)

    own = microbatches[:2] if grid.world.rank == 0 else microbatches[2:3]
    numbers = ((0, 1), (2, 3)) if grid.world.rank == 0 else ((0,), (2,))

    def believed(*_: object) -> Assignment:
        return numbers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsdp, "agree", believed)
        return error_of(lambda: trainer.forward_backward(own, negative_likelihood))
