"""Optimizers that are given a closure: its gradients stand in the step that it was called in."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from harness.trace import read_trace
from harness.trace.format import RecordedValue, Scope
from harness.trace.ops import read_ops
from tests.support.recorded_programs import ROOT, compared, place, program, record, run
from tests.support.verified import verify

PARAMETERS = [f"{index}.{name}" for index in (0, 2, 3, 4) for name in ("weight", "bias")]


def recorded_values_of(directory: Path, step: int) -> list[RecordedValue]:
    return read_trace(directory).ranks[0].columns(step).values()


@pytest.mark.parametrize(
    ("kind", "num_calls"),
    [
        ("adamw", 1),
        pytest.param("lbfgs", 3, marks=pytest.mark.full),
        pytest.param("lightning", 1, marks=pytest.mark.full),
    ],
)
def test_gradients_of_a_closure_stand_in_their_step(kind: str, num_calls: int, tmp_path: Path) -> None:
    weights = [tmp_path / "plain.pt", tmp_path / "recorded.pt"]
    commands = [program("closure", kind, "--weights", str(each)) for each in weights]
    with ThreadPoolExecutor() as pool:
        recorded = pool.submit(record, tmp_path / "a", commands[1])
        assert run(*commands[0]).exit_code == 0
        recorded.result()
    plain, other = (torch.load(each) for each in weights)
    assert all(torch.equal(plain[key], other[key]) for key in plain)

    trace = read_trace(tmp_path / "a")
    assert (trace.gaps, verify(trace), trace.steps) == ((), [], (0, 1, 2, 3))
    for step in trace.steps:
        gradients = [
            recorded_value
            for recorded_value in recorded_values_of(tmp_path / "a", step)
            if recorded_value.phase == "backward"
        ]
        made = [recorded_value.name for recorded_value in gradients if recorded_value.scope is Scope.PHYSICAL]
        received = [recorded_value.name for recorded_value in gradients if recorded_value.scope is Scope.LOGICAL]
        assert made == received == PARAMETERS * num_calls


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "plant", "expected", "occurrence"),
    [("adamw", "bit:2", (2, "backward", "2.weight"), 0), ("lbfgs", "bit:4", (1, "backward", "2.weight"), 1)],
)
def test_a_bit_planted_in_a_gradient_of_a_closure_is_named_exactly(
    kind: str, plant: str, expected: tuple[int, str, str], occurrence: int, tmp_path: Path
) -> None:
    command = program("plant", "closure.py", kind)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: record(tmp_path / name, command, env={"PLANT": name}), ("none", plant)))
    verdict = compared(tmp_path / "none", tmp_path / plant)
    assert (verdict["verdict"], place(verdict)) == ("diverged", expected)
    assert verdict["first"]["a"]["occurrence"] == occurrence


@pytest.mark.full
def test_a_gradient_that_is_changed_after_backward_is_named_exactly(tmp_path: Path) -> None:
    """As Lightning's on_after_backward may do, before it clips within the closure."""
    commands = {"a": program("closure", "lightning"), "b": program("closure", "lightning", "--change", "2")}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: record(tmp_path / name, commands[name]), commands))
    first_different = next(
        (step, a.phase, a.name, a.scope)
        for step in range(4)
        for a, b in zip(recorded_values_of(tmp_path / "a", step), recorded_values_of(tmp_path / "b", step), strict=True)
        if a != b
    )
    # Clipping changes every gradient; the first one is the first to differ.
    assert first_different == (2, "backward", "0.weight", Scope.LOGICAL)


ODD_CLOSURES = """
import torch

weight = torch.nn.Parameter(torch.ones(3))


class Closure:
    calls = 0

    def __call__(self):
        assert torch.is_grad_enabled()
        Closure.calls += 1
        optimizer.zero_grad()
        (weight * Closure.calls).sum().backward()
        if Closure.calls == 2:
            raise StopIteration("no more data")
        return "result"


class Optimizer(torch.optim.SGD):
    def step(self, closure):
        assert closure.calls == Closure.calls  # an attribute
        assert closure == given and hash(closure) == hash(given)
        return super().step(closure)


torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])  # from now on the hooks are in the step of the base class too
optimizer = Optimizer([weight], lr=0.5)
given = Closure()
for expected in ("result", "no more data", "result"):
    try:
        result = optimizer.step(given)
    except StopIteration as error:
        result = str(error)
    assert result == expected


def forgetful():
    (weight * 7).sum().backward()
    optimizer.zero_grad()


optimizer.__class__ = torch.optim.SGD
optimizer.step(closure=forgetful)
(weight * 9).sum().backward()
optimizer.step()
print(Closure.calls, weight.tolist())
"""


@pytest.mark.full
def test_a_closure_is_called_as_without_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text(ODD_CLOSURES)
    command = [sys.executable, str(path)]
    assert record(tmp_path / "a", command).output == run(*command).output == "3 [-5.5, -5.5, -5.5]\n"
    trace = read_trace(tmp_path / "a")
    assert trace.steps == (0, 1, 2, 3)
    scopes = [
        [
            recorded_value.scope
            for recorded_value in recorded_values_of(tmp_path / "a", step)
            if recorded_value.phase == "backward"
        ]
        for step in trace.steps
    ]
    made, received = Scope.PHYSICAL, Scope.LOGICAL
    # The step that a closure ended with an exception is part of the next; zero_grad leaves no gradient to receive.
    assert scopes == [[made, received], [made, made, received], [made], [made, received]]


TRAINER = """
import torch


def fit(weight, steps):
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def closure():
        (weight * weight).sum().backward()
        torch.nn.utils.clip_grad_norm_([weight], 0.1)

    for _ in range(steps):
        optimizer.step(closure)
"""


@pytest.mark.full
def test_operations_of_a_closure_are_recorded_with_their_phase(tmp_path: Path) -> None:
    """No frame of the user's lies between a library's closure and the optimizer."""
    package = tmp_path / "site-packages" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TRAINER)
    path = tmp_path / "train.py"
    path.write_text("import torch, trainer\n\ntrainer.fit(torch.nn.Parameter(torch.ones(3)), 3)\n")
    env = {"PYTHONPATH": f"{tmp_path / 'site-packages'}:{ROOT}"}
    record(tmp_path / "a", [sys.executable, str(path)], "--trace-ops", "1", env=env)
    found = read_ops(tmp_path / "a", 0, 1)
    assert found is not None
    recorded = [(operation.phase, operation.name) for operation in found.operations]
    expected = [
        ("forward", "aten.sum.default"),
        ("backward", "aten.add.Tensor"),
        ("forward", "aten.linalg_vector_norm.default"),  # clipping
        ("optimizer", "aten.add_.Tensor"),
    ]
    assert [each for each in recorded if each in expected] == expected
    assert recorded[-1] == expected[-1]
