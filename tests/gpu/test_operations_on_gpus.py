"""Operations recorded on a real GPU: no bit is another, digests are the host's reference, CUDA graphs are left alone.

One command on a machine that has a GPU: `rlharness run tests/gpu --gpus auto`.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.bits.digests import shardsum  # noqa: E402
from harness.recording.operations import OpLog, OpMode  # noqa: E402
from harness.recording.tensors import tensor_bytes  # noqa: E402
from harness.trace.ops import OpRecord, compare_ops, read_ops  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
    pytest.mark.gpus(1),
]


def recorded(directory: Path) -> OpRecord:
    found = read_ops(directory, 0, 0)
    assert found is not None
    assert found.problem == ""
    return found


def train(directory: Path | None) -> list[Any]:
    """Two steps with dropout on the GPU, the second recorded; weights and the generator's state."""
    torch.manual_seed(3)
    layers = torch.nn.Linear(300, 200), torch.nn.Dropout(0.2), torch.nn.GELU(), torch.nn.Linear(200, 5)
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    values = torch.randn(64, 300, device="cuda")
    for step in range(2):
        is_recorded = directory is not None and step == 1
        log = OpLog(directory or Path(), rank=0, step=0, say=print) if is_recorded else None
        with nullcontext() if log is None else OpMode(log):
            model(values).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [*[parameter.detach().cpu() for parameter in model.parameters()], torch.cuda.get_rng_state()]


def test_no_bit_is_another_and_two_records_are_alike(tmp_path: Path) -> None:
    plain, first, second = train(None), train(tmp_path / "a"), train(tmp_path / "b")
    assert all(torch.equal(x, y) and torch.equal(x, z) for x, y, z in zip(plain, first, second, strict=True))
    a, b = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    verdict = compare_ops(a, b, 0, 0)
    assert (verdict.first, verdict.problems) == (None, ())
    dropout = [each for each in a.operations if each.random]
    assert {each.name for each in dropout} == {"aten.native_dropout.default"}


def test_digests_are_the_reference(tmp_path: Path) -> None:
    values = torch.randn(40, 60)
    on_gpu = values.cuda()
    with OpMode(OpLog(tmp_path, rank=0, step=0, say=print)):
        on_gpu.t().exp()
    (operation,) = recorded(tmp_path).operations
    expected = shardsum(tensor_bytes(values), 4).hex()
    assert (operation.inputs[0].algorithm, operation.inputs[0].digest) == ("shardsum_128", expected)


def test_a_cuda_graph_is_captured_as_ever(tmp_path: Path) -> None:
    values = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with OpMode(OpLog(tmp_path, rank=0, step=0, say=print)):
        with torch.cuda.graph(graph):
            doubled = values * 2
        values.fill_(3)
        graph.replay()
        total = doubled.sum()
    assert float(total) == 48
    names = [each.name for each in recorded(tmp_path).operations]
    assert "aten.mul.Tensor" not in names
    assert "aten.sum.default" in names
