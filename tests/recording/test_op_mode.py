"""The record of operations: what is in it, what it leaves alone, and that it changes no bit."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from harness.recording.operations import OpLog, OpMode
from harness.recording.tensors import digest_tensor
from tests.recording.op_records import named, record, record_until_the_end

# ------------------------------------------------------------------------------------------------- no bit is changed


class Residual(nn.Module):
    """Convolution, batch norm, dropout, a recurrent layer, attention: what models are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.recurrent = nn.GRU(8, 8, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.embedding = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, values: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.conv(values))).transpose(1, 2)
        hidden, _ = self.recurrent(hidden)
        hidden = nn.functional.dropout(hidden, 0.3) + self.embedding(tokens)
        hidden = checkpoint(self.attention, hidden, use_reentrant=False)
        out: torch.Tensor = self.head(hidden[:, -1])
        return out


Optimizers = dict[str, Callable[[Any], torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "adamw foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=True),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, nesterov=True),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=1e-2, max_iter=3),
}


def train(optimizer_name: str, precision: torch.dtype | None, around: Callable[[int], Any]) -> list[torch.Tensor]:
    """Three steps, each within `around(step)`; all that is left: weights, buffers, state, the generator."""
    torch.manual_seed(5)
    model = Residual()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    values, tokens = torch.randn(6, 4, 9), torch.randint(11, (6, 9))
    targets = torch.randint(3, (6,))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", precision) if precision else contextlib.nullcontext():
            loss: torch.Tensor = nn.functional.cross_entropy(model(values, tokens), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    for step in range(3):
        with around(step):
            optimizer.step(closure)  # type: ignore[arg-type]
    state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return [*model.state_dict().values(), *state, torch.get_rng_state()]


@pytest.mark.full
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_bit_is_another(optimizer: str, tmp_path: Path) -> None:
    logs = [OpLog(tmp_path, rank=0, step=step, say=print) for step in range(3)]
    plain = train(optimizer, None, lambda step: contextlib.nullcontext())
    recorded = train(optimizer, None, lambda step: OpMode(logs[step]))
    assert [digest_tensor(each) for each in plain] == [digest_tensor(each) for each in recorded]
    assert min(log.num_ops for log in logs) > 100
    assert {log.ended_by for log in logs} == {"closed"}


def test_no_bit_is_another_under_autocast(tmp_path: Path) -> None:
    log = OpLog(tmp_path, rank=0, step=1, say=print)
    around: dict[int, Any] = {1: OpMode(log)}
    plain = train("adamw", torch.bfloat16, lambda step: contextlib.nullcontext())
    recorded = train("adamw", torch.bfloat16, lambda step: around.get(step, contextlib.nullcontext()))
    assert [digest_tensor(each) for each in plain] == [digest_tensor(each) for each in recorded]


@pytest.mark.full
def test_a_compiled_region_runs_as_it_was_compiled() -> None:
    module = nn.Linear(4, 4)
    compiled = torch.compile(lambda x: torch.relu(module(x)).sum(), backend="aot_eager")
    values = torch.randn(3, 4)
    expected = compiled(values)
    found: list[torch.Tensor] = []
    record(lambda mode: found.append(compiled(values)))
    assert torch.equal(found[0], expected)


# --------------------------------------------------------------------------------------------- what else may happen


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of the program's own."""

    num_calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.num_calls += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_programs_own_is_left_alone(tmp_path: Path) -> None:
    said: list[str] = []
    log = OpLog(tmp_path, rank=0, step=0, say=said.append)
    mode = OpMode(log)
    with Counting() as counting:  # type: ignore[no-untyped-call]
        mode.start()
        torch.ones(3)
        mode.stop()
    torch.ones(3)
    assert (counting.num_calls, log.num_ops) == (1, 0)
    assert "an active dispatch mode of its own, Counting" in said[0]


def test_a_mode_that_the_program_has_put_on_top(tmp_path: Path) -> None:
    log = OpLog(tmp_path, rank=0, step=0, say=print)
    mode = OpMode(log)
    mode.start()
    with Counting() as counting:  # type: ignore[no-untyped-call]
        torch.ones(3)
        mode.stop()
        torch.ones(3)
    torch.ones(3)
    assert (counting.num_calls, log.num_ops) == (2, 1)
    mode.stop()
    assert torch._C._len_torch_dispatch_stack() == 0


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index)).exp()


def test_workers_of_a_data_loader_write_nothing() -> None:
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context="fork")
    batches: list[torch.Tensor] = []
    found = record(lambda mode: batches.extend(loader))
    assert torch.equal(torch.cat(batches), torch.stack([Numbers()[index] for index in range(4)]))
    assert named(found, "exp") == []


class Broken(OpLog):
    """Fails on its third line."""

    def append(self, operation: Any) -> None:
        if self.num_ops == 2:
            raise ZeroDivisionError("planted")
        super().append(operation)


def test_a_mistake_ends_the_record_and_not_the_program(tmp_path: Path) -> None:
    said: list[str] = []
    log = Broken(tmp_path, rank=0, step=0, say=said.append)
    with OpMode(log):
        total = sum(torch.ones(3) for _ in range(5))
    assert torch.equal(torch.as_tensor(total), torch.full((3,), 5.0))
    assert (log.num_ops, len(said)) == (2, 1)
    assert "ZeroDivisionError: planted" in said[0]


def test_an_error_of_the_program_is_the_programs() -> None:
    def program(_: OpMode) -> None:
        with pytest.raises(RuntimeError, match="shapes"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        torch.ones(2).exp()

    found = record(program)
    assert [each.name for each in found.operations if "mm" in each.name] == []
    assert len(named(found, "exp")) == 1


def test_a_forked_child_writes_nothing() -> None:
    def program(_: OpMode) -> None:
        torch.ones(2).exp()
        if not (pid := os.fork()):
            torch.ones(2).cos()
            os._exit(0)
        os.waitpid(pid, 0)

    assert named(record_until_the_end(program), "cos") == []
