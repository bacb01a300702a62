"""Offload and wake: no bit changes, tied weights stay tied, and a bit that does change is named."""

import itertools
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.bits.tensor_digests import tensor_digests
from harness.fixtures import StartRanks
from rlcore.config import OptimizerSection, RuntimeSection
from rlcore.errors import PlacementError
from rlcore.trainers.gradients import local_part
from rlcore.trainers.offload import MIN_MAPPED_BYTES, OffloadedState
from rlcore.trainers.ranks import build_grid
from rlcore.trainers.trainer import Trainer
from tests.support.mapped_memory import mapped_files

WIDTH = 48


class Small(nn.Module):
    """Tied weights, a scalar, and a weight with strides of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, WIDTH)
        self.mixing = nn.Parameter(torch.randn(WIDTH, WIDTH).t())
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(WIDTH, 96, bias=False)
        self.head.weight = self.embedding.weight


class Rows(nn.Module):
    """Weights to be sharded, of any number of rows."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Embedding(num_rows, WIDTH), nn.Linear(WIDTH, 2 * num_rows)])


def small(dtype: torch.dtype = torch.float32) -> Trainer:
    torch.manual_seed(7)
    return trainer_of(Small().to(dtype))


def trainer_of(model: nn.Module) -> Trainer:
    section = OptimizerSection(learning_rate=1e-2)
    grid = build_grid(2, timeout_s=120) if isinstance(model, Rows) else None
    return Trainer("policy", model, 1e-2, section=section, runtime=RuntimeSection(training_threads=1), grid=grid)


def away(trainer: Trainer, directory: Path | None) -> OffloadedState:
    return OffloadedState(trainer.model, trainer.masters, trainer.optimizer, trainer.state, directory)


def learn(trainer: Trainer, steps: range) -> None:
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        trainer.gradients = []
        for parameter in trainer.model.parameters():
            gradient = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
            local_part(gradient).copy_(torch.randn(local_part(parameter).shape, generator=draw))
            trainer.gradients.append(gradient)
        trainer.optimizer_step(learning_rate=1e-2, max_norm=None)


def digests(trainer: Trainer) -> dict[str, str]:
    return tensor_digests({name: local_part(tensor) for name, tensor in trainer.state().items()})


def large_of(trainer: Trainer) -> list[Tensor]:
    local = [local_part(tensor) for tensor in trainer.state().values()]
    return [tensor for tensor in local if tensor.nbytes >= MIN_MAPPED_BYTES]


def are_in_files(trainer: Trainer) -> set[bool]:
    """Return whether the large tensors of a state lie in files without a name."""
    return {any(file.endswith("(deleted)") for file in mapped_files(each)) for each in large_of(trainer)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_with_naps_has_the_bits_of_training_without(tmp_path: Path, dtype: torch.dtype) -> None:
    one, other = small(dtype), small(dtype)
    learn(one, range(6))
    for steps in (range(2), range(2, 3), range(3, 6)):
        learn(other, steps)
        state = away(other, tmp_path)
        assert are_in_files(other) == {True}
        state.wake()
    assert digests(one) == digests(other)


def test_large_tensors_lie_in_files_without_names_while_the_model_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sizes = os.posix_fallocate, list[int]()

    def allocate(file: int, at: int, size: int) -> None:
        sizes.append(size)
        real(file, at, size)

    monkeypatch.setattr("os.posix_fallocate", allocate)
    trainer = small()
    learn(trainer, range(2))
    model = trainer.model
    assert isinstance(model, Small)
    before, parameters, strides = digests(trainer), list(model.parameters()), model.mixing.stride()
    state = away(trainer, tmp_path)
    assert digests(trainer) == before, "it can be read while it is idle"
    assert len(large_of(trainer)) == 3 * 2
    assert sum(each.nbytes for each in large_of(trainer)) == sum(sizes), "tied weights are moved once"
    assert all(file.startswith(str(tmp_path)) for each in large_of(trainer) for file in mapped_files(each))
    assert are_in_files(trainer) == {True}
    assert list(tmp_path.iterdir()) == []
    state.wake()
    assert digests(trainer) == before
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert model.head.weight is model.embedding.weight
    assert model.mixing.stride() == strides
    assert are_in_files(trainer) == {False}


def flip(tensor: Tensor, bit: int) -> None:
    flat = tensor.detach().view(-1) if tensor.is_contiguous() else tensor.detach().t().view(-1)
    view = flat.view(torch.uint8)
    view[(bit // 8) % view.numel()] ^= 1 << (bit % 8)


NAMES = ("embedding.weight", "mixing", "scale", "mixing.exp_avg", "scale.step")


@given(st.sampled_from(NAMES), st.integers(0, 1 << 20))
def test_a_bit_that_changes_while_the_model_is_idle_is_named(
    tmp_path_factory: pytest.TempPathFactory, name: str, bit: int
) -> None:
    trainer = small()
    learn(trainer, range(1))
    state = away(trainer, tmp_path_factory.getbasetemp())
    flip(trainer.state()[name], bit)
    with pytest.raises(PlacementError) as caught:
        state.wake()
    assert caught.value.what.startswith(f"changed while it was offloaded: {name} (")
    assert caught.value.what.count("became") == 1


@pytest.mark.parametrize("num_files", [0, pytest.param(3, marks=pytest.mark.full)])
def test_a_full_disk_is_an_error_and_everything_is_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int
) -> None:
    real, calls = os.posix_fallocate, itertools.count()

    def full(*given: int) -> None:
        if next(calls) == num_files:
            raise OSError(28, "No space left on device")
        real(*given)

    trainer = small()
    learn(trainer, range(1))
    before = digests(trainer)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        away(trainer, tmp_path)
    assert digests(trainer) == before
    assert are_in_files(trainer) == {False}
    assert list(tmp_path.iterdir()) == []


def sharded_digests(directory: str, num_rows: int, naps: bool, dtype: torch.dtype) -> dict[str, str]:
    """Return the digests of a rank's shards after three steps, with or without naps between them."""
    torch.manual_seed(7)
    trainer = trainer_of(Rows(num_rows).to(dtype))
    for step in range(3):
        learn(trainer, range(step, step + 1))
        if naps:
            state = away(trainer, Path(directory))
            assert True in are_in_files(trainer)
            if num_rows % 2 == 0:  # FSDP2 copies a shard that it has to pad
                assert are_in_files(trainer) == {True}
            state.wake()
            assert are_in_files(trainer) == {False}
    return digests(trainer)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_shards_of_fsdp2_are_offloaded_and_learn_afterwards(tmp_path: Path, distributed: StartRanks) -> None:
    ranks = distributed(2, backend="gloo", env={"OMP_NUM_THREADS": "1"}, timeout_s=240.0)
    for num_rows, dtype in ((96, torch.float32), (97, torch.float32), (96, torch.bfloat16)):
        without, with_naps = (
            ranks.run(sharded_digests, str(tmp_path), num_rows, naps, dtype) for naps in (False, True)
        )
        assert without == with_naps
        assert without[0] != without[1], "ranks have different shards"
