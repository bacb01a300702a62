"""Values wherever they are: what is not on the host comes back by 16 bytes each, and says what the host's says."""

import pytest
import torch

from harness.bits import shard_sums
from harness.bits.digests import PACKSUM_128, RAW, SHARDSUM_128, packsum, shardsum
from harness.bits.shard_sums import kernel_problem
from harness.recording import tensors
from harness.recording.recorder import look
from harness.recording.tensors import digest_placed, tensor_bytes
from harness.trace.format import Scope
from tests.recording.counted_gpu import CountedGpu, pretend_gpu

HOST = torch.device("cpu")


# ------------------------------------------------------------------------------------------------- many at once


def test_many_values_on_a_gpu_take_one_launch_and_a_wait_only_where_somebody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = pretend_gpu(monkeypatch)
    values = [torch.randn(100 + number, 8).to(dtype) for number in range(50) for dtype in (torch.float32, torch.half)]
    values += [torch.tensor(float(number)) for number in range(50)]
    digests = digest_placed(values)
    assert gpu.taken() == {"launches": 1, "uploads": 2, "copies": 1, "waits": 0}
    assert [each.algorithm for each in digests] == [SHARDSUM_128, PACKSUM_128] * 50 + [RAW] * 50
    for value, digested in zip(values[:100], digests, strict=False):
        summed = packsum if value.element_size() < 4 else shardsum
        assert digested.digest == summed(tensor_bytes(value), value.element_size())
    assert gpu.taken()["waits"] == 1
    digest_placed(values)
    assert gpu.taken() == {"launches": 1, "uploads": 0, "copies": 1, "waits": 0}, "their addresses are known"


class Broken(CountedGpu):
    """Its kernel fails, or its sums are wrong."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error

    def launch(
        self, rows: torch.Tensor, owners: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor], sums: torch.Tensor
    ) -> None:
        self.counts["launches"] += 1
        if self.error is not None:
            raise self.error
        sums += 1


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (RuntimeError("no C compiler"), "RuntimeError: no C compiler"),
        (None, "its sums are wrong"),
        (torch.OutOfMemoryError("full"), "OutOfMemoryError: full"),
    ],
)
def test_a_kernel_that_does_not_run_is_replaced(
    error: Exception | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = pretend_gpu(monkeypatch, Broken(error))
    monkeypatch.setattr(shard_sums, "_problems", {})
    assert [kernel_problem(HOST) for _ in range(2)] == [problem] * 2
    is_forgotten = isinstance(error, torch.OutOfMemoryError)  # memory may be there at the next try
    assert gpu.taken()["launches"] == 1 + is_forgotten
    value = torch.randn(1000)
    assert digest_placed([value])[0].digest == shardsum(tensor_bytes(value), 4)


# ------------------------------------------------------------------------------------------ memory that is not there


class Driver:
    """A CUDA driver that knows which addresses are mapped."""

    def __init__(self, unmapped: range) -> None:
        self.unmapped = unmapped

    def cuPointerGetAttribute(self, found: object, attribute: int, address: object) -> int:
        assert attribute == 13
        found._obj.value = address.value not in self.unmapped  # type: ignore[attr-defined]
        return 0


class OnGpu(torch.Tensor):
    """Says that it lies on a GPU."""

    is_cuda = True
    is_cpu = False


def test_memory_of_a_sleeping_engine_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = pretend_gpu(monkeypatch)
    awake, asleep = (torch.randn(1000).as_subclass(OnGpu) for _ in range(2))
    first = asleep.data_ptr()
    for unmapped in (range(first, first + 4000), range(first + 2000, first + 4000)):
        monkeypatch.setattr(tensors, "_driver", lambda unmapped=unmapped: Driver(unmapped))
        seen = look([("awake", awake), ("asleep", asleep)])
        assert [(each.digested.dtype, each.scope) for each in seen] == [
            ("f32", Scope.LOGICAL),
            ("unmapped", Scope.PHYSICAL),
        ]
        assert gpu.num_words == 1000, "the words of the other were not read"
        gpu.num_words = 0


def test_a_storage_that_is_smaller_than_its_tensor_is_not_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """FSDP's first version resizes the storages of gathered weights under living tensors; a view may be left over."""
    for is_on_gpu in (False, True):
        if is_on_gpu:
            pretend_gpu(monkeypatch)
        for num_left in (0, 399):
            value = torch.randn(100)
            value.untyped_storage().resize_(num_left)
            (seen,) = look([(f"w{num_left}", value)])
            assert (seen.digested.dtype, seen.digested.shape, seen.scope) == ("freed", (100,), Scope.PHYSICAL)
            assert seen.tensor is None, "nobody can keep it either"
    assert "w0 and other values without memory are recorded as `freed`, and not compared" in capsys.readouterr().err
