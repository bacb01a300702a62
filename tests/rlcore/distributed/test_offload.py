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
from rlcore.distributed.offload import MIN_MAPPED_BYTES, offload, state_tensors
from rlcore.errors import InvalidValueError, PlacementError
from tests.support.mapped_memory import mapped_files

WIDTH = 48


class Small(nn.Module):
    """Tied weights, a buffer, a scalar, and a weight with strides of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, WIDTH)
        self.mixing = nn.Parameter(torch.randn(WIDTH, WIDTH).t())
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(WIDTH, 96, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.randn(64, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head((self.embedding(tokens) + self.table[: tokens.shape[1]]) @ self.mixing * self.scale)  # type: ignore[no-any-return,index]


def small() -> tuple[Small, torch.optim.AdamW]:
    torch.manual_seed(7)
    model = Small()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        tokens = torch.randint(95, (4, 9), generator=torch.Generator().manual_seed(step))
        model(tokens).logsumexp(-1).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def digests(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    return tensor_digests(state_tensors(model, optimizer))


def test_training_with_naps_has_the_bits_of_training_without(tmp_path: Path) -> None:
    model, optimizer = small()
    learn(model, optimizer, range(6))
    other, its = small()
    for steps in (range(2), range(2, 3), range(3, 6)):
        learn(other, its, steps)
        offload(other, its, directory=tmp_path).wake()
    assert digests(model, optimizer) == digests(other, its)


def test_large_tensors_lie_in_files_without_names_while_the_role_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sizes = os.posix_fallocate, list[int]()

    def allocate(file: int, at: int, size: int) -> None:
        sizes.append(size)
        real(file, at, size)

    monkeypatch.setattr("os.posix_fallocate", allocate)
    model, optimizer = small()
    learn(model, optimizer, range(2))
    before, parameters = digests(model, optimizer), list(model.parameters())
    strides = model.mixing.stride()
    state = offload(model, optimizer, directory=tmp_path)
    assert digests(model, optimizer) == before == state.digests, "it can be read while it is idle"
    large = [each for each in state_tensors(model, optimizer).values() if each.nbytes >= MIN_MAPPED_BYTES]
    assert len(large) == 3 + 2 * 2
    assert state.num_bytes == sum(each.nbytes for each in large) == sum(sizes), "tied weights are moved once"
    for tensor in large:
        (file,) = mapped_files(tensor)
        assert file.startswith(str(tmp_path))
        assert file.endswith("(deleted)")
    assert list(tmp_path.iterdir()) == []
    state.wake()
    assert digests(model, optimizer) == before
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert model.head.weight is model.embedding.weight
    assert model.mixing.stride() == strides
    assert files_of(model, optimizer) == {False}


def flip(tensor: Tensor, bit: int) -> None:
    flat = tensor.detach().view(-1) if tensor.is_contiguous() else tensor.detach().t().view(-1)
    view = flat.view(torch.uint8)
    view[(bit // 8) % view.numel()] ^= 1 << (bit % 8)


NAMES = [*sorted(state_tensors(*small())), "optimizer.mixing.exp_avg", "optimizer.scale.step"]


@given(st.sampled_from(NAMES), st.integers(0, 1 << 20))
def test_a_bit_that_changes_while_the_role_is_idle_is_named(
    tmp_path_factory: pytest.TempPathFactory, name: str, bit: int
) -> None:
    model, optimizer = small()
    learn(model, optimizer, range(1))
    state = offload(model, optimizer, directory=tmp_path_factory.getbasetemp())
    flip(state_tensors(model, optimizer)[name], bit)
    with pytest.raises(PlacementError) as caught:
        state.wake()
    assert caught.value.what.startswith(f"changed while it was offloaded: {name} (")
    assert caught.value.what.count("became") == 1


def test_state_that_is_lost_is_named(tmp_path: Path) -> None:
    model, optimizer = small()
    learn(model, optimizer, range(1))
    state = offload(model, optimizer, directory=tmp_path)
    optimizer.state.clear()
    with pytest.raises(PlacementError, match=r"optimizer.embedding.weight.exp_avg \(\w+ became None\)"):
        state.wake()


def test_an_offload_that_frees_nothing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="frees nothing"):
        offload(*small())


def test_a_role_with_a_gradient_is_not_idle(tmp_path: Path) -> None:
    model, optimizer = small()
    model(torch.zeros(1, 2, dtype=torch.long)).sum().backward()
    with pytest.raises(InvalidValueError, match=r"weights.embedding.weight has a gradient|weights.mixing"):
        offload(model, optimizer, directory=tmp_path)


def test_a_second_wake_is_refused(tmp_path: Path) -> None:
    state = offload(*small(), directory=tmp_path)
    state.wake()
    with pytest.raises(PlacementError, match="is awake"):
        state.wake()


@pytest.mark.parametrize("num_files", [0, pytest.param(3, marks=pytest.mark.full)])
def test_a_full_disk_is_an_error_and_everything_is_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int
) -> None:
    real, calls = os.posix_fallocate, itertools.count()

    def full(*given: int) -> None:
        if next(calls) == num_files:
            raise OSError(28, "No space left on device")
        real(*given)

    model, optimizer = small()
    learn(model, optimizer, range(1))
    before = digests(model, optimizer)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        offload(model, optimizer, directory=tmp_path)
    assert digests(model, optimizer) == before
    assert files_of(model, optimizer) == {False}
    assert list(tmp_path.iterdir()) == []


def files_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[bool]:
    """Return whether the large tensors of a state lie in files without a name."""
    large = [each for each in state_tensors(model, optimizer).values() if each.nbytes >= MIN_MAPPED_BYTES]
    return {any(file.endswith("(deleted)") for file in mapped_files(each)) for each in large}


def sharded_digests(directory: str, num_rows: tuple[int, int], naps: bool) -> dict[str, str]:
    """Return the digests of a rank's shards after three steps, with or without naps between them."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(7)
    layers = [nn.Embedding(num_rows[0], WIDTH), nn.Linear(WIDTH, num_rows[1])]
    model = nn.Sequential(*layers, nn.GELU())
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    for step in range(3):
        learn(model, optimizer, range(step, step + 1))
        if naps:
            state = offload(model, optimizer, directory=Path(directory))
            assert True in files_of(model, optimizer)
            if all(num % 2 == 0 for num in num_rows):  # FSDP2 copies a shard that it has to pad
                assert files_of(model, optimizer) == {True}
            state.wake()
            assert files_of(model, optimizer) == {False}
    return digests(model, optimizer)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_shards_of_fsdp2_are_offloaded_and_learn_afterwards(tmp_path: Path, distributed: StartRanks) -> None:
    ranks = distributed(2, backend="gloo", env={"OMP_NUM_THREADS": "1"}, timeout_s=240.0)
    for num_rows in ((96, 98), (97, 95)):
        without, with_naps = (ranks.run(sharded_digests, str(tmp_path), num_rows, naps) for naps in (False, True))
        assert without == with_naps
        assert without[0] != without[1], "ranks have different shards"
