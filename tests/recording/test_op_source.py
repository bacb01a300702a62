"""Source lines of operations: the user's, forward and backward."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from harness.recording import operations
from harness.recording.hooks import hook_rollouts
from harness.recording.operations import OpMode
from harness.recording.tensors import digest_tensor
from harness.trace.ops import OpRecord
from tests.recording.op_records import line_of, named, only, record


class Doubled(torch.autograd.Function):
    """With a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] + grads[0]


def squashed(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 3


def lines_program(weight: torch.Tensor, index: torch.Tensor, optimizer: torch.optim.Optimizer, mode: OpMode) -> None:
    rows = weight[index]  # the gradient is an index_put_ with accumulate
    doubled: torch.Tensor = Doubled.apply(rows)  # type: ignore[no-untyped-call]
    copied = doubled.clone()
    copied[0] = 0  # a write into a view
    copied.exp_()  # in place
    kept = checkpoint(squashed, copied, use_reentrant=False)
    loss = (kept.sigmoid() + kept).sum()
    loss.backward()
    mode.phase = "optimizer"
    optimizer.step()
    mode.phase = "forward"


def lines_record() -> OpRecord:
    torch.manual_seed(2)
    weight = torch.randn(5, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    return record(lambda mode: lines_program(weight, torch.tensor([0, 1, 1]), optimizer, mode))


def test_each_operation_has_the_line_that_asked_for_it() -> None:
    found = lines_record()
    at: dict[str, tuple[Callable[..., object], str]] = {
        "index": (lines_program, "rows ="),
        "index_put": (lines_program, "rows ="),
        "clone": (lines_program, "copied ="),
        "fill_": (lines_program, "copied[0]"),
        "exp_": (lines_program, "copied.exp_"),
        "sigmoid": (lines_program, "kept.sigmoid"),
        "sigmoid_backward": (lines_program, "kept.sigmoid"),
        "tanh_backward": (squashed, "torch.tanh"),
        "ones_like": (lines_program, "loss.backward"),
    }
    for name, (function, text) in at.items():
        assert {each.at for each in named(found, name)[:1]} == {line_of(function, text)}, name
    assert only(found, "index_put").phase == "backward"
    of_the_view = [each for each in found.operations if each.at == line_of(lines_program, "copied[0]")]
    assert {each.phase for each in of_the_view} == {"forward", "backward"}, "its node is made after it has run"
    assert {each.at for each in named(found, "add")} >= {line_of(Doubled.backward, "grads[0] +")}
    optimized = [each for each in found.operations if each.phase == "optimizer"]
    assert {each.at for each in optimized} == {line_of(lines_program, "optimizer.step")}
    assert optimized


def test_recomputed_operations_have_their_own_lines_and_belong_to_backward() -> None:
    first, again = named(lines_record(), "tanh")
    assert (first.phase, again.phase) == ("forward", "backward")
    assert first.at == again.at == line_of(squashed, "torch.tanh")
    assert first.outputs == again.outputs


def test_what_the_engine_does_by_itself_is_the_engines() -> None:
    recorded_value = torch.randn(3, requires_grad=True)

    def program(mode: OpMode) -> None:
        for _ in range(2):
            (recorded_value * 2).sum().backward()  # type: ignore[no-untyped-call]

    (stored,) = [each for each in record(program).operations if each.name.startswith("aten.add")]
    assert (stored.at, stored.via) == ("engine", "torch::autograd::AccumulateGrad")


def test_a_packages_line_stands_beside_the_users(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "layers"
    package.mkdir(parents=True)
    (package / "act.py").write_text("def act(x):\n    return x.exp()\n")
    scope: dict[str, Any] = {}
    exec(compile((package / "act.py").read_text(), str(package / "act.py"), "exec"), scope)
    values = torch.randn(3)

    def program(_: OpMode) -> None:
        scope["act"](values)

    found = only(record(program), "exp")
    assert (found.at, found.via) == (line_of(program, 'scope["act"]'), "layers/act.py:2 act")


def wrapped(x: torch.Tensor) -> torch.Tensor:
    __tracebackhide__ = True
    return x.exp()


class HiddenDoubled(Doubled):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        __tracebackhide__ = True
        return grads[0] * 2


def test_a_function_that_hides_itself_is_told_by_its_caller_and_in_backward_by_the_forward() -> None:
    recorded_value = torch.randn(3, requires_grad=True)

    def program(mode: OpMode) -> None:
        hidden: torch.Tensor = HiddenDoubled.apply(recorded_value)  # type: ignore[no-untyped-call]
        wrapped(hidden).sum().backward()  # type: ignore[no-untyped-call]

    found = record(program)
    assert only(found, "exp").at == line_of(program, "wrapped(hidden)")
    forward, *backward = named(found, "mul")
    assert [each.phase for each in backward] == ["backward", "backward"], "of exp, and HiddenDoubled's own"
    assert backward[-1].at == forward.at == line_of(Doubled.forward, "x * 2")


def test_what_recording_does_itself_is_not_recorded() -> None:
    values = torch.randn(4, 4).t()[1:]
    assert record(lambda mode: digest_tensor(values)).operations == ()


def package(directory: Path, name: str, text: str) -> dict[str, Any]:
    """The names of a package's file that was installed below `directory`."""
    path = directory / "site-packages" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, str(path), "exec"), scope)
    return scope


TRAINER = """
class GRPOTrainer:
    def _calculate_rewards(self, completions):
        return self.reward(completions)

    def _generate_and_score_completions(self, prompts):
        completions = prompts.cumsum(0)
        rewards = self._calculate_rewards(completions)
        return {"completion_ids": completions, "advantages": rewards.sub(1)}

    def train(self, prompts):
        return self._generate_and_score_completions(prompts)["advantages"].exp()
"""


def test_operations_below_a_wrapper_of_ours_are_the_programs(tmp_path: Path) -> None:
    """As TRL's trainer generates and scores: our wrapper records what it returns, and that alone is ours."""
    trainer = package(tmp_path, "trl/grpo_trainer.py", TRAINER)["GRPOTrainer"]

    def guarded(phase: str, name: str, found: torch.Tensor) -> None:
        digest_tensor(found.t() if found.dim() > 1 else found)

    hook_rollouts(SimpleNamespace(GRPOTrainer=trainer), print, guarded)  # type: ignore[arg-type]
    prompts = torch.ones(2, 3)

    def program(_: OpMode) -> None:
        trainer.reward = lambda self, completions: completions.tanh()
        trainer().train(prompts)

    found = record(program).operations
    assert [each.name.split(".")[1] for each in found] == ["cumsum", "tanh", "sub", "exp"]
    assert found[1].at == line_of(program, "completions.tanh()").replace(" program", " <lambda>")
    called = line_of(program, "trainer().train")
    assert [(found[index].at, found[index].via) for index in (0, 3)] == [
        (called, "trl/grpo_trainer.py:7 _generate_and_score_completions"),
        (called, "trl/grpo_trainer.py:12 train"),
    ]


def test_operations_of_a_package_that_the_recorder_calls_are_the_recorders(tmp_path: Path) -> None:
    """As the sentinel repeats the step of an optimizer that is a package's."""
    scope = package(tmp_path, "optimizers/step.py", "def step(x):\n    return x.exp()\n")
    scope |= {"__name__": "sentinel", "x": torch.ones(3)}
    sentinel = str(Path(operations.__file__).parent / "sentinel.py")
    text = "def _guarded():\n    step(x)\n\ndef begin():\n    step(x)\n    x.sin()\n    _guarded()\n"
    exec(compile(text, sentinel, "exec"), scope)
    assert [each.name for each in record(lambda _: scope["begin"]()).operations] == ["aten.exp.default"]
