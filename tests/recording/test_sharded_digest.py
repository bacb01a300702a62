"""Values wherever they are: what is not on the host comes back by 16 bytes each, and says what the host's says."""

import pytest
import torch

from harness.bits.digests import RAW, SHARDSUM_128, shardsum
from harness.recording import gpu_batch, gpu_memory
from harness.recording.gpu_batch import Gpu, kernel_problem, lanes_by_kernel, lanes_of
from harness.recording.gpu_digest import lanes_digest
from harness.recording.recorder import look
from harness.recording.sharded_digest import digest_placed
from harness.recording.tensors import digest_tensor
from harness.trace.chain import Scope
from tests.recording.counted_gpu import CountedGpu, pretend_gpu

HOST = torch.device("cpu")


@pytest.mark.parametrize("value", [torch.tensor(1.5), torch.arange(4, dtype=torch.int32), torch.tensor([True, False])])
def test_small_values_travel_as_they_are(value: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest_tensor(value)
    for lanes in (lanes_by_kernel([value], HOST, CountedGpu()), lanes_of([value], HOST)):
        assert lanes_digest(lanes[0]) == lanes_digest(torch.frombuffer(bytearray(expected.digest), dtype=torch.int64))
    pretend_gpu(monkeypatch)
    assert digest_placed([value]) == [expected]


# ------------------------------------------------------------------------------------------------- many at once


def test_many_values_on_a_gpu_take_one_launch_for_each_word_size_and_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = pretend_gpu(monkeypatch)
    dtypes = (torch.float32, torch.bfloat16)
    values = [torch.randn(100 + number, 8).to(dtype) for number in range(50) for dtype in dtypes]
    values += [torch.tensor(float(number)) for number in range(50)]
    digests = digest_placed(values)
    assert gpu.taken() == {"launches": 3, "uploads": 1, "waits": 1, "by torch": 0}
    assert {each.algorithm for each in digests[:100]} == {SHARDSUM_128}
    assert {each.algorithm for each in digests[100:]} == {RAW}
    for value, digested in zip(values[:100], digests, strict=False):
        assert digested.digest == shardsum(bytes(value.view(torch.uint8).flatten().tolist()), value.element_size())


class Broken(CountedGpu):
    """Its kernel fails, or its sums are wrong."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error

    def sum_runs(
        self, table: torch.Tensor, sums: torch.Tensor, *, num_programs: int, word_bytes: int, is_aligned: bool
    ) -> None:
        if self.error is not None:
            raise self.error
        sums += 1


@pytest.mark.parametrize(
    ("error", "problem"), [(RuntimeError("no C compiler"), "RuntimeError: no C compiler"), (None, "its sums are wrong")]
)
def test_a_kernel_that_does_not_run_is_reported_once_and_replaced(
    error: Exception | None, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_batch, "_problems", {})
    gpu = Broken(error)
    assert [kernel_problem(HOST, gpu) for _ in range(2)] == [problem] * 2
    told = capsys.readouterr().err
    assert told.count("Triton kernel does not run") == told.count(problem) == 1
    assert gpu.taken()["uploads"] == 1, "it is tried once"


def test_a_variant_that_does_not_compile_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is compiled for each size of word, at its first use."""
    value = torch.randn(1000)
    device = torch.device("cuda", 0)
    monkeypatch.setattr(gpu_batch, "_problems", {device: ""})
    monkeypatch.setattr(Gpu, "upload", lambda gpu, numbers, device: torch.frombuffer(numbers, dtype=torch.int64))
    found = lanes_of([value], device, Broken(RuntimeError("variant")))
    assert lanes_digest(found[0]) == shardsum(bytes(value.view(torch.uint8).tolist()), 4)
    assert kernel_problem(device) == "RuntimeError: variant"


def test_a_lack_of_memory_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_batch, "_problems", {})
    assert "OutOfMemoryError" in kernel_problem(HOST, Broken(torch.OutOfMemoryError("full")))
    assert kernel_problem(HOST, CountedGpu()) == ""


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
        monkeypatch.setattr(gpu_memory, "_driver", lambda unmapped=unmapped: Driver(unmapped))
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
