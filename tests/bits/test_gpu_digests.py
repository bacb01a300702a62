"""Digests of tensors on a GPU: the values of the host, and nothing but a few bytes of each tensor leaves the GPU."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from xxhash import xxh3_128_digest

from harness.bits import gpu_digests
from harness.bits import tensor_digests as digests
from harness.bits.gpu_digests import Contents
from harness.bits.tensor_digests import flat_digest, tensor_digest, tensor_digests
from rlcore.numerics.level import Strategy, following
from rlcore.weights.proven_sync import sync
from tests.bits import slow_kernel
from tests.rlcore.weights.targets import Target, policy
from tests.support.triton_interpreter import run_interpreted

DTYPES = (torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.complex64)


class Host:
    """What comes to the host: how often, and how many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        copy = Tensor.cpu

        def counted(tensor: Tensor, *given: Any, **named: Any) -> Tensor:
            self.sizes.append(tensor.nbytes)
            return copy(tensor, *given, **named)

        read = digests.host_bytes

        def counted_bytes(tensor: Tensor) -> memoryview:
            """A tensor on the host is read in place; one on a GPU would be copied."""
            before, found = len(self.sizes), read(tensor)
            self.sizes[before:] = [tensor.nbytes]
            return found

        monkeypatch.setattr(Tensor, "cpu", counted)
        monkeypatch.setattr(digests, "host_bytes", counted_bytes)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read every tensor as one on a GPU, with torch's operations in place of the kernel."""
    monkeypatch.setitem(sys.modules, "harness.bits.gpu_kernels", slow_kernel)
    monkeypatch.setattr(digests, "is_read_there", lambda tensor: True)
    gpu_digests.problem.cache_clear()
    yield
    gpu_digests.problem.cache_clear()


def drawn(num_bytes: int, seed: int = 0) -> Tensor:
    return torch.randint(256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30)
@given(lengths=st.lists(st.one_of(st.integers(0, 1100), st.integers(1020, 9000)), max_size=6))
def test_any_number_of_contents_of_any_length(lengths: list[int], as_on_a_gpu: None) -> None:
    parts = [drawn(length, length) for length in lengths]
    contents = Contents()
    for part in parts:
        contents.add(part)
    assert contents.num_bytes == sum(lengths)
    assert contents.take() == [xxh3_128_digest(part.numpy().tobytes()) for part in parts]
    assert (contents.take(), contents.num_bytes) == ([], 0)


def test_tensors_have_the_digests_of_the_host_by_one_copy(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    """Before, one copy of all of each tensor."""
    tensors = {
        f"{dtype}, {shape}": torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)
        for dtype in DTYPES
        for shape in ((), (0, 3), (7,), (40, 301))
    }
    tensors |= {"transposed": tensors["torch.float32, (40, 301)"].t(), "a gradient": torch.ones(9, requires_grad=True)}
    expected = tensor_digests(tensors)
    assert host.sizes == [tensor.nbytes for tensor in tensors.values()]
    host.sizes.clear()
    monkeypatch.setitem(sys.modules, "harness.bits.gpu_kernels", slow_kernel)
    monkeypatch.setattr(digests, "is_read_there", lambda tensor: True)
    assert list(tensor_digests(tensors).items()) == list(expected.items())
    assert len(host.sizes) == 1
    assert host.sizes[0] <= len(tensors) * (64 + 1024) < sum(tensor.nbytes for tensor in tensors.values())
    assert {name: tensor_digest(tensor) for name, tensor in tensors.items()} == expected


def copies_of_a_sync(host: Host) -> tuple[int, int]:
    """(copies, bytes) of the digests of the second of two syncs, which has all checks of a step."""
    decoder = policy()
    with following(Strategy()):
        target = Target(decoder)
        receipt = sync(decoder, target, 1, None)
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.mul_(1.5)
        host.sizes.clear()
        sync(decoder, target, 2, receipt, has_learned=True)
    return len(host.sizes), sum(host.sizes)


def test_a_sync_copies_no_weights_to_the_host(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    num_parameters = len(dict(policy().named_parameters()))
    num_bytes = sum(parameter.nbytes for parameter in policy().parameters())
    before = copies_of_a_sync(host)
    monkeypatch.setitem(sys.modules, "harness.bits.gpu_kernels", slow_kernel)
    monkeypatch.setattr(digests, "is_read_there", lambda tensor: True)
    after = copies_of_a_sync(host)
    of_canary = before[0] - 3 * num_parameters
    assert 0 < of_canary < 5
    assert before[1] > 3 * num_bytes
    assert after[0] == 3 + of_canary
    assert after[1] < 3 * num_parameters * (64 + 1024)


def test_without_its_kernel_a_gpu_is_said_to_copy_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Triton here, or no compiler for it there: the value is the same, the time is not."""
    gpu_digests.problem.cache_clear()
    monkeypatch.setitem(sys.modules, "harness.bits.gpu_kernels", None)
    said = "weights on cpu are copied to the host for their digests: ModuleNotFoundError"
    with pytest.warns(RuntimeWarning, match=said):
        assert gpu_digests.problem(torch.device("cpu"))
    assert gpu_digests.problem(torch.device("cpu")), "the second time without a warning, which would be an error"
    gpu_digests.problem.cache_clear()


def test_a_kernel_that_is_wrong_on_a_gpu_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_digests.problem.cache_clear()
    monkeypatch.setitem(sys.modules, "harness.bits.gpu_kernels", slow_kernel)
    assert gpu_digests.problem(torch.device("cpu")) == ""
    gpu_digests.problem.cache_clear()
    wrong = SimpleNamespace(
        block_sums=slow_kernel.block_sums, chained=lambda sums, counts: slow_kernel.chained(sums, counts) + 1
    )
    monkeypatch.setitem(sys.modules, "harness.bits.gpu_kernels", wrong)
    with pytest.warns(RuntimeWarning, match="its kernel gives other digests than the host"):
        assert gpu_digests.problem(torch.device("cpu"))
    gpu_digests.problem.cache_clear()


def test_the_kernel_is_the_library_to_the_bit() -> None:
    done = run_interpreted(Path(__file__).with_name("kernel_in_interpreter.py"))
    assert (done.returncode, done.stdout) == (0, "20 equal\n"), done.stderr


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_gradient_that_is_read_tensor_by_tensor_has_the_digest_of_one_flat_tensor(host: Host) -> None:
    gradients = [torch.full((size, 7), float(size)) for size in (3, 0, 500, 1, 90)]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    found = flat_digest(iter(gradients))
    assert len(host.sizes) == 1
    assert found == tensor_digest(flat)
    with pytest.MonkeyPatch.context() as on_host:
        on_host.setattr(digests, "is_read_there", lambda tensor: False)
        assert flat_digest(gradients) == tensor_digest(flat) == found
        assert flat_digest([]) == tensor_digest(torch.zeros(0))
